"""The cell that sets a notebook up in Colab: silent elsewhere, the same in every notebook, written
there by tools/colab.py.
"""

import copy
import json
import sys
from types import ModuleType

import colab
import nbformat
import pytest

from curlnb.companion import notebooks

NOTEBOOKS = notebooks.find()


class Shell:
    """What a cell calls of IPython."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def system(self, line: str) -> None:
        self.told.append(line)

    def run_line_magic(self, name: str, line: str) -> None:
        self.told.append(f"%{name} {line}")


def executed(source: str) -> Shell:
    shell = Shell()
    exec(source, {"get_ipython": lambda: shell})
    return shell


@pytest.fixture
def addressed(monkeypatch):
    monkeypatch.setattr(colab, "repository", lambda: "https://example.org/curlnb")


@pytest.fixture
def in_colab(monkeypatch):
    monkeypatch.setenv("CURLNB_HOME", "")  # put back afterwards
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))


def test_elsewhere_the_cell_does_nothing(addressed, capfd, monkeypatch):
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    assert executed(colab.source()).told == []
    assert capfd.readouterr() == ("", "")


def test_in_colab_it_clones_and_installs_and_leaves_torch_and_the_kernel(
    addressed, in_colab, monkeypatch
):
    told = executed(colab.source()).told
    assert told == [
        "git clone --quiet --depth 1 https://example.org/curlnb /content/curlnb",
        "%pip install --quiet --no-deps /content/curlnb",
    ]
    monkeypatch.setattr("os.path.isdir", lambda path: path == "/content/curlnb")
    assert executed(colab.source()).told == told[1:]


def test_in_colab_without_an_address_it_says_what_to_set(in_colab, monkeypatch, capfd):
    monkeypatch.setattr(colab, "repository", lambda: "")
    assert executed(colab.source()).told == []
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("Set repository to this project's address")


def test_the_address_stands_in_one_place(monkeypatch, tmp_path):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert colab.repository() == ""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/y"\n'
    )
    assert colab.repository() == "https://example.org/y"
    assert 'repository = "https://example.org/y"\n' in colab.source()


def test_it_is_put_in_once_and_an_older_one_is_replaced(addressed, monkeypatch, tmp_path):
    path = tmp_path / "book.ipynb"
    new = nbformat.v4
    shown = new.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    code = new.new_code_cell("1 + 1", execution_count=1, outputs=[shown])
    cells = [new.new_markdown_cell("# Title"), new.new_markdown_cell("Text"), code]
    nbformat.write(new.new_notebook(cells=cells), path)
    assert colab.insert(path)
    book = nbformat.read(path, as_version=4)
    assert [cell.cell_type for cell in book.cells] == ["markdown", "code", "markdown", "code"]
    assert [cell.execution_count for cell in book.cells if cell.cell_type == "code"] == [1, 2]
    assert book.cells[3].outputs[0].execution_count == 2
    assert not colab.insert(path)
    older = copy.deepcopy(book)
    older.cells[1], older.cells[2] = older.cells[2], older.cells[1]
    older.cells[2].source = "old"
    nbformat.write(older, path)
    assert colab.insert(path)
    assert nbformat.read(path, as_version=4) == book


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebooks.name_of)
def test_every_notebook_has_the_cell_behind_its_title(path):
    cells = json.loads(path.read_text())["cells"]
    places = [at for at, cell in enumerate(cells) if "colab" in cell["metadata"].get("tags", [])]
    assert places == [
        next(at for at, cell in enumerate(cells) if cell["cell_type"] == "markdown") + 1
    ], "run `python tools/colab.py`"
    assert "".join(cells[places[0]]["source"]) == colab.source(), "run `python tools/colab.py`"
    assert cells[places[0]]["outputs"] == []
