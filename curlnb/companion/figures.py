"""What the notebooks' figures have in common, so that their cells hold the experiment and not the drawing."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from curlnb.companion.statistics import t_interval


def means_with_intervals(
    axis: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    *,
    colours: Sequence[Any] | None = None,
    joined: bool = False,
    width: float = 0.4,
) -> dict[Any, float]:
    """Draw the mean over seeds of column `y` with its 95% t interval, at each value of column `x`, for each value of column `by`.

    rows: one row a run. The values of `x` stand at 0, 1, ... in their order of appearance, those of `by` side by side within `width`; a
    single run has no interval. joined: connect the means of one value of `by`. Returns where each value of `by` stands beside the tick,
    for marks of other sources.
    """
    places, arms = (list(dict.fromkeys(rows[name])) for name in (x, by))
    offsets = {arm: width * (i / (len(arms) - 1) - 0.5) if len(arms) > 1 else 0.0 for i, arm in enumerate(arms)}
    for i, arm in enumerate(arms):
        own = rows[rows[by] == arm]
        at, means, below, above = [], [], [], []
        for place, values in own.groupby(x, sort=False)[y]:
            mean, low, high = t_interval(values) if len(values) > 1 else (values.iloc[0],) * 3
            at.append(places.index(place) + offsets[arm])
            means.append(mean)
            below.append(mean - low)
            above.append(high - mean)
        colour = colours[i] if colours is not None else f"C{i}"
        axis.errorbar(at, means, yerr=[below, above], fmt="o-" if joined else "o", color=colour, ms=4.5, lw=1.3, capsize=3, label=str(arm))
    axis.set_xticks(range(len(places)), [str(place) for place in places])
    axis.margins(x=0.08)
    return offsets
