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

LESSONS = course.lessons()
NAMES = [one.name for one in LESSONS]
EXERCISES = [exercise for one in LESSONS for exercise in one.exercises]
SMALL = "6_speed"


def test_every_exercise_has_a_wrong_answer_and_every_wrong_answer_an_exercise():
    known = {(one.lesson, one.function) for one in EXERCISES}
    written = {(lesson, function) for lesson, answers in WRONG.items() for function in answers}
    assert sorted(known - written) == [], "write a mistake into tests/course_wrong_answers.py"
    assert sorted(written - known) == []
    assert set(HIDDEN) == set(TABULATED) <= known, "show what a hidden check refuses"


def test_every_lesson_says_what_it_needs_and_what_is_learnt():
    known = course.about()
    assert set(NAMES) <= set(known) <= {notebooks.name_of(path) for path in notebooks.find()}
    assert all(row["needs"] and row["learnt"] for row in known.values())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURLNB_RESULTS", str(folder))
        assert course.main([]) == 0
    return folder / "course"


def test_what_students_get_has_the_lesson_and_no_answers(made):
    for one in LESSONS:
        release = nbformat.read(made / "release" / f"{one.name}.ipynb", as_version=4)
        text = "\n".join(cell.source for cell in release.cells)
        tagged = {tag: [] for tag in ("exercise", "solution", "check")}
        for cell in release.cells:
            for tag in course.tags_of(cell) & set(tagged):
                tagged[tag].append(cell)
                assert cell.outputs == []
        assert [cell.source for cell in tagged["exercise"]] == [e.stub for e in one.exercises]
        assert [cell.source for cell in tagged["check"]] == [e.check for e in one.exercises]
        assert tagged["solution"] == []
        assert any(cell.get("outputs") for cell in release.cells), "the lesson keeps its pictures"
        for exercise in one.exercises:
            body = exercise.solution.removeprefix(exercise.stub.rstrip().removesuffix("..."))
            assert body.strip() not in text


def test_a_lesson_is_known_whether_it_is_answered_or_not(made):
    """Lessons define what others ask for."""
    for one in LESSONS:
        release = nbformat.read(made / "release" / f"{one.name}.ipynb", as_version=4)
        for book in (release.cells, answered(one.name, ANSWERS["solved"]).cells):
            assert course.lesson_of(book)[0].name == one.name


def test_links_of_what_students_get_lead_somewhere(made):
    for one in LESSONS:
        path = made / "release" / f"{one.name}.ipynb"
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        for link in re.findall(r"\]\((?!https?:|#|attachment:)([^)#\s]+)", text):
            assert (path.parent / link).exists(), f"{one.name}: {link}"


def test_the_course_of_a_syllabus_is_what_the_lessons_hold():
    """docs/course.md says for each sitting which assignments it has and how many minutes it takes
    to read them and to do their exercises.
    """
    known = {one.name: one for one in LESSONS}
    text = (environment.home() / "docs" / "course.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ((?:`[^`|]+`(?:, )?)+) \| (\d+) \| (\d+) \|", text, re.M)
    assert len(rows) >= 6
    for files, reads, works in rows:
        names = re.findall(r"`([^`]+)`", files)
        assert int(works) == sum(known[name].minutes for name in names), names
        assert int(reads) == sum(known[name].reading for name in names), names


def answered(name, answer):
    """A lesson as a hand-in, with `answer(exercise)` in the answers' cells."""
    one = next(one for one in LESSONS if one.name == name)
    book, exercises = course.release_of(one), iter(one.exercises)
    for cell in book.cells:
        if "exercise" in course.tags_of(cell):
            cell.source = answer(next(exercises))
    return book


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


def test_nbgrader_itself_generates_and_grades_an_assignment(made, tmp_path, monkeypatch):
    """The folder is a course of nbgrader's, too: its own commands, as docs/course.md has them, give
    full marks, none and none, and full marks to an answer that prints on stderr.
    """
    from nbgrader import apps
    from traitlets.config import Config

    source = nbformat.read(made / "source" / "4_across" / f"{SMALL}.ipynb", as_version=4)
    kept = [c for c in source.cells if "nbgrader" in c.metadata or "def epochs_to(" in c.source]
    imports = nbformat.v4.new_code_cell(  # what the checks use, and no torch
        "import sys\nimport numpy as np\nfrom curlnb.companion import notebook"
    )
    source.cells = [imports, *kept]
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
    text = (environment.home() / "docs" / "course.md").read_text()
    commands = [line.split() for line in re.findall(r"^ *nbgrader (\w+ 2_dcl.*)$", text, re.M)]
    assert [command for command, *_ in commands] == list(kinds)
    exercises = [e for e in EXERCISES if e.lesson == SMALL]
    for command, *options in commands:
        app = kinds[command]()
        app.initialize(["4_across" if option == "2_dcl" else option for option in options])
        app.start()
        if command == "generate_assignment":
            for student, answer in ANSWERS.items():
                book = nbformat.read(f"release/4_across/{SMALL}.ipynb", as_version=4)
                for exercise in exercises:
                    for cell in book.cells:
                        if cell.source == exercise.stub:
                            cell.source = answer(exercise)
                folder = tmp_path / "submitted" / student / "4_across"
                folder.mkdir(parents=True)
                nbformat.write(book, folder / f"{SMALL}.ipynb")
    config = Config()
    config.CourseDirectory.root = str(tmp_path)
    with apps.NbGraderAPI(config=config).gradebook as gradebook:
        found = gradebook.assignment_submissions("4_across")
        scores = {each.student.id: (each.score, each.max_score) for each in found}
    most = float(sum(e.points for e in exercises))
    full, none = (most, most), (0, most)
    assert scores == {"solved": full, "stubs": none, "wrong": none, "noisy": full}


def split(book):
    """As JupyterLab's split cell and copies leave an answer: two cells of one name, a stub behind
    them, trial lines, debug prints and an error in between.
    """
    at = next(i for i, cell in enumerate(book.cells) if "exercise" in course.tags_of(cell))
    stub, cell = book.cells[at].source, book.cells[at]
    head, body = "import sys\nTWO = 2\n", cell.source
    body += DEBUGGED.format("faster") if "def faster" in body else ""
    parts = [head, body, "print('trial', file=sys.stderr)\n1 / 0", "%time\nprint(TWO)"]
    cells = [nbformat.v4.new_code_cell(text, metadata=cell.metadata) for text in parts]
    untouched = next(e.stub for e in EXERCISES if e.lesson == SMALL)
    assert stub != untouched
    book.cells[at : at + 1] = [*cells, nbformat.v4.new_code_cell(untouched)]
    for each in book.cells:
        if "check" in course.tags_of(each):
            each.source = "pass"  # a changed check counts for nothing
        each.metadata = {}
    return book


def test_hand_ins_of_every_kind_get_a_line_and_feedback(tmp_path, capsys):
    here = tmp_path / "handins"
    half = {"faster": ANSWERS["solved"]}
    books = {
        "ada/week 3/mine.ipynb": answered(SMALL, ANSWERS["solved"]),
        "bob/6_speed.ipynb": split(answered(SMALL, ANSWERS["solved"])),
        "eve/e.ipynb": answered(SMALL, lambda e: half.get(e.function, ANSWERS["wrong"])(e)),
        "fay.ipynb": answered(SMALL, lambda e: "def faster():\n    ...\nimport os\nos._exit(1)"),
        "gus/essay.ipynb": nbformat.v4.new_notebook(),
        "=1+1/torn.ipynb": None,
        "hal/answers.py": None,
    }
    for name, book in books.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        if book is None:
            (here / name).write_text("{")
        else:
            nbformat.write(book, here / name)
    assert course.main(["grade", str(here), "--jobs", "2"]) == 0
    assert "7 hand-ins, 4 with a note" in capsys.readouterr().out
    with open(tmp_path / "handins.csv", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    exercises = [e for e in EXERCISES if e.lesson == SMALL]
    most = str(sum(e.points for e in exercises))
    for student in ("ada", "bob"):
        assert (rows[student]["points"], rows[student]["of"]) == (most, most), rows[student]
        assert rows[student]["reasons"] == rows[student]["note"] == ""
    assert rows["eve"]["exercises"] == "1: 2/2; 2: 0/2"
    reason = rows["eve"]["reasons"].removeprefix("2: ")
    assert reason in exercises[1].check
    assert "its process died" in rows["fay"]["note"]
    assert "belongs to no assignment" in rows["gus"]["note"]
    assert "is no notebook" in rows["'=1+1"]["note"]
    assert "hand in the .ipynb" in rows["hal"]["note"]
    assert all("\n" not in value for row in rows.values() for value in row.values())
    said = (tmp_path / "handins-feedback" / "eve" / "e.txt").read_text()
    assert said == f"{SMALL}: 2 of 4 points\n1: 2/2; 2: 0/2\n2: {reason}\n"


def test_a_hand_in_that_never_ends_is_stopped_and_keeps_what_was_right(tmp_path):
    endless = "def at_highest_common_mark(*_):\n    while True:\n        pass"
    answer = {"faster": ANSWERS["solved"]}
    book = answered(SMALL, lambda e: answer.get(e.function, lambda _: endless)(e))
    nbformat.write(book, tmp_path / "x.ipynb")
    (row,) = course.grade(tmp_path, 40, 1)
    assert row["exercises"] == "1: 2/2; 2: 0/2"
    assert row["note"] == "stopped after 40 s"
    with pytest.raises(ValueError, match="holds no notebook"):
        course.grade(tmp_path / "nothing", 1, 1)


def test_source_marks_solutions_so_that_the_stub_is_left():
    from nbgrader.preprocessors import ClearSolutions
    from traitlets.config import Config

    clear = ClearSolutions(config=Config({"ClearSolutions": {"code_stub": {"python": "..."}}}))
    for one in LESSONS:
        made, _ = clear.preprocess(course.source_of(one), {})
        cells = [cell for cell in made.cells if "nbgrader" in cell.metadata]
        for exercise, (answer, check) in zip(
            one.exercises, zip(cells[::2], cells[1::2], strict=True), strict=True
        ):
            assert ast.dump(ast.parse(answer.source)) == ast.dump(ast.parse(exercise.stub))
            assert check.metadata.nbgrader.points == exercise.points
            assert exercise.graded in check.source
