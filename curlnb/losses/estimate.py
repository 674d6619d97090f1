"""The estimate g of a negative's mean e^{s/t}, in logarithms, and the options that shape it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from curlnb.losses.checks import Number, check_number, is_zero, log, require

HOLE = -1e20
"""The similarity of a negative that does not count: e^HOLE is 0; no gradient meets inf - inf."""

Floor = str | Number | None  # "sphere", a number or None
Clip = str | None  # "rescale", "clamp" or None


@dataclass(frozen=True)
class Options:
    """The numbers and choices of `contrastive_loss`, as described there. ValueError, in one line,
    for one that is out of range.
    """

    temperature: Number = 0.5
    tau_plus: Number = 0.0
    beta: Number = 0.0
    n_eff: Number | None = None
    floor: Floor = "sphere"
    corrected: bool = False
    detach_weights: bool = False
    weight_clip: Clip = None
    weight_sign: int = 1

    def __post_init__(self) -> None:
        _check_options(self)

    def fitted(self, pos: Tensor) -> "Options":
        """The same, with tensors in the type and on the device of pos [n], 0-dim or, where each
        anchor may have its own, [n].
        """
        tensors: dict[str, Any] = {k: x for k, x in vars(self).items() if isinstance(x, Tensor)}
        for name, value in tensors.items():
            single = name in ("temperature", "beta")
            right = value.dim() == 0 or (value.shape == pos.shape and not single)
            shapes = "[]" if single else f"[] or [{len(pos)}]"
            require(right, f"{name} as a number or a tensor {shapes}", value)
        return replace(self, **{name: value.to(pos) for name, value in tensors.items()})


def _check_options(options: Options) -> None:
    for name, within, wanted, words in (
        ("temperature", _positive, "positive", ()),
        ("tau_plus", lambda x: (x >= 0) & (x < 1), "in [0, 1)", ()),
        ("beta", _not_negative, "at least 0", ()),
        ("n_eff", _positive, "positive", (None,)),
        ("floor", _not_negative, "'sphere', None or a number >= 0", (None, "sphere")),
    ):
        value = getattr(options, name)
        if (value is None or isinstance(value, str)) and value in words:
            continue
        check_number(name, value, within, wanted)
        if isinstance(value, Tensor) and name in ("tau_plus", "floor"):  # log 0 has no gradient
            check_number(name, value, _positive, "above 0 where it is a tensor")
    for name, allowed in (("weight_clip", (None, "rescale", "clamp")), ("weight_sign", (1, -1))):
        if getattr(options, name) not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, not {getattr(options, name)!r:.60}")


def _positive(x: Any) -> Any:
    return (x > 0) & (x < math.inf)


def _not_negative(x: Any) -> Any:
    return (x >= 0) & (x < math.inf)


def log_ratio(
    pos: Tensor,
    neg: Tensor,
    extra_pos: Tensor | None,
    there: Tensor | None,
    present: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor]:
    """x = log |N g / e^{s+/t}| [n], NaN where the row of neg holds NaN; whether g is positive and,
    where there is a floor, above it [n].

    there, present: [n, k] which columns exist, and which of them count; None where all do.
    """
    t, tau_plus, beta, floor = options.temperature, options.tau_plus, options.beta, options.floor
    log_all = math.log(neg.shape[1])
    log_n, log_k = (
        log_all if these is None else these.sum(1).clamp_min(1).to(neg.dtype).log()
        for these in (there, present)
    )
    log_n = log_n if options.n_eff is None else log(options.n_eff)
    absent = None if present is None else ~present
    neg = neg if absent is None else neg.masked_fill(absent, HOLE)
    always = torch.ones_like(pos, dtype=torch.bool)
    if is_zero(tau_plus) and is_zero(beta):
        return (neg / t).logsumexp(1) - pos / t + (log_n - log_k), always

    # Similarities are centred before they are scaled, and means taken relative to the positive: at
    # t = 0.01 and beta = 100 exponents are of order 10^4, of which float32 keeps three decimals.
    slope = slope_of_weights(neg, absent, t, beta, options.weight_clip)

    def means(
        s: Tensor,
        log_count: Tensor | float,
        absent: Tensor | None,
        centres: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        """Logarithms of mean w e^{(s - top)/t} and of mean w [n], with w = 1 at the hardest sample;
        the two centres [n, 1].
        """
        top = s.detach().amax(1, keepdim=True) if centres is None else centres[0]
        d = (s - top) / t  # [n, k]
        if is_zero(beta):
            return d.logsumexp(1) - log_count, torch.zeros_like(pos), top, top
        seen = seen_by_weights(s, absent, t, options.weight_clip, options.weight_sign)
        if centres is not None:
            hardest = centres[1]
        else:
            hardest = top if seen is s else seen.detach().amax(1, keepdim=True)
        log_w = slope * (seen - hardest)
        if absent is not None:  # beta may be so small that it would fill the hole
            log_w = log_w.masked_fill(absent, HOLE)
        log_w = log_w.detach() if options.detach_weights else log_w
        return (log_w + d).logsumexp(1) - log_count, log_w.logsumexp(1) - log_count, top, hardest

    weighted, weights, top, hardest = means(neg, log_k, absent, None)
    to_pos = (top[:, 0] - pos) / t
    if is_zero(tau_plus):
        return weighted - weights + to_pos + log_n, always

    log_tau, log_m = log(tau_plus), 0.0 if extra_pos is None else math.log(extra_pos.shape[1])
    if options.corrected and not is_zero(beta):
        # unnormalised means are subtracted: one pair of centres for both
        samples = pos[:, None] if extra_pos is None else extra_pos
        own_weighted, own_weights, *_ = means(samples, log_m, None, (top, hardest))
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
        log1p: Any = torch.log1p if isinstance(tau_plus, Tensor) else math.log1p
        log_g = log_g - log1p(-tau_plus)
    if floor is not None:
        log_floor = (-1.0 - pos) / t if isinstance(floor, str) else log(floor) - pos / t
        positive = positive & (log_g > log_floor) | log_g.isnan()  # which the floor would hide
        log_g = torch.where(positive, log_g, log_floor)
    return log_g + log_n, positive


def seen_by_weights(s: Tensor, absent: Tensor | None, t: Number, clip: Clip, sign: int) -> Tensor:
    """What the weights see of s, larger where they are: log w is `slope_of_weights` times it. s
    itself where there is nothing to change.
    """
    if clip != "clamp" and sign == 1:
        return s
    bound: Any = 2 * t
    seen = sign * (s.clamp(-bound, bound) if clip == "clamp" else s)
    return seen if absent is None else seen.masked_fill(absent, HOLE)


def slope_of_weights(
    s: Tensor, absent: Tensor | None, t: Number, beta: Number, clip: Clip
) -> Number:
    """The weights' exponent per unit of similarity: beta/t, or with "rescale" 2/max|s/t| times
    that, whatever the temperature.
    """
    if clip != "rescale":
        return beta / t
    counted = s if absent is None else s.masked_fill(absent, 0.0)
    return 2 * beta / counted.abs().max().clamp_min(torch.finfo(s.dtype).eps)


def _log_abs_diff(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """log |e^a - e^b|, and whether a > b. Its gradient is finite everywhere: at a = b the
    difference stops at e^a 1e-30.
    """
    gap = (a - b).abs().clamp_min(1e-30)
    return torch.maximum(a, b) + (-torch.expm1(-gap)).log(), a > b
