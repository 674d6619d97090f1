"""The objectives against the papers' formulas (`formulas.oracle`), and the limits and promises
between them.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from formulas import batch, curl, doubles, generator, normal, oracle, refused, unit
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

from curlnb.losses import (
    clamped_fraction,
    contrastive_loss,
    curl_loss,
    debiased,
    hard,
    hard_corrected,
    info_nce,
    jsd_loss,
    pairwise,
    positives,
    same_label_mask,
    subsample,
    unbiased,
)

searched = settings(deadline=None, max_examples=20, derandomize=True)

similarity = st.floats(-1, 1, width=32)
temperatures = st.floats(0.01, 2)
betas = st.sampled_from([0.0, 0.0, 0.5, 1.0, 10.0, 100.0]) | st.floats(0, 100)
class_priors = st.just(0.0) | st.floats(0.001, 0.9)


# ---- the formulas, once more ---------------------------------------------------------------------


PLAIN = dict(beta=1.0, n_eff=None, weight_clip=None, weight_sign=1)
WITHOUT_FLOOR = PLAIN | dict(temperature=1.0, tau_plus=0.9, floor=None)


def lists(values, size):
    return st.lists(values, min_size=size, max_size=size)


@st.composite
def cases(draw):
    n, k, m = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    pos, neg = draw(lists(similarity, n)), draw(lists(lists(similarity, k), n))
    extra = draw(st.none() | lists(lists(similarity, m), n))
    mask = draw(st.none() | lists(lists(st.booleans(), k), n))
    options = dict(
        temperature=draw(temperatures),
        tau_plus=draw(class_priors),
        beta=draw(betas),
        n_eff=draw(st.none() | st.floats(0.5, 1000)),
        floor=draw(st.sampled_from(["sphere", "sphere", None, 0.0, 0.3])),
        corrected=draw(st.booleans()),
        weight_clip=draw(st.sampled_from([None, None, "rescale", "clamp"])),
        weight_sign=draw(st.sampled_from([1, 1, -1])),
    )
    return pos, neg, extra, mask, options


@settings(searched, max_examples=400)
@given(cases())
@example(
    ([1.0], [[-0.5, 0.0]], None, None, WITHOUT_FLOOR | dict(corrected=False, n_eff=0.5))
)  # g < 0
@example(
    ([0.5], [[0.0, 0.1]], None, None, WITHOUT_FLOOR | dict(corrected=True))
)  # both its parts < 0: a ratio, still
@example(
    (
        [0.5],
        [[0.515, -1.0, -1.0, -1.0, -1.0, -1.0]],
        None,
        None,
        PLAIN | dict(temperature=0.1, tau_plus=0.2, floor="sphere", corrected=True),
    )
)  # no mass left, though the numerator > 0: on the floor
def test_float32_loss_is_the_papers_formula(case):
    """To 1e-6 max(1, 1/t), plus as much again for each mean as the subtraction of the positives
    passes on (large near the floor).

    The exponent of a weight, beta s/t, is rounded to 2^-24 of itself before it is taken: at beta =
    99 that alone is more.
    """
    pos, neg, extra, mask, options = case
    t, n_eff = options["temperature"], options["n_eff"]
    table = torch.tensor(neg)
    kept = torch.ones_like(table, dtype=torch.bool) if mask is None else torch.tensor(mask)
    result = contrastive_loss(
        torch.tensor(pos),
        table,
        extra_pos=None if extra is None else torch.tensor(extra),
        mask=None if mask is None else kept,
        **options,
    )
    assert result.shape == (len(pos),)
    assert result.dtype == torch.float32
    peak = table[kept].abs().max().item() if kept.any() else 1.0
    assume(
        peak > 1e-3 or options["weight_clip"] != "rescale"
    )  # 2 / max|.| has no limit where all scores are 0
    for i, (p, row, used) in enumerate(zip(pos, neg, kept.tolist(), strict=True)):
        negatives = [s for s, use in zip(row, used, strict=True) if use]
        if not negatives:
            assert result[i] == 0
            continue
        expected, conditioning = oracle(
            p,
            negatives,
            [p] if extra is None else extra[i],
            len(row) if n_eff is None else n_eff,
            t,
            options["tau_plus"],
            options["beta"],
            options["floor"],
            options["corrected"],
            options["weight_clip"],
            options["weight_sign"],
            peak,
        )
        exponent = options["beta"] * max(1.0, peak) / t
        tolerance = max(1e-6 * max(1, 1 / t), 2**-23 * exponent) * (1 + conditioning)
        if (
            tolerance > 0.1
        ):  # so close to where the loss is infinite that float32 cannot tell the side
            continue
        assert abs(result[i].item() - expected) <= tolerance


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("spread", [1e-4, 1e-3, 1e-2])
def test_float32_keeps_its_precision_where_exponents_are_large(spread, corrected):
    """t = 0.01, beta = 100, similarities so close that all count: three units in the last place,
    where a difference of two logsumexp loses 1000.
    """
    pos, neg = batch(n=64, k=30)
    pos, neg = 0.9 + spread * (pos - 0.8), 0.9 + spread * neg
    options = dict(
        temperature=0.01,
        beta=100.0,
        tau_plus=0.001,
        extra_pos=pos[:, None].repeat(1, 2),
        corrected=corrected,
    )
    exact = contrastive_loss(
        pos.double(), neg.double(), **options | {"extra_pos": options["extra_pos"].double()}
    )
    assert_close(contrastive_loss(pos, neg, **options).double(), exact, rtol=0, atol=1.5e-6)


@settings(searched, max_examples=150)
@given(cases())
def test_loss_and_gradient_are_finite(case):
    """For |s| <= 1, t down to 0.01, beta up to 100, masked, clamped or not: a single nan would end
    a training run.
    """
    pos, neg, extra, mask, options = case
    options = options | {"floor": "sphere"}
    pos, neg = torch.tensor(pos, requires_grad=True), torch.tensor(neg, requires_grad=True)
    extra = None if extra is None else torch.tensor(extra, requires_grad=True)
    loss = contrastive_loss(
        pos, neg, extra_pos=extra, mask=None if mask is None else torch.tensor(mask), **options
    )
    loss.sum().backward()
    assert loss.isfinite().all()
    assert (loss >= 0).all()
    for leaf in (pos, neg, extra):
        assert leaf is None or leaf.grad is None or leaf.grad.isfinite().all()


# ---- limits --------------------------------------------------------------------------------------


@settings(searched, max_examples=30)
@given(temperatures, class_priors, betas)
def test_named_objectives_meet_in_their_limits(t, tau_plus, beta):
    pos, neg = batch(dtype=torch.float64)
    t = dict(temperature=t)
    biased = info_nce(pos, neg, **t)
    corrected = debiased(pos, neg, tau_plus=tau_plus, **t)
    weighted = hard(pos, neg, tau_plus=0.0, beta=beta, **t)
    for found, limit in (
        (debiased(pos, neg, tau_plus=0.0, **t), biased),
        (unbiased(pos, neg, torch.zeros_like(neg, dtype=torch.bool), **t), biased),
        (hard(pos, neg, tau_plus=0.0, beta=0.0, **t), biased),
        (hard(pos, neg, tau_plus=tau_plus, beta=0.0, **t), corrected),
        (hard_corrected(pos, neg, tau_plus=tau_plus, beta=0.0, **t), corrected),
        (hard_corrected(pos, neg, tau_plus=0.0, beta=beta, **t), weighted),
    ):
        assert_close(found, limit, rtol=1e-9, atol=1e-9)


def test_debiased_tends_to_biased_and_hard_to_the_hardest_negative():
    pos, neg = batch(dtype=torch.float64)
    assert_close(debiased(pos, neg, tau_plus=1e-9), info_nce(pos, neg), rtol=0, atol=1e-6)
    worst = info_nce(pos, neg.amax(1, keepdim=True), n_eff=20)  # robinson2021, Section 4.1
    assert_close(hard(pos, neg, tau_plus=0.0, beta=1e4), worst, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options", [dict(), dict(tau_plus=0.1, beta=1.0), dict(beta=1.0, weight_clip="rescale")]
)
def test_anchor_without_negatives_has_no_loss_and_no_gradient(options):
    pos, neg = (x.requires_grad_() for x in batch(n=3, k=5))
    mask = torch.tensor([True, False, True])[:, None].expand(3, 5)
    loss = contrastive_loss(pos, neg, mask=mask, **options)
    loss.sum().backward()
    assert loss[1] == 0
    assert pos.grad[1] == 0
    assert not neg.grad[1].any()
    assert (pos.grad[[0, 2]] != 0).all()
    assert torch.equal(contrastive_loss(pos, neg[:, :0], **options), torch.zeros(3))


# ---- gradients -----------------------------------------------------------------------------------

GRADIENT_CASES = [
    dict(),
    dict(tau_plus=0.05),
    dict(beta=2.0),
    dict(tau_plus=0.05, beta=1.0, m=3, n_eff=100),
    dict(tau_plus=0.05, beta=1.0, m=3, corrected=True),
    dict(tau_plus=0.02, beta=0.5, floor=None, weight_sign=-1),
    dict(tau_plus=0.3, floor=None, n_eff=0.5),  # g < 0
    dict(tau_plus=0.9, floor=0.3),  # on the floor
    dict(tau_plus=0.05, beta=1.0, weight_clip="rescale"),
    dict(tau_plus=0.05, beta=1.0, weight_clip="clamp", temperature=0.1, weight_sign=-1, m=2),
    dict(tau_plus=0.001, beta=20.0, temperature=0.05, masked=True),
]


@pytest.mark.parametrize("options", GRADIENT_CASES, ids=str)
def test_gradient_is_that_of_finite_differences(options):
    options = dict(options)
    pos, neg = (x.requires_grad_() for x in batch(n=2, k=4, dtype=torch.float64))
    g = generator(1)
    extra = torch.rand(2, options.pop("m", 1), generator=g, dtype=torch.float64).requires_grad_()
    mask = torch.rand(2, 4, generator=g) < 0.6 if options.pop("masked", False) else None
    assert gradcheck(
        lambda p, n, e: contrastive_loss(p, n, extra_pos=e, mask=mask, **options), (pos, neg, extra)
    )


def test_detached_weights_move_the_gradient_only():
    """With fixed weights q the gradient on a negative is -(1 - p) q_i / t with q robinson2021's
    q_beta; the value stays.
    """
    pos, neg = (x.requires_grad_() for x in batch(dtype=torch.float64))
    flowing, fixed = (
        hard(pos, neg, tau_plus=0.0, beta=2.0, detach_weights=detach) for detach in (False, True)
    )
    assert torch.equal(flowing, fixed)
    (through,) = torch.autograd.grad(flowing.sum(), neg)
    (around,) = torch.autograd.grad(fixed.sum(), neg)
    q = (3 * neg / 0.5).softmax(1)  # w e^s, normalised
    assert_close(around, (1 - (-fixed).exp())[:, None] * q / 0.5)
    assert (through - around).abs().max() > 1e-3


@pytest.mark.parametrize("floor", ["sphere", None, 0.0])
@pytest.mark.parametrize(
    ("pos", "neg", "tau_plus", "t"),
    [(-1.0, -1.0, 0.3, 0.5), (0.5, -0.5, math.exp(-1), 1.0), (0.5, -0.5, 0.9, 1.0)],
)
def test_gradient_is_finite_at_and_below_the_floor(pos, neg, tau_plus, t, floor):
    """The cases: g exactly on the sphere's floor, g exactly 0, g negative."""
    pos, neg = torch.tensor([pos]).requires_grad_(), torch.full((1, 4), neg).requires_grad_()
    contrastive_loss(
        pos, neg, tau_plus=tau_plus, temperature=t, floor=floor, n_eff=0.1
    ).sum().backward()
    assert pos.grad.isfinite().all()
    assert neg.grad.isfinite().all()


def test_without_floor_an_impossible_estimate_is_nan_and_not_hidden():
    assert debiased(torch.ones(1), -torch.ones(1, 9), tau_plus=0.5, floor=None).isnan().all()


def test_clamped_fraction_agrees_with_the_gradient():
    """An anchor counts as clamped exactly when its negatives get nothing; those without negatives,
    or without a floor, do not count.
    """
    g = generator(3)
    pos, neg = torch.rand(200, generator=g), 2 * torch.rand(200, 6, generator=g) - 1
    mask = torch.rand(200, 6, generator=g) < 0.4
    for options in (
        dict(beta=0.0),
        dict(beta=1.0),
        dict(beta=1.0, corrected=True),
        dict(beta=1.0, weight_clip="clamp", weight_sign=-1),
    ):
        options = dict(tau_plus=0.1, mask=mask, **options)
        neg.requires_grad_().grad = None
        contrastive_loss(pos, neg, **options).sum().backward()
        silent = ~neg.grad.any(1) & mask.any(1)
        assert 0.05 < silent.float().mean() < 0.9
        assert clamped_fraction(pos, neg, **options) == silent.float().mean()
    assert clamped_fraction(pos, neg, beta=1.0) == 0
    assert clamped_fraction(pos, neg, tau_plus=0.5, floor=None) == 0


# ---- what the papers print, what their code does -------------------------------------------------


def released_and_printed_hard(s_pos, s_neg, tau_plus, beta, t):
    """The released loss of robinson2021, and the line of its Fig. 13 put in that loss's place."""
    n = s_neg.shape[1]
    pos, neg = (s_pos / t).exp(), (s_neg / t).exp()
    released_weights, printed_weights = neg**beta, beta * neg
    released = (released_weights * neg).sum(1) / released_weights.mean(1)
    printed = (printed_weights / neg.mean(1, keepdim=True) * neg).sum(1)
    floor = n * math.exp(-1 / t)
    return [
        -(pos / (pos + ((-tau_plus * n * pos + total) / (1 - tau_plus)).clamp_min(floor))).log()
        for total in (released, printed)
    ]


@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0])
def test_hard_is_the_released_code_and_not_the_pseudocode_of_robinson2021(beta):
    pos, neg = batch(dtype=torch.float64)
    released, printed = released_and_printed_hard(pos, neg, 0.05, beta, 0.5)
    ours = hard(pos, neg, tau_plus=0.05, beta=beta)
    assert_close(ours, released)
    assert (ours - printed).abs().min() > 0.05
    if beta == 0:  # where it should be the debiased loss, the pseudocode falls to the floor
        assert_close(printed, torch.log1p(20 * math.exp(-2) / (pos / 0.5).exp()))


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("views", "size"), [(2, 1), (2, 5), (3, 4)])
def test_pairwise_lists_every_pair_of_a_batch(views, size):
    z = unit(views, size, 7)
    pos, neg = pairwise(*z)
    extra = positives(*z)
    assert neg.shape == (views * size, views * (size - 1))  # 2B - 2 for two views
    for a in range(views):
        for i in range(size):
            row = a * size + i
            assert pos[row].item() == pytest.approx(
                (z[a, i] @ z[(a + 1) % views, i]).item(), abs=1e-6
            )
            others = [z[a, i] @ z[b, j] for b in range(views) for j in range(size) if j != i]
            assert_close(neg[row], torch.tensor(others), rtol=0, atol=1e-6)
            own = sorted((z[a, i] @ z[b, i]).item() for b in range(views) if b != a)
            assert sorted(extra[row].tolist()) == pytest.approx(own, abs=1e-6)
    assert_close(extra[:, 0], pos)
    labels = torch.tensor([3, 1, 3, 3, 1])[:size]
    expected = [
        [labels[j] == labels[i] for _ in range(views) for j in range(size) if j != i]
        for _ in range(views)
        for i in range(size)
    ]
    assert same_label_mask(labels, views).tolist() == expected


def test_unbiased_keeps_n_and_averages_over_other_classes():
    z1, z2 = unit(6, 9), unit(6, 9, seed=1)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    pos, neg = pairwise(z1, z2)
    same = same_label_mask(labels)
    loss = unbiased(pos, neg, same, temperature=0.4)
    for i in range(12):
        mean = (neg[i][~same[i]] / 0.4).exp().mean()
        assert loss[i].item() == pytest.approx(
            math.log1p(10 * mean / math.exp(pos[i] / 0.4)), rel=1e-5
        )
    keep = torch.rand(neg.shape, generator=generator()) < 0.7
    assert_close(unbiased(pos, neg, same, mask=keep), contrastive_loss(pos, neg, mask=keep & ~same))


def test_subsample_draws_without_replacement_each_row_its_own():
    table = torch.arange(40.0).expand(500, 40)
    same = table % 3 == 0
    neg, mask = subsample(table, 10, generator(), same)
    assert neg.shape == mask.shape == (500, 10)
    assert all(len(set(row)) == 10 for row in neg.tolist())
    assert torch.equal(mask, neg % 3 == 0)  # the same columns of both
    assert len({frozenset(row) for row in neg.tolist()}) > 490
    counts = neg.flatten().long().bincount(minlength=40)
    assert (counts - 125).abs().max() < 5 * math.sqrt(
        500 * 0.25 * 0.75
    )  # each column with probability n/k
    assert torch.equal(subsample(table, 10, generator()), neg)


# ---- arora2019 -----------------------------------------------------------------------------------


def test_constant_representation_has_logistic_loss_one():
    """Base 2 is what makes the trivial representation's loss 1 at k = 1; log2(1 + k) in general,
    and 1 for the hinge at any k. A large loss is linear, not infinite.
    """
    anchor, negatives = torch.ones(3, 4), torch.ones(3, 7, 4)
    assert torch.equal(curl_loss(anchor, anchor, negatives[:, :1]), torch.ones(3))
    assert torch.equal(curl_loss(anchor, anchor, negatives), torch.full((3,), 3.0))
    assert torch.equal(curl_loss(anchor, anchor, negatives, "hinge"), torch.ones(3))
    far = curl_loss(torch.tensor([[1e4]]), -torch.ones(1, 1), torch.ones(1, 1, 1))
    assert far.item() == pytest.approx(2e4 / math.log(2))


@pytest.mark.parametrize("kind", ["logistic", "hinge"])
def test_curl_loss_is_its_definition_and_blocks_are_their_means(kind):
    n, k, b, d = 3, 2, 2, 3
    shapes = ((n, d), (n, b, d), (n, k, b, d))
    anchor, positive, negatives = (2 * normal(*shape, seed=1) for shape in shapes)
    loss = curl_loss(anchor, positive, negatives, kind)
    for i in range(n):
        v = [float(anchor[i] @ (sum(positive[i]) / b - sum(negatives[i, j]) / b)) for j in range(k)]
        assert loss[i].item() == pytest.approx(curl(v, kind), rel=1e-12)
    assert_close(
        curl_loss(anchor, positive[:, :1], negatives[:, :, :1], kind),
        curl_loss(anchor, positive[:, 0], negatives[:, :, 0], kind),
    )
    assert gradcheck(
        lambda *x: curl_loss(*x, kind), [x.requires_grad_() for x in (anchor, positive, negatives)]
    )


# ---- InfoGraph -----------------------------------------------------------------------------------


def nodes_of_graphs(scale=2.0):
    own = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])
    return scale * normal(10, 4), own


@pytest.mark.parametrize(
    ("beta", "tau_plus", "sign", "clip"),
    [
        (0.0, 0.0, 1, None),
        (0.0, 0.5, 1, None),
        (1.0, 0.0, -1, None),
        (2.0, 0.1, 1, "rescale"),
        (2.0, 0.1, -1, "clamp"),
        (10.0, 0.3, 1, "clamp"),
        (10.0, 0.3, -1, "rescale"),
    ],
)
def test_jsd_loss_is_its_definition(beta, tau_plus, sign, clip):
    scores, own = nodes_of_graphs()
    options = dict(beta=beta, tau_plus=tau_plus, weight_sign=sign, weight_clip=clip)
    loss = jsd_loss(scores, own, **options)
    peak = max(abs(float(scores[u, g])) for u in range(10) for g in range(4) if g != own[u])
    for u in range(10):
        total, weights = 0.0, 0.0
        for g in range(4):
            if g != own[u]:
                score = float(scores[u, g])
                seen = {
                    None: score,
                    "rescale": 2 * score / peak,
                    "clamp": min(max(score, -2.0), 2.0),
                }[clip]
                weight = math.exp(beta * sign * seen)
                total += weight * math.log1p(math.exp(score))
                weights += weight
        score = float(scores[u, own[u]])
        negative = (total / weights - tau_plus * math.log1p(math.exp(score))) / (1 - tau_plus)
        expected = (
            math.log1p(math.exp(-score))
            + (max(0.0, negative) if tau_plus else negative)
            - 2 * math.log(2)
        )
        assert loss[u].item() == pytest.approx(expected, rel=1e-10)
    one_hot = F.one_hot(own, 4)
    assert_close(jsd_loss(scores, one_hot, **options), loss)
    assert gradcheck(lambda s: jsd_loss(s, own, **options), scores.requires_grad_())


def test_jsd_loss_is_finite_for_unbounded_scores_and_cannot_be_cheated_by_a_large_own_score():
    scores, own = (
        x.requires_grad_() if x.is_floating_point() else x for x in nodes_of_graphs(scale=300.0)
    )
    loss = jsd_loss(scores.float(), own, beta=10.0, tau_plus=0.5)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert scores.grad.isfinite().all()
    assert (
        loss >= -2 * math.log(2)
    ).all()  # unfloored, T_own -> infinity would take the corrected term to minus infinity


# ---- promises of all of them ---------------------------------------------------------------------


def every_loss(z1, z2):
    """Each public objective on one batch, as the experiments call them."""
    pos, neg = pairwise(z1, z2)
    extra = positives(z1, z2, z1)[: len(pos)]
    labels = torch.arange(len(z1), device=z1.device) % 3
    same = same_label_mask(labels)
    return [
        info_nce(pos, neg),
        unbiased(pos, neg, same),
        debiased(pos, neg, temperature=0.2),
        hard(pos, neg, mask=same, weight_clip="rescale", weight_sign=-1, extra_pos=extra),
        hard(pos, neg, floor=None, detach_weights=True),
        hard_corrected(pos, neg, weight_clip="clamp"),
        clamped_fraction(pos, neg, tau_plus=0.1, beta=1.0, mask=same),
        curl_loss(z1, z2, z2[None].expand(len(z1), -1, -1)),
        curl_loss(z1, z2, z2[None].expand(len(z1), -1, -1), "hinge"),
        jsd_loss(z1 @ z2.T, labels, beta=1.0, tau_plus=0.1, weight_clip="rescale"),
    ]


def test_autocast_changes_nothing():
    z1, z2 = unit(8, 6), unit(8, 6, seed=1)
    pos, neg = pairwise(z1, z2)
    plain = [*every_loss(z1, z2)[:-1], pos, neg]  # the last multiplies matrices outside the library
    with torch.autocast("cpu", torch.bfloat16):
        cast = [*every_loss(z1, z2)[:-1], *pairwise(z1, z2)]
    for a, b in zip(plain, cast, strict=True):
        assert b.dtype == torch.float32
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("given_type", "computed"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64,) * 2],
)
def test_half_precision_is_computed_in_float32_and_float64_stays(given_type, computed):
    z1, z2 = unit(8, 6).to(given_type), unit(8, 6, seed=1).to(given_type)
    assert all(loss.dtype == computed for loss in every_loss(z1, z2)[:-1])
    wide = pairwise(z1.to(computed), z2.to(computed))
    assert_close(hard(*pairwise(z1, z2)), hard(*wide), rtol=0, atol=0)


@pytest.mark.skipif(
    torch.__version__ < torch.torch_version.TorchVersion("2.13"),
    reason="torch 2.4 and 2.11 break the graph at vars(): the losses compile, in several graphs",
)
def test_losses_compile_into_one_graph():
    """Which also shows that none reads a value back from the device (item, bool, nonzero): each
    would break the graph.
    """
    z1, z2 = unit(8, 6), unit(8, 6, seed=1)
    compiled = torch.compile(every_loss, fullgraph=True, backend="eager")
    for a, b in zip(compiled(z1, z2), every_loss(z1, z2), strict=True):
        assert_close(a, b)
    drawn = torch.compile(
        lambda neg, same: subsample(neg, 5, None, same), fullgraph=True, backend="eager"
    )
    assert drawn(pairwise(z1, z2).neg, same_label_mask(torch.arange(8)))[1].shape == (16, 5)


POS, NEG = torch.zeros(3), torch.zeros(3, 5)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: contrastive_loss(POS, NEG, temperature=math.nan), "temperature must be positive"),
        (
            lambda: contrastive_loss(POS, NEG, tau_plus=1.0),
            r"tau_plus must be in \[0, 1\), not 1.0",
        ),
        (lambda: contrastive_loss(POS, NEG, floor="zero"), "floor must be 'sphere', None or"),
        (lambda: contrastive_loss(POS, NEG[:2]), r"pos \[n\] and neg \[n, k\], not .*\(2, 5\)"),
        (lambda: contrastive_loss(POS, NEG, extra_pos=POS), r"need extra_pos \[3, m >= 1\], not"),
        (lambda: contrastive_loss(POS, NEG, mask=NEG), r"need mask bool \[3, 5\] on cpu, not"),
        (lambda: info_nce(POS.numpy(), NEG), "need floating-point tensors on one device"),
        (lambda: pairwise(NEG, NEG[:2]), r"need views, all of one shape \[B >= 1, d\]"),
        (lambda: subsample(NEG, 6, None), r"the number to draw \(6\), not torch.float32 \(3, 5\)"),
        (lambda: curl_loss(NEG, NEG, NEG[:, None], kind="square"), "'logistic' or 'hinge', not"),
        (lambda: jsd_loss(NEG, torch.zeros(2, dtype=int)), r"own as integers \[3\] or one-hot"),
        (lambda: jsd_loss(NEG, torch.tensor([0, 5, 1])), "one of 5 graphs .* not for node 1"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(call, says):
    with refused(says):
        call()


# ---- what has diverged stays visible -------------------------------------------------------------

broken = st.sampled_from([math.nan, math.inf])


@settings(searched, max_examples=80)
@given(cases(), broken, st.sampled_from(["pos", "neg", "extra_pos"]), st.data())
@example(([0.5], [[0.0, 0.1]], None, None, dict(tau_plus=0.1)), math.nan, "neg", None)
@example(([0.5], [[0.0, 0.1]], None, None, dict()), math.inf, "pos", None)
def test_an_anchor_that_meets_nan_or_infinity_has_no_finite_loss(case, value, where, data):
    """A comparison with NaN is False, and a floor, a weight or e^-inf would make a number of it;
    nothing may pass for a low loss.
    """
    pos, neg, extra, mask, options = case
    tensors = dict(
        pos=torch.tensor(pos),
        neg=torch.tensor(neg),
        extra_pos=torch.tensor(extra or [[p] for p in pos]),
    )
    kept = None if mask is None else torch.tensor(mask)
    target = tensors[where]
    at = tuple(0 if data is None else data.draw(st.integers(0, size - 1)) for size in target.shape)
    assume(
        where != "neg" or kept is None or bool(kept[at])
    )  # what the mask leaves out does not count
    target[at] = value
    loss = contrastive_loss(**tensors, mask=kept, **options)
    assert not loss[at[0]].isfinite()


@settings(searched, max_examples=40)
@given(cases(), st.data())
def test_a_negative_of_minus_infinity_is_absent(case, data):
    """Its column might as well not be there: same loss, same gradient, and none for itself."""
    pos, neg, extra, mask, options = case
    k = len(neg[0])
    gone = torch.tensor(data.draw(st.lists(st.booleans(), min_size=k, max_size=k)))
    options = options | {"floor": "sphere"}
    pos, neg = doubles(pos), doubles(neg)
    extra = None if extra is None else doubles(extra)
    kept = None if mask is None else torch.tensor(mask)
    results = []
    for table, columns in ((neg.masked_fill(gone, -math.inf), slice(None)), (neg, ~gone)):
        leaves = pos.requires_grad_(), table.requires_grad_()
        used = None if kept is None else kept[:, columns]
        loss = contrastive_loss(pos, table[:, columns], extra_pos=extra, mask=used, **options)
        gradients = torch.autograd.grad(loss.sum(), leaves, materialize_grads=True)
        results.append((loss, *gradients))
    for with_it, without in zip(*results, strict=True):
        assert_close(with_it, without, rtol=1e-7, atol=1e-7)
    assert not results[0][2][:, gone].any()


def test_one_broken_anchor_leaves_the_others_as_they_are():
    pos, neg = batch()
    whole = hard(pos, neg)
    neg[3, 5] = math.nan
    damaged = hard(pos, neg)
    assert damaged.isnan().nonzero().flatten().tolist() == [3]
    assert torch.equal(damaged[damaged.isfinite()], whole[damaged.isfinite()])
    masked = hard(pos, neg, mask=torch.arange(20).expand(8, 20) != 5)
    assert masked.isfinite().all()  # what the mask leaves out may hold anything


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_scores_and_embeddings_reach_the_other_losses(value):
    scores, own = nodes_of_graphs()
    for beta, tau_plus, graph in ((0.0, 0.0, 0), (1.0, 0.3, 0), (0.0, 0.3, 1), (1.0, 0.0, 1)):
        damaged = scores.clone()
        damaged[0, graph] = value
        assert (
            jsd_loss(damaged, own, beta=beta, tau_plus=tau_plus).isfinite().tolist()
            == [False] + [True] * 9
        )
    for kind in ("logistic", "hinge"):
        for which in range(3):
            tables = [torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 4, 3)]
            tables[which].view(2, -1)[0, 1] = value
            assert curl_loss(*tables, kind).isfinite().tolist() == [False, True]


def test_pairwise_refuses_vectors_that_are_not_of_unit_length():
    """The floor e^{-1/t} is a bound for unit vectors only. Half precision rounds, and a dead
    representation has no direction.
    """
    z1, z2 = unit(6, 9), unit(6, 9, seed=1)
    with refused(r"unit length, not 5 to 5: use torch\.nn\.functional\.normalize"):
        pairwise(5 * z1, 5 * z2)
    pairwise(z1.bfloat16(), z2.bfloat16())
    pairwise(torch.zeros(6, 9), z2)


# ---- strange tensors -----------------------------------------------------------------------------


def test_several_devices_are_refused_in_one_line():
    pos, neg, there = torch.zeros(4), torch.zeros(4, 5), torch.zeros(4, 5, device="meta")
    for call in (
        lambda: info_nce(pos, there),
        lambda: hard(pos, neg, mask=there.bool()),
        lambda: curl_loss(neg, there, neg[:, None]),
        lambda: jsd_loss(neg, there[:, 0].long()),
    ):
        with refused(r"need .*(one device|on cpu), not .*meta"):
            call()


@pytest.mark.parametrize("options", [dict(), dict(tau_plus=0.1, beta=1.0, weight_clip="rescale")])
def test_empty_batches_and_single_samples(options):
    assert contrastive_loss(torch.zeros(0), torch.zeros(0, 5), **options).shape == (0,)
    assert clamped_fraction(torch.zeros(0), torch.zeros(0, 5), **options) == 0
    single = pairwise(unit(1, 3), unit(1, 3, seed=1))
    assert torch.equal(contrastive_loss(*single, **options), torch.zeros(2))
