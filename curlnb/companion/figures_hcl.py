"""The figures of robinson2021's notebooks that are longer than a lesson's cell."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion import plots

SHADES = {"same": "0.1", "different": "0.6"}  # of pairs of one label and of two


def packings_on_sphere(pictures: Sequence[tuple[str, Tensor, tuple[float, float]]]) -> Figure:
    """Unit vectors [C, 3] on the sphere, a panel for each (title, vectors, elevation and azimuth in
    degrees): each vector is joined to its nearest ones, in orange where they are farther than the
    least distance of all.
    """
    azimuth, polar = np.mgrid[0 : 2 * np.pi : 30j, 0 : np.pi : 16j]
    ball = np.cos(azimuth) * np.sin(polar), np.sin(azimuth) * np.sin(polar), np.cos(polar)
    figure = plt.figure(figsize=(3.6 * len(pictures), 3.8))
    for place, (title, v, view) in enumerate(pictures, 1):
        axis: Any = figure.add_subplot(
            1, len(pictures), place, projection="3d", computed_zorder=False
        )
        axis.plot_wireframe(*ball, color="0.9", linewidth=0.3, zorder=0)
        distance = (v[:, None] - v).norm(dim=-1) + 9 * torch.eye(len(v))
        for c, k in (distance <= distance.amin(1, keepdim=True) + 2e-3).nonzero().tolist():
            colour = "C1" if distance[c, k] > distance.min() + 0.02 else "0.25"
            axis.plot(*torch.stack([v[c], v[k]]).T, color=colour, linewidth=1.6)
        axis.scatter(*v.T, s=70, color="C0", depthshade=False, edgecolor="white", zorder=5)
        axis.set(title=title, box_aspect=(1, 1, 1))
        axis.set(**dict.fromkeys(("xlim", "ylim", "zlim"), (-0.8, 0.8)))
        axis.view_init(*view)
        axis.axis("off")
    figure.set_layout_engine("constrained", wspace=0, w_pad=0)
    return figure


def similarities_over(
    runs: pd.DataFrame, panels: Sequence[tuple[str, str]], columns: int, title: str
) -> Figure:
    """Histograms of cosine similarity of pairs of one and of two labels, one panel for each (arm,
    base): filled the arm, outlined the base, and in the title the overlaps of base and arm, in
    hundredths.

    runs: indexed by arm, with the columns projections_same and projections_different (the shares of
    equal bins over [-1, 1]) and projections_overlap, as `experiments.representations.visualise`
    returns them.
    """
    rows, overlap = -(-len(panels) // columns), runs["projections_overlap"].to_dict()
    size = (4.2 * columns, 2.9 * rows)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, sharex=True, squeeze=False, layout="constrained"
    )
    for axis, (arm, base) in zip(axes.flat, panels, strict=True):
        for kind, shade in SHADES.items():
            was, now = (np.array(runs.loc[name, f"projections_{kind}"]) for name in (base, arm))
            edges, per_unit = np.linspace(-1, 1, len(now) + 1), len(now) / 2
            axis.stairs(per_unit * now, edges, fill=True, alpha=0.45, color=shade)
            axis.stairs(per_unit * was, edges, color=plots.colour(base), linestyle="--")
        overlaps = " → ".join(f"{100 * overlap[name]:.1f}" for name in (base, arm))
        axis.set_title(f"{arm}: {overlaps}", fontsize="medium")
    plt.setp(axes[-1], xlabel="cosine similarity")
    plt.setp(axes[:, 0], ylabel="density")
    filled = [plt.Rectangle((0, 0), 1, 1, color=x, alpha=0.45) for x in SHADES.values()]
    dashed = plt.Line2D([], [], color="0.3", linestyle="--", linewidth=1.2)
    names = ["pairs of one label", "pairs of two", "dashed: the loss it is compared with"]
    figure.legend([*filled, dashed], names, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title)
    return figure
