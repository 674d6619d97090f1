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

from curlnb.companion import claims
from curlnb.companion.claims import Claim
from curlnb.companion.ledger import frame, judged, read, record
from curlnb.companion.report import verdict_table, write_report

NOTEBOOK = "2_dcl/5.1_figure4_images"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect width="40" height="20"/></svg>'


def gain(id: str, **columns: object) -> Claim:
    filled = dict(kind="experiment", claim=f"what {id} says", where="Section 5", low=0.0, data="stl10", notebook=NOTEBOOK)
    return Claim(id=id, **filled | columns)  # type: ignore[arg-type]


TABLE = {
    row.id: row
    for row in [
        Claim(id="arora2019/lemma4.3", kind="theorem", claim="a bound", where="Lemma 4.3", statistic="largest ratio", notebook=NOTEBOOK),
        gain("chuang2020/fig4a", unit="points", effect=4.26, effect_from="Figure 4a", seeds=8),
        gain("chuang2020/fig4b"),
        gain("chuang2020/lost"),
        gain("chuang2020/open", effect=0.5),
        gain("chuang2020/later"),
        gain("chuang2020/code", kind="released code"),
        gain("chuang2020/never", notebook="", unrun="the paper's data is private"),
    ]
}
GAIN = [2.3, 3.8, 2.7, 3.1, 2.9]


@pytest.fixture(autouse=True)
def small_table(monkeypatch) -> None:
    monkeypatch.setattr(claims, "table", lambda: TABLE)


def measured(id: str, differences: list[float] | None = None, profile: str = "quick", **options: object) -> dict:
    return judged(TABLE[id], differences, profile=profile, **({"data": "cifar10-mini"} | options))  # type: ignore[arg-type]


def recorded(folder: Path, *rows: dict, file: str = "claims.csv") -> None:
    record(frame(rows), folder / file, NOTEBOOK)


def results(tmp_path: Path) -> Path:
    """A made-up reproduction with one of everything."""
    folder = tmp_path / "results" / "quick"
    recorded(
        folder,
        measured("chuang2020/fig4a", [x + 1 for x in GAIN]),
        measured("chuang2020/fig4b", GAIN, data="stl10"),
        measured("chuang2020/lost", [-x for x in GAIN]),
        measured("chuang2020/open", [0.5, -0.4, 0.9, 0.1, 0.3]),
        measured("chuang2020/later", note="needs a GPU"),
        measured("arora2019/lemma4.3", exact="holds", value=0.99812, cases=2000),
    )
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
    for seen in ("+3.96 [+3.27, +4.65]", "points, n = 5 (8 planned)", "effect 4.26 (Figure 4a)", "0.9981", "2,000 cases", "needs a GPU"):
        assert seen in text, seen
    for seen in ("13 min", "torch 2.13", "quick profile, on cifar10-mini", "the paper's data is private", "not judged yet"):
        assert seen in text, seen
    assert "70.123 80.15 debiased 71.200" in text  # the table, its long decimals shortened, its bare index dropped
    assert 'href="notebooks/2_dcl/5.1_figure4_images.ipynb"' in page
    assert 'src="data:image/svg+xml;base64,' in page


def test_kinds_and_scopes_are_counted_apart(tmp_path) -> None:
    text = text_of(written(results(tmp_path)))
    assert "all 8 ✓ reproduced 2 ✗ contradicted 1 ? undecided 1 ✓ holds 1 – not run 3" in text
    assert "experiment paper's data, smaller training 1 – – – – experiment stand-in 1 1 1 – –" in text
    assert "chance alone makes at most 0.1 of them wrong on average" in text
    titles = ["Arora et al. 2019 (CURL): theorems", "Chuang et al. 2020 (DCL): experiments", "Chuang et al. 2020 (DCL): the released code"]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


def test_failed_notebooks_come_first_with_their_log(tmp_path) -> None:
    page = written(results(tmp_path))
    text = text_of(page)
    assert text.index("3_hcl/3_hard_sampling") < text.index("The ledger")
    assert "timeout after 8 min: over its limit of 480 s" in text
    assert 'href="logs/hcl.log"' in page


def test_the_best_evidence_stands_first_and_this_run_beside_it(tmp_path) -> None:
    folder = results(tmp_path)
    reference = folder.parent / "reference"
    recorded(reference / "quick", measured("chuang2020/fig4a", [0.2, -0.3, 0.4, 0.1, -0.2]))
    recorded(reference / "gpu", measured("chuang2020/fig4a", [5.0, 5.2, 5.1, 5.3, 5.2], "gpu", data="stl10"))
    recorded(folder.parent / "night", measured("chuang2020/later", GAIN, "night"))
    (reference / "gpu" / "provenance.json").write_text(json.dumps({"device": "some GPU"}))
    text = text_of(written(folder))
    assert "Best evidence This run Reference" in text
    own = text[text.index("what chuang2020/fig4a says") : text.index("what chuang2020/fig4b says")]
    best, run, committed = (
        own.index("+5.16 [+5.02, +5.30]"),
        own.index("+3.96 [+3.27, +4.65]"),
        own.index("+0.04 [-0.32, +0.40]".replace("-", "−")),
    )
    assert best < run < committed
    assert own.index("reproduced (paper's data, smaller training)") < best < own.index("gpu profile, on stl10") < run
    assert own.count("differs from the best evidence") == 1  # the reference's: smaller than claimed
    later = text[text.index("what chuang2020/later says") : text.index("what chuang2020/never says")]
    assert later.index("reproduced (stand-in)") < later.index("night profile") < later.index("not run")
    assert "some GPU" in text


def test_words_from_results_stay_words(tmp_path) -> None:
    """A statement, a table, a name or a log line must not be able to change the page."""
    folder, evil = results(tmp_path), "</td><script>alert('x')</script>&amp;\"'"
    x = Claim(id="mine/x", claim=evil, where=evil, low=0, notebook='2_dcl/"><b>')
    record(frame([judged(x, GAIN, note=evil, data=evil, diagnostic={evil: 1.0})]), folder / "own_claims.csv", x.notebook)
    pd.DataFrame({evil: [evil]}).to_csv(folder / "tables" / "2_dcl" / "a&<b>.csv", index=False)
    (folder / "status.json").write_text(json.dumps({NOTEBOOK: {"state": "failed", "error": evil, "log": "javascript:alert(1)"}}))
    page = written(folder, provenance={"device": evil})
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    found = text_of(page).count("alert('x')")
    assert found == 10  # claim, where, data, diagnostic, note, head, cell and device, and error twice, as text
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
        "claims.csv": "No claim has been judged in this run yet",
        "status.json": "Debiased learning on images",
        "provenance.json": "This run left no provenance.",
        "everything": "No notebook has been executed yet.",
    }
    assert expected.get(missing, "The ledger") in text
    assert "cannot be read" not in text


def test_no_folder_at_all_shows_what_could_be_judged(tmp_path) -> None:
    text = text_of(written(tmp_path / "quick"))
    assert "No claim has been judged in this run yet" in text
    assert "– not run 8" in text


@pytest.mark.parametrize(
    ("file", "content"), [("status.json", "{"), ("status.json", "[]"), ("claims.csv", "id\n1\n"), ("provenance.json", "nul")]
)
def test_damaged_files_are_named_on_the_page(tmp_path, file: str, content: str) -> None:
    folder = results(tmp_path)
    (folder / file).write_text(content)
    assert f"quick/{file} cannot be read: " in text_of(written(folder))


def test_a_readers_own_claims_have_a_part_of_their_own(tmp_path) -> None:
    folder = results(tmp_path)
    own = Claim(id="mine/beta-3", claim="what mine/beta-3 says", low=0, notebook=NOTEBOOK)
    recorded(folder, judged(own, GAIN, profile="quick"), file="own_claims.csv")
    text = text_of(written(folder))
    assert text.index("Claims of your own") < text.index("what mine/beta-3 says")
    assert "experiment stand-in 1 1 1 – –" in text  # they are not counted among the papers'
    assert "\nours" not in text


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
    assert lines[0] == f"{'holds':43}  arora2019/lemma4.3  0.9981, 2,000 cases"
    assert f"{'reproduced (stand-in)':43}  chuang2020/fig4a    +3.96 [+3.27, +4.65] points, n = 5" in lines
    counts, chance = (
        "2 reproduced, 1 contradicted, 1 undecided, 1 holds, 1 not run",
        "chance alone makes at most 0.1 of them wrong on average",
    )
    assert lines[-1] == f"{counts}; {chance}"
    assert max(map(len, lines[:-1])) <= 100
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
  const sort = [...page.querySelectorAll("#ledger thead button")].find(button => button.textContent === "Best evidence");
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
    recorded(reference / "gpu", measured("chuang2020/fig4a", [20.0, 50.2, 30.0, 25.0, 41.3], "gpu"))
    found = browse(written(folder), width, tmp_path)
    assert found["ids"] == [id for id in TABLE if id not in ("chuang2020/code", "chuang2020/never")] + [
        "chuang2020/never",
        "chuang2020/code",
    ]
    assert found["width"] <= found["room"] <= width  # wide tables scroll inside their box, the page does not
    assert found["contradicted"] == ["chuang2020/lost"]
    assert found["sorted"][1:5] == [f"chuang2020/{slug}" for slug in ("lost", "open", "fig4b", "fig4a")]
    assert found["figure"] > 0  # the picture is inside the page and could be drawn
