"""The statistics of a claim: the 95% t interval of paired differences, the verdict that it gives,
power, and the seeds to plan.

A claim names an open region of a statistic: above 0 where it states a direction, within a margin
where it states that two things are equal, or that one is no worse. A direction also has a size, the
smallest effect that matters. One rule judges all of them (`verdict`). The two bounds of an interval
are at most 2.5% likely to miss the truth on their side. That bounds each false verdict:
"reproduced" where the truth is on the region's boundary or beyond, and "smaller than claimed" where
the truth is the stated size or more.
"""

import bisect
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

CONFIDENCE, POWER, FEWEST_SEEDS, MOST_SEEDS = 0.95, 0.9, 5, 1_000_000
REPRODUCED, SMALL, SMALLER, CONTRADICTED, UNDECIDED = (
    "reproduced",
    "reproduced, smaller than claimed",
    "smaller than claimed",
    "contradicted",
    "undecided",
)


class Interval(NamedTuple):
    """A mean and the two ends of its interval, as the ledger and committed tables have them."""

    mean: float
    low: float
    high: float


def t_interval(differences: ArrayLike) -> Interval:
    """Mean and 95% t interval of n >= 2 finite numbers."""
    x = np.asarray(differences, dtype=np.float64)
    mean, half = float(x.mean()), critical(len(x)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return Interval(mean, mean - half, mean + half)


def correlation_interval(correlations: ArrayLike) -> Interval:
    """Mean and 95% interval of n >= 2 correlations strictly between -1 and 1, computed on Fisher's
    scale, artanh, so that the interval stays within [-1, 1].
    """
    return Interval(*map(math.tanh, t_interval(np.arctanh(correlations))))


def slope_per_doubling(at: ArrayLike, values: ArrayLike) -> np.ndarray:
    """The slope of a least-squares line through each row of values [seeds, n] over the base-2
    logarithm of `at` [n]. Shape [seeds].
    """
    slopes, _ = np.polyfit(np.log2(at), np.asarray(values, dtype=np.float64).T, 1)
    return slopes


def size_of(region: tuple[float, float], effect: float | None) -> float | None:
    """The size that a claim states, which is its effect if the claim is one of direction: it has
    one bound, and the effect lies farther from zero than the bound does.

    None where the bounds are the margin of a claim that something is equal or no worse: "no gain,
    to half a point" is planned with the effect 0, of which no measurement can fall short.
    """
    bounds = [bound for bound in region if math.isfinite(bound)]
    if effect is None or len(bounds) != 1 or abs(effect) <= abs(bounds[0]):
        return None
    return effect


def verdict(
    low: float, high: float, region: tuple[float, float], effect: float | None = None
) -> str:
    """What the interval [low, high] says of a claim that the statistic lies in the open region
    (bounds may be infinite).

    Inside the region the claim is reproduced, outside it is contradicted, and across a bound it is
    undecided; touching a bound counts as crossing it. An interval that reaches neither the stated
    size (`size_of`) nor the far side of the bound adds "smaller than claimed".
    """
    if high < region[0] or low > region[1]:
        return CONTRADICTED
    size = size_of(region, effect)
    short = size is not None and (high < size if math.isinf(region[1]) else low > size)
    if region[0] < low and high < region[1]:
        return SMALL if short else REPRODUCED
    return SMALLER if short else UNDECIDED


def power(n: int, effect: float, sd: float, region: tuple[float, float] = (0.0, math.inf)) -> float:
    """Chance that n paired seeds reproduce a claim, differences being normal with mean `effect` and
    standard deviation `sd`.

    It is the chance that their interval lies inside the region: with one bound, the power of a
    one-sided paired t-test at 2.5%, by the noncentral t distribution; with two bounds at least
    this, both tests' chances to fail added up. ValueError for n < 2 or sd that is not positive.
    """
    if n < 2 or not sd > 0:
        raise ValueError(f"power needs n >= 2 and sd > 0, got n = {n} and sd = {sd}")
    # to the bounds, in standard errors
    distances = np.array([effect - region[0], region[1] - effect]) * math.sqrt(n) / sd
    fails = special.nctdtr(n - 1, distances, critical(n))
    # scipy's is NaN for large distances, at which no test fails
    return max(0.0, 1 - float(np.nan_to_num(fails).sum()))


def seeds_needed(
    effect: float, sd: float, region: tuple[float, float] = (0.0, math.inf)
) -> int | None:
    """Smallest number of paired seeds with `power` at least POWER; None where a million would not
    do, or the effect is not inside.
    """
    if not region[0] < effect < region[1]:
        return None

    numbers = range(2, MOST_SEEDS + 1)
    at = bisect.bisect_left(numbers, POWER, key=lambda n: power(n, effect, sd, region))
    return numbers[at] if at < len(numbers) else None


def critical(n: int, confidence: float = CONFIDENCE) -> float:
    """Half the width of the t interval of n differences, in standard errors."""
    return float(special.stdtrit(n - 1, 0.5 + confidence / 2))
