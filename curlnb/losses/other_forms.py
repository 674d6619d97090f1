"""The objectives that are not the one formula: arora2019's, and InfoGraph's with hard negatives."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from curlnb.losses.checks import Number, is_known, is_zero, require, upcast
from curlnb.losses.estimate import Clip, Options, seen_by_weights, slope_of_weights


def curl_loss(
    anchor: Tensor, positive: Tensor, negatives: Tensor, kind: str = "logistic"
) -> Tensor:
    """l(v) with v_i = f(x).(f(x+) - f(x_i^-)) of each anchor (arora2019, Definition 2.3; blocks:
    Eq. 12). Returns [n].

    anchor: [n, d]; positive: [n, d], or a block [n, b, d]; negatives: [n, k, d], or blocks [n, k,
    b, d]. A block stands for its mean; b counts the points averaged, not the anchor.
    kind: "logistic" is log2(1 + sum_i e^{-v_i}), in base 2, so that a constant f has loss 1 at k =
    1; "hinge" is max(0, 1 + max_i -v_i).
    """
    if kind not in ("logistic", "hinge"):
        raise ValueError(f"kind must be 'logistic' or 'hinge', not {kind!r}")
    anchor, positive, negatives = upcast(anchor, positive, negatives)
    positive = positive.mean(1) if positive.dim() == 3 and positive.shape[1] else positive
    negatives = negatives.mean(2) if negatives.dim() == 4 and negatives.shape[2] else negatives
    fits = anchor.dim() == 2 and positive.shape == anchor.shape
    right = fits and negatives.dim() == 3 and negatives.shape[1] > 0
    require(
        right and negatives[:, 0].shape == anchor.shape,
        "anchor [n, d], positive [n, (b,) d], negatives [n, k >= 1, (b,) d] (blocks here averaged)",
        *(anchor, positive, negatives),
    )
    with torch.autocast(anchor.device.type, enabled=False):
        towards = (negatives @ anchor[:, :, None]).squeeze(2)
        minus_v = towards - (anchor * positive).sum(1, keepdim=True)  # [n, k]
        if kind == "hinge":
            loss = (1 + minus_v.amax(1)).clamp_min(0)
        else:
            loss = F.pad(minus_v, (1, 0)).logsumexp(1) / math.log(2)  # 1 = e^0
        # an infinite f(x+) would pass for a perfect one
        return torch.where(minus_v.isfinite().all(1), loss, math.nan)


def jsd_loss(
    scores: Tensor,
    own: Tensor,
    *,
    beta: Number = 0.0,
    tau_plus: Number = 0.0,
    weight_sign: int = 1,
    weight_clip: Clip = None,
) -> Tensor:
    """Jensen-Shannon loss of nodes against graphs, sp(-T_own) + E_q sp(T) - 2 log 2, per node
    (robinson2021, App. B). Returns [nodes].

    scores: [nodes, graphs], T of each node with each graph; own: [nodes] index of each node's
    graph, or its one-hot [nodes, graphs] bool. sp is the softplus; E_q is over the other graphs
    under weights e^{beta T}. The node's own graph enters neither sum nor normaliser (in the
    released code it is in both). beta = 0, tau_plus = 0 is InfoGraph's loss when averaged over
    nodes; T = 0 has loss 0.
    tau_plus: the chance that another graph is of the anchor's class. E_q sp(T) becomes (E_q sp(T) -
    tau+ sp(T_own)) / tau-, which is Eq. 4 with sp for exp and M = 1, floored at 0, the infimum of
    sp; a node on the floor gives the other graphs no gradient. (The released code fixes tau+ at
    0.5, and adds tau+/tau- sp(T_own) where this subtracts it.)
    weight_sign, weight_clip: as in `contrastive_loss`, on u = T; beta = 10 overflows a training run
    without a clip.
    """
    (scores,) = upcast(scores)
    require(scores.dim() == 2 and scores.shape[1] > 1, "scores [nodes, graphs >= 2]", scores)
    options = Options(
        beta=beta, tau_plus=tau_plus, weight_sign=weight_sign, weight_clip=weight_clip
    ).fitted(scores[:, 0])
    beta, tau_plus = options.beta, options.tau_plus
    integers = isinstance(own, Tensor) and not (own.is_floating_point() or own.is_complex())
    require(
        integers and own.device == scores.device and own.shape in (scores.shape[:1], scores.shape),
        f"own as integers [{len(scores)}] or one-hot {list(scores.shape)}, on {scores.device}",
        own,
    )
    graphs = torch.arange(scores.shape[1], device=own.device)
    mine = own.bool() if own.dim() == 2 else own[:, None] == graphs  # [nodes, graphs]
    one = mine.sum(1) == 1
    if is_known(one, lambda one: ~one.all()):
        raise ValueError(
            f"own must mark one of {scores.shape[1]} graphs for each node, "
            f"and does not for node {int(one.int().argmin())}"
        )
    own_score = scores.masked_fill(~mine, 0.0).sum(1)
    if is_zero(beta):  # equal weights need no softmax, which halves the time
        others = F.softplus(scores).masked_fill(mine, 0.0).sum(1) / (scores.shape[1] - 1)
    else:
        slope = slope_of_weights(scores, mine, 1.0, beta, weight_clip)
        log_w = slope * seen_by_weights(scores, None, 1.0, weight_clip, weight_sign)
        q = log_w.masked_fill(mine, -math.inf).softmax(1)  # [nodes, graphs], 0 at the own graph
        others = (q * F.softplus(scores)).sum(1)
    if not is_zero(tau_plus):
        others = ((others - tau_plus * F.softplus(own_score)) / (1 - tau_plus)).clamp_min(0)
    loss = F.softplus(-own_score) + others - 2 * math.log(2)
    # softplus and the floor would hide an infinite own score
    return torch.where(one & (own_score < math.inf), loss, math.nan)
