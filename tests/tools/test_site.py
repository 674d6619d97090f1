"""The site: built from what is committed, its links whole, and every kind of page seen in a real
browser.
"""

import html
import json
import re
import sys
from pathlib import Path

import build_site
import pytest
from browser import CHROMIUM, FAULTS, look

from curlnb.companion import notebooks
from curlnb.runs import environment

FORKS = Path(__file__).parent.parent / "forks.py"
NOTEBOOKS = environment.home() / "notebooks"
WHOLE = ("1_curl/4.1_surrogate_bound", "5_across_papers")
API = (  # a module of each part, with something that it defines
    "losses.contrastive.hard",
    "data.augment.simclr",
    "models.gin.GIN",
    "evaluation.neighbours.knn",
    "theory.class_collision.collision_losses",
    "runs.sweep.sweep",
    "experiments.images.simclr",
    "companion.ledger.best",
)
SEEN = (  # a page of each kind
    *("docs/site/index.html", "docs/site/modules.html", "docs/site/estimates.html"),
    *("docs/site/pushes.html", "README.html", f"notebooks/{WHOLE[0]}.html", "report.html"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site with two notebooks and some modules whole, and of the other notebooks their first
    cell; Sphinx is a fork that has the package imported. Links that lead nowhere would be warnings,
    which it does not take.
    """
    whole = [*WHOLE, *(name.rpartition(".")[0] for name in API)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_site, "PYTHON", [sys.executable, str(FORKS)])
        folder = tmp_path_factory.mktemp("site")
        return build_site.build(folder, "-D", f"whole={','.join(whole)}")


def test_it_has_every_notebook_guide_and_kind_of_module(site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert pages >= {f"notebooks/{notebooks.name_of(path)}.html" for path in notebooks.find()}
    assert pages >= {"index.html", "search.html", "report.html", "CONTRIBUTING.html"}
    api = (site / SEEN[1]).read_text()
    assert [name for name in API if f'id="curlnb.{name}"' not in api] == []
    assert "minutes" in (site / "docs" / "site" / "exercises.html").read_text()


def test_links_lead_somewhere_nothing_comes_from_elsewhere_and_pictures_have_words(site):
    for path in site.rglob("*.html"):
        if "_static" in path.parts:
            continue
        text = path.read_text()
        assert not re.search(r'(?:src=|<link[^>]+stylesheet[^>]+href=)"(?:https?:)?//', text), path
        assert not re.search(r'<img(?![^>]*alt="[^"])', text), path
        for link in re.findall(r'<(?:a|img|script|link)[^>]*?(?:href|src)="([^"#?]+)', text):
            if not re.match(r"\w+:", link):
                assert (path.parent / html.unescape(link)).exists(), f"{path}: {link}"


@pytest.mark.parametrize("name", WHOLE)
def test_solutions_are_folded_figures_described_and_downloads_the_notebooks(site, name):
    page = (site / "notebooks" / f"{name}.html").read_text()
    source = (NOTEBOOKS / f"{name}.ipynb").read_text()
    cells = json.loads(source)["cells"]
    count = sum("solution" in cell["metadata"].get("tags", []) for cell in cells)
    assert page.count("Show the solution") == count > 0
    assert "google.colab" not in page
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    about = [output.get("metadata", {}).get("image/png", {}).get("alt") for output in outputs]
    shown = [html.unescape(text) for text in re.findall(r'<img[^>]* alt="([^"]*)"', page)]
    words = [set(map(" ".join, map(str.split, filter(None, texts)))) for texts in (about, shown)]
    assert words[0] <= words[1]
    assert (site / "_sources" / "notebooks" / f"{name}.ipynb").read_text() == source


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_finds_nothing_wrong_with_the_pages(site):
    found, said = look(site, SEEN, patience=500)
    assert said == []
    assert {page: faults for page, faults in found.items() if faults} == {}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_finds_what_is_wrong(tmp_path):
    page = """<!doctype html><html lang="en"><title>x</title><main><h1 style="width: 2000px">x</h1>
<img src="gone.png" alt="x" width=9><button></button><span class="math">x</span></main>
<script src="lost.js"></script><script>console.error("oh"); missing()</script>"""
    (tmp_path / "page.html").write_text(page)
    found, said = look(tmp_path, ["page.html"], FAULTS, [390], patience=100)
    all_of_it = "\n".join([*found["page.html at 390 px"], *said])
    faults = ("no picture", "px wide", "0 of 1 formulas", "button-name (critical)", "oh")
    for fault in (*faults, "missing is not defined", "/lost.js"):
        assert fault in all_of_it, all_of_it
