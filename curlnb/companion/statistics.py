"""The statistics of a claim: the 95% t interval of paired differences, the verdict that it gives,
power, and the seeds to plan.

A claim names an open region of a statistic, mostly "above 0", and the smallest effect that matters,
which lies in the region. The two bounds of an interval are at most 2.5% likely to miss the truth on
their side. That bounds each false verdict: "reproduced" where the truth is on the region's boundary
or beyond, and "smaller than claimed" where the truth is the stated effect or more.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

CONFIDENCE, POWER, FEWEST_SEEDS, MOST_SEEDS = 0.95, 0.9, 5, 1_000_000
REPRODUCED, SMALL, SMALLER, CONTRADICTED, UNDECIDED = (
    "reproduced",
    "reproduced, smaller than claimed",
    "smaller than claimed",
    "contradicted",
    "undecided",
)
_quadrature = functools.cache(
    lambda: np.polynomial.legendre.leggauss(256)
)  # half a second, which only plans of seeds need


def t_interval(differences: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Mean and 95% t interval (mean, low, high) of n >= 2 finite numbers."""
    x = np.asarray(differences, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(
            f"a t interval needs two or more finite numbers in one dimension, got {x.tolist()}"
        )
    mean, half = float(x.mean()), _critical(len(x)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return mean, mean - half, mean + half


def slope_per_doubling(at: Sequence[float] | np.ndarray, values: np.ndarray) -> np.ndarray:
    """The slope of a least-squares line through each row of values [seeds, n] over the base-2
    logarithm of `at` [n]. Shape [seeds].
    """
    return np.polyfit(
        np.log2(np.asarray(at, dtype=np.float64)), np.asarray(values, dtype=np.float64).T, 1
    )[0]


def verdict(
    low: float, high: float, region: tuple[float, float], effect: float | None = None
) -> str:
    """What the interval [low, high] says of a claim that the statistic lies in the open region
    (bounds may be infinite).

    With one bound, an interval that lies wholly between the bound's far side and the effect
    excludes the effect: "smaller than claimed" where it holds the bound, "reproduced, smaller than
    claimed" where it lies inside the region. With two bounds, or without an effect, nothing is said
    of the effect's size. Touching a bound is holding it.
    """
    if high < region[0] or low > region[1]:
        return CONTRADICTED
    below_effect = (
        effect is not None
        and (high < effect if math.isinf(region[1]) else low > effect)
        and not all(map(math.isfinite, region))
    )
    if region[0] < low and high < region[1]:
        return SMALL if below_effect else REPRODUCED
    return SMALLER if below_effect else UNDECIDED


def power(n: int, effect: float, sd: float, region: tuple[float, float] = (0.0, math.inf)) -> float:
    """Chance that n paired seeds reproduce a claim, differences being normal with mean `effect` and
    standard deviation `sd`.

    It is the chance that their interval lies inside the region: with one bound, the power of a
    one-sided paired t-test at 2.5%, as the noncentral t distribution gives it; with two bounds,
    that of two one-sided tests, to four decimals. Both are one expectation over the sample's
    standard deviation, integrated here by Gauss-Legendre, since scipy's noncentral t is NaN at some
    n for large effects. ValueError for n < 2 or sd that is not positive.
    """
    if n < 2 or not sd > 0:
        raise ValueError(f"power needs n >= 2 and sd > 0, got n = {n} and sd = {sd}")
    df, t = n - 1, _critical(n)
    low, high = (
        (bound - effect) * math.sqrt(n) / sd for bound in region
    )  # in standard errors from the effect
    # of the distribution of u, the sample's standard deviation over the true one: df u^2 is
    # chi-squared
    tail = 1e-15
    start, end = (math.sqrt(float(special.chdtri(df, upper)) / df) for upper in (1 - tail, tail))
    nodes, weights = _quadrature()
    u = (start + end) / 2 + (end - start) / 2 * nodes
    density = 2 * np.exp(
        df / 2 * (math.log(df / 2) - u * u) - special.gammaln(df / 2) + (df - 1) * np.log(u)
    )
    inside = np.maximum(0.0, special.ndtr(high - t * u) - special.ndtr(low + t * u))
    return min(1.0, max(0.0, float((end - start) / 2 * (weights * inside * density).sum())))


def seeds_needed(
    effect: float,
    sd: float,
    region: tuple[float, float] = (0.0, math.inf),
    *,
    wanted: float = POWER,
) -> int | None:
    """Smallest number of paired seeds with `power` at least `wanted`; None where a million would
    not do, or the effect is not inside.
    """
    if not region[0] < effect < region[1]:
        return None
    enough = 2
    while power(enough, effect, sd, region) < wanted:
        if enough >= MOST_SEEDS:
            return None
        enough = min(2 * enough, MOST_SEEDS)
    short = max(1, enough // 2)  # bisect: `short` has too little power (or is 1), `enough` has it
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (
            (short, middle) if power(middle, effect, sd, region) >= wanted else (middle, enough)
        )
    return enough


def _critical(n: int) -> float:
    return float(special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2))
