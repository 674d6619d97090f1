"""From a batch's embeddings and labels to the similarities and masks that the losses take."""

from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from curlnb.losses.checks import is_known, require, upcast


class Pairs(NamedTuple):
    """The similarities of a batch: `pos` [n], `neg` [n, k]."""

    pos: Tensor
    neg: Tensor


def pairwise(z1: Tensor, z2: Tensor, *more: Tensor) -> Pairs:
    """Similarities of a batch in v views [B, d] (unit vectors, items in the same order). v = 2 is
    SimCLR, with N = 2B - 2.

    All n = vB embeddings are anchors, view 1 first. `pos` [n]: to the same item's next view,
    cyclically; `neg` [n, v(B-1)]: to every view of the other items, view 1 first, items in order.
    For v > 2, `positives` gives the M = v - 1 positives of each anchor. ValueError on the CPU for
    vectors of other lengths.
    """
    z = _views(z1, z2, *more)
    if is_known(z, _far_from_unit):
        lengths = z.norm(dim=-1)
        raise ValueError(
            f"vectors must be of unit length, not {lengths.min():.3g} to {lengths.max():.3g}: "
            "use torch.nn.functional.normalize(z, dim=1)"
        )
    views, batch, _ = z.shape
    with torch.autocast(z.device.type, enabled=False):
        flat = z.flatten(0, 1)
        blocks = (flat @ flat.T).view(views, batch, views, batch).transpose(1, 2).flatten(2)
        # The diagonal of a block is every (B+1)-th of its B^2 numbers: without the first, they are
        # B-1 rows of B+1 that end in it.
        rows = blocks[..., 1:].view(views, views, batch - 1, batch + 1)[..., :-1]
        neg = rows.reshape(views, views, batch, batch - 1).transpose(1, 2)
        return Pairs((z * z.roll(-1, 0)).sum(-1).flatten(), neg.reshape(views * batch, -1))


def positives(z1: Tensor, z2: Tensor, *more: Tensor) -> Tensor:
    """The complete set of positives, `extra_pos` [n, v-1], of the anchors of `pairwise`; its first
    column is `pos`.
    """
    z = _views(z1, z2, *more)
    return torch.stack([(z * z.roll(-shift, 0)).sum(-1).flatten() for shift in range(1, len(z))], 1)


def same_label_mask(labels: Tensor, views: int = 2) -> Tensor:
    """Which negatives of `pairwise` have their anchor's label, bool [n, v(B-1)]. labels: [B]
    integers, one per item.
    """
    right = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
    require(
        right and labels.dim() == 1 and len(labels) > 0 and views > 0,
        f"integer labels [B >= 1] and views >= 1 ({views})",
        labels,
    )
    same = labels[_others(len(labels), labels.device)] == labels[:, None]  # [B, B-1]
    return same.repeat(views, views)


def subsample(neg: Tensor, n: int, generator: Generator | None, *others: Tensor) -> Any:
    """n columns of neg [rows, k] drawn without replacement, each row its own, from `generator` (on
    neg's device). Returns [rows, n].

    others: tables of neg's shape, such as a label mask, of which the same columns are taken; then
    all are returned, neg's first. This varies N at a fixed batch size: a loss of the result then
    has N = n by default, and neither batch norm nor the number of steps changes.
    """
    alike = all(
        isinstance(table, Tensor) and table.dim() == 2 and table.shape == neg.shape
        for table in (neg, *others)
    )
    require(
        alike and 1 <= n <= neg.shape[1],
        f"tables of one shape [rows, k], and in 1..k the number to draw ({n})",
        neg,
        *others,
    )
    keys = torch.rand(neg.shape, generator=generator, device=neg.device)
    columns = keys.topk(n, 1, sorted=False).indices  # a random subset needs no full sort
    taken = tuple(table.gather(1, columns) for table in (neg, *others))
    return taken if others else taken[0]


def _views(*z: Tensor) -> Tensor:
    """Views of [B, d] each, stacked to [v, B, d]."""
    z = upcast(*z)
    require(
        all(one.dim() == 2 and len(one) > 0 and one.shape == z[0].shape for one in z),
        "views, all of one shape [B >= 1, d]",
        *z,
    )
    return torch.stack(z)


def _far_from_unit(z: Tensor) -> Tensor:
    """bfloat16 rounds away less than 0.02; the zero vector has no length to correct."""
    square = z.square().sum(-1)
    return (((square - 1).abs() > 0.02) & (square > 0)).any()


def _others(batch: int, device: torch.device) -> Tensor:
    """For each of B items, the B-1 others in order. Returns int64 [B, B-1]."""
    item = torch.arange(batch, device=device)[:, None]
    other = torch.arange(batch - 1, device=device)
    return other + (other >= item)  # steps over the item itself
