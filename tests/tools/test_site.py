"""The site: built from what is committed, its links whole, and every kind of page seen in a real
browser.
"""

import json
import re
import sys
from pathlib import Path

import build_site
import pytest
from browse_site import look
from browser import CHROMIUM

from curlnb.companion import claims, notebooks
from curlnb.runs import environment

FORKS = Path(__file__).parent.parent / "forks.py"
WHOLE = ("1_curl/4.1_surrogate_bound", "5_across_papers")
SEEN = (  # a page of each kind
    *(
        "index.html",
        "findings.html",
        "exercises.html",
        "guides/readme.html",
        "guides/cluster.html",
        "api/losses.html",
        "papers/chuang2020.html",
    ),
    *(f"notebooks/{name}.html" for name in WHOLE),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site with two notebooks whole, and of the others their first cell; Sphinx is a fork that
    has the package imported.
    """
    whole = [path for path in notebooks.find() if notebooks.name_of(path) in WHOLE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_site, "PYTHON", [sys.executable, str(FORKS)])
        return build_site.build(tmp_path_factory.mktemp("site"), whole)


class TestPages:
    def test_it_has_every_notebook_paper_claim_and_module(self, site):
        pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
        assert pages >= {f"notebooks/{notebooks.name_of(path)}.html" for path in notebooks.find()}
        assert pages >= {
            "index.html",
            "search.html",
            "report.html",
            "notebooks/index.html",
            "guides/contributing.html",
        }
        for id, claim in claims.table().items():
            assert f'id="{id}"' in (site / "papers" / f"{claim.paper}.html").read_text(), id
        api = "".join(path.read_text() for path in (site / "api").glob("*.html"))
        for name in (
            "losses.hard",
            "data.augment.simclr",
            "evaluation.probes",
            "runs.sweep.sweep",
            "experiments.images.simclr",
            "companion.ledger.best",
        ):
            assert f'id="curlnb.{name}"' in api or f'id="module-curlnb.{name}"' in api, name

    def test_links_lead_somewhere_nothing_comes_from_elsewhere_and_pictures_have_words(self, site):
        assert build_site.faults(site) == []

    def test_solutions_are_folded_and_downloads_are_the_notebooks_themselves(self, site):
        page = (site / "notebooks" / f"{WHOLE[0]}.html").read_text()
        solutions = json.loads(
            (environment.home() / "notebooks" / f"{WHOLE[0]}.ipynb").read_text()
        )["cells"]
        count = sum("solution" in cell["metadata"].get("tags", []) for cell in solutions)
        assert count > 0
        assert page.count("Show the solution") == count
        for name in WHOLE:
            source = (environment.home() / "notebooks" / f"{name}.ipynb").read_bytes()
            assert (site / "_sources" / "notebooks" / f"{name}.ipynb").read_bytes() == source

    def test_figures_say_what_the_notebook_says_of_them(self, site):
        for name in WHOLE:
            page = (site / "notebooks" / f"{name}.html").read_text()
            cells = json.loads((environment.home() / "notebooks" / f"{name}.ipynb").read_text())[
                "cells"
            ]
            said = [
                output["metadata"]["image/png"]["alt"]
                for cell in cells
                for output in cell.get("outputs", [])
                if "image/png" in output.get("metadata", {})
            ]
            assert said
            shown = re.findall(r'<img alt="([^"]*)"', page)
            assert [text for text in said if text not in map(build_site.html.unescape, shown)] == []

    def test_what_needs_the_repositorys_address_is_left_out_while_it_is_empty(self, site):
        pages = "".join(
            path.read_text() for path in site.rglob("*.html") if "_static" not in path.parts
        )
        known = bool(build_site.ADDRESS["repository"])
        assert ("colab.research.google.com" in pages) == known
        assert ("mybinder.org" in pages) == known

    @pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
    def test_in_a_browser_on_two_screens(self, site, tmp_path):
        assert look(site, tmp_path / "browser", [site / page for page in SEEN]) == []


def test_faults_are_found(tmp_path):
    (tmp_path / "other.html").write_text('<p id="here">')
    bad = '<a href="gone.html">a</a><a href="other.html#there">b</a>'
    bad += '<img src="https://example.org/x.png" alt="x"><img src="other.html" alt="">'
    (tmp_path / "page.html").write_text(
        bad + '<a href="other.html#here">c</a><a href="https://example.org">d</a>'
    )
    assert [fault.removeprefix("page.html: ") for fault in build_site.faults(tmp_path)] == [
        "loads https://example.org/x.png from elsewhere",
        "the picture other.html has no words",
        "gone.html leads nowhere",
        "other.html#there has no such place",
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_finds_what_is_wrong(tmp_path):
    page = '<!doctype html><html lang="en"><title>x</title><main><h1 style="width: 2000px">x</h1><img src="gone.png" alt="x" width=9>'
    page += '<button></button><span class="math">x</span></main><script>console.error("oh"); missing()</script>'
    (tmp_path / "page.html").write_text(page)
    found = "\n".join(look(tmp_path, tmp_path / "browser", widths=[390]))
    for fault in (
        "a picture is not there",
        "px wide",
        "0 of 1 formulas",
        "button-name (critical)",
        "oh",
        "missing is not defined",
        "ERR_FILE_NOT_FOUND",
    ):
        assert fault in found, found


def test_guides_lead_to_pages_of_the_site(tmp_path, monkeypatch):
    guides, titles = (
        {"README.md": "readme", "docs/cluster.md": "cluster"},
        {"0_start_here": "Start"},
    )
    text = build_site.relinked("README.md", guides, titles)
    assert "](../notebooks/0_start_here.ipynb)" in text
    assert "](cluster.md)" in text
    assert not re.search(
        r"\]\((?!\.\./notebooks/0_start|cluster\.md|https?:)[\w./]+\.(py|csv|cff|lock|md)\)", text
    )  # not on the site
    (tmp_path / "a.md").write_text(
        "![A map](b/c.png) ![A badge](https://example.org/d.svg) [![B](https://example.org/e.svg)](f.py)"
    )
    monkeypatch.setattr(build_site, "HOME", tmp_path)
    assert build_site.relinked("a.md", {}, {}) == "![A map](/pictures/b/c.png) A badge B"
    monkeypatch.undo()
    monkeypatch.setitem(build_site.ADDRESS, "repository", "https://example.org/curlnb")
    assert "](https://example.org/curlnb/blob/main/CITATION.cff)" in build_site.relinked(
        "README.md", guides, titles
    )
