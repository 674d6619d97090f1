"""Packings against known values; Theorem 5 against loops and the cases where it fails."""

import math

import pytest
import torch
from formulas import doubles, generator, normal
from torch.nn.functional import normalize

from curlnb.theory import packing
from curlnb.theory.packing import (
    descend,
    maximise,
    medoids,
    nearest_neighbour_error,
    nearest_squared,
    positive_spread,
    theorem_5,
    worst_loss,
)
from curlnb.theory.worst_case import uniform_world


def uniform(classes):
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


@pytest.mark.parametrize("classes", [2, 4, 5, 7, 9, 12])
def test_tammes_known_packings_are_found(classes):
    found = maximise(uniform(classes), 3, starts=10, generator=generator(), least=True)
    assert math.sqrt(found.value) == pytest.approx(packing.tammes_distance(classes), abs=1e-3)


@pytest.mark.parametrize(
    ("classes", "d", "value"),
    [
        (4, 3, 8 / 3),
        (5, 3, 81 / 40),  # a square pyramid, its base 1/8 below the equator; Tammes' is 2
        # on the circle merging pays from 7 classes: 3 alone and the rest together, or 2 of 3
        # corners
        (8, 2, 6 / 8),
        (13, 3, 11 * (2 - 2 / math.sqrt(5)) / 13),  # two classes share a corner of the icosahedron
    ],
)
def test_equation_7_where_it_is_known_in_closed_form(classes, d, value):
    assert maximise(uniform(classes), d, starts=16, generator=generator()).value == pytest.approx(
        value, abs=1e-6
    )


@pytest.mark.parametrize("common", [0.5, 0.7, 0.9])
def test_three_classes_in_closed_form(common):
    """One class at a pole, the others at cos theta = -common / (4 (1 - common))."""
    cosine = max(-1.0, min(-0.5, -common / (4 * (1 - common))))
    value = common * (2 - 2 * cosine) + (1 - common) * 4 * (1 - cosine**2)
    rho = doubles([common, (1 - common) / 2, (1 - common) / 2])
    assert maximise(rho, 3, starts=10, generator=generator()).value == pytest.approx(
        value, abs=1e-6
    )


def test_worst_loss_of_collapsed_classes_is_equation_7():
    """L*_inf = -(value of Eq. 7) / 2: s = 1 - ||.||^2 / 2, and the positives cancel the 1."""
    v = normalize(normal(4, 3), dim=1)
    world, f = uniform_world(4, 3), v.repeat_interleave(3, 0)
    assert float(worst_loss(world, f)) == pytest.approx(
        -float(nearest_squared(v).mean()) / 2, abs=1e-12
    )
    assert float(packing.alignment(world, f)) == pytest.approx(0, abs=1e-12)


def test_alignment_is_half_the_mean_squared_distance():
    world, f = uniform_world(2, 3), normalize(normal(6, 3), dim=1)
    pairs = [
        (f[i] - f[j]).square().sum() / 2 for i in range(6) for j in range(6) if i // 3 == j // 3
    ]
    assert float(packing.alignment(world, f)) == pytest.approx(float(sum(pairs)) / 18, abs=1e-12)


def test_descent_finds_equation_7_and_collapses_the_classes():
    world = uniform_world(5, 2)
    f = descend(world, 3, starts=6, steps=400, generator=generator())[0]
    assert float(worst_loss(world, f)) == pytest.approx(-81 / 80, abs=5e-4)
    assert float(packing.alignment(world, f)) < 1e-4


def test_medoids_and_the_error_by_hand():
    f = normalize(
        doubles([[1, 0], [1, 0.1], [1, -0.5], [-1, 0], [-1, 0.2], [1, 0.3]]),
        dim=1,
    )
    world = uniform_world(2, 3)
    v = medoids(world, f)
    assert any(torch.equal(v[0], f[i]) for i in range(3))
    spread = [float((f[:3] - f[i]).square().sum()) for i in range(3)]
    assert torch.equal(v[0], f[spread.index(min(spread))])
    assert nearest_neighbour_error(
        world, f, torch.tensor([[1.0, 0], [-1.0, 0]]).double()
    ) == pytest.approx(1 / 6)  # the last point
    assert nearest_neighbour_error(
        world, torch.ones(6, 1).double(), torch.ones(2, 1).double()
    ) == pytest.approx(1)  # ties against us


def test_theorem_5_as_printed_is_broken_by_a_constant_embedding_and_as_proved_says_nothing_there():
    """Ten classes, t = 1: a constant f has excess risk 0.60 and error 0.9 at best.

    The printed bound promises less than 0.01.
    """
    optimum = maximise(uniform(10), 3, starts=12, generator=generator())
    excess = optimum.value / 2  # L*_inf of a constant is 0
    bounds = theorem_5(excess, math.sqrt(float(nearest_squared(optimum.vectors).min())), 10)
    assert excess < 1
    assert bounds.printed < 0.01
    assert bounds.proved == math.inf == bounds.derived


def test_the_proved_bounds_hold_on_random_perturbations_and_in_order():
    optimum = maximise(uniform(4), 3, starts=6, generator=generator())
    xi, world, tried = (
        math.sqrt(float(nearest_squared(optimum.vectors).min())),
        uniform_world(4, 5),
        0,
    )
    for number in range(60):
        noise = 10 ** (-3 + number / 25) * normal(20, 3, seed=number)
        f = normalize(optimum.vectors.repeat_interleave(5, 0) + noise, dim=1)
        excess = float(worst_loss(world, f)) + optimum.value / 2
        bounds = theorem_5(excess, xi, 4)
        error = nearest_neighbour_error(world, f, medoids(world, f))
        assert bounds.derived <= bounds.proved
        assert error <= bounds.derived + 1e-12
        tried += bounds.proved < 1
    assert tried > 5


def test_lemma_11_quantities_by_hand():
    world, f = uniform_world(2, 3), normalize(normal(6, 3), dim=1)
    t, beta = 0.9, 1.5
    values, weights, within = [], [], 0.0
    for x in range(6):
        own = [i for i in range(6) if i // 3 == x // 3]
        e = [math.exp(float(f[x] @ f[i]) / t**2) for i in own]
        q = [v**beta for v in e]
        q = [w / sum(q) for w in q]
        mean = sum(a * b for a, b in zip(q, e, strict=True))
        within += sum(a * (b - mean) ** 2 for a, b in zip(q, e, strict=True)) / 6
        values += e
        weights += [w / 6 for w in q]
    mean = sum(a * b for a, b in zip(weights, values, strict=True))
    spread = positive_spread(world, f, t, beta)
    assert float(spread.variance) == pytest.approx(
        sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
    )
    assert float(spread.within) == pytest.approx(within)
    assert float(spread.step) <= math.exp(2 / t**2) + 1e-9


@pytest.mark.parametrize("beta", [0.0, 1.0, 10.0])
def test_lemma_11_with_an_explicit_constant(beta):
    """Var(X) <= 2 e^{2/t^2} / t^2 L_align.

    The mean square around the largest value of X, e^{1/t^2}; q_beta^+ prefers near points.
    """
    for seed in range(10):
        f, t = normalize(normal(6, 3, seed=seed), dim=1), (0.6, 1.0, 3.0)[seed % 3]
        spread = positive_spread(uniform_world(2, 3), f, t, beta)
        # of a sum of squares of X: with threads it comes out otherwise
        rounding = 16 * torch.finfo(torch.float64).eps * math.exp(2 / t**2)
        assert spread.within <= spread.variance + rounding
        assert spread.variance <= 2 * math.exp(2 / t**2) / t**2 * spread.align
