"""Finite worlds: contractions against loops, the lemmas, a search for violations."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from curlnb.losses import curl_loss
from curlnb.theory import finite_worlds, generalization
from curlnb.theory.finite_worlds import (
    KINDS,
    World,
    empirical_pair_losses,
    intraclass_deviation,
    pair_losses,
    random_world,
    search,
    tau,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def collapsed_world(classes: int) -> World:
    """A class a point: Jensen's inequality has nothing to lose."""
    return World(torch.softmax(normal(classes), -1), torch.eye(classes, dtype=torch.float64))


def scalar_loss(v: float, kind: str) -> float:
    return max(0.0, 1 - v) if kind == "hinge" else math.log2(1 + math.exp(-v))


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


# The contractions are the paper's expectations


@pytest.mark.parametrize("kind", KINDS)
def test_contractions_equal_loops_over_every_outcome(kind):
    """Definitions 2.1 to 2.3, Eq. 8 and tau, as sums in plain Python."""
    world, table = random_world(generator(1), 3, 4), normal(4, 2, seed=2)
    rho, D, f = world.rho.tolist(), world.D.tolist(), table.tolist()
    C, P = range(3), range(4)
    mean = [[sum(D[c][x] * f[x][t] for x in P) for t in range(2)] for c in C]
    unsupervised = same = different = 0.0
    for c, e, x, p, n in itertools.product(C, C, P, P, P):
        term = (
            rho[c]
            * rho[e]
            * D[c][x]
            * D[c][p]
            * D[e][n]
            * scalar_loss(dot(f[x], f[p]) - dot(f[x], f[n]), kind)
        )
        unsupervised += term
        same, different = (same + term, different) if c == e else (same, different + term)
    collision = sum(r * r for r in rho)

    def task(c, e):
        return sum(
            0.5 * D[a][x] * scalar_loss(dot(f[x], mean[a]) - dot(f[x], mean[b]), kind)
            for a, b in ((c, e), (e, c))
            for x in P
        )

    pairs = list(itertools.combinations(C, 2))
    proportional = sum(rho[c] * rho[e] * task(c, e) for c, e in pairs) / sum(
        rho[c] * rho[e] for c, e in pairs
    )
    uniform = sum(task(c, e) for c, e in pairs) / len(pairs)

    losses = pair_losses(world, table, kind)
    got = [
        tau(world.rho),
        losses.tau,
        losses.unsupervised,
        losses.same_class,
        losses.different_class,
    ]
    got += [losses.supervised(), losses.supervised("uniform"), losses.bound(), losses.bound(0.3)]
    bound = (unsupervised - collision) / (1 - collision)
    expected = [collision, collision, unsupervised, same / collision, different / (1 - collision)]
    expected += [proportional, uniform, bound, bound + 0.3 / (1 - collision)]
    assert [float(value) for value in got] == pytest.approx(expected, abs=1e-12)


def test_intraclass_deviation_equals_loops_over_every_outcome():
    world, table = random_world(generator(3), 3, 5), normal(5, 2, seed=4)
    total = 0.0
    for c in range(3):
        mean = sum(world.D[c, x] * table[x] for x in range(5))
        covariance = sum(
            world.D[c, x] * torch.outer(table[x] - mean, table[x] - mean) for x in range(5)
        )
        norm = sum(world.D[c, x] * table[x].norm() for x in range(5))
        total += world.rho[c] ** 2 * torch.linalg.matrix_norm(covariance, 2).sqrt() * norm
    assert float(intraclass_deviation(world, table)) == pytest.approx(
        float(total / (world.rho**2).sum()), abs=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_data_is_a_world_whose_points_are_the_samples(kind):
    """Chunked losses of labelled features equal those of the finite world."""
    labels = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0, 2])
    features = normal(9, 3, seed=8)
    counts = torch.bincount(labels).double()
    D = torch.nn.functional.one_hot(labels).double().mT / counts.unsqueeze(1)
    expected = pair_losses(World(counts / 9, D), features, kind)
    for chunk in (1, 50, 10_000):  # one anchor at a time, a few, all at once
        losses = empirical_pair_losses(features, labels, kind, chunk=chunk)
        for name in ("rho", "contrastive", "mean_classifier"):
            torch.testing.assert_close(
                getattr(losses, name), getattr(expected, name), rtol=0, atol=1e-12
            )
    rho = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    reweighted = empirical_pair_losses(features, labels, kind, rho=rho)
    torch.testing.assert_close(
        reweighted.bound(), pair_losses(World(rho, D), features, kind).bound(), rtol=0, atol=1e-12
    )
    single = empirical_pair_losses(features.float(), labels, kind)
    # float32 losses, float64 sums
    torch.testing.assert_close(single.unsupervised, expected.unsupervised, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_one_that_trains(kind):
    """At k = 1 the theory's loss of a difference is `losses.curl_loss`."""
    anchor, positive, negative = normal(3, 50, 4, seed=40).float()
    trained = curl_loss(anchor, positive, negative.unsqueeze(1), kind)
    torch.testing.assert_close(
        finite_worlds.loss((anchor * (positive - negative)).sum(-1), kind),
        trained,
        rtol=1e-5,
        atol=1e-5,
    )


def test_batched_worlds_are_separate_worlds():
    world, f = (random_world(generator(9), 3, 5, batch=(2, 4)), normal(2, 4, 5, 2, seed=10))
    batched = pair_losses(world, f, "logistic")
    for i, j in itertools.product(range(2), range(4)):
        one = pair_losses(World(world.rho[i, j], world.D[i, j]), f[i, j], "logistic")
        for name in ("contrastive", "mean_classifier", "tau"):
            torch.testing.assert_close(getattr(batched, name)[i, j], getattr(one, name))
        torch.testing.assert_close(batched.supervised("uniform")[i, j], one.supervised("uniform"))
        torch.testing.assert_close(
            intraclass_deviation(world, f)[i, j],
            intraclass_deviation(World(world.rho[i, j], world.D[i, j]), f[i, j]),
        )


# What the paper states


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    classes=st.integers(2, 6),
    points=st.integers(1, 8),
    dim=st.integers(1, 4),
    scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    spread=st.sampled_from([0.0, 1.0, 5.0]),
    kind=st.sampled_from(KINDS),
)
def test_lemma_4_3_and_its_steps_hold_on_any_world(seed, classes, points, dim, scale, spread, kind):
    """Jensen for every pair; l(0) = 1 on the diagonal; Eq. 8; L_un^= >= 1; L_un >= tau."""
    world = random_world(generator(seed), classes, points, spread=spread)
    losses = pair_losses(world, scale * normal(points, dim, seed=seed + 1), kind)
    slack = 1e-12 * (1 + float(losses.contrastive.max()))
    assert bool((losses.contrastive >= losses.mean_classifier - slack).all())
    torch.testing.assert_close(
        losses.mean_classifier.diagonal(),
        torch.ones(classes, dtype=torch.float64),
        rtol=0,
        atol=slack,
    )
    mixture = losses.tau * losses.same_class + (1 - losses.tau) * losses.different_class
    assert float(losses.unsupervised) == pytest.approx(float(mixture), abs=slack)
    assert float(losses.same_class) >= 1 - slack
    assert float(losses.unsupervised) >= float(losses.tau) - slack
    assert float(losses.supervised()) <= float(losses.bound()) + slack / (1 - float(losses.tau))


@pytest.mark.parametrize("kind", KINDS)
def test_lemma_4_3_is_an_equality_when_classes_collapse(kind):
    """Jensen's inequality is an equality if f is constant on every class."""
    losses = pair_losses(collapsed_world(4), normal(4, 2, seed=12), kind)
    assert float(losses.supervised()) == pytest.approx(float(losses.bound()), abs=1e-12)
    assert abs(float(losses.supervised()) - 1) > 0.01  # and not only because f is constant


def test_uniform_pairs_break_the_lemma_by_one_minus_two_over_c():
    """TRAPS 7: tasks drawn uniformly while rho is not.

    Two common classes at +-1 and C - 2 rare ones at 0 (hinge, R = 1) have right side 0 in the
    limit, and uniform tasks lose 1/2 on common-rare and 1 on rare-rare pairs: 1 - 2/C in all.
    """
    for classes in (3, 4, 10, 50):
        rho = torch.full((classes,), 1e-9, dtype=torch.float64)
        rho[:2] = (1 - rho[2:].sum()) / 2
        f = torch.zeros(classes, 1, dtype=torch.float64)
        f[0], f[1] = 1, -1
        losses = pair_losses(World(rho, torch.eye(classes, dtype=torch.float64)), f, "hinge")
        assert float(losses.supervised("uniform") - losses.bound()) == pytest.approx(
            1 - 2 / classes, abs=1e-6
        )
        assert float(losses.supervised() - losses.bound()) <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_linear_classifier_is_no_worse_than_any_other(kind):
    """L_sup <= L_sup^mu, and <= every direction of a fine grid, which comes close to it."""
    world, f = random_world(generator(15), 3, 5, spread=1.0), normal(5, 2, seed=16)
    best = finite_worlds.linear_classifier_loss(world, f, kind)
    assert best <= float(pair_losses(world, f, kind).supervised()) + 1e-9
    assert finite_worlds.linear_classifier_loss(
        collapsed_world(3), torch.zeros(3, 2, dtype=torch.float64), kind
    ) == pytest.approx(1)
    grid = torch.cartesian_prod(*[torch.linspace(-12, 12, 601, dtype=torch.float64)] * 2)
    margins = grid @ f.mT  # [directions, P]
    by_pair = [
        (
            weight,
            (
                finite_worlds.loss(margins, kind) @ world.D[c]
                + finite_worlds.loss(-margins, kind) @ world.D[e]
            ).min()
            / 2,
        )
        for (c, e), weight in zip(
            itertools.combinations(range(3), 2),
            2 * finite_worlds.task_weights(world.rho)[*torch.triu_indices(3, 3, 1)],
            strict=True,
        )
    ]
    gridded = float(sum(weight * value for weight, value in by_pair))
    assert best <= gridded + 1e-9
    assert gridded - best < 2e-3


# Gradients and search


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_rho_D_and_f(kind):
    """By finite differences, the hinge away from its corners."""
    inputs = tuple(
        normal(*shape, seed=17 + i).requires_grad_()
        for i, shape in enumerate([(3,), (3, 4), (4, 2)])
    )

    def gap(rho_logits, D_logits, f):
        losses = pair_losses(
            World(torch.softmax(rho_logits, -1), torch.softmax(D_logits, -1)), f, kind
        )
        return losses.supervised() - losses.bound()

    assert torch.autograd.gradcheck(gap, inputs)
    assert all(float(g.abs().max()) > 1e-4 for g in torch.autograd.grad(gap(*inputs), inputs))


def lemma_ratio(kind, tasks="proportional"):
    return lambda world, f: pair_losses(world, f, kind).ratio(tasks)


@pytest.mark.parametrize("kind", KINDS)
def test_search_reaches_the_lemma_and_finds_a_violation_once_its_constant_is_lowered(kind):
    """The bound is attained and never passed; lowered by 2%, the same search breaks it."""
    found = search(lemma_ratio(kind), 3, 5, 2, generator=generator(18), restarts=8)
    assert 0.99 < found.value <= 1 + 1e-9
    # the witness is the witness
    assert float(pair_losses(found.world, found.f, kind).ratio()) == pytest.approx(
        found.value, abs=1e-12
    )
    assert float(found.history[0].median()) < 0.9  # random worlds do not show it: the ascent does

    def planted(world, f):
        losses = pair_losses(world, f, kind)
        return losses.supervised() - 0.98 * found.value * losses.bound()

    violation = search(planted, 3, 5, 2, generator=generator(19), restarts=8)
    assert violation.value > 0
    losses = pair_losses(violation.world, violation.f, kind)
    assert float(losses.supervised()) > 0.98 * found.value * float(losses.bound())


def test_search_breaks_the_lemma_for_uniform_pairs_unless_rho_is_uniform():
    """With ||f|| <= 1 and four classes the search passes the bound by more than 0.5."""

    def gap(world, f):
        losses = pair_losses(world, f, "hinge")
        return losses.supervised("uniform") - losses.bound()

    assert search(gap, 4, 6, 2, generator=generator(20), restarts=8, radius=1.0).value > 0.5
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    found = search(gap, 4, 6, 2, generator=generator(20), restarts=8, radius=1.0, rho=uniform)
    assert found.value <= 1e-9
    torch.testing.assert_close(found.world.rho, uniform)


def test_search_respects_the_radius_and_its_generator():
    """An objective that pushes outwards ends on the sphere, not beyond it.

    The same seed gives the same ascent.
    """
    runs = [
        search(
            lambda _, f: f.square().sum((-2, -1)),
            3,
            4,
            2,
            generator=generator(21),
            restarts=4,
            radius=0.5,
        )
        for _ in range(2)
    ]
    norms = runs[0].f.norm(dim=-1)
    torch.testing.assert_close(norms, torch.full((4,), 0.5, dtype=torch.float64))
    assert torch.equal(runs[0].history, runs[1].history)


def test_search_ignores_values_that_are_not_finite():
    """0/0 at one restart must neither win nor stop the others."""

    def objective(world, f):
        return torch.where(torch.arange(4) == 2, math.nan, -f.square().sum((-2, -1)))

    assert -1 < search(objective, 2, 2, 1, generator=generator(22), restarts=4).value <= 0
    with pytest.raises(ValueError, match="not finite at any step"):
        search(
            lambda world, f: f.sum((-2, -1)) * math.nan, 2, 2, 1, generator=generator(22), steps=2
        )


# Generalisation


@pytest.mark.parametrize(
    ("kind", "k"), [("hinge", 1), ("logistic", 1), ("hinge", 3), ("logistic", 3)]
)
def test_loss_constants_are_valid_and_sharp(kind, k):
    """Lemma A.2's eta and B for the paper's losses on [-2R^2, 2R^2]^k.

    Never exceeded, and B attained. eta = 1 fails for log2.
    """
    radius = 1.5
    eta, largest = generalization.loss_constants(kind, radius, k)
    v = (
        2
        * radius**2
        * (2 * torch.rand(20_000, k, generator=generator(23), dtype=torch.float64) - 1)
    ).requires_grad_()
    values = (
        (1 + (-v).amax(-1)).clamp_min(0) if kind == "hinge" else torch.log2(1 + (-v).exp().sum(-1))
    )
    slopes = torch.autograd.grad(values.sum(), v)[0].norm(dim=-1)
    assert float(slopes.max()) <= eta + 1e-12
    assert float(values.detach().max()) <= largest
    worst = 1 + 2 * radius**2 if kind == "hinge" else math.log2(1 + k * math.exp(2 * radius**2))
    assert largest == pytest.approx(worst, abs=1e-12)
    assert float(slopes.max()) > 0.9 * eta
    if kind == "logistic":
        assert float(slopes.max()) > 1


def finite_class(members: int, points: int, dim: int, radius: float = 1.0) -> torch.Tensor:
    f = normal(members, points, dim, seed=24)
    return f * (radius / f.norm(dim=-1, keepdim=True)).clamp_max(1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_contraction_step_holds_with_its_constant(kind):
    """Eq. 19 over all signs (M = d = 2, k = 1).

    R_S(l o phi o F) <= sqrt(2) sqrt(6) eta R R_S(F).
    """
    F = finite_class(20, 6, 2)  # the six points of two triplets (x, x+, x-)
    triplets = F.unflatten(1, (2, 3))
    # [members, M]
    values = finite_worlds.loss(
        (triplets[:, :, 0] * (triplets[:, :, 1] - triplets[:, :, 2])).sum(-1), kind
    )
    left = torch.stack(
        [
            (values @ torch.tensor(s, dtype=torch.float64)).max()
            for s in itertools.product([-1, 1], repeat=2)
        ]
    ).mean()
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=12)), dtype=torch.float64)
    right = (signs @ F.flatten(1).mT).amax(1).mean()
    eta, _ = generalization.loss_constants(kind, 1.0)
    assert float(left) <= math.sqrt(12) * eta * float(right)
    term = generalization.generalization_bound(
        float(right), samples=2, radius=1.0, kind=kind
    ).complexity
    assert term == pytest.approx(2 * math.sqrt(12) * eta * float(right) / 2)


def test_gen_m_against_hand_computed_constants():
    """For the hinge loss, R = 1, k = 1, M = 100, R_S = 10 and delta = 0.1.

    2 sqrt(12) 10/100, 9 sqrt(log 40 / 200) and 3 sqrt(log 20 / 200).
    """
    terms = generalization.generalization_bound(
        10.0, samples=100, radius=1.0, kind="hinge", delta=0.1
    )
    assert terms == pytest.approx((0.692820, 1.222291, 0.367164), abs=1e-5)
    assert terms.total == pytest.approx(sum(terms))


def test_the_empirical_minimiser_stays_within_gen_m():
    """Lemma 4.2 on 200 training sets drawn from a world with |F| = 30.

    The excess L_un of f_hat stays below Gen_M every time.
    """
    world, F, M, g = (random_world(generator(25), 3, 8), finite_class(30, 8, 2), 50, generator(26))
    exact = torch.stack([pair_losses(world, f, "hinge").unsupervised for f in F])
    similar = torch.einsum("c,cx,cp->xp", world.rho, world.D, world.D).flatten()
    excess, gen = [], []
    for _ in range(200):
        pair = torch.multinomial(similar, M, replacement=True, generator=g)
        negative = torch.multinomial(world.rho @ world.D, M, replacement=True, generator=g)
        x, positive = pair // 8, pair % 8
        empirical = finite_worlds.loss(
            (F[:, x] * (F[:, positive] - F[:, negative])).sum(-1), "hinge"
        ).mean(1)
        excess.append(float(exact[empirical.argmin()] - exact.min()))
        S = F[:, torch.cat([x, positive, negative])]
        average, _ = generalization.rademacher_average(
            lambda s, S=S: (s.flatten(1) @ S.flatten(1).mT).amax(1), 3 * M, 2, generator=g, draws=50
        )
        gen.append(generalization.generalization_bound(average, M, 1.0, "hinge").total)
    assert all(left <= right for left, right in zip(excess, gen, strict=True))
    assert max(excess) > 0  # the minimiser is not always the best: there is something to bound


@pytest.mark.parametrize("norm", ["frobenius", "spectral"])
def test_rademacher_average_of_linear_maps(norm):
    """The closed-form supremum is reached by a member of the class and passed by none."""
    inputs, radius, dim = normal(4, 3, seed=27), 1.7, 2
    supremum = generalization.linear_supremum(inputs, norm, radius)
    signs = torch.tensor(
        list(itertools.product([-1.0, 1.0], repeat=8)), dtype=torch.float64
    ).unflatten(1, (4, dim))
    exact = supremum(signs)
    W = normal(500, dim, 3, seed=28)
    W = (
        radius
        * W
        / torch.linalg.matrix_norm(W, ord="fro" if norm == "frobenius" else 2)[:, None, None]
    )
    products = torch.einsum("sjt,wti,ji->sw", signs, W, inputs)
    assert bool((products.amax(1) <= exact + 1e-9).all())
    G = signs.mT @ inputs  # the maximiser: G itself, or its orthogonal polar factor
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    maximiser = radius * (
        G / torch.linalg.matrix_norm(G)[:, None, None] if norm == "frobenius" else U @ Vh
    )
    torch.testing.assert_close((maximiser * G).sum((-2, -1)), exact)
    estimate, error = generalization.rademacher_average(
        supremum, 4, dim, generator=generator(29), draws=4000
    )
    assert abs(estimate - float(exact.mean())) < 5 * error


@pytest.mark.parametrize("norm", ["frobenius", "spectral"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_remark_rademacher_average_of_f_is_at_most_d_times_that_of_g(norm, dim):
    inputs = normal(12, 6, seed=30)
    whole, whole_error = generalization.rademacher_average(
        generalization.linear_supremum(inputs, norm), 12, dim, generator=generator(31)
    )
    single, single_error = generalization.rademacher_average(
        generalization.linear_supremum(inputs, norm), 12, 1, generator=generator(32)
    )
    assert whole <= dim * single + 4 * (whole_error + dim * single_error)


# Errors say what to do


def test_wrong_arguments_raise_one_line_errors():
    world, f = random_world(generator(33), 3, 4), normal(4, 2)
    cases = [
        (lambda: pair_losses(world, f, "squared"), "'squared'.*'hinge' or 'logistic'"),
        (lambda: pair_losses(world, f[:3], "hinge"), r"\(3, 2\).*P = 4"),
        (lambda: World(torch.tensor([0.5, 0.6]), torch.eye(2)), "rho is no probability"),
        (lambda: World(torch.ones(3) / 3, torch.eye(2)), "do not fit"),
        (
            lambda: empirical_pair_losses(f, torch.tensor([0, 2, 2, 0]), "hinge"),
            "class 1 has no sample",
        ),
        (
            lambda: generalization.generalization_bound(1.0, 10, 1.0, "hinge", delta=1.0),
            "delta is 1.0",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert "\n" not in str(error.value)
