"""Options as tensors: a prior for each anchor, gradients of every number, torch.func; and blocks of
anchors, which change no bit.
"""

import numpy as np
import pytest
import torch
from formulas import batch, doubles, generator, oracle, refused, unit
from torch.autograd import gradcheck
from torch.testing import assert_close

from curlnb import losses
from curlnb.losses import contrastive, contrastive_loss, hard, hard_corrected, pairwise

PRIORS = doubles([0.02, 0.3, 0.1, 0.9, 0.05])
VARIANTS = [
    dict(beta=0.0),
    dict(beta=1.5),
    dict(beta=1.5, corrected=True),
    dict(beta=1.5, floor=None, n_eff=0.5),
    dict(beta=1.5, weight_clip="rescale"),
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_prior_for_each_anchor_is_the_papers_formula_with_that_anchors_prior(options):
    pos, neg = batch(5, 7, dtype=torch.float64)
    plus = torch.rand(5, 2, generator=generator(1), dtype=torch.float64)
    found = contrastive_loss(pos, neg, extra_pos=plus, tau_plus=PRIORS, **options)
    full = dict(corrected=False, floor="sphere", weight_clip=None, n_eff=7) | options
    for i, prior in enumerate(PRIORS.tolist()):
        expected, _ = oracle(
            *(pos[i].item(), neg[i].tolist(), plus[i].tolist(), full["n_eff"], 0.5, prior),
            *(full["beta"], full["floor"], full["corrected"], full["weight_clip"], 1),
            neg.abs().max().item(),
        )
        assert found[i].item() == pytest.approx(expected, rel=1e-11, nan_ok=True)


def test_a_prior_for_each_anchor_recovers_the_other_classes_mean_when_classes_are_unequal():
    """A finite world of three classes of 2, 5 and 13 points, all of it sampled: the true mean over
    the other classes, to the last digits.
    """
    label = torch.tensor([0] * 2 + [1] * 5 + [2] * 13)
    f = unit(20, 4, dtype=torch.float64)
    s, same = f @ f.T, label[:, None] == label
    share = label.bincount()[label] / 20
    scores = (s / 0.5).exp()
    other = (scores * ~same).sum(1) / (~same).sum(1)
    pos = torch.full((20,), 0.4, dtype=torch.float64)
    expected = torch.log1p(20 * other / (pos / 0.5).exp())
    for i in range(20):
        options = dict(tau_plus=share[[i]].double(), floor=None, extra_pos=s[i][same[i]][None])
        found = contrastive_loss(pos[[i]], s[[i]], **options)
        assert_close(found, expected[[i]])


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_every_number_given_as_a_tensor_gets_its_gradient(options):
    pos, neg = batch(5, 7, dtype=torch.float64)
    options = dict(options)
    numbers = {
        "temperature": doubles(0.5),
        "beta": doubles(options.pop("beta") + 0.1),
        "tau_plus": PRIORS / 4,
        "n_eff": torch.full((5,), options.pop("n_eff", 7.0), dtype=torch.float64),
    }
    if "floor" not in options:  # the third anchor lies on it
        numbers["floor"] = doubles([0.1, 0.1, 2.0, 0.1, 0.1])
    names, tensors = list(numbers), tuple(tensor.requires_grad_() for tensor in numbers.values())

    def loss(*values):
        return contrastive_loss(pos, neg, **options, **dict(zip(names, values, strict=True)))

    assert gradcheck(loss, tensors)
    assert all(gradient.any() for gradient in torch.autograd.grad(loss(*tensors).sum(), tensors))


def test_a_single_tensor_is_the_number_and_learns():
    """The temperature and the class prior of a training may be parameters, of any precision."""
    pos, neg = batch()
    values = dict(temperature=0.3, tau_plus=0.05, beta=1.0, n_eff=100.0, floor=0.2)
    tensors = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in values.items()
    }
    found = contrastive_loss(pos, neg, **tensors)
    assert found.dtype == torch.float32
    assert_close(found, contrastive_loss(pos, neg, **values))
    found.sum().backward()
    assert all(tensors[name].grad for name in ("temperature", "tau_plus", "beta", "n_eff"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(temperature="0.5"), "temperature must be positive, not '0.5'"),
        (dict(tau_plus=torch.tensor([0.1, 1.0])), r"in \[0, 1\), not tensor\(\[0.1000, 1.0000\]\)"),
        (dict(tau_plus=torch.tensor(0.0)), r"above 0 where it is a tensor, not tensor\(0\.\)"),
        (dict(tau_plus=torch.tensor([0.1, 0.2])), r"need tau_plus .* \[\] or \[3\], not .* \(2,\)"),
        (dict(beta=np.ones(30)), r"beta must be at least 0, not array\(\["),
        (dict(weight_clip="cut"), r"must be one of \(None, 'rescale', 'clamp'\), not 'cut'"),
    ],
    ids=str,
)
def test_a_wrong_option_is_one_line(options, says):
    with refused(says):
        contrastive_loss(torch.zeros(3), torch.zeros(3, 5), **options)


def test_the_former_name_is_an_alias():
    assert losses.hard_consistent is hard_corrected


# ---- torch.func ----------------------------------------------------------------------------------


def of_embeddings(z1, z2):
    pos, neg = pairwise(z1, z2)
    graphs = losses.jsd_loss(neg, torch.arange(len(neg)) % 3, beta=1.0)
    return hard(pos, neg, tau_plus=0.05).mean() + graphs.mean()


def test_vmap_and_grad_are_a_loop_over_batches():
    z1, z2 = unit(6, 4, 5), unit(6, 4, 5, seed=1)
    found, value = torch.func.vmap(torch.func.grad_and_value(of_embeddings))(z1, z2)
    looped = torch.stack(
        [of_embeddings(*pair) for pair in zip(z1.requires_grad_(), z2, strict=True)]
    )
    assert_close(value, looped)
    assert_close(found, torch.autograd.grad(looped.sum(), z1)[0])


# ---- blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        dict(tau_plus=0.05, beta=1.0, corrected=True, masked=True, m=3),
        dict(tau_plus=torch.linspace(0.01, 0.2, 203), beta=1.0, weight_clip="clamp"),
        dict(beta=1.0, weight_clip="rescale"),
    ],
    ids=["corrected", "each", "rescale"],
)
def test_blocks_of_anchors_change_no_bit(options, monkeypatch):
    """Of the losses, the share on the floor and the gradients of the tables."""
    options, g = dict(options), generator(1)
    mask = torch.rand(203, 31, generator=g) < 0.8 if options.pop("masked", False) else None
    extra = torch.rand(203, options.pop("m"), generator=g) if "m" in options else None
    results = []
    for block in (1, 2**19):
        monkeypatch.setattr(contrastive, "BLOCK", block)
        leaves = [table.requires_grad_() for table in batch(203, 31)]
        loss, clamped = losses.loss_and_clamped(*leaves, mask=mask, extra_pos=extra, **options)
        loss.mean().backward()
        results.append([loss, clamped, *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
