"""Many negatives against loops, Theorem B.1's chain, blocks."""

import itertools
import math

import pytest
import torch
from formulas import curl, dot, doubles, generator, normal, refused
from torch.testing import assert_close

from curlnb.theory import many_negatives, vector_losses
from curlnb.theory.class_collision import collision_constant
from curlnb.theory.finite_worlds import KINDS, intraclass_deviation, random_world, search
from curlnb.theory.many_negatives import (
    collision_floor,
    collisions,
    expected_block_loss,
    task_distribution,
    task_losses,
    theorem_b1,
)
from curlnb.theory.vector_losses import expected_loss


def outcomes(rho, k):
    """Every tuple (c+, c-_1, ..., c-_k) with its probability."""
    for classes in itertools.product(range(len(rho)), repeat=k + 1):
        yield classes[0], classes[1:], math.prod(rho[c] for c in classes)


# One expectation over k draws


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_expected_loss_equals_the_sum_over_all_tuples(kind, k):
    """With a chance of absence, and with values from -30 to 30."""
    for scale, seed in ((1.0, 1), (10.0, 2)):
        z, p = scale * normal(4, seed=seed), 0.7 * torch.softmax(normal(4, seed=seed + 10), 0)
        values, chances = [*z.tolist(), None], [*p.tolist(), 1 - float(p.sum())]
        total = 0.0
        for draw in itertools.product(range(5), repeat=k):
            v = [-values[i] for i in draw if values[i] is not None]
            total += math.prod(chances[i] for i in draw) * curl(v, kind)
        assert float(expected_loss(z, p, k, kind)) == pytest.approx(total, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("k", [2, 3])
def test_the_sum_over_few_outcomes_is_the_integral(k, monkeypatch):
    """The logistic loss of a few draws is summed; the integral has the same gradients."""
    found = []
    for few in (100, 0):
        monkeypatch.setattr(vector_losses, "_FEW_OUTCOMES", few)
        z, p = (
            (10 * normal(6, 4, seed=5)).requires_grad_(),
            (0.9 * torch.softmax(normal(3, 1, 4, seed=6), -1)).requires_grad_(),
        )
        value = expected_loss(z, p, k, "logistic")
        found.append((value, *torch.autograd.grad(value.square().sum(), (z, p))))
    for summed, integral in zip(*found, strict=True):
        assert_close(summed, integral, rtol=1e-11, atol=1e-12)


def test_expected_loss_at_large_k_in_closed_form():
    """Hinge, k coins of +-1: 2 unless all are tails.

    Logistic, k times the same z: log2(1 + k e^z); zeros: log2(1 + Binomial(k, rho_c)).
    """
    coin = doubles([-1.0, 1.0])
    for k in (2, 10, 50):
        assert float(expected_loss(coin, doubles([0.5, 0.5]), k, "hinge")) == pytest.approx(
            2 * (1 - 0.5**k), abs=1e-14
        )
        for z in (-20.0, 0.0, 3.0, 40.0):
            got = float(expected_loss(doubles([z]), doubles([1.0]), k, "logistic"))
            assert got == pytest.approx(math.log2(1 + k * math.exp(z)), rel=1e-12, abs=1e-13)
        floor = sum(
            r * math.comb(k, n) * r**n * (1 - r) ** (k - n) * math.log2(1 + n)
            for r in (0.3, 0.7)
            for n in range(k + 1)
        )
        assert float(collision_floor(doubles([0.3, 0.7]), "logistic", k)) == pytest.approx(
            floor, abs=1e-12
        )


# Everything in Theorem B.1, written out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_all_quantities_equal_loops_over_every_outcome(kind, k):
    """All chances, distributions, losses and both sides, as sums in plain Python."""
    world, table = random_world(generator(4), 3, 3), normal(3, 2, seed=5)
    rho, D, f = world.rho.tolist(), world.D.tolist(), table.tolist()
    P = range(3)
    mean = [[sum(D[c][x] * f[x][t] for x in P) for t in range(2)] for c in range(3)]
    none = partial = distinct = un = different = floor = 0.0
    joint, joint_partial = {}, {}
    for c, others, chance in outcomes(rho, k):
        collided = [e == c for e in others]
        none += chance * (not any(collided))
        partial += chance * (not all(collided))
        distinct += chance * (len({c, *others}) == k + 1)
        floor += chance * curl([0.0] * sum(collided), kind)
        key = (frozenset({c, *others}), c)
        if not any(collided):
            joint[key] = joint.get(key, 0.0) + chance
        if not all(collided):
            joint_partial[key] = joint_partial.get(key, 0.0) + chance
        for x, p, *n in itertools.product(P, repeat=k + 2):
            weight = (
                chance
                * D[c][x]
                * D[c][p]
                * math.prod(D[e][i] for e, i in zip(others, n, strict=True))
            )
            v = [dot(f[x], f[p]) - dot(f[x], f[i]) for i in n]
            un += weight * curl(v, kind)
            others_v = [each for each, hit in zip(v, collided, strict=True) if not hit]
            different += weight * curl(others_v, kind)

    def on_task(T, c):
        return sum(
            D[c][x] * curl([dot(f[x], mean[c]) - dot(f[x], mean[e]) for e in T if e != c], kind)
            for x in P
        )

    left = average = raised = distinct_loss = 0.0
    for T in {T for T, _ in joint_partial}:
        losses = sum(on_task(T, c) for c in T) / len(T)  # D_T uniform
        left += min(joint.get((T, c), 0.0) for c in T) * len(T) * losses / none
        average += sum(joint.get((T, c), 0.0) for c in T) * losses / none
        raised += max(joint_partial[T, c] for c in T) * len(T) * losses / partial
        distinct_loss += (
            sum(joint.get((T, c), 0.0) for c in T)
            * losses
            * (len(T) == k + 1)
            / (distinct or math.nan)
        )

    chances, sides, per_task = (
        collisions(world.rho, k),
        theorem_b1(world, table, kind, k),
        task_losses(world, table, kind),
    )
    deviation = intraclass_deviation(world, table)
    expected_right = (
        different + k * sum(r * r for r in rho) * collision_constant(kind) * float(deviation)
    ) / none
    pairs = [
        (chances.none, none),
        (chances.partial, partial),
        (chances.distinct, distinct),
        (many_negatives.unsupervised(world, table, kind, k), un),
        (many_negatives.different_class(world, table, kind, k), different / partial),
        (collision_floor(world.rho, kind, k), floor),
        (sides.left, left),
        (sides.middle, (un - floor) / none),
        (sides.right, expected_right),
        (task_distribution(world.rho, k).mean(per_task), average),
        (task_distribution(world.rho, k, partial=True).raised(per_task), raised),
    ]
    if k < 3:  # no 4 distinct classes among 3
        pairs.append((task_distribution(world.rho, k).distinct(per_task, k=k), distinct_loss))
    for got, expected in pairs:
        assert float(got) == pytest.approx(expected, abs=1e-12)
    for (T, c), chance in joint.items():
        row = sum(2**e for e in T)
        assert float(task_distribution(world.rho, k).joint[row, c]) == pytest.approx(
            chance, abs=1e-14
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_theorem_b1_holds_link_by_link_on_random_worlds(kind, k):
    world = random_world(generator(11), 4, 6, batch=(20,), spread=3.0)
    f = torch.exp(normal(20, 1, 1, seed=12)) * normal(20, 6, 2, seed=13)
    sides = theorem_b1(world, f, kind, k)
    slack = 1e-9 * (1 + sides.right)
    assert (sides.left <= sides.middle + slack).all()
    assert (sides.middle <= sides.right + slack).all()
    floor = collision_floor(world.rho, kind, k)  # Eq. 28 with tau_k, where the paper prints tau
    assert (many_negatives.unsupervised(world, f, kind, k) >= floor - 1e-9).all()


# Lemma B.2


@pytest.mark.parametrize("k", [1, 2, 5])
def test_eq_37_holds_with_the_constants_of_its_proof(k):
    """L_un^!= <= gamma E[rho'+_max / p_min L_gamma] + eps; gamma L_gamma grows with gamma."""
    eps = 0.01
    for seed in range(4):
        world, f = (
            random_world(generator(seed), 4, 6, spread=4.0),
            0.8 * normal(6, 2, seed=seed + 50),
        )
        sigma, R = float(torch.cdist(f, f).max()) / 2, float(f.norm(dim=1).max())
        log = math.log(2 * (2 * R**2 + 1) / eps)
        gamma = 1 + sigma * R * (math.sqrt(2 * math.log(k)) + 2 * math.sqrt(2 * log))
        T = task_distribution(world.rho, k, partial=True)
        sides = [
            g * float(T.raised(task_losses(world, f, "hinge", g))) for g in (1.0, gamma, 2 * gamma)
        ]
        assert sides[0] <= sides[1] <= sides[2]
        assert float(many_negatives.different_class(world, f, "hinge", k)) <= sides[1] + eps


# Blocks


@pytest.mark.parametrize("kind", KINDS)
def test_block_loss_equals_loops_and_is_the_pair_loss_at_one(kind):
    world, table = random_world(generator(22), 2, 3), normal(3, 2, seed=23)
    rho, D, f = world.rho.tolist(), world.D.tolist(), table.tolist()
    total = 0.0
    for c, e in itertools.product(range(2), repeat=2):
        for x, p1, p2, n1, n2 in itertools.product(range(3), repeat=5):
            weight = rho[c] * rho[e] * D[c][x] * D[c][p1] * D[c][p2] * D[e][n1] * D[e][n2]
            v = (dot(f[x], f[p1]) + dot(f[x], f[p2]) - dot(f[x], f[n1]) - dot(f[x], f[n2])) / 2
            total += weight * curl([v], kind)
    assert float(expected_block_loss(world, table, kind, 2)) == pytest.approx(total, abs=1e-12)
    for k in (1, 4):
        pair = float(many_negatives.unsupervised(world, table, kind, k))
        assert float(expected_block_loss(world, table, kind, 1, k)) == pytest.approx(
            pair, abs=1e-12
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 3])
def test_proposition_6_2_and_its_tightening(kind, k):
    """L_un >= L_block(2) >= L_block(4) >= ..., down to the loss with class means."""
    world, f = random_world(generator(24), 3, 4), 2 * normal(4, 2, seed=25)
    values = [float(expected_block_loss(world, f, kind, b, k)) for b in (1, 2, 4, 8)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1] + 1e-3
    none, floor = float(collisions(world.rho, k).none), float(collision_floor(world.rho, kind, k))
    assert float(theorem_b1(world, f, kind, k).left) <= (values[-1] - floor) / none + 1e-12


# Gradients, search, errors


def test_search_finds_no_violation_of_b1():
    """The ascent (k = 2, hinge) stays below 1; the right side falls with its constant."""

    def ratio(world, f):
        sides = theorem_b1(world, f, "hinge", 2)
        return sides.left / sides.right

    found = search(ratio, 3, 5, 2, generator=generator(29), restarts=4, steps=60)
    # 1/2 is the constant's: (1 - tau_k) / (1 - tau') = (4/9) / (8/9)
    assert 0.5 < found.value <= 1 + 1e-9
    lower = theorem_b1(found.world, found.f, "hinge", 2, constant=0.3)
    assert lower.left / lower.right > found.value


def test_wrong_arguments_raise_one_line_errors():
    world, f = random_world(generator(31), 3, 4), normal(4, 2)
    cases = [
        (lambda: theorem_b1(world, f, "squared", 2), "'squared'.*'hinge' or 'logistic'"),
        (lambda: theorem_b1(world, f, "hinge", 0), "k is 0"),
        (lambda: expected_block_loss(world, f, "hinge", 60), "b = 60 on 4 points"),
    ]
    for call, message in cases:
        with refused(message):
            call()
