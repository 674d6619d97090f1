"""The cell that sets a notebook up in Colab: silent elsewhere, the same in every notebook, written
there by tools/colab.py.
"""

import copy
import json
import os
import sys

import colab
import nbformat
import pytest

from curlnb.companion import notebooks

NOTEBOOKS = notebooks.find()


ADDRESS = "https://example.org/curlnb"


@pytest.fixture
def told(monkeypatch):
    """What the cell tells the shell, and where it looks for the package, once it was executed."""
    lines: list[str] = []
    monkeypatch.setattr(os, "system", lines.append)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return lines


def test_elsewhere_the_cell_does_nothing(told, monkeypatch, capfd):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    for address in (ADDRESS, ""):
        monkeypatch.setattr(colab, "repository", lambda address=address: address)
        exec(colab.source(), {})
    assert told == []
    assert "/content/curlnb" not in sys.path
    assert capfd.readouterr() == ("", "")


def test_in_colab_it_clones_and_imports_from_there(told, monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(colab, "repository", lambda: ADDRESS)
    exec(colab.source(), {})
    assert told == [f"git clone -q --depth 1 {ADDRESS} /content/curlnb"]
    assert sys.path[0] == "/content/curlnb"


def test_in_colab_without_an_address_it_says_what_is_missing(told, monkeypatch, capfd):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(colab, "repository", lambda: "")
    exec(colab.source(), {})
    assert told == []
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("This project has no address yet")


def test_the_address_stands_in_one_place(monkeypatch, tmp_path):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert colab.repository() == ""
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/y"\n'
    )
    assert colab.repository() == "https://example.org/y"
    assert "--depth 1 https://example.org/y /content" in colab.source()


def test_it_is_put_in_once_and_an_older_one_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(colab, "repository", lambda: ADDRESS)
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
