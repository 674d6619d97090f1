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


@pytest.mark.parametrize(
    ("in_colab", "address", "told", "printed"),
    [
        (False, ADDRESS, [], ""),
        (True, "", [], "This project has no address yet"),
        (True, ADDRESS, [f"git clone -q --depth 1 {ADDRESS} /content/curlnb"], ""),
    ],
)
def test_in_colab_the_package_comes_from_the_address_and_elsewhere_nothing_happens(
    monkeypatch, tmp_path, capfd, in_colab, address, told, printed
):
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "x"\n[project.urls]\nRepository = "{address}"\n'
    )
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    if in_colab:
        monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    lines = []
    monkeypatch.setattr(os, "system", lines.append)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(colab.source(), {})
    assert lines == told
    assert (sys.path[0] == "/content/curlnb") == bool(told)
    out, err = capfd.readouterr()
    assert (out.startswith(printed), bool(out), err) == (True, bool(printed), "")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=notebooks.name_of)
def test_every_notebook_has_the_cell_behind_its_title(path):
    cells = json.loads(path.read_text())["cells"]
    places = [at for at, cell in enumerate(cells) if "colab" in cell["metadata"].get("tags", [])]
    title = next(at for at, cell in enumerate(cells) if cell["cell_type"] == "markdown")
    assert places == [title + 1], "run `python tools/colab.py`"
    assert "".join(cells[title + 1]["source"]) == colab.source(), "run `python tools/colab.py`"
    assert cells[title + 1]["outputs"] == []
