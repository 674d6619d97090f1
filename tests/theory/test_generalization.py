"""Lemma 4 where its proof holds, and a search that would notice a violation."""

import itertools
import math

import numpy as np
import pytest
import torch
from formulas import doubles, generator

from curlnb.theory import finite_worlds, generalization
from curlnb.theory.finite_worlds import World, random_world
from curlnb.theory.generalization import debiased_loss, mean_classifier_loss


def world_and_f(seed=0, classes=4, points=5, dim=3, *, batch=(), uniform=True, scale=1.5):
    g = generator(seed)
    world = random_world(g, classes, points, batch=batch, uniform=uniform)
    return world, scale * torch.randn(*batch, points, dim, generator=g, dtype=torch.float64)


def test_both_sides_of_lemma_4_equal_sums_written_out_by_hand():
    world, f = world_and_f(uniform=False)
    rho, D, points = world.rho.numpy(), world.D.numpy(), f.numpy()
    right = 0.0
    for c, x, p in itertools.product(range(4), range(5), range(5)):
        mean = sum(
            rho[e] / (1 - rho[c]) * D[e] @ np.exp(points @ points[x]) for e in range(4) if e != c
        )
        right += rho[c] * D[c, x] * D[c, p] * np.log(1 + 7 * mean / np.exp(points[x] @ points[p]))
    assert float(debiased_loss(world, f, 7)) == pytest.approx(right, rel=1e-12)
    means, left, tasks = D @ points, 0.0, list(itertools.combinations(range(4), 3))
    for task in tasks:
        for c, x in itertools.product(task, range(5)):
            scores = [points[x] @ means[e] for e in task]
            left -= (
                D[c, x]
                * np.log(np.exp(points[x] @ means[c]) / np.exp(scores).sum())
                / (3 * len(tasks))
            )
    assert float(mean_classifier_loss(world, f, 3)) == pytest.approx(left, rel=1e-12)


@pytest.mark.parametrize("K", [2, 3, 4])
def test_lemma_4_holds_from_k_minus_1_negatives_on_and_not_below(K):
    for scale in (0.1, 1.0, 4.0):
        world, f = world_and_f(K, batch=(50,), scale=scale)
        left = mean_classifier_loss(world, f, K)
        for N in (K - 1, 20):
            assert (left <= debiased_loss(world, f, N) * (1 + 1e-12)).all()
        below = debiased_loss(world, f, 0.5 * (K - 1))
        assert (left <= 2 * below * (1 + 1e-12)).all()
        if scale == 0.1:  # nearly constant: log K against log(1 + N)
            assert (left > below).all()


def test_the_best_classifier_is_no_worse_than_the_mean_one_and_no_other_is_better():
    world, f = world_and_f(3)
    best = finite_worlds.best_softmax(f.numpy(), world.D.numpy() / 4)
    assert best <= float(mean_classifier_loss(world, f, 4)) + 1e-9
    g = generator(1)
    for _ in range(5):  # any classifiers do at best as well
        classifiers = torch.randn(4, 3, generator=g, dtype=torch.float64) + world.D @ f
        scores = f @ classifiers.T
        assert best <= -float((world.D.T * scores.log_softmax(-1)).sum()) / 4 + 1e-6


@pytest.mark.parametrize(("classes", "K"), [(4, 2), (4, 4), (5, 3)])
def test_the_collapsed_simplex_makes_lemma_4_an_equality(classes, K):
    world, f = generalization.simplex(classes, 2.5)
    assert torch.allclose((f @ f.T).diagonal(), doubles(2.5))
    assert torch.allclose(
        mean_classifier_loss(world, f, K), debiased_loss(world, f, K - 1), rtol=1e-12
    )


def test_the_search_finds_a_planted_violation_and_stays_below_the_factor():
    """With one negative where the lemma asks for three, the worst ratio is 3.

    A search that could not find that would prove nothing.
    """
    equal = torch.full((5,), 0.2, dtype=torch.float64)

    def found(N, rho):
        def ratio(world, f):
            return mean_classifier_loss(world, f, 4) / debiased_loss(world, f, N)

        return finite_worlds.search(
            ratio, 5, 6, 4, generator=generator(), rho=rho, steps=120, radius=3.0
        ).value

    assert 2.5 < found(1, equal) <= 3 + 1e-9
    assert 0.99 < found(3, equal) <= 1 + 1e-9
    unequal = generalization.geometric(5, 10.0)
    # only the weight of the rarest class is left
    assert 1.5 < found(100, unequal) <= float(1 / (5 * unequal.min())) + 1e-9


def test_an_assumed_prior_is_exact_where_it_is_true_and_is_the_biased_loss_at_0():
    world, f = world_and_f(5)
    assert torch.allclose(
        debiased_loss(world, f, 9, tau_plus=0.25), debiased_loss(world, f, 9), rtol=1e-10
    )
    marginal = (world.rho @ world.D) @ (f @ f.T).exp()  # [x]
    assert torch.allclose(
        generalization.negative_mean(world, f, tau_plus=0.0),
        marginal.log().unsqueeze(1).expand(5, 4),
        rtol=1e-12,
    )
    unequal = World(generalization.geometric(4, 8.0), world.D)
    collapsed = World(unequal.rho, torch.eye(4, dtype=torch.float64))
    corners = generalization.simplex(4, 2.0)[1]
    error = (
        generalization.negative_mean(collapsed, corners, tau_plus=0.25)
        - generalization.negative_mean(collapsed, corners)
    ).diagonal()
    # frequent classes keep false negatives, rare ones lose true ones
    assert ((error > 0) == (unequal.rho > 0.25)).all()
    low = generalization.negative_mean(collapsed, corners, tau_plus=0.9, floor=math.exp(-4))
    assert float(low.min()) == pytest.approx(-4)
