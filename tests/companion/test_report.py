"""The report page: whole, safe, honest about what is missing, and seen in a real browser."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from curlnb.companion.claims import Claim, claim, exact
from curlnb.companion.ledger import read, record
from curlnb.companion.report import verdict_table, write_report

NOTEBOOK = "2_dcl/5.1_figure4_images"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect width="40" height="20"/></svg>'


def gain(id: str, differences: list[float] | None = None, **options: object) -> Claim:
    return claim(id, options.pop("statement", f"what {id} says"), where="Section 5", differences=differences, above=0, **options)  # type: ignore[arg-type]


def results(tmp_path: Path) -> Path:
    """A made-up reproduction with one of everything."""
    folder = tmp_path / "results" / "quick"
    rows = [
        gain("chuang2020/fig4a", [2.3, 3.8, 2.7], unit="points", published=4.26),
        gain("chuang2020/fig4b", [2.3, 3.8, 2.7], dataset="cifar10-mini", stand_in="STL-10", classes=10, paper_classes=20, tau_plus=0.1),
        gain("chuang2020/lost", [-2.3, -3.8, -2.7]),
        gain("chuang2020/open", [0.5, -0.4, 0.9], effect=0.5, effect_from="pilot"),
        gain("chuang2020/later", note="needs a GPU"),
        exact("arora2019/lemma4.3", "a bound", where="Lemma 4.3", holds=True, value=0.99812, n=2000),
    ]
    record(rows, folder / "claims.csv", notebook=NOTEBOOK, profile="quick")
    for kind in ("tables", "figures", "notebooks", "logs"):
        (folder / kind / "2_dcl").mkdir(parents=True)
    pd.DataFrame({"method": ["biased", "debiased"], "accuracy": [70.123456, 71.2], "published": [80.15, None]}).to_csv(
        folder / "tables" / f"{NOTEBOOK}-probe.csv"
    )
    (folder / "figures" / f"{NOTEBOOK}-negatives.svg").write_text(SVG)
    cells = [{"cell_type": "markdown", "source": ["# Debiased learning on images\n", "text"]}]
    (folder / "notebooks" / f"{NOTEBOOK}.ipynb").write_text(json.dumps({"cells": cells}))
    (folder / "logs" / "hcl.log").write_text("Traceback")
    status = {
        NOTEBOOK: {"state": "done", "seconds": 398.0, "log": "", "error": ""},
        "3_hcl/3_hard_sampling": {"state": "timeout", "seconds": 480.0, "log": "logs/hcl.log", "error": "over its limit of 480 s"},
    }
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "provenance.json").write_text(
        json.dumps({"commit": "abc123", "device": "cpu", "versions": {"torch": "2.13"}, "total_seconds": 780})
    )
    return folder


def text_of(page: str) -> str:
    """What a reader sees: without tags, scripts and styles, spaces collapsed."""
    words: list[str] = []

    class Reader(HTMLParser):
        skipped = 0

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.skipped += tag in ("style", "script")

        def handle_endtag(self, tag: str) -> None:
            self.skipped -= tag in ("style", "script")

        def handle_data(self, data: str) -> None:
            if not self.skipped:
                words.append(data)

    Reader().feed(page)
    return " ".join(" ".join(words).split())


def written(folder: Path, **options: object) -> str:
    return write_report(folder, folder.parent / "reference", folder / "report.html", **options).read_text()  # type: ignore[arg-type]


def test_page_shows_everything_ledger_first(tmp_path) -> None:
    page = written(results(tmp_path))
    text = text_of(page)
    assert text.index("chuang2020/fig4a") < text.index("Debiased learning on images") < text.index("Where the numbers come from")
    for seen in ("+2.9 [+1.0, +4.9]", "points, n = 3", "4.26", "0.9981", "2,000 cases", "needs a GPU", "13 min", "torch 2.13"):
        assert seen in text, seen
    assert re.search(r"\d+ paired seeds give 80% power at 0.5 \(pilot\)", text)
    assert "cifar10-mini, a stand-in for STL-10; 10 classes (paper 20); τ⁺ = 0.1" in text
    assert "70.123 80.15 debiased 71.200" in text  # the table, its long decimals shortened, its bare index dropped
    assert 'href="notebooks/2_dcl/5.1_figure4_images.ipynb"' in page
    assert 'src="data:image/svg+xml;base64,' in page


def test_stand_ins_are_counted_apart(tmp_path) -> None:
    text = text_of(written(results(tmp_path)))
    assert "all 6 ✓ reproduced 2 ✗ contradicted 1 ? inconclusive 1 – not run 1" in text
    assert "counted apart: ✓ reproduced 1" in text


def test_failed_notebooks_come_first_with_their_log(tmp_path) -> None:
    page = written(results(tmp_path))
    text = text_of(page)
    assert text.index("3_hcl/3_hard_sampling") < text.index("The ledger")
    assert "timeout after 8 min: over its limit of 480 s" in text
    assert 'href="logs/hcl.log"' in page


def test_references_stand_beside_the_run(tmp_path) -> None:
    folder = results(tmp_path)
    reference = folder.parent / "reference"
    rows = [gain("chuang2020/fig4a", [0.2, -0.3, 0.4]), gain("robinson2021/gone", [7.0, 7.1])]
    record(rows, reference / "quick" / "claims.csv", notebook=NOTEBOOK, profile="quick")
    record([gain("chuang2020/fig4a", [5.0, 5.2])], reference / "gpu" / "claims.csv", notebook=NOTEBOOK, profile="gpu")
    (reference / "gpu" / "provenance.json").write_text(json.dumps({"device": "some GPU"}))
    text = text_of(written(folder))
    assert "This run Reference GPU reference Published" in text
    own = text[text.index("what chuang2020/fig4a says") : text.index("what chuang2020/fig4b says")]
    assert "inconclusive differs from this run" in own
    assert "+5.1 [+3.8, +6.4]" in own
    assert "judged in the reference, not in this quick run" in text  # a claim that this run lost is not passed over
    assert "some GPU" in text


def test_words_from_results_stay_words(tmp_path) -> None:
    """A statement, a table, a name or a log line must not be able to change the page."""
    folder, evil = results(tmp_path), "</td><script>alert('x')</script>&amp;\"'"
    record([gain("curlnb/x", statement=evil, note=evil, published=evil)], folder / "claims.csv", notebook='2_dcl/"><b>')
    pd.DataFrame({evil: [evil]}).to_csv(folder / "tables" / "2_dcl" / "a&<b>.csv", index=False)
    (folder / "status.json").write_text(json.dumps({NOTEBOOK: {"state": "failed", "error": evil, "log": "javascript:alert(1)"}}))
    page = written(folder, provenance={"device": evil})
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    assert text_of(page).count("alert('x')") == 9  # statement, note, published, head, cell, error and device (twice each), as text
    assert not re.search(r'(href|src)="(?!#|data:|[\w./%-]+")', page)


def test_page_needs_nothing_from_outside(tmp_path) -> None:
    page = written(results(tmp_path))
    assert not re.search(r'(?:src|href|url)\s*[=(]\s*["\']?(?:https?:)?//', page)
    assert "default-src 'none'" in page  # and the browser holds it to that


@pytest.mark.parametrize("missing", ["claims.csv", "status.json", "provenance.json", "tables", "figures", "notebooks", "everything"])
def test_missing_parts_are_said_not_fatal(tmp_path, missing: str) -> None:
    folder = results(tmp_path)
    for path in list(folder.iterdir()) if missing == "everything" else [folder / missing]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = text_of(written(folder))
    expected = {
        "claims.csv": "No claim has been judged yet",
        "status.json": "Debiased learning on images",
        "provenance.json": "This run left no provenance.",
        "everything": "No notebook has been executed yet.",
    }
    assert expected.get(missing, "The ledger") in text
    assert "cannot be read" not in text


def test_no_folder_at_all(tmp_path) -> None:
    assert "No claim has been judged yet" in text_of(written(tmp_path / "quick"))


def test_reference_without_a_run_shows_what_could_be_judged(tmp_path) -> None:
    folder = tmp_path / "results" / "quick"
    record([gain("chuang2020/fig4a", [2.0, 2.1])], folder.parent / "reference" / "quick" / "claims.csv", notebook=NOTEBOOK)
    text = text_of(written(folder))
    assert "No claim has been judged in this run yet." in text
    assert "– not run 1" in text


@pytest.mark.parametrize(
    ("file", "content"), [("status.json", "{"), ("status.json", "[]"), ("claims.csv", "id\n1\n"), ("provenance.json", "nul")]
)
def test_damaged_files_are_named_on_the_page(tmp_path, file: str, content: str) -> None:
    folder = results(tmp_path)
    (folder / file).write_text(content)
    assert f"quick/{file} cannot be read: " in text_of(written(folder))


def test_a_readers_own_claims_have_a_part_of_their_own(tmp_path) -> None:
    folder = results(tmp_path)
    record([gain("mine/beta-3", [1.0, 1.1])], folder / "own_claims.csv", notebook=NOTEBOOK, profile="quick")
    text = text_of(written(folder))
    assert text.index("Claims of your own") < text.index("what mine/beta-3 says")
    assert "all 6 ✓ reproduced 2" in text  # they are not counted among the papers'


def test_long_tables_say_what_is_left_out(tmp_path) -> None:
    folder = results(tmp_path)
    pd.DataFrame({"step": range(1234)}).to_csv(folder / "tables" / f"{NOTEBOOK}-steps.csv", index=False)
    page = written(folder)
    assert "the first 200 of 1234 rows" in text_of(page)
    assert f'href="tables/{NOTEBOOK}-steps.csv"' in page


def test_small_numbers_in_a_table_do_not_turn_into_zero(tmp_path) -> None:
    folder = results(tmp_path)
    pd.DataFrame({"p": [0.51234567, 1.2345e-9]}).to_csv(folder / "tables" / f"{NOTEBOOK}-p.csv", index=False)
    text = text_of(written(folder))
    assert "0.5123" in text
    assert "1.234e-09" in text or "1.235e-09" in text


def test_terminal_table(tmp_path) -> None:
    folder = results(tmp_path)
    lines = verdict_table(read(folder / "claims.csv")).splitlines()
    assert lines[0] == "reproduced             arora2019/lemma4.3  0.9981, 2,000 cases"
    assert "reproduced             chuang2020/fig4a    +2.9 [+1.0, +4.9] points, n = 3" in lines
    assert lines[-1] == "2 reproduced, 1 contradicted, 1 inconclusive, 1 not run, 1 reproduced (stand-in)"
    assert max(map(len, lines)) <= 100
    assert verdict_table(read(folder / "absent.csv")) == "no claim has been judged"


CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
PROBE = """
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, rows = () => [...page.querySelectorAll("#ledger .row")].filter(row => row.getClientRects().length);
  const found = { ids: rows().map(row => row.id), width: page.documentElement.scrollWidth, room: page.documentElement.clientWidth };
  page.querySelector('[data-show="contradicted"]').click();
  found.contradicted = rows().map(row => row.id);
  page.querySelector('[data-show=""]').click();
  const sort = [...page.querySelectorAll("#ledger thead button")].find(button => button.textContent === "This run");
  sort.click();
  found.sorted = rows().map(row => row.id);
  found.figure = page.querySelector("figure img").naturalWidth;
  document.body.dataset.found = JSON.stringify(found);
};
</script>
"""


def browse(page: str, width: int, folder: Path) -> dict:
    """Open the page in a frame `width` px wide (the browser's own window has a least width) and return what PROBE found."""
    harness = folder / "harness.html"
    frame = f'<iframe style="width: {width}px; height: 2000px; border: 0" srcdoc="{html.escape(page)}"></iframe>'
    harness.write_text(f"<!doctype html><meta charset=utf-8><body>{frame}{PROBE}", encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    command = [str(CHROMIUM), *flags.split(), "--disable-sync", f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", harness.as_uri()], capture_output=True, text=True, timeout=60
    )
    assert "CONSOLE" not in done.stderr, done.stderr  # a script error, or a resource that the page's policy refused
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found, f"{done.stdout[-500:]}\n{done.stderr[-500:]}"
    return json.loads(html.unescape(found[1]))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser(tmp_path, width: int) -> None:
    folder = results(tmp_path)
    long = {f"a column with a long name {i}": [1.5] for i in range(20)}
    pd.DataFrame(long).to_csv(folder / "tables" / f"{NOTEBOOK}-wide.csv", index=False)
    reference = folder.parent / "reference"
    for profile in ("quick", "gpu"):
        record([gain("chuang2020/fig4a", [20.0, 50.2])], reference / profile / "claims.csv", notebook=NOTEBOOK, profile=profile)
    found = browse(written(folder), width, tmp_path)
    chuang = [f"chuang2020/{slug}" for slug in ("fig4a", "fig4b", "later", "lost", "open")]
    assert found["ids"] == ["arora2019/lemma4.3", *chuang]
    assert found["width"] <= found["room"] <= width  # wide tables scroll inside their box, the page does not
    assert found["contradicted"] == ["chuang2020/lost"]
    assert found["sorted"][1:] == [f"chuang2020/{slug}" for slug in ("lost", "open", "fig4a", "fig4b", "later")]
    assert found["figure"] > 0  # the picture is inside the page and could be drawn
