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
from course_wrong_answers import TABULATED, WRONG, wrong

from curlnb.companion import notebooks
from curlnb.runs import environment

LESSONS = {one.name: one for one in course.lessons()}
SMALL = "6_speed"
EXERCISES = LESSONS[SMALL].exercises
MOST = LESSONS[SMALL].points
GUIDE = (environment.home() / "docs" / "course.md").read_text(encoding="utf-8")


def test_every_exercise_has_a_wrong_answer_and_every_wrong_answer_an_exercise():
    known = {(name, e.function) for name, one in LESSONS.items() for e in one.exercises}
    written = {(lesson, function) for lesson, answers in WRONG.items() for function in answers}
    assert sorted(known - written) == [], "write a mistake into tests/course_wrong_answers.toml"
    assert sorted(written - known) == []
    assert set(HIDDEN) == set(TABULATED) <= known, "show what a hidden check refuses"


def test_every_lesson_says_what_it_needs_and_what_is_learnt():
    known = course.about()
    assert set(LESSONS) <= set(known) <= {notebooks.name_of(path) for path in notebooks.find()}
    assert all(row["needs"] and row["learnt"] for row in known.values())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURLNB_RESULTS", str(folder))
        assert course.main([]) == 0
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
    for link in re.findall(r"\]\((?!https?:|#|attachment:)([^)#\s]+)", text):
        assert (path.parent / link).exists(), link
    assert course.lesson_of(release.cells)[0].name == name


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


# --- grading: answers to the exercises of SMALL

DEBUGGED = """
of_{0} = {0}


def {0}(*given):
    print("debug", given, file=sys.stderr)
    return of_{0}(*given)
"""
ANSWERS = {
    "solved": lambda e: e.solution,
    "stubs": lambda e: e.stub,
    "wrong": lambda e: wrong(e.lesson, e.function, e.solution)[0],
    "noisy": lambda e: e.solution + DEBUGGED.format(e.function),
}
NEEDED = [  # of the lesson's own cells, by the checks
    "import sys\nimport numpy as np\nfrom curlnb.companion import notebook",
    next(text for text in LESSONS[SMALL].own_code if "def epochs_to(" in text).partition("\n\n\ng")[
        0
    ],
]


def answered(*answers):
    """The lesson as a hand-in, with an answer to each exercise."""
    book, waiting = course.edition(LESSONS[SMALL], graded=False), iter(answers)
    for cell, exercise in zip(answer_cells(book), EXERCISES, strict=True):
        cell.source = next(waiting)(exercise)
    return book


def answer_cells(book):
    return [cell for cell in book.cells if "exercise" in course.tags_of(cell)]


def test_nbgrader_itself_generates_and_grades_an_assignment(made, tmp_path, monkeypatch):
    """The folder is a course of nbgrader's, too: its own commands, as docs/course.md has them, give
    none to stubs, and full marks to an answer that prints on stderr.
    """
    from nbgrader import apps
    from traitlets.config import Config

    source = nbformat.read(made / "source" / "4_across" / f"{SMALL}.ipynb", as_version=4)
    kept = [cell for cell in source.cells if "nbgrader" in cell.metadata]
    source.cells = [*map(nbformat.v4.new_code_cell, NEEDED), *kept]
    (tmp_path / "source" / "4_across").mkdir(parents=True)
    nbformat.write(source, tmp_path / "source" / "4_across" / f"{SMALL}.ipynb")
    (tmp_path / "nbgrader_config.py").write_text((made / "nbgrader_config.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)  # its database calls `alembic` by its name
    kinds = {
        "generate_assignment": apps.GenerateAssignmentApp,
        "autograde": apps.AutogradeApp,
        "generate_feedback": apps.GenerateFeedbackApp,
    }
    commands = [line.split() for line in re.findall(r"^ *nbgrader (\w+ 2_dcl.*)$", GUIDE, re.M)]
    assert [command for command, *_ in commands] == list(kinds)
    for command, _, *options in commands:
        app = kinds[command]()
        app.initialize(["4_across", *options])
        app.start()
        if command != "generate_assignment":
            continue
        for student in ("stubs", "noisy"):
            book = nbformat.read(f"release/4_across/{SMALL}.ipynb", as_version=4)
            for cell, exercise in zip(answer_cells(book), EXERCISES, strict=True):
                cell.source = ANSWERS[student](exercise)
            folder = tmp_path / "submitted" / student / "4_across"
            folder.mkdir(parents=True)
            nbformat.write(book, folder / f"{SMALL}.ipynb")
    config = Config({"CourseDirectory": {"root": str(tmp_path)}})
    with apps.NbGraderAPI(config=config).gradebook as gradebook:
        found = gradebook.assignment_submissions("4_across")
        scores = {each.student.id: (each.score, each.max_score) for each in found}
    assert scores == {"stubs": (0, MOST), "noisy": (MOST, MOST)}


def test_a_hand_in_is_graded_after_its_lesson(tmp_path):
    nbformat.write(answered(ANSWERS["solved"], ANSWERS["wrong"]), tmp_path / "x.ipynb")
    (row,) = course.grade(tmp_path, 300, 1)
    assert (row["exercises"], row["note"]) == ("1: 2/2; 2: 0/2", "")


def split():
    """As JupyterLab's split cell and copies leave an answer: two cells of one name, a stub behind
    them, trial lines, debug prints and an error in between.
    """
    book = answered(ANSWERS["noisy"], ANSWERS["solved"])
    answer = answer_cells(book)[0]
    at = book.cells.index(answer)
    parts = ["import sys\nTWO = 2\n", answer.source]
    parts += ["print('trial', file=sys.stderr)\n1 / 0", "%time\nprint(TWO)", EXERCISES[0].stub]
    for each in book.cells:
        if "check" in course.tags_of(each):
            each.source = "pass"  # a changed check counts for nothing
        each.metadata = {}
    book.cells[at : at + 1] = map(nbformat.v4.new_code_cell, parts)
    return book


def test_hand_ins_of_every_kind_get_a_line_and_feedback(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(course.Lesson, "own_code", NEEDED)
    here = tmp_path / "handins"
    deadly = lambda e: f"def {e.function}():\n    ...\nimport os\nos._exit(1)"  # noqa: E731
    books = {
        "bob/week 3/mine.ipynb": split(),
        "eve/e.ipynb": answered(ANSWERS["solved"], ANSWERS["wrong"]),
        "fay.ipynb": answered(deadly, deadly),
        "gus/essay.ipynb": nbformat.v4.new_notebook(),
    }
    for name, book in books.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(book, here / name)
    for name in ("=1+1/torn.ipynb", "hal/answers.py"):
        (here / name).parent.mkdir()
        (here / name).write_text("{")
    assert course.main(["grade", str(here), "--jobs", "2"]) == 0
    assert "6 hand-ins, 4 with a note" in capsys.readouterr().out
    with open(tmp_path / "handins.csv", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert (rows["bob"]["points"], rows["bob"]["of"]) == (f"{MOST}", f"{MOST}"), rows["bob"]
    assert rows["bob"]["reasons"] == rows["bob"]["note"] == ""
    assert rows["eve"]["exercises"] == "1: 2/2; 2: 0/2"
    reason = rows["eve"]["reasons"].removeprefix("2: ")
    assert reason in EXERCISES[1].check
    notes = {
        "fay": "its process died",
        "gus": "belongs to no assignment",
        "'=1+1": "the file is no notebook",
        "hal": "hand in the .ipynb",
    }
    assert {student: note in rows[student]["note"] for student, note in notes.items()} == (
        dict.fromkeys(notes, True)
    )
    said = (tmp_path / "handins-feedback" / "eve" / "e.txt").read_text()
    assert said == f"{SMALL}: 2 of 4 points\n1: 2/2; 2: 0/2\n2: {reason}\n"


def test_a_hand_in_that_never_ends_is_stopped_and_keeps_what_was_right(tmp_path, monkeypatch):
    monkeypatch.setattr(course.Lesson, "own_code", NEEDED)
    endless = lambda e: f"def {e.function}(*_):\n    while True:\n        pass"  # noqa: E731
    nbformat.write(answered(ANSWERS["solved"], endless), tmp_path / "x.ipynb")
    (row,) = course.grade(tmp_path, 20, 1)
    assert row["exercises"] == "1: 2/2; 2: 0/2"
    assert row["note"] == "stopped after 20 s"
    with pytest.raises(ValueError, match="holds no notebook"):
        course.grade(tmp_path / "nothing", 1, 1)
