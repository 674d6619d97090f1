"""The papers' formulas, written again as loops in 60-digit decimals; similarities to try."""

import math
from contextlib import contextmanager
from decimal import Decimal, localcontext

import pytest
import torch
import torch.nn.functional as F


@contextmanager
def refused(says, kind=ValueError):
    """An error, in one line, that says this."""
    with pytest.raises(kind, match=says) as error:
        yield error
    assert "\n" not in str(error.value)


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def curl(v, kind):
    """arora2019's loss of the differences of scores v, a list; of none it is 0."""
    if not v:
        return 0.0
    if kind == "hinge":
        return max(0.0, 1 - min(v))
    return math.log2(1 + sum(math.exp(-x) for x in v))


def unit(*shape, seed=0, dtype=torch.float32):
    return F.normalize(torch.randn(*shape, generator=generator(seed), dtype=dtype), dim=-1)


def batch(n=8, k=20, seed=0, dtype=torch.float32):
    """Similarities of a trained encoder's kind: positives near 0.7, negatives around 0."""
    g = generator(seed)
    pos = 0.7 + 0.2 * torch.rand(n, generator=g, dtype=dtype)
    return pos, (0.3 * torch.randn(n, k, generator=g, dtype=dtype)).clamp(-1, 1)


def oracle(pos, neg, plus, n, t, tau, beta, floor, corrected, clip, sign, peak):
    """One anchor's loss, literally; and how much of a relative error in each mean arrives in it
    (the conditioning term).
    """
    with localcontext() as context:
        context.prec = 60
        pos, t, tau, beta, n = Decimal(pos), Decimal(t), Decimal(tau), Decimal(beta), Decimal(n)

        def score(s):
            return (Decimal(s) / t).exp()

        def weight(s):
            u = Decimal(s) / t
            if clip == "rescale":
                u = 2 * u / (Decimal(peak) / t)
            if clip == "clamp":
                u = max(min(u, Decimal(2)), Decimal(-2))
            return (beta * sign * u).exp()

        def mean(f, samples):
            return sum(f(s) for s in samples) / len(samples)

        up, up_plus = (mean(lambda s: weight(s) * score(s), samples) for samples in (neg, plus))
        down, down_plus = mean(weight, neg), mean(weight, plus)
        if corrected:
            numerator, denominator = up - tau * up_plus, down - tau * down_plus
            if abs(denominator) <= Decimal("1e-3") * (down + tau * down_plus):  # there it jumps
                return math.nan, math.inf
            trusted = (numerator > 0 and denominator > 0) or floor is None
            g = numerator / denominator if trusted else Decimal("-Infinity")
            spread = (up + tau * up_plus) / abs(denominator) + abs(numerator) * (
                down + tau * down_plus
            ) / denominator**2
            spread = spread if trusted else Decimal(0)
        else:
            g = (up / down - tau * up_plus / down_plus) / (1 - tau)
            spread = (up / down + tau * up_plus / down_plus) / (1 - tau)
        if tau > 0 and floor is not None:
            g = max(g, (-1 / t).exp() if floor == "sphere" else Decimal(floor))
        total = score(pos) + n * g
        if total <= 0:
            return math.nan, math.inf
        return float((total / score(pos)).ln()), float(min(n * spread / total, Decimal(10**9)))
