"""Worst-case negatives against loops and the library; limits and bounds."""

import math

import pytest
import torch
from formulas import generator, unit
from torch.testing import assert_close

from curlnb.losses import hard, hard_corrected
from curlnb.theory import worst_case
from curlnb.theory.worst_case import (
    LabelledWorld,
    equation_4_mean,
    game_loss,
    hardest_mean,
    uniform_world,
)


def world_and_similarities(seed, points=7, t=0.5, d=3):
    g = generator(seed)
    p = torch.softmax(torch.randn(points, generator=g, dtype=torch.float64), 0)
    labels = torch.cat([torch.arange(2), torch.randint(3, (points - 2,), generator=g)])
    f = unit(points, d, seed=seed + 1, dtype=torch.float64)
    return LabelledWorld(p, labels), f @ f.T / t


def by_hand(world, u, beta, Q):
    """E_{q_beta^-} e^u of each anchor and L(f, q_beta^-), by their definitions in Python."""
    p, h, means, total = world.p.tolist(), world.labels.tolist(), [], 0.0
    for x in range(len(p)):
        q = [p[i] * math.exp(beta * float(u[x, i])) if h[i] != h[x] else 0.0 for i in range(len(p))]
        means.append(sum(q[i] * math.exp(float(u[x, i])) for i in range(len(p))) / sum(q))
        own = sum(p[i] for i in range(len(p)) if h[i] == h[x])
        for i in range(len(p)):
            if h[i] == h[x]:
                e = math.exp(float(u[x, i]))
                total -= p[x] * p[i] / own * math.log(e / (e + Q * means[x]))
    return means, total


@pytest.mark.parametrize("beta", [0.0, 0.7, 5.0])
def test_means_and_loss_equal_the_definitions(beta):
    for seed in range(3):
        world, u = world_and_similarities(seed)
        means, total = by_hand(world, u, beta, 3.0)
        log_mean = hardest_mean(world, u, beta)
        assert_close(log_mean.exp(), torch.tensor(means, dtype=torch.float64))
        assert float(game_loss(world, u, log_mean, 3.0)) == pytest.approx(total, rel=1e-12)


def test_equation_4_and_the_consistent_estimator_are_those_of_the_losses():
    """With all points as negatives and each anchor's class as positives (N = 1, no floor)."""
    world = uniform_world(3, 4)
    f = unit(12, 3, dtype=torch.float64)
    s, t = f @ f.T, 0.5
    own, zeros = s[world.same].view(12, 4), torch.zeros(12, dtype=torch.float64)
    options = dict(tau_plus=1 / 3, beta=1.5, extra_pos=own, n_eff=1, floor=None, temperature=t)
    assert_close(hard(zeros, s, **options).expm1(), equation_4_mean(world, s / t, 1.5))
    assert_close(hard_corrected(zeros, s, **options).expm1(), hardest_mean(world, s / t, 1.5).exp())


def test_equation_4_errs_by_the_excess_mass_times_the_difference_of_the_means():
    for seed in range(3):
        world, u = world_and_similarities(seed)
        own, other = (
            worst_case.log_tilted_mean(u, world.positives, 2.0).exp(),
            hardest_mean(world, u, 2.0).exp(),
        )
        tilted = world.p * (2 * u).exp()  # q_beta, not normalised
        mass = (tilted * world.same).sum(1) / tilted.sum(1)  # where Eq. 2 has tau+
        excess = mass - world.tau_plus
        assert_close(
            equation_4_mean(world, u, 2.0), other + excess * (own - other) / (1 - world.tau_plus)
        )


@pytest.mark.parametrize("include_anchor", [True, False])
def test_limits_are_approached(include_anchor):
    """At beta = 400 the tilted distributions sit on their maxima.

    Eq. 4's limit is e^{1/t} where the anchor is among the points, and never below e^M.
    """
    for seed in range(6):
        world, u = world_and_similarities(seed)
        # a copy of each point on its own place is what makes the anchor its own nearest neighbour
        if not include_anchor:
            u = u - 5 * torch.eye(7, dtype=torch.float64)
        assert_close(
            hardest_mean(world, u, 400.0), hardest_mean(world, u, math.inf), rtol=0, atol=0.02
        )
        limit = equation_4_mean(world, u, 1e5)
        assert (limit >= 0.999 * hardest_mean(world, u, math.inf).exp()).all()
        if include_anchor:
            assert_close(limit, torch.full_like(limit, math.exp(2)), rtol=1e-3, atol=0)


def test_the_loss_rises_with_beta_below_the_supremum_and_within_the_bound():
    for seed in range(20):
        t = (0.1, 0.5, 2.0)[seed % 3]
        world, u = world_and_similarities(seed, t=t)
        top, before = float(game_loss(world, u, hardest_mean(world, u, math.inf))), -math.inf
        for beta in (0.1, 1.0, 10.0, 100.0, 1000.0):
            value = float(game_loss(world, u, hardest_mean(world, u, beta)))
            assert before - 1e-12 <= value <= top + 1e-12
            assert top - value <= float(worst_case.rate_bound(world, u, beta)) + 1e-12
            before = value


def test_no_family_of_distributions_beats_the_supremum():
    world, u = world_and_similarities(2)
    top = game_loss(world, u, hardest_mean(world, u, math.inf))
    g = generator()
    for _ in range(50):
        q = torch.rand(7, 7, generator=g, dtype=torch.float64) ** 4 * ~world.same
        assert game_loss(world, u, (q / q.sum(1, keepdim=True) * u.exp()).sum(1).log()) <= top
