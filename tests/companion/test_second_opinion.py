"""The second opinion: quadrature against simulation, intervals against scipy, and words that say
what was computed.
"""

import math

import numpy as np
import pytest
from scipy import stats

from curlnb.companion import ledger
from curlnb.companion.claims import Claim
from curlnb.companion.judgement import judged
from curlnb.companion.second_opinion import (
    bayes_factor,
    equivalence_interval,
    second_opinion,
)


def gain(**columns: object) -> Claim:
    filled = dict(kind="experiment", claim="a gain", unit="points", low=0.0, effect=0.5)
    return Claim(id="chuang2020/x", **filled | columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(("mean", "n", "size"), [(-0.09, 5, 0.5), (-4.0, 20, -4.35)])
def test_a_bayes_factor_is_the_mean_likelihood_under_the_prior_over_that_of_none(mean, n, size):
    """By a sum over a grid: Student's t, and a normal prior cut off at zero."""
    sd, grid = 0.4, np.linspace(0, 5 * abs(size), 200_001)
    prior = stats.truncnorm.pdf(grid, -2, math.inf, loc=abs(size), scale=abs(size) / 2)
    t = (mean - np.sign(size) * grid) * math.sqrt(n) / sd
    likelihood = stats.t.pdf(t, n - 1) / stats.t.pdf(mean * math.sqrt(n) / sd, n - 1)
    expected = np.trapezoid(prior * likelihood, grid)
    assert bayes_factor(mean, sd, n, size) == pytest.approx(expected, rel=1e-6)


def test_a_bayes_factor_misleads_as_seldom_as_it_says():
    """Of studies without an effect at most one in k reaches the factor k; of studies with the
    stated size few speak against it, and the truth is found in the long run.
    """
    generator = np.random.default_rng(1)

    def factors(truth: float, seeds: int, studies: int) -> np.ndarray:
        x = generator.normal(truth, 1.0, (studies, seeds))
        ends = zip(x.mean(1), x.std(1, ddof=1), strict=True)
        return np.array([bayes_factor(mean, sd, seeds, 1.0) for mean, sd in ends])

    none, stated = factors(0.0, 8, 300), factors(1.0, 8, 300)
    for k in (3, 10):
        assert (none > k).mean() < 1 / k
        assert (stated < 1 / k).mean() < 1 / k
    assert np.median(factors(0.0, 100, 40)) < 0.05  # prior(0) times the width of the likelihood
    assert np.median(factors(1.0, 100, 40)) > 1000


def test_a_bayes_factor_depends_neither_on_unit_nor_on_direction():
    assert bayes_factor(1.3, 0.7, 6, 2.0) == pytest.approx(bayes_factor(-13, 7, 6, -20), rel=1e-6)


def test_equivalence_is_two_one_sided_tests():
    x = np.random.default_rng(2).normal(0.1, 0.5, 12)
    found = equivalence_interval(x.mean(), x.std(ddof=1), 12)
    np.testing.assert_allclose(found, stats.ttest_1samp(x, 0).confidence_interval(0.9))


@pytest.mark.parametrize(
    ("region", "differences", "said"),
    [
        (
            {},
            [-0.1, 0.1, 0.05, -0.05, 0.02, -0.02],
            "93 times likelier without the stated size than with it; "
            "less than 0.5 in size (90% interval [-0.06, 0.06])",
        ),
        (
            {},
            [0.4, 0.6, 0.5, 0.55, 0.45],
            "over 1,000 times likelier with the stated size than without",
        ),
        (
            {},
            [-1.0, 1.5, 0.9, -0.6, 0.8],
            "as likely with as without the stated size (Bayes factor 1.1)",
        ),
        (
            {},
            [14.4, 14.9, 14.1, 14.6, 14.3],
            "beyond the stated size (Bayes factor 1.2)",
        ),
        (
            {},
            [-4.4, -4.9, -4.1, -4.6, -4.3],
            "on the other side of the bound (Bayes factor 0.6)",
        ),
        (
            dict(low=-1.0, high=1.0, effect=0.0),
            [0.3, 0.2, 0.4, 0.1, 0.3],
            "equivalent, within the margin (90% interval [0.15, 0.37])",
        ),
        (
            dict(low=-0.5, high=None, effect=0.0),  # not worse, which is not to be equivalent
            [2.3, 2.2, 2.4, 2.1, 2.3],
            "inside what is claimed (90% interval [2.15, 2.37])",
        ),
        (
            dict(low=None, high=0.0, effect=-0.5),
            [-0.4, -0.6, -0.5, -0.55, -0.5],
            "over 1,000 times likelier with the stated size than without",
        ),
    ],
)
def test_words_say_what_was_computed(region, differences, said):
    assert second_opinion(judged(gain(**region), differences, data="x")) == said


@pytest.mark.parametrize(
    "row",
    [
        judged(gain(), [0.5, 0.6, 0.4, 0.5], data="x"),  # too few
        judged(gain(effect=None), [0.5, 0.6, 0.4, 0.5, 0.3], data="x"),
        judged(gain(), interval=(0.5, 0.2, 0.8), n=40, data="x"),
        judged(gain(), note="not run"),
        judged(gain(effect=None, kind="text"), value=0.7),
        judged(gain(unit="correlation"), [0.5, 0.6, 0.4, 0.5, 0.3], data="x"),
    ],
)
def test_nothing_is_said_where_nothing_can_be(row):
    assert second_opinion(row) == ""


def test_the_committed_evidence_has_second_opinions_that_agree_with_its_verdicts():
    """No contradicted claim of direction is likelier with the stated size than without."""
    rows = ledger.records(ledger.best_evidence(committed=True))
    said = {row["id"]: (row["verdict"], second_opinion(row)) for row in rows}
    assert sum(bool(text) for _, text in said.values()) > 100
    for verdict, text in said.values():
        if verdict == "contradicted":
            assert "likelier with the stated size" not in text
        if verdict == "reproduced":
            assert "likelier without" not in text
