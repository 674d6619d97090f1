"""Class collisions: losses against loops, Lemma A.1, Theorem 4.5."""

import itertools
import math

import pytest
import torch
from formulas import curl, generator, normal, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from curlnb.theory.class_collision import (
    class_deviations,
    collision_constant,
    collision_losses,
    collision_ratio,
    deviation_weight,
)
from curlnb.theory.finite_worlds import (
    KINDS,
    World,
    intraclass_deviation,
    pair_losses,
    random_world,
    search,
    tau,
)


def at_zero(kind, t):
    return 1.0 if kind == "hinge" else math.log2(1 + t)


def extremal_class(points, t, distance):
    """Points at the quantile function (t + 1) u^t - 1, far out.

    For them Hartley and David's inequality is an equality.
    """
    edges = torch.linspace(0, 1, points + 1, dtype=torch.float64) ** (t + 1)
    spread = points * edges.diff() - 1
    return torch.full((1, points), 1 / points, dtype=torch.float64), (
        distance**2 + distance * spread
    ).unsqueeze(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [1, 2])
def test_collision_losses_and_deviations_equal_loops_over_every_outcome(kind, t):
    world, f = random_world(generator(1), 2, 3), normal(3, 2, seed=2)
    for c in range(2):
        expected = 0.0
        for x, positive, *negatives in itertools.product(range(3), repeat=t + 2):
            chance = math.prod(float(world.D[c, point]) for point in (x, positive, *negatives))
            v = [float(f[x] @ (f[positive] - f[negative])) for negative in negatives]
            expected += chance * curl(v, kind)
        assert float(collision_losses(world.D, f, kind, t)[c]) == pytest.approx(expected, abs=1e-12)
        mean = sum(world.D[c, x] * f[x] for x in range(3))
        covariance = sum(world.D[c, x] * torch.outer(f[x] - mean, f[x] - mean) for x in range(3))
        deviation = torch.linalg.matrix_norm(covariance, 2).sqrt() * sum(
            world.D[c, x] * f[x].norm() for x in range(3)
        )
        assert float(class_deviations(world.D, f)[c]) == pytest.approx(float(deviation), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_negative_gives_the_diagonal_of_the_pair_losses(kind):
    """And the mean under nu gives L_un^= and s(f), for many worlds at once."""
    worlds, f = random_world(generator(3), 4, 5, batch=(7,)), normal(7, 5, 2, seed=4)
    pairs = pair_losses(worlds, f, kind)
    losses = collision_losses(worlds.D, f, kind)
    assert_close(losses, pairs.contrastive.diagonal(dim1=-2, dim2=-1))
    nu = worlds.rho**2 / tau(worlds.rho)[:, None]
    assert_close((nu * losses).sum(-1), pairs.same_class)
    deviation = intraclass_deviation(worlds, f)
    assert_close((nu * class_deviations(worlds.D, f)).sum(-1), deviation)
    assert_close(collision_ratio(worlds, f, kind) * deviation, pairs.same_class - 1)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    t=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    size=st.floats(-2, 2),
    distance=st.floats(0, 30),
    spread=st.floats(0, 6),
)
def test_lemma_a1_holds_for_every_class_with_the_papers_constant_and_with_the_sharp_one(
    kind, t, seed, size, distance, spread
):
    world = random_world(generator(seed), 3, 5, spread=spread)
    f = math.exp(size) * (normal(5, 2, seed=seed + 1) + distance)
    cost = collision_losses(world.D, f, kind, t) - at_zero(kind, t)
    deviation = class_deviations(world.D, f)
    scale = 1e-9 * (1 + float(f.square().max()))
    assert bool((cost >= -scale).all())  # Jensen
    assert (cost <= collision_constant(kind, t, sharp=True) * t * deviation + scale).all()
    assert collision_constant(kind, t, sharp=True) < collision_constant(kind, t)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("t", "points"), [(1, 40), (2, 24), (3, 12)])
def test_the_sharp_constant_is_attained_in_the_limit(kind, t, points):
    """An extremal class far from the origin comes within 2% at every t, for 12 points."""
    D, f = extremal_class(points, t, distance=200.0)
    ratio = float(collision_ratio(World(torch.ones(1, dtype=torch.float64), D), f, kind, t))
    assert 0.98 < ratio / collision_constant(kind, t, sharp=True) < 1


@pytest.mark.parametrize(("kind", "t"), [("hinge", 1), ("logistic", 1), ("hinge", 2)])
def test_search_reaches_the_sharp_constant(kind, t):
    """Jointly over f, rho and D: a constant 3% smaller would be broken.

    With t = 1 and 6 points the best is exactly sqrt(1 - 1/36) of the limit (a uniform grid).
    """

    def ratio(world, f):
        return collision_ratio(world, 100 * f, kind, t)

    found = search(ratio, 2, 6, 1, generator=generator(8), steps=250, restarts=4)
    limit = collision_constant(kind, t, sharp=True) * (math.sqrt(1 - 1 / 36) if t == 1 else 1)
    assert 0.97 * limit < found.value < limit
    assert float(ratio(found.world, found.f)) == pytest.approx(found.value, abs=1e-12)


def theorem_4_5(world, f, kind, *, sharp, times=1.0):
    """The right side without Gen_M, L_un^!= + beta s(f)."""
    beta = deviation_weight(world.rho, times * collision_constant(kind, sharp=sharp))
    return pair_losses(world, f, kind).different_class + beta * intraclass_deviation(world, f)


@pytest.mark.parametrize("kind", KINDS)
def test_theorem_4_5_holds_for_the_minimiser_of_a_class_of_representations(kind):
    """In 40 worlds f_hat minimises L_un over 50 tables.

    Its mean classifier's loss is below the right side of every other one.
    """
    world = random_world(generator(10), 3, 6, batch=(40, 1), spread=3.0)
    world = World(world.rho.expand(40, 50, 3), world.D.expand(40, 50, 3, 6))
    f = (
        normal(40, 50, 6, 2, seed=11)
        * torch.logspace(-1, 0.5, 50, dtype=torch.float64)[:, None, None]
    )
    pairs = pair_losses(world, f, kind)
    chosen = pairs.unsupervised.argmin(1, keepdim=True)
    left = pairs.supervised().gather(1, chosen)
    for sharp in (False, True):
        assert (left <= theorem_4_5(world, f, kind, sharp=sharp) + 1e-9).all()
    # the term beta s(f) cannot be left out
    assert (left > pairs.different_class + 1e-3).any()


@pytest.mark.parametrize("kind", KINDS)
def test_search_breaks_theorem_4_5_only_if_its_constant_is_too_small(kind):
    """For F = {f, 0}: where L_un(f) >= 1 the minimiser is 0, whose loss is 1.

    So L_un^!=(f) + beta s(f) may not fall below 1.
    """

    def violation(times):
        def objective(world, f):
            right = theorem_4_5(world, f, kind, sharp=True, times=times)
            return torch.minimum(pair_losses(world, f, kind).unsupervised - 1, 1 - right)

        return search(objective, 3, 6, 2, generator=generator(12), steps=100, restarts=8).value

    assert violation(1.0) <= 1e-9
    assert violation(0.5) > 1e-3


def test_beta_of_balanced_classes_and_of_one_that_takes_all():
    uniform = torch.full((10,), 0.1, dtype=torch.float64)
    assert float(deviation_weight(uniform, 1.5)) == pytest.approx(1.5 / 9)
    rare = torch.tensor([1 - 1e-6, 1e-6], dtype=torch.float64)
    assert float(deviation_weight(rare, 1.0)) == pytest.approx(5e5, rel=1e-3)


def test_wrong_arguments_raise_one_line_errors():
    world, f = random_world(generator(15), 2, 3), normal(3, 2)
    for call, message in (
        (lambda: collision_losses(world.D, f, "hinge", 0), "k is 0"),
        (lambda: collision_constant("squared"), "'squared'.*'hinge' or 'logistic'"),
    ):
        with refused(message):
            call()
