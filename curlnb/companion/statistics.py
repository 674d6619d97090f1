"""The statistics of a claim: the 95% t interval of paired differences, the verdict it gives, power, and the seeds that would settle it."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

CONFIDENCE, POWER, MOST_SEEDS = 0.95, 0.8, 1_000_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)


def t_interval(differences: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Mean and 95% t interval (mean, low, high) of n >= 2 finite numbers."""
    x = np.asarray(differences, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(f"a t interval needs two or more finite numbers in one dimension, got {x.tolist()}")
    mean, half = float(x.mean()), _critical(len(x)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return mean, mean - half, mean + half


def verdict(low: float | None, high: float | None, region: tuple[float, float]) -> str:
    """Where the interval [low, high] lies against the open region claimed; inconclusive where it touches a bound or is missing."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "inconclusive"
    if region[0] < low and high < region[1]:
        return "reproduced"
    if high < region[0] or low > region[1]:
        return "contradicted"
    return "inconclusive"


def power(n: int, effect: float, sd: float, region: tuple[float, float] = (0.0, math.inf)) -> float:
    """Chance that n paired seeds settle a claim, differences being normal with mean `effect` and standard deviation `sd`.

    One bound (above or below): the power of the two-sided 5% paired t-test, as the noncentral t distribution gives it. Two bounds
    (within): the chance that the interval lies inside the region if the effect does (two one-sided tests at 2.5%), to four decimals, else
    that it lies outside. All are one expectation over the sample's standard deviation, integrated here by Gauss-Legendre, since scipy's
    noncentral t is NaN at some n for large effects. ValueError for n < 2 or sd that is not positive.
    """
    if n < 2 or not sd > 0:
        raise ValueError(f"power needs n >= 2 and sd > 0, got n = {n} and sd = {sd}")
    df, t = n - 1, _critical(n)
    low, high = ((bound - effect) * math.sqrt(n) / sd for bound in region)  # in standard errors from the effect
    tail = 1e-15  # of the distribution of u, the sample's standard deviation over the true one: df u^2 is chi-squared
    start, end = (math.sqrt(float(special.chdtri(df, upper)) / df) for upper in (1 - tail, tail))
    u = (start + end) / 2 + (end - start) / 2 * _NODES
    density = 2 * np.exp(df / 2 * (math.log(df / 2) - u * u) - special.gammaln(df / 2) + (df - 1) * np.log(u))
    inside = np.maximum(0.0, special.ndtr(high - t * u) - special.ndtr(low + t * u))
    outside = special.ndtr(low - t * u) + special.ndtr(-high - t * u)
    one_sided = math.isinf(low) or math.isinf(high)
    settled = inside + outside if one_sided else inside if low < 0 < high else outside
    return min(1.0, max(0.0, float((end - start) / 2 * (_WEIGHTS * settled * density).sum())))


def seeds_needed(effect: float, sd: float, region: tuple[float, float] = (0.0, math.inf), *, wanted: float = POWER) -> int | None:
    """Smallest number of paired seeds with `power` at least `wanted`; None where a million would not do (an effect on a bound)."""
    if effect in region:
        return None
    enough = 2
    while power(enough, effect, sd, region) < wanted:
        if enough >= MOST_SEEDS:
            return None
        enough = min(2 * enough, MOST_SEEDS)
    short = max(1, enough // 2)  # bisect: `short` has too little power (or is 1), `enough` has it
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if power(middle, effect, sd, region) >= wanted else (middle, enough)
    return enough


def _critical(n: int) -> float:
    return float(special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2))
