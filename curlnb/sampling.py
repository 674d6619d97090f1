"""Drawing from latent classes, on the device that holds the labels (arora2019, Section 2)."""

from typing import NamedTuple

import torch
from torch import Tensor


class ClassIndex(NamedTuple):
    """Samples sorted by class. order: [n] samples, class by class; first, size: [C] where a class begins in it and how many it has."""

    order: Tensor
    first: Tensor
    size: Tensor


def class_index(labels: Tensor) -> ClassIndex:
    """labels: int64 [n] in 0..C-1."""
    size = torch.bincount(labels)
    return ClassIndex(labels.argsort(stable=True), size.cumsum(0) - size, size)


def similar(index: ClassIndex, labels: Tensor, samples: Tensor, generator: torch.Generator) -> Tensor:
    """For each of `samples` [b] another sample of its class, uniformly: (x, x+) ~ D_sim of arora2019, Eq. 1, without x = x+. Returns [b].

    labels: [n], as given to `class_index`. A class with a single sample gives that sample itself.
    """
    label = labels[samples]
    place = torch.empty_like(index.order).scatter_(0, index.order, torch.arange(len(labels), device=labels.device))[samples]
    others = (index.size[label] - 1).clamp_min(1)
    step = 1 + (torch.rand(len(samples), generator=generator, device=labels.device) * others).long().clamp_max(others - 1)
    within = (place - index.first[label] + step) % index.size[label]
    return index.order[index.first[label] + within]
