"""The course: a student edition of the notebooks with exercises, and its grading without a server.

    python tools/course.py              write results/course/: release, nbgrader's source, a list
    python tools/course.py grade FOLDER grade the hand-ins below FOLDER: FOLDER.csv, one line a
                                        hand-in, and FOLDER-feedback/, one file a hand-in

`docs/course.md` says how to use both.
"""

import argparse
import csv
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import nbformat
from course_hidden import HIDDEN
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from curlnb.companion import notebooks
from curlnb.runs import environment

PAPERS = {
    "0_start": "Start here",
    "1_curl": "Arora et al. 2019, contrastive learning and its guarantees",
    "2_dcl": "Chuang et al. 2020, debiased contrastive learning",
    "3_hcl": "Robinson et al. 2021, hard negative samples",
    "4_across": "Across the papers",
}
CONFIGURATION = """c = get_config()
c.CourseDirectory.course_id = "curlnb"
c.ClearSolutions.code_stub = {"python": "..."}
c.OverwriteCells.add_missing_cells = True
c.Execute.timeout = 600
"""
TASK = re.compile(
    r"^### (?P<title>\d+\. .+?) \*\((?P<level>\w+), (?P<minutes>\d+) minutes\)\*$", re.M
)
QUIET = "import sys\nsys.stderr = sys.stdout"
"""Before a check of nbgrader's, which takes a warning or a debug line on stderr for a failure."""
REFEREE = "## For the referee"
WORDS_A_MINUTE = 150  # of prose with formulas
LONGEST = 120  # characters of a reason: a check's message is shorter, a student's error may not be

Cell = dict[str, Any]


def text_of(cell: Cell) -> str:
    return "".join(cell["source"])


def tags_of(cell: Cell) -> set[str]:
    return set(cell.get("metadata", {}).get("tags", []))


@dataclass
class Exercise:
    """One exercise of a lesson: stub, solution and check as text."""

    lesson: str
    title: str
    level: str
    minutes: int
    stub: str = ""
    solution: str = ""
    check: str = ""

    @property
    def number(self) -> str:
        return self.title.partition(".")[0]

    @property
    def points(self) -> int:
        """One for every five minutes."""
        return max(1, round(self.minutes / 5))

    @property
    def function(self) -> str:
        """What the stub defines, by which hidden checks and wrong answers know the exercise."""
        return re.search(r"^def (\w+)", self.stub, re.M)[1]  # type: ignore[index]

    @property
    def graded(self) -> str:
        """The check as it grades: it raises where the notebook's prints."""
        return self.check.replace("notebook.check(", "notebook.grade(").rstrip()

    @property
    def hidden(self) -> str:
        return HIDDEN.get((self.lesson, self.function), "").strip()

    @property
    def whole_check(self) -> str:
        return f"{self.graded}\n{self.hidden}"

    @property
    def answer(self) -> str:
        """Solution and stub in one: nbgrader replaces what stands between the marks by `...`, which
        gives the stub.
        """
        head = self.stub.rstrip().removesuffix("...").rstrip()
        body = self.solution.removeprefix(head).strip("\n")
        indent = re.match(r" *", body)[0]  # type: ignore[index]
        return f"{head}\n{indent}### BEGIN SOLUTION\n{body}\n{indent}### END SOLUTION"


@dataclass
class Lesson:
    """A notebook with exercises."""

    name: str
    content: dict[str, Any]

    @property
    def cells(self) -> list[Cell]:
        return self.content["cells"]

    @property
    def title(self) -> str:
        return text_of(self.cells[0]).splitlines()[0].removeprefix("# ")

    @property
    def folder(self) -> str:
        """Where its assignment goes, a key of PAPERS: notebooks that stand outside a paper's folder
        are the first or the last.
        """
        if "/" in self.name:
            return self.name.partition("/")[0]
        return "0_start" if self.name.startswith("0") else "4_across"

    @cached_property
    def exercises(self) -> list[Exercise]:
        found: list[Exercise] = []
        for cell in self.cells:
            if cell["cell_type"] == "markdown" and (task := TASK.search(text_of(cell))):
                minutes = int(task["minutes"])
                found.append(Exercise(self.name, task["title"], task["level"], minutes))
            for tag, part in (("exercise", "stub"), ("solution", "solution"), ("check", "check")):
                if tag in tags_of(cell):
                    setattr(found[-1], part, text_of(cell))
        for one in found:  # a solution has a name of its own, so that no check sees it
            one.solution = one.solution.replace(f"{one.function}_solution", one.function)
        return found

    @cached_property
    def words(self) -> set[str]:
        """Its cells but the solutions, by what they say."""
        return {_words(text_of(cell)) for cell in self.cells if "solution" not in tags_of(cell)}

    @property
    def own_code(self) -> list[str]:
        """Its code cells without solutions and checks."""
        code = [cell for cell in self.cells if cell["cell_type"] == "code"]
        return [text_of(cell) for cell in code if not tags_of(cell) & {"solution", "check"}]

    @property
    def points(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def minutes(self) -> int:
        return sum(exercise.minutes for exercise in self.exercises)

    @property
    def reading(self) -> int:
        """Minutes to read the lesson without the part for the referee, rounded up to five."""
        texts = [text_of(cell) for cell in self.cells if cell["cell_type"] == "markdown"]
        prose = itertools.takewhile(lambda text: not text.startswith(REFEREE), texts)
        return -(-sum(len(text.split()) for text in prose) // (5 * WORDS_A_MINUTE)) * 5


@cache
def lessons() -> list[Lesson]:
    """All notebooks with exercises, in reading order."""
    found = (Lesson(notebooks.name_of(path), notebooks.read(path)) for path in notebooks.find())
    return [one for one in found if one.exercises]


def about() -> dict[str, dict[str, str]]:
    """For each lesson what it needs and what is learnt, from course_lessons.csv."""
    with open(Path(__file__).parent / "course_lessons.csv", newline="", encoding="utf-8") as file:
        return {row["lesson"]: row for row in csv.DictReader(file)}


# --- the editions ---------------------------------------------------------------------------------


def edition(one: Lesson, *, graded: bool) -> Any:
    """The lesson with its outputs, stubs in place of solutions, and checks, as students get it.

    graded: nbgrader's source instead, with a solution between marks in each stub's place, and
    locked checks with points and hidden tests.
    """
    made = nbformat.reads(json.dumps(one.content), as_version=4)
    cells, exercises, answered = [], iter(one.exercises), False
    for cell in made.cells:
        tags = tags_of(cell)
        if answered and cell.cell_type == "markdown":  # the text up to a heading is on the solution
            heading = re.search(r"^#+ ", cell.source, re.M)
            cell.source = cell.source[heading.start() :] if heading else ""
        answered = bool(tags & {"check", "solution"})
        if tags & {"exercise", "check"}:
            cell.outputs, cell.execution_count = [], None
        if graded and "exercise" in tags:
            exercise = next(exercises)
            cell.source = exercise.answer
            _roles(cell, f"answer-{exercise.number}", solution=True)
        elif graded and "check" in tags:
            cell.source = "\n".join([_hidden(QUIET), exercise.graded, _hidden(exercise.hidden)])
            _roles(cell, f"check-{exercise.number}", grade=True, locked=True)
            cell.metadata.nbgrader["points"] = exercise.points
        if "solution" not in tags and (cell.source or cell.cell_type == "code"):
            cells.append(cell)
    made.cells = cells
    return made


def _hidden(text: str) -> str:
    return f"### BEGIN HIDDEN TESTS\n{text}\n### END HIDDEN TESTS"


def _roles(cell: Any, name: str, **given: bool) -> None:
    roles = {"grade": False, "locked": False, "solution": False, "task": False} | given
    cell.metadata["nbgrader"] = {"grade_id": name, "schema_version": 3, **roles}


def build(folder: Path) -> list[Lesson]:
    """Write both editions below `folder` anew; what else lies there stays. Returns the lessons."""
    found = lessons()
    for one in found:
        # Released as the notebooks lie, so that links hold; nbgrader wants a folder an assignment.
        source = folder / "source" / one.folder / f"{one.name.rpartition('/')[2]}.ipynb"
        release = folder / "release" / f"{one.name}.ipynb"
        for path, graded in ((release, False), (source, True)):
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(edition(one, graded=graded), path)
    texts = [environment.home() / "data" / "README.md", *environment.home().glob("docs/*.md")]
    for text in texts:  # to which the lessons link
        target = folder / text.relative_to(environment.home())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.read_bytes())
    (folder / "nbgrader_config.py").write_text(CONFIGURATION)
    (folder / "README.md").write_text("\n".join(listing(found)) + "\n", encoding="utf-8")
    return found


def listing(found: list[Lesson]) -> Iterator[str]:
    """The assignments by paper as Markdown."""
    known = about()
    yield "# The course's assignments\n\nWritten by `make course`; see docs/course.md."
    for folder, title in PAPERS.items():
        there = [one for one in found if one.folder == folder]
        if there:
            points, minutes = (sum(one.points for one in there), sum(one.minutes for one in there))
            yield f"\n## {title}\n\n{points} points, {minutes} minutes\n"
            yield "| assignment | exercises | points | minutes | reading | before | learnt |"
            yield "|---|---|---|---|---|---|---|"
        for one in there:
            row = known.get(one.name, {"needs": "", "learnt": ""})
            numbers = f"{len(one.exercises)} | {one.points} | {one.minutes} | {one.reading}"
            link = f"[{one.title}](release/{one.name}.ipynb)"
            yield f"| {link} | {numbers} | {row['needs']} | {row['learnt']} |"


# --- grading --------------------------------------------------------------------------------------


def grade(handins: Path, seconds: float, jobs: int) -> list[dict[str, Any]]:
    """A row for every notebook below `handins`, and for every student without one.

    The first folder below `handins` names the student; for a file that lies there directly its own
    name does. seconds: the limit of a cell. ValueError where there is nothing to grade.
    """
    files = sorted(path for path in handins.rglob("*") if path.is_file())
    rows = [_row(path, handins) for path in files if ".ipynb_checkpoints" not in path.parts]
    books = [row for row in rows if row["file"].endswith(".ipynb")]
    if not books:
        raise ValueError(f"{handins} holds no notebook: it should hold a folder for each student")
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda row: _graded(row, handins, seconds), books):
            print(f"{row['file']}: {row['note'] or _score(row)}", flush=True)
    others = {row["student"]: row for row in rows}
    for row in books:
        others.pop(row["student"], None)
    note = "not graded: no notebook here; hand in the .ipynb"
    return books + [row | {"note": note} for row in others.values()]


def _row(file: Path, handins: Path) -> dict[str, Any]:
    """Of a hand-in that was not looked at yet."""
    inside = file.relative_to(handins)
    student = inside.parts[0] if len(inside.parts) > 1 else inside.stem
    empty = dict.fromkeys(("assignment", "points", "of", "exercises", "reasons", "note"), "")
    return {"student": student, "file": str(inside), **empty}


def _score(row: dict[str, Any]) -> str:
    return f"{row['points']} of {row['of']} points"


def _graded(row: dict[str, Any], handins: Path, seconds: float) -> dict[str, Any]:
    """The row, with what a kernel of its own found.

    It executes the lesson, then every cell of the hand-in that is not the lesson's own, in order,
    whatever its name, then the lesson's checks. So a cell may be split, copied or moved, and a
    changed check counts for nothing.
    """
    try:
        one, own = lesson_of(notebooks.read(handins / row["file"])["cells"])
    except ValueError as error:
        why = f"{error}".replace(f"{handins / row['file']}", "the file").partition(" (")[0]
        return row | {"note": f"not graded: {why}"}
    checks = [nbformat.v4.new_code_cell(exercise.whole_check) for exercise in one.exercises]
    cells = [nbformat.v4.new_code_cell(text) for text in (*one.own_code, *own)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        surroundings = {
            "CURLNB_HOME": str(environment.home().resolve()),
            "CURLNB_RESULTS": folder,
            "CURLNB_DRY": "1",  # a lesson's own runs are two steps on made-up data
            "MPLBACKEND": "agg",
            "PYTHONPATH": str(Path(notebooks.__file__).parents[2]),
        }
        book = nbformat.v4.new_notebook(cells=[*cells, *checks])
        client = NotebookClient(book, timeout=seconds, allow_errors=True, kernel_name="python3")
        try:
            client.execute(cwd=folder, env=os.environ | surroundings)
        except CellTimeoutError:
            row["note"] = f"stopped after {seconds:g} s"
        except DeadKernelError:
            row["note"] = "its process died, out of memory perhaps"
    numbers, reasons = [], []
    for exercise, cell in zip(one.exercises, checks, strict=True):
        why = _why_wrong(cell)
        numbers.append(0 if why else exercise.points)
        reasons += [f"{exercise.number}: {why}"] if why else []
    scored = zip(one.exercises, numbers, strict=True)
    exercises = "; ".join(f"{each.number}: {got}/{each.points}" for each, got in scored)
    found = {"assignment": one.name, "points": sum(numbers), "of": one.points}
    return row | found | {"exercises": exercises, "reasons": " | ".join(reasons)}


def _why_wrong(cell: Any) -> str:
    """Why an executed check failed, in one short line, or the empty string."""
    for output in cell.outputs:
        if output.output_type == "error":
            said = " ".join(f"{output.ename}: {output.evalue}".split())
            return said.removeprefix("AssertionError: ")[:LONGEST]
    return "" if cell.execution_count else "stopped before its end"


def lesson_of(cells: list[Cell]) -> tuple[Lesson, list[str]]:
    """The lesson that a hand-in belongs to, and its code cells that are not the lesson's own.
    ValueError where no function of any exercise is defined.
    """
    texts = [text_of(cell) for cell in cells if cell["cell_type"] == "code"]
    defined = set(re.findall(r"^def (\w+)", "\n".join(texts), re.M))
    candidates = []
    for one in lessons():
        if shared := len(defined & {exercise.function for exercise in one.exercises}):
            own = [text for text in texts if _words(text) not in one.words]
            candidates.append((len(own), -shared, one, own))
    if not candidates:
        raise ValueError("it defines no function of any exercise, so it belongs to no assignment")
    # By the cells that are the lesson's own: these may define what another lesson asks for.
    *_, one, own = min(candidates, key=lambda found: found[:2])
    return one, own


def _words(text: str) -> str:
    return " ".join(text.split())


def write(rows: list[dict[str, Any]], path: Path) -> Path:
    """The rows as a CSV, and a text for each hand-in in the folder that is returned.

    A name that a spreadsheet would take for a formula gets an apostrophe.
    """
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: re.sub(r"\A(?=[=+\-@])", "'", f"{v}") for k, v in row.items()})
    feedback = path.with_name(f"{path.stem}-feedback")
    for row in rows:
        score = f"{row['assignment']}: {_score(row)}" if row["assignment"] else ""
        lines = [score, row["exercises"], *row["reasons"].split(" | "), row["note"]]
        place = feedback / Path(row["file"]).with_suffix(".txt")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")
    return feedback


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command")
    grading = commands.add_parser("grade", help="grade the hand-ins below a folder")
    grading.add_argument("handins", type=Path, help="it holds a folder for each student")
    grading.add_argument("--out", type=Path, help="the CSV; default: the folder's name with .csv")
    grading.add_argument("--seconds", type=float, default=300, help="the limit of a cell")
    grading.add_argument("--jobs", type=int, default=environment.cores(), help="at a time")
    given = parser.parse_args(arguments)
    try:
        if given.command == "grade":
            out = given.out or Path(f"{given.handins}".rstrip("/") + ".csv")
            rows = grade(given.handins, given.seconds, max(1, given.jobs))
            feedback = write(rows, out)
            noted = sum(row["note"] != "" for row in rows)
            print(f"{out}: {len(rows)} hand-ins, {noted} with a note; feedback in {feedback}")
        else:
            folder = environment.results_folder() / "course"
            found = build(folder)
            many = sum(len(one.exercises) for one in found)
            points = sum(one.points for one in found)
            print(f"{folder}: {len(found)} assignments, {many} exercises, {points} points")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
