"""The one formula on similarities, and the named objectives that are its partial applications."""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from curlnb.losses.checks import Number, check_masks, is_known, is_zero, require, upcast
from curlnb.losses.estimate import Clip, Floor, Options, log_ratio

BLOCK = 2**19
"""The least number of similarities for which a block of anchors is worth its calls."""


def contrastive_loss(
    pos: Tensor,
    neg: Tensor,
    *,
    temperature: Number = 0.5,
    tau_plus: Number = 0.0,
    beta: Number = 0.0,
    extra_pos: Tensor | None = None,
    mask: Tensor | None = None,
    n_eff: Number | None = None,
    floor: Floor = "sphere",
    corrected: bool = False,
    detach_weights: bool = False,
    weight_clip: Clip = None,
    weight_sign: int = 1,
) -> Tensor:
    """-log e^{s+/t} / (e^{s+/t} + N g) for each anchor (chuang2020, Eq. 16 and 21; robinson2021,
    Eq. 4). Returns [n].

    A number may also be a tensor, which then gets a gradient: 0-dim, or [n] for those that may
    differ between anchors (tau_plus, n_eff, floor). A tensor's range is checked on the CPU only.

    pos: [n] similarity of each anchor to its positive, not yet divided by the temperature.
    neg: [n, k] similarities to k samples of the marginal. A negative of -inf is absent: it counts
        neither in the mean nor in N. Masked entries may hold any value.
    tau_plus: the class prior tau+ in [0, 1), as a tensor in (0, 1). With unequal classes, [n] is
        the share of each anchor's class: for class c the marginal is p = tau_c p_c + (1 - tau_c) q,
        with q the mixture of all other classes, and solving for q is Eq. 16 with tau_c.
    beta: the concentration of the weights e^{beta s/t}, 0 for none.
    extra_pos: [n, m] the complete set of M positives in g (default: `pos` alone), reweighted as the
        negatives are.
    mask: [n, k] bool, True where a negative counts. An anchor with none left has loss 0 and no
        gradient.
    n_eff: the N of the loss; default k, masked columns included, so that a mask changes what is
        averaged and not N.
    floor: lower bound of g, without effect when tau_plus is 0. "sphere" is exp(-1/t), the least a
        unit vector allows; a number >= 0 is taken as it is; None lets g be negative, and the loss
        is nan where e^{s+/t} + N g is not positive. A floored anchor gives its negatives no
        gradient: watch `clamped_fraction`.
    corrected: debias the weights' normaliser too. A numerator or denominator that is not positive
        means that no mass is left for the other classes: the estimate is then set to the floor. It
        has no upper bound.
    detach_weights: no gradient through the weights. The default lets it flow, as the released code
        does.
    weight_clip: what the weights see instead of u = s/t. "rescale": 2u / max|u|, over all negatives
        of the call (robinson2021, Fig. 14, for scores that are not on a sphere; the negative that
        holds the maximum gets a gradient from every anchor's weights); "clamp": u cut to [-2, 2],
        which is what that figure's caption says.
    weight_sign: -1 turns the weights round, so that easy negatives weigh more (the released graph
        code).
    """
    return loss_and_clamped(
        pos,
        neg,
        extra_pos=extra_pos,
        mask=mask,
        temperature=temperature,
        tau_plus=tau_plus,
        beta=beta,
        n_eff=n_eff,
        floor=floor,
        corrected=corrected,
        detach_weights=detach_weights,
        weight_clip=weight_clip,
        weight_sign=weight_sign,
    )[0]


def clamped_fraction(pos: Tensor, neg: Tensor, **options: Any) -> Tensor:
    """The share of anchors whose g lies on the floor, in [0, 1], as a 0-dim tensor on the device.
    Options as `contrastive_loss`.

    Negatives get no gradient from such an anchor. With aligned positives and uniform negatives in
    128 dimensions, every anchor is on the floor once tau+ exceeds 0.121 at t = 0.5, or 0.0074 at t
    = 0.2. Returns 0 if floor is None or tau_plus is 0, the default: pass the loss's own.
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
    """`contrastive_loss` [n] and, from the same pass, `clamped_fraction`, 0-dim, for training logs.
    Options as in `contrastive_loss`.
    """
    checked = Options(**options)
    pos, neg, extra_pos = upcast(pos, neg, extra_pos)
    fits = pos.dim() == 1 and neg.dim() == 2 and len(neg) == len(pos)
    require(fits, "pos [n] and neg [n, k]", pos, neg)
    fits = extra_pos is None or (extra_pos.dim() == 2 and extra_pos[:, :1].shape == (len(pos), 1))
    require(fits, f"extra_pos [{len(pos)}, m >= 1]", extra_pos)
    check_masks(neg, mask=mask)
    checked = checked.fitted(pos)
    complete = neg.numel() == 0 or is_known(neg, lambda neg: neg.amin() > -math.inf)
    # Anchors are independent, so that blocks of them change no bit of a loss or gradient, and what
    # lives for a moment is a block. "rescale" looks at all anchors; a compiler blocks by itself.
    rows = max(len(pos) // 8, BLOCK // max(1, neg.shape[1]), 64) // 64 * 64
    blocks = len(pos) // rows
    if blocks < 2 or checked.weight_clip == "rescale" or torch.compiler.is_compiling():
        loss, above = _block(pos, neg, extra_pos, mask, checked, complete)
    else:
        sizes = [rows] * (blocks - 1) + [len(pos) - rows * (blocks - 1)]

        def split(table: Tensor | None) -> Any:
            return [None] * blocks if table is None else table.split(sizes)

        own = {k: x for k, x in vars(checked).items() if isinstance(x, Tensor) and x.dim()}  # [n]
        options_of_blocks = [
            replace(checked, **dict(zip(own, values, strict=True)))
            for values in zip(*map(split, own.values()), strict=True)
        ] or [checked] * blocks
        tables = map(split, (pos, neg, extra_pos, mask))
        rest = options_of_blocks, [complete] * blocks
        found = [_block(*each) for each in zip(*tables, *rest, strict=True)]
        loss, above = (torch.cat(parts) for parts in zip(*found, strict=True))
    floored = not is_zero(checked.tau_plus) and checked.floor is not None
    clamped = (~above).to(pos.dtype).mean() if floored and len(pos) else pos.new_zeros(())
    return loss, clamped


def _block(
    pos: Tensor,
    neg: Tensor,
    extra_pos: Tensor | None,
    mask: Tensor | None,
    options: Options,
    complete: bool,
) -> tuple[Tensor, Tensor]:
    """Losses of some anchors [n], and which of them lie above the floor [n].

    complete: all negatives are known to be there.
    """
    sound = pos.isfinite() if extra_pos is None else pos.isfinite() & extra_pos.amax(1).isfinite()
    if neg.numel() == 0:
        return torch.where(sound, 0.0 * pos, math.nan), torch.ones_like(sound)
    # which columns exist [n, k], and which of them count; None where all do
    there = None if complete else neg != -math.inf
    present = there if mask is None else mask if there is None else mask & there
    x, above = log_ratio(pos, neg, extra_pos, there, present, options)
    loss = -F.logsigmoid(-x)  # log(1 + N g / e^{s+/t})
    if options.floor is None and not is_zero(options.tau_plus):
        # g may be negative, and x is then the logarithm of its modulus
        loss = torch.where(above, loss, torch.log1p(-torch.where(above, -1.0, x).exp()))
    if present is not None:
        counts = present.any(1)
        loss, above = torch.where(counts, loss, 0.0), above | ~counts
    # an infinite positive would pass for a perfect one
    return torch.where(sound, loss, math.nan), above


def info_nce(pos: Tensor, neg: Tensor, **options: Any) -> Tensor:
    """The biased loss, -log e^{s+/t} / (e^{s+/t} + sum_i e^{s_i/t}) (chuang2020, Eq. 1). Other
    options as in `contrastive_loss`. Returns [n].
    """
    return contrastive_loss(pos, neg, tau_plus=0.0, beta=0.0, **options)


def debiased(pos: Tensor, neg: Tensor, *, tau_plus: Number = 0.1, **options: Any) -> Tensor:
    """Debiased contrastive loss (chuang2020, Eq. 16 and 21). Other options as in
    `contrastive_loss`. Returns [n].
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=0.0, **options)


def hard(
    pos: Tensor, neg: Tensor, *, tau_plus: Number = 0.1, beta: Number = 1.0, **options: Any
) -> Tensor:
    """Hard negatives by importance weights (robinson2021, Eq. 4). Other options as in
    `contrastive_loss`. Returns [n].

    As in the derivation and the released code, (imp * neg).sum() / imp.mean() with imp = neg^beta;
    the pseudocode of Fig. 13 has a typo.
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=beta, **options)


def hard_corrected(
    pos: Tensor, neg: Tensor, *, tau_plus: Number = 0.1, beta: Number = 1.0, **options: Any
) -> Tensor:
    """Hard negatives, with numerator and denominator both debiased. Other options as in
    `contrastive_loss`. Returns [n].

    robinson2021's Eq. 2 gives the anchor's class the mass tau+ under q_beta. The true mass is tau+
    Z+/Z, larger for beta > 0 if the class is more similar to the anchor than the rest. With that
    mass, E_{q_beta^-} e^{s/t} is the ratio in the docstring of `curlnb.losses`, exactly if the
    samples are the population.
    """
    return contrastive_loss(pos, neg, tau_plus=tau_plus, beta=beta, corrected=True, **options)


hard_consistent = hard_corrected  # its former name


def unbiased(
    pos: Tensor, neg: Tensor, same_class: Tensor, *, mask: Tensor | None = None, **options: Any
) -> Tensor:
    """The supervised ideal: negatives of other classes only, their mean times N (chuang2020, Eq. 4
    with Q = N). Returns [n].

    same_class: [n, k] bool, True where a negative is of its anchor's class (`same_label_mask`
    builds it); N counts these too, so that this loss and `info_nce` differ in sampling only. mask
    and the other options as `contrastive_loss`.
    """
    pos, neg = upcast(pos, neg)
    check_masks(neg, same_class=same_class, mask=mask)
    others = ~same_class if mask is None else mask & ~same_class
    return contrastive_loss(pos, neg, tau_plus=0.0, beta=0.0, mask=others, **options)
