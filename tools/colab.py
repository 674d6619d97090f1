"""Put the cell that sets a notebook up in Colab behind the title of every notebook: `python
tools/colab.py [notebook ...]`.

The project's address stands in pyproject.toml alone (project.urls, Repository) and is written into
the cells from there, so run this again when it changes. While there is no address, no notebook has
the cell.

The repository is cloned and imported from where it lies, with the small data sets and the reference
runs in it. Nothing is installed: Colab has all that the package depends on, its own torch with or
without a GPU among them. Elsewhere the cell does nothing and leaves no output. Execute a notebook
that had no such cell again, so that its cells are numbered.
"""

import sys
import tomllib

import nbformat

from curlnb.companion import notebooks
from curlnb.runs import environment
from curlnb.runs.files import write_atomically

TAG = "colab"
CELL = """\
import os, sys

if "COLAB_RELEASE_TAG" in os.environ:  # in Colab, get the package and its data
    os.system("git clone -q --depth 1 {repository} /content/curlnb")
    sys.path.insert(0, "/content/curlnb")"""


def repository():
    """The project's address, or the empty string while it has none."""
    project = tomllib.loads((environment.home() / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository", "")


def renew(path, address):
    """Put the cell behind the notebook's first cell of text, or renew it; without an address, take
    it away.
    """
    book = nbformat.read(path, as_version=4)
    book.cells = [cell for cell in book.cells if TAG not in cell.metadata.get("tags", [])]
    if address:
        about = {"tags": [TAG], "jupyter": {"source_hidden": True}}
        source = CELL.format(repository=address)
        title = next(at for at, cell in enumerate(book.cells) if cell.cell_type == "markdown")
        book.cells.insert(title + 1, nbformat.v4.new_code_cell(source, id=TAG, metadata=about))
    write_atomically(path, lambda file: nbformat.write(book, file))


if __name__ == "__main__":
    for each in notebooks.find(sys.argv[1:]):
        renew(each, repository())
    if not repository():
        print("pyproject.toml names no address yet: no notebook has the cell")
