"""The cell that sets a notebook up in Colab: silent elsewhere, written into notebooks by
tools/colab.py, and taken out of them where the project has no address.
"""

import json
import os
import sys

import colab
import pytest

from curlnb.companion import notebooks

NOTEBOOKS = notebooks.find()
ADDRESS = "https://example.org/curlnb"


@pytest.mark.parametrize("in_colab", [False, True])
def test_in_colab_the_package_comes_from_the_address_and_elsewhere_nothing_happens(
    monkeypatch, capfd, in_colab
):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    if in_colab:
        monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    lines = []
    monkeypatch.setattr(os, "system", lines.append)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(colab.CELL.format(repository=ADDRESS), {})
    assert lines == [f"git clone -q --depth 1 {ADDRESS} /content/curlnb"] * in_colab
    assert (sys.path[0] == "/content/curlnb") == in_colab
    assert capfd.readouterr() == ("", "")


def colab_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return [at for at, cell in enumerate(cells) if "colab" in cell["metadata"].get("tags", [])]


def test_the_cell_stands_behind_the_title_once_and_goes_with_the_address(tmp_path):
    copy = tmp_path / "page.ipynb"
    copy.write_bytes(NOTEBOOKS[0].read_bytes())
    for address, at in ((ADDRESS, [1]), (ADDRESS + "/new", [1]), ("", [])):
        colab.renew(copy, address)
        assert colab_cells(copy) == at
        assert not at or f"{address} /content" in copy.read_text()
    assert copy.read_bytes() == NOTEBOOKS[0].read_bytes()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebooks.name_of)
def test_every_notebook_has_the_cell_if_the_project_has_an_address(path):
    assert colab_cells(path) == [1] * bool(colab.repository()), "run `python tools/colab.py`"
