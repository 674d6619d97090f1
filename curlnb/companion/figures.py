"""Drawings that several notebooks share, so that their cells show the mathematics and not the
plotting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion.notebook import STYLE
from curlnb.companion.statistics import slope_per_doubling, t_interval
from curlnb.data.datasets import Dataset
from curlnb.theory.finite_worlds import World

RED, GREY = "tab:red", "0.45"
COLOURS = matplotlib.rc_params_from_file(STYLE, use_default_template=False)[
    "axes.prop_cycle"
].by_key()["color"]


def class_colours(count: int) -> list:
    """Colours for `count` latent classes, the same in every notebook."""
    return [COLOURS[k % 10] for k in (0, 1, 2, 4, 5, 6, 8, 9, 3, 7)][:count]


def latent_classes(axis: Axes, world: World, f: Tensor, *, area: float = 900) -> None:
    """The points of a world where f [P, 2] puts them: a disc for each class, of area D_c(x), and a
    cross for each class mean.
    """
    for c, colour in enumerate(class_colours(len(world.rho))):
        axis.scatter(f[:, 0], f[:, 1], s=area * world.D[c], color=colour, alpha=0.55, linewidth=0)
        label = f"$c_{{{c + 1}}}$, $\\rho$ = {float(world.rho[c]):.2f}"
        x, y = (world.D[c] @ f).tolist()
        axis.scatter(
            x, y, marker="X", s=110, color=colour, edgecolor="black", zorder=3, label=label
        )
    axis.set(xlabel="$f_1(x)$", ylabel="$f_2(x)$", aspect="equal")


def segments(axis: Axes, points: Tensor, starts: Tensor, ends: Tensor, colours: Sequence) -> None:
    """A line from points[starts[k]] to points[ends[k]] in colours[k]; small shifts keep equal lines
    apart.
    """
    shift = np.random.default_rng(0).normal(0, 0.04, (len(starts), 2))
    for k, colour in enumerate(colours):
        line = torch.stack([points[starts[k]], points[ends[k]]]).numpy() + shift[k]
        axis.plot(
            *line.T,
            color=colour,
            linewidth=1.3 if colour != GREY else 0.7,
            alpha=0.8 if colour != GREY else 0.4,
        )


def decision_regions(axis: Axes, means: Tensor, centre: Tensor, half: float) -> None:
    """Which of the class means [C, 2] has the largest inner product, shaded on a square around
    `centre`; + marks the origin.
    """
    side = torch.linspace(-half, half, 300, dtype=means.dtype)
    answers = ((torch.cartesian_prod(side, side) + centre) @ means.T).argmax(1).reshape(300, 300)
    x, y = (float(value) for value in centre)
    shades = plt.matplotlib.colors.ListedColormap(class_colours(len(means)))
    box = (x - half, x + half, y - half, y + half)
    axis.imshow(
        answers.T,
        extent=box,
        origin="lower",
        cmap=shades,
        alpha=0.22,
        vmin=0,
        vmax=len(means) - 1,
        interpolation="nearest",
    )
    axis.scatter(0, 0, marker="+", s=160, color="black", linewidth=2, zorder=4)
    axis.set(xlim=box[:2], ylim=box[2:])
    axis.grid(False)


def image_triplets(data: Dataset, rows: Mapping[str, Tensor], hits: Tensor) -> Figure:
    """Images in rows, by name the indices [n] into `data`; a red frame in the last row where `hits`
    [n] is true.
    """
    figure, axes = plt.subplots(
        len(rows), len(hits), figsize=(1.1 * len(hits), 1.15 * len(rows)), squeeze=False
    )
    for row, (line, (name, indices)) in enumerate(zip(axes, rows.items(), strict=True)):
        for column, axis in enumerate(line):
            axis.imshow(data.images[indices[column]].permute(1, 2, 0))
            axis.set(xticks=[], yticks=[])
            framed = row == len(rows) - 1 and bool(hits[column])
            for spine in axis.spines.values():
                spine.set(visible=True, color=RED if framed else "white", linewidth=4)
        line[0].set_ylabel(name, rotation=0, labelpad=22, va="center")
    return figure


def best_against_budget(
    axis: Axes, found: Mapping[str, Mapping[int, float]], limit: float | None = None
) -> None:
    """The best value of a search by the steps that it was given, one line a name; `limit` is drawn
    as a dashed line.
    """
    for (name, values), marker in zip(found.items(), "osv^Dx*", strict=False):
        axis.plot(list(values), list(values.values()), marker=marker, label=name)
    if limit is not None:
        axis.axhline(limit, color=RED, linestyle="--", linewidth=1.2, label="limit")
    steps = sorted({step for values in found.values() for step in values})
    axis.set(xscale="log", xlabel="steps of each ascent")
    axis.set_xticks(steps, [f"{step}" for step in steps])
    axis.minorticks_off()
    axis.legend(fontsize=9)


def pair_matrix(axis: Axes, matrix: Tensor, title: str) -> None:
    """A [C, C] matrix of losses with its numbers, rows the anchor's class and columns the
    negative's.
    """
    import seaborn as sns  # two seconds, which few notebooks need

    names = [f"$c_{{{c + 1}}}$" for c in range(len(matrix))]
    options = dict(
        annot=True, fmt=".2f", cmap="rocket_r", vmin=0, cbar=False, square=True, linewidths=2
    )
    sns.heatmap(matrix, ax=axis, xticklabels=names, yticklabels=names, **options)
    axis.set(title=title, xlabel="class of the negative", ylabel="class of the anchor")


def stacked_on_circle(
    angle: np.ndarray, rows: Mapping[str, Mapping[str, np.ndarray]], anchor: float, colours: list
) -> Figure:
    """Densities over the circle as humps that stand on it, classes stacked, a star at the anchor.

    angle: [n] radians; rows: for each row's label, its panels: title -> densities [classes, n].
    Where a row has as many classes as there are colours, the first is the anchor's own, and its
    share of the mass is written inside the circle; the others take the last colours.
    """
    columns = max(len(panels) for panels in rows.values())
    figure, axes = plt.subplots(
        len(rows),
        columns,
        figsize=(13, 7.4),
        squeeze=False,
        gridspec_kw={"wspace": 0, "hspace": 0.02},
    )
    for line, (label, panels) in zip(axes, rows.items(), strict=True):
        line[0].text(-1.7, 0.1, label, ha="right", va="center", fontsize=13)
        for axis, (title, density) in zip(line, panels.items(), strict=True):
            edges = 1 + 0.8 * np.vstack([np.zeros_like(angle), density.cumsum(0)])
            for low, high, colour in zip(
                edges[:-1], edges[1:], colours[-len(density) :], strict=True
            ):
                radius, around = np.append(low, high[::-1]), np.append(angle, angle[::-1])
                axis.fill(
                    radius * np.cos(around), radius * np.sin(around), color=colour, linewidth=0.3
                )
            axis.plot(np.cos(angle), np.sin(angle), color="0.25", linewidth=1.2)
            axis.plot(
                np.cos(anchor),
                np.sin(anchor),
                marker="*",
                markersize=19,
                color="gold",
                markeredgecolor="0.2",
                zorder=5,
            )
            axis.text(0, 0.3, title, ha="center", va="center", fontsize=14)
            if len(density) == len(colours):
                share = density[0].sum() / density.sum()
                axis.text(
                    0,
                    -0.2,
                    f"{share:.0%}\nown class",
                    ha="center",
                    va="center",
                    color=colours[0],
                    fontsize=13,
                    fontweight="bold",
                )
            axis.set(xlim=(-1.4, 1.4), ylim=(-1.25, 2.05), aspect="equal")
            axis.axis("off")
    marks: list[Artist] = [
        plt.Line2D(
            [],
            [],
            marker="*",
            color="none",
            markerfacecolor="gold",
            markeredgecolor="0.2",
            markersize=16,
        )
    ]
    marks += [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in (colours[0], colours[2])]
    names = ["anchor", "its own class: false negatives", "the other classes"]
    figure.legend(marks, names, loc="lower center", ncols=3, frameon=False, fontsize=12)
    return figure


def estimates_and_errors(
    sizes: list,
    estimates: Mapping[str, list],
    exact: float,
    strengths: list,
    errors: Mapping[str, list],
) -> Figure:
    """Left, mean and standard deviation of each way's estimates [repeats] for every sample size,
    beside the exact value; right, each way's typical error, a share, for every concentration.
    """
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.2), gridspec_kw={"wspace": 0.25})
    for i, way in enumerate(estimates):
        mean, spread = [x.mean() for x in estimates[way]], [x.std() for x in estimates[way]]
        axes[0].errorbar(
            np.array(sizes) * (0.95, 1.05)[i],
            mean,
            spread,
            capsize=4,
            ls="none",
            marker="os"[i],
            label=way,
        )
        axes[1].plot(strengths, 100 * np.array(errors[way]), marker="os"[i], label=way)
    axes[0].axhline(exact, color="0.3", linestyle="--", linewidth=1, label="exact")
    axes[0].set(xscale="log", xlabel="draws from $p$", ylabel=r"$E[e^{s/t}]$ under $q_\beta$")
    axes[1].set(
        ylim=0, xlabel=r"concentration $\beta$", ylabel="typical error (% of the exact value)"
    )
    for axis in axes:
        axis.legend()
    return figure


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


def search_progress(
    histories: Mapping[str, np.ndarray], what: str, limit: float, title: str
) -> Figure:
    """The best value that a search has found after each step, a line for each of several searches,
    and the limit claimed.
    """
    figure, axis = plt.subplots(figsize=(8, 3.6))
    for name, best in histories.items():
        axis.plot(np.arange(1, len(best) + 1), best, label=name)
    axis.axhline(limit, color="0.35", linestyle="--", linewidth=1, label="claimed limit")
    axis.set(xscale="log", xlabel="steps of the search", ylabel=what, title=title)
    axis.legend(fontsize=10)
    return figure


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


def accuracies_and_gains(
    panels: Mapping[str, pd.DataFrame], published: Mapping[str, float], setting: str = ""
) -> Figure:
    """A row of two panels for each title: accuracy by number of negatives, and its gain over the
    first arm with the same seed and number.

    Each table has one row a run, with the columns arm, N, seed and accuracy (%); the arm
    "untrained" is drawn as a line. Bars are 95% t intervals over seeds; neighbouring means of
    equally many seeds are joined. published: by name the paper's gains in some `setting`, in words
    beside the first row, since they would press all else together.
    """
    look: dict[str, Any] = dict(
        figsize=(14, 4.3 * len(panels)), squeeze=False, layout="constrained", width_ratios=[1, 2]
    )
    figure, axes = plt.subplots(len(panels), 2, **look)
    names = list(
        dict.fromkeys(
            arm for table in panels.values() for arm in table["arm"] if arm != "untrained"
        )
    )
    colour = dict(zip(names, ["0.25", *COLOURS], strict=False))
    for (left, right), (title, table) in zip(axes, panels.items(), strict=True):
        runs = table[table["arm"] != "untrained"].sort_values("N", kind="stable")
        arms = sorted(dict.fromkeys(runs["arm"]), key=names.index)
        wide = runs.pivot(index=["N", "seed"], columns="arm", values="accuracy")[arms]
        gains = (
            wide.sub(wide[arms[0]], axis=0)[arms[1:]]
            .melt(ignore_index=False, value_name="gain")
            .dropna()
            .reset_index()
        )
        for axis, rows, y in ((left, runs, "accuracy"), (right, gains, "gain")):
            rows = rows.sort_values(
                ["N", "arm"],
                key=lambda column: column.map(names.index) if column.name == "arm" else column,
            )
            shown, places = (list(dict.fromkeys(rows[name])) for name in ("arm", "N"))
            at = means_with_intervals(
                axis, rows, "N", y, "arm", colours=[colour[arm] for arm in shown], width=0.2
            )
            for arm, own in rows.groupby("arm"):
                many, mean = (
                    own.groupby("N")[y].agg(what).reindex(places) for what in ("size", "mean")
                )
                for i in range(len(places) - 1):
                    if many.iloc[i] == many.iloc[i + 1]:
                        axis.plot(
                            [i + at[arm], i + 1 + at[arm]],
                            mean.iloc[i : i + 2],
                            color=colour[arm],
                            linewidth=1.2,
                        )
        floor = table.loc[table["arm"] == "untrained", "accuracy"].mean()
        left.axhline(floor, color="0.4", linestyle="--", label="untrained encoder")
        left.set(xlabel="negatives $N$", ylabel="linear accuracy (%)", title=title)
        right.axhline(0, color=colour[arms[0]], linewidth=1.5)
        right.set(
            xlabel="negatives $N$",
            ylabel="gain (points)",
            title=f"minus {arms[0]}, same seed and $N$",
        )
        marks: dict[str, Any] = {}
        for axis in (left, right):
            for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
                marks.setdefault(name, handle)
        marks = {name: marks[name] for name in ("untrained encoder", *names) if name in marks}
        right.legend(
            list(marks.values()),
            list(marks),
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            frameon=False,
        )
    told = "\n".join(
        [setting, *(f"{name}: {gain:+.1f}" for name, gain in published.items())]
    ).strip()
    axes[0, 1].text(
        1.02, 0.0, told, transform=axes[0, 1].transAxes, va="bottom", fontsize="small", color="0.3"
    )
    return figure


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
