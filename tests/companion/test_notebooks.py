"""Every notebook keeps the house's form, runs at every profile (dry), and says what the papers say
in its `paper` settings.
"""

import ast
import contextlib
import csv
import io
import json
import re
from html import unescape
from pathlib import Path

import course
import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from course_wrong_answers import TABULATED, wrong
from matplotlib.figure import Figure

from curlnb.companion import formatting, ledger, notebook, notebooks, profiles
from curlnb.data import datasets
from curlnb.runs import environment, provenance

NOTEBOOKS = notebooks.find()
NAMES = [notebooks.name_of(path) for path in NOTEBOOKS]
HERE = Path(__file__).parent.parent


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
class TestForm:
    def test_parameters_cell_holds_profile_and_seed_and_nothing_more(self, path):
        tagged = [
            cell for cell in cells_of(path) if "parameters" in cell["metadata"].get("tags", [])
        ]
        parameters = 'profile = "quick"\nseed = 0\nchange = {}'
        assert ["".join(cell["source"]).strip() for cell in tagged] == [parameters]

    def test_it_is_committed_executed_from_top_to_bottom_without_error_or_stderr(self, path):
        cells = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), (
            "run `make reproduce reference`"
        )
        outputs = [out for cell in cells for out in cell["outputs"]]
        assert not [
            out for out in outputs if out["output_type"] == "error" or out.get("name") == "stderr"
        ]

    def test_it_begins_with_a_title_and_ends_with_claims_compute_and_exercises(self, path):
        text = "\n".join(notebooks.sources(path, "markdown"))
        headings = [heading.strip().lower() for heading in re.findall(r"^##? (.*)$", text, re.M)]
        assert "".join(cells_of(path)[0]["source"]).startswith("# ")
        assert headings[-1] == "compute"

    def test_checked_cells_print_plain_text_only(self, path):
        for cell in cells_of(path):
            if "NBVAL_CHECK_OUTPUT" in cell["metadata"].get("tags", []):
                kinds = {
                    kind for out in cell["outputs"] for kind in out.get("data", {"text/plain": ""})
                }
                assert kinds <= {"text/plain"}
                assert cell["outputs"], "a checked cell without output checks nothing"

    def test_no_verdict_is_written_down(self, path):
        """A verdict follows from the numbers: one that stands in the cell would survive any of
        them.
        """
        calls = [
            node
            for source in notebooks.sources(path)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call)
        ]
        given = [word for call in calls for word in call.keywords if word.arg == "exact"]
        assert [ast.unparse(word) for word in given if isinstance(word.value, ast.Constant)] == []

    def test_names_no_path_of_a_machine_and_no_address_of_a_registry(self, path):
        text = path.read_text()
        assert not re.search(r"/(home|root|tmp|Users|work)/\w", text)
        assert not re.search(r"(pypi|npmjs|debian|anaconda|hosted)\.\w+", text)


def code_of(path: Path) -> list[tuple[str, set[str]]]:
    """The code cells: source and tags."""
    return [
        ("".join(cell["source"]), set(cell["metadata"].get("tags", [])))
        for cell in cells_of(path)
        if cell["cell_type"] == "code"
    ]


LESSONS = [path for path in NOTEBOOKS if any("exercise" in tags for _, tags in code_of(path))]


def test_what_was_made_a_lesson_stays_one():
    names = {notebooks.name_of(path) for path in LESSONS}
    assert names >= {name for name in NAMES if name.startswith(("0", "1_curl/"))}


@pytest.mark.parametrize("path", LESSONS, ids=notebooks.name_of)
class TestLesson:
    """A notebook to learn from is mostly prose, in steps that one can take, and ends with exercises
    that check themselves.
    """

    def test_cells_and_lines_are_short(self, path):
        long = [
            source.splitlines()[0] for source, _ in code_of(path) if len(source.splitlines()) > 40
        ]
        lines = [line for cell in cells_of(path) for line in "".join(cell["source"]).splitlines()]
        wide = [
            line for line in lines if len(line) > 100 and not line.startswith("|")
        ]  # rows of a table can't be wrapped
        assert long == []
        assert wide == []

    def test_there_are_at_least_six_words_of_prose_a_line_of_code(self, path):
        plumbing = {"colab", "hide-input", "hide-cell", "solution", "referee"}  # no lesson
        words = sum(len(text.split()) for text in notebooks.sources(path, "markdown"))
        own = [source for source, tags in code_of(path) if not tags & plumbing]
        lines = [line for source in own for line in source.splitlines() if line.strip()]
        assert words >= 6 * len(lines), f"{words} words on {len(lines)} lines of code"

    def test_figures_have_a_name_and_an_alternative_text(self, path):
        for cell in cells_of(path):
            for output in cell.get("outputs", []):
                if "image/png" in output.get("data", {}):
                    about = output.get("metadata", {}).get("image/png", {})
                    assert about.get("name"), "".join(cell["source"])[:80]
                    assert len(about.get("alt", "").split()) >= 5, "".join(cell["source"])[:80]

    def test_an_exercise_is_a_task_a_solution_and_a_check(self, path):
        order = [
            tag
            for _, tags in code_of(path)
            for tag in ("exercise", "solution", "check")
            if tag in tags
        ]
        one = ["exercise", "check", "solution"]
        assert order == one * (len(order) // 3)
        assert 2 <= len(order) // 3 <= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebooks.name_of)
class TestPage:
    """One page, one story: a lesson that can be read at a sitting, then the referee's part."""

    REFEREE = "## For the referee"

    def test_the_lesson_comes_first_and_is_short(self, path):
        cells = cells_of(path)
        texts = ["".join(cell["source"]) for cell in cells]
        (line,) = (at for at, text in enumerate(texts) if text.startswith(self.REFEREE))
        lesson = [
            text for text, cell in zip(texts, cells, strict=True) if cell["cell_type"] == "markdown"
        ][: sum(cell["cell_type"] == "markdown" for cell in cells[:line])]
        headings = re.findall(r"^## (.*)$", "\n".join(lesson), re.M)
        assert headings[-2:] == ["Exercises", "Since then"]
        words = sum(len(re.sub(r"<!--.*?-->", "", text).split()) for text in lesson)
        assert words <= 1600, f"{words} words above the line, exercises among them"
        intervals = re.findall(r"\[[-+\N{MINUS SIGN}]?[\d.]+, ", "\n".join(lesson))
        assert len(intervals) <= 12

    def test_since_then_names_three_to_six_later_works_with_their_addresses(self, path):
        text = "\n".join(notebooks.sources(path, "markdown"))
        part = text.partition("## Since then")[2].partition(self.REFEREE)[0]
        works = re.findall(r"^- .*?\]\(https://", part, re.M | re.S)
        assert 3 <= len(works) <= 6

    def test_a_solution_is_folded_and_has_a_name_of_its_own(self, path):
        for cell in cells_of(path):
            tags = cell["metadata"].get("tags", [])
            if "solution" in tags:
                assert re.search(r"^def \w+_solution\(", "".join(cell["source"]), re.M)
            if {"solution", "colab", "hide-input", "hide-cell"} & set(tags):
                assert cell["metadata"].get("jupyter") == {"source_hidden": True}

    def test_checks_print_not_answered_yet(self, path):
        outputs = [
            "".join(output["text"])
            for cell in cells_of(path)
            for output in cell.get("outputs", [])
            if "check" in cell["metadata"].get("tags", [])
        ]
        assert outputs == ["not answered yet\n"] * len(outputs)
        assert len(outputs) >= 2


@pytest.fixture(scope="session")
def dry_results(tmp_path_factory):
    """One folder for all dry runs of this process: a run that two notebooks share is made once."""
    return tmp_path_factory.mktemp("dry")


def profiles_of(path: Path) -> list[str]:
    """Those beside quick whose dry runs differ; a broken file must not hide the others' tests."""
    try:
        given = notebooks.settings_of(path)
    except ValueError:
        return ["gpu", "paper"]
    names = [name for name in reversed(ledger.PROFILES) if name != "quick" and name in given]
    if asks_for_its_profile(path):
        return names
    replaced = dry_settings(path)
    runs = {
        name: {key: value for key, value in given[name].items() if key not in replaced}
        for name in names
    }
    return [
        name
        for at, name in enumerate(names)
        if runs[name] not in [runs[other] for other in names[:at]]
    ]


def asks_for_its_profile(path: Path) -> bool:
    """Whether the code branches on the profile's name, so that profiles with the same settings
    differ all the same.
    """
    nodes = [node for source in notebooks.sources(path) for node in ast.walk(ast.parse(source))]
    return any(
        isinstance(part, ast.Name | ast.Attribute) and "profile" in ast.unparse(part)
        for node in nodes
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
    )


def dry_settings(path: Path) -> set[str]:
    """The names of the settings that a dry run replaces."""
    return set(profiles.read(profiles.file_of(path))[1])


DRY = [
    pytest.param(path, profile, id=f"{name}-{profile}")
    for path, name in zip(NOTEBOOKS, NAMES, strict=True)
    for profile in profiles_of(path)
]


def laid_out(figure: Figure, path: Path, **options: object) -> None:
    """In the place of `savefig`: all of a figure but the pixels, which takes half the time. The
    figures of `quick` are drawn.
    """
    figure.draw_without_rendering()
    Path(path).touch()


def answered(answer: str, check: str, space: dict) -> None:
    """Execute an answer and a check with what the lesson left; both leave nothing."""
    tried = dict(space)
    exec(answer, tried)
    exec(check, tried)


def says_what_is_wrong(exercise: course.Exercise, mistakes: list[str], space: dict) -> None:
    """A page's own check, which raises nothing, on the stub, the solution and typical mistakes."""
    answers = {exercise.stub: "not answered yet\n", exercise.solution: "right\n"}
    for answer in (*answers, *mistakes):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            answered(answer, exercise.check, space)
        last = said.getvalue().splitlines(keepends=True)[-1]
        assert last == answers[answer] if answer in answers else last.startswith("wrong: ")


@pytest.mark.parametrize(("path", "profile"), DRY)
def test_every_profile_runs_dry(path, profile, dry_results, monkeypatch):
    """The same code, two steps, synthetic data of the real shapes, in this process: no profile rots
    unseen.

    An exercise's check passes with its solution, and fails with its stub and typical mistakes; a
    hidden one also refuses a table that knows the visible one's numbers.
    """
    dry = {
        "CURLNB_DRY": "1",
        "CURLNB_RESULTS": str(dry_results),
        "MPLBACKEND": "agg",
        "CURLNB_DEVICE": "cpu",
    }
    for name, value in dry.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Figure, "savefig", laid_out)
    space: dict = {"__name__": "__main__"}
    stub, name = "", notebooks.name_of(path)
    exercises = {e.stub: e for e in course.Lesson(name, notebooks.read(path)).exercises}
    try:
        for source, tags in code_of(path):
            code = compile(
                source.replace('profile = "quick"', f'profile = "{profile}"'), str(path), "exec"
            )
            if "check" in tags:
                exercise = exercises[stub]
                for answer in (stub, *wrong(name, exercise.function, exercise.solution)):
                    with pytest.raises(AssertionError, match=r"\w"):  # with a message that helps
                        answered(answer, exercise.graded, space)
                says_what_is_wrong(
                    exercise, wrong(name, exercise.function, exercise.solution), space
                )
                if known := TABULATED.get((name, exercise.function)):
                    table = f"{stub.rstrip().removesuffix('...').rstrip()}\n    {known}"
                    answered(table, exercise.graded, space)
                    with pytest.raises((AssertionError, KeyError)):
                        answered(table, exercise.whole_check, space)
                answered(exercise.solution, exercise.whole_check, space)
            if "exercise" in tags:
                stub = source
            exec(code, space)
    finally:
        plt.close("all")
        torch.set_default_dtype(torch.float32)  # a page has a process of its own, this one goes on


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_paper_settings_are_those_of_the_paper_field_by_field(path):
    """tests/paper_settings.csv cites the paper, or the released code, for every setting of the
    `paper` profile.
    """
    with open(HERE / "paper_settings.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["notebook"] == notebooks.name_of(path)]
    cited = {row["setting"]: json.loads(row["value"]) for row in rows}
    assert all(row["source"] for row in rows)
    asked = f'notebook.settings("{notebooks.name_of(path)}", profile, change)'
    assert asked in "\n".join(notebooks.sources(path)), "it asks for another page's settings"
    assert json.loads(json.dumps(notebooks.settings_of(path)["paper"])) == cited


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_metadata_says_what_the_code_needs(path):
    """A notebook whose metadata is wrong would train beside another on a GPU, be timed beside
    another, or sum up half a ledger.
    """
    code = "\n".join(notebooks.sources(path))
    needs = notebooks.needs(path)
    assert needs.trains == ("sweep(" in code)
    assert needs.last == bool(re.search(r"best_evidence\(|ledger\.best\(", code))
    assert needs.alone or not re.search(r"perf_counter|epoch_seconds|milliseconds\(", code)
    assert "environment.dry" not in code, (
        "a cell asks whether it is dry: give the settings a table [dry]"
    )


def test_what_make_data_fetches_is_what_the_settings_name():
    needed = {
        profile: {name for path in NOTEBOOKS for name in notebooks.data_of(path, profile)}
        for profile in ledger.PROFILES
    }
    fetched = {name for name in needed["quick"] if datasets.available(name) != "embedded"}
    assert fetched == {"MPQA", "MSRP"}, (
        "quick needs no network: these two tasks may not be committed, and are passed over where absent"
    )
    shown = ("drawings", "articles")  # what a lesson shows of a committed set, whatever is trained
    paper = [
        (name, value)
        for path in NOTEBOOKS
        for name, value in notebooks.settings_of(path).get("paper", {}).items()
    ]
    assert [each for each in paper if "-mini" in str(each[1]) and each[0] not in shown] == []
    assert {"cifar10", "cifar100", "stl10", "wiki3029", "SUBJ-full"} <= needed["paper"]


@pytest.mark.parametrize("profile", ["quick", "night"])
def test_the_committed_settings_are_those_that_the_reference_was_judged_with(profile):
    known = provenance.of_reference(profile)["settings"]
    assert profile != "quick" or list(known) == NAMES
    for name, digest in known.items():
        path = environment.home() / "notebooks" / f"{name}.ipynb"
        settings = notebooks.settings_of(path)[profile]
        assert notebooks.digest_of_settings(settings) == digest, (
            f"run `make reproduce reference PROFILE={profile}`: {name} was changed"
        )


def test_the_first_notebooks_headlines_are_what_the_ledger_says():
    """A cell shows a table in HTML, which nbval does not compare here: it would differ from
    version to version.
    """
    sources = ["".join(cell["source"]) for cell in cells_of(NOTEBOOKS[0])]
    (named,) = (source for source in sources if "HEADLINES = {" in source)
    ids = re.findall(r'"(\w+/[\w.-]+)",', named.partition("}")[0])
    outputs = [output for cell in cells_of(NOTEBOOKS[0]) for output in cell.get("outputs", [])]
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    shown = unescape("".join(pages))
    best = ledger.best_evidence(committed=True).set_index("id", drop=False)
    assert len(ids) == 11
    for row in best.loc[ids].to_dict("records"):
        for words in (
            row["claim"],
            formatting.verdict_text(row),
            formatting.number_text(row),
            row["profile"],
        ):
            assert words in shown, f"{row['id']}: execute 0_start_here again"


def test_a_saved_table_keeps_the_names_of_its_rows_and_no_bare_count(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    settings = notebook.settings("x", "quick", quick={})
    table = pd.DataFrame({"kNN": [30.0, 36.0]}, index=["untrained", "hard"])
    for name, saved, head in (
        ("named", table, ",kNN"),
        ("counted", table.reset_index(drop=True), "kNN"),
        ("of", table.rename_axis("arm"), "arm,kNN"),
    ):
        notebook.save_table(settings, saved, name)
        assert (tmp_path / "quick" / "tables" / f"x-{name}.csv").read_text().splitlines()[0] == head


def test_a_table_stands_behind_the_nights_where_that_is_better_evidence(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    committed = tmp_path / "reference" / "night" / "tables" / "x-gains.csv"
    monkeypatch.setattr(environment, "reference_folder", lambda: tmp_path / "reference")
    table = pd.Series({"hard": 1.5}, name="gain").rename_axis("arm").to_frame()

    def tables_at(profile):
        found = notebook.beside(notebook.settings("x", profile, **{profile: {}}), table, "gains")
        assert (tmp_path / profile / "tables" / "x-gains.csv").read_text() == "arm,gain\nhard,1.5\n"
        assert found[profile].to_dict("records") == [{"arm": "hard", "gain": 1.5}]
        return list(found)

    assert tables_at("quick") == ["quick"]
    committed.parent.mkdir(parents=True)
    committed.write_text("arm,gain\nhard,1\n")
    assert [tables_at(profile) for profile in ("quick", "night", "gpu", "paper")] == [
        ["night", "quick"],
        ["night"],
        ["gpu"],
        ["paper"],
    ]
    assert notebook.beside(notebook.settings("x", "quick", quick={}), table, "gains")[
        "night"
    ].columns.tolist() == ["arm", "gain"]
    with pytest.raises(ValueError, match="rename_axis"):
        notebook.beside(notebook.settings("x", "quick", quick={}), table.rename_axis(None), "gains")


def test_dry_settings_take_the_place_of_the_profiles(monkeypatch):
    profiles = {name: dict(epochs=9, beta=[0, 1]) for name in ledger.PROFILES}
    assert notebook.settings("x", "gpu", dry=dict(epochs=1), **profiles).epochs == 9
    monkeypatch.setenv("CURLNB_DRY", "1")
    dry = notebook.settings("x", "gpu", dry=dict(epochs=1), **profiles)
    assert dry.values == dict(epochs=1, beta=[0, 1])
    dry.require(beta=[6])  # a dry run judges nothing
    with pytest.raises(
        ValueError, match="dry has the setting 'epoch' that no profile has; they have epochs, beta"
    ):
        notebook.settings("x", "quick", dry=dict(epoch=1), **profiles)


def test_a_value_that_a_claim_needs_is_asked_for_before_the_training():
    settings = notebook.settings(
        "x", "quick", quick=dict(beta=[0, 1, 2], panels={"stl10": {}}, annealed=[6.0])
    )
    settings.require(beta=[1.0, 2], panels=["stl10"])
    with pytest.raises(
        ValueError,
        match=r"the setting annealed = \[6.0\] of profile 'quick' lacks 2, which a claim",
    ) as error:
        settings.require(annealed=[max(settings.beta)])
    assert "\n" not in str(error.value)


def test_compute_tells_reference_runs_apart():
    runs = pd.DataFrame(
        {
            "experiment": "e",
            "identity": ["a", "b", "c"],
            "device": "cpu",
            "seconds": [1.0, 2.0, 3.0],
        }
    )
    assert notebook.compute(runs, runs.head(1)).loc[("e", "cpu"), "runs"] == 3
    adopted = notebook.compute(runs.assign(origin=["computed", "reference", "reference"]))
    assert adopted["runs"].to_dict() == {("e", "cpu", "computed"): 1, ("e", "cpu", "reference"): 2}


def test_settings_name_an_unknown_profile_and_a_missing_setting():
    from curlnb.companion.notebook import settings

    with pytest.raises(ValueError, match="profile 'papr' is unknown here; use one of quick, gpu"):
        settings("x", "papr", quick={}, gpu={})
    with pytest.raises(ValueError, match="profile 'gpu' lacks the setting 'epochs'"):
        settings("x", "quick", quick={"epochs": 1}, gpu={})
    with pytest.raises(AttributeError, match="no setting 'epoch'; it has epochs"):
        _ = settings("x", "quick", quick={"epochs": 1}).epoch


def test_reading_order_is_the_papers_own():
    from curlnb.companion.notebooks import _natural

    names = ["0_start_here", "0.1_from_scratch", "1_curl", "2_dcl", "4_discrepancies", "10_last"]
    assert sorted(reversed(names), key=_natural) == names
    assert sorted(["C.1_moco", "6.20_x", "6.3_y", "5.1_z"], key=_natural) == [
        "5.1_z",
        "6.3_y",
        "6.20_x",
        "C.1_moco",
    ]


def test_every_notebook_of_the_readme_exists():
    text = (environment.home() / "README.md").read_text()
    for name in re.findall(r"\((notebooks/[^)#]+\.ipynb)\)", text):
        assert (environment.home() / name).exists(), name
