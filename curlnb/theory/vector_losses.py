"""Losses of one positive and several negatives, and their exact means over independent draws.

The two losses are those of arora2019, Section 2; z and p are tensors of any leading dimensions, and
everything is differentiable.
"""

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from curlnb.theory.finite_worlds import check_kind

_STEP, _TAIL, _FEW_OUTCOMES, _MOST_MULTISETS = 0.3, 34.0, 100, 5000


def vector_loss(z: Tensor, kind: str) -> Tensor:
    """The loss of several differences of scores: max(0, 1 + max_i z_i) or log2(1 + sum_i e^z_i).

    z: [..., n], differences -v, the score of a wrong class (or a negative) minus the score of the
    right one; -inf where absent. Returns [...]; 0 if all are absent. Source: arora2019, Section 2.
    ValueError for an unknown kind.
    """
    check_kind(kind)
    if kind == "hinge":
        return (1 + z.amax(-1)).clamp_min(0)
    return torch.cat([torch.zeros_like(z[..., :1]), z], -1).logsumexp(-1) / math.log(2)


def expected_loss(z: Tensor, p: Tensor, k: int, kind: str) -> Tensor:
    """E l(-z_1, ..., -z_k) over k independent draws from a finite distribution.

    z: [..., n] values; p: [..., n] their probabilities. What p lacks to 1 is the chance that a draw
    is absent; with all k absent the loss is 0. The shapes are broadcast. Returns [...].

    Hinge: the largest of k draws has distribution function F^k. Logistic: where the k draws have
    few outcomes, a sum over their multisets, absent ones among them; else `expected_log`.
    """
    check_kind(kind)
    check_negatives(k)
    if k == 1:
        return (p * vector_loss(z.unsqueeze(-1), kind)).sum(-1)
    if kind == "hinge":
        z, p = torch.broadcast_tensors(z, p)
        z, order = z.sort(-1)
        p = p.gather(-1, order)
        distribution = (1 - p.sum(-1, keepdim=True)).clamp_min(0) + p.cumsum(-1)
        weights = distribution**k - (distribution - p).clamp_min(0) ** k
        return (weights * (1 + z).clamp_min(0)).sum(-1)
    if math.comb(z.shape[-1] + k, k) > _FEW_OUTCOMES:
        return expected_log(z, p, k) / math.log(2)
    absent = (1 - p.sum(-1, keepdim=True)).clamp_min(0)
    counts, chances = multisets(torch.cat([p, absent], -1), k)  # [m, n + 1], [..., m]
    # [..., m], log 0 where a value was not drawn
    losses = vector_loss(z.unsqueeze(-2) + counts[:, :-1].log(), kind)
    return (chances * losses).sum(-1)


def expected_log(z: Tensor, p: Tensor, k: int) -> Tensor:
    """E ln(1 + sum_i e^z_i) over k independent draws, exact to about 1e-14 k. Returns [...].

    z: [..., n] values; p: [..., n] their probabilities. ln(1 + a) is the integral of (1 - e^(-at))
    e^-t dt/t, in which the draws factorise, so that the cost does not depend on their number; in ln
    t it is taken by the trapezoidal rule. ValueError without a draw.
    """
    check_negatives(k)
    lowest = -_TAIL - math.log(k) - max(0.0, float(z.detach().max()))
    u = torch.arange(lowest, math.log(_TAIL) + _STEP, _STEP, dtype=z.dtype, device=z.device)  # ln t
    # [..., nodes, n], beyond e^6 it is 1
    absorbed = -torch.expm1(-(u.unsqueeze(-1) + z.unsqueeze(-2)).clamp_max(6).exp())
    kept = (1 - (p.unsqueeze(-2) * absorbed).sum(-1)) ** k  # E e^(-at), [..., nodes]
    return ((1 - kept) * torch.exp(-u.exp())).sum(-1) * _STEP


def multisets(p: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Every way to draw `size` points with repetition and without order, and its probability.

    p: [..., points]. Returns counts [n, points] and [..., n].
    """
    points = p.shape[-1]
    if size < 1 or math.comb(points + size - 1, size) > _MOST_MULTISETS:
        raise ValueError(
            f"b = {size} on {points} points: use b >= 1 with at most {_MOST_MULTISETS} multisets, "
            "binom(P + b - 1, b)"
        )
    chosen = torch.tensor([*combinations_with_replacement(range(points), size)])
    counts = one_hot(chosen, points).sum(1).to(p)
    ways = torch.exp(math.lgamma(size + 1) - torch.lgamma(counts + 1).sum(-1))
    return counts, ways * (p.unsqueeze(-2) ** counts).prod(-1)


def check_negatives(k: int) -> None:
    """ValueError for fewer than one negative."""
    if k < 1:
        raise ValueError(f"k is {k}: use at least one negative")
