"""Drawings of the notebooks on chuang2020, Sections 5.3 and 5.4: gains by task, control."""

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion.figures import means_with_intervals


def gains_by_task(
    gains: pd.DataFrame,
    marks: Mapping[tuple[str, str], float],
    lines: Mapping[str, Mapping[str, float]],
    rings: Mapping[tuple[str, str], float] | None = None,
    of_rings: str = "",
) -> Figure:
    """Gains over a control (columns arm, task, gain), a panel a task with a scale of its own: means
    with 95% intervals over seeds.

    marks: published gains by arm and task, drawn as diamonds where there are any; lines: by name,
    what other arms are above the control, by task; rings: gains of another run by arm and task,
    under the name `of_rings`.
    """
    tasks = list(dict.fromkeys(gains["task"]))
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(3.1 * len(tasks) + 1.5, 3.9), squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        own = gains[gains["task"] == task]
        offsets = means_with_intervals(axis, own, "task", "gain", "arm")
        at, printed = (
            [offset + 0.06 for offset in offsets.values()],
            [marks.get((arm, task), math.nan) for arm in offsets],
        )
        axis.scatter(at, printed, marker="D", color="black", s=28, label="published")
        if rings:
            at = [offset - 0.06 for offset in offsets.values()]
            axis.scatter(
                at,
                [rings.get((arm, task), math.nan) for arm in offsets],
                s=50,
                facecolor="none",
                edgecolor="0.3",
                label=of_rings,
            )
        axis.axhline(0, color="black", linewidth=1)
        for (name, values), style in zip(lines.items(), ("--", ":"), strict=False):
            axis.axhline(values[task], color="0.4", linestyle=style, linewidth=1.5, label=name)
        axis.set(xlim=(-0.5, 0.5))
    axes[0, 0].set_ylabel("accuracy minus the biased loss's (points)")
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def crops_and_scores(queries: Tensor, keys: Tensor, scores: Tensor) -> Figure:
    """Left, two crops [n, 3, size, size] of each of n observations; right, their scores [n, n] less
    each row's mean, positives framed.
    """
    import seaborn as sns  # two seconds, which few notebooks need

    n = len(scores)
    figure = plt.figure(figsize=(12, 3.5), layout="constrained")
    grid = figure.add_gridspec(2, n + 1, width_ratios=[1] * n + [0.55 * n])
    for row, name, crops in zip((0, 1), ("query", "key"), (queries, keys), strict=True):
        line = [figure.add_subplot(grid[row, column]) for column in range(n)]
        for axis, crop in zip(line, crops, strict=True):
            axis.imshow(crop.permute(1, 2, 0))
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    axis = figure.add_subplot(grid[:, n])
    relative = scores - scores.mean(1, keepdim=True)
    sns.heatmap(
        relative,
        ax=axis,
        annot=True,
        fmt=".1f",
        cmap="vlag",
        center=0,
        cbar=False,
        square=True,
        linewidths=2,
    )
    for i in range(n):
        axis.add_patch(plt.Rectangle((i, i), 1, 1, fill=False, edgecolor="black", linewidth=2.5))
    axis.set(
        title="score, less its row's mean",
        xlabel="key of observation",
        ylabel="query of observation",
    )
    return figure
