"""Lemma 5.1: sub-Gaussian constants against known ones, both sides, the margin that is needed."""

import itertools
import math

import pytest
import torch
from formulas import doubles, generator, normal, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from curlnb.theory.class_collision import collision_constant
from curlnb.theory.competitive import (
    Concentration,
    concentration,
    guarantee,
    lemma_bound,
    margin,
    margin_loss,
    needed_margin,
    needed_share,
    sub_gaussian,
)
from curlnb.theory.finite_worlds import (
    World,
    intraclass_deviation,
    pair_losses,
    random_world,
    search,
)


@pytest.mark.parametrize("p", [0.5, 0.02, 1e-6])
@pytest.mark.parametrize("turn", [None, 0.0, 2.9])
def test_two_points_have_the_constant_of_kearns_and_saul(p, turn):
    """(1 - 2p)/(2 ln((1 - p)/p)) times the squared distance, in one and two dimensions."""
    distance = 1.7
    f = doubles([[0.0], [distance]]) + 0.3
    if turn is not None:
        f = f @ doubles([[math.cos(turn), math.sin(turn)]])
    known = 0.25 if p == 0.5 else (1 - 2 * p) / (2 * math.log((1 - p) / p))
    D = doubles([[1 - p, p]])
    assert float(sub_gaussian(D, f)) == pytest.approx(known * distance**2, rel=1e-6)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([1, 2]))
def test_the_constant_lies_between_variance_and_hoeffding_and_moves_with_f(seed, d):
    """It bounds the moment generating function, ignores shifts, and scales as a square."""
    world, f = random_world(generator(seed), 3, 5), normal(5, d, seed=seed)
    constant = sub_gaussian(world.D, f)
    centred = f - (world.D @ f).unsqueeze(1)
    covariance = torch.einsum("cx,cxi,cxj->cij", world.D, centred, centred)
    assert (constant >= torch.linalg.eigvalsh(covariance)[:, -1] - 1e-12).all()
    assert (constant <= torch.pdist(f).max() ** 2 / 4 + 1e-9).all()
    v = normal(400, d, seed=seed + 1) * torch.logspace(-2, 1.5, 400, dtype=torch.float64)[:, None]
    exponents = (world.D.log().unsqueeze(1) + v @ centred.mT).logsumexp(-1)  # [c, 400]
    assert (exponents <= constant[:, None] * v.square().sum(1) / 2 * (1 + 1e-5) + 1e-12).all()
    assert_close(sub_gaussian(world.D, f + 5), constant, rtol=1e-5, atol=1e-9)
    assert_close(sub_gaussian(world.D, 3 * f), 9 * constant, rtol=1e-5, atol=1e-9)


def test_a_collapsed_class_and_points_that_are_never_drawn_do_not_count():
    D = doubles([[1.0, 0.0], [0.5, 0.5]])
    f = doubles([[1.0, 0.0], [1.0, 0.0]])
    assert float(sub_gaussian(D, f).max()) == 0
    lonely = World(torch.ones(1).double(), doubles([[1.0, 0.0]]))
    found = concentration(lonely, doubles([[0.6, 0.8], [100.0, 0.0]]))
    assert float(found.radius) == pytest.approx(1)
    assert float(found.sigma) == 0


def test_more_than_two_dimensions_are_refused():
    world = random_world(generator(), 2, 3)
    with refused("d = 3"):
        sub_gaussian(world.D, normal(3, 3))


@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_the_margins_follow_their_formulas(radius):
    """The proof's with and without 2 log R; the sharper one solves its equation."""
    c = Concentration(doubles(radius), doubles(0.4))
    for epsilon in (1e-6, 0.01, 0.2):
        expected = 1 + 2 * radius * 0.4 * math.sqrt(
            2 * math.log(max(radius, 1)) + math.log(3 / epsilon)
        )
        assert float(margin(c, epsilon)) == pytest.approx(expected)
        a = float(margin(c, epsilon, sharp=True)) - 1
        spread = radius * 0.4
        assert math.sqrt(math.pi) * spread * math.erfc(a / (2 * spread)) == pytest.approx(
            epsilon, rel=1e-9
        )
        assert a < expected - 1
    assert float(margin(c, 10.0, sharp=True)) == 1


def test_margin_loss_equals_a_loop_and_at_1_it_is_the_mean_classifiers_hinge_loss():
    worlds, f = random_world(generator(2), 4, 5, batch=(6,)), normal(6, 5, 2, seed=3)
    assert_close(margin_loss(worlds, f, 1.0), pair_losses(worlds, f, "hinge").supervised())
    gamma = torch.linspace(0.5, 3, 6).double()
    found = margin_loss(worlds, f, gamma)
    for i in (0, 5):
        rho, D, points = worlds.rho[i], worlds.D[i], f[i]
        means, total = D @ points, 0.0
        for c, e, x in itertools.product(range(4), range(4), range(5)):
            chance = rho[c] * rho[e] * D[c, x] * (c != e) / (1 - rho.square().sum())
            total += chance * max(0, gamma[i] - points[x] @ (means[c] - means[e]))
        assert float(found[i]) == pytest.approx(float(total))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.floats(-1.0, 1.0), st.sampled_from([0.01, 0.3, 2.0]))
def test_lemma_5_1_holds_with_both_margins_and_the_needed_one_is_an_equality(
    seed, log_size, epsilon
):
    worlds, f = (
        random_world(generator(seed), 3, 5, batch=(8,)),
        10**log_size * normal(8, 5, 2, seed=seed),
    )
    left = pair_losses(worlds, f, "hinge").different_class
    assert (left <= lemma_bound(worlds, f, epsilon) * (1 + 1e-9)).all()
    for sharp in (False, True):
        share = needed_share(worlds, f, left, epsilon, sharp=sharp)
        assert (share[share.isfinite()] <= 1 + 1e-9).all()
    target = left - epsilon
    reached = margin_loss(worlds, f, needed_margin(worlds, f, target))
    assert_close(reached, target.clamp_min(0), rtol=1e-9, atol=1e-9)


def test_gradients_of_the_needed_share_agree_with_finite_differences():
    """The search climbs it through the supremum of sigma and the root gamma*."""
    world, f = random_world(generator(8), 3, 4, spread=1.0), normal(4, 2, seed=9)

    def share(table):
        return needed_share(world, table, pair_losses(world, table, "hinge").different_class, 0.05)

    f.requires_grad_()
    (slope,) = torch.autograd.grad(share(f), f)
    direction = normal(4, 2, seed=10)
    with torch.no_grad():
        difference = (share(f + 1e-5 * direction) - share(f - 1e-5 * direction)) / 2e-5
    assert float((slope * direction).sum()) == pytest.approx(float(difference), rel=1e-3, abs=1e-5)


def test_the_search_finds_a_violation_of_a_lowered_margin_and_none_of_the_proved_one():
    def ratio(constant):
        return lambda world, f: (
            pair_losses(world, f, "hinge").different_class
            / lemma_bound(world, f, 0.01, constant=constant)
        )

    options = dict(generator=generator(1), steps=60, restarts=4)
    assert search(ratio(0.1), 3, 5, 2, **options).value > 1
    assert search(ratio(1.0), 3, 5, 2, **options).value <= 1


def test_the_guarantee_bounds_every_member_of_a_class_that_its_minimiser_could_replace():
    """Corollary 5.1.1 with f_hat the minimiser of L_un over 50 linear maps, Gen_M = 0."""
    g = generator(11)
    inputs = torch.eye(3).double().repeat_interleave(3, 0) + 0.3 * normal(9, 3, seed=12)
    f = 2 * inputs @ normal(50, 2, 3, seed=13).mT
    D = (0.9 * torch.eye(3).repeat_interleave(3, 1) / 3 + 0.1 / 9).double()
    rho = torch.softmax(torch.randn(3, generator=g).double(), -1)
    worlds = World(rho.expand(50, 3), D.expand(50, 3, 9))
    pairs = pair_losses(worlds, f, "hinge")
    best = float(pairs.supervised()[pairs.unsupervised.argmin()])
    price = (
        collision_constant("hinge") * pairs.tau / (1 - pairs.tau) * intraclass_deviation(worlds, f)
    )
    epsilons = torch.logspace(-6, 1, 20).double()
    right = guarantee(worlds, f, price, epsilons=epsilons)
    assert best <= float(right.min())
    sides = torch.stack([lemma_bound(worlds, f, float(each)) for each in epsilons])
    assert_close(right, sides.amin(0) + price)
