"""Figures of the theory: worlds of points and classes, matrices, estimates, searches."""

from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion.notebook import STYLE
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
