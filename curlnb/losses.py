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
`curl_loss` (arora2019) and `jsd_loss` (InfoGraph) have forms of their own. No function reads a value back from a GPU.
An anchor that meets NaN or +inf has a loss that is not finite, whatever the options: what has diverged is not hidden.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

HOLE = -1e20  # the similarity of a negative that does not count: e^HOLE is 0, but no gradient meets inf - inf

Floor = str | float | None  # "sphere", a number or None
Clip = str | None  # "rescale", "clamp" or None


@dataclass(frozen=True)
class _Objective:
    """The numbers and choices of `contrastive_loss`, as described there. ValueError, in one line, for one that is out of range."""

    temperature: float = 0.5
    tau_plus: float = 0.0
    beta: float = 0.0
    n_eff: float | None = None
    floor: Floor = "sphere"
    consistent: bool = False
    detach_weights: bool = False
    weight_clip: Clip = None
    weight_sign: int = 1

    def __post_init__(self) -> None:
        floor, n_eff = self.floor, self.n_eff
        floor_fits = floor in (None, "sphere") or (not isinstance(floor, str) and 0 <= floor < math.inf)
        for name, right, wanted in (
            ("temperature", 0 < self.temperature < math.inf, "positive"),
            ("tau_plus", 0 <= self.tau_plus < 1, "in [0, 1)"),
            ("beta", 0 <= self.beta < math.inf, "at least 0"),
            ("n_eff", n_eff is None or 0 < n_eff < math.inf, "positive"),
            ("floor", floor_fits, "'sphere', None or a number >= 0"),
            ("weight_clip", self.weight_clip in (None, "rescale", "clamp"), "None, 'rescale' or 'clamp'"),
            ("weight_sign", self.weight_sign in (1, -1), "1 or -1"),
        ):
            if not right:
                raise ValueError(f"{name} must be {wanted}, not {getattr(self, name)!r}")


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

    pos: [n] similarity of each anchor to its positive, not yet divided by the temperature; neg: [n, k] to samples of the marginal. A
        negative of -inf is absent: it counts neither in the mean nor in N. What `mask` leaves out may hold anything.
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
    objective = _Objective(temperature, tau_plus, beta, n_eff, floor, consistent, detach_weights, weight_clip, weight_sign)
    return _evaluate(pos, neg, extra_pos, mask, objective)[0]


def clamped_fraction(pos: Tensor, neg: Tensor, **options: Any) -> Tensor:
    """The share of anchors whose g lies on the floor, in [0, 1], as a 0-dim tensor on the device. Options as `contrastive_loss`.

    On the floor the negatives get no gradient. With aligned positives and uniform negatives every anchor is there as soon as tau+ exceeds
    0.121 at t = 0.5, or 0.0074 at t = 0.2. The share is 0 when tau_plus is 0 or floor is None.
    """
    with torch.no_grad():
        return loss_and_clamped(pos, neg, **options)[1]


def loss_and_clamped(
    pos: Tensor, neg: Tensor, *, extra_pos: Tensor | None = None, mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """`contrastive_loss` [n] and, in the same pass, `clamped_fraction`, 0-dim, which a training logs beside it. Options as there."""
    return _evaluate(pos, neg, extra_pos, mask, _Objective(**options))


def _evaluate(pos: Tensor, neg: Tensor, extra_pos: Tensor | None, mask: Tensor | None, objective: _Objective) -> tuple[Tensor, Tensor]:
    if pos.dim() != 1 or neg.dim() != 2 or len(neg) != len(pos):
        raise ValueError(f"need pos [n] and neg [n, k], not {tuple(pos.shape)} and {tuple(neg.shape)}")
    if extra_pos is not None and (extra_pos.dim() != 2 or len(extra_pos) != len(pos) or extra_pos.shape[1] == 0):
        raise ValueError(f"extra_pos must be [{len(pos)}, m >= 1], not {tuple(extra_pos.shape)}")
    if mask is not None and (mask.shape != neg.shape or mask.dtype != torch.bool):
        raise ValueError(f"mask must be bool of neg's shape {tuple(neg.shape)}, not {mask.dtype} {tuple(mask.shape)}")
    pos, neg, *extra = _upcast(pos, neg) if extra_pos is None else _upcast(pos, neg, extra_pos)
    extra_pos = extra[0] if extra else None
    if neg.shape[1] == 0:
        return 0.0 * pos, pos.new_zeros(())
    present = neg != -math.inf if mask is None else mask & (neg != -math.inf)
    counts = present.any(1)
    x, above, largest = _log_ratio(pos, neg, extra_pos, mask, present, objective)
    loss = -F.logsigmoid(-x)  # log(1 + N g / e^{s+/t})
    if objective.floor is None and objective.tau_plus > 0:  # g may be negative, and x is then the logarithm of its modulus
        loss = torch.where(above, loss, torch.log1p(-torch.where(above, -1.0, x).exp()))
    loss = torch.where(counts, loss, 0.0)
    sound = pos.isfinite() & largest.isfinite() & (pos if extra_pos is None else extra_pos.amax(1)).isfinite()
    loss = torch.where(sound, loss, math.nan)  # the floor and the comparisons would hide NaN and inf
    if objective.tau_plus == 0 or objective.floor is None:
        return loss, pos.new_zeros(())
    return loss, (~above & counts).to(pos.dtype).mean()


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
    if z.is_cpu and not torch.compiler.is_compiling():  # on a GPU the check would wait for the device
        square = z.detach().square().sum(-1)
        if bool((((square - 1).abs() > 0.02) & (square > 0)).any()):  # bfloat16 rounds away less; the zero vector has no length to correct
            found = f"{float(square.min().sqrt()):.3g} to {float(square.max().sqrt()):.3g}"
            raise ValueError(f"vectors must be of unit length, not {found}: use torch.nn.functional.normalize(z, dim=1)")
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
        padded = F.pad(minus_v, (1, 0))  # the 1 = e^0
        loss = (1 + minus_v.amax(1)).clamp_min(0) if kind == "hinge" else padded.logsumexp(1) / math.log(2)
        return torch.where(minus_v.isfinite().all(1), loss, math.nan)  # an infinite f(x+) would pass for a perfect one


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
    _Objective(beta=beta, tau_plus=tau_plus, weight_sign=weight_sign, weight_clip=weight_clip)  # checks their ranges
    if scores.dim() != 2 or scores.shape[1] < 2 or own.shape not in (scores.shape[:1], scores.shape):
        raise ValueError(f"need scores [nodes, graphs >= 2] and own [nodes] or [nodes, graphs]: {tuple(scores.shape)}, {tuple(own.shape)}")
    (scores,) = _upcast(scores)
    index = own[:, None] if own.dim() == 1 else own.int().argmax(1, keepdim=True)  # [nodes, 1]
    one = torch.ones_like(own, dtype=torch.bool) if own.dim() == 1 else own.bool().sum(1) == 1
    if own.is_cpu and not torch.compiler.is_compiling() and not bool(one.all()):
        raise ValueError(f"own must mark one graph for each node, and does not for node {int(one.int().argmin())}")
    own_score = scores.gather(1, index)[:, 0]
    if beta == 0:  # equal weights need no softmax, which halves the time
        others = F.softplus(scores).scatter(1, index, 0.0).sum(1) / (scores.shape[1] - 1)
    else:
        mine = torch.zeros_like(scores, dtype=torch.bool).scatter(1, index, True)
        log_w = _slope(scores, ~mine, 1.0, beta, weight_clip) * _seen_by_weights(scores, None, 1.0, weight_clip, weight_sign)
        q = log_w.masked_fill(mine, -math.inf).softmax(1)  # [nodes, graphs], 0 at the own graph
        others = (q * F.softplus(scores)).sum(1)
    if tau_plus > 0:
        others = ((others - tau_plus * F.softplus(own_score)) / (1 - tau_plus)).clamp_min(0)
    loss = F.softplus(-own_score) + others - 2 * math.log(2)
    return torch.where(one & (own_score < math.inf), loss, math.nan)  # softplus and the floor would hide them


def _log_ratio(
    pos: Tensor, neg: Tensor, extra_pos: Tensor | None, mask: Tensor | None, present: Tensor, objective: _Objective
) -> tuple[Tensor, Tensor, Tensor]:
    """x = log |N g / e^{s+/t}| [n]; whether g is positive and, where there is a floor, above it [n]; the largest of each row of neg,
    or a number as large, [n]: NaN or inf where the row holds one. present: [n, k], the negatives that count."""
    t, tau_plus, beta, floor = objective.temperature, objective.tau_plus, objective.beta, objective.floor
    k = neg.shape[1]
    log_n = math.log(k if objective.n_eff is None else objective.n_eff)
    log_k = math.log(k) if mask is None else present.sum(1).clamp_min(1).to(neg.dtype).log()
    share = ((k - (neg == -math.inf).sum(1)).clamp_min(1).to(neg.dtype) / k).log()  # [n], of the columns that are not absent
    share_n, share_k = share if objective.n_eff is None else 0.0, share if mask is None else 0.0  # 0 where all are there
    neg = neg.masked_fill(~present, HOLE)
    always = torch.ones_like(pos, dtype=torch.bool)
    if tau_plus == 0 and beta == 0:
        row = (neg / t).logsumexp(1)
        return row - pos / t + (log_n - log_k) + (share_n - share_k), always, row

    # Similarities are centred before they are scaled, and means taken relative to the positive: at t = 0.01 and beta = 100 exponents are
    # of order 10^4, of which float32 keeps three decimals.
    slope = _slope(neg, present, t, beta, objective.weight_clip)

    def means(s: Tensor, log_count: Tensor | float, present: Tensor | None, centres: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
        """Logarithms of mean w e^{(s - top)/t} and of mean w [n], with w = 1 at the hardest sample; the two centres [n, 1]."""
        top = s.detach().amax(1, keepdim=True) if centres is None else centres[0]
        d = (s - top) / t  # [n, k]
        if beta == 0:
            return d.logsumexp(1) - log_count, torch.zeros_like(pos), top, top
        seen = _seen_by_weights(s, present, t, objective.weight_clip, objective.weight_sign)
        hardest = (top if seen is s else seen.detach().amax(1, keepdim=True)) if centres is None else centres[1]
        log_w = slope * (seen - hardest)
        log_w = log_w if present is None else log_w.masked_fill(~present, HOLE)  # beta may be so small that it would fill the hole
        log_w = log_w.detach() if objective.detach_weights else log_w
        return (log_w + d).logsumexp(1) - log_count, log_w.logsumexp(1) - log_count, top, hardest

    weighted, weights, top, hardest = means(neg, log_k + share_k, present, None)
    largest = top[:, 0]
    to_pos = (largest - pos) / t
    if tau_plus == 0:
        return weighted - weights + to_pos + (log_n + share_n), always, largest

    log_tau, log_m = math.log(tau_plus), 0.0 if extra_pos is None else math.log(extra_pos.shape[1])
    if objective.consistent and beta > 0:  # unnormalised means are subtracted: one pair of centres for both
        own_weighted, own_weights, *_ = means(pos[:, None] if extra_pos is None else extra_pos, log_m, None, (top, hardest))
        numerator, more = _log_abs_diff(weighted, log_tau + own_weighted)
        denominator, left = _log_abs_diff(weights, log_tau + own_weights)
        log_g = numerator - denominator + to_pos
        positive = more == left if floor is None else more & left
    else:
        mean_pos = torch.zeros_like(pos)  # e^{s+/t} itself
        if extra_pos is not None:
            own_weighted, own_weights, own_top, _ = means(extra_pos, log_m, None, None)
            mean_pos = own_weighted - own_weights + (own_top[:, 0] - pos) / t
        log_g, positive = _log_abs_diff(weighted - weights + to_pos, log_tau + mean_pos)
        log_g = log_g - math.log1p(-tau_plus)
    if floor is not None:
        log_floor = (-1.0 - pos) / t if isinstance(floor, str) else (math.log(floor) if floor else -math.inf) - pos / t
        positive = positive & (log_g > log_floor)
        log_g = torch.where(positive, log_g, log_floor)
    return log_g + (log_n + share_n), positive, largest


def _seen_by_weights(s: Tensor, present: Tensor | None, t: float, clip: Clip, sign: int) -> Tensor:
    """What the weights see of s, larger where they are: log w is `_slope` times it. s itself where there is nothing to change."""
    if clip != "clamp" and sign == 1:
        return s
    seen = sign * (s.clamp(-2 * t, 2 * t) if clip == "clamp" else s)
    return seen if present is None else seen.masked_fill(~present, HOLE)


def _slope(s: Tensor, present: Tensor, t: float, beta: float, clip: Clip) -> float | Tensor:
    """The weights' exponent per unit of similarity: beta/t, or with "rescale" 2/max|s/t| times that, whatever the temperature."""
    return beta / t if clip != "rescale" else 2 * beta / s.masked_fill(~present, 0.0).abs().max().clamp_min(torch.finfo(s.dtype).eps)


def _log_abs_diff(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """log |e^a - e^b|, and whether a > b. Its gradient is finite everywhere: at a = b the difference stops at e^a 1e-30."""
    gap = (a - b).abs().clamp_min(1e-30)
    return torch.maximum(a, b) + (-torch.expm1(-gap)).log(), a > b


def _upcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in the widest of their types, and in float32 at least."""
    if wrong := [tensor.dtype for tensor in tensors if not tensor.is_floating_point()]:
        raise ValueError(f"need floating-point tensors, not {wrong[0]}")
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
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
