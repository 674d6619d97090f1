"""The course: assignments stand alone, solutions get full marks, stubs and wrong answers none,
whatever is handed in.
"""

import ast
import csv
import json
import os
import re
import sys
import time
from pathlib import Path

import course
import course_grading
import deadly
import nbformat
import pytest
from course_hidden import HIDDEN
from course_wrong_answers import TABULATED, WRONG, wrong

from curlnb.companion import notebooks
from curlnb.runs import environment

LESSONS = course.lessons()
NAMES = [one.name for one in LESSONS]
EXERCISES = [exercise for one in LESSONS for exercise in one.exercises]


def test_every_exercise_has_a_wrong_answer_and_every_wrong_answer_an_exercise():
    known = {(one.lesson, one.function) for one in EXERCISES}
    written = {(lesson, function) for lesson, answers in WRONG.items() for function in answers}
    assert sorted(known - written) == [], (
        "write a typical mistake into tests/course_wrong_answers.py"
    )
    assert [
        (lesson, function) for lesson, function in sorted(written - known) if lesson in NAMES
    ] == []
    assert [key for key in HIDDEN if key not in known] == []
    assert set(TABULATED) == set(HIDDEN), (
        "show that a hidden check refuses what the visible one takes"
    )


def test_every_lesson_says_what_it_needs_and_what_is_learnt():
    known = course.about()
    assert set(NAMES) <= set(known) <= {notebooks.name_of(path) for path in notebooks.find()}
    assert all(row["needs"] and row["learnt"] for row in known.values())


@pytest.mark.parametrize("one", LESSONS, ids=NAMES)
def test_an_assignment_stands_alone(one, tmp_path, monkeypatch):
    """Each exercise alone, the others unanswered: the solution passes the whole check; the stub, a
    wrong answer and a table do not.
    """
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = {cell["id"]: cell["source"] for cell in course.source_of(one, tmp_path)["cells"]}
    assert not re.search(r"\b(sweep|savefig|save_figure|subplots)\(", "\n".join(cells.values())), (
        "a picture or a training came along"
    )
    start: dict = {"__name__": "__main__"}
    for name, text in cells.items():
        if re.fullmatch(r"prepared-\d+", name):
            exec(text, start)
    for exercise in one.exercises:
        exec(exercise.stub, start)
    for exercise in one.exercises:
        number = exercise.title.partition(".")[0]
        before = [
            text for name, text in cells.items() if name.startswith(f"prepared-for-{number}-")
        ]
        whole = cells[f"check-{number}"]
        run([*before, cells[f"answer-{number}"], whole], start)
        for answer in (exercise.stub, *wrong(one.name, exercise.function, exercise.solution)):
            with pytest.raises(AssertionError, match=r"\w"):
                run([*before, answer, exercise.check], start)
        if exercise.hidden:
            table = f"{exercise.stub.rstrip().removesuffix('...').rstrip()}\n    {TABULATED[one.name, exercise.function]}"
            run([*before, table, exercise.check], start)
            with pytest.raises((AssertionError, KeyError)):
                run([*before, table, whole], start)


def run(texts, start):
    space = dict(start)
    for text in texts:
        exec(text, space)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    course.build(folder)
    return folder


def test_editions_differ_in_what_they_should(made):
    for one in LESSONS:
        release, solutions = (
            nbformat.read(made / edition / f"{one.file}.ipynb", as_version=4)
            for edition in ("release", "solutions")
        )
        cells = {cell.metadata.nbgrader.grade_id: cell for cell in release.cells}
        text = "\n".join(cell.source for cell in release.cells)
        assert "SOLUTION" not in text
        assert "HIDDEN" not in text
        for exercise in one.exercises:
            number = exercise.title.partition(".")[0]
            answer, check = cells[f"answer-{number}"], cells[f"check-{number}"]
            assert ast.dump(ast.parse(answer.source)) == ast.dump(ast.parse(exercise.stub))
            assert check.source == exercise.check.rstrip()
            assert check.metadata.nbgrader.points == exercise.points
            assert check.metadata.editable is False
            assert answer.metadata.get("editable") is None
            assert not exercise.after or exercise.after not in text, (
                "what the lesson says after the check gives the solution away"
            )
        told = "\n".join(cell.source for cell in solutions.cells)
        assert all(exercise.solution.rstrip() in told for exercise in one.exercises)
        assert "### BEGIN" not in told
        link = re.search(r"\]\((\S+\.ipynb)\)", release.cells[0].source)[1]
        assert (made / "release" / f"{one.file}.ipynb").parent.joinpath(link).resolve() == (
            environment.home() / "notebooks" / f"{one.name}.ipynb"
        ).resolve()


def test_the_course_of_a_syllabus_is_what_the_lessons_hold():
    """docs/course.md says for each sitting which assignments it has and how many minutes their
    exercises take.
    """
    minutes = {one.file: one.minutes for one in LESSONS}
    reading = {one.file: one.reading for one in LESSONS}
    text = (environment.home() / "docs" / "course.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ((?:`[^`|]+`(?:, )?)+) \| (\d+) \| (\d+) \|", text, re.M)
    assert len(rows) >= 6
    for files, reads, works in rows:
        names = re.findall(r"`([^`]+)`", files)
        assert int(works) == sum(minutes[name] for name in names), (
            f"{names}: the exercises take {sum(minutes[n] for n in names)} minutes"
        )
        assert abs(int(reads) - sum(reading[n] for n in names)) <= 5 * len(names), (
            f"reading takes {sum(reading[n] for n in names)} minutes"
        )


def handed_in(path, name, answer, made, **changes):
    """A hand-in of an assignment: its release with `answer(exercise)` in the answers' cells."""
    release = nbformat.read(made / "release" / f"{name}.ipynb", as_version=4)
    one = next(one for one in LESSONS if one.file == name)
    for cell in release.cells:
        for exercise in one.exercises:
            if cell.metadata.nbgrader.grade_id == f"answer-{exercise.title.partition('.')[0]}":
                cell.source = answer(exercise)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(release, path)
    return release


@pytest.fixture
def environment_is_active(monkeypatch):
    """As where .venv is activated: nbgrader's database calls `alembic` by its name."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


SMALL = "4_across/6_speed"  # its assignment needs numpy alone, so that a kernel starts in a second


def test_nbgrader_itself_generates_and_grades_an_assignment(
    made, tmp_path, monkeypatch, environment_is_active
):
    """The folder is a course of nbgrader's, too: its own commands, as docs/course.md has them, give
    full marks, none and none.
    """
    from nbgrader import apps
    from traitlets.config import Config

    folder, name = SMALL.split("/")
    for edition in ("source", "release"):  # as `make course` leaves them
        (tmp_path / edition / folder).mkdir(parents=True)
        (tmp_path / edition / folder / f"{name}.ipynb").write_text(
            (made / edition / f"{SMALL}.ipynb").read_text()
        )
    (tmp_path / "nbgrader_config.py").write_text((made / "nbgrader_config.py").read_text())
    given = {
        "solved": lambda e: e.solution,
        "stubs": lambda e: e.stub,
        "wrong": lambda e: wrong(e.lesson, e.function, e.solution)[0],
    }
    for student, answer in given.items():
        handed_in(tmp_path / "submitted" / student / folder / f"{name}.ipynb", SMALL, answer, made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    text = (environment.home() / "docs" / "course.md").read_text()
    commands = [line.split() for line in re.findall(r"^ *nbgrader (\w+ 2_dcl.*)$", text, re.M)]
    names = {"generate_assignment": apps.GenerateAssignmentApp, "autograde": apps.AutogradeApp}
    kinds = names | {"generate_feedback": apps.GenerateFeedbackApp}
    assert [command for command, *_ in commands] == list(kinds)
    for command, *options in commands:
        app = kinds[command]()
        app.initialize([folder if option == "2_dcl" else option for option in options])
        app.start()
    config = Config()
    config.CourseDirectory.root = str(tmp_path)
    with apps.NbGraderAPI(config=config).gradebook as gradebook:
        scores = {
            s.student.id: (s.score, s.max_score) for s in gradebook.assignment_submissions(folder)
        }
    most = float(sum(e.points for e in EXERCISES if e.lesson == name))
    assert scores == {"solved": (most, most), "stubs": (0, most), "wrong": (0, most)}
    assert all(
        (tmp_path / "feedback" / student / folder / f"{name}.html").exists() for student in given
    )


def test_hand_ins_of_every_kind_get_a_line(made, tmp_path, capsys, environment_is_active):
    here = tmp_path / "handins"
    text = {
        "solution": lambda e: e.solution,
        "wrong": lambda e: wrong(e.lesson, e.function, e.solution)[0],
    }
    handed_in(
        here / "ada" / "week 3" / "mine.ipynb", "3_hcl/6.3_figure11_speed", text["solution"], made
    )
    first = handed_in(here / "bob" / "6_speed.ipynb", SMALL, text["wrong"], made)
    # checks emptied, metadata lost as on some platforms, and one answer in a cell of the student's
    # own
    for cell in first.cells:
        if cell.metadata.nbgrader.grade_id.startswith("check"):
            cell.source = "pass"
        if cell.metadata.nbgrader.grade_id == "answer-1":
            cell.source = "import math\n" + next(
                e.solution for e in EXERCISES if e.function == "faster"
            )
            cell.metadata = {}
    nbformat.write(first, here / "bob" / "6_speed.ipynb")
    (here / "=1+1").mkdir()
    (here / "=1+1" / "6_speed.ipynb").write_text("{")
    (here / "eve").mkdir()
    (here / "eve" / "essay.ipynb").write_text(
        json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    handed_in(here / "fay" / "f.ipynb", SMALL, lambda e: "import os\nos._exit(1)", made)
    out = tmp_path / "points.csv"
    command = ["--folder", str(made), "grade", str(here), "--out", str(out), "--jobs", "2"]
    assert course.main(command) == 0
    with open(out, newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert (rows["ada"]["points"], rows["ada"]["note"]) == (rows["ada"]["of"], "")
    assert rows["ada"]["reasons"] == ""
    assert rows["bob"]["exercises"] == "1: 2/2; 2: 0/2"
    assert re.fullmatch(r"2: \S.{10,120}", rows["bob"]["reasons"])
    assert rows["bob"]["reasons"].removeprefix("2: ") in next(
        e.check for e in EXERCISES if e.function == "at_highest_common_mark"
    )
    assert "locked cells restored: check-1, check-2" in rows["bob"]["note"]
    assert "this is no notebook" in rows["'=1+1"]["note"]
    assert "no assignment of the course" in rows["eve"]["note"]
    assert "kernel died" in rows["fay"]["note"]
    assert {rows[name]["points"] for name in ("'=1+1", "eve", "fay")} == {""}
    assert all("\n" not in value for row in rows.values() for value in row.values())


def test_a_hand_in_that_kills_its_grader_costs_the_others_nothing(tmp_path):
    files = [tmp_path / name for name in "abcd"]
    for file in files:
        file.write_text("" if file.name == "b" else "an answer")
    assert course_grading.of_each(deadly.size_or_death, files, 2) == {
        file: 9 for file in files if file.name != "b"
    }
    assert course_grading.of_each(deadly.size_or_death, [files[1]], 1) == {}


def test_what_cannot_be_graded_is_said_in_a_line(tmp_path, made, capsys):
    assert course.main(["--folder", str(tmp_path), "grade", str(tmp_path)]) == 1
    assert "run `make course` first" in capsys.readouterr().err
    assert course.main(["--folder", str(made), "grade", str(tmp_path)]) == 1
    assert "holds no notebook" in capsys.readouterr().err


def small_lesson(folder, monkeypatch, exercises, cells=()):
    """A checkout with one lesson: its path. exercises: name -> (stub, solution, check)."""
    cells = [{"cell_type": "markdown", "source": "# Title", "metadata": {}}, *cells]
    for number, (name, parts) in enumerate(exercises.items(), 1):
        cells.append(
            {
                "cell_type": "markdown",
                "source": f"### {number}. {name} *(easy, 5 minutes)*",
                "metadata": {},
            }
        )
        for tag, text in zip(("exercise", "solution", "check"), parts, strict=True):
            cells.append({"cell_type": "code", "source": text, "metadata": {"tags": [tag]}})
    path = folder / "notebooks" / "x.ipynb"
    path.parent.mkdir()
    path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    monkeypatch.setenv("CURLNB_HOME", str(folder))
    return path


def test_a_check_that_needs_another_answer_is_refused(tmp_path, monkeypatch):
    exercises = {
        "one": (
            "def one():\n    ...",
            "def one():\n    return 1",
            "value = one()\nassert value == 1",
        ),
        "two": ("def two():\n    ...", "def two():\n    return 2", "assert two() == value + 1"),
    }
    with pytest.raises(
        ValueError,
        match=r"x, exercise 2\. two: its check needs what one, another answer, has given",
    ):
        course.lesson(small_lesson(tmp_path, monkeypatch, exercises))


def test_an_assignment_begins_with_the_set_up_of_its_lesson_and_is_graded_with_it_once(
    tmp_path, monkeypatch
):
    exercises = {
        "one": ("def one():\n    ...", "def one():\n    return a", "assert one() == 1, 'no'")
    }
    set_up = {"cell_type": "code", "source": "import sys", "metadata": {"tags": ["colab"]}}
    body = {"cell_type": "code", "source": "b = 2\na = 1\nprint(b)", "metadata": {}}
    source = course.source_of(
        course.lesson(small_lesson(tmp_path, monkeypatch, exercises, [set_up, body])), tmp_path
    )
    release = course.release_of(source, "x")
    assert [cell.source for cell in release.cells[1:3]] == [
        "import sys",
        "# Prepared: what the checks below need of the lesson.\na = 1",
    ]
    whole, changed = course_grading.assembled(nbformat.from_dict(source), release)
    assert [cell.source for cell in whole.cells].count("import sys") == 1
    assert changed == []


def test_a_notebook_that_never_ends_is_stopped(tmp_path):
    """Even where it ignores the interrupt, and what was right before keeps its points."""
    stubborn = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
    whole = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in ("print(1)", stubborn, "print(2)")]
    )
    start = time.monotonic()
    assert course_grading.execute(whole, 2)
    assert time.monotonic() - start < 120
    assert whole.cells[0].outputs[0].text == "1\n"
    assert whole.cells[1].outputs[-1].output_type == "error"
