"""Every objective of the three papers, as pure functions of similarities.

One formula holds them all. For an anchor x with a positive x+ and k samples u_i of the marginal,

    loss = -log e^{s+/t} / (e^{s+/t} + N g),    s = f(x).f(.), N negatives, temperature t,

and only g, the estimate of a negative's mean e^{s/t}, tells the objectives apart:

    info_nce         g = mean_i e^{s_i/t}                                            the marginal, as it is
    unbiased         the same over the u_i of other classes (needs labels)          chuang2020, Eq. 4 with Q = N
    debiased         g = (mean_i e^{s_i/t} - tau+ mean_j e^{v_j/t}) / tau-           chuang2020, Eq. 16
    hard             the same with means under weights w = e^{beta s/t}              robinson2021, Eq. 4
    hard_consistent  g = (E w e^{s/t} - tau+ E+ w e^{s/t}) / (E w - tau+ E+ w)       derived here, where robinson2021's Eq. 2 fails

with v_j the similarities to M positives, tau+ the share of the anchor's class, tau- = 1 - tau+. All of it is done in logarithms:
e^{(1+beta)s/t} leaves float32 at (1+beta)/t = 88.7. Half precision is computed in float32, also under autocast; float64 stays.
`curl_loss` (arora2019) and `jsd_loss` (InfoGraph) have forms of their own. No function reads a value back from the device.
"""

import math
from typing import Any, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

HOLE = -1e20  # the similarity of a negative that does not count: e^HOLE is 0, but no gradient meets inf - inf

Floor = str | float | None  # "sphere", a number or None
Clip = str | None  # "rescale", "clamp" or None


def contrastive_loss(
    pos: Tensor,
    neg: Tensor,
    *,
    temperature: float = 0.5,
    tau_plus: float = 0.0,
    beta: float = 0.0,
    extra_pos: Tensor | None = None,
    mask: Tensor | None = None,
    n_eff: float | None = None,
    floor: Floor = "sphere",
    consistent: bool = False,
    detach_weights: bool = False,
    weight_clip: Clip = None,
    weight_sign: int = 1,
) -> Tensor:
    """-log e^{s+/t} / (e^{s+/t} + N g), an anchor each (chuang2020, Eq. 16 and 21; robinson2021, Eq. 4). Returns [n].

    pos: [n] similarity of each anchor to its positive, not yet divided by the temperature; neg: [n, k] to samples of the marginal.
    tau_plus: the class prior tau+ in [0, 1). beta: the concentration of the weights e^{beta s/t}, 0 for none.
    extra_pos: [n, m] the complete set of M positives in g (default: `pos` alone), reweighted as the negatives are.
    mask: [n, k] bool, True where a negative counts. An anchor with none left has loss 0 and no gradient.
    n_eff: the N of the loss; default k, masked columns included, so that a mask changes what is averaged and not N.
    floor: lower bound of g, without effect when tau_plus is 0. "sphere" is exp(-1/t), the least a unit vector allows; a number >= 0 is
        taken as it is; None lets g be negative, and the loss is nan where e^{s+/t} + N g is not positive. A floored anchor gives its
        negatives no gradient: watch `clamped_fraction`.
    consistent: debias the weights' normaliser too. An estimate whose numerator or denominator is not positive says that no mass is
        left for the other classes: it is put on the floor. Nothing bounds it from above.
    detach_weights: no gradient through the weights. The default lets it flow, as the released code does.
    weight_clip: what the weights see instead of u = s/t. "rescale": 2u / max|u|, over all negatives of the call (robinson2021, Fig. 14,
        for scores that are not on a sphere; the negative that holds the maximum gets a gradient from every anchor's weights); "clamp": u
        cut to [-2, 2], which is what that figure's caption says.
    weight_sign: -1 turns the weights round, so that easy negatives weigh more (the released graph code).
    Raises ValueError, in one line, for an argument out of range or shapes that do not match.
    """
    loss, _ = loss_and_clamped(
        pos, neg, temperature, tau_plus, beta, extra_pos, mask, n_eff, floor, consistent, detach_weights, weight_clip, weight_sign
    )
    return loss


def clamped_fraction(pos: Tensor, neg: Tensor, **options: Any) -> Tensor:
    """The share of anchors whose g lies on the floor, in [0, 1], as a 0-dim tensor on the device. Options as `contrastive_loss`.

    On the floor the negatives get no gradient. With aligned positives and uniform negatives every anchor is there as soon as tau+ exceeds
    0.121 at t = 0.5, or 0.0074 at t = 0.2. The share is 0 when tau_plus is 0 or floor is None.
    """
    with torch.no_grad():
        return loss_and_clamped(pos, neg, **options)[1]


def loss_and_clamped(
    pos: Tensor,
    neg: Tensor,
    temperature: float = 0.5,
    tau_plus: float = 0.0,
    beta: float = 0.0,
    extra_pos: Tensor | None = None,
    mask: Tensor | None = None,
    n_eff: float | None = None,
    floor: Floor = "sphere",
    consistent: bool = False,
    detach_weights: bool = False,
    weight_clip: Clip = None,
    weight_sign: int = 1,
) -> tuple[Tensor, Tensor]:
    """`contrastive_loss` [n] and, in the same pass, `clamped_fraction`, 0-dim, which a training logs beside it. Arguments as there."""
    _check_ranges(temperature, tau_plus, beta, n_eff, floor, weight_clip, weight_sign)
    pos, neg, extra_pos = _check_shapes(pos, neg, extra_pos, mask)
    if neg.shape[1] == 0:
        return 0.0 * pos, pos.new_zeros(())
    x, above = _log_ratio(
        pos, neg, temperature, tau_plus, beta, extra_pos, mask, n_eff, floor, consistent, detach_weights, weight_clip, weight_sign
    )
    loss = -F.logsigmoid(-x)  # log(1 + N g / e^{s+/t})
    if floor is None and tau_plus > 0:  # g may be negative, and x is then the logarithm of its modulus
        loss = torch.where(above, loss, torch.log1p(-torch.where(above, -1.0, x).exp()))
    counts = None if mask is None else mask.sum(1) > 0
    loss = loss if counts is None else torch.where(counts, loss, 0.0)
    if tau_plus == 0 or floor is None:
        return loss, pos.new_zeros(())
    clamped = ~above if counts is None else ~above & counts
    return loss, clamped.to(pos.dtype).mean()


def info_nce(pos: Tensor, neg: Tensor, **options: Any) -> Tensor:
    """The biased loss, -log pos / (pos + sum neg) (chuang2020, Eq. 1). Options as `contrastive_loss`. Returns [n]."""
    return contrastive_loss(pos, neg, tau_plus=0.0, beta=0.0, **options)


def debiased(pos: Tensor, neg: Tensor, *, tau_plus: float = 0.1, **options: Any) -> Tensor:
    """Debiased contrastive loss (chuang2020, Eq. 16 and 21). Options as `contrastive_loss`. Returns [n]."""
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=0.0, **options)


def hard(pos: Tensor, neg: Tensor, *, tau_plus: float = 0.1, beta: float = 1.0, **options: Any) -> Tensor:
    """Hard negatives by importance weights (robinson2021, Eq. 4). Options as `contrastive_loss`. Returns [n].

    The derivation and the released code, (imp * neg).sum() / imp.mean() with imp = neg^beta; not the pseudocode of Fig. 13, a typo.
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=beta, **options)


def hard_consistent(pos: Tensor, neg: Tensor, *, tau_plus: float = 0.1, beta: float = 1.0, **options: Any) -> Tensor:
    """Hard negatives, with numerator and denominator both debiased. Options as `contrastive_loss`. Returns [n].

    robinson2021's Eq. 2 gives the anchor's class the mass tau+ under q_beta; it has tau+ Z+/Z, more for beta > 0. Taking that into account
    E_{q_beta^-} e^{s/t} is the ratio in this module's head, exactly, once the samples are the population.
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=beta, consistent=True, **options)


def unbiased(pos: Tensor, neg: Tensor, same_class: Tensor, *, mask: Tensor | None = None, **options: Any) -> Tensor:
    """The supervised ideal: negatives of other classes only, their mean times N (chuang2020, Eq. 4 with Q = N). Returns [n].

    same_class: [n, k] bool, True where a negative is of its anchor's class (`same_label_mask` builds it); N counts these too, so that this
    loss and `info_nce` differ in sampling only. mask and the other options as `contrastive_loss`.
    """
    if same_class.shape != neg.shape or same_class.dtype != torch.bool:
        raise ValueError(f"same_class must be bool of neg's shape {tuple(neg.shape)}, not {same_class.dtype} {tuple(same_class.shape)}")
    return contrastive_loss(pos, neg, tau_plus=0.0, beta=0.0, mask=~same_class if mask is None else mask & ~same_class, **options)


class Pairs(NamedTuple):
    """The similarities of a batch: `pos` [n], `neg` [n, k]."""

    pos: Tensor
    neg: Tensor


def pairwise(z1: Tensor, z2: Tensor, *more: Tensor) -> Pairs:
    """Similarities of a batch seen in v views of [B, d] each (unit vectors, items in one order): v = 2 is SimCLR's, with N = 2B - 2.

    All n = vB embeddings are anchors, view 1 first. `pos` [n]: to the same item's next view, cyclically; `neg` [n, v(B-1)]: to every view
    of the other items, view 1 first, items in order. For v > 2, `positives` gives the M = v - 1 positives of each anchor.
    """
    z = _views(z1, z2, *more)
    views, batch, _ = z.shape
    with torch.autocast(z.device.type, enabled=False):
        flat = z.flatten(0, 1)
        pos = (z * z.roll(-1, 0)).sum(-1).flatten()
        return Pairs(pos, (flat @ flat.T).gather(1, _negative_columns(batch, views, z.device)))


def positives(z1: Tensor, z2: Tensor, *more: Tensor) -> Tensor:
    """The complete set of positives, `extra_pos` [n, v-1], of the anchors of `pairwise`; its first column is `pos`."""
    z = _views(z1, z2, *more)
    return torch.stack([(z * z.roll(-shift, 0)).sum(-1).flatten() for shift in range(1, len(z))], 1)


def same_label_mask(labels: Tensor, views: int = 2) -> Tensor:
    """labels: [B] of the items of `pairwise`. Returns [n, v(B-1)] bool, True where a negative has its anchor's label."""
    labels = labels.repeat(views)
    return labels[_negative_columns(len(labels) // views, views, labels.device)] == labels[:, None]


@overload
def subsample(neg: Tensor, n: int, generator: Generator | None) -> Tensor: ...
@overload
def subsample(neg: Tensor, n: int, generator: Generator | None, *others: Tensor) -> tuple[Tensor, ...]: ...
def subsample(neg: Tensor, n: int, generator: Generator | None, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
    """n columns of neg [rows, k] drawn without replacement, each row its own, from `generator` (on neg's device). Returns [rows, n].

    others: tables of neg's shape, such as a label mask, of which the same columns are taken; then all are returned, neg's first. This
    varies N at a fixed batch: what is left has N = n by default, and neither batch norm nor the number of steps changes.
    """
    if not 1 <= n <= neg.shape[1] or any(other.shape != neg.shape for other in others):
        raise ValueError(f"cannot draw {n} of {neg.shape[1]} negatives from tables {[tuple(table.shape) for table in (neg, *others)]}")
    keys = torch.rand(neg.shape, generator=generator, device=neg.device)
    columns = keys.topk(n, 1, sorted=False).indices  # a random subset needs no full sort
    taken = tuple(table.gather(1, columns) for table in (neg, *others))
    return taken if others else taken[0]


def curl_loss(anchor: Tensor, positive: Tensor, negatives: Tensor, kind: str = "logistic") -> Tensor:
    """l(v) with v_i = f(x).(f(x+) - f(x_i^-)), an anchor each (arora2019, Definition 2.3; blocks: Eq. 12). Returns [n].

    anchor: [n, d]; positive: [n, d], or a block [n, b, d]; negatives: [n, k, d], or blocks [n, k, b, d]. A block stands for its mean; b
    counts the points averaged, not the anchor.
    kind: "logistic" is log2(1 + sum_i e^{-v_i}), in base 2, so that a constant f has loss 1 at k = 1; "hinge" is max(0, 1 + max_i -v_i).
    """
    if kind not in ("logistic", "hinge"):
        raise ValueError(f"kind must be 'logistic' or 'hinge', not {kind!r}")
    positive = positive.mean(1) if positive.dim() == 3 and positive.shape[1] else positive
    negatives = negatives.mean(2) if negatives.dim() == 4 and negatives.shape[2] else negatives
    n_d, n_k_d = tuple(anchor.shape), tuple(negatives.shape)
    if anchor.dim() != 2 or positive.shape != n_d or len(n_k_d) != 3 or (n_k_d[0], n_k_d[2]) != n_d or n_k_d[1] == 0:
        shapes = f"anchor {n_d}, positive {tuple(positive.shape)}, negatives {n_k_d}"
        raise ValueError(f"need anchor [n, d], positive [n, (b,) d], negatives [n, k >= 1, (b,) d]; blocks averaged, they are {shapes}")
    with torch.autocast(anchor.device.type, enabled=False):
        anchor, positive, negatives = _upcast(anchor, positive, negatives)
        minus_v = (negatives @ anchor[:, :, None]).squeeze(2) - (anchor * positive).sum(1, keepdim=True)  # [n, k]
        if kind == "hinge":
            return (1 + minus_v.amax(1)).clamp_min(0)
        return F.pad(minus_v, (1, 0)).logsumexp(1) / math.log(2)  # the padding is the 1 = e^0


def jsd_loss(
    scores: Tensor, own: Tensor, *, beta: float = 0.0, tau_plus: float = 0.0, weight_sign: int = 1, weight_clip: Clip = None
) -> Tensor:
    """Jensen-Shannon loss of nodes against graphs, sp(-T_own) + E_q sp(T) - 2 log 2, a node each (robinson2021, App. B). Returns [nodes].

    scores: [nodes, graphs], T of each node with each graph; own: [nodes] index of each node's graph, or its one-hot [nodes, graphs] bool.
    sp is the softplus; E_q is over the other graphs under weights e^{beta T}. The node's own graph enters neither sum nor normaliser (in
    the released code it is in both). beta = 0, tau_plus = 0 is InfoGraph's loss when averaged over nodes; T = 0 has loss 0.
    tau_plus: the chance that another graph is of the anchor's class. E_q sp(T) becomes (E_q sp(T) - tau+ sp(T_own)) / tau-, which is
    Eq. 4 with sp for exp and M = 1, floored at 0, the least sp can be: below it, the other graphs get no gradient from the node. (The
    released code fixes tau+ at 0.5, and adds tau+/tau- sp(T_own) where this subtracts it.)
    weight_sign, weight_clip: as in `contrastive_loss`, on u = T; beta = 10 overflows a training run without a clip.
    """
    _check_ranges(1.0, tau_plus, beta, None, None, weight_clip, weight_sign)
    if scores.dim() != 2 or scores.shape[1] < 2 or own.shape not in (scores.shape[:1], scores.shape):
        raise ValueError(f"need scores [nodes, graphs >= 2] and own [nodes] or [nodes, graphs]: {tuple(scores.shape)}, {tuple(own.shape)}")
    (scores,) = _upcast(scores)
    index = own[:, None] if own.dim() == 1 else own.int().argmax(1, keepdim=True)  # [nodes, 1]
    own_score = scores.gather(1, index)[:, 0]
    if beta == 0:  # equal weights need no softmax, which halves the time
        others = F.softplus(scores).scatter(1, index, 0.0).sum(1) / (scores.shape[1] - 1)
    else:
        mine = torch.zeros_like(scores, dtype=torch.bool).scatter(1, index, True)
        log_w = _slope(scores, ~mine, 1.0, beta, weight_clip) * _seen_by_weights(scores, 1.0, weight_clip, weight_sign)
        q = log_w.masked_fill(mine, -math.inf).softmax(1)  # [nodes, graphs], 0 at the own graph
        others = (q * F.softplus(scores)).sum(1)
    if tau_plus > 0:
        others = ((others - tau_plus * F.softplus(own_score)) / (1 - tau_plus)).clamp_min(0)
    return F.softplus(-own_score) + others - 2 * math.log(2)


class _Means(NamedTuple):
    """Logarithms of mean w e^{(s - top)/t} and of mean w [n], with w = 1 at the hardest sample; the two centres [n, 1]."""

    weighted: Tensor
    weights: Tensor
    top: Tensor
    hardest: Tensor


def _log_ratio(
    pos: Tensor,
    neg: Tensor,
    t: float,
    tau_plus: float,
    beta: float,
    extra_pos: Tensor | None,
    mask: Tensor | None,
    n_eff: float | None,
    floor: Floor,
    consistent: bool,
    detach_weights: bool,
    clip: Clip,
    sign: int,
) -> tuple[Tensor, Tensor]:
    """x = log |N g / e^{s+/t}| [n], and whether g is positive and, where there is a floor, above it [n]."""
    k = neg.shape[1]
    log_n = math.log(k if n_eff is None else n_eff)
    log_k = math.log(k) if mask is None else mask.sum(1).clamp_min(1).to(neg.dtype).log()
    neg = neg if mask is None else neg.masked_fill(~mask, HOLE)
    always = torch.ones_like(pos, dtype=torch.bool)
    if tau_plus == 0 and beta == 0:
        return (neg / t).logsumexp(1) - pos / t + (log_n - log_k), always

    # Similarities are centred before they are scaled, and means taken relative to the positive: at t = 0.01 and beta = 100 exponents are
    # of order 10^4, of which float32 keeps three decimals.
    slope = _slope(neg, mask, t, beta, clip)

    def means(s: Tensor, log_count: Tensor | float, mask: Tensor | None = None, centres: _Means | None = None) -> _Means:
        top = _max(s) if centres is None else centres.top
        d = (s - top) / t  # [n, k]
        if beta == 0:
            return _Means(d.logsumexp(1) - log_count, torch.zeros_like(pos), top, top)
        seen = _seen_by_weights(s, t, clip, sign, mask)
        hardest = (top if seen is s else _max(seen)) if centres is None else centres.hardest
        log_w = slope * (seen - hardest)
        log_w = log_w if mask is None else log_w.masked_fill(~mask, HOLE)  # beta may be so small that it would fill the hole
        log_w = log_w.detach() if detach_weights else log_w
        return _Means((log_w + d).logsumexp(1) - log_count, log_w.logsumexp(1) - log_count, top, hardest)

    marginal = means(neg, log_k, mask)
    to_pos = (marginal.top[:, 0] - pos) / t
    if tau_plus == 0:
        return marginal.weighted - marginal.weights + to_pos + log_n, always

    log_tau, log_m = math.log(tau_plus), 0.0 if extra_pos is None else math.log(extra_pos.shape[1])
    if consistent and beta > 0:  # unnormalised means are subtracted: one pair of centres for both
        own = means(pos[:, None] if extra_pos is None else extra_pos, log_m, centres=marginal)
        numerator, more = _log_abs_diff(marginal.weighted, log_tau + own.weighted)
        denominator, left = _log_abs_diff(marginal.weights, log_tau + own.weights)
        log_g = numerator - denominator + to_pos
        positive = more == left if floor is None else more & left
    else:
        mean_pos = torch.zeros_like(pos)  # e^{s+/t} itself
        if extra_pos is not None:
            own = means(extra_pos, log_m)
            mean_pos = own.weighted - own.weights + (own.top[:, 0] - pos) / t
        log_g, positive = _log_abs_diff(marginal.weighted - marginal.weights + to_pos, log_tau + mean_pos)
        log_g = log_g - math.log1p(-tau_plus)
    if floor is not None:
        log_floor = (-1.0 - pos) / t if isinstance(floor, str) else (math.log(floor) if floor else -math.inf) - pos / t
        positive = positive & (log_g > log_floor)
        log_g = torch.where(positive, log_g, log_floor)
    return log_g + log_n, positive


def _seen_by_weights(s: Tensor, t: float, clip: Clip, sign: int, mask: Tensor | None = None) -> Tensor:
    """What the weights see of s, larger where they are: log w is `_slope` times it. s itself where there is nothing to change."""
    if clip != "clamp" and sign == 1:
        return s
    seen = sign * (s.clamp(-2 * t, 2 * t) if clip == "clamp" else s)
    return seen if mask is None else seen.masked_fill(~mask, HOLE)


def _slope(s: Tensor, mask: Tensor | None, t: float, beta: float, clip: Clip) -> float | Tensor:
    """The weights' exponent per unit of similarity: beta/t, or with "rescale" 2/max|s/t| times that, whatever the temperature."""
    if clip != "rescale":
        return beta / t
    peak = (s if mask is None else s.masked_fill(~mask, 0.0)).abs().max()
    return 2 * beta / peak.clamp_min(torch.finfo(s.dtype).eps)


def _max(s: Tensor) -> Tensor:
    """The largest of each row, a constant: a centre drops out of every result, and so out of every gradient."""
    return s.detach().amax(1, keepdim=True)


def _log_abs_diff(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """log |e^a - e^b|, and whether a > b. Its gradient is finite everywhere: at a = b the difference stops at e^a 1e-30."""
    gap = (a - b).abs().clamp_min(1e-30)
    return torch.maximum(a, b) + (-torch.expm1(-gap)).log(), a > b


def _upcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in the widest of their types, and in float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise ValueError(f"need floating-point tensors, not {tensor.dtype}")
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def _views(*z: Tensor) -> Tensor:
    """Views of [B, d] each, stacked to [v, B, d]."""
    if any(one.dim() != 2 or one.shape != z[0].shape for one in z):
        raise ValueError(f"views must be matrices of one shape [B, d], not {[tuple(one.shape) for one in z]}")
    return torch.stack(_upcast(*z))


def _negative_columns(batch: int, views: int, device: torch.device) -> Tensor:
    """For each of the vB anchors, the v(B-1) embeddings of other items. Returns int64 [vB, v(B-1)]."""
    item, other = torch.arange(batch, device=device)[:, None], torch.arange(batch - 1, device=device)
    others = other + (other >= item)  # [B, B-1]: steps over the item itself
    return torch.cat([others + view * batch for view in range(views)], 1).repeat(views, 1)


def _check_ranges(
    temperature: float, tau_plus: float, beta: float, n_eff: float | None, floor: Floor, weight_clip: Clip, weight_sign: int
) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if not 0 <= tau_plus < 1:
        raise ValueError(f"tau_plus must be in [0, 1), not {tau_plus}")
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta must be at least 0, not {beta}")
    if n_eff is not None and not 0 < n_eff < math.inf:
        raise ValueError(f"n_eff must be positive, not {n_eff}")
    if not (floor is None or floor == "sphere" or (isinstance(floor, int | float) and 0 <= floor < math.inf)):
        raise ValueError(f"floor must be 'sphere', None or a number >= 0, not {floor!r}")
    if weight_clip not in (None, "rescale", "clamp"):
        raise ValueError(f"weight_clip must be None, 'rescale' or 'clamp', not {weight_clip!r}")
    if weight_sign not in (1, -1):
        raise ValueError(f"weight_sign must be 1 or -1, not {weight_sign}")


def _check_shapes(pos: Tensor, neg: Tensor, extra_pos: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The similarities, in one type, once their shapes are found to match."""
    if pos.dim() != 1 or neg.dim() != 2 or len(neg) != len(pos):
        raise ValueError(f"need pos [n] and neg [n, k], not {tuple(pos.shape)} and {tuple(neg.shape)}")
    if extra_pos is not None and (extra_pos.dim() != 2 or len(extra_pos) != len(pos) or extra_pos.shape[1] == 0):
        raise ValueError(f"extra_pos must be [{len(pos)}, m >= 1], not {tuple(extra_pos.shape)}")
    if mask is not None and (mask.shape != neg.shape or mask.dtype != torch.bool):
        raise ValueError(f"mask must be bool of neg's shape {tuple(neg.shape)}, not {mask.dtype} {tuple(mask.shape)}")
    pos, neg, *extra = _upcast(pos, neg) if extra_pos is None else _upcast(pos, neg, extra_pos)
    return pos, neg, extra[0] if extra else None
