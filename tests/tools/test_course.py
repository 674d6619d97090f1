"""The course: what students get has no answers, solutions get full marks, stubs and wrong answers
none, whatever is handed in. That each check passes with its solution and fails with its stub and
with typical mistakes is asserted where notebooks run dry (tests/companion/test_notebooks.py).
"""

import ast
import csv
import os
import re
import sys
from pathlib import Path

import course
import nbformat
import pytest
import setuptools  # noqa: F401  (nbgrader needs it before anything imports distutils)
from course_hidden import HIDDEN
from course_wrong_answers import TABULATED, WRONG

from curlnb.companion import notebooks
from curlnb.runs import environment

LESSONS = {one.name: one for one in course.lessons()}
SMALL = "6_speed"
GUIDE = (environment.home() / "docs" / "course.md").read_text(encoding="utf-8")


def test_every_exercise_has_a_wrong_answer_and_every_wrong_answer_an_exercise():
    known = {(name, e.function) for name, one in LESSONS.items() for e in one.exercises}
    written = {(lesson, function) for lesson, answers in WRONG.items() for function in answers}
    assert sorted(known - written) == [], "write a mistake into tests/course_wrong_answers.toml"
    assert sorted(written - known) == []
    assert set(HIDDEN) == set(TABULATED) <= known, "show what a hidden check refuses"


def test_every_lesson_says_what_it_needs_and_what_is_learnt():
    told = {path: notebooks.needs(path) for path in notebooks.find()}
    assert [path for path, each in told.items() if not (each.before and each.learnt)] == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURLNB_RESULTS", str(folder))
        course.main()
    return folder / "course"


@pytest.mark.parametrize("name", LESSONS)
def test_what_students_get_has_the_lesson_and_no_answers(made, name):
    path, one = made / "release" / f"{name}.ipynb", LESSONS[name]
    release = nbformat.read(path, as_version=4)
    tagged = {tag: [] for tag in ("exercise", "solution", "check")}
    for cell in release.cells:
        for tag in course.tags_of(cell) & set(tagged):
            tagged[tag].append(cell.source)
            assert cell.outputs == []
    assert tagged["exercise"] == [exercise.stub for exercise in one.exercises]
    assert tagged["check"] == [exercise.check for exercise in one.exercises]
    assert tagged["solution"] == []
    assert any(cell.get("outputs") for cell in release.cells), "the lesson keeps its pictures"
    text = "\n".join(cell.source for cell in release.cells)
    for exercise in one.exercises:
        body = exercise.solution.removeprefix(exercise.stub.rstrip().removesuffix("..."))
        assert body.strip() not in text
    prose = "\n".join(cell.source for cell in release.cells if cell.cell_type == "markdown")
    for link in re.findall(r"\]\((?!https?:|#|attachment:)([^)#\s]+)", prose):
        assert (path.parent / link).exists(), link


def test_source_marks_solutions_so_that_the_stub_is_left(made):
    from nbgrader.preprocessors import ClearSolutions
    from traitlets.config import Config

    clear = ClearSolutions(config=Config({"ClearSolutions": {"code_stub": {"python": "..."}}}))
    for one in LESSONS.values():
        book = nbformat.read(
            made / "source" / one.folder / f"{Path(one.name).name}.ipynb", as_version=4
        )
        cells = [c for c in clear.preprocess(book, {})[0].cells if "nbgrader" in c.metadata]
        parts = zip(one.exercises, cells[::2], cells[1::2], strict=True)
        for exercise, answer, check in parts:
            assert ast.dump(ast.parse(answer.source)) == ast.dump(ast.parse(exercise.stub))
            assert check.metadata.nbgrader.points == exercise.points
            assert exercise.graded in check.source


def test_the_course_of_a_syllabus_is_what_the_lessons_hold():
    """docs/course.md says for each sitting which assignments it has and how many minutes it takes
    to read them and to do their exercises.
    """
    rows = re.findall(r"^\| [^|]+ \| ((?:`[^`|]+`(?:, )?)+) \| (\d+) \| (\d+) \|", GUIDE, re.M)
    assert len(rows) >= 6
    for files, reads, works in rows:
        names = re.findall(r"`([^`]+)`", files)
        assert int(works) == sum(LESSONS[name].minutes for name in names), names
        assert int(reads) == sum(LESSONS[name].reading for name in names), names


DEBUGGED = """
of_{0} = {0}


def {0}(*given):
    print("debug", given, file=sys.stderr)
    return of_{0}(*given)
"""
ANSWERS = {
    "stubs": lambda e: e.stub,
    "noisy": lambda e: e.solution + DEBUGGED.format(e.function),
}


def test_nbgrader_grades_an_assignment(made, tmp_path, monkeypatch):
    """Its own commands, as docs/course.md has them, give none to stubs, and full marks to an
    answer that prints on stderr.
    """
    from nbgrader import apps

    folder, one = Path("4_across"), LESSONS[SMALL]
    source = nbformat.read(made / "source" / folder / f"{SMALL}.ipynb", as_version=4)
    kept = [c for c in source.cells if "nbgrader" in c.metadata or "def epochs_to(" in c.source]
    needed = "import sys\nimport numpy as np\nfrom curlnb.companion import notebook"  # by checks
    source.cells = [nbformat.v4.new_code_cell(needed), *kept]
    (tmp_path / "source" / folder).mkdir(parents=True)
    nbformat.write(source, tmp_path / "source" / folder / f"{SMALL}.ipynb")
    (tmp_path / "nbgrader_config.py").write_text((made / "nbgrader_config.py").read_text())
    monkeypatch.chdir(tmp_path)
    # which the configuration sets
    for name in ("CURLNB_DRY", "CURLNB_RESULTS", "CURLNB_WORKERS", "MPLBACKEND"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)  # its database calls `alembic` by its name
    kinds = {
        "generate_assignment": apps.GenerateAssignmentApp,
        "autograde": apps.AutogradeApp,
        "generate_feedback": apps.GenerateFeedbackApp,
        "export": apps.ExportApp,
    }
    commands = [line.split() for line in re.findall(r"^ +nbgrader (\w+.*)$", GUIDE, re.M)]
    assert [command for command, *_ in commands] == list(kinds)
    for command, *options in commands:
        app = kinds[command]()
        app.initialize(["4_across" if option == "2_dcl" else option for option in options])
        app.start()
        if command != "generate_assignment":
            continue
        for student, answer in ANSWERS.items():
            book = nbformat.read(f"release/4_across/{SMALL}.ipynb", as_version=4)
            cells = [cell for cell in book.cells if "exercise" in course.tags_of(cell)]
            for cell, exercise in zip(cells, one.exercises, strict=True):
                cell.source = answer(exercise)
            (tmp_path / "submitted" / student / folder).mkdir(parents=True)
            nbformat.write(book, tmp_path / "submitted" / student / folder / f"{SMALL}.ipynb")
    with open("grades.csv", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert scores == {"stubs": 0, "noisy": one.points}
    assert len(list(tmp_path.glob("feedback/*/4_across/*.html"))) == len(ANSWERS)
