"""Drawing from latent classes, on the device that holds the labels (arora2019, Section 2)."""

from typing import NamedTuple

import torch
from torch import Tensor

from curlnb.data.download import DataError


class ClassIndex(NamedTuple):
    """Samples sorted by class.

    order: [n] samples, class by class; first, size: [C] where a class begins in `order` and how
    many samples it has.
    """

    order: Tensor
    first: Tensor
    size: Tensor


def class_index(labels: Tensor) -> ClassIndex:
    """Sort samples by class. labels: int64 [n] in 0..C-1."""
    size = torch.bincount(labels)
    return ClassIndex(labels.argsort(stable=True), size.cumsum(0) - size, size)


def positives(
    index: ClassIndex, labels: Tensor, samples: Tensor, generator: torch.Generator
) -> Tensor:
    """For each of `samples` [b] another sample of its class, uniformly. Returns [b].

    This is (x, x+) ~ D_sim of arora2019, Eq. 1, without x = x+. labels: [n], as given to
    `class_index`. A class with a single sample gives that sample itself.
    """
    label = labels[samples]
    place = torch.empty_like(index.order).scatter_(
        0, index.order, torch.arange(len(labels), device=labels.device)
    )[samples]
    others = (index.size[label] - 1).clamp_min(1)
    step = 1 + (
        torch.rand(len(samples), generator=generator, device=labels.device) * others
    ).long().clamp_max(others - 1)
    within = (place - index.first[label] + step) % index.size[label]
    return index.order[index.first[label] + within]


def subset(labels: Tensor, share: float, seed: int) -> Tensor:
    """Indices of `share` of each class's samples, at least two of each if there are two, in order.

    labels: [n]; share: in (0, 1], else ValueError. The same seed gives the same choice on every
    device, and a smaller share gives a part of it.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}: it lies in (0, 1], 0.1 is a tenth of each class")
    if share == 1:
        return torch.arange(len(labels), device=labels.device)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(
        labels.device
    )
    index = class_index(labels[shuffled])
    wanted = (share * index.size).round().long().clamp_min(2)
    place = torch.arange(len(labels), device=labels.device) - index.first.repeat_interleave(
        index.size
    )
    return shuffled[index.order[place < wanted.repeat_interleave(index.size)]].sort().values


def held_out(labels: Tensor, fraction: float, seed: int, what: str) -> Tensor:
    """Whether each sample is held out: `fraction` of each class. Returns bool [n] on the CPU.

    At least one sample of each class is held out, and at least one is left. labels: [n]; what: the
    set's name, for messages. The same seed gives the same choice on every device. DataError for a
    fraction outside (0, 1), and for a class of one sample.
    """
    if not 0 < fraction < 1:
        raise DataError(
            f"fraction is {fraction}, but must lie between 0 and 1: 0.2 holds out a fifth of each "
            "class"
        )
    labels = labels.cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        own = order[labels[order] == label]
        if len(own) < 2:
            raise DataError(
                f"class {int(label)} of {what} has one sample only, which cannot be divided"
            )
        chosen[own[: min(max(round(fraction * len(own)), 1), len(own) - 1)]] = True
    return chosen


def blocks(
    index: ClassIndex, count: int, size: int, generator: torch.Generator, *, largest: int
) -> Tensor:
    """`count` blocks of `size` distinct samples of one class each. Returns [count, size].

    A class is drawn with its share of the samples as rho. arora2019, Sections 2 and 6.3: size 2 is
    a pair (x, x+) ~ D_sim, size b + 1 an anchor and its block of b positives, in any order, since
    they are exchangeable. largest: the size of the largest class, `int(index.size.max())`. Every
    class must hold `size` samples. The caller finds out both once: asking the device here would
    wait for it in every step.
    """
    n, device = len(index.order), index.order.device
    anchor = torch.randint(n, (count,), generator=generator, device=device)
    of = torch.searchsorted(index.first, anchor, right=True) - 1
    if size == 2:  # the pair's other member, a random step ahead in its class
        others = index.size[of] - 1
        step = 1 + (torch.rand(count, generator=generator, device=device) * others).long().minimum(
            others - 1
        )
        places = torch.stack(
            [anchor, index.first[of] + (anchor - index.first[of] + step) % index.size[of]], 1
        )
        return index.order[places]
    keys = torch.rand(count, largest, generator=generator, device=device)
    keys = keys.masked_fill(
        torch.arange(keys.shape[1], device=device) >= index.size[of, None], -1.0
    )
    return index.order[index.first[of, None] + keys.topk(size, 1).indices]


def other_blocks(count: int, anchors: int, k: int, generator: torch.Generator) -> Tensor:
    """k of the other blocks for each anchor of each of `count` blocks. Returns [count, anchors, k].

    They are uniform and independent. arora2019, footnote 7: the batch's similar blocks serve one
    another as negative blocks. Blocks of the anchor's own class are not left out: negatives come
    from the marginal (definition of D_neg). ValueError for fewer than two blocks.
    """
    if count < 2:
        raise ValueError(
            f"{count} block has no other block for a negative; use a larger batch or smaller blocks"
        )
    drawn = torch.rand(count, anchors, k, generator=generator, device=generator.device)
    other = (drawn * (count - 1)).long().clamp_max(count - 2)
    return other + (other >= torch.arange(count, device=other.device)[:, None, None])
