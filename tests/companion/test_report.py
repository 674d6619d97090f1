"""The report page: whole, safe, honest about what is missing, and seen in a real browser."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from browser import CHROMIUM, look
from formulas import refused

from curlnb.__main__ import main
from curlnb.companion import claims, report, typeset
from curlnb.companion.claims import Claim
from curlnb.companion.judgement import judged
from curlnb.companion.ledger import frame, read, record
from curlnb.companion.report import write_report
from curlnb.runs import environment as runs_environment

NOTEBOOK = "2_dcl/5.1_figure4_images"


def gain(id, **columns):
    filled = dict(
        kind="experiment",
        claim=f"what {id} says",
        where="Section 5",
        low=0.0,
        data=("stl10",),
        notebook=NOTEBOOK,
    )
    return Claim(id=id, **filled | columns)


LEMMA = Claim(
    id="arora2019/lemma4.3",
    kind="theorem",
    claim="a bound",
    where="Lemma 4.3",
    statistic="largest ratio",
    notebook=NOTEBOOK,
)
ROWS = [
    LEMMA,
    gain("chuang2020/fig4a", unit="points", effect=4.26, effect_from="Figure 4a", sd=3.0),
    gain("chuang2020/fig4b"),
    gain("chuang2020/lost"),
    gain("chuang2020/open", effect=0.5),
    gain("chuang2020/later"),
    gain("chuang2020/code", kind="released code"),
    gain("chuang2020/never", notebook="", unrun="the paper's data is private"),
]
TABLE = {row.id: row for row in ROWS}
GAIN = [2.3, 3.8, 2.7, 3.1, 2.9]

COMMITTED = claims.table()


@pytest.fixture(autouse=True, scope="module")
def small_table():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "table", lambda: TABLE)
        yield


def measured(id, differences=None, profile="quick", **options):
    return judged(TABLE[id], differences, profile=profile, **({"data": "cifar10-mini"} | options))


def recorded(folder, *rows, file="claims.csv"):
    record(frame(rows), folder / file, NOTEBOOK)


def results(tmp_path):
    """A made-up reproduction with one of everything."""
    folder = tmp_path / "results" / "quick"
    recorded(
        folder,
        measured("chuang2020/fig4a", [x + 1 for x in GAIN]),
        measured("chuang2020/fig4b", GAIN, data="stl10"),
        measured("chuang2020/lost", [-x for x in GAIN], "quick, changed"),
        measured("chuang2020/open", [0.5, -0.4, 0.9, 0.1, 0.3]),
        measured("chuang2020/later", note="needs a GPU"),
        measured("arora2019/lemma4.3", exact="holds", value=0.99812, cases=2000),
    )
    executed = folder / "notebooks" / f"{NOTEBOOK}.ipynb"
    executed.parent.mkdir(parents=True)
    executed.write_text("{}")
    (folder / "logs").mkdir()
    (folder / "logs" / "hcl.log").write_text("Traceback")
    failed = {"state": "failed", "seconds": 480.0, "log": "logs/hcl.log", "error": "out of memory"}
    status = {NOTEBOOK: {"state": "done", "seconds": 398.0}, "3_hcl/3_hard_sampling": failed}
    (folder / "status.json").write_text(json.dumps(status))
    about = {"commit": "abc123", "versions": {"torch": "2.13"}, "total_seconds": 780}
    (folder / "provenance.json").write_text(json.dumps(about))
    return folder


def text_of(page):
    """What a reader sees: without tags, scripts and styles, spaces collapsed."""
    text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(text).split())


def written(folder):
    """The page of a reproduction in a checkout of its own, with the notebooks of this one."""
    root = folder.parent
    (root.parent / "notebooks").symlink_to(runs_environment.home() / "notebooks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURLNB_HOME", str(root.parent))
        patch.setenv("CURLNB_RESULTS", str(root))
        return write_report(folder, folder / "report.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "HEADLINES", ("chuang2020/fig4a", "chuang2020/never"))
        return written(results(tmp_path_factory.mktemp("page")))


def test_page_shows_everything_and_needs_nothing_from_outside(page):
    text = text_of(page)
    for seen in (
        "+3.96 [+3.27, +4.65]",
        "points, n = 5 (8 planned)",
        "effect 4.26 (Figure 4a)",
        "0.9981",
        "2,000 cases",
        "needs a GPU",
        "13 min",
        "{'torch': '2.13'}",
        "quick profile, on cifar10-mini",
        "the paper's data is private",
        "not judged yet",
        "done after 7 min",
    ):
        assert seen in text, seen
    assert text.count("settings changed") == 1
    assert f'href="notebooks/{NOTEBOOK}.ipynb"' in page  # as executed; others as committed
    assert re.search(r'href="[./\w-]*/notebooks/0_start_here.ipynb"', page)
    assert not re.search(r'(?:src|href|url)\s*[=(]\s*["\']?(?:https?:)?//', page)
    assert "default-src 'none'" in page  # and the browser holds it to that


def test_kinds_and_scopes_are_counted_apart(page):
    text = text_of(page)
    assert "all 8 ✓ reproduced 2 ✗ contradicted 1 ? undecided 1 ✓ holds 1 – not run 3" in text
    own = "experiment paper's data, smaller training 1 – – – – experiment stand-in 1 1 1 – –"
    assert own in text


def test_it_stands_in_order(page):
    """Failed notebooks with their log, headlines that lead to their rows, the ledger by paper and
    kind, provenance.
    """
    text = text_of(page)
    order = [
        "3_hcl/3_hard_sampling , failed after 8 min: out of memory",
        "Arora et al. 2019 (CURL): theorems",
        "Chuang et al. 2020 (DCL): experiments",
        "Chuang et al. 2020 (DCL): the released code",
        "This run commit abc123",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert 'href="logs/hcl.log"' in page
    heads = page[page.index('id="headlines"') : page.index('id="the-ledger"')]
    assert "+3.96" in heads
    assert "the paper&#39;s data is private" in heads
    assert re.findall(r'href="#(chuang[^"]*)"', heads) == ["chuang2020/fig4a", "chuang2020/never"]
    assert page.index('id="the-ledger"') < page.index('id="chuang2020/fig4a"')
    assert set(report.HEADLINES) <= set(COMMITTED), "a headline claim is not in the table"


def test_the_best_evidence_stands_first_and_this_run_beside_it(tmp_path):
    folder = results(tmp_path)
    reference = folder.parent / "reference"
    recorded(reference / "quick", measured("chuang2020/fig4a", [0.2, -0.3, 0.4, 0.1, -0.2]))
    recorded(
        reference / "gpu",
        measured("chuang2020/fig4a", [5.0, 5.2, 5.1, 5.3, 5.2], "gpu", data="stl10"),
    )
    recorded(folder.parent / "night", measured("chuang2020/later", GAIN, "night"))
    (reference / "gpu" / "provenance.json").write_text(json.dumps({"device": "some GPU"}))
    text = text_of(written(folder))
    assert "Best evidence This run Reference" in text

    def in_order(id, *order):
        row = text.partition(f"what {id} says")[2].partition("what chuang2020/")[0]
        places = [row.index(words) for words in order]
        assert places == sorted(places)
        return row

    row = in_order(
        "chuang2020/fig4a",
        "reproduced (paper's data, smaller training)",
        "+5.16 [+5.02, +5.30]",
        "gpu profile, on stl10",
        "+3.96 [+3.27, +4.65]",
        "+0.04 [−0.32, +0.40]",
    )
    assert row.count("differs from the best evidence") == 1  # the reference's: smaller than claimed
    in_order("chuang2020/later", "reproduced (stand-in)", "night profile", "not run")
    assert "some GPU" in text


def test_words_from_results_stay_words(tmp_path):
    """A statement, a name or a log line must not be able to change the page."""
    folder, evil = results(tmp_path), "</td><script>alert('x')</script>&amp;\"'"
    x = Claim(id="mine/x", claim=evil, where=evil, low=0, notebook='2_dcl/"><b>')
    rows = frame([judged(x, GAIN, note=evil, data=evil, diagnostic={evil: 1.0})])
    record(rows, folder / "own_claims.csv", x.notebook)
    state = {"state": "failed", "error": evil, "log": "javascript:alert(1)"}
    (folder / "status.json").write_text(json.dumps({NOTEBOOK: state}))
    (folder / "provenance.json").write_text(json.dumps({"device": evil}))
    page = written(folder)
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    # claim, where, data, diagnostic, note, error and device, all of them as text
    assert text_of(page).count("alert('x')") == 7
    assert not re.search(r'(href|src)="(?!#|data:|[\w./%-]+")', page)


def test_a_damaged_ledger_is_set_aside_and_a_damaged_status_is_named(tmp_path):
    folder = results(tmp_path)
    (folder / "claims.csv").write_text("id\n1\n")
    written(folder)
    (folder / "status.json").write_text("{")
    with refused("status.json"):
        write_report(folder, folder / "report.html")


def test_no_folder_at_all_shows_what_could_be_judged(tmp_path):
    folder = tmp_path / "results" / "quick"
    folder.mkdir(parents=True)
    text = text_of(written(folder))
    assert "No claim has been judged in this run yet" in text
    assert "This run left no provenance." in text
    assert "not executed yet" in text
    assert "– not run 8" in text


def test_a_readers_own_claims_have_a_part_of_their_own(tmp_path):
    folder = results(tmp_path)
    own = Claim(id="mine/beta-3", claim="what mine/beta-3 says", low=0, notebook=NOTEBOOK)
    recorded(folder, judged(own, GAIN, profile="quick"), file="own_claims.csv")
    text = text_of(written(folder))
    assert text.index("Claims of your own") < text.index("what mine/beta-3 says")
    assert "experiment stand-in 1 1 1 – –" in text  # they are not counted among the papers'


def test_the_terminal_has_the_counts_in_a_line(tmp_path):
    rows = read(results(tmp_path) / "claims.csv")
    counts = "2 reproduced, 1 contradicted, 1 undecided, 1 holds, 1 not run"
    chance = "chance alone makes at most 0.1 of them wrong on average"
    assert report.verdicts(rows) == f"{counts}; {chance}"
    assert report.verdicts(rows[:0]) == "no claim has been judged"


def test_formulas_are_typeset_and_stay_text(tmp_path):
    for typed, seen in {
        "L_un^!=(f) <= alpha tau+": "<i>L</i><sub>un</sub><sup>≠</sup>(f) ≤ α τ⁺",
        "M^(-1/2)": "<i>M</i><sup>−1/2</sup>",
        "8 eps/(xi^2 - ...)^2": "8 ε/(ξ<sup>2</sup> - ...)<sup>2</sup>",
        "q_beta^- of ball_in_cup": "<i>q</i><sub>β</sub><sup>−</sup> of ball_in_cup",
        "PTC_MR": "PTC_MR",
        "at least 1 - delta, sqrt(6k) R": "at least 1 − δ, √(6k) R",
        "a <b> & 'c'": "a &lt;b&gt; &amp; &#x27;c&#x27;",
    }.items():
        assert typeset.html(typed) == seen
    left = [
        claim.id
        for claim in COMMITTED.values()
        if re.search(r"\^|sqrt|_un|<=|>=", re.sub("<.*?>", "", typeset.html(claim.claim)))
    ]
    assert left == [], "formulas of the table that would stand on the page as they were typed"


def test_the_command_shows_the_committed_references_where_nothing_was_reproduced(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    monkeypatch.setattr(claims, "table", lambda: COMMITTED)
    assert main(["report"]) == 0
    page = Path(capsys.readouterr().out.strip().removeprefix("Report: "))
    assert page.parent == tmp_path
    assert page.stat().st_size < 1e6
    assert all(f'id="{id}"' in page.read_text() for id in COMMITTED)


READ = """
const document = page.document, seen = () => [...document.querySelectorAll("#ledger .entry")]
  .filter(row => row.checkVisibility()).map(row => row.id);
const show = what => document.querySelector(`[data-show="${what}"]`).click();
const told = () => [seen(), page.location.hash, document.querySelector("#found").textContent];
const root = document.documentElement, steps = { folded: seen(), height: root.scrollHeight };
steps.headline = document.querySelector(".headlines .entry")?.getBoundingClientRect().bottom;
document.querySelectorAll("details").forEach(fold => fold.open = true);
Object.assign(steps, { all: seen(), wide: root.scrollWidth > root.clientWidth });
steps.violations = await violations(page);
show("contradicted");
steps.shown = told();
show("");
document.querySelector("#find").value = "STL10 says";
document.querySelector("#find").dispatchEvent(new page.Event("input"));
await pause(600);  // longer than the page waits for the next letter
steps.searched = told();
page.location.hash = "verdict=undecided";  // an address that was sent on
await pause(100);
steps.sent = told();
page.location.hash = "chuang2020/lost";
await pause(100);
steps.folds = [...document.querySelectorAll("details.fold[open]")].map(fold => fold.id);
const heads = [...document.querySelectorAll("#chuang2020-experiment thead button")];
heads.find(button => button.textContent === "Best evidence")?.click();
steps.sorted = seen();
return steps;
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_in_a_browser(tmp_path, monkeypatch):
    """On a desk and on a phone; the committed page is at most ten screens long until it is
    unfolded, with the headline claims on the first.
    """
    folder = results(tmp_path)
    reference = folder.parent / "reference"
    recorded(reference / "gpu", measured("chuang2020/fig4a", [20.0, 50.2, 30.0, 25.0, 41.3], "gpu"))
    written(folder)
    monkeypatch.setattr(claims, "table", lambda: COMMITTED)
    write_report(None, folder / "committed.html")
    found, said = look(folder, ["report.html"], READ, patience=300)
    assert said == []
    last = ("chuang2020/code", "chuang2020/never")
    for steps in found.values():
        assert steps["folded"] == []
        assert steps["all"] == [id for id in TABLE if id not in last] + [*last[::-1]]
        assert not steps["wide"]
        assert steps["violations"] == []
        assert steps["shown"] == [["chuang2020/lost"], "#verdict=contradicted", "1 of 8 claims"]
        assert steps["searched"][:2] == [["chuang2020/fig4b"], "#find=STL10+says"]
        assert steps["sent"][0] == ["chuang2020/open"]
        assert "chuang2020-experiment" in steps["folds"]
    (sorted_wide,) = [steps["sorted"] for name, steps in found.items() if "1280" in name]
    in_order = [f"chuang2020/{slug}" for slug in ("lost", "open", "fig4b", "fig4a")]
    assert [id for id in sorted_wide if id in in_order] == in_order
    script = "return [page.document.documentElement.scrollHeight, page.document.querySelector"
    script += "('.headlines .entry').getBoundingClientRect().bottom]"
    found, said = look(folder, ["committed.html"], script, patience=300)
    assert said == []
    for height, headline in found.values():
        assert height <= 10 * 900
        assert headline < 900
