"""Claims: intervals and power as statistics has them, verdicts as the design words them, a ledger
that loses nothing.
"""

import itertools
import json
import math
import multiprocessing
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from curlnb.companion import claims, ledger, notebook, notebooks
from curlnb.companion.claims import Claim, paired, read_table
from curlnb.companion.formatting import MARKS, ClaimsTable, line
from curlnb.companion.judgement import again, judged
from curlnb.companion.ledger import Ledger, frame, read, record, records
from curlnb.companion.statistics import (
    correlation_interval,
    power,
    seeds_needed,
    t_interval,
    verdict,
)

ABOVE_0, MARGIN = (0.0, math.inf), (-1.0, 1.0)
NOTEBOOK = "2_dcl/5.1_figure4_images"


def gain(id: str = "chuang2020/fig4a", **columns: object) -> Claim:
    """A claim of a gain with the required words filled in."""
    filled = dict(
        kind="experiment",
        claim=f"what {id} says",
        where="Figure 4a",
        unit="points",
        low=0.0,
        data=("stl10",),
        notebook=NOTEBOOK,
    )
    return Claim(id=id, **filled | columns)  # type: ignore[arg-type]


def theory(id: str = "arora2019/lemma4.3", **columns: object) -> Claim:
    filled = dict(
        kind="theorem",
        claim="a bound",
        where="Lemma 4.3",
        statistic="largest ratio",
        notebook=NOTEBOOK,
    )
    return Claim(id=id, **filled | columns)  # type: ignore[arg-type]


TABLE = [
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
DIAGNOSTIC = {"untrained encoder": 37.5, "AUC": "0.71"}


@pytest.fixture(autouse=True)
def small_table(monkeypatch) -> None:
    monkeypatch.setattr(claims, "table", lambda: {row.id: row for row in TABLE})


@pytest.fixture
def book(tmp_path, monkeypatch) -> Ledger:
    """The ledger of a notebook at quick, in a folder of its own, without committed references."""
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    return notebook.ledger(notebook.settings(NOTEBOOK, "quick", quick={}))


# --- statistics


@pytest.mark.parametrize("n", [2, 30])
def test_interval_is_the_t_interval(n: int) -> None:
    x = np.random.default_rng(n).normal(3, 2, n)
    expected = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    np.testing.assert_allclose(t_interval(x), (x.mean(), expected.low, expected.high), rtol=1e-12)


def test_interval_of_correlations_is_fishers() -> None:
    x = [0.9, 0.95, 0.7, 0.99, 0.85]
    z = stats.ttest_1samp(np.arctanh(x), 0).confidence_interval(0.95)
    expected = np.tanh([np.arctanh(x).mean(), z.low, z.high])
    np.testing.assert_allclose(correlation_interval(x), expected, rtol=1e-12)
    assert t_interval(x)[2] > 1 > correlation_interval(x)[2]
    row = judged(gain(unit="correlation"), x, data="stl10")
    assert (row["low"], row["high"]) == correlation_interval(x)[1:]


@pytest.mark.parametrize(("n", "d"), [(2, 0.3), (5, 1.0), (500, 0.1)])
def test_power_is_the_noncentral_t(n: int, d: float) -> None:
    """The claimed side alone: an interval on the other side settles the claim, but does not
    reproduce it.
    """
    expected = stats.nct.sf(stats.t.isf(0.025, n - 1), n - 1, d * math.sqrt(n))
    assert power(n, d, 1.0, ABOVE_0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("d", "expected"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_as_in_the_tables(d: float, expected: int) -> None:
    """Cohen's small, medium, large: the sample sizes that power tables and G*Power give for 80%,
    two-sided 5%, paired.
    """
    assert seeds_needed(d, 1.0, wanted=0.8) == expected
    assert (
        seeds_needed(-d * 7, 7.0, (-math.inf, 0.0), wanted=0.8) == expected
    )  # neither unit nor direction matters
    assert (
        seeds_needed(10 + d, 1.0, (10.0, math.inf), wanted=0.8) == expected
    )  # nor where the threshold is


def test_power_where_scipys_noncentral_t_is_nan() -> None:
    assert power(2, 100.0, 1.0) == pytest.approx(1.0, abs=0.01)
    assert seeds_needed(100.0, 1.0) == 2


def test_no_number_of_seeds_reproduces_an_effect_that_is_not_inside_the_region() -> None:
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(1.0, 1.0, MARGIN) is None
    assert seeds_needed(-2.0, 1.0) is None
    assert seeds_needed(1e-5, 1.0) is None  # inside, but a million would not do


# --- the grammar


@pytest.mark.parametrize(
    ("interval", "region", "effect", "expected"),
    [
        ((0.1, 3.0), (0, math.inf), 2.0, "reproduced"),
        ((0.1, 2.0), (0, math.inf), 2.0, "reproduced"),  # touching the effect holds it
        ((0.1, 1.9), (0, math.inf), 2.0, "reproduced, smaller than claimed"),
        ((0.1, 1.9), (0, math.inf), None, "reproduced"),
        ((-0.5, 1.9), (0, math.inf), 2.0, "smaller than claimed"),
        ((0.0, 1.9), (0, math.inf), 2.0, "smaller than claimed"),  # touching the threshold holds it
        ((-2.0, 0.0), (0, math.inf), 2.0, "smaller than claimed"),
        ((-0.5, 1.9), (0, math.inf), None, "undecided"),
        ((-0.5, 2.0), (0, math.inf), 2.0, "undecided"),
        ((-2.0, -0.1), (0, math.inf), 2.0, "contradicted"),
        ((2.5, 3.0), (0, math.inf), 2.0, "reproduced"),  # larger than claimed
        ((-0.5, 0.5), (-1, 1), 0.0, "reproduced"),
        ((0.1, 0.5), (-1, 1), 0.0, "reproduced"),  # a margin has no size to fall short of
        # a margin of one bound: no gain, to half a point; a gain is not smaller than claimed
        ((0.03, 0.82), (-math.inf, 0.5), 0.0, "undecided"),
        ((-0.5, 1.0), (-1, 1), 0.0, "undecided"),
        ((1.1, 2.0), (-1, 1), 0.0, "contradicted"),
        ((-3.0, 3.0), (-1, 1), 0.0, "undecided"),
    ],
)
def test_verdict(interval, region, effect, expected: str) -> None:
    assert verdict(*interval, region, effect) == expected


@given(st.floats(-10, 10), st.floats(0, 10), st.floats(-10, 10), st.floats(0.1, 5))
def test_a_claim_and_its_mirror_image_get_the_same_verdict(
    low: float, width: float, threshold: float, effect: float
) -> None:
    above = verdict(low, low + width, (threshold, math.inf), threshold + effect)
    assert above == verdict(-low - width, -low, (-math.inf, -threshold), -threshold - effect)


REPETITIONS = 20_000
ERROR = 4 * math.sqrt(0.025 * 0.975 / REPETITIONS)  # four standard errors of a share of 2.5%


def shares(
    n: int, truth: float, region: tuple[float, float], effect: float | None, sd: float = 1.0
) -> Counter[str]:
    """How often each verdict is reached by simulated studies of n seeds, whose differences are
    normal around the truth.
    """
    x = np.random.default_rng(n).normal(truth, sd, (REPETITIONS, n))
    half = stats.t.isf(0.025, n - 1) * x.std(1, ddof=1) / math.sqrt(n)
    found = Counter(
        verdict(*ends, region, effect)
        for ends in zip(x.mean(1) - half, x.mean(1) + half, strict=True)
    )
    return Counter({name: count / REPETITIONS for name, count in found.items()})


def reproduced(found: Counter[str]) -> float:
    return found["reproduced"] + found["reproduced, smaller than claimed"]


def smaller(found: Counter[str]) -> float:
    return found["smaller than claimed"] + found["reproduced, smaller than claimed"]


def is_false(name: str, truth: float, region: tuple[float, float], effect: float) -> bool:
    """Whether a verdict says of a claim with one bound (above), or with two, what is not so."""
    inside, one_bound = region[0] < truth < region[1], math.isinf(region[1])
    return (
        (name.startswith("reproduced") and not inside)
        or (name == "contradicted" and inside)
        or ("smaller" in name and one_bound and truth >= effect)
    )


@pytest.mark.parametrize("truth", [-1.0, -0.999, -0.2, 0.0, 0.001, 0.999, 1.0, 1.001, 1.5])
def test_a_verdict_is_false_as_seldom_as_the_ledger_says(truth: float) -> None:
    """Whatever the truth: at most 2.5% with one bound and 5% with two, which `expected_false` adds
    up.
    """
    for region, effect, most in (
        (ABOVE_0, 1.0, 0.025),
        ((-math.inf, 0.5), 0.0, 0.025),
        (MARGIN, 0.0, 0.05),
        ((-0.05, 0.05), 0.0, 0.05),
    ):
        found = shares(6, truth, region, effect)
        assert (
            sum(share for name, share in found.items() if is_false(name, truth, region, effect))
            < most + ERROR * 2**0.5
        )


@pytest.mark.parametrize(
    ("effect", "sd", "region"),
    [
        (4.26, 3.0, ABOVE_0),
        (-0.5, 0.3, (-math.inf, 0.0)),
        (0.0, 0.6, MARGIN),
    ],
)
def test_power_is_as_stated(effect: float, sd: float, region: tuple[float, float]) -> None:
    """Of studies with the planned seeds, where the effect is as stated, 90% or more reproduce it;
    and as many as `power` says.
    """
    n = seeds_needed(effect, sd, region)
    assert n is not None
    share = reproduced(shares(n, effect, region, effect, sd))
    assert share > 0.9 - 4 * math.sqrt(0.09 / REPETITIONS)
    assert share == pytest.approx(
        power(n, effect, sd, region), abs=4 * math.sqrt(0.09 / REPETITIONS) + 1e-4
    )


def test_the_planned_seeds_find_a_null_as_surely_as_the_effect() -> None:
    """Undecided is for studies that are too small: 90% of planned ones exclude the effect where
    there is nothing.
    """
    n = seeds_needed(1.0, 1.0)
    assert n is not None
    found = shares(n, 0.0, ABOVE_0, 1.0)
    assert smaller(found) + found["contradicted"] > 0.9 - 4 * math.sqrt(0.09 / REPETITIONS)


# --- the table


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (dict(id="chaung2020/fig 4a"), "should read paper/slug"),
        (dict(kind="identity"), "kind 'identity', which is not one of experiment, theorem"),
        (dict(claim=" "), "give the claim in words"),
        (dict(low=1.0, high=-1.0), "empty region"),
        (dict(low=None), "experiment and has no region"),
        (dict(kind="theorem", sd=5.0), "theory and plans seeds"),
        (dict(effect=0.0), "effect 0.0, which is not inside"),
        (dict(readings=("one",)), "needs two readings"),
        (dict(readings=("one", "other"), settled="yes"), "settled and has readings"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_in_one_line(columns: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        gain(**columns)
    assert "\n" not in str(error.value)


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
effect_from = "Figure 4a"
sd = 3
sd_from = "the pilot"
notebook = "x"
'''


def test_a_table_is_read_as_it_is_written(tmp_path) -> None:
    path = tmp_path / "chuang2020.toml"
    path.write_text(ENTRY)
    (tmp_path / "arora2019.toml").write_text('[first]\nclaim = "the first paper comes first"\n')
    first, row = read_table(tmp_path).values()
    assert (first.id, row.id, row.group) == ("arora2019/first", *["chuang2020/fig4a"] * 2)
    assert (row.claim, row.region, row.data) == (
        "a gain that takes two lines",
        ABOVE_0,
        ("stl10", "cifar10"),
    )
    assert (row.effect, row.sd, row.seeds, row.bounded) == (4.26, 3.0, 8, True)
    for text, says in {
        ENTRY + ENTRY: "chuang2020.toml: ",
        ENTRY + "colour = 1\n": "has the field 'colour', which no claim has",
        ENTRY.replace("4.26", '"four"'): "'four' for effect, which is not of type float",
        "[fig4a]\nlow = 0\n": "says nothing",
    }.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=says) as error:
            read_table(tmp_path)
        assert "\n" not in str(error.value)


def test_a_plan_that_no_number_of_seeds_fulfils_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no number of seeds finds 1e-05 where sd = 1"):
        _ = gain(effect=1e-5, sd=1.0).seeds


# --- one judgement


def test_a_judgement_joins_what_was_measured_with_what_was_claimed() -> None:
    row = judged(TABLE[1], FIVE, data="cifar10-mini", diagnostic=DIAGNOSTIC, profile="quick")
    assert (row["verdict"], row["n"], row["seeds"], row["scope"]) == (
        "reproduced, smaller than claimed",
        5,
        8,
        "stand-in",
    )
    assert (row["mean"], row["sd"]) == (
        pytest.approx(np.mean(FIVE)),
        pytest.approx(np.std(FIVE, ddof=1)),
    )
    assert line(row) == (
        "chuang2020/fig4a: reproduced, smaller than claimed (stand-in); "
        "mean paired difference +2.96 [+2.27, +3.65] points, n = 5 (8 planned); "
        "untrained encoder 37.5, AUC 0.71"
    )


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
        (
            dict(as_printed_at=("night",)),
            "stl10",
            "night, changed",
            "paper's data, smaller training",
        ),
    ],
)
def test_scope_is_whose_data_and_whose_training(
    columns: dict, data: str, profile: str, expected: str
) -> None:
    assert judged(gain(**columns), FIVE, data=data, profile=profile)["scope"] == expected


@pytest.mark.parametrize(
    ("differences", "reason"),
    [
        ([3.0], "one seed gives no interval"),
        ([1.0, math.nan, math.inf, 1.0, 2.0], "2 of 5 differences are not finite"),
        ([0.1] * 6, "all differences are equal"),  # whose computed mean is not 0.1
        ([72.4 - 73.35, 71.15 - 72.1], "all differences are equal"),  # but for rounding
        ([2.3, 3.8, 2.7, 3.0], "4 are fewer than 5"),
    ],
)
def test_undecided_gives_its_reason(differences: list[float], reason: str) -> None:
    """No lucky single seed and no run counted five times reproduces anything."""
    row = judged(gain(), differences, data="stl10", note="a word")
    assert row["verdict"] == "undecided"
    assert row["note"].startswith("a word; ")
    assert reason in row["note"]
    assert (row["low"] is None) == (len(differences) != 4)


def test_interval_computed_otherwise() -> None:
    assert judged(gain(), interval=(1.0, 0.2, 1.8), n=40, data="stl10")["verdict"] == "reproduced"
    few = judged(gain(), interval=(1.0, 0.2, 1.8), n=4, data="stl10")
    assert (few["verdict"], few["note"], few["low"]) == ("undecided", "4 are fewer than 5", 0.2)
    assert judged(gain(), interval=(1.0, 1.0, 1.0), n=9, data="stl10")["verdict"] == "undecided"


def test_exact_claims() -> None:
    row = judged(theory(), exact="holds", value=0.99812, cases=1200)
    assert (
        line(row) == "arora2019/lemma4.3: holds; largest ratio 0.9981, 1,200 cases"
    )  # two decimals would hide the slack
    assert row["scope"] == ""
    assert judged(theory(high=-0.5), exact="holds", value=-0.99)["value"] == -0.99
    assert [judged(theory(high=-0.5), value=x)["verdict"] for x in (-0.99, -0.5, 0.1)] == [
        "holds",
        "fails",
        "fails",
    ]
    assert "proof step fails, statement stands" in line(judged(theory(), exact="proof step fails"))


def test_a_sentence_that_is_true_as_it_stands_depends_on_the_reading() -> None:
    claim = theory(low=0.0, readings=("it is said of one seed", "it is said of all"))
    assert judged(claim, value=0.5)["verdict"] == "holds"
    row = judged(claim, value=-0.5)
    assert row["verdict"] == "depends on the reading"
    assert line(row).endswith("true if it is said of one seed; false if it is said of all")
    assert "true if" not in line(judged(claim, value=0.5))


@pytest.mark.parametrize("exact", ["fails", "proof step fails"])
def test_a_slip_that_the_paper_settles_is_a_note(exact: str) -> None:
    row = judged(theory(settled="Lemma B.2 has it right"), exact=exact, value=2.0)
    assert line(row) == "arora2019/lemma4.3: note; largest ratio 2; Lemma B.2 has it right"
    assert judged(theory(settled="Lemma B.2 has it right"), exact="holds")["verdict"] == "holds"


def test_rows_are_judged_again_from_their_numbers_by_the_claim_as_it_stands() -> None:
    row = judged(gain(effect=4.0), FIVE, data="cifar10-mini", profile="night")
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
    readings = theory(readings=("one", "other"))
    assert again(failed, readings)["verdict"] == "depends on the reading"
    assert again(again(failed, readings), theory())["verdict"] == "fails"
    assert again(judged(theory(high=1.0), value=2.0), theory(high=3.0))["verdict"] == "holds"


@pytest.mark.parametrize(
    ("claim", "options", "says"),
    [
        (gain(), dict(), "say in note= why it was not run"),
        (gain(), dict(differences=[], data="stl10"), r"shape \[0\].*one a seed"),
        (gain(), dict(differences=FIVE, interval=(1, 0, 2), data="stl10"), "only one of them"),
        (gain(), dict(interval=(1, 0, 2), data="stl10"), "with n, the units it rests on, not None"),
        (
            gain(),
            dict(differences=FIVE),
            "say in data= what it was measured on; the paper's is stl10",
        ),
        (
            TABLE[1],
            dict(exact="holds", value=1.0),
            "is measured over seeds: judge it by differences or an interval",
        ),
        (theory(), dict(differences=FIVE), "claims no region: judge it by exact=, one of holds"),
        (
            theory(high=-0.5),
            dict(exact="holds", value=-0.4),
            "exact='holds' with the value -0.4, claimed < -0.5",
        ),
        (
            theory(),
            dict(exact="true"),
            "exact='true' is not one of holds, loose, proof step fails, fails",
        ),
        (theory(), dict(exact="holds", value=math.nan), "not finite"),
        (
            TABLE[1],
            dict(differences=FIVE, data="stl10", diagnostic={"AUC": 0.7}),
            r"diagnostic=\{'untrained encoder': ...\}",
        ),
    ],
)
def test_bad_judgements_fail_in_one_line(claim: Claim, options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        judged(claim, **options)
    assert "\n" not in str(error.value)


# --- a notebook's ledger


def test_a_notebook_hands_in_what_it_measured(book) -> None:
    said = book.judge(
        "chuang2020/fig4a", pd.Series(FIVE), data="cifar10-mini", diagnostic=DIAGNOSTIC
    )
    assert repr(said) == said  # a cell that ends with it shows the line, not a quoted string
    book.judge("arora2019/lemma4.3", exact="holds", value=0.97, cases=1200)
    book.judge("curlnb/vanish", note="needs the gpu profile")
    shown = book.show()
    assert repr(shown).splitlines()[1] == said
    rows = read(book.results / "claims.csv")
    assert list(rows["id"]) == [
        "arora2019/lemma4.3",
        "chuang2020/fig4a",
        "curlnb/vanish",
    ]  # the table's order
    assert set(rows["notebook"]) == {NOTEBOOK}
    assert set(rows["profile"]) == {"quick"}
    assert (
        len((book.results / "claims.csv").read_text().splitlines()[0].split(",")) == 16
    )  # what the table says is not copied
    assert not (book.results / "own_claims.csv").exists()


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("chuang2020/fig4", "has no 'chuang2020/fig4': did you mean chuang2020/fig4a"),
        ("nonsense", "ids read paper/slug"),
        ("robinson2021/dd", "not for 2_dcl/5.1_figure4_images to judge: no machine holds it"),
        ("mine/x", "'mine/x' says nothing: give the claim in words"),
    ],
)
def test_a_claim_that_is_not_this_notebooks_is_refused_in_one_line(
    book, id: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says) as error:
        book.judge(id, FIVE)
    assert "\n" not in str(error.value)


def test_a_claim_is_judged_once(book) -> None:
    book.judge("curlnb/vanish", note="later")
    with pytest.raises(ValueError, match="curlnb/vanish is judged twice"):
        book.judge("curlnb/vanish", FIVE, data="cifar10-mini")


def test_the_table_alone_says_what_the_papers_claim(book) -> None:
    with pytest.raises(TypeError, match="low"):
        book.judge("chuang2020/fig4a", FIVE, data="stl10", diagnostic=DIAGNOSTIC, low=-9)


def test_a_readers_own_claims_stand_with_their_words_in_a_file_of_their_own(book) -> None:
    book.judge("mine/beta-3", FIVE, claim="β = 3 beats β = 1", low=0, effect=5.0, unit="points")
    book.judge("mine/bound", exact="fails", value=1.2, claim="a bound of mine")
    assert "mine/beta-3: reproduced, smaller than claimed; mean paired difference +2.96" in repr(
        book.show()
    )
    assert read(book.results / "claims.csv").empty
    own = read(book.results / "own_claims.csv")
    assert own["claim"].to_list() == ["β = 3 beats β = 1", "a bound of mine"]
    assert (own["claimed_low"][0], own["effect"][0], own["paper"][0]) == (0, 5.0, "mine")
    Ledger(NOTEBOOK, "quick", book.results).show()
    assert read(book.results / "own_claims.csv").empty


def test_a_better_profiles_reference_stands_beside(book, tmp_path) -> None:
    night = Ledger(NOTEBOOK, "night", tmp_path / "results" / "reference" / "night")
    night.judge("chuang2020/fig4a", [5.0, 5.1, 5.2, 4.9, 5.3], data="stl10", diagnostic=DIAGNOSTIC)
    night.show()
    book.judge("chuang2020/fig4a", FIVE, data="cifar10-mini", diagnostic=DIAGNOSTIC)
    shown = book.show()
    at_night = (
        "reproduced (paper's data, smaller training); "
        "+5.10 [+4.90, +5.30] points, n = 5 (8 planned)"
    )
    assert repr(shown).splitlines()[1] == f"  at night: {at_night}"
    opinion = "over 1,000 times likelier with the stated size than without"
    assert repr(shown).splitlines()[2] == f"  second opinion: {opinion}"  # on the best evidence
    for part in ("at a better profile", "second opinion", opinion):
        assert part in shown._repr_html_()


def test_finished_columns_have_all_that_a_page_shows() -> None:
    claim = gain(effect=2.5, changed="the bound", data=("stl10",))
    (row,) = ledger.finished(frame([judged(claim, FIVE, data="cifar10-mini", note="a word")]))
    assert row["verdict"] == "✓ reproduced (stand-in)"
    assert row["claimed"] == "> 0, effect 2.5"
    assert row["measured"].startswith("mean paired difference +2.96 [")
    assert row["notes"] == "a word; changed after a look at results: the bound"
    assert row["second_opinion"].endswith("times likelier with the stated size than without")


# --- pairs


def runs() -> pd.DataFrame:
    rows = [
        dict(loss=loss, seed=seed, knn=40 + seed + 2 * (loss == "hard"))
        for loss, seed in itertools.product(("biased", "hard"), (2, 0, 1))
    ]
    return pd.DataFrame(rows)


def test_pairs_are_matched_by_seed_whatever_the_order() -> None:
    shuffled = runs().sample(frac=1, random_state=3)
    difference = paired(shuffled, "knn", "loss", "hard", "biased")
    assert difference.to_list() == [2, 2, 2]  # pairing by position would mix the seeds' levels in
    assert list(difference.index) == [0, 1, 2]


def test_an_arm_may_be_the_one_without_a_value() -> None:
    table = runs().assign(negatives=lambda r: r["loss"].map({"biased": None, "hard": 62}))
    assert paired(table, "knn", "negatives", 62, None).to_list() == [2, 2, 2]


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


def some_rows() -> pd.DataFrame:
    rows = [
        judged(
            TABLE[1],
            [1.23456789, 2.0, 1.5],
            data="cifar10-mini",
            diagnostic=DIAGNOSTIC,
            profile="quick",
            note="NA",
        ),
        judged(TABLE[0], exact="holds", value=1 / 3, cases=2000, note='a, "quoted"\nnote'),
        judged(TABLE[3], note="needs a GPU"),
        judged(TABLE[5], [0.1, 0.9, 1.3, 0.4, 0.2], data="cifar10-mini"),
    ]
    return frame(rows)


def test_what_is_read_is_what_was_recorded(tmp_path) -> None:
    path = tmp_path / "quick" / "claims.csv"
    record(some_rows(), path, NOTEBOOK)
    pd.testing.assert_frame_equal(read(path), some_rows())
    assert list(some_rows()["paper"]) == ["arora2019", "chuang2020", "chuang2020", "curlnb"]
    assert some_rows()["value"][0] == 0.333333  # six significant digits
    assert some_rows()["note"][0] == 'a, "quoted" note'  # one claim, one line in a diff
    assert len(path.read_text().splitlines()) == 5


def test_recording_again_changes_nothing(tmp_path) -> None:
    """Committed ledgers must differ only where results do, whatever the order of the notebooks."""
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    rows = some_rows().assign(notebook=["x", "y", "x", "z"])
    for name in "xyz":
        record(rows[rows["notebook"] == name], path, name)
    before = path.read_bytes()
    record(rows[rows["notebook"] == "x"], path, "x")
    assert path.read_bytes() == before
    for name in "zyx":
        record(rows[rows["notebook"] == name], other, name)
    assert other.read_bytes() == before
    record(rows.iloc[:1], path, "x")  # the claim that x judges no longer goes, the others' stay
    assert list(read(path)["notebook"]) == ["x", "y", "z"]


def test_a_claim_that_the_table_no_longer_has_leaves_the_ledger(tmp_path, monkeypatch) -> None:
    record(some_rows(), tmp_path / "claims.csv", NOTEBOOK)
    monkeypatch.setattr(claims, "table", lambda: {row.id: row for row in TABLE[1:]})
    assert "arora2019/lemma4.3" not in set(read(tmp_path / "claims.csv")["id"])


def record_one_by_one(notebook: str, path: Path) -> None:
    for i in range(10):
        rows = [
            judged(Claim(id=f"mine/{notebook}-{j}", claim="x", low=0, notebook=notebook), note="x")
            for j in range(i + 1)
        ]
        record(frame(rows), path, notebook)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_notebooks_that_end_at_once_lose_nothing(tmp_path) -> None:
    path = tmp_path / "own_claims.csv"
    start = multiprocessing.get_context(
        "fork"
    ).Process  # forked, since importing the package afresh takes seconds
    processes = [start(target=record_one_by_one, args=(name, path)) for name in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(read(path)) == 20
    assert {file.name for file in tmp_path.iterdir()} <= {
        "own_claims.csv",
        "own_claims.csv.lock",
    }  # no half-written file left


@pytest.mark.parametrize(
    ("whole", "damage"),
    [(r"(?s).{300}$", ""), ("id,verdict", "id,result"), ("holds", "fails"), ("holds", "proved")],
)
def test_a_damaged_ledger_is_named_in_one_line_and_set_aside(
    tmp_path, capsys, whole: str, damage: str
) -> None:
    """A notebook that has trained for hours must still be able to hand in its claims."""
    path = tmp_path / "claims.csv"
    record(some_rows(), path, NOTEBOOK)
    path.write_text(damaged := re.sub(whole, damage, path.read_text()))
    with pytest.raises(ValueError, match=r"claims.csv is no ledger") as error:
        read(path)
    assert "\n" not in str(error.value)
    record(some_rows().iloc[:1], path, NOTEBOOK)
    (said,) = capsys.readouterr().err.splitlines()
    assert "claims.csv is no ledger" in said
    assert "set aside as claims.csv.damaged-1" in said
    assert read(path)["id"].to_list() == ["arora2019/lemma4.3"]
    assert (tmp_path / "claims.csv.damaged-1").read_text() == damaged
    assert read(tmp_path / "absent.csv").empty


# --- many judgements


def test_best_evidence_is_that_of_the_best_profile_that_can_decide() -> None:
    def one(claim: Claim, profile: str, n: int, shift: float = 0.0) -> pd.DataFrame:
        return frame(
            [
                judged(
                    claim,
                    np.array(FIVE[:n]) + shift,
                    data="stl10",
                    diagnostic=DIAGNOSTIC,
                    profile=profile,
                )
            ]
        )

    paper_unrun = frame([judged(TABLE[1], note="no GPU", profile="paper")])
    best = ledger.best_of(
        [
            one(TABLE[1], "quick", 5),
            one(TABLE[1], "night", 5),
            one(TABLE[1], "gpu", 3),
            paper_unrun,
            one(TABLE[1], "night", 5, shift=-9.0),
        ]
    )
    assert list(best["id"]) == [row.id for row in TABLE]
    row = records(best)[1]
    assert (row["profile"], row["n"]) == (
        "night",
        5,
    )  # not the three seeds of gpu, not paper's note
    assert row["mean"] > 0  # of two nights the first given
    assert (
        records(ledger.best_of([one(TABLE[1], "gpu", 3), paper_unrun]))[1]["profile"] == "gpu"
    )  # something rather than nothing
    assert (
        dict(zip(best["id"], best["note"], strict=True))["robinson2021/dd"] == "no machine holds it"
    )
    assert dict(zip(best["id"], best["note"], strict=True))["chuang2020/s55"] == "not judged yet"


def test_best_evidence_is_looked_for_here_and_in_the_references(
    book, tmp_path, monkeypatch
) -> None:
    reference = Ledger(NOTEBOOK, "gpu", tmp_path / "results" / "reference" / "gpu")
    reference.judge("arora2019/lemma4.3", exact="holds", value=0.9)
    reference.show()
    book.judge("arora2019/lemma4.3", exact="fails", value=1.1)
    book.judge("curlnb/vanish", FIVE, data="cifar10-mini")
    book.show()
    assert (
        ledger.best("arora2019/lemma4.3")["verdict"],
        ledger.best("curlnb/vanish")["verdict"],
    ) == ("holds", "reproduced")
    monkeypatch.setenv("CURLNB_REFERENCE", "1")
    assert ledger.best("curlnb/vanish")["verdict"] == "not run"
    with pytest.raises(ValueError, match="did you mean curlnb/vanish"):
        ledger.best("curlnb/vanishes")


def test_what_was_judged_under_changed_settings_says_so_and_is_no_better_evidence(
    book, tmp_path
) -> None:
    reference = tmp_path / "results" / "reference" / "quick"
    committed = Ledger(NOTEBOOK, "quick", reference)
    committed.judge("arora2019/lemma4.3", exact="holds", value=0.9)
    committed.show()
    digest = notebooks.digest_of_settings({"worlds": 2000})
    (reference / "provenance.json").write_text(json.dumps({"settings": {NOTEBOOK: digest}}))
    for worlds, profile in ((2000, "quick"), (3, "quick, changed")):
        settings = notebook.settings(NOTEBOOK, "quick", quick=dict(worlds=worlds))
        mine = notebook.ledger(settings)
        mine.judge("arora2019/lemma4.3", exact="fails", value=1.1)
        shown = mine.show()
        assert ("at quick: holds" in str(shown)) == (worlds == 3)
        assert records(read(settings.results / "claims.csv"))[0]["profile"] == profile
        assert ledger.best("arora2019/lemma4.3")["verdict"] == (
            "fails" if worlds == 2000 else "holds"
        )


def test_a_group_counts_once_by_its_first_row_that_was_run() -> None:
    rows = [
        judged(TABLE[0], exact="holds"),
        judged(TABLE[1], note="later"),
        judged(TABLE[2], FIVE, data="stl10"),
        judged(TABLE[4], note="later"),
    ]
    assert list(ledger.once(frame(rows))["id"]) == [
        "arora2019/lemma4.3",
        "chuang2020/s55",
        "robinson2021/dd",
    ]
    rows[1] = judged(
        TABLE[1], [1.0, -1.0, 8.0, 9.0, 3.0], data="cifar10-mini", diagnostic=DIAGNOSTIC
    )
    counts = ledger.summary(frame(rows))
    assert counts.to_dict("index") == {
        ("experiment", "stand-in"): {"undecided": 1, "holds": 0, "not run": 0},
        ("experiment", ""): {"undecided": 0, "holds": 0, "not run": 1},
        ("theorem", ""): {"undecided": 0, "holds": 1, "not run": 0},
    }
    assert list(ledger.summary(frame(rows), ["paper"]).index) == [
        "arora2019",
        "chuang2020",
        "robinson2021",
    ]
    assert ledger.summary(frame([])).empty


def test_expected_false_verdicts_count_intervals_by_their_bounds() -> None:
    rows = [
        judged(TABLE[0], exact="holds"),
        judged(TABLE[1], FIVE, data="stl10", diagnostic=DIAGNOSTIC),  # one bound
        judged(TABLE[2], FIVE, data="stl10"),  # of the same group
        judged(TABLE[3], FIVE, data="stl10"),  # two bounds
        judged(TABLE[5], FIVE[:4], data="cifar10-mini"),  # too few seeds for any verdict
    ]
    assert ledger.expected_false(frame(rows)) == pytest.approx(0.025 + 0.05)


# --- shown


def test_every_verdict_has_a_mark_and_every_row_a_line() -> None:
    assert len(MARKS) == 12
    text = repr(ClaimsTable(records(some_rows())))
    assert [part.split(": ")[0] for part in text.splitlines()] == list(some_rows()["id"])
    assert "chuang2020/equal: not run; needs a GPU" in text


def test_displayed_table_escapes_and_has_the_same_text_everywhere() -> None:
    row = judged(gain(claim="<script>alert(1)</script> & co"), note="</td><b>x")
    shown = ClaimsTable([row])
    assert "<script>" not in shown._repr_html_()
    assert "</td><b>x" not in shown._repr_html_()
    assert repr(shown) == line(row)  # not an object's address, which would differ from run to run


def test_a_rounded_zero_has_no_minus() -> None:
    """Lines are compared cell by cell in CI."""
    row = judged(gain(), [-0.004, 0.003, -0.002, 0.001, 0.0005], data="stl10")
    assert "mean paired difference +0.00 [+0.00, +0.00] points, n = 5" in line(row)
