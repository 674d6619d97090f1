"""Grade hand-ins of the course without a server and without a database of students.

A hand-in is graded on the course's own notebook: the answers, and the cells that a student added,
are put into it, it is executed, and nbgrader's rule gives points for the checks that raise no
error. So neither a changed check nor lost metadata matters.

Hand-ins are programs. They run as the user who grades: use a container or a machine without secrets
for hand-ins of people you do not know.
"""

import ast
import contextlib
import copy
import csv
import functools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import nbformat
from nbclient.exceptions import DeadKernelError
from nbgrader import utils
from nbgrader.preprocessors import Execute

from curlnb.runs import environment

T = TypeVar("T")

LARGEST = 20_000_000
"""Bytes of a hand-in: more is no notebook of the course, whose outputs are small."""

LONGEST = 120
"""Characters of a reason in the table: the messages of the checks are shorter, a student's own
error may not be.
"""


@dataclass
class Row:
    """What one hand-in got. points is empty where it could not be graded; note says why, or what an
    instructor should look at.

    exercises and reasons have a part for each exercise, and for each that lost points: the points,
    and the last line of the check's error.
    """

    student: str
    file: str
    assignment: str = ""
    points: float | str = ""
    of: float | str = ""
    exercises: str = ""
    reasons: str = ""
    seconds: float = 0.0
    note: str = ""


def grade(handins: Path, course: Path, *, seconds: int = 120, jobs: int = 1) -> list[Row]:
    """Grade every notebook below `handins` by its source in `course`, in the order of their paths.

    The first folder below `handins` names the student; for a file that lies there directly its own
    name does. seconds: the limit of a notebook. ValueError where there is nothing to grade, or the
    course has not been made.
    """
    if not list((course / "source").glob("*/*.ipynb")):
        raise ValueError(f"{course} holds no course: run `make course` first")
    files = sorted(
        file for file in handins.rglob("*.ipynb") if ".ipynb_checkpoints" not in file.parts
    )
    if not files:
        raise ValueError(f"{handins} holds no notebook: it should hold a folder for each student")
    one = functools.partial(_graded, handins=handins, course=course, seconds=seconds)
    rows = of_each(one, files, min(max(jobs, 1), len(files)))
    killed = "not graded: the grading process was killed"
    return [
        rows.get(file) or Row(_student(file, handins), str(file.relative_to(handins)), note=killed)
        for file in files
    ]


def of_each(one: Callable[[Path], T], files: Sequence[Path], processes: int) -> dict[Path, T]:
    """`one` of each file, in processes; without those that kill theirs. What else was at work when
    a process died is done again, alone.
    """
    done: dict[Path, T] = {}
    with (
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
        contextlib.suppress(BrokenProcessPool),
    ):
        waiting = [(file, pool.submit(one, file)) for file in files]
        for file, future in waiting:
            with contextlib.suppress(BrokenProcessPool):
                done[file] = future.result()
    if len(files) > 1:
        for file in [file for file in files if file not in done]:
            done |= of_each(one, [file], 1)
    return done


def write(rows: list[Row], path: Path) -> None:
    """The rows as a CSV. A name that a spreadsheet would take for a formula gets an apostrophe."""
    names = [one.name for one in fields(Row)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            values = [getattr(row, name) for name in names]
            writer.writerow(
                [
                    f"'{v}" if isinstance(v, str) and v[:1] in tuple("=+-@\t\r") and v else v
                    for v in values
                ]
            )


def _student(file: Path, handins: Path) -> str:
    inside = file.relative_to(handins)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def _graded(file: Path, *, handins: Path, course: Path, seconds: int) -> Row:
    row = Row(_student(file, handins), str(file.relative_to(handins)))
    start = time.monotonic()
    try:
        handed_in = read(file)
        source = source_for(file, handed_in, course)
        row.assignment = str(source.metadata.course.assignment)
        row.of = float(
            sum(cell.metadata.nbgrader.points for cell in source.cells if utils.is_grade(cell))
        )
        whole, changed = assembled(source, handed_in)
        late = execute(whole, seconds)
        grades = {
            cell.metadata.nbgrader.grade_id: utils.determine_grade(cell)
            for cell in whole.cells
            if utils.is_grade(cell)
        }
        row.points = float(sum(points or 0 for points, _ in grades.values()))
        row.exercises = "; ".join(
            f"{name.removeprefix('check-')}: {got or 0:g}/{most:g}"
            for name, (got, most) in grades.items()
        )
        row.reasons = " | ".join(
            f"{cell.metadata.nbgrader.grade_id.removeprefix('check-')}: {_reason(cell)}"
            for cell in whole.cells
            if utils.is_grade(cell)
            and (grades[cell.metadata.nbgrader.grade_id][0] or 0) < cell.metadata.nbgrader.points
        )
        notes = [f"stopped after {seconds} s"] if late else []
        notes += [f"locked cells restored: {', '.join(changed)}"] if changed else []
        row.note = "; ".join(notes)
    except DeadKernelError:
        row.note = "not graded: the kernel died, as it does where memory is exhausted or the process is ended"
    except (
        Exception
    ) as error:  # a hand-in may be anything, and must not cost the others their grades
        row.note = "not graded: " + " ".join(f"{error}".split())[:200]
    row.seconds = round(time.monotonic() - start, 1)
    return row


def _reason(check: Any) -> str:
    """Why a check gave no points, in one short line: the message of a failed assertion, or another
    error with its kind.
    """
    error = next((output for output in check.outputs if output.output_type == "error"), None)
    if error is None:
        return "the check wrote a warning or a number" if check.outputs else "the check was not run"
    last = next((line for line in reversed(f"{error.evalue}".splitlines()) if line.strip()), "")
    said = (
        last
        if error.ename == "AssertionError" and last
        else f"{error.ename}: {last}".removesuffix(": ")
    )
    said = " ".join("".join(char if char.isprintable() else " " for char in said).split())
    return said if len(said) <= LONGEST else said[: LONGEST - 3] + "..."


def read(file: Path) -> Any:
    """A handed-in notebook in format 4. ValueError, in one line, for what is none."""
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST // 1_000_000} MB")
        found = nbformat.read(file, as_version=4)
        for cell in found.cells:
            if not isinstance(cell.source, str) or not isinstance(cell.metadata, dict):
                raise ValueError("a cell has no source")
        return found
    except Exception as error:
        raise ValueError(f"this is no notebook ({type(error).__name__}: {error})") from None


def source_for(file: Path, handed_in: Any, course: Path) -> Any:
    """The course's notebook that a hand-in belongs to, as its metadata says, or else its own and
    its folder's name. ValueError: none.
    """
    sources = {
        path.relative_to(course / "source").with_suffix("").as_posix(): path
        for path in (course / "source").glob("*/*.ipynb")
    }
    said = handed_in.metadata.get("course", {})
    said = said.get("assignment") if isinstance(said, dict) else None
    named = [name for name in sources if name == f"{file.parent.name}/{file.stem}"] or [
        name for name in sources if name.rpartition("/")[2] == file.stem
    ]
    if said not in sources and len(named) != 1:
        raise ValueError(
            "it belongs to no assignment of the course, or to several: neither metadata nor its name says to which"
        )
    return nbformat.read(sources[said if said in sources else named[0]], as_version=4)


def assembled(source: Any, handed_in: Any) -> tuple[Any, list[str]]:
    """The course's notebook with a student's answers and own cells, and the names of locked cells
    that the student's copy has changed.

    An answer is the cell with the answer's name, or, where metadata was lost, the last cell that
    defines the same function. A student's own code cell comes after the cell that it follows in the
    hand-in.
    """
    whole = copy.deepcopy(source)
    own = {
        cell.metadata.nbgrader.grade_id: cell for cell in whole.cells if "nbgrader" in cell.metadata
    }
    answers = {name: _defined(cell.source) for name, cell in own.items() if utils.is_solution(cell)}
    visible = {name: _without_hidden(cell.source) for name, cell in own.items()}
    shown = {
        " ".join(text.split())
        for text in (*visible.values(), *(cell.source for cell in whole.cells))
    }
    given: dict[str, str] = {}
    changed: list[str] = []
    added: list[tuple[str, Any]] = []
    place = ""
    for cell in handed_in.cells:
        metadata = cell.metadata.get("nbgrader", {})
        name = metadata.get("grade_id") if isinstance(metadata, dict) else None
        if name not in own and cell.cell_type == "code":
            name = next(
                (
                    answer
                    for answer, functions in answers.items()
                    if functions & _defined(cell.source)
                ),
                name,
            )
        if name in answers:
            given[name], place = cell.source, name
        elif name in own:
            changed += [name] if cell.source.split() != visible[name].split() else []
            place = name
        elif cell.cell_type == "code" and " ".join(cell.source.split()) not in shown:
            added.append((place, cell.source))
    cells = [nbformat.v4.new_code_cell(text) for after, text in added if not after]
    for cell in whole.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if name in answers:
            cell.source = given.get(name, "")
        cells += [
            cell,
            *(nbformat.v4.new_code_cell(text) for after, text in added if name and after == name),
        ]
    whole.cells = cells
    return whole, changed


def _without_hidden(text: str) -> str:
    return text.partition("\n### BEGIN HIDDEN TESTS")[0]


def _defined(text: str) -> set[str]:
    """The functions that a cell defines; none for one that is no Python."""
    try:
        return {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


def execute(whole: Any, seconds: int) -> bool:
    """Execute a notebook in place in a folder of its own, errors kept in the cells. Returns whether
    the limit was met.

    Runs are looked up among the committed ones and never trained; results go to the temporary
    folder.
    """
    end: list[
        float
    ] = []  # counted from the first cell, so that a slow start of the kernel costs nobody time

    def left(cell: Any) -> int:
        end.append(end[0] if end else time.monotonic() + seconds)
        return max(1, round(end[0] - time.monotonic()))

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        surroundings = {
            "CURLNB_HOME": str(environment.home().resolve()),
            "CURLNB_RESULTS": folder,
            "CURLNB_REFERENCE": "1",
            # nbgrader takes what a check writes to stderr for a failure
            "PYTHONWARNINGS": "ignore",
            "MPLBACKEND": "agg",
            "NBGRADER_EXECUTION": "autograde",
        }
        former = {name: os.environ.get(name) for name in surroundings}
        os.environ.update(surroundings)
        try:
            step = Execute(
                timeout_func=left,
                raise_on_iopub_timeout=False,
                kernel_name="python3",
                extra_arguments=["--log-level=40"],
            )
            step.preprocess(whole, {"metadata": {"path": folder}})
        finally:
            for name, value in former.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    return bool(end) and time.monotonic() >= end[0]
