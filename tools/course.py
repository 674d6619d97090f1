"""The course: a student edition of the notebooks with exercises, and its grading without a server.

    python tools/course.py              write results/course/: release, nbgrader's source, a list
    python tools/course.py grade FOLDER grade the hand-ins below FOLDER: FOLDER.csv, one line a
                                        hand-in, and FOLDER-feedback/, one file a hand-in

`docs/course.md` says how to use both.
"""

import argparse
import contextlib
import copy
import csv
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from course_hidden import HIDDEN

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
    def whole_check(self) -> str:
        return self.graded + HIDDEN.get((self.lesson, self.function), "").rstrip()

    @property
    def answer(self) -> str:
        """Solution and stub in one: nbgrader replaces what stands between the marks by `...`, which
        gives the stub.
        """
        head = self.stub.rstrip().removesuffix("...").rstrip()
        if not self.solution.startswith(head + "\n") or not self.stub.rstrip().endswith("..."):
            raise ValueError(
                f"{self.lesson}, exercise {self.title}: the solution must begin as the stub does, "
                "whose end is `...`"
            )
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


def without_answers(content: dict[str, Any]) -> dict[str, Any]:
    """A lesson without the text between a check or a solution and the next heading, which is on the
    solution.
    """
    cells, before = [], set[str]()
    for cell in copy.deepcopy(content["cells"]):
        text = text_of(cell)
        if cell["cell_type"] == "markdown" and before & {"check", "solution"}:
            start = re.search(r"^#+ ", text, re.M)
            text = text[start.start() :] if start else ""
        before = tags_of(cell)
        if text or cell["cell_type"] == "code":
            cells.append(cell | {"source": text})
    return content | {"cells": cells}


def release_of(one: Lesson) -> Any:
    """What students get: the lesson with its outputs, stubs in place of solutions, and checks."""
    import nbformat
    from nbconvert.preprocessors import TagRemovePreprocessor

    made = nbformat.from_dict(without_answers(one.content))
    step = TagRemovePreprocessor(
        enabled=True, remove_cell_tags={"solution"}, remove_all_outputs_tags={"exercise", "check"}
    )
    made, _ = step.preprocess(made, {})
    return made


def source_of(one: Lesson) -> Any:
    """nbgrader's source: locked checks with points and hidden tests, and one cell for each stub
    and its solution, which stands between marks.
    """
    import nbformat

    made = nbformat.from_dict(without_answers(one.content))
    cells, exercises = [], iter(one.exercises)
    for cell in made.cells:
        if "exercise" in tags_of(cell):
            exercise = next(exercises)
            cell.source = exercise.answer
            _roles(cell, f"answer-{exercise.number}", solution=True)
        elif "check" in tags_of(cell):
            hidden = exercise.whole_check.removeprefix(exercise.graded).strip()
            parts = [_hidden(QUIET), exercise.graded, *([_hidden(hidden)] if hidden else [])]
            cell.source = "\n".join(parts)
            _roles(cell, f"check-{exercise.number}", grade=True, locked=True)
            cell.metadata.nbgrader["points"] = exercise.points
        if cell.cell_type == "code" and tags_of(cell) & {"exercise", "check"}:
            cell.outputs, cell.execution_count = [], None
        if "solution" not in tags_of(cell):
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
    import nbformat

    found = lessons()
    for one in found:
        # Released as the notebooks lie, so that links hold; nbgrader wants a folder an assignment.
        source = folder / "source" / one.folder / f"{one.name.rpartition('/')[2]}.ipynb"
        release = folder / "release" / f"{one.name}.ipynb"
        for path, made in ((release, release_of(one)), (source, source_of(one))):
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(made, path)
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
    """A row for every notebook below `handins`, in the order of their paths.

    The first folder below `handins` names the student; for a file that lies there directly its own
    name does. seconds: the limit of a hand-in. ValueError where there is nothing to grade.
    """
    paths = (path for path in handins.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
    if not (files := sorted(paths)):
        raise ValueError(f"{handins} holds no notebook: it should hold a folder for each student")
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda file: _graded(file, handins, seconds), files):
            points = f"{row['points']} of {row['of']} points"
            print(f"{row['file']}: {row['note'] or points}", flush=True)
            rows.append(row)
    with_one = {row["student"] for row in rows}
    for other in sorted(path for path in handins.rglob("*") if path.is_file()):
        row = _row(other, handins)
        if row["student"] not in with_one:
            with_one.add(row["student"])
            rows.append(row | {"note": "not graded: no notebook here; hand in the .ipynb"})
    return rows


def _row(file: Path, handins: Path) -> dict[str, Any]:
    """Of a hand-in that was not looked at yet."""
    inside = file.relative_to(handins)
    student = inside.parts[0] if len(inside.parts) > 1 else inside.stem
    row = {"student": student, "file": str(inside), "assignment": ""}
    return row | {"points": "", "of": "", "exercises": "", "reasons": "", "note": ""}


def _graded(file: Path, handins: Path, seconds: float) -> dict[str, Any]:
    row = _row(file, handins)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = Path(folder) / "found.json"
        surroundings = {
            "CURLNB_HOME": str(environment.home().resolve()),
            "CURLNB_RESULTS": folder,
            "CURLNB_DRY": "1",  # a lesson's own runs are two steps on made-up data
            "MPLBACKEND": "agg",
            "PYTHONPATH": str(Path(notebooks.__file__).parents[2]),
        }
        line = [sys.executable, __file__, "check", str(file.resolve()), str(found)]
        try:
            subprocess.run(
                line,
                cwd=folder,
                env=os.environ | surroundings,
                timeout=seconds,
                capture_output=True,
            )
            row["note"] = "" if found.exists() else "its process died, out of memory perhaps"
        except subprocess.TimeoutExpired:
            row["note"] = f"stopped after {seconds:g} s"
        known = json.loads(found.read_text()) if found.exists() else {}
    if "checks" not in known:
        row["note"] = known.get("note", "") or f"not graded: {row['note']}"
        return row
    checks = known["checks"]
    row |= {"assignment": known["assignment"], "points": sum(c["points"] for c in checks)}
    row["of"] = sum(c["of"] for c in checks)
    row["exercises"] = "; ".join(f"{c['number']}: {c['points']}/{c['of']}" for c in checks)
    row["reasons"] = " | ".join(f"{c['number']}: {c['why']}" for c in checks if c["why"])
    return row


def check(file: Path, found: Path) -> None:
    """Grade one hand-in in this process and write what came out to `found`, after each check.

    The lesson is executed, then every cell of the hand-in that is not the lesson's own, in order,
    whatever its name, then the lesson's checks. So a cell may be split, copied or moved, and a
    changed check counts for nothing.
    """
    try:
        cells = notebooks.read(file)["cells"]
    except ValueError:
        found.write_text(
            json.dumps({"note": "not graded: the file is no notebook; hand it in again"})
        )
        return
    try:
        one, own = lesson_of(cells)
    except ValueError as error:
        found.write_text(json.dumps({"note": f"not graded: {error}"}))
        return
    space: dict[str, Any] = {"__name__": "__main__"}
    stubs = (cell for cell in one.cells if not tags_of(cell) & {"solution", "check"})
    for cell in stubs:
        if cell["cell_type"] == "code":
            _executed(text_of(cell), space)
    for text in own:
        _executed(text, space)
    waiting = "stopped before its check came to an end"
    checks = [
        {"number": e.number, "points": 0, "of": e.points, "why": waiting} for e in one.exercises
    ]
    for exercise, row in zip(one.exercises, checks, strict=True):
        found.write_text(json.dumps({"assignment": one.name, "checks": checks}))
        row["why"] = _executed(exercise.whole_check, space)
        row["points"] = 0 if row["why"] else exercise.points
    found.write_text(json.dumps({"assignment": one.name, "checks": checks}))


def _executed(text: str, space: dict[str, Any]) -> str:
    """Execute a cell; why it failed, in one short line, or the empty string. What it prints is not
    looked at.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(text, "cell", "exec"), space)
        return ""
    except (Exception, SystemExit) as error:
        last = next((line for line in reversed(f"{error}".splitlines()) if line.strip()), "")
        kind = type(error).__name__
        said = last if kind == "AssertionError" and last else f"{kind}: {last}".removesuffix(": ")
        said = " ".join("".join(char if char.isprintable() else " " for char in said).split())
        return said if len(said) <= LONGEST else said[: LONGEST - 3] + "..."


def lesson_of(cells: list[Cell]) -> tuple[Lesson, list[str]]:
    """The lesson that a hand-in belongs to, and its code cells that are not the lesson's own.
    ValueError where no function of any exercise is defined.
    """
    texts = [text_of(cell) for cell in cells if cell["cell_type"] == "code"]
    defined = set(re.findall(r"^def (\w+)", "\n".join(texts), re.M))
    handed_in, found = set(map(_words, texts)), lessons()
    known = {
        one.name: {_words(text_of(cell)) for cell in one.cells if "solution" not in tags_of(cell)}
        for one in found
    }
    lessons_of = Counter(text for own in known.values() for text in own)
    own = {
        name: sum(lessons_of[text] == 1 for text in handed_in & cells)
        for name, cells in known.items()
    }
    shared = {one.name: len(defined & {e.function for e in one.exercises}) for one in found}
    candidates = [one for one in found if shared[one.name]]
    if not candidates:
        raise ValueError("it defines no function of any exercise, so it belongs to no assignment")
    # A lesson's own cells may define what another one asks for.
    one = max(candidates, key=lambda one: (own[one.name], shared[one.name]))
    return one, [text for text in texts if _words(text) not in known[one.name]]


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
            safe = {k: f"'{v}" if str(v)[:1] in "=+-@\t\r" and v else v for k, v in row.items()}
            writer.writerow(safe)
    feedback = path.with_name(f"{path.stem}-feedback")
    for row in rows:
        lines = [row["exercises"]]
        if row["assignment"]:
            lines = [f"{row['assignment']}: {row['points']} of {row['of']} points", *lines]
        lines += [*row["reasons"].split(" | "), row["note"]]
        place = feedback / Path(row["file"]).with_suffix(".txt")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(line for line in lines if line) + "\n", encoding="utf-8")
    return feedback


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command")
    grading = commands.add_parser("grade", help="grade the hand-ins below a folder")
    grading.add_argument("handins", type=Path, help="it holds a folder for each student")
    grading.add_argument("--out", type=Path, help="the CSV; default: the folder's name with .csv")
    grading.add_argument("--seconds", type=float, default=300, help="the limit of a hand-in")
    grading.add_argument("--jobs", type=int, default=environment.cores(), help="at a time")
    one = commands.add_parser("check")
    one.add_argument("files", type=Path, nargs=2)
    given = parser.parse_args(arguments)
    try:
        if given.command == "check":
            check(*given.files)
        elif given.command == "grade":
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
