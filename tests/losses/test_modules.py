"""The losses in the training loops of others: modules, tiles, several processes, and parity with
the losses that people use now.
"""

import copy
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from formulas import generator, refused
from torch import nn
from torch.testing import assert_close

from curlnb.losses import (
    Debiased,
    HardNegative,
    InfoNCE,
    Unbiased,
    contrastive_loss,
    debiased,
    hard,
    hard_corrected,
    info_nce,
    pairwise,
    positives,
    same_label_mask,
    unbiased,
)

LABELS = torch.arange(8) % 3


def raw(views=2, size=8, d=5, dtype=torch.float64):
    draw = generator()
    return [
        torch.randn(size, d, generator=draw, dtype=dtype).requires_grad_() for _ in range(views)
    ]


def loss_and_gradients(loss, leaves):
    return loss, *torch.autograd.grad(loss.sum(), leaves)


CASES = {
    "biased": lambda **how: InfoNCE(0.3, **how),
    "debiased": lambda **how: Debiased(0.3, tau_plus=0.05, **how),
    "on the floor": lambda **how: Debiased(0.2, tau_plus=0.3, **how),
    "floor": lambda **how: HardNegative(floor=0.4, n_eff=100, **how),
    "hard": lambda **how: HardNegative(0.3, tau_plus=0.05, beta=2.0, **how),
    "corrected": lambda **how: HardNegative(0.3, tau_plus=0.05, corrected=True, **how),
    "clamp": lambda **how: HardNegative(0.1, weight_clip="clamp", weight_sign=-1, **how),
    "unbiased": lambda **how: Unbiased(0.3, **how),
}


@pytest.mark.parametrize("views", [2, 3])
def test_a_module_is_the_function_on_the_batch(views):
    leaves = raw(views)
    z = [F.normalize(leaf, dim=1) for leaf in leaves]
    pos, neg = pairwise(*z)
    plus = positives(*z)
    for module, each in (
        (InfoNCE(0.3), info_nce(pos, neg, temperature=0.3)),
        (Debiased(tau_plus=0.05), debiased(pos, neg, tau_plus=0.05, extra_pos=plus)),
        (HardNegative(), hard(pos, neg, extra_pos=plus)),
        (HardNegative(corrected=True), hard_corrected(pos, neg, extra_pos=plus)),
        (Unbiased(), unbiased(pos, neg, same_label_mask(LABELS, views))),
    ):
        assert_close(module(*leaves, labels=LABELS), each.mean())
    total, every = (InfoNCE(0.3, reduction=how)(*leaves) for how in ("sum", "none"))
    assert every.shape == (views * 8,)
    assert_close(total, every.sum())


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_tiles_give_the_loss_and_gradient_of_the_whole(case, views):
    """To 1e-12 in float64 and 1e-6 in float32; a tile of 5 leaves a remainder."""
    for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        leaves = raw(views, dtype=dtype)
        whole, tiled = (
            loss_and_gradients(CASES[case](tile=tile)(*leaves, labels=LABELS), leaves)
            for tile in (None, 5)
        )
        assert_close(tiled, whole, rtol=close, atol=close)


def test_tiles_of_a_batch_of_one_and_under_autocast():
    leaves = raw(size=1, dtype=torch.float32)
    assert HardNegative(tile=4)(*leaves) == 0
    leaves = raw(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = [HardNegative(tile=tile)(*leaves) for tile in (None, 5)]
    assert_close(*found)
    assert_close(found[0], HardNegative()(*leaves))


@pytest.mark.parametrize("tile", [None, 5])
def test_a_temperature_learns_with_the_model(tile):
    t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    criterion = HardNegative(nn.Parameter(t.detach().clone()), tau_plus=0.05, tile=tile)
    assert [name for name, _ in criterion.named_parameters()] == ["temperature"]
    leaves = raw()
    criterion(*leaves).backward()
    pos, neg = pairwise(*(F.normalize(leaf, dim=1) for leaf in leaves))
    contrastive_loss(pos, neg, temperature=t, tau_plus=0.05, beta=1.0).mean().backward()
    assert_close(criterion.temperature.grad, t.grad)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: InfoNCE(0.0), "temperature must be positive, not 0.0"),
        (lambda: InfoNCE(reduction="avg"), "reduction must be 'mean', 'sum' or 'none', not 'avg'"),
        (lambda: Unbiased()(*raw()), r"Unbiased needs labels=, the class of each item \[B\]"),
        (lambda: Unbiased()(*raw(), labels=LABELS[:3]), r"mask bool \[16, 14\].*\(6, 4\)"),
        (lambda: HardNegative(tile=3, weight_clip="rescale"), "whole batch: no gather, no tile"),
        (lambda: InfoNCE(tile=0), "tile must be 1 or more, not 0"),
        (lambda: InfoNCE()(raw()[0], raw(size=7)[0]), r"all of one shape \[B >= 1, d\]"),
        (lambda: InfoNCE(tile=3)(*torch.ones(2, 0, 4)), r"one shape \[B >= 1, d\], not .*\(0, 4\)"),
    ],
)
def test_wrong_settings_are_named_in_one_line(call, says):
    with refused(says):
        call()
    with pytest.raises(TypeError, match="gather_distributed"):
        InfoNCE(gather_distributed=True)


# ---- several processes ---------------------------------------------------------------------------

GATHERED = ("hard", "unbiased")  # need the whole batch's negatives and labels


def as_rank(rank, file):
    """Asserts, as one of two processes, that gathering gives the loss and gradient of one alone."""
    options = dict(init_method=f"file://{file}", rank=rank, world_size=2)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5), **options)
    try:
        for case in GATHERED:
            torch.manual_seed(0)
            alone = nn.Linear(5, 4).double()
            model = nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
            views = [x.detach() for x in raw()]
            whole = CASES[case]()(*map(alone, views), labels=LABELS)
            whole.backward()
            expected = [whole.detach(), *(p.grad for p in alone.parameters())]
            for tile in (None, 5):
                model.zero_grad()
                own = [model(x.chunk(2)[rank]) for x in views]
                loss = CASES[case](gather=True, tile=tile)(*own, labels=LABELS.chunk(2)[rank])
                loss.backward()
                dist.all_reduce(loss := loss.detach() / 2)
                found = [loss, *(p.grad for p in model.parameters())]
                assert_close(found, expected, rtol=1e-11, atol=1e-13)
        says = r"need views \[B, d\] of one shape, not \[2, 5\], \[3, 5\]: use drop_last=True"
        with refused(says):
            CASES["hard"](gather=True)(*(x[: 2 + rank] for x in raw()))
    finally:
        dist.destroy_process_group()


def test_processes_that_gather_give_the_loss_and_gradient_of_one(tmp_path):
    """This is the first process; the other one runs this module."""
    tests = Path(__file__).parent.parent
    command = [sys.executable, "forks.py", "-m", "losses.test_modules", str(tmp_path / "meet")]
    other = subprocess.Popen(command, cwd=tests, stderr=subprocess.PIPE, text=True)
    try:
        as_rank(0, tmp_path / "meet")
        _, said = other.communicate(timeout=300)
        assert other.returncode == 0, said
    finally:
        other.kill()


def test_gather_in_one_process_is_the_whole_batch():
    leaves = raw()
    assert_close(HardNegative(gather=True)(*leaves), HardNegative()(*leaves))


# ---- the losses of others ------------------------------------------------------------------------


def test_info_nce_is_lightlys_nt_xent():
    """Values and gradients. lightly normalises by itself, as the module does."""
    loss = pytest.importorskip("lightly.loss")
    leaves = raw(size=16)
    for temperature in (0.07, 0.5, 1.0):
        theirs, ours = (
            loss_and_gradients(criterion(*leaves), leaves)
            for criterion in (loss.NTXentLoss(temperature=temperature), InfoNCE(temperature))
        )
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_info_nce_is_pytorch_metric_learnings_nt_xent():
    """Which adds the least positive number of its type inside the logarithm."""
    theirs = pytest.importorskip("pytorch_metric_learning.losses")
    leaves = raw(size=16)
    for temperature in (0.07, 0.5):
        criterion = theirs.SelfSupervisedLoss(theirs.NTXentLoss(temperature=temperature))
        assert_close(
            loss_and_gradients(InfoNCE(temperature)(*leaves), leaves),
            loss_and_gradients(criterion(*leaves), leaves),
            rtol=1e-6,
            atol=1e-8,
        )


if __name__ == "__main__":
    as_rank(1, sys.argv[1])
