"""A second opinion on what was measured, beside the verdict, which it never changes.

Two questions to the paired differences of a row: how much likelier are they under the stated size
than under none (a replication Bayes factor), and do they show that the statistic lies within the
margin (equivalence, by the 90% interval)?

The stated size is the claim's `effect` if it claims a direction. The margin is its region if it
claims that two things are equal or one no worse; else it is the stated size, on both sides of the
bound. docs/second_opinion.md says what the words mean.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from scipy import integrate, special

from curlnb.companion.statistics import FEWEST_SEEDS, critical, size_of

TELLING = 3.0  # a Bayes factor nearer to one says nothing


def bayes_factor(mean: float, sd: float, n: int, size: float) -> float:
    """How much likelier n paired differences (mean, standard deviation sd > 0) are under the stated
    size than under none.

    Under the size the true difference is normal around it with half of it as standard deviation,
    cut off at zero; the likelihood is Student's t with n - 1 degrees of freedom, which a flat prior
    of log sd leaves.
    """
    error = sd / math.sqrt(n)

    def weighted(z: float) -> float:
        """The likelihood, relative to that of none, z standard deviations of the prior from the
        stated size, times the density there.
        """
        t, t0 = (mean - size * (1 + z / 2)) / error, mean / error
        log_ratio = n / 2 * (math.log1p(t0 * t0 / (n - 1)) - math.log1p(t * t / (n - 1)))
        return math.exp(log_ratio - z * z / 2)

    least, most = -2, 8  # the prior is cut off at zero
    places = (2 * ((mean + x * error) / size - 1) for x in (-4, 0, 4))
    breaks = [0.0, *(z for z in places if least < z < most)]
    found, _ = integrate.quad(weighted, least, most, points=breaks, limit=200)
    return float(found / math.sqrt(2 * math.pi) / special.ndtr(2))


def equivalence_interval(mean: float, sd: float, n: int) -> tuple[float, float]:
    """The 90% t interval. If it lies inside a margin, both one-sided tests at 5% reject what lies
    outside (TOST).
    """
    half = critical(n, 0.9) * sd / math.sqrt(n)
    return mean - half, mean + half


def second_opinion(row: Mapping[str, Any]) -> str:
    """The second opinion on a row of the ledger in words, or '' where it has none: it was computed
    exactly, on fewer than five seeds, or its interval is not that of differences.
    """
    none = any(pd.isna(row[name]) for name in ("mean", "low", "sd", "effect"))
    if none or row["n"] < FEWEST_SEEDS or row["unit"] == "correlation":
        return ""
    low, high = row["claimed_low"], row["claimed_high"]
    region = (-math.inf if pd.isna(low) else low, math.inf if pd.isna(high) else high)
    mean, sd, n = row["mean"], row["sd"], int(row["n"])
    size = size_of(region, row["effect"])
    low, high = equivalence_interval(mean, sd, n)
    said, margin = [], region
    both = all(map(math.isfinite, region))
    where = "equivalent, within the margin" if both else "inside what is claimed"
    if size is not None:
        bound = next(filter(math.isfinite, region))
        away, missed = abs(size - bound), ""
        if low > size > bound or high < size < bound:
            missed = "beyond the stated size"
        elif high < bound < size or low > bound > size:
            missed = "on the other side of the bound"
        said.append(_likelier(bayes_factor(mean - bound, sd, n, size - bound), missed))
        margin = bound - away, bound + away
        where = f"less than {away:g} " + ("in size" if bound == 0 else f"away from {bound:g}")
    if margin[0] < low and high < margin[1]:
        said.append(f"{where} (90% interval [{low:.2f}, {high:.2f}])")
    return "; ".join(said)


def _likelier(factor: float, missed: str) -> str:
    """'9 times likelier without the stated size than with it'.

    missed: where the 90% interval lies, if it is where neither hypothesis fits.
    """
    if 1 / TELLING < factor < TELLING:
        where = missed or "as likely with as without the stated size"
        return f"{where} (Bayes factor {factor:.1f})"
    words = "with the stated size than without"
    if factor < 1:
        words = "without the stated size than with it"
        factor = 1 / factor if factor else math.inf
    return f"{'over 1,000' if factor > 1000 else f'{factor:,.0f}'} times likelier {words}"
