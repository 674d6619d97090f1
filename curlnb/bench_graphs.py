"""Rows of `make bench` about graphs: InfoGraph's loss as one matrix operation against its loop over nodes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from curlnb import losses
from curlnb.datasets import graphs

BATCH = 128


def looped_loss(scores: Tensor, own: Tensor, *, beta: float, sign: int = 1) -> Tensor:
    """What `losses.jsd_loss` computes with weight_clip="rescale", with the masks filled node by node as in the released code.

    scores: [nodes, graphs]; own: [nodes]. Returns the mean, 0-dim.
    """
    nodes, count = scores.shape
    mine, others = torch.zeros(nodes, count, device=scores.device), torch.ones(nodes, count, device=scores.device)
    for node, graph in enumerate(own):
        mine[node][graph] = 1.0
        others[node][graph] = 0.0
    negative = scores * others
    weight = (sign * 2 * beta * negative / torch.maximum(negative.max(), negative.min().abs())).exp() * others
    weight = weight / weight.sum(1, keepdim=True)
    against = (weight * F.softplus(scores)).sum() / nodes
    aligned = (F.softplus(-scores) * mine).sum() / nodes
    return aligned + against - 2 * torch.tensor(2.0, dtype=scores.dtype, device=scores.device).log()


def infograph_loss(device: torch.device, in_turn: Callable[..., tuple[float, float]]) -> dict[str, Any]:
    """Steps a second, forward and backward of the loss on a batch of 128 graphs of MUTAG. in_turn: `bench.in_turn`."""
    part = graphs.load("MUTAG", device).subset(torch.arange(BATCH, device=device))
    generator = torch.Generator(device).manual_seed(0)
    scores = torch.randn(len(part.batch), BATCH, generator=generator, device=device).requires_grad_()

    def ours() -> None:
        losses.jsd_loss(scores, part.batch, beta=1.0, weight_clip="rescale").mean().backward()

    def loop() -> None:
        looped_loss(scores, part.batch, beta=1.0).backward()

    a, b = in_turn(ours, loop, device)
    what = f"InfoGraph's loss, {BATCH} graphs, {len(part.batch):,} nodes, against a loop over nodes"
    return {"what": what, "ours": 1 / a, "baseline": 1 / b, "unit": "steps/s", "ratio": b / a}
