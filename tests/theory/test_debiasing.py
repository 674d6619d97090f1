"""The debiased loss against enumeration, sampling and the library's; bounds; the prior."""

import itertools
import math

import numpy as np
import pytest
import torch
from formulas import generator, normal, refused, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from curlnb import losses
from curlnb.theory.debiasing import (
    anchor_distributions,
    lemma1,
    sampled_loss,
    saturation,
    theorem3_bound,
    two_level_error,
    uniform_mean,
)
from curlnb.theory.finite_worlds import World
from curlnb.theory.generalization import debiased_loss


def vectors_and_classes(seed, classes=3, points=4, dim=3):
    D = torch.softmax(2 * normal(classes, points, seed=seed + 1), -1)
    return unit(points, dim, seed=seed, dtype=torch.float64), D


def world(*args, **options):
    return anchor_distributions(*vectors_and_classes(*args, **options))


def enumerated(seen, negatives, t, scale=1.0):
    """E log(1 + scale sum e^{(s_i - s+)/t}) over every outcome, one loop a draw."""
    total, points = 0.0, seen.similarity.shape[1]
    for a in range(len(seen.similarity)):
        e = (seen.similarity[a] / t).exp()
        for outcome in itertools.product(range(points), repeat=len(negatives) + 1):
            chance = float(seen.weight[a] * seen.plus[a, outcome[0]])
            for p, point in zip(negatives, outcome[1:], strict=True):
                chance *= float(p[a, point])
            total += chance * math.log(
                1 + scale * float(e[list(outcome[1:])].sum() / e[outcome[0]])
            )
    return total


def test_a_view_is_the_mixture_of_its_classes():
    """Averaged over anchors, the marginal is the world's and p+ the anchor's class."""
    z, D = vectors_and_classes(1, classes=4, points=5, dim=2)
    seen = anchor_distributions(z, D)
    assert seen.tau_plus == 0.25
    assert_close(seen.marginal, D.mean(0).expand(20, 5))
    assert_close(seen.weight.view(4, 5), D / 4)


@pytest.mark.parametrize("t", [1.0, 0.3])
def test_sampled_losses_equal_every_outcome_added_up(t):
    seen = world(2, classes=2, points=3)
    for p, N in ((seen.marginal, 1), (seen.minus, 2), (seen.marginal, 3)):
        expected = pytest.approx(enumerated(seen, [p] * N, t, 1.7), abs=1e-10)
        assert float(sampled_loss(seen, p, N, t, scale=1.7)) == expected
    with refused("at least one"):
        sampled_loss(seen, seen.minus, 0, t)


def test_lemma_2_the_limit_is_approached_from_below():
    (z, D), Q = vectors_and_classes(6), 7
    seen = anchor_distributions(z, D)
    equal = World(torch.full((3,), 1 / 3, dtype=torch.float64), D)
    limit = float(debiased_loss(equal, z / 0.5**0.5, Q))
    gaps = [
        limit - float(sampled_loss(seen, seen.minus, N, 0.5, scale=Q / N)) for N in (10, 100, 1000)
    ]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] == pytest.approx(gaps[1] / 10, rel=0.1)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([1, 5, 60]), st.sampled_from([1.0, 0.5, 0.2]))
def test_lemma_1_holds_with_our_third_term(seed, N, t):
    terms = lemma1(world(seed), N, t)
    assert terms.second <= 0
    assert terms.biased >= terms.unbiased + terms.second - terms.third - 1e-9


def test_two_level_errors_equal_the_librarys_loss_drawn_many_times():
    """Bias and deviation of `losses.debiased`, within 5 standard errors."""
    levels, plus, minus, tau, t, N, M, n = (0.8, -0.4), 0.7, 0.2, 0.3, 0.5, 12, 3, 50_000
    g = generator(7)

    def draw(q, *shape):
        high = torch.rand(*shape, generator=g, dtype=torch.float64) < q
        return torch.where(high, levels[0], levels[1]).double()

    pos, neg, extra = draw(plus, n), draw(tau * plus + (1 - tau) * minus, n, N), draw(plus, n, M)
    drawn = losses.debiased(pos, neg, tau_plus=tau, temperature=t, extra_pos=extra)
    true = minus * math.exp(levels[0] / t) + (1 - minus) * math.exp(levels[1] / t)
    difference = drawn - torch.log1p(N * true / (pos / t).exp())
    exact = two_level_error(levels, plus, minus, tau, t, N=N, M=M, Q=N)
    for values, expected in ((difference, exact.bias), (difference.abs(), exact.absolute)):
        assert abs(float(values.mean()) - expected) < 5 * float(values.std()) / n**0.5
    share = losses.clamped_fraction(pos, neg, tau_plus=tau, temperature=t, extra_pos=extra)
    assert share > 0.01  # else the case tests nothing of the floor


@settings(deadline=None, max_examples=60)
@given(
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 0.9),
    st.sampled_from([2.0, 1.0, 0.5, 0.1]),
    st.sampled_from([1, 7, 300, None]),
    st.sampled_from([1, 20, None]),
)
def test_theorem_3_holds_for_every_temperature_with_our_constant(a, b, plus, minus, tau, t, N, M):
    found = two_level_error(
        (max(a, b), min(a, b)), plus, minus, tau, t, N=N, M=M, Q=300 if N is None else N
    )
    assert abs(found.bias) <= found.absolute + 1e-12
    assert found.absolute <= theorem3_bound(N, M, tau, t) * (1 + 1e-9) + 1e-9


def test_the_printed_constant_fails_below_t_1_and_not_at_1():
    """An anchor that sees 1 rarely and -1 else; N = 4096, tau+ = 0.1."""
    for t, fails in ((1.0, False), (0.2, True), (0.07, True)):
        errors = [
            two_level_error((1, -1), 0.0, q, 0.1, t, N=4096, M=None, Q=4096)
            for q in np.geomspace(1e-6, 0.1, 15)
        ]
        worst = max(abs(error.bias) for error in errors)
        assert (worst > theorem3_bound(4096, None, 0.1, t, printed=True)) == fails
        assert worst <= theorem3_bound(4096, None, 0.1, t)


def test_uniform_means_and_the_saturation_threshold():
    """Against draws on the sphere, and with the library's clamp on both sides of the threshold."""
    values = (unit(100_000, 8, seed=8, dtype=torch.float64)[:, 0] / 0.5).exp()
    assert (
        abs(float(values.mean()) - float(uniform_mean(0.5, 8)))
        < 5 * float(values.std()) / len(values) ** 0.5
    )
    assert saturation(np.array([0.5, 0.2, 0.1]), 128) == pytest.approx(
        [0.121, 0.0074, 7e-5], rel=0.05
    )
    uniform = unit(4, 20_000, 16, seed=9, dtype=torch.float64)[..., 0]
    aligned = torch.ones(4, dtype=torch.float64)
    for factor, share in ((0.9, 0.0), (1.1, 1.0)):
        tau = factor * float(saturation(0.5, 16))
        assert (
            float(losses.clamped_fraction(aligned, uniform, temperature=0.5, tau_plus=tau)) == share
        )
