"""Lemma 4 where its proof holds, a search that would notice a violation, Theorem 5's terms."""

import itertools
import math

import numpy as np
import pytest
import torch
from formulas import doubles, generator, refused, unit

from curlnb.theory import debiasing, finite_worlds, generalization
from curlnb.theory.finite_worlds import World, random_world
from curlnb.theory.generalization import (
    debiased_loss,
    lemma4_factor,
    mean_classifier_loss,
    softmax_classifier_loss,
    tuple_loss,
)


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
    best = softmax_classifier_loss(world, f, 3)
    assert best <= float(mean_classifier_loss(world, f, 3)) + 1e-9
    g = generator(1)
    tasks = list(itertools.combinations(range(4), 3))
    for _ in range(5):  # any classifiers do at best as well
        value = 0.0
        for task in tasks:
            scores = (
                f
                @ (
                    torch.randn(3, 3, generator=g, dtype=torch.float64) + (world.D @ f)[list(task)]
                ).T
            )
            value -= float((world.D[list(task)].T * scores.log_softmax(-1)).sum()) / (
                3 * len(tasks)
            )
        assert best <= value + 1e-6


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

    assert 2.5 < found(1, equal) <= lemma4_factor(equal, 1, 4) == pytest.approx(3)
    assert 0.99 < found(3, equal) <= 1 + 1e-9
    unequal = generalization.geometric(5, 10.0)
    assert 1.5 < found(100, unequal) <= lemma4_factor(unequal, 100, 4) + 1e-9


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


def test_the_loss_of_a_sample_stays_in_its_range_and_attains_both_ends():
    e = doubles([1.0, 0.0, 0.0])
    for N, tau, t in ((1, 0.1, 0.5), (8, 0.0, 1.0), (8, 0.4, 0.2)):
        low, high = generalization.loss_range(N, tau, t)
        many, two = e.expand(1, N, 3), e.expand(1, 2, 3)
        worst = tuple_loss(e[None], -e[None], many, -two, tau_plus=tau, temperature=t)
        best = tuple_loss(e[None], e[None], -many, two, tau_plus=tau, temperature=t)
        assert (float(best), float(worst)) == pytest.approx((low, high), rel=1e-12)
        x = unit(500, N + 4, 3, dtype=torch.float64)
        losses = tuple_loss(
            x[:, 0], x[:, 1], x[:, 2 : 2 + N], x[:, 2 + N :], tau_plus=tau, temperature=t
        )
        assert low <= float(losses.min()) < float(losses.max()) <= high
        e_all = ((x[:, :1] * x[:, 1:]).sum(-1) / t).exp()  # of the positive, N u's and two v's
        plus, u, v = e_all[:, 0], e_all[:, 1 : 1 + N].mean(1), e_all[:, 1 + N :].mean(1)
        g = ((u - tau * v) / (1 - tau)).clamp_min(math.exp(-1 / t))
        torch.testing.assert_close(losses, (1 + N * g / plus).log())


def test_no_gradient_is_longer_than_the_lipschitz_constant_and_some_are_nearly_as_long():
    g = generator()
    shares = {}
    for (N, M), tau, t in itertools.product(
        ((1, 1), (4, 1), (16, 2)), (0.0, 0.1, 0.5), (1.0, 0.5, 0.2)
    ):
        table = torch.randn(200, N + M + 2, 3, generator=g, dtype=torch.float64)
        # some opposite the anchor
        table[:100, 1:] -= (
            4 * table[:100, :1] * torch.randint(0, 2, (100, N + M + 1, 1), generator=g)
        )
        f = torch.nn.functional.normalize(table, dim=-1).requires_grad_()
        losses = tuple_loss(
            f[:, 0], f[:, 1], f[:, 2 : 2 + N], f[:, 2 + N :], tau_plus=tau, temperature=t
        )
        (gradient,) = torch.autograd.grad(losses.sum(), f)
        shares[N, M, tau, t] = float(
            gradient.flatten(1).norm(dim=1).max()
        ) / generalization.lipschitz(N, M, tau, t)
    assert max(shares.values()) <= 1
    assert shares[1, 1, 0.0, 0.2] > 0.9


def test_printed_terms_are_the_papers_formulas():
    assert generalization.printed_B(1, 0.1) == 0  # and yet a loss with one negative is not constant
    assert generalization.loss_range(1, 0.1, 0.5)[1] > generalization.loss_range(1, 0.1, 0.5)[0] + 1
    for N, M, tau in ((1, 1, 0.1), (510, 3, 0.2), (7, 90, 0.0)):
        other_form = math.sqrt((N + M) * (1 / (N * (1 - tau) ** 2) + tau**2 / M))
        terms = generalization.printed_terms(N, M, 10, tau, 20.0)
        assert terms.complexity == pytest.approx(2 * other_form)
    terms = generalization.printed_terms(4, 1, 100, 0.5, 30.0, delta=math.exp(-4))
    assert tuple(terms) == pytest.approx((1.0, 1.0, math.sqrt(6.25) * 0.3, math.log(4) * 2.5 * 0.2))
    assert terms.total == pytest.approx(sum(terms))


def test_derived_terms_agree_with_theorem_3_and_vanish_with_more_of_everything():
    terms = generalization.derived_terms(
        64, 4, 1000, 0.1, 0.5, generalization.linear_rademacher(64, 4, 1000, 16)
    )
    assert terms.negatives + terms.positives == pytest.approx(
        debiasing.theorem3_bound(64, 4, 0.1, 0.5)
    )
    n = 10**8
    few = generalization.derived_terms(
        n, n, 10**22, 0.1, 0.5, generalization.linear_rademacher(n, n, 10**22, 16)
    )
    assert few.total < 0.01


def test_the_rademacher_average_of_linear_maps_stays_below_its_closed_form():
    # (N + M + 2) T = 40
    inputs = unit(40, 6, dtype=torch.float64)
    signs = 2 * torch.randint(0, 2, (1000, 3, 40), generator=generator(1)).double() - 1
    reached = torch.linalg.matrix_norm(signs @ inputs)  # by the best map of norm 1
    mean, error = float(reached.mean()), float(reached.std()) / math.sqrt(1000)
    assert 0.9 * generalization.linear_rademacher(2, 1, 8, 3) < mean - 4 * error
    assert mean + 4 * error < generalization.linear_rademacher(2, 1, 8, 3) * 1.02


def test_bad_input_is_answered_in_one_line():
    world, f = world_and_f()
    with refused("K is 5: a task has from 2 to all 4 classes"):
        mean_classifier_loss(world, f, 5)
