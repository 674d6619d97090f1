"""The ledger: intervals and power as statistics has them, verdicts as the design words them, a file that loses nothing."""

import dataclasses
import itertools
import math
import multiprocessing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from curlnb.companion import ledger, notebook
from curlnb.companion.claims import Claim, claim, display, exact, paired, verdicts
from curlnb.companion.ledger import read, record, summary
from curlnb.companion.statistics import power, seeds_needed, t_interval, verdict

ABOVE_0, MARGIN = (0.0, math.inf), (-1.0, 1.0)


def judged(differences: list[float] | None = None, **options: object) -> Claim:
    """A claim with the required words filled in."""
    sides = {} if {"above", "below", "within"} & set(options) else {"above": 0.0}
    return claim("chuang2020/fig4a", "debiased beats biased", where="Figure 4a", differences=differences, **sides, **options)  # type: ignore[arg-type]


# --- statistics


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_interval_is_the_t_interval(n: int) -> None:
    x = np.random.default_rng(n).normal(3, 2, n)
    expected = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    np.testing.assert_allclose(t_interval(x), (x.mean(), expected.low, expected.high), rtol=1e-12)


def test_interval_holds_the_mean_95_times_in_100() -> None:
    """The promise behind every verdict. 10,000 studies of five seeds: the share has a standard error of 0.0022."""
    studies = np.random.default_rng(0).normal(1.5, 3.0, (10_000, 5))
    covered = [low <= 1.5 <= high for _, low, high in map(t_interval, studies)]
    assert np.mean(covered) == pytest.approx(0.95, abs=4 * 0.0022)


@pytest.mark.parametrize(("n", "d"), [(2, 0.3), (3, 2.5), (5, 1.0), (10, 0.1), (34, 0.5), (500, 0.1)])
def test_power_is_the_noncentral_t(n: int, d: float) -> None:
    """Two-sided paired t-test at 5%."""
    t = stats.t.isf(0.025, n - 1)
    expected = stats.nct.sf(t, n - 1, d * math.sqrt(n)) + stats.nct.cdf(-t, n - 1, d * math.sqrt(n))
    assert power(n, d, 1.0, ABOVE_0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("d", "expected"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_as_in_the_tables(d: float, expected: int) -> None:
    """Cohen's small, medium, large: the sample sizes that power tables and G*Power give for 80%, two-sided 5%, paired."""
    assert seeds_needed(d, 1.0) == expected
    assert seeds_needed(-d * 7, 7.0, (-math.inf, 0.0)) == expected  # neither unit nor direction matters
    assert seeds_needed(10 + d, 1.0, (10.0, math.inf)) == expected  # nor where the threshold is


def test_power_of_a_margin_agrees_with_simulation() -> None:
    """No closed form to compare with: 40,000 simulated studies, whose share has a standard error of at most 0.0025."""
    generator = np.random.default_rng(1)
    for n, effect in [(6, 0.0), (12, 0.4), (8, 1.9)]:
        x = generator.normal(effect, 1.0, (40_000, n))
        half = stats.t.isf(0.025, n - 1) * x.std(1, ddof=1) / math.sqrt(n)
        low, high = x.mean(1) - half, x.mean(1) + half
        inside, outside = (low > -1) & (high < 1), (low > 1) | (high < -1)
        assert power(n, effect, 1.0, MARGIN) == pytest.approx((inside if abs(effect) < 1 else outside).mean(), abs=0.01)


@pytest.mark.parametrize(("effect", "region"), [(0.4, ABOVE_0), (0.4, MARGIN), (1.3, MARGIN), (0.0, MARGIN)])
def test_seeds_needed_is_the_least(effect: float, region: tuple[float, float]) -> None:
    n = seeds_needed(effect, 1.0, region)
    assert n is not None
    assert power(n - 1, effect, 1.0, region) < 0.8 <= power(n, effect, 1.0, region)


def test_power_where_scipys_noncentral_t_is_nan() -> None:
    assert power(2, 100.0, 1.0) == pytest.approx(1.0, abs=0.01)
    assert seeds_needed(100.0, 1.0) == 2


def test_no_number_of_seeds_settles_an_effect_on_the_bound() -> None:
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(1.0, 1.0, MARGIN) is None
    assert seeds_needed(1e-5, 1.0) is None  # a finite number, but beyond a million


# --- verdicts


@pytest.mark.parametrize(
    ("interval", "region", "expected"),
    [
        ((0.1, 2.0), (0, math.inf), "reproduced"),
        ((-2.0, -0.1), (0, math.inf), "contradicted"),
        ((-0.1, 2.0), (0, math.inf), "inconclusive"),
        ((0.0, 2.0), (0, math.inf), "inconclusive"),  # touching the threshold holds it
        ((-2.0, 0.0), (0, math.inf), "inconclusive"),
        ((-2.0, -0.1), (-math.inf, 0), "reproduced"),
        ((-0.5, 0.5), (-1, 1), "reproduced"),
        ((-0.5, 1.0), (-1, 1), "inconclusive"),
        ((1.1, 2.0), (-1, 1), "contradicted"),
        ((-3.0, -1.1), (-1, 1), "contradicted"),
        ((-3.0, 3.0), (-1, 1), "inconclusive"),  # wider than the margin: nothing is known
        ((math.nan, math.nan), (0, math.inf), "inconclusive"),
        ((None, None), (0, math.inf), "inconclusive"),
    ],
)
def test_verdict(interval: tuple[float | None, float | None], region: tuple[float, float], expected: str) -> None:
    assert verdict(*interval, region) == expected


@given(st.floats(-10, 10), st.floats(0, 10), st.floats(-10, 10))
def test_a_claim_and_its_opposite_never_both_hold(low: float, width: float, threshold: float) -> None:
    opposite = {"reproduced": "contradicted", "contradicted": "reproduced", "inconclusive": "inconclusive"}
    interval = (low, low + width)
    assert verdict(*interval, (threshold, math.inf)) == opposite[verdict(*interval, (-math.inf, threshold))]


def test_verdicts_on_differences() -> None:
    assert judged([2.3, 3.8, 2.7]).verdict == "reproduced"  # the pilot's hard over biased
    assert judged([2.3, 3.8, 2.7], below=0).verdict == "contradicted"
    assert judged([0.5, 0.5, 0.4, -0.3], above=0).verdict == "inconclusive"
    assert judged([0.1, -0.2, 0.1], within=(-2, 2)).verdict == "reproduced"
    assert judged([5.1, 5.2, 5.1], within=(-2, 2)).verdict == "contradicted"


def test_interval_computed_otherwise() -> None:
    row = judged(interval=(1.03, 1.01, 1.05), within=(0.9, 1.1))
    assert (row.verdict, row.mean, row.n) == ("reproduced", 1.03, None)
    assert "no number of seeds" in judged(interval=(0.1, -0.1, 0.2)).note  # inconclusive without a number must say why


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        ([3.0], "one seed gives no interval"),
        ([1.0, math.nan, math.inf], "2 of 3 differences are not finite"),
        ([1.5, 1.5, 1.5], "all differences are equal"),
        ([0.0, 0.0], "all differences are equal"),
        ([0.1, 0.1, 0.1], "all differences are equal"),  # whose computed mean is not 0.1
    ],
)
def test_inconclusive_gives_its_reason(differences: list[float], reason: str) -> None:
    """No interval, no verdict: a lucky single seed or one run counted thrice must not reproduce anything."""
    row = judged(differences)
    assert row.verdict == "inconclusive"
    assert row.low is row.high is row.seeds_needed is row.power is None
    assert reason in row.note


def test_inconclusive_says_how_many_seeds_would_settle_it() -> None:
    x = [0.5, 0.6, -0.4, 0.9, 0.4]
    sd = float(np.std(x, ddof=1))
    stated, observed = judged(x, effect=0.5, effect_from="pilot"), judged(x)
    assert (stated.seeds_needed, stated.effect, stated.effect_from) == (seeds_needed(0.5, sd), 0.5, "pilot")
    assert (observed.seeds_needed, observed.effect_from) == (seeds_needed(0.4, sd), "observed mean")
    assert stated.power == power(5, 0.5, sd)
    assert f"{stated.seeds_needed} paired seeds give 80% power at 0.5 (pilot)" in verdicts([stated])
    assert "no number of seeds" in judged([1.0, -1.0]).note  # the observed mean is on the threshold
    assert judged([5.0, 5.1, 5.2]).note == ""  # nothing to excuse where the claim is settled


def test_stand_in_is_part_of_the_verdict_and_counted_apart() -> None:
    about: dict = dict(dataset="cifar10-mini", classes=10, paper_classes=10, tau_plus=0.1, paper_tau_plus=0.1)
    rows = [judged([1.0, 1.1], stand_in="STL-10", **about), judged([1.0, 1.1], **about), judged(note="needs a GPU", stand_in="STL-10")]
    assert [row.verdict for row in rows] == ["reproduced (stand-in)", "reproduced", "not run"]
    counts = summary(ledger.table(rows))
    assert counts.loc["all"].to_dict() == {
        "reproduced": 1,
        "contradicted": 0,
        "inconclusive": 0,
        "not run": 1,
        "reproduced (stand-in)": 1,
        "contradicted (stand-in)": 0,
        "inconclusive (stand-in)": 0,
    }
    assert list(counts.index) == ["chuang2020", "all"]
    assert int(summary(ledger.table([])).to_numpy().sum()) == 0


def test_exact_claims() -> None:
    holds = exact("arora2019/lemma4.3", "the supervised loss is bounded", where="Lemma 4.3", holds=True, value=0.99812, n=2000)
    fails = exact("robinson2021/eq2", "q splits by class", where="Equation 2", holds=False, value=1.12)
    assert (holds.verdict, fails.verdict) == ("reproduced", "contradicted")
    assert "0.9981, 2,000 cases" in verdicts([holds])  # two decimals would hide the slack
    with pytest.raises(ValueError, match="not finite"):
        exact("arora2019/lemma4.3", "", where="", holds=True, value=math.nan)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(differences=[1.0], above=0, below=0), "exactly one of above, below and within"),
        (dict(differences=[1.0], within=(1, -1)), "is empty"),
        (dict(differences=[]), r"shape \[0\].*one a seed"),
        (dict(differences=[[1.0, 2.0]]), r"shape \[1, 2\]"),
        (dict(), "say in note= why it was not run"),
        (dict(differences=[1.0, 2.0], interval=(1, 0, 2)), "not both"),
        (dict(interval=(3, 0, 2)), r"\(mean, low, high\) with low <= mean <= high"),
        (dict(differences=[1.0, 2.0], effect=-1.0), r"effect -1 is not on the claimed side \(> 0\)"),
        (dict(differences=[1.0, 2.0], within=(-1, 1), effect=1.0), "between -1 and 1"),
    ],
)
def test_bad_claims_fail_in_one_line(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        judged(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("id", ["fig4a", "chaung2020/fig4a", "chuang2020/", "chuang2020/fig 4a", "chuang2020/a/b"])
def test_ids_are_paper_and_slug(id: str) -> None:
    with pytest.raises(ValueError, match="should read paper/slug"):
        claim(id, "", where="", above=0, note="x")


def test_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="taus"):
        judged([1.0, 2.0], taus=0.1)


# --- pairs


def runs() -> pd.DataFrame:
    rows = [
        dict(loss=loss, seed=seed, knn=40 + seed + 2 * (loss == "hard")) for loss, seed in itertools.product(("biased", "hard"), (2, 0, 1))
    ]
    return pd.DataFrame(rows)


def test_pairs_are_matched_by_seed_whatever_the_order() -> None:
    shuffled = runs().sample(frac=1, random_state=3)
    difference = paired(shuffled, "knn", "loss", "hard", "biased")
    assert difference.to_list() == [2, 2, 2]  # pairing by position would mix the seeds' levels in
    assert list(difference.index) == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.drop(index=0), r"seeds of one arm only, 'hard' or 'biased': 2"),
        (lambda r: pd.concat([r, r.head(1)]), r"several runs with loss 'biased' and seed 2"),
        (lambda r: r[r["loss"] == "hard"], "no run with loss 'biased': one of 'hard'"),
        (lambda r: r.drop(columns="knn"), "no column 'knn'"),
    ],
)
def test_lost_and_doubled_runs_are_errors(change, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        paired(change(runs()), "knn", "loss", "hard", "biased")


# --- the file


def some_rows() -> list[Claim]:
    return [
        judged([1.23456789, 2.0, 1.5], unit="points", published=4.26, dataset="cifar10-mini", stand_in="STL-10", classes=10, tau_plus=0.1),
        exact("arora2019/lemma4.3", 'a, "quoted"\nstatement', where="Lemma 4.3", holds=True, value=1 / 3, n=2000),
        claim("robinson2021/dd", "NA", where="Section 5.2", above=0, note="needs a GPU", published="1 to 2"),
        claim("curlnb/vanish", "the gain is gone", where="", within=(-1, 1), differences=[0.1, 0.9, 1.3]),
    ]


def test_what_is_read_is_what_was_recorded(tmp_path) -> None:
    path = tmp_path / "quick" / "claims.csv"
    record(some_rows(), path, notebook="2_dcl/5.1", profile="quick")
    expected = ledger.table([dataclasses.replace(row, notebook="2_dcl/5.1", profile="quick") for row in some_rows()])
    pd.testing.assert_frame_equal(read(path), expected)
    assert list(expected["paper"]) == ["arora2019", "chuang2020", "robinson2021", "curlnb"]
    assert expected["mean"][0] == 0.333333  # six significant digits
    assert expected["published"].to_list() == ["", "4.26", "1 to 2", ""]
    assert expected["statement"].to_list()[0] == 'a, "quoted" statement'  # one claim, one line in a diff
    assert len(path.read_text().splitlines()) == 5


def test_recording_again_changes_nothing(tmp_path) -> None:
    """Committed ledgers must differ only where results do, whatever the order of the notebooks."""
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    record(some_rows(), path, notebook="x")
    before = path.read_bytes()
    record(some_rows()[:2], path, notebook="x")
    assert path.read_bytes() == before
    for row in reversed(some_rows()):
        record([row], other, notebook="x")
    assert other.read_bytes() == before


def test_a_row_replaces_its_own_and_no_other(tmp_path) -> None:
    path = tmp_path / "claims.csv"
    record(some_rows(), path, notebook="x")
    record([judged([1.0, -1.0, 0.0])], path, notebook="x")
    record([judged([9.0, 9.1])], path, notebook="y")  # one claim judged by two notebooks is two rows
    table = read(path)
    assert table[table["id"] == "chuang2020/fig4a"]["verdict"].to_list() == ["inconclusive", "reproduced"]
    assert len(table) == 5
    record([judged([9.0, 9.1])], path, notebook="x", replace_notebook=True)  # the claims that x no longer makes go
    assert sorted(zip(read(path)["notebook"], read(path)["id"], strict=True)) == [("x", "chuang2020/fig4a"), ("y", "chuang2020/fig4a")]
    record([], path, notebook="x", replace_notebook=True)
    assert read(path)["notebook"].to_list() == ["y"]


def record_one_by_one(notebook: str, path: Path) -> None:
    for i in range(20):
        record([claim(f"curlnb/{notebook}-{i}", "", where="", above=0, note="x")], path, notebook=notebook)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_notebooks_that_end_at_once_lose_nothing(tmp_path) -> None:
    path = tmp_path / "claims.csv"
    start = multiprocessing.get_context("fork").Process  # forked, since importing the package afresh takes seconds
    processes = [start(target=record_one_by_one, args=(name, path)) for name in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(read(path)) == 40
    assert {file.name for file in tmp_path.iterdir()} <= {"claims.csv", "claims.csv.lock"}  # no half-written file left


def test_a_failed_write_leaves_the_old_ledger(tmp_path, monkeypatch) -> None:
    path = tmp_path / "claims.csv"
    record(some_rows(), path, notebook="x")
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(OSError, match="No space"):
        record([judged([9.0, 9.1])], path, notebook="x")
    assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} <= {"claims.csv", "claims.csv.lock"}


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    path.write_bytes(
        {"empty": b"", "cut": whole[: len(whole) // 2], "binary": b"\xff\x00\xfe" * 50, "of other columns": b"id,verdict\nx,y\n"}.get(
            how, whole.replace(b"reproduced", b"proved")
        )
    )


@pytest.mark.parametrize("how", ["empty", "cut", "binary", "of other columns", "with an unknown verdict"])
def test_a_damaged_ledger_is_named_in_one_line_and_set_aside(tmp_path, how: str) -> None:
    """A notebook that has trained for hours must still be able to hand in its claims."""
    path = tmp_path / "claims.csv"
    record(some_rows(), path, notebook="x")
    damage(path, how)
    damaged = path.read_bytes()
    with pytest.raises(ValueError, match=r"claims.csv is no ledger") as error:
        read(path)
    assert "\n" not in str(error.value)
    with pytest.warns(UserWarning, match=r"claims.csv is no ledger.*kept as claims.csv.damaged"):
        record([judged([1.0, 1.1])], path, notebook="y")
    assert read(path)["notebook"].to_list() == ["y"]
    assert (tmp_path / "claims.csv.damaged").read_bytes() == damaged
    assert read(tmp_path / "absent.csv").empty


def test_a_readers_own_claims_stand_in_a_table_of_their_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    settings = notebook.settings("x", "quick", quick={})
    own = claim("mine/beta-3", "β = 3 beats β = 1", where="", above=0, differences=[1.0, 1.1])
    shown = notebook.judge(settings, [own, judged([1.0, 1.2])])
    assert "mine/beta-3: reproduced" in repr(shown)
    assert read(tmp_path / "quick" / "claims.csv")["paper"].to_list() == ["chuang2020"]
    assert read(tmp_path / "quick" / "own_claims.csv")["paper"].to_list() == ["mine"]
    notebook.judge(settings, [judged([1.0, 1.2])])
    assert read(tmp_path / "quick" / "own_claims.csv").empty


def test_record_needs_a_notebook_and_one_judgement_an_id(tmp_path) -> None:
    with pytest.raises(ValueError, match="names no notebook"):
        record([judged([1.0, 2.0])], tmp_path / "claims.csv")
    with pytest.raises(ValueError, match="judged twice"):
        record([judged([1.0, 2.0]), judged([1.0, 3.0])], tmp_path / "claims.csv", notebook="x")


# --- shown


def test_verdict_lines_are_stable_text() -> None:
    """They are compared cell by cell in CI: rounded, one line a claim, no minus before a rounded zero."""
    text = verdicts([judged([-0.004, 0.003, -0.002, 0.001], unit="points"), *some_rows()[1:3]])
    assert text.splitlines()[0].startswith("chuang2020/fig4a: inconclusive; mean paired difference +0.00 [-0.01, +0.00] points, n = 4; ")
    assert text.splitlines()[2] == "robinson2021/dd: not run; needs a GPU"
    assert len(text.splitlines()) == 3


def test_displayed_table_escapes_and_has_the_same_text_everywhere() -> None:
    row = claim("curlnb/x", "<script>alert(1)</script> & co", where="", above=0, note="x")
    shown = display([row])
    assert "<script>" not in shown._repr_html_()
    assert repr(shown) == verdicts([row])  # not an object's address, which would differ from run to run
