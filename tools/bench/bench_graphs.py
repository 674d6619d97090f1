"""The row of `make bench` about graphs: InfoGraph's loss as one matrix operation against its loop
over nodes.
"""

import math

import torch
from bench_steps import Row, compared
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
    mine, others = torch.zeros_like(scores), torch.ones_like(scores)
    for node, graph in enumerate(own):
        mine[node][graph] = 1.0
        others[node][graph] = 0.0
    log_2 = math.log(2)
    positive, negative = scores * mine, scores * others
    aligned = (log_2 - F.softplus(-positive)).sum() / nodes  # a masked score of 0 gives 0
    against = F.softplus(-negative) + negative - log_2
    if beta:
        largest = torch.maximum(negative.max(), negative.min().abs())
        weight = (sign * 2 * beta * negative / largest).exp() * others
        against = against * weight * (count - 1) / weight.sum(1, keepdim=True)
    return against.sum() / (nodes * (count - 1)) - aligned


def infograph_loss(device: torch.device) -> Row:
    """Steps a second, forward and backward of the loss on a batch of 128 graphs of MUTAG, on one
    thread, as runs compute.
    """
    own = graphs.load("MUTAG", device).subset(torch.arange(BATCH, device=device)).batch
    torch.manual_seed(0)
    scores = torch.randn(len(own), BATCH, device=device, requires_grad=True)
    with devices.cpu_threads(1):
        return compared(
            f"InfoGraph's loss, {BATCH} graphs, {len(own):,} nodes, against a loop over nodes",
            lambda: losses.jsd_loss(scores, own).mean().backward(),
            lambda: looped_loss(scores, own).backward(),
            device,
            "steps/s",
            1,
        )
