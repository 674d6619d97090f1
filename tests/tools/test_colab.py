"""The cell that sets a notebook up in Colab: silent elsewhere, the same in every notebook, written
there by tools/colab.py.
"""

import json
import os
import sys

import colab
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
    monkeypatch.setattr(colab, "repository", lambda: ADDRESS)
    exec(colab.source(), {})
    assert told == []
    assert "/content/curlnb" not in sys.path
    assert capfd.readouterr() == ("", "")


def test_in_colab_it_says_that_there_is_no_address_or_clones_and_imports_from_there(
    told, monkeypatch, capfd
):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(colab, "repository", lambda: "")
    exec(colab.source(), {})
    assert told == []
    assert capfd.readouterr().out.startswith("This project has no address yet")
    monkeypatch.setattr(colab, "repository", lambda: ADDRESS)
    exec(colab.source(), {})
    assert told == [f"git clone -q --depth 1 {ADDRESS} /content/curlnb"]
    assert sys.path[0] == "/content/curlnb"


def test_the_address_stands_in_one_place(monkeypatch, tmp_path):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.urls]\nRepository = "https://example.org/y"\n'
    )
    assert colab.repository() == "https://example.org/y"
    assert "--depth 1 https://example.org/y /content" in colab.source()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebooks.name_of)
def test_every_notebook_has_the_cell_behind_its_title(path):
    cells = json.loads(path.read_text())["cells"]
    places = [at for at, cell in enumerate(cells) if "colab" in cell["metadata"].get("tags", [])]
    assert places == [
        next(at for at, cell in enumerate(cells) if cell["cell_type"] == "markdown") + 1
    ], "run `python tools/colab.py`"
    assert "".join(cells[places[0]]["source"]) == colab.source(), "run `python tools/colab.py`"
    assert cells[places[0]]["outputs"] == []
