"""Every objective of the three papers, as pure functions of similarities.

One formula holds them all. For an anchor x with a positive x+ and k samples u_i of the marginal,

    loss = -log e^{s+/t} / (e^{s+/t} + N g),    s = f(x).f(.), N negatives, temperature t,

and only g, the estimate of a negative's mean e^{s/t}, tells the objectives apart:

    info_nce         g = mean_i e^{s_i/t}                                            the marginal, as it is
    unbiased         the same over the u_i of other classes (needs labels)          chuang2020, Eq. 4 (2 in print), Q = N
    debiased         g = (mean_i e^{s_i/t} - tau+ mean_j e^{v_j/t}) / tau-           chuang2020, Eq. 16 (7 in print)
    hard             the same with means under weights w = e^{beta s/t}              robinson2021, Eq. 4
    hard_consistent  g = (E w e^{s/t} - tau+ E+ w e^{s/t}) / (E w - tau+ E+ w)       derived here, where robinson2021's Eq. 2 fails

with v_j the similarities to M positives, tau+ the share of the anchor's class, tau- = 1 - tau+. All
of it is done in logarithms: e^{(1+beta)s/t} leaves float32 at (1+beta)/t = 88.7. Half precision is
computed in float32, also under autocast; float64 stays. `curl_loss` (arora2019) and `jsd_loss`
(InfoGraph) have forms of their own. No function reads a value back from a GPU. An anchor that meets
NaN or +inf has a loss that is not finite; tensors of a wrong type, shape or device, and numbers out
of range, are a one-line ValueError.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

HOLE = (
    -1e20
)  # the similarity of a negative that does not count: e^HOLE is 0, but no gradient meets inf - inf

Floor = str | float | None  # "sphere", a number or None
Clip = str | None  # "rescale", "clamp" or None


@dataclass(frozen=True)
class _Objective:
    """The numbers and choices of `contrastive_loss`, as described there. ValueError, in one line,
    for one that is out of range.
    """

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
        floor_fits = self.floor in (None, "sphere") or (
            not isinstance(self.floor, str) and 0 <= self.floor < math.inf
        )
        for name, right, wanted in (
            ("temperature", 0 < self.temperature < math.inf, "positive"),
            ("tau_plus", 0 <= self.tau_plus < 1, "in [0, 1)"),
            ("beta", 0 <= self.beta < math.inf, "at least 0"),
            ("n_eff", self.n_eff is None or 0 < self.n_eff < math.inf, "positive"),
            ("floor", floor_fits, "'sphere', None or a number >= 0"),
            (
                "weight_clip",
                self.weight_clip in (None, "rescale", "clamp"),
                "None, 'rescale' or 'clamp'",
            ),
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
    """-log e^{s+/t} / (e^{s+/t} + N g), an anchor each (chuang2020, Eq. 16 and 21; robinson2021,
    Eq. 4). Returns [n].

    pos: [n] similarity of each anchor to its positive, not yet divided by the temperature; neg: [n,
    k] to samples of the marginal. A
        negative of -inf is absent: it counts neither in the mean nor in N. What `mask` leaves out
        may hold anything.
    tau_plus: the class prior tau+ in [0, 1). beta: the concentration of the weights e^{beta s/t}, 0
    for none. extra_pos: [n, m] the complete set of M positives in g (default: `pos` alone),
    reweighted as the negatives are. mask: [n, k] bool, True where a negative counts. An anchor with
    none left has loss 0 and no gradient. n_eff: the N of the loss; default k, masked columns
    included, so that a mask changes what is averaged and not N. floor: lower bound of g, without
    effect when tau_plus is 0. "sphere" is exp(-1/t), the least a unit vector allows; a number >= 0
    is
        taken as it is; None lets g be negative, and the loss is nan where e^{s+/t} + N g is not
        positive. A floored anchor gives its negatives no gradient: watch `clamped_fraction`.
    consistent: debias the weights' normaliser too. An estimate whose numerator or denominator is
    not positive says that no mass is
        left for the other classes: it is put on the floor. Nothing bounds it from above.
    detach_weights: no gradient through the weights. The default lets it flow, as the released code
    does. weight_clip: what the weights see instead of u = s/t. "rescale": 2u / max|u|, over all
    negatives of the call (robinson2021, Fig. 14,
        for scores that are not on a sphere; the negative that holds the maximum gets a gradient
        from every anchor's weights); "clamp": u cut to [-2, 2], which is what that figure's caption
        says.
    weight_sign: -1 turns the weights round, so that easy negatives weigh more (the released graph
    code).
    """
    objective = _Objective(
        temperature,
        tau_plus,
        beta,
        n_eff,
        floor,
        consistent,
        detach_weights,
        weight_clip,
        weight_sign,
    )
    return loss_and_clamped(pos, neg, extra_pos=extra_pos, mask=mask, **vars(objective))[0]


def clamped_fraction(pos: Tensor, neg: Tensor, **options: Any) -> Tensor:
    """The share of anchors whose g lies on the floor, in [0, 1], as a 0-dim tensor on the device.
    Options as `contrastive_loss`.

    There the negatives get no gradient. With aligned positives and uniform negatives in 128
    dimensions every anchor is, as soon as tau+ exceeds 0.121 at t = 0.5, or 0.0074 at t = 0.2. 0
    when floor is None or tau_plus is 0, its default here: give the loss's own.
    """
    with torch.no_grad():
        return loss_and_clamped(pos, neg, **options)[1]


def loss_and_clamped(
    pos: Tensor,
    neg: Tensor,
    *,
    extra_pos: Tensor | None = None,
    mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """`contrastive_loss` [n] and, in the same pass, `clamped_fraction`, 0-dim, which a training
    logs beside it. Options as there.
    """
    objective = _Objective(**options)
    pos, neg, extra_pos = _upcast(pos, neg, extra_pos)
    _require(
        pos.dim() == 1 and neg.dim() == 2 and len(neg) == len(pos),
        "pos [n] and neg [n, k]",
        pos,
        neg,
    )
    fits = extra_pos is None or (extra_pos.dim() == 2 and extra_pos[:, :1].shape == (len(pos), 1))
    _require(fits, f"extra_pos [{len(pos)}, m >= 1]", extra_pos)
    _check_masks(neg, mask=mask)
    sound = pos.isfinite() if extra_pos is None else pos.isfinite() & extra_pos.amax(1).isfinite()
    if neg.numel() == 0:
        return torch.where(sound, 0.0 * pos, math.nan), pos.new_zeros(())
    # Which columns exist [n, k], and which of them count; None where all do, which on the CPU a
    # look at the least value finds out.
    complete = (
        neg.is_cpu and not torch.compiler.is_compiling() and bool(neg.detach().amin() > -math.inf)
    )
    there = None if complete else neg != -math.inf
    present = there if mask is None else mask if there is None else mask & there
    x, above = _log_ratio(pos, neg, extra_pos, there, present, objective)
    loss = -F.logsigmoid(-x)  # log(1 + N g / e^{s+/t})
    if (
        objective.floor is None and objective.tau_plus > 0
    ):  # g may be negative, and x is then the logarithm of its modulus
        loss = torch.where(above, loss, torch.log1p(-torch.where(above, -1.0, x).exp()))
    if present is not None:
        counts = present.any(1)
        loss, above = torch.where(counts, loss, 0.0), above | ~counts
    clamped = (
        pos.new_zeros(())
        if objective.tau_plus == 0 or objective.floor is None
        else (~above).to(pos.dtype).mean()
    )
    return torch.where(
        sound, loss, math.nan
    ), clamped  # an infinite positive would pass for a perfect one


def info_nce(pos: Tensor, neg: Tensor, **options: Any) -> Tensor:
    """The biased loss, -log pos / (pos + sum neg) (chuang2020, Eq. 1). Its other options are those
    of `contrastive_loss`. Returns [n].
    """
    return contrastive_loss(pos, neg, tau_plus=0.0, beta=0.0, **options)


def debiased(pos: Tensor, neg: Tensor, *, tau_plus: float = 0.1, **options: Any) -> Tensor:
    """Debiased contrastive loss (chuang2020, Eq. 16 and 21). Its other options are those of
    `contrastive_loss`. Returns [n].
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=0.0, **options)


def hard(
    pos: Tensor, neg: Tensor, *, tau_plus: float = 0.1, beta: float = 1.0, **options: Any
) -> Tensor:
    """Hard negatives by importance weights (robinson2021, Eq. 4). Its other options are those of
    `contrastive_loss`. Returns [n].

    The derivation and the released code, (imp * neg).sum() / imp.mean() with imp = neg^beta; not
    the pseudocode of Fig. 13, a typo.
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=beta, **options)


def hard_consistent(
    pos: Tensor, neg: Tensor, *, tau_plus: float = 0.1, beta: float = 1.0, **options: Any
) -> Tensor:
    """Hard negatives, with numerator and denominator both debiased. Its other options are those of
    `contrastive_loss`. Returns [n].

    robinson2021's Eq. 2 gives the anchor's class the mass tau+ under q_beta; it has tau+ Z+/Z, more
    for beta > 0. Taking that into account E_{q_beta^-} e^{s/t} is the ratio in this module's head,
    exactly, once the samples are the population.
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=beta, consistent=True, **options)


def unbiased(
    pos: Tensor, neg: Tensor, same_class: Tensor, *, mask: Tensor | None = None, **options: Any
) -> Tensor:
    """The supervised ideal: negatives of other classes only, their mean times N (chuang2020, Eq. 4
    with Q = N). Returns [n].

    same_class: [n, k] bool, True where a negative is of its anchor's class (`same_label_mask`
    builds it); N counts these too, so that this loss and `info_nce` differ in sampling only. mask
    and the other options as `contrastive_loss`.
    """
    pos, neg = _upcast(pos, neg)
    _check_masks(neg, same_class=same_class, mask=mask)
    return contrastive_loss(
        pos,
        neg,
        tau_plus=0.0,
        beta=0.0,
        mask=~same_class if mask is None else mask & ~same_class,
        **options,
    )


class Pairs(NamedTuple):
    """The similarities of a batch: `pos` [n], `neg` [n, k]."""

    pos: Tensor
    neg: Tensor


def pairwise(z1: Tensor, z2: Tensor, *more: Tensor) -> Pairs:
    """Similarities of a batch seen in v views of [B, d] each (unit vectors, items in one order): v
    = 2 is SimCLR's, with N = 2B - 2.

    All n = vB embeddings are anchors, view 1 first. `pos` [n]: to the same item's next view,
    cyclically; `neg` [n, v(B-1)]: to every view of the other items, view 1 first, items in order.
    For v > 2, `positives` gives the M = v - 1 positives of each anchor.
    """
    z = _views(z1, z2, *more)
    if (
        z.is_cpu and not torch.compiler.is_compiling()
    ):  # on a GPU the check would wait for the device
        square = z.detach().square().sum(-1)
        if bool(
            (((square - 1).abs() > 0.02) & (square > 0)).any()
        ):  # bfloat16 rounds away less; the zero vector has no length to correct
            found = f"{float(square.min().sqrt()):.3g} to {float(square.max().sqrt()):.3g}"
            raise ValueError(
                f"vectors must be of unit length, not {found}: use torch.nn.functional.normalize(z, dim=1)"
            )
    with torch.autocast(z.device.type, enabled=False):
        flat = z.flatten(0, 1)
        return Pairs(
            (z * z.roll(-1, 0)).sum(-1).flatten(),
            (flat @ flat.T).gather(1, _negative_columns(z.shape[1], len(z), z.device)),
        )


def positives(z1: Tensor, z2: Tensor, *more: Tensor) -> Tensor:
    """The complete set of positives, `extra_pos` [n, v-1], of the anchors of `pairwise`; its first
    column is `pos`.
    """
    z = _views(z1, z2, *more)
    return torch.stack([(z * z.roll(-shift, 0)).sum(-1).flatten() for shift in range(1, len(z))], 1)


def same_label_mask(labels: Tensor, views: int = 2) -> Tensor:
    """labels: [B] integers, of the items of `pairwise`. Returns [n, v(B-1)] bool, True where a
    negative has its anchor's label.
    """
    right = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
    _require(
        right and labels.dim() == 1 and len(labels) > 0 and views > 0,
        f"integer labels [B >= 1] and views >= 1 ({views})",
        labels,
    )
    labels = labels.repeat(views)
    return labels[_negative_columns(len(labels) // views, views, labels.device)] == labels[:, None]


def subsample(neg: Tensor, n: int, generator: Generator | None, *others: Tensor) -> Any:
    """n columns of neg [rows, k] drawn without replacement, each row its own, from `generator` (on
    neg's device). Returns [rows, n].

    others: tables of neg's shape, such as a label mask, of which the same columns are taken; then
    all are returned, neg's first. This varies N at a fixed batch: what is left has N = n by
    default, and neither batch norm nor the number of steps changes.
    """
    alike = all(
        isinstance(table, Tensor) and table.dim() == 2 and table.shape == neg.shape
        for table in (neg, *others)
    )
    _require(
        alike and 1 <= n <= neg.shape[1],
        f"tables of one shape [rows, k], and in 1..k the number to draw ({n})",
        neg,
        *others,
    )
    keys = torch.rand(neg.shape, generator=generator, device=neg.device)
    columns = keys.topk(n, 1, sorted=False).indices  # a random subset needs no full sort
    taken = tuple(table.gather(1, columns) for table in (neg, *others))
    return taken if others else taken[0]


def curl_loss(
    anchor: Tensor, positive: Tensor, negatives: Tensor, kind: str = "logistic"
) -> Tensor:
    """l(v) with v_i = f(x).(f(x+) - f(x_i^-)), an anchor each (arora2019, Definition 2.3; blocks:
    Eq. 12). Returns [n].

    anchor: [n, d]; positive: [n, d], or a block [n, b, d]; negatives: [n, k, d], or blocks [n, k,
    b, d]. A block stands for its mean; b counts the points averaged, not the anchor.
    kind: "logistic" is log2(1 + sum_i e^{-v_i}), in base 2, so that a constant f has loss 1 at k =
    1; "hinge" is max(0, 1 + max_i -v_i).
    """
    if kind not in ("logistic", "hinge"):
        raise ValueError(f"kind must be 'logistic' or 'hinge', not {kind!r}")
    anchor, positive, negatives = _upcast(anchor, positive, negatives)
    positive = positive.mean(1) if positive.dim() == 3 and positive.shape[1] else positive
    negatives = negatives.mean(2) if negatives.dim() == 4 and negatives.shape[2] else negatives
    right = (
        anchor.dim() == 2
        and positive.shape == anchor.shape
        and negatives.dim() == 3
        and negatives.shape[1] > 0
    )
    wanted = (
        "anchor [n, d], positive [n, (b,) d], negatives [n, k >= 1, (b,) d] (blocks here averaged)"
    )
    _require(right and negatives[:, 0].shape == anchor.shape, wanted, anchor, positive, negatives)
    with torch.autocast(anchor.device.type, enabled=False):
        minus_v = (negatives @ anchor[:, :, None]).squeeze(2) - (anchor * positive).sum(
            1, keepdim=True
        )  # [n, k]
        loss = (
            (1 + minus_v.amax(1)).clamp_min(0)
            if kind == "hinge"
            else F.pad(minus_v, (1, 0)).logsumexp(1) / math.log(2)
        )  # 1 = e^0
        return torch.where(
            minus_v.isfinite().all(1), loss, math.nan
        )  # an infinite f(x+) would pass for a perfect one


def jsd_loss(
    scores: Tensor,
    own: Tensor,
    *,
    beta: float = 0.0,
    tau_plus: float = 0.0,
    weight_sign: int = 1,
    weight_clip: Clip = None,
) -> Tensor:
    """Jensen-Shannon loss of nodes against graphs, sp(-T_own) + E_q sp(T) - 2 log 2, a node each
    (robinson2021, App. B). Returns [nodes].

    scores: [nodes, graphs], T of each node with each graph; own: [nodes] index of each node's
    graph, or its one-hot [nodes, graphs] bool. sp is the softplus; E_q is over the other graphs
    under weights e^{beta T}. The node's own graph enters neither sum nor normaliser (in the
    released code it is in both). beta = 0, tau_plus = 0 is InfoGraph's loss when averaged over
    nodes; T = 0 has loss 0. tau_plus: the chance that another graph is of the anchor's class. E_q
    sp(T) becomes (E_q sp(T) - tau+ sp(T_own)) / tau-, which is Eq. 4 with sp for exp and M = 1,
    floored at 0, the least sp can be: below it, the other graphs get no gradient from the node.
    (The released code fixes tau+ at 0.5, and adds tau+/tau- sp(T_own) where this subtracts it.)
    weight_sign, weight_clip: as in `contrastive_loss`, on u = T; beta = 10 overflows a training run
    without a clip.
    """
    _Objective(
        beta=beta, tau_plus=tau_plus, weight_sign=weight_sign, weight_clip=weight_clip
    )  # checks their ranges
    (scores,) = _upcast(scores)
    _require(scores.dim() == 2 and scores.shape[1] > 1, "scores [nodes, graphs >= 2]", scores)
    right = (
        isinstance(own, Tensor)
        and not (own.is_floating_point() or own.is_complex())
        and own.device == scores.device
    )
    _require(
        right and own.shape in (scores.shape[:1], scores.shape),
        f"own as integers [{len(scores)}] or one-hot {list(scores.shape)}, on {scores.device}",
        own,
    )
    mine = (
        own.bool()
        if own.dim() == 2
        else own[:, None] == torch.arange(scores.shape[1], device=own.device)
    )  # [nodes, graphs]
    one = mine.sum(1) == 1
    if own.is_cpu and not torch.compiler.is_compiling() and not bool(one.all()):
        raise ValueError(
            f"own must mark one of {scores.shape[1]} graphs for each node, and does not for node {int(one.int().argmin())}"
        )
    own_score = scores.masked_fill(~mine, 0.0).sum(1)
    if beta == 0:  # equal weights need no softmax, which halves the time
        others = F.softplus(scores).masked_fill(mine, 0.0).sum(1) / (scores.shape[1] - 1)
    else:
        log_w = _slope(scores, ~mine, 1.0, beta, weight_clip) * _seen_by_weights(
            scores, None, 1.0, weight_clip, weight_sign
        )
        q = log_w.masked_fill(mine, -math.inf).softmax(1)  # [nodes, graphs], 0 at the own graph
        others = (q * F.softplus(scores)).sum(1)
    if tau_plus > 0:
        others = ((others - tau_plus * F.softplus(own_score)) / (1 - tau_plus)).clamp_min(0)
    loss = F.softplus(-own_score) + others - 2 * math.log(2)
    return torch.where(
        one & (own_score < math.inf), loss, math.nan
    )  # softplus and the floor would hide them


def _log_ratio(
    pos: Tensor,
    neg: Tensor,
    extra_pos: Tensor | None,
    there: Tensor | None,
    present: Tensor | None,
    objective: _Objective,
) -> tuple[Tensor, Tensor]:
    """x = log |N g / e^{s+/t}| [n], NaN where the row of neg holds NaN; whether g is positive and,
    where there is a floor, above it [n].
    """
    t, tau_plus, beta, floor = (
        objective.temperature,
        objective.tau_plus,
        objective.beta,
        objective.floor,
    )
    log_all = math.log(neg.shape[1])
    log_n, log_k = (
        log_all if these is None else these.sum(1).clamp_min(1).to(neg.dtype).log()
        for these in (there, present)
    )
    log_n = log_n if objective.n_eff is None else math.log(objective.n_eff)
    neg = neg if present is None else neg.masked_fill(~present, HOLE)
    always = torch.ones_like(pos, dtype=torch.bool)
    if tau_plus == 0 and beta == 0:
        return (neg / t).logsumexp(1) - pos / t + (log_n - log_k), always

    # Similarities are centred before they are scaled, and means taken relative to the positive: at
    # t = 0.01 and beta = 100 exponents are of order 10^4, of which float32 keeps three decimals.
    slope = _slope(neg, present, t, beta, objective.weight_clip)

    def means(
        s: Tensor,
        log_count: Tensor | float,
        present: Tensor | None,
        centres: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        """Logarithms of mean w e^{(s - top)/t} and of mean w [n], with w = 1 at the hardest sample;
        the two centres [n, 1].
        """
        top = s.detach().amax(1, keepdim=True) if centres is None else centres[0]
        d = (s - top) / t  # [n, k]
        if beta == 0:
            return d.logsumexp(1) - log_count, torch.zeros_like(pos), top, top
        seen = _seen_by_weights(s, present, t, objective.weight_clip, objective.weight_sign)
        hardest = (
            (top if seen is s else seen.detach().amax(1, keepdim=True))
            if centres is None
            else centres[1]
        )
        log_w = slope * (seen - hardest)
        log_w = (
            log_w if present is None else log_w.masked_fill(~present, HOLE)
        )  # beta may be so small that it would fill the hole
        log_w = log_w.detach() if objective.detach_weights else log_w
        return (log_w + d).logsumexp(1) - log_count, log_w.logsumexp(1) - log_count, top, hardest

    weighted, weights, top, hardest = means(neg, log_k, present, None)
    to_pos = (top[:, 0] - pos) / t
    if tau_plus == 0:
        return weighted - weights + to_pos + log_n, always

    log_tau, log_m = math.log(tau_plus), 0.0 if extra_pos is None else math.log(extra_pos.shape[1])
    if (
        objective.consistent and beta > 0
    ):  # unnormalised means are subtracted: one pair of centres for both
        own_weighted, own_weights, *_ = means(
            pos[:, None] if extra_pos is None else extra_pos, log_m, None, (top, hardest)
        )
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
        log_floor = (
            (-1.0 - pos) / t
            if isinstance(floor, str)
            else (math.log(floor) if floor else -math.inf) - pos / t
        )
        positive = positive & (log_g > log_floor) | log_g.isnan()  # which the floor would hide
        log_g = torch.where(positive, log_g, log_floor)
    return log_g + log_n, positive


def _seen_by_weights(s: Tensor, present: Tensor | None, t: float, clip: Clip, sign: int) -> Tensor:
    """What the weights see of s, larger where they are: log w is `_slope` times it. s itself where
    there is nothing to change.
    """
    if clip != "clamp" and sign == 1:
        return s
    seen = sign * (s.clamp(-2 * t, 2 * t) if clip == "clamp" else s)
    return seen if present is None else seen.masked_fill(~present, HOLE)


def _slope(s: Tensor, present: Tensor | None, t: float, beta: float, clip: Clip) -> float | Tensor:
    """The weights' exponent per unit of similarity: beta/t, or with "rescale" 2/max|s/t| times
    that, whatever the temperature.
    """
    if clip != "rescale":
        return beta / t
    return (
        2
        * beta
        / (s if present is None else s.masked_fill(~present, 0.0))
        .abs()
        .max()
        .clamp_min(torch.finfo(s.dtype).eps)
    )


def _log_abs_diff(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """log |e^a - e^b|, and whether a > b. Its gradient is finite everywhere: at a = b the
    difference stops at e^a 1e-30.
    """
    gap = (a - b).abs().clamp_min(1e-30)
    return torch.maximum(a, b) + (-torch.expm1(-gap)).log(), a > b


def _upcast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """All in the widest of their types, and in float32 at least. ValueError unless they are
    floating-point tensors on one device.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    right = all(
        isinstance(tensor, Tensor)
        and tensor.is_floating_point()
        and tensor.device == given[0].device
        for tensor in given
    )
    _require(right, "floating-point tensors on one device", *given)
    dtype = (
        torch.float64 if any(tensor.dtype == torch.float64 for tensor in given) else torch.float32
    )
    return tuple(tensor if tensor is None else tensor.to(dtype) for tensor in tensors)


def _require(right: bool, wanted: str, *found: object) -> None:
    if not right:
        shown = [
            f"{x.dtype} {tuple(x.shape)} on {x.device}"
            if isinstance(x, Tensor)
            else type(x).__name__
            for x in found
        ]
        raise ValueError(f"need {wanted}, not {', '.join(shown)}")


def _check_masks(neg: Tensor, **masks: Tensor | None) -> None:
    for name, mask in masks.items():
        fits = isinstance(mask, Tensor) and (mask.dtype, mask.shape, mask.device) == (
            torch.bool,
            neg.shape,
            neg.device,
        )
        _require(mask is None or fits, f"{name} bool {list(neg.shape)} on {neg.device}", mask)


def _views(*z: Tensor) -> Tensor:
    """Views of [B, d] each, stacked to [v, B, d]."""
    z = _upcast(*z)
    _require(
        all(one.dim() == 2 and len(one) > 0 and one.shape == z[0].shape for one in z),
        "views, all of one shape [B >= 1, d]",
        *z,
    )
    return torch.stack(z)


def _negative_columns(batch: int, views: int, device: torch.device) -> Tensor:
    """For each of the vB anchors, the v(B-1) embeddings of other items. Returns int64 [vB, v(B-1)]."""
    item, other = (
        torch.arange(batch, device=device)[:, None],
        torch.arange(batch - 1, device=device),
    )
    others = other + (other >= item)  # [B, B-1]: steps over the item itself
    return torch.cat([others + view * batch for view in range(views)], 1).repeat(views, 1)
