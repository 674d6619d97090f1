"""Debiased contrastive learning with known distributions, exactly (chuang2020, Sections 3 and 4).

An anchor of class c sees similarities to finitely many points: its positives follow p+, true
negatives p-, and unlabelled samples the mixture p = tau+ p+ + tau- p-. `AnchorDistributions` holds
these for all anchors of a world. Similarities are those of unit vectors, divided by the temperature
t inside; all losses are natural logarithms, as in the paper. float64. Equations bear their numbers
in the arXiv source: 4, 5, 9, 16 and 21 are 2, 3, 4, 7 and 8 in print.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special
from torch import Tensor

from curlnb.theory.vector_losses import expected_log


@dataclass(frozen=True)
class AnchorDistributions:
    """What every anchor sees: A anchors, P points.

    similarity: [A, P], f(x).f(x') in [-1, 1]; plus, minus: [A, P], p_x^+ and p_x^- over the points;
    weight: [A], p(x); tau_plus in (0, 1).
    """

    similarity: Tensor
    plus: Tensor
    minus: Tensor
    weight: Tensor
    tau_plus: float

    @property
    def marginal(self) -> Tensor:
        """p = tau+ p+ + tau- p- (chuang2020, Section 4), [A, P]."""
        return self.tau_plus * self.plus + (1 - self.tau_plus) * self.minus


def anchor_distributions(embedding: Tensor, D: Tensor) -> AnchorDistributions:
    """What the anchors of a world of C equally likely classes see; tau+ = 1/C.

    Anchors are drawn as (class, point), so that A is at most C P. embedding: [P, d] unit vectors;
    D: [C, P] distribution of each class over the points.
    """
    classes, points = D.shape
    plus = D.repeat_interleave(points, 0)
    minus = ((D.sum(0) - D) / (classes - 1)).repeat_interleave(points, 0)
    seen = D.flatten() > 0
    return AnchorDistributions(
        (embedding @ embedding.T).repeat(classes, 1)[seen],
        plus[seen],
        minus[seen],
        D.flatten()[seen] / classes,
        1 / classes,
    )


def sampled_loss(
    seen: AnchorDistributions,
    p: Tensor,
    N: int,
    temperature: float,
    *,
    scale: float = 1.0,
) -> Tensor:
    """E log(1 + scale sum_i e^{(s_i - s+)/t}) for N independent negatives, exactly. A scalar.

    x+ ~ p_x^+. p: [A, P], the negatives' distribution; seen.marginal is the biased loss, seen.minus
    the unbiased one, and scale = Q/N the paper's weighting. The cost does not depend on N
    (`vector_losses.expected_log`). ValueError without a draw.
    """
    total = seen.weight.new_zeros(())
    for a, similarity in enumerate(seen.similarity):  # together they would be [A, P, nodes, P]
        relative = similarity - similarity.unsqueeze(-1)  # [x+, x-]
        z = relative / temperature + math.log(scale)
        total += seen.weight[a] * (seen.plus[a] * expected_log(z, p[a], N)).sum()
    return total


class Lemma1(NamedTuple):
    """L_biased >= L_unbiased + second - third (chuang2020, Eq. 5).

    `printed` is the paper's third term, e^{3/2} sqrt(pi/2N).
    """

    biased: float
    unbiased: float
    second: float  # E[0 ^ log(E_{p+} e^{s/t} / E_{p-} e^{s/t})]
    third: float  # (e^{2/t} - 1)/(2 sqrt N): derived here, for every t
    printed: float


def lemma1(seen: AnchorDistributions, N: int, temperature: float) -> Lemma1:
    """The terms of chuang2020, Lemma 1, exactly."""
    scores = seen.similarity / temperature
    ratio = (seen.plus.log() + scores).logsumexp(-1) - (seen.minus.log() + scores).logsumexp(-1)
    biased, unbiased = (
        float(sampled_loss(seen, p, N, temperature)) for p in (seen.marginal, seen.minus)
    )
    second = float((seen.weight * ratio.clamp_max(0)).sum())
    third = theorem3_bound(N, None, 0.0, temperature)
    printed = theorem3_bound(N, None, 0.0, temperature, printed=True)
    return Lemma1(biased, unbiased, second, third, printed)


def theorem3_bound(
    N: int | None, M: int | None, tau_plus: float, temperature: float, *, printed: bool = False
) -> float:
    """The right side of chuang2020, Theorem 3; None for N or M means infinitely many.

    printed=True: e^{3/2} sqrt(pi/2) (1/sqrt N + tau+/sqrt M)/tau-, as the paper has it, for every
    t. printed=False: (e^{2/t} - 1)/2 (1/sqrt N + tau+/sqrt M)/tau-, derived here. Both e^{s+/t} and
    g are at least e^{-1/t}, so that the logarithm moves by at most e^{1/t} times what g moves;
    flooring moves g no further from a true value above the floor; and a mean of n independent
    numbers in [e^{-1/t}, e^{1/t}] has standard deviation at most (e^{1/t} - e^{-1/t})/(2 sqrt n)
    (Popoviciu).
    """
    factor = math.exp(1.5) * math.sqrt(math.pi / 2) if printed else math.expm1(2 / temperature) / 2
    of_negatives, of_positives = (1 / math.sqrt(n or math.inf) for n in (N, M))
    return factor / (1 - tau_plus) * (of_negatives + tau_plus * of_positives)


class EstimateError(NamedTuple):
    """The error of the debiased loss with finite samples, for one anchor, exactly."""

    bias: float  # L_debiased^{N,M} - its limit: what Theorem 3 bounds
    absolute: float  # mean absolute deviation of the loss from its limit: what the proof bounds


def two_level_error(
    levels: tuple[float, float],
    plus: float,
    minus: float,
    tau_plus: float,
    temperature: float,
    *,
    N: int | None,
    M: int | None,
    Q: float,
) -> EstimateError:
    """The error of the debiased loss (Eq. 16 and 21) for an anchor that sees only two similarities.

    Sums over two binomials, nothing sampled. levels: (high, low) similarities in [-1, 1]; plus,
    minus: chance of the high one under p+ and p-. N samples of p and M of p+, None for the exact
    mean; Q: the number that multiplies g (the paper's N). The numerator's positive is independent
    of the M in g.
    """
    high, low = (math.exp(s / temperature) for s in levels)
    marginal = tau_plus * plus + (1 - tau_plus) * minus
    means_u, p_u = _binomial_mean(N, marginal, high, low)
    means_v, p_v = _binomial_mean(M, plus, high, low)
    raw = (means_u[:, None] - tau_plus * means_v) / (1 - tau_plus)
    g, chance = np.maximum(raw, math.exp(-1 / temperature)), p_u[:, None] * p_v
    true = minus * high + (1 - minus) * low
    bias = absolute = 0.0
    for positive, weight in ((high, plus), (low, 1 - plus)):
        difference = np.log((positive + Q * g) / (positive + Q * true))
        bias += weight * float((chance * difference).sum())
        absolute += weight * float((chance * np.abs(difference)).sum())
    return EstimateError(bias, absolute)


def _binomial_mean(
    n: int | None, q: float, high: float, low: float
) -> tuple[np.ndarray, np.ndarray]:
    if n is None:
        return np.array([q * high + (1 - q) * low]), np.ones(1)
    counts = np.arange(n + 1)
    ways = special.gammaln(n + 1) - special.gammaln(counts + 1) - special.gammaln(n - counts + 1)
    # scipy.stats overflows where q is 1e-307
    chance = np.exp(ways + special.xlogy(counts, q) + special.xlog1py(n - counts, -q))
    return (counts * high + (n - counts) * low) / n, chance / chance.sum()


def uniform_mean(temperature: float | np.ndarray, dim: int) -> np.ndarray:
    """E e^{s/t} for s the inner product with a uniform unit vector of R^dim.

    It is 0F1(dim/2; 1/(4 t^2)). temperature: a number or an array; returns its shape.
    """
    return special.hyp0f1(dim / 2, 1 / (4 * np.asarray(temperature, dtype=np.float64) ** 2))


def saturation(temperature: float | np.ndarray, dim: int) -> np.ndarray:
    """The tau+ from which g is on its floor for aligned positives and uniform negatives, in R^dim.

    s+ = 1 and N -> infinity. temperature: a number or an array; returns its shape.
    """
    t = np.asarray(temperature, dtype=np.float64)
    return (uniform_mean(t, dim) - np.exp(-1 / t)) / (np.exp(1 / t) - np.exp(-1 / t))
