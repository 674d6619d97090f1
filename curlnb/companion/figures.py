"""Drawings that several notebooks share, so that their cells show the mathematics and not the
plotting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from curlnb.companion.figures_theory import (  # noqa: F401  (one address for all figures)
    COLOURS,
    class_colours,
    decision_regions,
    image_triplets,
    latent_classes,
    pair_matrix,
    segments,
)
from curlnb.companion.statistics import slope_per_doubling, t_interval

RED, GREY = "tab:red", "0.45"


def gains_and_floor(
    gains: pd.DataFrame, published: Mapping[str, float], floor: pd.DataFrame, title: str
) -> Figure:
    """Left, gains by arm and measure (columns points, arm, measure): means with 95% intervals,
    stars at the published ones; right, each run's share of anchors on the floor (columns objective,
    share).
    """
    import seaborn as sns

    figure, axes = plt.subplots(
        1, 2, figsize=(12.5, 4), sharey=True, gridspec_kw={"width_ratios": [1.9, 1], "wspace": 0.06}
    )
    look = dict(
        x="points",
        y="arm",
        hue="measure",
        palette=["0.15", "0.6"],
        dodge=0.4,
        markers=["D", "s"],
        markersize=7,
        capsize=0.08,
    )
    sns.pointplot(gains, errorbar=interval, linestyle="none", ax=axes[0], **look)
    star = dict(
        marker="*", markersize=16, color="none", markeredgecolor=COLOURS[3], markeredgewidth=1.5
    )
    axes[0].plot(
        list(published.values()),
        list(published),
        label="paper, on STL-10",
        linestyle="none",
        **star,
    )
    axes[0].axvline(0, color="0.3", linewidth=1)
    axes[0].set(xlabel="accuracy minus the biased arm's (points)", ylabel="", title=title)
    axes[0].legend(
        title=None, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False
    )
    sns.stripplot(floor, x="share", y="objective", color="0.15", jitter=False, ax=axes[1])
    axes[1].set(
        xlim=(-3, 103),
        xlabel="anchors on the floor, last epoch (%)",
        title="Negatives without gradient",
    )
    return figure


def mean_and_interval(x: pd.Series) -> tuple[float, float, float]:
    """The mean and the ends of its 95% t interval; three times the value where there is one only,
    as in a dry run.
    """
    return t_interval(x.to_numpy()) if len(x) > 1 else (x.mean(),) * 3


def interval(x: pd.Series) -> tuple[float, float]:
    """The ends of the 95% t interval of a mean; see `mean_and_interval`."""
    return mean_and_interval(x)[1:]


def signed(differences: pd.Series, digits: int = 2) -> str:
    """'+1.17 [+0.68, +1.66]': the mean difference and its 95% t interval; a single one stands
    alone, and none are an empty text.
    """
    if differences.empty:
        return ""
    mean, low, high = mean_and_interval(differences)
    return f"{mean:+.{digits}f}" + f" [{low:+.{digits}f}, {high:+.{digits}f}]" * (
        len(differences) > 1
    )


def curves(panels: list[dict], **shared: object) -> Figure:
    """Panels side by side: in each `lines`, a list of (x, y, options of plot), and `axis`, what
    axes.set takes; shared is of all.
    """
    figure, axes = plt.subplots(
        1, len(panels), figsize=(6.5 * len(panels), 4.7), squeeze=False, gridspec_kw={"wspace": 0.2}
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        for x, y, options in panel["lines"]:
            axis.plot(x, y, **options)
        axis.set(**shared | panel["axis"])
        axis.legend(fontsize=9)
    return figure


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
    """Draw the mean over seeds of column `y` with its 95% t interval, at each value of column `x`,
    for each value of column `by`.

    rows: one row a run. The values of `x` stand at 0, 1, ... in their order of appearance, those of
    `by` side by side within `width`; a single run has no interval. joined: connect the means of one
    value of `by`. Returns where each value of `by` stands beside the tick, for marks of other
    sources.
    """
    places, arms = (list(dict.fromkeys(rows[name])) for name in (x, by))
    offsets = {
        arm: width * (i / (len(arms) - 1) - 0.5) if len(arms) > 1 else 0.0
        for i, arm in enumerate(arms)
    }
    for i, arm in enumerate(arms):
        own = rows[rows[by] == arm]
        at, means, below, above = [], [], [], []
        for place, values in own.groupby(x, sort=False)[y]:
            mean, low, high = mean_and_interval(values)
            at.append(places.index(place) + offsets[arm])
            means.append(mean)
            below.append(mean - low if len(values) > 1 else np.nan)
            above.append(high - mean if len(values) > 1 else np.nan)
        colour = colours[i] if colours is not None else f"C{i}"
        axis.errorbar(
            at,
            means,
            yerr=[below, above],
            fmt="o-" if joined else "o",
            color=colour,
            ms=4.5,
            lw=1.3,
            capsize=3,
            label=str(arm),
        )
    axis.set_xticks(range(len(places)), [str(place) for place in places])
    axis.margins(x=0.08)
    if len(places) == 1:  # else the few points would be spread over the whole width
        axis.set_xlim(-0.5, 0.5)
    return offsets


def changes_over_n(
    by_n: pd.DataFrame, doubled: Sequence[int] = (62, 126, 254, 510)
) -> dict[str, str]:
    """What a measure changes by with N, each with its interval over seeds; empty where there is one
    N only.

    by_n: a row a seed, a column an N; seeds that lack one are left out. From the least N to the
    largest, and where all of `doubled` are there, between the two in its middle and the slope of a
    line through the four.
    """
    by_n = by_n.dropna(axis=1, how="all").dropna()
    if by_n.shape[1] < 2:
        return {}
    least, most = by_n.columns.min(), by_n.columns.max()
    told = {f"from {least} to {most}": by_n[most] - by_n[least]}
    if set(doubled) <= set(by_n):
        _, low, high, _ = doubled
        told[f"from {low} to {high}"] = by_n[high] - by_n[low]
        told["slope, a doubling"] = pd.Series(
            slope_per_doubling(doubled, by_n[list(doubled)].to_numpy())
        )
    return {name: signed(change) for name, change in told.items()}


def curves_and_gaps(
    curves: pd.DataFrame,
    arms: str,
    base: str,
    said: str,
    measure: str = "knn",
    colours: Mapping[str, Any] | None = None,
) -> Figure:
    """Left, `measure` against epochs, a line for each value of the column `arms`; right, its
    difference from `base`, paired by seed.

    curves: columns `arms`, seed, epoch and `measure`, one row a measurement. Means with 95%
    t-intervals over seeds. said: the axis label. colours: by arm, in the order of the legend; an
    arm that has none gets the next of the cycle.
    """
    by_seed = curves.pivot_table(measure, ["epoch", "seed"], arms, sort=False)
    first = [name for name in colours or {} if name in by_seed]
    by_seed = by_seed[[*first, *(name for name in by_seed if name not in first)]]
    colour: dict[Any, Any] = {name: f"C{i}" for i, name in enumerate(by_seed)} | dict(colours or {})
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    for axis, table in zip(
        axes, (by_seed, by_seed.drop(columns=base).sub(by_seed[base], axis=0)), strict=True
    ):
        for name in table:
            mean, low, high = np.array(
                [mean_and_interval(of.dropna()) for _, of in table[name].groupby("epoch")]
            ).T
            epochs = table.index.unique("epoch")
            epochs = epochs + 0.006 * epochs.max() * list(by_seed).index(
                name
            )  # so that bars do not hide each other
            axis.errorbar(
                epochs,
                mean,
                [mean - low, high - mean],
                fmt="o-",
                capsize=3,
                label=name,
                color=colour[name],
            )
    axes[1].axhline(0, color="0.3", linewidth=1)
    axes[0].set(xlabel="epochs", ylabel=said, xticks=by_seed.index.unique("epoch"))
    axes[1].set(
        xlabel="epochs",
        ylabel=f"minus that of {base}, points",
        xticks=by_seed.index.unique("epoch"),
    )
    axes[0].legend()
    return figure
