"""Many negatives against loops, Theorem B.1's chain, blocks, Appendix C."""

import itertools
import math

import pytest
import torch

from curlnb.theory import many_negatives, vector_losses
from curlnb.theory.class_collision import collision_constant
from curlnb.theory.finite_worlds import KINDS, World, random_world, search
from curlnb.theory.many_negatives import (
    collision_floor,
    collisions,
    expected_block_loss,
    task_distribution,
    task_losses,
    theorem_b1,
)
from curlnb.theory.vector_losses import expected_loss, vector_loss


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def scalar_loss(z: list[float], kind: str) -> float:
    """The paper's definition, in plain Python, of v = -z; no difference of scores, no loss."""
    if not z:
        return 0.0
    return (
        max(0.0, 1 + max(z))
        if kind == "hinge"
        else math.log2(1 + sum(math.exp(value) for value in z))
    )


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def outcomes(rho: list[float], k: int):
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
            total += math.prod(chances[i] for i in draw) * scalar_loss(
                [values[i] for i in draw if values[i] is not None], kind
            )
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
        torch.testing.assert_close(summed, integral, rtol=1e-11, atol=1e-12)
    monkeypatch.undo()
    far, half = (
        torch.tensor([1e6, -1e6], dtype=torch.float64),
        torch.full((2,), 0.5, dtype=torch.float64),
    )
    # n of the k are the large score
    exactly = sum(
        math.comb(k, n) / 2**k * (1e6 / math.log(2) + math.log2(n)) for n in range(1, k + 1)
    )
    assert float(expected_loss(far, half, k, "logistic")) == pytest.approx(exactly, rel=1e-12)


def test_expected_loss_at_large_k_in_closed_form():
    """Hinge, k coins of +-1: 2 unless all are tails.

    Logistic, k times the same z: log2(1 + k e^z); zeros: log2(1 + Binomial(k, rho_c)).
    """
    coin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    for k in (2, 10, 50):
        assert float(
            expected_loss(coin, torch.full((2,), 0.5).double(), k, "hinge")
        ) == pytest.approx(2 * (1 - 0.5**k), abs=1e-14)
        for z in (-20.0, 0.0, 3.0, 40.0):
            got = float(
                expected_loss(torch.tensor([z]).double(), torch.ones(1).double(), k, "logistic")
            )
            assert got == pytest.approx(math.log2(1 + k * math.exp(z)), rel=1e-12, abs=1e-13)
        floor = sum(
            r * math.comb(k, n) * r**n * (1 - r) ** (k - n) * math.log2(1 + n)
            for r in (0.3, 0.7)
            for n in range(k + 1)
        )
        assert float(
            collision_floor(torch.tensor([0.3, 0.7], dtype=torch.float64), "logistic", k)
        ) == pytest.approx(floor, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_eq_21_and_convexity(kind):
    """l(I1) <= l(I) <= l(I1) + l(I2) for every split, and l((u + v) / 2) <= (l(u) + l(v)) / 2."""
    z = 3 * normal(2000, 5, seed=3)
    whole = vector_loss(z, kind)
    for size in range(6):
        for first in itertools.combinations(range(5), size):
            inside = torch.tensor([i in first for i in range(5)])
            one = vector_loss(torch.where(inside, z, -math.inf), kind)
            other = vector_loss(torch.where(inside, -math.inf, z), kind)
            assert bool((one <= whole + 1e-12).all())
            assert bool((whole <= one + other + 1e-12).all())
    middle = vector_loss((z[:1000] + z[1000:]) / 2, kind)
    assert bool((middle <= (whole[:1000] + whole[1000:]) / 2 + 1e-12).all())


# Everything in Theorem B.1, written out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_all_quantities_equal_loops_over_every_outcome(kind, k):
    """All chances, distributions, losses and both sides, as sums in plain Python."""
    world, table = random_world(generator(4), 3, 3), normal(3, 2, seed=5)
    rho, D, f = world.rho.tolist(), world.D.tolist(), table.tolist()
    P = range(3)
    mean = [[sum(D[c][x] * f[x][t] for x in P) for t in range(2)] for c in range(3)]
    none = partial = distinct = un = different = same = floor = 0.0
    joint, joint_partial = {}, {}
    for c, others, chance in outcomes(rho, k):
        collided = [e == c for e in others]
        none += chance * (not any(collided))
        partial += chance * (not all(collided))
        distinct += chance * (len({c, *others}) == k + 1)
        floor += chance * scalar_loss([0.0] * sum(collided), kind)
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
            z = [dot(f[x], f[i]) - dot(f[x], f[p]) for i in n]
            un += weight * scalar_loss(z, kind)
            different += weight * scalar_loss(
                [v for v, hit in zip(z, collided, strict=True) if not hit], kind
            )
            same += weight * scalar_loss(
                [v for v, hit in zip(z, collided, strict=True) if hit], kind
            )

    def on_task(T, c):
        return sum(
            D[c][x]
            * scalar_loss([dot(f[x], mean[e]) - dot(f[x], mean[c]) for e in T if e != c], kind)
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
    expected_right = (
        different + k * sum(r * r for r in rho) * collision_constant(kind) * float(s(world, table))
    ) / none
    pairs = [
        (chances.none, none),
        (chances.partial, partial),
        (chances.distinct, distinct),
        (many_negatives.unsupervised(world, table, kind, k), un),
        (many_negatives.different_class(world, table, kind, k), different / partial),
        (many_negatives.same_class(world, table, kind, k), same),
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


def s(world: World, f: torch.Tensor) -> torch.Tensor:
    return many_negatives.intraclass_deviation(world, f)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_theorem_b1_holds_link_by_link_on_random_worlds(kind, k):
    world = random_world(generator(11), 4, 6, batch=(20,), spread=3.0)
    f = torch.exp(normal(20, 1, 1, seed=12)) * normal(20, 6, 2, seed=13)
    sides = theorem_b1(world, f, kind, k)
    slack = 1e-9 * (1 + sides.right)
    assert bool((sides.left <= sides.middle + slack).all())
    assert bool((sides.middle <= sides.right + slack).all())
    floor = collision_floor(world.rho, kind, k)  # Eq. 28 with tau_k, where the paper prints tau
    assert bool((many_negatives.unsupervised(world, f, kind, k) >= floor - 1e-9).all())


# Tasks


def test_cover_agrees_with_inclusion_and_exclusion():
    """P(k draws cover S exactly) = sum over U in S of (-1)^|S - U| rho(U)^k."""
    rho, k = torch.softmax(normal(5, seed=17), 0), 6
    T = task_distribution(rho, k)
    for subset in ([0, 3], [1, 2, 4], [0, 1, 2, 3, 4]):
        for c in subset:
            S = [e for e in subset if e != c]
            exact = sum(
                (-1) ** (len(S) - len(U)) * float(rho[list(U)].sum()) ** k
                for n in range(len(S) + 1)
                for U in itertools.combinations(S, n)
            )
            assert float(T.joint[sum(2**e for e in subset), c]) == pytest.approx(
                float(rho[c]) * exact, rel=1e-9
            )


def test_a_uniform_task_distribution_makes_the_left_side_largest():
    """sum_c D_T(c) L_c / p_max has weights of at most 1, and all are 1 where D_T is uniform."""
    rho, losses = torch.softmax(normal(4, seed=18), 0), normal(16, 4, seed=19).abs()
    T = task_distribution(rho, 3)
    for seed in range(20):
        D_T = torch.softmax(2 * normal(16, 4, seed=seed), -1) * T.members
        D_T = D_T / D_T.sum(-1, keepdim=True).clamp_min(1e-300)
        assert float(T.lowered(losses, D_T)) <= float(T.lowered(losses)) + 1e-12
        assert (
            float(T.raised(losses, D_T)) >= float(T.raised(losses)) - 1e-12
            or float(D_T[-1].min()) == 0
        )


def test_remark_of_section_6_1():
    """L_sup <= (1 - tau_k) script-L_sup / p, sharper than the paper's by 1 - tau_k.

    Equal if only tasks of k + 1 classes cost anything.
    """
    for k in (1, 2, 3):
        rho = torch.softmax(normal(5, seed=20), 0)
        T, chances = task_distribution(rho, k), collisions(rho, k)
        losses = T.members * normal(32, 5, seed=21).abs()
        average, distinct = float(T.mean(losses)), float(T.distinct(losses, k=k))
        assert distinct <= float(chances.none / chances.distinct) * average + 1e-12
        only = losses * (T.size == k + 1).unsqueeze(-1)
        assert float(T.distinct(only, k=k)) == pytest.approx(
            float(chances.none / chances.distinct) * float(T.mean(only)), rel=1e-12
        )


# Lemma B.2


@pytest.mark.parametrize("k", [1, 2, 5])
def test_eq_37_holds_with_the_constants_of_its_proof(k):
    """L_un^!= <= gamma E[rho'+_max / p_min L_gamma] + eps; gamma L_gamma grows with gamma."""
    eps = 0.01
    for seed in range(8):
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
            z = (dot(f[x], f[n1]) + dot(f[x], f[n2]) - dot(f[x], f[p1]) - dot(f[x], f[p2])) / 2
            total += weight * scalar_loss([z], kind)
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


# Appendix C


@pytest.mark.parametrize("r", [2.0, 4.0])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_first_example_of_appendix_c_in_closed_form(r, k):
    """Points 3/2 r e_i and 1/2 r e_i.

    L_un = u (1 + r^2/2) + v/2, where u and v are the chances to collide with x^1 or with x^2 only.
    """
    n = 4
    f = torch.zeros(2 * n, n, dtype=torch.float64)
    for i in range(n):
        f[2 * i, i], f[2 * i + 1, i] = 1.5 * r, 0.5 * r
    world = World(
        torch.full((n,), 1 / n, dtype=torch.float64),
        torch.eye(n).double().repeat_interleave(2, 1) / 2,
    )
    u, v = 1 - (1 - 1 / (2 * n)) ** k, (1 - 1 / (2 * n)) ** k - (1 - 1 / n) ** k
    assert float(many_negatives.unsupervised(world, f, "hinge", k)) == pytest.approx(
        u * (1 + r * r / 2) + v / 2, rel=1e-12
    )
    assert float(
        task_distribution(world.rho, k).mean(task_losses(world, f, "hinge"))
    ) == pytest.approx(0, abs=1e-12)


# Gradients, search, errors


def test_search_finds_no_violation_of_b1_and_recovers_a_planted_one():
    """The ascent (k = 2, hinge) stays below 1, and breaks a bound lowered by 3%."""

    def ratio(world, f):
        sides = theorem_b1(world, f, "hinge", 2)
        return sides.left / sides.right

    found = search(ratio, 3, 5, 2, generator=generator(29), restarts=6, steps=120)
    # 1/2 is the constant's: (1 - tau_k) / (1 - tau') = (4/9) / (8/9)
    assert 0.5 < found.value <= 1 + 1e-9

    def planted(world, f):
        sides = theorem_b1(world, f, "hinge", 2)
        return sides.left / (0.97 * found.value * sides.right)

    violation = search(planted, 3, 5, 2, generator=generator(30), restarts=6, steps=120)
    assert violation.value > 1
    sides = theorem_b1(violation.world, violation.f, "hinge", 2)
    assert 0.97 * found.value * float(sides.right) < float(sides.left) <= float(sides.right)


def test_wrong_arguments_raise_one_line_errors():
    world, f = random_world(generator(31), 3, 4), normal(4, 2)
    cases = [
        (lambda: theorem_b1(world, f, "squared", 2), "'squared'.*'hinge' or 'logistic'"),
        (lambda: theorem_b1(world, f, "hinge", 0), "k is 0"),
        (lambda: task_distribution(torch.ones(13) / 13, 2), "13 classes"),
        (lambda: expected_block_loss(world, f, "hinge", 60), "b = 60 on 4 points"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert "\n" not in str(error.value)
