"""Quick-thoughts' loss of neighbouring sentences, with debiased and hard negatives."""

from typing import Any

import torch
from torch import Tensor

from curlnb import losses


def columns(
    own: Tensor, diagonal: str = "out", sibling: str = "out"
) -> tuple[Tensor, Tensor, Tensor]:
    """Which of B consecutive sentences are neighbours, and which are negatives.

    own: [B], the book of each sentence; neighbours are of one book. diagonal: "out", a sentence is
    not its own negative, or "zero", as in the released code, whose self-scores of 0 stay in the
    softmax. sibling: whether one neighbour counts among the negatives of the other; "in" is
    quick-thoughts' softmax over all other sentences. Returns there [2, B] bool, whether a sentence
    has a predecessor and a successor; near [2, B], their places (any where there is none); negative
    [2, B, B] bool. ValueError for another word.
    """
    if diagonal not in ("out", "zero") or sibling not in ("out", "in"):
        raise ValueError(
            f"diagonal must be 'out' or 'zero' and sibling 'out' or 'in', not {diagonal!r} and "
            f"{sibling!r}"
        )
    size = len(own)
    place = torch.arange(size, device=own.device)
    same = own[1:] == own[:-1]
    edge = same.new_zeros(1)
    there = torch.stack([torch.cat([edge, same]), torch.cat([same, edge])])
    near = torch.stack([(place - 1).clamp_min(0), (place + 1).clamp_max(size - 1)])
    positive = (place == near[:, :, None]) & there[:, :, None]  # [2, B, B]
    negative = ~(positive if sibling == "in" else positive.any(0).expand_as(positive))
    if diagonal == "out":
        negative = negative & ~torch.eye(size, dtype=torch.bool, device=own.device)
    return there, near, negative


def neighbour_loss(
    scores: Tensor,
    own: Tensor,
    *,
    beta: float = 0.0,
    weight_clip: str | None = "rescale",
    diagonal: str = "out",
    sibling: str = "out",
    **options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Quick-thoughts' loss, 0-dim, with debiased or hard negatives, and a dict of 0-dim measures.

    g is that of chuang2020, Eq. 16, or robinson2021, Eq. 4, with M = 2. scores: [B, B], f of the
    row's sentence with g of the column's; own: [B] books. An anchor's loss is the mean of -log
    e^{s_j} / (e^{s_j} + N g) over its one or two neighbours j, where g uses both; N is the number
    of negatives of an anchor with two. With tau_plus = beta = 0, diagonal "zero" and sibling "in"
    this is the released code: cross-entropy with targets 1/2, 1/2. Temperature 1; scores are not
    normalised. diagonal, sibling: as in `columns`; the rest as in `losses.contrastive_loss`.
    """
    there, near, negative = columns(own, diagonal, sibling)
    if diagonal == "zero":
        scores = scores * (1 - torch.eye(len(scores), dtype=scores.dtype, device=scores.device))
    pos = torch.stack([scores.gather(1, column[:, None])[:, 0] for column in near])  # [2, B]
    both = torch.where(
        there, pos, pos.flip(0)
    ).T  # an anchor with one neighbour has it twice, which is M = 1
    options |= {
        "temperature": 1.0,
        "beta": beta,
        "extra_pos": both,
        "weight_clip": weight_clip if beta > 0 else None,
    }
    n = float(len(own) - 1 - (diagonal == "out") - (sibling == "out"))
    weight = there / there.sum(0).clamp_min(1)
    total, clamped = scores.new_zeros(()), scores.new_zeros(())
    for column in range(2):
        each, floored = losses.loss_and_clamped(
            pos[column], scores, mask=negative[column], n_eff=n, **options
        )
        total = total + torch.where(there[column], each * weight[column], 0.0).sum()
        clamped = clamped + floored / 2
    anchors = there.any(0).sum().clamp_min(1)
    with torch.no_grad():
        wide = negative[0].to(scores.dtype)
        # indexing by a mask would wait for a GPU
        positive = (
            pos[there].mean()
            if pos.device.type == "cpu"
            else torch.where(there, pos, torch.nan).nanmean()
        )
        about = {
            "clamped": clamped,
            "positive": positive,
            "negative": (scores * wide).sum() / wide.sum(),
        }
    return total / anchors, about
