"""Drawings and differences in words that several notebooks share, so that their cells show the
mathematics and not the plotting.
"""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion import plots
from curlnb.companion.statistics import slope_per_doubling
from curlnb.theory.finite_worlds import World

RED = "tab:red"


def class_colours(count: int) -> list[str]:
    """Colours for `count` latent classes, the same in every notebook."""
    return [f"C{k}" for k in (0, 1, 2, 4, 5, 6, 8, 9, 3, 7)][:count]


def latent_classes(axis: Axes, world: World, f: Tensor, *, area: float = 900) -> None:
    """The points of a world where f [P, 2] puts them: a disc for each class, of area D_c(x), and a
    cross for each class mean.
    """
    for c, colour in enumerate(class_colours(len(world.rho))):
        axis.scatter(f[:, 0], f[:, 1], s=area * world.D[c], color=colour, alpha=0.55, linewidth=0)
        label = f"$c_{{{c + 1}}}$, $\\rho$ = {float(world.rho[c]):.2f}"
        x, y = world.D[c] @ f
        axis.scatter(
            x, y, s=110, marker="X", color=colour, edgecolor="black", label=label, zorder=3
        )
    axis.set(xlabel="$f_1(x)$", ylabel="$f_2(x)$", aspect="equal")


def image_rows(rows: Mapping[str, Tensor], framed: Mapping[str, Tensor] = {}) -> Figure:
    """Images in rows by name, each [n, channels, height, width]; those of a row are in red frames
    where `framed` [n], by the row's name, is true.
    """
    high, wide = len(rows), max(map(len, rows.values()))
    figure, axes = plt.subplots(high, wide, figsize=(1.1 * wide, 1.15 * high), squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        red = framed.get(name, torch.zeros(wide))
        for axis, frame in zip(line, red, strict=True):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set(color=RED if frame else "white", linewidth=4)
        for axis, image in zip(line, images, strict=False):  # a row may be shorter
            axis.imshow(image.permute(1, 2, 0))
        line[0].set_ylabel(name, rotation=0, labelpad=6, ha="right", va="center")
    return figure


def pair_matrix(axis: Axes, matrix: Tensor, title: str) -> None:
    """A [C, C] matrix of losses with its numbers, rows the anchor's class and columns the
    negative's.
    """
    from sklearn.metrics import ConfusionMatrixDisplay  # slow to import

    names = [f"$c_{{{c + 1}}}$" for c in range(len(matrix))]
    shown = ConfusionMatrixDisplay(matrix.numpy(), display_labels=names)
    shown.plot(ax=axis, cmap="magma_r", values_format=".2f", colorbar=False, im_kw={"vmin": 0})
    axis.set(title=title, xlabel="class of the negative", ylabel="class of the anchor")
    axis.grid(visible=False)


def signed(differences: pd.Series, digits: int = 2) -> str:
    """'+1.17 [+0.68, +1.66]': the mean difference and its 95% t interval; a single one stands
    alone, and none are an empty text.
    """
    if differences.empty:
        return ""
    mean, *ends = (f"{x:+.{digits}f}" for x in plots.interval(differences))
    return f"{mean} [{', '.join(ends)}]" if len(differences) > 1 else mean


def changes_over_n(by_n: pd.DataFrame) -> dict[str, str]:
    """What a measure changes by with N, each with its interval over seeds; empty where there is one
    N only.

    by_n: a row for each seed, a column for each N. From the least N to the largest, and where 62,
    126, 254 and 510 are there, also from 126 to 254 and the slope of a line through the four; each
    over the seeds that have all N that it compares.
    """
    doubled = [62, 126, 254, 510]
    by_n = by_n.dropna(axis=1, how="all")
    if by_n.shape[1] < 2:
        return {}
    least, most = by_n.columns.min(), by_n.columns.max()
    changes = {f"from {least} to {most}": by_n[most] - by_n[least]}
    if set(doubled) <= set(by_n):
        changes["from 126 to 254"] = by_n[254] - by_n[126]
        slopes = slope_per_doubling(doubled, by_n[doubled].dropna())
        changes["slope, a doubling"] = pd.Series(slopes)
    return {name: signed(change.dropna()) for name, change in changes.items()}
