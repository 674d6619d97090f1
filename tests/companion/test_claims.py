"""Claims: intervals and power as statistics has them, verdicts as the design words them, a ledger
that loses nothing.
"""

import functools
import json
import math
import re
import threading
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from formulas import refused
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from curlnb.companion import claims, formatting, ledger, notebook, notebooks
from curlnb.companion.claims import Claim, read_table
from curlnb.companion.formatting import ClaimsTable, line
from curlnb.companion.judgement import again, judged
from curlnb.companion.ledger import Ledger, frame, read, record, records
from curlnb.companion.statistics import (
    correlation_interval,
    power,
    seeds_needed,
    t_interval,
    verdict,
)

INF = math.inf
ABOVE_0, MARGIN = (0.0, INF), (-1.0, 1.0)
NOTEBOOK = "2_dcl/5.1_figure4_images"


def gain(id="chuang2020/fig4a", **columns):
    """A claim of a gain with the required words filled in."""
    filled = dict(kind="experiment", claim="a gain", where="Figure 4a", unit="points", low=0.0)
    return Claim(id=id, **filled | dict(data=("stl10",), notebook=NOTEBOOK) | columns)


def theory(**columns):
    filled = dict(id="arora2019/lemma4.3", kind="theorem", claim="a bound", where="Lemma 4.3")
    return Claim(**filled | dict(statistic="largest ratio", notebook=NOTEBOOK) | columns)


BOUND, GAIN, SAME, EQUAL, UNRUN, OWN = TABLE = [
    theory(),
    gain(
        effect=4.26,
        effect_from="Figure 4a",
        sd=3.0,  # for which eight seeds are planned
        diagnostic=("untrained encoder", "AUC"),
        group="one measurement",
    ),
    gain("chuang2020/s55", effect=4.26, group="one measurement"),
    gain("chuang2020/equal", low=-2.0, high=2.0, effect=0.0),
    gain("robinson2021/dd", notebook="", unrun="no machine holds it"),
    gain("curlnb/vanish", kind="ours", data=("cifar10-mini",)),
]
FIVE = [2.3, 3.8, 2.7, 3.1, 2.9]
MINI = dict(data="cifar10-mini")
ON = dict(data="stl10", diagnostic={"untrained encoder": 37.5, "AUC": "0.71"})


@pytest.fixture(autouse=True)
def small_table(monkeypatch):
    monkeypatch.setattr(claims, "table", lambda: {row.id: row for row in TABLE})


@pytest.fixture
def book(tmp_path, monkeypatch):
    """The ledger of a notebook at quick, in a folder of its own, without committed references."""
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    return notebook.ledger(notebook.Settings(NOTEBOOK, "quick", {}))


def committed(book, profile, *given, **measured):
    """Judge a claim in the committed reference of a profile."""
    reference = Ledger(NOTEBOOK, profile, book.results.parent / "reference" / profile)
    reference.judge(*given, **measured)
    reference.show()


# --- statistics


@pytest.mark.parametrize("n", [2, 30])
def test_intervals_are_the_t_interval_and_fishers(n):
    x = np.random.default_rng(n).uniform(0.5, 1, n)
    expected = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    np.testing.assert_allclose(t_interval(x), (x.mean(), *expected), rtol=1e-12)
    z = stats.ttest_1samp(np.arctanh(x), 0).confidence_interval(0.95)
    expected = np.tanh([np.arctanh(x).mean(), *z])
    np.testing.assert_allclose(correlation_interval(x), expected, rtol=1e-12)


@pytest.mark.parametrize(("n", "d"), [(2, 0.3), (5, 1.0), (500, 0.1)])
def test_power_is_the_noncentral_t(n, d):
    """The claimed side alone: an interval on the other side settles the claim, but does not
    reproduce it.
    """
    expected = stats.nct.sf(stats.t.isf(0.025, n - 1), n - 1, d * math.sqrt(n))
    assert power(n, d, 1.0, ABOVE_0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("d", "expected"), [(0.2, 265), (0.5, 44), (0.8, 19)])
def test_seeds_needed_as_in_the_tables(d, expected):
    """Cohen's small, medium, large: the sample sizes that power tables and G*Power give for 90%,
    two-sided 5%, paired; neither unit, direction nor threshold matters.
    """
    for effect, sd, region in ((d, 1, ABOVE_0), (-7 * d, 7, (-INF, 0)), (10 + d, 1, (10, INF))):
        assert seeds_needed(effect, sd, region) == expected


def test_plans_at_the_ends_of_what_can_be_planned():
    assert seeds_needed(100.0, 1.0) == 2  # where scipy's noncentral t is NaN
    assert gain(effect=100.0, sd=1.0).seeds == 5, "no fewer give a verdict"
    for effect, region in ((0.0, ABOVE_0), (1.0, MARGIN), (-2.0, ABOVE_0)):
        assert seeds_needed(effect, 1.0, region) is None, "it is not inside"
    assert gain(effect=1e-5, sd=1.0).seeds is None, "inside, but a million would not do"


# --- the grammar


@pytest.mark.parametrize(
    ("interval", "region", "effect", "expected"),
    [
        ((0.1, 3.0), ABOVE_0, 2.0, "reproduced"),
        ((0.1, 2.0), ABOVE_0, 2.0, "reproduced"),  # touching the effect holds it
        ((0.1, 1.9), ABOVE_0, 2.0, "reproduced, smaller than claimed"),
        ((0.1, 1.9), ABOVE_0, None, "reproduced"),
        ((-0.5, 1.9), ABOVE_0, 2.0, "smaller than claimed"),
        ((0.0, 1.9), ABOVE_0, 2.0, "smaller than claimed"),  # touching the threshold holds it
        ((-2.0, 0.0), ABOVE_0, 2.0, "smaller than claimed"),
        ((-0.5, 1.9), ABOVE_0, None, "undecided"),
        ((-0.5, 2.0), ABOVE_0, 2.0, "undecided"),
        ((-2.0, -0.1), ABOVE_0, 2.0, "contradicted"),
        ((0.1, 0.5), MARGIN, 0.0, "reproduced"),  # a margin has no size to fall short of
        # a margin of one bound: no gain, to half a point; a gain is not smaller than claimed
        ((0.03, 0.82), (-INF, 0.5), 0.0, "undecided"),
        ((-0.5, 1.0), MARGIN, 0.0, "undecided"),
        ((1.1, 2.0), MARGIN, 0.0, "contradicted"),
    ],
)
def test_verdict(interval, region, effect, expected):
    assert verdict(*interval, region, effect) == expected


@given(st.floats(-10, 10), st.floats(0, 10), st.floats(-10, 10), st.floats(0.1, 5))
def test_a_claim_and_its_mirror_image_get_the_same_verdict(low, width, threshold, effect):
    above = verdict(low, low + width, (threshold, INF), threshold + effect)
    assert above == verdict(-low - width, -low, (-INF, -threshold), -threshold - effect)


REPETITIONS = 20_000
ERROR = 4 * math.sqrt(0.025 * 0.975 / REPETITIONS)  # four standard errors of a share of 2.5%


@functools.cache
def intervals(n):
    """The intervals [2, repetitions] of simulated studies of n seeds, whose differences are
    standard normal.
    """
    x = np.random.default_rng(n).standard_normal((REPETITIONS, n))
    half = stats.t.isf(0.025, n - 1) * x.std(1, ddof=1) / math.sqrt(n)
    return np.stack([x.mean(1) - half, x.mean(1) + half])


def shares(n, truth, region, effect, sd=1.0):
    """How often each verdict is reached by studies of n seeds around the truth."""
    ends = (truth + sd * intervals(n)).T.tolist()
    found = Counter(verdict(*each, region, effect) for each in ends)
    return Counter({name: count / REPETITIONS for name, count in found.items()})


@pytest.mark.parametrize(
    ("region", "effect", "truths", "most"),
    [
        (ABOVE_0, 1.0, (-0.2, 0.0, 0.001, 1.0), 0.025),
        ((-INF, 0.5), 0.0, (0.499, 0.5), 0.025),
        (MARGIN, 0.0, (-1.0, 0.999, 1.0), 0.05),
        ((-0.05, 0.05), 0.0, (0.0, 0.05), 0.05),
    ],
)
def test_a_verdict_is_false_as_seldom_as_the_ledger_says(region, effect, truths, most):
    """Where a false one is likeliest, at and beside the bounds and the effect: at most 2.5% with
    one bound and 5% with two, which `expected_false` adds up.
    """
    for truth in truths:
        inside = region[0] < truth < region[1]
        false = ["contradicted"] if inside else ["reproduced", "reproduced, smaller than claimed"]
        if math.isinf(region[1]) and truth >= effect:
            false += ["smaller than claimed", "reproduced, smaller than claimed"]
        found = shares(6, truth, region, effect)
        assert sum(found[name] for name in false) < most + ERROR * 2**0.5


@pytest.mark.parametrize(
    ("effect", "sd", "region"),
    [(4.26, 3.0, ABOVE_0), (-0.5, 0.3, (-INF, 0.0)), (0.0, 0.6, MARGIN)],
)
def test_power_is_as_stated(effect, sd, region):
    """Of studies with the planned seeds, where the effect is as stated, 90% or more reproduce it,
    as many as `power` says; and where there is nothing, 90% exclude an effect.
    """
    n, error = seeds_needed(effect, sd, region), 4 * math.sqrt(0.09 / REPETITIONS)
    assert n is not None
    found = shares(n, effect, region, effect, sd)
    share = found["reproduced"] + found["reproduced, smaller than claimed"]
    assert share > 0.9 - error
    assert share == pytest.approx(power(n, effect, sd, region), abs=error + 1e-4)
    if effect:
        nothing = shares(n, 0.0, region, effect, sd)
        said = ("smaller than claimed", "reproduced, smaller than claimed", "contradicted")
        assert sum(nothing[name] for name in said) > 0.9 - error


# --- the table


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (dict(id="chaung2020/fig 4a"), "should read paper/slug"),
        (dict(claim=" "), "give the claim in words"),
        (dict(low=1.0, high=-1.0), "empty region"),
        (dict(effect=0.0), "effect 0.0, which is not inside"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_in_one_line(columns, says):
    with refused(says):
        gain(**columns)


ENTRY = '''
[fig4a]
where = "Figure 4a"
kind = "experiment"
claim = """
a gain that takes
two lines"""
low = 0
data = ["stl10", "cifar10"]
effect = 4.26
sd = 3
'''


def test_a_table_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "chuang2020.toml"
    path.write_text(ENTRY)
    (tmp_path / "arora2019.toml").write_text('[first]\nclaim = "the first paper comes first"\n')
    first, row = read_table(tmp_path).values()
    assert (first.id, row.id, row.group) == ("arora2019/first", *["chuang2020/fig4a"] * 2)
    assert (row.claim, row.region) == ("a gain that takes two lines", ABOVE_0)
    assert (row.data, row.effect, row.seeds) == (("stl10", "cifar10"), 4.26, 8)
    for text, says in {
        ENTRY + ENTRY: "chuang2020.toml: ",
        ENTRY + "colour = 1\n": "'chuang2020/fig4a': .* argument 'colour'",
        ENTRY.replace("4.26", '"four"'): "'chuang2020/fig4a': .* 'float' and 'str'",
        "[fig4a]\nlow = 0\n": "says nothing",
    }.items():
        path.write_text(text)
        with refused(says):
            read_table(tmp_path)


# --- one judgement


def test_a_judgement_joins_what_was_measured_with_what_was_claimed():
    row = judged(GAIN, FIVE, **ON | MINI, profile="quick")
    assert (row["mean"], row["sd"]) == pytest.approx((np.mean(FIVE), np.std(FIVE, ddof=1)))
    assert line(row) == (
        "chuang2020/fig4a: reproduced, smaller than claimed (stand-in); "
        "mean paired difference +2.96 [+2.27, +3.65] points, n = 5 (8 planned); "
        "untrained encoder 37.5, AUC 0.71"
    )
    correlations = [0.9, 0.95, 0.7, 0.99, 0.85]
    row = judged(gain(unit="correlation"), correlations, data="stl10")
    assert (row["mean"], row["low"], row["high"]) == correlation_interval(correlations)


@pytest.mark.parametrize(
    ("columns", "data", "profile", "expected"),
    [
        ({}, "stl10", "paper", "paper's setting"),
        ({}, "stl10", "night", "paper's data, smaller training"),
        (dict(data=("MR", "CR", "TREC")), "TREC|MR", "gpu", "paper's data, smaller training"),
        ({}, "stl10-48", "night", "part of the paper's data"),
        (dict(data=("MR", "CR")), "MR|TREC", "paper", "stand-in"),
        (dict(id="curlnb/x", kind="ours"), "stl10", "paper", ""),
        (dict(as_printed_at=("night",)), "stl10", "night", "paper's setting"),
        (dict(as_printed_at=("night",)), "stl10", "night, changed", "paper's data, smaller train"),
    ],
)
def test_scope_is_whose_data_and_whose_training(columns, data, profile, expected):
    scope = judged(gain(**columns), FIVE, data=data, profile=profile)["scope"]
    assert scope.startswith(expected)
    assert bool(scope) == bool(expected)


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        ([3.0], "one seed gives no interval"),
        ([1.0, math.nan, INF, 1.0, 2.0], "2 of 5 differences are not finite"),
        ([72.4 - 73.35, 71.15 - 72.1], "all differences are equal"),  # but for rounding
        ([2.3, 3.8, 2.7, 3.0], "4 are fewer than 5"),
    ],
)
def test_undecided_gives_its_reason(differences, reason):
    """No lucky single seed and no run counted five times reproduces anything."""
    row = judged(gain(), differences, data="stl10", note="a word")
    assert row["verdict"] == "undecided"
    assert row["note"].startswith(f"a word; {reason}")
    assert (row["low"] is None) == (len(differences) != 4)


def test_interval_computed_otherwise():
    for low, n, expected in (
        (0.2, 40, ("reproduced", "")),
        (0.2, 4, ("undecided", "4 are fewer than 5")),
        (1.0, 9, ("undecided", "the interval has no width")),
    ):
        row = judged(gain(), interval=(1.0, low, 2 - low), n=n, data="stl10")
        assert (row["verdict"], row["note"], row["low"]) == (*expected, low)


def test_exact_claims():
    row = judged(theory(), exact="holds", value=0.99812, cases=1200)
    # two decimals would hide the slack
    assert line(row) == "arora2019/lemma4.3: holds; largest ratio 0.9981, 1,200 cases"
    assert row["scope"] == ""
    found = [judged(theory(high=-0.5), value=x)["verdict"] for x in (-0.99, -0.5, 0.1)]
    assert found == ["holds", "fails", "fails"]
    assert "proof step fails, statement stands" in line(judged(theory(), exact="proof step fails"))


def test_what_is_true_as_it_stands_or_settled_by_the_paper_itself_is_no_failure():
    claim = theory(low=0.0, readings=("it is said of one seed", "it is said of all"))
    assert "holds; largest ratio 0.5" in line(judged(claim, value=0.5))
    assert "true if" not in line(judged(claim, value=0.5))
    said = "; true if it is said of one seed; false if it is said of all"
    assert line(judged(claim, value=-0.5)).endswith(said)
    assert judged(claim, value=-0.5)["verdict"] == "depends on the reading"
    settled = theory(settled="Lemma B.2 has it right")
    for exact in ("fails", "proof step fails"):
        said = line(judged(settled, exact=exact, value=2.0))
        assert said == "arora2019/lemma4.3: note; largest ratio 2; Lemma B.2 has it right"
    for holds in (True, np.float64(1.0) > 0.5, torch.tensor(1.0) > 0.5):
        assert judged(settled, exact=holds)["verdict"] == "holds"
    assert judged(theory(), exact=False)["verdict"] == "fails"


def test_rows_are_judged_again_from_their_numbers_by_the_claim_as_it_stands():
    row = judged(gain(effect=4.0), FIVE, **MINI, profile="night")
    assert row["verdict"] == "reproduced, smaller than claimed"
    moved = again(row, gain(low=5.0, effect=None, data=("cifar10-mini",), changed="the bound"))
    assert (moved["verdict"], moved["scope"], moved["mean"], moved["changed"]) == (
        "contradicted",
        "paper's data, smaller training",
        row["mean"],
        "the bound",
    )
    few = judged(gain(), FIVE[:4], data="stl10")
    assert again(few, gain(low=9.0))["verdict"] == "undecided"
    unrun = judged(gain(), note="no time")
    assert again(unrun, gain(low=9.0)) == unrun | {"claimed_low": 9.0}
    failed = judged(theory(), exact="fails", value=2.0)
    read_twice = again(failed, theory(readings=("one", "other")))
    assert read_twice["verdict"] == "depends on the reading"
    assert again(read_twice, theory())["verdict"] == "fails"
    assert again(judged(theory(high=1.0), value=2.0), theory(high=3.0))["verdict"] == "holds"


@pytest.mark.parametrize(
    ("claim", "options", "says"),
    [
        (gain(), dict(), "say in note= why"),
        (gain(), dict(differences=[FIVE], data="stl10"), r"shape \[1, 5\].*one a seed"),
        (gain(), dict(differences=FIVE, interval=(1, 0, 2), data="stl10"), "only one of them"),
        (gain(), dict(interval=(1, 0, 2), data="stl10"), "with n, the units it rests on, not None"),
        (theory(), dict(differences=FIVE), "it claims no region: judge it by exact=, one of holds"),
        (theory(high=-0.5), dict(exact="holds", value=-0.4), "value -0.4, claimed < -0.5"),
        (gain(), dict(differences=FIVE), "say in data= what .* on; the paper's is stl10"),
        (GAIN, dict(exact="holds", value=1.0), "over seeds: judge it by differences or an inter"),
        (theory(), dict(exact="true"), "'true' is not one of holds, proof step fails, fails"),
        (theory(), dict(exact=1.3, value=1.3), "exact=1.3 is not one of holds"),
        (theory(), dict(exact="holds", value=math.nan), "not finite"),
        (
            GAIN,
            dict(differences=FIVE, diagnostic={"AUC": 1}),
            "trivial explanation: untrained encoder",
        ),
    ],
)
def test_bad_judgements_fail_in_one_line(claim, options, says):
    with refused(says):
        judged(claim, **options)


# --- a notebook's ledger


def test_a_notebook_hands_in_what_it_measured(book):
    said = book.judge("chuang2020/fig4a", pd.Series(FIVE), **ON)
    assert repr(said) == said  # a cell that ends with it shows the line, not a quoted string
    book.judge("arora2019/lemma4.3", exact="holds", value=0.97, cases=1200)
    book.judge("curlnb/vanish", note="needs the gpu profile")
    assert repr(book.show()).splitlines()[1] == said
    rows = read(book.results / "claims.csv")
    assert rows["id"].tolist() == ["arora2019/lemma4.3", "chuang2020/fig4a", "curlnb/vanish"]
    assert set(rows["notebook"]) == {NOTEBOOK}
    assert set(rows["profile"]) == {"quick"}
    head = (book.results / "claims.csv").read_text().splitlines()[0]
    assert head.count(",") == 15  # what the table says is not copied
    assert not (book.results / "own_claims.csv").exists()


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("chuang2020/fig4", "has no 'chuang2020/fig4'; the closest are chuang2020/fig4a"),
        ("nonsense", "a claim of your own is 'mine/...'"),
        ("robinson2021/dd", "not for 2_dcl/5.1_figure4_images to judge: no machine holds it"),
        ("mine/x", "'mine/x' says nothing: give the claim in words"),
        ("chuang2020/s55", "chuang2020/s55 is judged twice"),
    ],
)
def test_a_claim_that_it_cannot_judge_is_refused_in_one_line(book, id, says):
    book.judge("chuang2020/s55", note="later")
    with refused(says):
        book.judge(id, FIVE)


def test_the_table_alone_says_what_the_papers_claim(book):
    with pytest.raises(TypeError, match="low"):
        book.judge("chuang2020/fig4a", FIVE, **ON, low=-9)


def test_a_readers_own_claims_stand_with_their_words_in_a_file_of_their_own(book):
    book.judge("mine/beta-3", FIVE, claim="β = 3 beats β = 1", low=0, effect=5.0, unit="points")
    book.judge("mine/bound", exact="fails", value=1.2, claim="a bound of mine")
    said = "mine/beta-3: reproduced, smaller than claimed; mean paired difference +2.96"
    assert said in repr(book.show())
    assert read(book.results / "claims.csv").empty
    own = read(book.results / "own_claims.csv")
    assert own["claim"].to_list() == ["β = 3 beats β = 1", "a bound of mine"]
    assert (own["claimed_low"][0], own["effect"][0], own["paper"][0]) == (0, 5.0, "mine")
    Ledger(NOTEBOOK, "quick", book.results).show()
    assert read(book.results / "own_claims.csv").empty


def test_a_better_profiles_reference_stands_beside(book):
    committed(book, "night", "chuang2020/fig4a", [5.0, 5.1, 5.2, 4.9, 5.3], **ON)
    book.judge("chuang2020/fig4a", FIVE, **ON | MINI)
    shown = book.show()
    opinion = "over 1,000 times likelier with the stated size than without"
    assert repr(shown).splitlines()[1:] == [
        "  at night: reproduced (paper's data, smaller training); "
        "+5.10 [+4.90, +5.30] points, n = 5 (8 planned)",
        f"  second opinion: {opinion}",  # on the best evidence
    ]
    for part in ("at a better profile", "second opinion", opinion):
        assert part in shown._repr_html_()


def test_the_texts_of_a_row_have_all_that_a_page_shows():
    claim = gain(effect=2.5, changed="the bound")
    (row,) = ledger.records(frame([judged(claim, FIVE, **MINI, note="a word")]))
    assert formatting.verdict_text(row) == "reproduced (stand-in)"
    assert formatting.claimed_text(row) == "> 0, effect 2.5"
    assert formatting.measured_text(row).startswith("mean paired difference +2.96 [")
    assert formatting.notes_text(row) == "a word; changed after a look at results: the bound"
    claim = theory(low=0.0, readings=("said of one", "said of all"))
    (row,) = ledger.records(frame([judged(claim, value=-0.5, note="a word")]))
    assert formatting.notes_text(row) == "a word; true if said of one; false if said of all"


# --- the file


def some_rows():
    rows = [
        judged(GAIN, [1.23456789, 2.0, 1.5], **ON, profile="quick", note="NA"),
        judged(BOUND, exact="holds", value=1 / 3, cases=2000, note='a, "quoted"\nnote'),
        judged(EQUAL, note="needs a GPU"),
        judged(OWN, [0.1, 0.9, 1.3, 0.4, 0.2], **MINI),
    ]
    return frame(rows)


def test_what_is_read_is_what_was_recorded(tmp_path, monkeypatch):
    path, rows = tmp_path / "quick" / "claims.csv", some_rows()
    record(rows, path, NOTEBOOK)
    pd.testing.assert_frame_equal(read(path), rows)
    assert list(rows["paper"]) == ["arora2019", "chuang2020", "chuang2020", "curlnb"]
    assert rows["value"][0] == 0.333333  # six significant digits
    assert rows["note"][0] == 'a, "quoted" note'  # one claim, one line in a diff
    assert len(path.read_text().splitlines()) == 5
    monkeypatch.setattr(claims, "table", lambda: {row.id: row for row in TABLE[1:]})
    assert "arora2019/lemma4.3" not in set(read(path)["id"]), "the table no longer has it"


def test_recording_again_changes_nothing(tmp_path):
    """Committed ledgers must differ only where results do, whatever the order of the notebooks."""
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    rows = some_rows().assign(notebook=["x", "y", "x", "z"])
    for name in "xyzx":
        record(rows[rows["notebook"] == name], path, name)
    for name in "zyx":
        record(rows[rows["notebook"] == name], other, name)
    assert other.read_bytes() == path.read_bytes()
    record(rows.iloc[:1], path, "x")  # the claim that x judges no longer goes, the others' stay
    assert list(read(path)["notebook"]) == ["x", "y", "z"]


def test_notebooks_that_end_at_once_lose_nothing(tmp_path):
    path, start = tmp_path / "own_claims.csv", threading.Barrier(4)

    def hand_in(name):
        claim = Claim(id=f"mine/{name}", claim="x", low=0, notebook=name)
        start.wait()
        record(frame([judged(claim, note="x")]), path, name)

    threads = [threading.Thread(target=hand_in, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert read(path)["notebook"].tolist() == [*"abcd"]
    assert {file.suffix for file in tmp_path.iterdir()} <= {".csv", ".lock"}, "no half-written file"


@pytest.mark.parametrize(
    ("whole", "damage"), [(r"(?s).{300}$", ""), ("id,verdict", "id,result"), ("holds", "fails")]
)
def test_a_damaged_ledger_is_named_in_one_line_and_set_aside(tmp_path, capsys, whole, damage):
    """A notebook that has trained for hours must still be able to hand in its claims."""
    path = tmp_path / "claims.csv"
    record(some_rows(), path, NOTEBOOK)
    path.write_text(damaged := re.sub(whole, damage, path.read_text()))
    with refused(r"claims.csv is no ledger"):
        read(path)
    record(some_rows().iloc[:1], path, NOTEBOOK)
    (said,) = capsys.readouterr().err.splitlines()
    assert "claims.csv is no ledger" in said
    assert "set aside as claims.csv.damaged" in said
    assert read(path)["id"].to_list() == ["arora2019/lemma4.3"]
    assert (tmp_path / "claims.csv.damaged").read_text() == damaged


# --- many judgements


def test_best_evidence_is_that_of_the_best_profile_that_can_decide():
    def one(profile, differences):
        return frame([judged(GAIN, differences, **ON, profile=profile)])

    few, unrun = one("gpu", FIVE[:3]), frame([judged(GAIN, note="no GPU", profile="paper")])
    second = one("night", [x - 9 for x in FIVE])
    best = ledger.best_of([one("quick", FIVE), one("night", FIVE), few, unrun, second])
    assert list(best["id"]) == [row.id for row in TABLE]
    row = records(best)[1]
    assert (row["profile"], row["n"]) == ("night", 5)  # not gpu's three seeds, not paper's note
    assert row["mean"] > 0  # of two nights the first given
    assert records(ledger.best_of([few, unrun]))[1]["profile"] == "gpu"  # better than nothing
    notes = dict(zip(best["id"], best["note"], strict=True))
    assert notes["robinson2021/dd"] == "no machine holds it"
    assert notes["chuang2020/s55"] == "not judged yet"


def test_best_evidence_is_looked_for_here_and_in_the_references(book, monkeypatch):
    committed(book, "gpu", "arora2019/lemma4.3", exact="holds", value=0.9)
    book.judge("arora2019/lemma4.3", exact="fails", value=1.1)
    book.judge("curlnb/vanish", FIVE, **MINI)
    book.show()
    assert ledger.best("arora2019/lemma4.3")["verdict"] == "holds"
    assert ledger.best("curlnb/vanish")["verdict"] == "reproduced"
    monkeypatch.setenv("CURLNB_REFERENCE", "1")
    assert ledger.best("curlnb/vanish")["verdict"] == "not run"
    with refused("the closest are curlnb/vanish"):
        ledger.best("curlnb/vanishes")


def test_what_was_judged_under_changed_settings_says_so_and_is_no_better_evidence(
    book, monkeypatch
):
    committed(book, "quick", "arora2019/lemma4.3", exact="holds", value=0.9)
    digest = notebooks.digest_of_settings({"worlds": 2000})
    about = book.results.parent / "reference" / "quick" / "provenance.json"
    about.write_text(json.dumps({"settings": {NOTEBOOK: digest}}))
    for worlds, profile, best in ((2000, "quick", "fails"), (3, "quick, changed", "holds")):
        settings = notebook.Settings(NOTEBOOK, "quick", dict(worlds=worlds))
        mine = notebook.ledger(settings)
        mine.judge("arora2019/lemma4.3", exact="fails", value=1.1)
        assert ("at quick: holds" in str(mine.show())) == (worlds == 3)
        assert records(read(settings.results / "claims.csv"))[0]["profile"] == profile
        assert ledger.best("arora2019/lemma4.3")["verdict"] == best
    monkeypatch.setenv("CURLNB_NOTEBOOK", NOTEBOOK)
    assert settings.evidence == "quick"  # `make reference` with notebooks makes them the committed
    monkeypatch.setenv("CURLNB_ADOPT", "0")
    assert settings.evidence == "quick, changed"  # `make reproduce`
    for changed, said in ((False, "quick"), (True, "quick, changed")):
        assert notebook.Settings("my_notebook", "quick", {}, changed).evidence == said


def test_a_group_counts_once_by_its_first_row_that_was_run():
    first, *rest = [judged(BOUND, exact="holds"), judged(SAME, FIVE, data="stl10")]
    rows = [first, judged(GAIN, note="later"), *rest, judged(UNRUN, note="later")]
    assert list(ledger.once(frame(rows))["id"]) == [BOUND.id, SAME.id, UNRUN.id]
    rows[1] = judged(GAIN, [1.0, -1.0, 8.0, 9.0, 3.0], **ON | MINI)
    counts = ledger.summary(frame(rows))
    assert counts.to_dict("index") == {
        ("experiment", "stand-in"): {"undecided": 1, "holds": 0, "not run": 0},
        ("experiment", ""): {"undecided": 0, "holds": 0, "not run": 1},
        ("theorem", ""): {"undecided": 0, "holds": 1, "not run": 0},
    }
    papers = ledger.summary(frame(rows), ["paper"]).index
    assert list(papers) == ["arora2019", "chuang2020", "robinson2021"]
    assert ledger.summary(frame([])).empty


def test_expected_false_verdicts_count_intervals_by_their_bounds():
    rows = [
        judged(BOUND, exact="holds"),
        judged(GAIN, FIVE, **ON),  # one bound
        judged(SAME, FIVE, data="stl10"),  # of the same group
        judged(EQUAL, FIVE, data="stl10"),  # two bounds
        judged(OWN, FIVE[:4], **MINI),  # too few seeds for any verdict
    ]
    assert ledger.expected_false(frame(rows)) == pytest.approx(0.025 + 0.05)


# --- shown


def test_rows_are_shown_as_lines_of_text_and_escaped():
    lines = repr(ClaimsTable(records(some_rows()))).splitlines()
    assert [part.split(": ")[0] for part in lines] == list(some_rows()["id"])
    assert lines[2] == "chuang2020/equal: not run; needs a GPU"
    row = judged(gain(claim="<script>alert(1)</script> & co"), note="</td><b>x")
    shown = ClaimsTable([row])._repr_html_()
    assert "<script>" not in shown
    assert "</td><b>x" not in shown


def test_a_rounded_zero_has_no_minus():
    """Lines are compared cell by cell in CI."""
    row = judged(gain(), [-0.004, 0.003, -0.002, 0.001, 0.0005], data="stl10")
    assert "mean paired difference +0.00 [+0.00, +0.00] points, n = 5" in line(row)
