"""The losses of arora2019's bounds, measured on the features of data with latent classes."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from curlnb.data import sampling


class Similarities(NamedTuple):
    """Inner products of anchors with positives and negatives.

    close: [m, draws], with points of their class; far: [m, draws, k], with k points of any class.
    """

    close: Tensor
    far: Tensor


def sampled_similarities(
    features: Tensor,
    labels: Tensor,
    *,
    negatives: int,
    generator: torch.Generator,
    draws: int = 16,
    most: int = 10_000,
) -> Similarities:
    """The inner products for `mean_loss`, drawn as in arora2019, Definition 2.3.

    x, x+ and the k = `negatives` x- are independent. features: [n, d]; labels: [n]. Each point (or
    `most` random ones where there are more) is an anchor.
    """
    index, n, device = sampling.class_index(labels), len(labels), features.device
    anchor = (
        torch.arange(n, device=device)
        if n <= most
        else torch.randperm(n, generator=generator, device=device)[:most]
    )
    size = index.size[labels[anchor], None]
    step = (
        (torch.rand(len(anchor), draws, generator=generator, device=device) * size)
        .long()
        .minimum(size - 1)
    )
    # [m, draws]; x itself is one of its class
    positive = index.order[index.first[labels[anchor], None] + step]
    negative = torch.randint(
        n, (len(anchor), draws * negatives), generator=generator, device=device
    )
    close, far = [], []
    for some in torch.arange(len(anchor), device=device).split(500):
        x = features[anchor[some], :, None]
        close.append((features[positive[some]] @ x).squeeze(2))
        far.append((features[negative[some]] @ x).squeeze(2).unflatten(1, (draws, negatives)))
    return Similarities(torch.cat(close), torch.cat(far))


def mean_loss(drawn: Similarities, kind: str) -> float:
    """L_un (arora2019, Definition 2.3, b = 1), over all pairs of a positive and a set of negatives.

    Both losses depend on the set through one number: max_i v_i, or log sum_i e^{v_i}. A standard
    error of about 0.002 for losses near 1.
    """
    if kind == "hinge":
        # [m, draws, draws]
        value = (1 + drawn.far.amax(2)[:, None] - drawn.close[:, :, None]).clamp_min(0)
    else:
        value = F.softplus(drawn.far.logsumexp(2)[:, None] - drawn.close[:, :, None]) / math.log(2)
    return round(float(value.mean((1, 2)).mean()), 6)


def best_scale_loss(features: Tensor, labels: Tensor, *, kind: str, seed: int) -> float:
    """The least L_un (k = 1) of c f over factors c = 2^-8 .. 2^4, at any scale of f.

    It is the loss of f at its best overall scale.
    """
    # the same triples for every kind, and at every scale
    generator = torch.Generator(features.device).manual_seed(seed)
    close, far = sampled_similarities(features, labels, negatives=1, generator=generator, draws=4)
    return min(
        mean_loss(Similarities(4.0**power * close, 4.0**power * far), kind)
        for power in range(-8, 5)
    )


def average_task_loss(features: Tensor, labels: Tensor, means: Tensor, kind: str) -> float:
    """L_sup of the classifier `means` [C, d], averaged over binary tasks.

    Source: arora2019, Definition 2.2. The tasks are a point's class and each of the others.
    features: [n, d]; labels: [n].
    """
    scores = features.to(means.dtype) @ means.T
    minus_v = scores - scores.gather(1, labels[:, None])  # [n, C]
    value = (1 + minus_v).clamp_min(0) if kind == "hinge" else F.softplus(minus_v) / math.log(2)
    own = F.one_hot(labels, means.shape[0]).bool()
    return round(float(value.masked_fill(own, 0).sum(1).mean() / (means.shape[0] - 1)), 6)
