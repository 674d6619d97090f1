"""Drawings of the notebook on chuang2020, Section 5.4: control."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion.figures import means_with_intervals


def films(frames: Mapping[str, Tensor]) -> Figure:
    """By name the frames [n, 3, height, width] of an episode, a row each."""
    shown = len(next(iter(frames.values())))
    figure, axes = plt.subplots(
        len(frames),
        shown,
        figsize=(1.07 * shown, 1.13 * len(frames)),
        squeeze=False,
        layout="constrained",
    )
    for line, (name, film) in zip(axes, frames.items(), strict=True):
        for axis, frame in zip(line, film, strict=True):
            axis.imshow(frame.permute(1, 2, 0))
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(_in_lines(name), rotation=0, ha="right", va="center")
    return figure


def _in_lines(task: str) -> str:
    """A control task's name as a tick says it: "ball_in_cup catch" in two lines, without
    underscores.
    """
    return task.replace(" ", "\n").replace("_", " ")


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


def differences_by_task(difference: pd.DataFrame, half: pd.DataFrame) -> Figure:
    """Differences with the half widths of their intervals, both with a row an arm and a column a
    task: tasks below each other.
    """
    import seaborn as sns  # two seconds, which few notebooks need

    figure, axis = plt.subplots(figsize=(8, 5))
    for i, (arm, colour) in enumerate(
        zip(difference.index, sns.color_palette("flare", len(difference)), strict=True)
    ):
        heights = np.arange(difference.shape[1]) + 0.14 * (i - (len(difference) - 1) / 2)
        style: dict[str, Any] = dict(
            fmt="o", color=colour, markersize=4.5, linewidth=1.2, label=arm
        )
        axis.errorbar(difference.loc[arm], heights, xerr=half.loc[arm], **style)
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(difference.shape[1]), list(difference.columns))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def state_read_from_features(runs: pd.DataFrame) -> Figure:
    """R^2 of positions and of velocities (columns task, arm, r2_positions, r2_velocities), a panel
    each: means with 95% intervals.
    """
    import seaborn as sns  # two seconds, which few notebooks need

    rows = runs.assign(task=runs["task"].map(_in_lines))
    figure, axes = plt.subplots(1, 2, figsize=(13, 4.2), sharey=True, layout="constrained")
    colours = ["0.75", "0.35", *sns.color_palette("flare", max(1, runs["arm"].nunique() - 2))]
    for axis, read in zip(axes, ("positions", "velocities"), strict=True):
        means_with_intervals(axis, rows, "task", f"r2_{read}", "arm", colours=colours, width=0.5)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(read)
        axis.tick_params(axis="x", labelsize=10)
    axes[0].set_ylabel("R² on held-out episodes")
    axes[1].legend(title="encoder", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def returns_by_steps(agents: pd.DataFrame, published: pd.DataFrame, spread: pd.DataFrame) -> Figure:
    """Learning curves (columns task, arm, random, score_curve, steps_curve), a panel a task, a line
    a seed; a random policy dashed.

    published, spread: printed returns at 100,000 steps and their standard deviations, a row an arm
    and a column a task.
    """
    tasks, arms = list(dict.fromkeys(agents["task"])), list(dict.fromkeys(agents["arm"]))
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(6 * len(tasks) + 3.5, 4), squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        own = agents[agents["task"] == task]
        for i, arm in enumerate(dict.fromkeys([*arms, "biased"])):
            colour = f"C{i}" if arm in arms else "0.35"
            for k, (_, run) in enumerate(own[own["arm"] == arm].iterrows()):
                steps, returns = (
                    np.array(run["steps_curve"]) / 1000,
                    1000 * np.array(run["score_curve"]),
                )
                axis.plot(
                    steps,
                    returns,
                    "o-",
                    color=colour,
                    markersize=4,
                    linewidth=1.3,
                    label=None if k else f"{arm}, here",
                )
            if arm in published.index:
                look: dict[str, Any] = dict(
                    fmt="D", color=colour, capsize=3, label=f"{arm}, published (± sd)"
                )
                axis.errorbar(100 + 3 * i, published.loc[arm, task], spread.loc[arm, task], **look)
        axis.axhline(own["random"].mean(), color="0.4", linestyle="--", label="random policy, here")
        axis.set(title=task, xlabel="thousand simulator steps", ylim=(-20, 1020))
    axes[0, 0].set_ylabel("episode return (at most 1,000)")
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
