"""Every notebook keeps the house's form, runs at its profiles (dry, a profile a commit), and says
what the papers say in its `paper` settings.
"""

import ast
import contextlib
import csv
import io
import json
import re
from functools import cache
from html import unescape
from pathlib import Path

import course
import dry
import matplotlib.pyplot as plt
import nbval.plugin
import pandas as pd
import pytest
import torch
from course import tags_of, text_of
from course_wrong_answers import TABULATED, wrong
from formulas import refused
from matplotlib.figure import Figure

from curlnb.companion import formatting, ledger, notebook, notebooks
from curlnb.data import datasets
from curlnb.runs import environment, provenance

NOTEBOOKS = notebooks.find()
NAMES = [notebooks.name_of(path) for path in NOTEBOOKS]
HERE = Path(__file__).parent.parent
REFEREE = "## For the referee"

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)


@cache
def cells_of(path, kind="", *tags):
    """The cells, or those of one kind that have one of the tags."""
    cells = json.loads(path.read_text())["cells"]
    return [c for c in cells if kind in c["cell_type"] and (not tags or tags_of(c) & {*tags})]


def outputs_of(cells):
    return [output for cell in cells for output in cell.get("outputs", [])]


@every_notebook
class TestForm:
    def test_parameters_cell_holds_profile_and_seed_and_nothing_more(self, path):
        parameters = 'profile = "quick"\nseed = 0\nchange = {}'
        tagged = cells_of(path, "", "parameters")
        assert [text_of(cell).strip() for cell in tagged] == [parameters]

    def test_it_is_committed_executed_from_top_to_bottom_without_error_or_stderr(self, path):
        cells = cells_of(path, "code")
        counts = [cell["execution_count"] for cell in cells]
        assert counts == list(range(1, len(cells) + 1)), "run `make reproduce reference`"
        for output in outputs_of(cells):
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr"

    def test_it_begins_with_a_title_and_ends_with_compute(self, path):
        text = "\n".join(notebooks.sources(path, "markdown"))
        headings = [heading.strip().lower() for heading in re.findall(r"^##? (.*)$", text, re.M)]
        assert text_of(cells_of(path)[0]).startswith("# ")
        assert headings[-1] == "compute"

    def test_its_tags_are_ours_or_nbvals(self, path):
        """nbval passes over a tag that it does not know, and then compares nothing."""
        ours = {"parameters", "colab", "exercise", "check", "solution", "hide-input", "hide-cell"}
        for cell in cells_of(path):
            assert tags_of(cell) <= ours | nbval.plugin.metadata_tags.keys()

    def test_checked_cells_print_plain_text_only(self, path):
        for cell in cells_of(path, "code", "nbval-check-output"):
            assert cell["outputs"], "a checked cell without output checks nothing"
            for output in cell["outputs"]:
                assert set(output.get("data", {})) <= {"text/plain"}

    def test_no_verdict_is_written_down(self, path):
        """A verdict follows from the numbers: one that stands in the cell would survive any of
        them.
        """
        for source in notebooks.sources(path):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.keyword) and node.arg == "exact":
                    assert not isinstance(node.value, ast.Constant), ast.unparse(node)

    def test_names_no_path_of_a_machine_and_no_address_of_a_registry(self, path):
        text = path.read_text()
        assert not re.search(r"/(home|root|tmp|Users|work)/\w", text)
        assert not re.search(r"(pypi|npmjs|debian|anaconda|hosted)\.\w+", text)


@every_notebook
class TestLesson:
    """A notebook to learn from is mostly prose, in steps that one can take, and ends with exercises
    that check themselves.
    """

    def test_cells_and_lines_are_short(self, path):
        for cell in cells_of(path, "code"):
            assert len(text_of(cell).splitlines()) <= 40, text_of(cell)
        lines = [line for cell in cells_of(path) for line in text_of(cell).splitlines()]
        # rows of a table can't be wrapped
        assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []

    def test_there_are_at_least_six_words_of_prose_a_line_of_code(self, path):
        plumbing = {"colab", "hide-input", "hide-cell", "solution"}  # no lesson
        words = sum(len(text.split()) for text in notebooks.sources(path, "markdown"))
        own = [text_of(cell) for cell in cells_of(path, "code") if not tags_of(cell) & plumbing]
        lines = [line for source in own for line in source.splitlines() if line.strip()]
        assert words >= 6 * len(lines), f"{words} words on {len(lines)} lines of code"

    def test_figures_have_a_name_and_an_alternative_text(self, path):
        for output in outputs_of(cells_of(path)):
            if "image/png" in output.get("data", {}):
                about = output.get("metadata", {}).get("image/png", {})
                assert about.get("name")
                assert len(about.get("alt", "").split()) >= 5, about

    def test_an_exercise_is_a_task_a_solution_and_a_check(self, path):
        parts = ["exercise", "check", "solution"]
        order = [(tags_of(cell) & {*parts}).pop() for cell in cells_of(path, "code", *parts)]
        assert order == parts * (len(order) // 3)
        assert 2 <= len(order) // 3 <= 4


@every_notebook
class TestPage:
    """One page, one story: a lesson that can be read at a sitting, then the referee's part."""

    def test_the_lesson_comes_first_and_is_short(self, path):
        text = "\n".join(notebooks.sources(path, "markdown"))
        lesson, found, _ = text.partition(REFEREE)
        assert found
        assert re.findall(r"^## (.*)$", lesson, re.M)[-2:] == ["Exercises", "Since then"]
        words = len(re.sub(r"<!--.*?-->", "", lesson).split())
        assert words <= 1600, f"{words} words above the line, exercises among them"
        assert len(re.findall(r"\[[-+\N{MINUS SIGN}]?[\d.]+, ", lesson)) <= 12, "intervals"

    def test_since_then_names_three_to_six_later_works_with_their_addresses(self, path):
        text = "\n".join(notebooks.sources(path, "markdown"))
        part = text.partition("## Since then")[2].partition(REFEREE)[0]
        works = re.findall(r"^- .*?\]\(https://", part, re.M | re.S)
        assert 3 <= len(works) <= 6

    def test_a_solution_is_folded_and_has_a_name_of_its_own(self, path):
        for cell in cells_of(path, "", "solution", "colab", "hide-input", "hide-cell"):
            assert cell["metadata"].get("jupyter") == {"source_hidden": True}
        for cell in cells_of(path, "", "solution"):
            assert re.search(r"^def \w+_solution\(", text_of(cell), re.M)

    def test_checks_print_not_answered_yet(self, path):
        outputs = outputs_of(cells_of(path, "", "check"))
        assert {"".join(output["text"]) for output in outputs} == {"not answered yet\n"}
        assert len(outputs) >= 2


@cache
def committed(profile):
    return ledger.read(environment.reference_folder() / profile / ledger.FILE)


@every_notebook
def test_the_verdicts_that_a_page_shows_are_the_committed_ones(path):
    """Its own at quick, and beside them the better evidence: no page is left behind when long runs
    are judged anew.
    """
    quick = committed("quick")
    rows = ledger.records(quick[quick["notebook"] == notebooks.name_of(path)])
    better = ledger.records(ledger.best_of(map(committed, ledger.better_than("quick"))))
    beside = {row["id"]: row for row in better if row["verdict"] != ledger.NOT_RUN}
    texts = ["".join(o.get("data", {}).get("text/plain", "")) for o in outputs_of(cells_of(path))]
    ids = {row["id"] for row in rows}
    shown = {line for t in texts if t.partition(":")[0] in ids for line in t.splitlines()}
    assert shown == {*repr(formatting.ClaimsTable(rows, beside)).splitlines()}


# --- dry runs


@pytest.fixture(scope="session")
def dry_results(tmp_path_factory):
    """One folder for all dry runs of this process: a run that two notebooks share is made once."""
    return tmp_path_factory.mktemp("dry")


COMMITS = int(provenance.git("rev-list", "--count", "HEAD") or 0)


def profile_of_this_commit(path):
    """Of those beside quick, which is executed on the reference runs: they take turns, so that each
    is reached within three commits.
    """
    names = [name for name in notebooks.settings_of(path) if name != "quick"] or ["quick"]
    return names[(COMMITS + NOTEBOOKS.index(path)) % len(names)]


def laid_out(figure, path, **options):
    """In the place of `savefig`: all of a figure but the pixels, which takes half the time. The
    figures of `quick` are drawn.
    """
    figure.draw_without_rendering()
    Path(path).touch()


def answered(answer, check, space):
    """Execute an answer and a check with what the lesson left; both leave nothing but what they
    print, whose last line is returned.
    """
    tried, said = dict(space), io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(answer, tried)
        exec(check, tried)
    return said.getvalue().rpartition("\n")[0].rpartition("\n")[2]


def check_an_exercise(name, exercise, space):
    """A page's own check says what is wrong with the stub and with typical mistakes; as it grades
    it raises. A hidden one also refuses a table that knows the visible one's numbers.
    """
    mistakes = wrong(name, exercise.function, exercise.solution)
    for answer in (exercise.stub, *mistakes):
        with pytest.raises(AssertionError, match=r"\w"):  # with a message that helps
            answered(answer, exercise.graded, space)
    for mistake in mistakes:
        assert answered(mistake, exercise.check, space).startswith("wrong: ")
    assert answered(exercise.stub, exercise.check, space) == "not answered yet"
    assert answered(exercise.solution, exercise.check, space) == "right"
    answered(exercise.solution, exercise.whole_check, space)
    if known := TABULATED.get((name, exercise.function)):
        table = f"{exercise.stub.rstrip().removesuffix('...').rstrip()}\n    {known}"
        answered(table, exercise.graded, space)
        with pytest.raises((AssertionError, KeyError)):
            answered(table, exercise.whole_check, space)


@every_notebook
def test_every_profile_runs_dry(path, dry_results, monkeypatch):
    """The same code, two steps, synthetic data of the real shapes, in this process: no profile rots
    unseen. Where an exercise is checked, so is its check.
    """
    monkeypatch.setenv("CURLNB_DRY", "1")
    monkeypatch.setenv("CURLNB_RESULTS", str(dry_results))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("CURLNB_DEVICE", "cpu")
    monkeypatch.setattr(Figure, "savefig", laid_out)
    monkeypatch.setattr("curlnb.runs.sweep._compute", dry.compute)
    space = {"__name__": "__main__"}
    name, profile = notebooks.name_of(path), profile_of_this_commit(path)
    exercises = iter(course.Lesson(name, notebooks.read(path)).exercises)
    try:
        for cell in cells_of(path, "code"):
            if "check" in tags_of(cell):
                check_an_exercise(name, next(exercises), space)
            source = text_of(cell).replace('profile = "quick"', f'profile = "{profile}"')
            exec(compile(source, f"{path} at {profile}", "exec"), space)
    finally:
        plt.close("all")
        torch.set_default_dtype(torch.float32)  # a page has a process of its own, this one goes on


# --- settings


@every_notebook
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
    paper = notebooks.settings_of(path).get("paper", {})
    assert json.loads(json.dumps(paper)) == cited


@every_notebook
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
        "quick needs no network: these two tasks may not be committed, and are passed over where "
        "absent"
    )
    shown = ("drawings", "articles")  # what a lesson shows of a committed set, whatever is trained
    for path in NOTEBOOKS:
        for name, value in notebooks.settings_of(path).get("paper", {}).items():
            assert "-mini" not in str(value) or name in shown, name
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
    (named,) = (text for text in notebooks.sources(NOTEBOOKS[0]) if "HEADLINES = {" in text)
    ids = re.findall(r'"(\w+/[\w.-]+)",', named.partition("}")[0])
    outputs = outputs_of(cells_of(NOTEBOOKS[0]))
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    shown = unescape("".join(pages))
    best = ledger.best_evidence(committed=True).set_index("id", drop=False)
    assert len(ids) == 11
    for row in best.loc[ids].to_dict("records"):
        said = (formatting.verdict_text(row), formatting.number_text(row))
        for words in (row["claim"], *said, row["profile"]):
            assert words in shown, f"{row['id']}: execute 0_start_here again"


def test_a_saved_table_keeps_the_names_of_its_rows_and_no_bare_count(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    settings = notebook.Settings("x", "quick", {})
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
        found = notebook.beside(notebook.Settings("x", profile, {}), table, "gains")
        assert (tmp_path / profile / "tables" / "x-gains.csv").read_text() == "arm,gain\nhard,1.5\n"
        assert found[profile].to_dict("records") == [{"arm": "hard", "gain": 1.5}]
        return {name: list(each) for name, each in found.items()}

    columns = ["arm", "gain"]
    assert tables_at("quick") == {"quick": columns}
    committed.parent.mkdir(parents=True)
    committed.write_text("arm,gain\nhard,1\n")
    assert tables_at("quick") == {"night": columns, "quick": columns}
    for profile in ("night", "gpu"):
        assert tables_at(profile) == {profile: columns}
    with refused("rename_axis"):
        notebook.beside(notebook.Settings("x", "quick", {}), table.rename_axis(None), "gains")


def test_a_value_that_a_claim_needs_is_asked_for_before_the_training():
    values = dict(beta=[0, 1, 2], panels={"stl10": {}}, annealed=[6.0])
    settings = notebook.Settings("x", "quick", values)
    settings.require(beta=[1.0, 2], panels=["stl10"])
    with refused(r"the setting annealed = \[6.0\] of profile 'quick' lacks 2, which a claim"):
        settings.require(annealed=[max(settings.beta)])


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


def test_reading_order_is_the_papers_own():
    first, second, *_, last = map(notebooks.name_of, NOTEBOOKS)
    assert (first, second, last) == ("0_start_here", "0.1_from_scratch", "6_speed")
    hcl = [name for name in map(notebooks.name_of, NOTEBOOKS) if name.startswith("3_hcl")]
    assert hcl[-2:] == ["3_hcl/6.3_figure11_speed", "3_hcl/C.1_figure6_moco"]
