"""Drawings that several notebooks share, so that their cells show the mathematics and not the
plotting.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd
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
