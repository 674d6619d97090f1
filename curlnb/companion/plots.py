"""One palette, one name for each arm, and the figures that decide: paired gains, and curves with
their gap.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from curlnb.companion.statistics import Interval, t_interval

BIASED, DEBIASED, HARD = "SimCLR", "debiased", "hard"
UNBIASED, CORRECTED = "unbiased (labelled negatives)", "corrected"
NAMES = {
    "biased": BIASED,
    "debiased": DEBIASED,
    "hard": HARD,
    "unbiased": UNBIASED,
    "hard_corrected": CORRECTED,
}
"""The name of an arm in figures, tables and prose, by the name of its objective."""
COLOURS = {
    BIASED: "#0173b2",
    DEBIASED: "#de8f05",
    HARD: "#d55e00",
    UNBIASED: "#029e73",
    CORRECTED: "#cc78bc",
    "untrained": "#949494",
}
MARKERS = {BIASED: "o", DEBIASED: "s", HARD: "^", UNBIASED: "D", CORRECTED: "v"}
LIMIT, QUIET = "#c1272d", "0.45"  # what a theorem allows, and what stands aside
PUBLISHED: dict[str, Any] = dict(
    marker="*", markersize=15, color="none", markeredgecolor="black", zorder=1.9
)
INDEPENDENT: dict[str, Any] = dict(marker="|", markersize=13, markeredgewidth=2, color="#7b5ea7")


def colour(arm: str) -> str:
    """The colour of an arm, by its name or its objective's; grey for what is none."""
    return COLOURS.get(NAMES.get(arm, arm), QUIET)


def marker(arm: str) -> str:
    """The marker of an arm in curves, which tells it apart without its colour."""
    return MARKERS.get(NAMES.get(arm, arm), "o")


def paired_gains(
    axis: Axes,
    gains: Mapping[str, Sequence[float]],
    *,
    published: Mapping[str, float] = {},
    independent: Mapping[str, Mapping[str, float]] = {},
    unit: str = "points",
) -> None:
    """Treatment minus control, a line each from the top: the mean over seeds with its 95% interval.

    gains: by label either the differences of the seeds, or an `Interval` that was computed before.
    published: by label what the paper prints, drawn as a star. independent: by label the gains of
    other people's re-runs by source (`external.marks`), drawn as bars.
    """
    for at, (label, given) in enumerate(gains.items()):
        mean, low, high = interval(given)
        of_arm = colour(label.partition(",")[0])
        ends = [[mean - low], [high - mean]]
        axis.errorbar([mean], [at], xerr=ends, fmt="o", color=of_arm, capsize=4, markersize=7)
        if label in published:
            axis.plot(published[label], at, linestyle="none", label="the paper", **PUBLISHED)
        for x in independent.get(label, {}).values():
            axis.plot(x, at, linestyle="none", label="independent re-runs", **INDEPENDENT)
    axis.axvline(0, color=QUIET, linewidth=1)
    axis.set_yticks(range(len(gains)), list(gains))
    axis.set(ylim=(len(gains) - 0.5, -0.5), xlabel=f"treatment minus control ({unit})")
    axis.grid(axis="y", visible=False)
    axis.plot([], [], "o", color=QUIET, label="here, 95% interval")
    _legend(axis, [axis], loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _legend(place: Axes | Figure, axes: Iterable[Axes], **where: Any) -> None:
    """One legend of all marks in some axes, where there are several."""
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    marks = {name: mark for mark, name in reversed(pairs)}
    if len(marks) > 1:
        place.legend(marks.values(), marks, frameon=False, ncols=len(marks), **where)


def gain_panels(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    published: Mapping[str, Mapping[str, float]] = {},
    independent: Mapping[str, Mapping[str, Mapping[str, float]]] = {},
    size: tuple[float, float] = (12, 4.2),
    digits: int = 1,
    **layout: Any,
) -> Figure:
    """Panels of `paired_gains` side by side by title, the mean written above each point, and one
    legend over all.

    panels, published, independent: by title what `paired_gains` takes. layout: of `plt.subplots`,
    such as sharex=True.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, **layout)
    rows = max(map(len, panels.values()))  # of equal height in all panels
    for axis, (title, gains) in zip(axes[0], panels.items(), strict=True):
        stars, bars = published.get(title, {}), independent.get(title, {})
        paired_gains(axis, gains, published=stars, independent=bars)
        for at, given in enumerate(gains.values()):
            mean = interval(given).mean
            axis.annotate(
                f"{mean:+z.{digits}f}",
                (mean, at),
                (0, 8),
                textcoords="offset points",
                ha="center",
                fontsize=10,
                bbox=dict(facecolor="white", edgecolor="none", pad=0.5),
            )
        axis.set_title(title, fontsize=11)
        axis.set(xlabel="points", ylim=(rows - 0.5, -0.6))
        axis.margins(x=0.08)
        if legend := axis.get_legend():
            legend.remove()
    _legend(figure, axes[0], loc="outside upper center")
    return figure


def interval(differences: ArrayLike) -> Interval:
    """Mean and 95% t interval of differences, one a seed; a single one has no width. An `Interval`
    is returned as it is.
    """
    if isinstance(differences, Interval):
        return differences
    x = np.asarray(differences, dtype=float)
    return t_interval(x) if len(x) > 1 else Interval(*[float(x.mean())] * 3)


def gap(axis: Axes, differences: pd.Series, arm: str, *, shift: float = 1.0) -> float:
    """Treatment minus control against a number, the first level of the index: means over the seeds
    with 95% intervals. shift: a factor on that number, so that arms do not cover each other.
    Returns the last mean.
    """
    found = {x: interval(each) for x, each in differences.dropna().groupby(level=0)}
    x, (middle, low, high) = np.array([*found]) * shift, np.array([*found.values()]).T
    ends = [middle - low, high - middle]
    axis.errorbar(x, middle, ends, marker=marker(arm), color=colour(arm), capsize=3)
    return float(middle[-1])


def curve_and_gap(
    axes: Sequence[Axes], runs: pd.DataFrame, x: str, y: str, arm: str, control: str
) -> None:
    """Left, the mean of `y` over seeds against `x`, a curve for each value of the column `arm`;
    right, each arm minus `control`, paired by seed, with 95% intervals.

    runs: a row a run, with a column seed. The axes of `x` are numeric.
    """
    left, right = axes
    wide = runs.pivot_table(index=[x, "seed"], columns=arm, values=y)
    last, gaps = {}, {}
    for name in dict.fromkeys([control, *runs[arm]]):
        mean = wide[name].groupby(level=0).mean().dropna()
        left.plot(mean.index, mean, marker=marker(name), color=colour(name))
        last[name] = mean.iloc[-1]
        if name != control:
            gaps[name] = gap(right, wide[name] - wide[control], name)
    right.axhline(0, color=QUIET, linewidth=1)
    minus = f"minus {NAMES.get(control, control)}"
    for axis, ends, label in ((left, last, y), (right, gaps, minus)):
        axis.set(xlabel=x, ylabel=label)
        axis.locator_params(axis="x", integer=True)
        label_ends(axis, ends)


def label_ends(axis: Axes, last: Mapping[str, float]) -> None:
    """Write each arm's name to the right of the axis at the height of its last value, moved apart
    where two names would overlap.
    """
    low, high = axis.get_ylim()
    points = axis.get_window_extent().height / axis.figure.dpi * 72
    line = 1.3 * rcParams["font.size"] / points * (high - low)
    there, height = axis.get_yaxis_transform(), -np.inf
    for name in sorted(last, key=lambda name: last[name]):
        height = max(last[name], height + line)
        shown, shade = NAMES.get(name, name), colour(name)
        axis.text(1.02, height, shown, color=shade, va="center", transform=there)
