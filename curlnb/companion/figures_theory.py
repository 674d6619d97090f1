"""Figures of the theory: worlds of points and classes, matrices, estimates, searches."""

from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
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
