"""Rows of `make bench` about graphs: InfoGraph's loss as one matrix operation against its loop over
nodes.
"""

import math
from typing import Any

import torch
from bench_steps import in_turn, row
from torch import Tensor
from torch.nn import functional as F

from curlnb import losses
from curlnb.data import graphs
from curlnb.runs import devices

BATCH = 128


def looped_loss(scores: Tensor, own: Tensor, *, beta: float = 0.0, sign: int = 1) -> Tensor:
    """What `losses.jsd_loss` computes with weight_clip="rescale", with the masks filled node by
    node as in InfoGraph's released code.

    scores: [nodes, graphs]; own: [nodes]. Returns the mean, 0-dim.
    """
    nodes, count = scores.shape
    mine, others = (
        torch.zeros(nodes, count, device=scores.device),
        torch.ones(nodes, count, device=scores.device),
    )
    for node, graph in enumerate(own):
        mine[node][graph] = 1.0
        others[node][graph] = 0.0
    log_2 = math.log(2)
    positive, negative = scores * mine, scores * others
    aligned = (log_2 - F.softplus(-positive)).sum() / nodes  # a masked score of 0 gives 0
    against = F.softplus(-negative) + negative - log_2
    if beta:
        weight = (
            sign * 2 * beta * negative / torch.maximum(negative.max(), negative.min().abs())
        ).exp() * others
        against = against * weight * (count - 1) / weight.sum(1, keepdim=True)
    return against.sum() / (nodes * (count - 1)) - aligned


def infograph_loss(device: torch.device) -> dict[str, Any]:
    """Steps a second, forward and backward of the loss on a batch of 128 graphs of MUTAG."""
    part = graphs.load("MUTAG", device).subset(torch.arange(BATCH, device=device))
    generator = torch.Generator(device).manual_seed(0)
    scores = torch.randn(
        len(part.batch), BATCH, generator=generator, device=device
    ).requires_grad_()

    def ours() -> None:
        losses.jsd_loss(scores, part.batch).mean().backward()

    def loop() -> None:
        looped_loss(scores, part.batch).backward()

    with devices.cpu_threads(
        1
    ):  # as runs compute; threads would wait for each other on matrices as small as these
        a, b = in_turn(ours, loop, device)
    what = f"InfoGraph's loss, {BATCH} graphs, {len(part.batch):,} nodes, against a loop over nodes"
    return row(what, 1 / a, 1 / b, "steps/s")
