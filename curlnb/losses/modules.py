"""The objectives as modules, for your own training loop."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curlnb.losses.batches import _views, pairwise, positives, same_label_mask
from curlnb.losses.checks import Number, upcast
from curlnb.losses.contrastive import contrastive_loss
from curlnb.losses.estimate import Options
from curlnb.losses.large import gathered, loss_against_all


class InfoNCE(nn.Module):
    """NT-Xent, SimCLR's loss: the biased one (chuang2020, Eq. 1). To swap the loss in a training
    with lightly, change one line,

        criterion = NTXentLoss(temperature=0.5)     # from lightly.loss
        criterion = InfoNCE(temperature=0.5)        # from curlnb.losses: the same numbers
        criterion = HardNegative(temperature=0.5, tau_plus=0.1, beta=1.0)

    and leave the call, `loss = criterion(z1, z2)`, as it is.

    temperature: a number, or a `torch.nn.Parameter`, which is then learnt with the model's.
    reduction: "mean", "sum" or "none".
    gather: contrast with the embeddings of all processes of torch.distributed. Each returns the
        loss of its own anchors. If gradients are averaged over processes (DistributedDataParallel),
        reduction "mean" gives the gradient of one process with the whole batch, batch norm aside.
        ValueError if the processes' batches differ in size: use drop_last=True.
    tile: the number of anchors whose similarities are held at a time, None for all. With a number,
        memory grows linearly with the batch, and the backward pass recomputes the similarities.
        Neither gather nor tile goes with weight_clip="rescale", which looks at a whole batch.
    options: those of `contrastive_loss`, as numbers or 0-dim tensors; with tau_plus this is
        `Debiased`, with beta `HardNegative`. ValueError for a setting out of range, TypeError for
        an unknown one. A batch of one item has no negatives and loss 0.
    """

    by_labels = False

    def __init__(
        self,
        temperature: Number = 0.5,
        *,
        reduction: str = "mean",
        gather: bool = False,
        tile: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        Options(temperature, **options)  # checks them
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
        if tile is not None and tile < 1:
            raise ValueError(f"tile must be 1 or more, not {tile!r}")
        if options.get("weight_clip") == "rescale" and (gather or tile):
            raise ValueError("weight_clip='rescale' looks at a whole batch: no gather, no tile")
        self.reduction, self.gather, self.tile = reduction, gather, tile
        self.option_names = ["temperature", *options]
        for name, value in (("temperature", temperature), *options.items()):
            setattr(self, name, value)

    def extra_repr(self) -> str:
        shown = [*self.option_names, "reduction", "gather", "tile"]
        values = {name: getattr(self, name) for name in shown}
        numbers = {k: x.tolist() if isinstance(x, Tensor) else x for k, x in values.items()}
        return ", ".join(f"{name}={value!r}" for name, value in numbers.items())

    def forward(
        self, z1: Tensor, z2: Tensor, *more_views: Tensor, labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch in v views [B, d], items in the same order, which are brought to unit
        length: a 0-dim tensor, or with reduction "none" one loss per anchor, [vB], view 1 first.

        With more than two views, the v - 1 other views of an anchor estimate what its class adds to
        the negatives (`extra_pos`), and the next view is its positive. labels: [B] integers, which
        `Unbiased` needs and the others ignore.
        """
        own = _views(*(F.normalize(z, dim=-1) for z in upcast(z1, z2, *more_views)))
        if not self.by_labels:
            labels = None
        elif labels is None:
            raise ValueError(f"{type(self).__name__} needs labels=, the class of each item [B]")
        options = {name: getattr(self, name) for name in self.option_names}
        if self.gather or self.tile:
            every, first = gathered(own) if self.gather else (own, 0)
            if labels is not None and self.gather:
                labels = gathered(labels[None, :, None])[0].flatten()
            with torch.autocast(own.device.type, enabled=False):
                each = loss_against_all(own, every, first, labels=labels, tile=self.tile, **options)
        else:
            pos, neg = pairwise(*own)
            mask = None if labels is None else ~same_label_mask(labels, len(own))
            plus = positives(*own) if len(own) > 2 else None
            each = contrastive_loss(pos, neg, mask=mask, extra_pos=plus, **options)
        return each if self.reduction == "none" else getattr(each, self.reduction)()


class Debiased(InfoNCE):
    """The debiased loss (chuang2020, Eq. 16). tau_plus: the class prior in [0, 1); the other
    settings are those of `InfoNCE`.
    """

    def __init__(
        self, temperature: Number = 0.5, *, tau_plus: Number = 0.1, **settings: Any
    ) -> None:
        super().__init__(temperature, tau_plus=tau_plus, **settings)


class HardNegative(InfoNCE):
    """Hard negatives by importance weights (robinson2021, Eq. 4). beta: their concentration, 0 for
    the debiased loss; corrected=True takes the estimator of `hard_corrected`. The other settings
    are those of `InfoNCE`.
    """

    def __init__(
        self,
        temperature: Number = 0.5,
        *,
        tau_plus: Number = 0.1,
        beta: Number = 1.0,
        **settings: Any,
    ) -> None:
        super().__init__(temperature, tau_plus=tau_plus, beta=beta, **settings)


class Unbiased(InfoNCE):
    """The supervised ideal (chuang2020, Eq. 4 with Q = N): `InfoNCE` whose negatives are of other
    classes. Call it with `labels=`.
    """

    by_labels = True
