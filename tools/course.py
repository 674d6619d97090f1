"""The course: assignments for nbgrader from the exercises of the notebooks, and their grading
without a server.

    python tools/course.py                   write results/course/: source, release (stubs), solutions, nbgrader's configuration, a list
    python tools/course.py grade FOLDER      run the hand-ins below FOLDER and write FOLDER.csv, one line a hand-in

`docs/course.md` says how to use both.
"""

import argparse
import ast
import copy
import csv
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import course_slices as slices
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
c.Execute.timeout = 60
"""
TASK = re.compile(
    r"^### (?P<title>\d+\. .+?) \*\((?P<level>\w+), (?P<minutes>\d+) minutes\)\*$", re.M
)
# the tag of the cell that sets a notebook up in Colab, which an assignment needs as its lesson does
CARRIED = "colab"
COMMON = {"math", "np"}  # what an answer may well use, although the solution does not
WORDS_A_MINUTE = 150  # of prose with formulas


@dataclass
class Exercise:
    """One exercise of a lesson: task, stub, solution and check as text, and the statements of the
    lesson that they need.
    """

    lesson: str
    title: str
    level: str
    minutes: int
    task: str
    stub: str
    solution: str
    check: str
    after: str = ""
    prepared: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        """One for every five minutes."""
        return max(1, round(self.minutes / 5))

    @property
    def hidden(self) -> str:
        return HIDDEN.get((self.lesson, self.function), "")

    @property
    def function(self) -> str:
        """What the stub defines, by which hidden checks and wrong answers know the exercise."""
        return next(
            node.name for node in ast.parse(self.stub).body if isinstance(node, ast.FunctionDef)
        )

    @property
    def answer(self) -> str:
        """Solution and stub in one: nbgrader replaces what stands between the marks by `...`, which
        gives the stub.
        """
        head = self.stub.rstrip().removesuffix("...").rstrip()
        if not self.solution.startswith(head + "\n") or not self.stub.rstrip().endswith("..."):
            raise ValueError(
                f"{self.lesson}, exercise {self.title}: the solution must begin as the stub does, whose end is `...`"
            )
        body = self.solution.removeprefix(head).strip("\n")
        indent = re.match(r" *", body)[0]  # type: ignore[index]
        return f"{head}\n{indent}### BEGIN SOLUTION\n{body}\n{indent}### END SOLUTION"


@dataclass
class Lesson:
    """The exercises of one notebook, and the first cells of its assignment, one for each cell of
    the lesson that they need.
    """

    name: str
    title: str
    words: int
    carried: list[str]
    prepared: list[str]
    exercises: list[Exercise]

    @property
    def folder(self) -> str:
        """Where its assignment goes, a key of PAPERS: notebooks that stand outside a paper's folder
        are the first or the last.
        """
        return (
            self.name.partition("/")[0]
            if "/" in self.name
            else "0_start"
            if self.name.startswith("0")
            else "4_across"
        )

    @property
    def file(self) -> str:
        return f"{self.folder}/{self.name.rpartition('/')[2]}"

    @property
    def minutes(self) -> int:
        return sum(exercise.minutes for exercise in self.exercises)

    @property
    def reading(self) -> int:
        """Minutes to read the lesson, rounded up to five."""
        return -(-self.words // (5 * WORDS_A_MINUTE)) * 5

    @property
    def points(self) -> int:
        return sum(exercise.points for exercise in self.exercises)


def lessons() -> list[Lesson]:
    """All notebooks with exercises, in reading order."""
    return [found for path in notebooks.find() if (found := lesson(path)).exercises]


def about() -> dict[str, dict[str, str]]:
    """For each lesson what it needs and what is learnt, from course_lessons.csv."""
    with open(Path(__file__).parent / "course_lessons.csv", newline="", encoding="utf-8") as file:
        return {row["lesson"]: row for row in csv.DictReader(file)}


def lesson(path: Path) -> Lesson:
    """A notebook's exercises with what they need.

    ValueError where a check needs the answer to another exercise: a wrong answer would cost points
    twice.
    """
    name, cells = notebooks.name_of(path), notebooks.read(path)["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    tags = [
        set(cell["metadata"].get("tags", [])) & {"exercise", "solution", "check", CARRIED}
        for cell in cells
    ]
    exercises: list[Exercise] = []
    body: list[slices.Statement] = []
    checked: list[slices.Statement] = []
    answers: set[str] = set()
    wanted: set[str] = set()
    for at, (cell, text, tag) in enumerate(zip(cells, texts, tags, strict=True)):
        if cell["cell_type"] == "markdown":
            before, titled, task = _at_the_task(text)
            if exercises and not exercises[-1].after:
                exercises[-1].after = before.strip()
            if titled:
                exercises.append(
                    Exercise(
                        name,
                        titled["title"],
                        titled["level"],
                        int(titled["minutes"]),
                        task,
                        "",
                        "",
                        "",
                    )
                )
        elif "exercise" in tag:
            exercises[-1].stub = text
        elif "solution" in tag:
            exercises[-1].solution = text
        elif "check" in tag:
            one = exercises[-1]
            one.check = text
            code = [
                s
                for part in (one.stub, one.solution, text, one.hidden)
                for s in slices.statements(part, at)
            ]
            own = set().union(*(s.binds for s in slices.statements(one.stub)))
            names = slices.needed_from_outside(code)
            if other := names & answers - own:
                raise ValueError(
                    f"{name}, exercise {one.title}: its check needs {min(other)}, the answer to another exercise"
                )
            again = slices.slice_for(checked, names - own)
            one.prepared = _cells(checked, again)
            if (
                foreign := set().union(*(checked[i].needs | checked[i].later for i in again))
                & answers
            ):
                raise ValueError(
                    f"{name}, exercise {one.title}: its check needs what {min(foreign)}, another answer, has given"
                )
            wanted |= (
                names
                | set().union(*(checked[i].needs | checked[i].later for i in again))
                | _tools_named(one, body)
            )
            answers |= own
            checked += slices.statements(text, at)
        elif cell["cell_type"] == "code" and not tag:
            body += slices.statements(text, at)
    title = texts[0].splitlines()[0].removeprefix("# ")
    words = sum(
        len(text.split())
        for text, cell in zip(texts, cells, strict=True)
        if cell["cell_type"] == "markdown"
    )
    carried = [text for text, tag in zip(texts, tags, strict=True) if CARRIED in tag]
    return Lesson(
        name,
        title,
        words,
        carried,
        _cells(body, slices.slice_for(body, wanted | COMMON)),
        exercises,
    )


def _at_the_task(text: str) -> tuple[str, re.Match[str] | None, str]:
    """What stands before an exercise's heading, the heading, and the task with it; a cell without a
    task stands before the next.
    """
    found = TASK.search(text)
    return (
        (text[: found.start()], found, text[found.start() :].strip()) if found else (text, None, "")
    )


def _tools_named(one: Exercise, body: list[slices.Statement]) -> set[str]:
    """The functions, classes and imports of the lesson that the task names, its own parameters
    aside: an answer may use them.
    """
    parameters = {node.arg for node in ast.walk(ast.parse(one.stub)) if isinstance(node, ast.arg)}
    tools = set().union(*(s.binds for s in body if s.imports or isinstance(s.node, slices.NAMED)))
    return tools & set(re.findall(r"`(\w+)", one.task)) - parameters


def _cells(before: list[slices.Statement], found: dict[int, set[str]]) -> list[str]:
    """The statements at some places, about a text for each cell that they stood in; imports first
    and together.
    """
    imports = {before[at].only(names) for at, names in found.items() if before[at].imports}
    in_order = sorted(
        imports, key=lambda line: (line.startswith("from curlnb"), line.startswith("from"), line)
    )
    head = ["\n".join(in_order)] if imports else []
    texts: list[str] = []
    for cell in sorted({before[at].cell for at in found}):
        there = [before[at] for at in found if before[at].cell == cell and not before[at].imports]
        text = ""
        for one, last in zip(there, [None, *there], strict=False):
            defined = any(s and isinstance(s.node, slices.NAMED) for s in (one, last))
            text += ("\n\n\n" if defined and last else "\n" if last else "") + one.text
        if (
            text and texts and len(texts[-1].splitlines()) < 4
        ):  # a setting or two needs no cell of its own
            texts[-1] += "\n" + text
        elif text:
            texts.append(text)
    return head + texts


def source_of(one: Lesson, folder: Path) -> dict[str, Any]:
    """An assignment as nbgrader's source: a locked cell for each task, one cell a solution between
    marks, and locked checks with points.

    folder: where it will lie, for the link to the lesson.
    """
    cells = [_markdown("about", _head(one, folder))]
    cells += [
        _code(f"{CARRIED}-{number}", text, {"tags": [CARRIED]} | _role(locked=True))
        for number, text in enumerate(one.carried)
    ]
    for number, text in enumerate(one.prepared):
        first = "# Prepared: what the checks below need of the lesson.\n" if number == 0 else ""
        cells.append(_code(f"prepared-{number + 1}", first + text, _role(locked=True)))
    for exercise in one.exercises:
        number = exercise.title.partition(".")[0]
        cells.append(
            _markdown(
                f"task-{number}",
                f"{exercise.task}\n\n*{exercise.points} point{'s' * (exercise.points > 1)}*",
            )
        )
        cells += [
            _code(f"prepared-for-{number}-{i + 1}", text, _role(locked=True))
            for i, text in enumerate(exercise.prepared)
        ]
        cells.append(_code(f"answer-{number}", exercise.answer, _role(solution=True)))
        hidden = (
            f"\n### BEGIN HIDDEN TESTS\n{exercise.hidden.strip()}\n### END HIDDEN TESTS"
            if exercise.hidden
            else ""
        )
        cells.append(
            _code(
                f"check-{number}",
                exercise.check.rstrip() + hidden,
                _role(locked=True, grade=True, points=exercise.points),
            )
        )
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {
        "kernelspec": kernel,
        "language_info": {"name": "python"},
        "course": {"assignment": one.file},
    }
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _head(one: Lesson, folder: Path) -> str:
    known = about().get(one.name, {})
    place = os.path.relpath(environment.home() / "notebooks" / f"{one.name}.ipynb", folder)
    lines = [
        f"# Exercises · {one.title}",
        f"Lesson: [notebooks/{one.name}.ipynb]({Path(place).as_posix()}), about {one.reading} minutes to read.",
        f"**{one.points} points, {one.minutes} minutes.**",
        f"- Before you begin: {known.get('needs', '')}" if known else "",
        f"- What you learn: {known.get('learnt', '')}" if known else "",
        "Replace each `...` by your code and run the cell with the check below it. A check that raises no error gives its points; "
        "otherwise its last line says what is wrong. The cells with checks are locked: whatever is changed in them is restored before "
        "the grading. You may add cells and imports of your own.",
    ]
    return "\n\n".join(line for line in lines if line).replace("\n\n- What", "\n- What")


def _role(
    *, locked: bool = False, solution: bool = False, grade: bool = False, points: int = 0
) -> dict[str, Any]:
    role = {
        "grade": grade,
        "locked": locked,
        "solution": solution,
        "task": False,
        "schema_version": 3,
    }
    return {"nbgrader": role | ({"points": points} if grade else {})}


def _code(name: str, text: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return _cell("code", name, text, metadata) | {"execution_count": None, "outputs": []}


def _markdown(name: str, text: str) -> dict[str, Any]:
    return _cell("markdown", name, text, _role(locked=True))


def _cell(kind: str, name: str, text: str, metadata: dict[str, Any]) -> dict[str, Any]:
    if "nbgrader" in metadata:
        metadata["nbgrader"]["grade_id"] = name
    return {"cell_type": kind, "id": name, "metadata": metadata, "source": text}


def release_of(source: dict[str, Any], name: str) -> Any:
    """What students get: nbgrader's own preprocessors put stubs for solutions, lock cells and drop
    hidden tests.
    """
    import nbformat
    from nbgrader import preprocessors as pre
    from traitlets.config import Config

    config = Config({"ClearSolutions": {"code_stub": {"python": "..."}}})
    steps = [
        pre.LockCells,
        pre.ClearSolutions,
        pre.ClearOutput,
        pre.CheckCellMetadata,
        pre.ClearHiddenTests,
        pre.ComputeChecksums,
    ]
    made, resources = (
        nbformat.from_dict(copy.deepcopy(source)),
        {"nbgrader": {"notebook": name, "assignment": name}},
    )
    for step in steps:
        made, resources = step(config=config).preprocess(made, resources)
    nbformat.validate(made)
    return made


def solutions_of(one: Lesson, source: dict[str, Any]) -> dict[str, Any]:
    """The assignment with its solutions and what the lesson says after them, without marks, locks
    and hidden tests.
    """
    made, after = (
        copy.deepcopy(source),
        {f"check-{e.title.partition('.')[0]}": e.after for e in one.exercises},
    )
    cells = []
    for cell in made["cells"]:
        cell["source"] = re.sub(
            r"\n### BEGIN HIDDEN.*### END HIDDEN TESTS", "", cell["source"], flags=re.S
        )
        cell["source"] = re.sub(
            r"^ *### (BEGIN|END) SOLUTION\n?", "", cell["source"], flags=re.M
        ).rstrip()
        cell["metadata"] = {}
        cells.append(cell)
        if text := after.get(cell["id"]):
            cells.append(
                {
                    "cell_type": "markdown",
                    "id": f"after-{cell['id']}",
                    "metadata": {},
                    "source": text,
                }
            )
    return made | {"cells": cells}


def build(folder: Path) -> list[Lesson]:
    """Write all editions below `folder` anew; what else lies there stays. Returns the lessons."""
    import nbformat

    found = lessons()
    for edition in ("source", "release", "solutions"):
        shutil.rmtree(folder / edition, ignore_errors=True)
    for one in found:
        places = {
            edition: folder / edition / f"{one.file}.ipynb"
            for edition in ("source", "release", "solutions")
        }
        source = source_of(one, places["release"].parent)
        made = {
            "source": source,
            "release": release_of(source, one.file),
            "solutions": solutions_of(one, source),
        }
        for edition, path in places.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(nbformat.from_dict(made[edition]), path)
    (folder / "nbgrader_config.py").write_text(CONFIGURATION)
    (folder / "README.md").write_text("\n".join(listing(found)) + "\n", encoding="utf-8")
    return found


def listing(found: list[Lesson]) -> Iterator[str]:
    """The assignments by paper as Markdown."""
    known = about()
    yield "# The course's assignments\n\nWritten by `make course`; see docs/course.md of the repository. `release/` is for students."
    for folder, title in PAPERS.items():
        there = [one for one in found if one.folder == folder]
        if there:
            total = f"{sum(one.points for one in there)} points, {sum(one.minutes for one in there)} minutes"
            yield f"\n## {title}\n\n{total}\n"
            yield "| assignment | exercises | points | minutes | reading | before | learnt |\n|---|---|---|---|---|---|---|"
        for one in there:
            row = known.get(one.name, {"needs": "", "learnt": ""})
            numbers = f"{len(one.exercises)} | {one.points} | {one.minutes} | {one.reading}"
            yield f"| [{one.title}](release/{one.file}.ipynb) | {numbers} | {row['needs']} | {row['learnt']} |"


def course_folder() -> Path:
    return environment.results_folder() / "course"


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--folder", type=Path, default=None, help="the course folder; default: results/course"
    )
    commands = parser.add_subparsers(dest="command")
    grade = commands.add_parser(
        "grade", help="grade the hand-ins below a folder, one folder a student"
    )
    grade.add_argument("handins", type=Path)
    grade.add_argument(
        "--out",
        type=Path,
        default=None,
        help="the CSV to write; default: the folder's name with .csv",
    )
    grade.add_argument("--seconds", type=int, default=120, help="the time limit of a notebook")
    grade.add_argument("--jobs", type=int, default=environment.cores(), help="notebooks at a time")
    given = parser.parse_args(arguments)
    folder = given.folder or course_folder()
    try:
        import course_grading
    except ImportError as error:
        print(
            f"the course needs {error.name}: make setup, or pip install '.[course,notebooks]'",
            file=sys.stderr,
        )
        return 1
    try:
        if given.command == "grade":
            out = given.out or Path(f"{given.handins}".rstrip("/") + ".csv")
            rows = course_grading.grade(
                given.handins, folder, seconds=given.seconds, jobs=given.jobs
            )
            course_grading.write(rows, out)
            print(f"{out}: {len(rows)} hand-ins, {sum(row.note != '' for row in rows)} with a note")
        else:
            found = build(folder)
            exercises, points = (
                sum(values)
                for values in zip(*((len(one.exercises), one.points) for one in found), strict=True)
            )
            print(
                f"{folder}: {len(found)} assignments, {exercises} exercises, {points} points; see README.md there"
            )
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
