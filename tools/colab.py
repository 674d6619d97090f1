"""Put the cell that sets a notebook up in Colab behind the title of every notebook: `python
tools/colab.py [notebook ...]`.

The project's address stands in pyproject.toml alone (project.urls, Repository) and is written into
the cells from there, so run this again when it changes. Run twice, it changes nothing. While there
is no address, the cell says so in Colab.

The repository is cloned and imported from where it lies, with the small data sets and the reference
runs in it. Nothing is installed: Colab has all that the package depends on, its own torch with or
without a GPU among them. Elsewhere the cell does nothing and leaves no output. So it gets the first
execution number, and the numbers behind it go on by one, as if the notebook had been executed with
it.
"""

import copy
import sys
import tomllib
from pathlib import Path

import nbformat

from curlnb.companion import notebooks
from curlnb.runs import environment
from curlnb.runs.files import write_atomically

TAG = "colab"
CELL = """\
import os, sys

if "COLAB_RELEASE_TAG" in os.environ:  # in Colab, get the package and its data
    os.system("git clone -q --depth 1 {repository} /content/curlnb")
    sys.path.insert(0, "/content/curlnb")
"""
WITHOUT_ADDRESS = """\
import os

if "COLAB_RELEASE_TAG" in os.environ:
    print("This project has no address yet: set project.urls in pyproject.toml, run tools/colab.py")
"""


def repository() -> str:
    """The project's address, or the empty string while it has none."""
    project = tomllib.loads((environment.home() / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository", "")


def source() -> str:
    address = repository()
    return (CELL.format(repository=address) if address else WITHOUT_ADDRESS).rstrip("\n")


def insert(path: Path) -> bool:
    """Put the cell behind the first cell of text, in the place of an older one; whether that
    changed the notebook.
    """
    book = nbformat.read(path, as_version=4)
    before = copy.deepcopy(book)
    cells = [cell for cell in book.cells if TAG not in cell.metadata.get("tags", [])]
    executed = any(cell.get("execution_count") for cell in cells)
    place = next(at for at, cell in enumerate(cells) if cell.cell_type == "markdown") + 1
    cells.insert(place, nbformat.v4.new_code_cell(source(), id=TAG, metadata={"tags": [TAG]}))
    for number, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), 1):
        for counted in (
            cell,
            *(output for output in cell.outputs if output.output_type == "execute_result"),
        ):
            counted.execution_count = number if executed else None
    book.cells = cells
    if book == before:
        return False
    write_atomically(path, lambda file: nbformat.write(book, file))
    return True


def main(names: list[str]) -> None:
    changed = [notebooks.name_of(path) for path in notebooks.find(names) if insert(path)]
    print(
        f"{len(changed)} notebooks changed"
        + ("" if repository() else "; pyproject.toml names no address yet")
    )


if __name__ == "__main__":
    main(sys.argv[1:])
