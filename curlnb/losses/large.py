"""Large batches: embeddings gathered from many devices, and similarities computed a tile at a time.
Both contrast a device's own anchors with the embeddings of all devices.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from curlnb.losses.contrastive import contrastive_loss


class _Gather(torch.autograd.Function):
    """The tensors of all processes, [W, *shape]; their gradients are summed over the processes."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]


def gathered(z: Tensor) -> tuple[Tensor, int]:
    """Views z [v, B, d] of this process -> those of all W processes, [v, WB, d], in order of rank,
    and the place of this process's first item. Without torch.distributed: z and 0.

    If each process takes the mean loss of its own anchors and gradients are averaged over processes
    (as DistributedDataParallel does), the gradient is that of one process with the whole batch.
    ValueError on every process if their batches differ in size; to compare them, they wait for each
    other.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return z, 0
    own = torch.tensor(z.shape, device=z.device)
    shapes = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(shapes, own)
    if any(not torch.equal(shape, own) for shape in shapes):
        found = ", ".join(str(shape[1:].tolist()) for shape in shapes)
        raise ValueError(
            f"all processes need views [B, d] of one shape, not {found}: use drop_last=True"
        )
    return _Gather.apply(z).transpose(0, 1).flatten(1, 2), dist.get_rank() * z.shape[1]


def loss_against_all(
    own: Tensor,
    every: Tensor,
    first: int = 0,
    *,
    labels: Tensor | None = None,
    tile: int | None = None,
    **options: Any,
) -> Tensor:
    """`contrastive_loss` of the anchors own [v, b, d], view 1 first, whose negatives are all of
    every [v, B, d] but their own item; own is every[:, first : first + b]. Returns [vb].

    labels: [B] of every's items; negatives of the anchor's label are then left out of the mean, as
    in `unbiased`. tile: the number of anchors whose similarities are held at a time. They are
    computed again in the backward pass, so that memory grows with B, and not with B^2. options: as
    `contrastive_loss`, without weight_clip="rescale".
    """
    views, batch, _ = every.shape
    anchors, flat = own.flatten(0, 1), every.flatten(0, 1)
    items = torch.arange(batch, device=own.device)
    item = (first + torch.arange(own.shape[1], device=own.device)).repeat(views)  # of each anchor
    shifts = range(1, views)
    plus = torch.stack([(own * own.roll(-shift, 0)).sum(-1).flatten() for shift in shifts], 1)
    if options.get("n_eff") is None:
        options["n_eff"] = max(1, views * (batch - 1))

    def counted(item: Tensor) -> Tensor:
        """Which of all embeddings are negatives of anchors that show these items, [n, vB]."""
        others = item[:, None] != items
        if labels is not None:
            others = others & (labels[item][:, None] != labels)
        return others.repeat(1, views)

    def loss(rows: slice) -> Tensor:
        each: dict[str, Any] = {
            k: x[rows] if isinstance(x, Tensor) and x.dim() else x for k, x in options.items()
        }
        scores, positives = anchors[rows] @ flat.T, plus[rows]
        mask = counted(item[rows])
        return contrastive_loss(positives[:, 0], scores, extra_pos=positives, mask=mask, **each)

    if tile is None:
        return loss(slice(None))
    again = partial(checkpoint, loss, use_reentrant=False, preserve_rng_state=False)
    tiles = range(0, len(anchors), tile)
    return torch.cat([again(slice(start, start + tile)) for start in tiles])
