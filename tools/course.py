"""The course: a student edition of the notebooks with exercises, and nbgrader's source of it.

    python tools/course.py              write results/course/: release, source, a list

`docs/course.md` says how to use both.
"""

import itertools
import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import nbformat
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
CONFIGURATION = """import os

# A lesson's own runs are two steps on made-up data.
os.environ |= {"CURLNB_DRY": "1", "CURLNB_RESULTS": os.path.abspath("dry"), "MPLBACKEND": "agg"}
os.environ |= {"CURLNB_WORKERS": "0"}
c = get_config()
c.CourseDirectory.course_id = "curlnb"
c.ClearSolutions.code_stub = {"python": "..."}
c.OverwriteCells.add_missing_cells = True
c.Execute.timeout = 600
"""
TASK = re.compile(r"^### (?P<title>\d+\. .+?) \*\(\w+, (?P<minutes>\d+) minutes\)\*$", re.M)
QUIET = "import sys\nsys.stderr = sys.stdout"
"""Before a check of nbgrader's, which takes a warning or a debug line on stderr for a failure."""
PARTS = {"exercise": "stub", "solution": "solution", "check": "check"}
"""The parts of an exercise by the tags of their cells."""
REFEREE = "## For the referee"
WORDS_A_MINUTE = 150  # of prose with formulas


def text_of(cell):
    return "".join(cell["source"])


def tags_of(cell):
    return set(cell["metadata"].get("tags", []))


@dataclass
class Exercise:
    """One exercise of a lesson: stub, solution and check as text."""

    lesson: str
    title: str
    minutes: int
    stub: str = ""
    solution: str = ""
    check: str = ""

    @property
    def number(self):
        return self.title.partition(".")[0]

    @property
    def points(self):
        """One for every five minutes."""
        return max(1, round(self.minutes / 5))

    @property
    def function(self):
        """What the stub defines, by which hidden checks and wrong answers know the exercise."""
        return re.search(r"^def (\w+)", self.stub, re.M)[1]

    @property
    def graded(self):
        """The check as it grades: it raises where the notebook's prints."""
        return self.check.replace("notebook.check(", "notebook.grade(").rstrip()

    @property
    def hidden(self):
        return HIDDEN.get((self.lesson, self.function), "").strip()

    @property
    def whole_check(self):
        return f"{self.graded}\n{self.hidden}"

    @property
    def answer(self):
        """Solution and stub in one: nbgrader replaces what stands between the marks by `...`, which
        gives the stub.
        """
        head = self.stub.rstrip().removesuffix("...").rstrip()
        body = self.solution.removeprefix(head).strip("\n")
        indent = re.match(r" *", body)[0]
        return f"{head}\n{indent}### BEGIN SOLUTION\n{body}\n{indent}### END SOLUTION"


@dataclass
class Lesson:
    """A notebook with exercises."""

    name: str
    content: dict[str, Any]

    @property
    def cells(self):
        return self.content["cells"]

    @property
    def title(self):
        return text_of(self.cells[0]).splitlines()[0].removeprefix("# ")

    @property
    def folder(self):
        """Where its assignment goes, a key of PAPERS: notebooks that stand outside a paper's folder
        are the first or the last.
        """
        if "/" in self.name:
            return self.name.partition("/")[0]
        return "0_start" if self.name.startswith("0") else "4_across"

    @cached_property
    def exercises(self):
        found = []
        for cell in self.cells:
            if cell["cell_type"] == "markdown" and (task := TASK.search(text_of(cell))):
                found.append(Exercise(self.name, task["title"], int(task["minutes"])))
            for tag in tags_of(cell) & PARTS.keys():
                if not found:
                    raise ValueError(
                        f"{self.name}: no heading like '### 1. Title *(easy, 5 minutes)*' before "
                        f"the cell tagged {tag}"
                    )
                setattr(found[-1], PARTS[tag], text_of(cell))
        for one in found:  # a solution has a name of its own, so that no check sees it
            one.solution = one.solution.replace(f"{one.function}_solution", one.function)
        return found

    @property
    def points(self):
        return sum(exercise.points for exercise in self.exercises)

    @property
    def minutes(self):
        return sum(exercise.minutes for exercise in self.exercises)

    @property
    def reading(self):
        """Minutes to read the lesson without the part for the referee, rounded up to five."""
        texts = [text_of(cell) for cell in self.cells if cell["cell_type"] == "markdown"]
        prose = itertools.takewhile(lambda text: not text.startswith(REFEREE), texts)
        return -(-sum(len(text.split()) for text in prose) // (5 * WORDS_A_MINUTE)) * 5


@cache
def lessons():
    """All notebooks with exercises, in reading order."""
    found = (Lesson(notebooks.name_of(path), notebooks.read(path)) for path in notebooks.find())
    return [one for one in found if one.exercises]


# --- the editions ---------------------------------------------------------------------------------


def edition(one, *, graded):
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


def _hidden(text):
    return f"### BEGIN HIDDEN TESTS\n{text}\n### END HIDDEN TESTS"


def _roles(cell, name, **given):
    roles = {"grade": False, "locked": False, "solution": False, "task": False} | given
    cell.metadata["nbgrader"] = {"grade_id": name, "schema_version": 3, **roles}


def build(folder):
    """Write both editions below `folder` anew; what else lies there stays. Returns the lessons."""
    found = lessons()
    for one in found:
        # Released as the notebooks lie, so that links hold; nbgrader wants a folder an assignment.
        source = folder / "source" / one.folder / f"{one.name.rpartition('/')[2]}.ipynb"
        release = folder / "release" / f"{one.name}.ipynb"
        for path, graded in ((release, False), (source, True)):
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(edition(one, graded=graded), path)
    home = environment.home()
    for text in (home / "data" / "README.md", *home.glob("docs/*.md")):  # to which the lessons link
        target = folder / text.relative_to(home)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.read_bytes())
    (folder / "nbgrader_config.py").write_text(CONFIGURATION)
    (folder / "README.md").write_text("\n".join(listing(found)) + "\n", encoding="utf-8")
    return found


def listing(found):
    """The assignments by paper as Markdown."""
    yield "# The course's assignments\n\nWritten by `make course`; see docs/course.md."
    for folder, title in PAPERS.items():
        there = [one for one in found if one.folder == folder]
        points, minutes = sum(one.points for one in there), sum(one.minutes for one in there)
        yield f"\n## {title}\n\n{points} points, {minutes} minutes\n"
        yield "| assignment | exercises | points | minutes | reading | before | learnt |"
        yield "|---|---|---|---|---|---|---|"
        for one in there:
            told = notebooks.Needs(**one.content["metadata"].get("curlnb", {}))
            numbers = f"{len(one.exercises)} | {one.points} | {one.minutes} | {one.reading}"
            link = f"[{one.title}](release/{one.name}.ipynb)"
            yield f"| {link} | {numbers} | {told.before} | {told.learnt} |"


def main():
    folder = environment.results_folder() / "course"
    found = build(folder)
    many, points = sum(len(one.exercises) for one in found), sum(one.points for one in found)
    print(f"{folder}: {len(found)} assignments, {many} exercises, {points} points")


if __name__ == "__main__":
    main()
