"""The figures of robinson2021's notebooks that are longer than a lesson's cell."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion import plots
from curlnb.companion.figures import COLOURS, RED
from curlnb.data.datasets import Dataset
from curlnb.data.graphs import Graphs

SHADES = {"same": "0.1", "different": "0.6"}  # of pairs of one label and of two


def packings_on_sphere(pictures: Sequence[tuple[str, Tensor, tuple[float, float]]]) -> Figure:
    """Unit vectors [C, 3] on the sphere, a panel for each (title, vectors, elevation and azimuth in
    degrees): each vector is joined to its nearest ones, in orange where they are farther than the
    least distance of all.
    """
    azimuth, polar = np.mgrid[0 : 2 * np.pi : 30j, 0 : np.pi : 16j]
    ball = np.cos(azimuth) * np.sin(polar), np.sin(azimuth) * np.sin(polar), np.cos(polar)
    blue, orange = COLOURS[:2]
    figure = plt.figure(figsize=(15, 3.8))
    for place, (title, v, view) in enumerate(pictures, 1):
        axis: Any = figure.add_subplot(
            1, len(pictures), place, projection="3d", computed_zorder=False
        )
        axis.plot_wireframe(*ball, color="0.9", linewidth=0.3, zorder=0)
        distance = (v[:, None] - v).norm(dim=-1) + 9 * torch.eye(len(v))
        for c, k in (distance <= distance.amin(1, keepdim=True) + 2e-3).nonzero().tolist():
            colour = orange if distance[c, k] > distance.min() + 0.02 else "0.25"
            axis.plot(*torch.stack([v[c], v[k]]).T, color=colour, linewidth=1.6)
        axis.scatter(*v.T, s=70, color=blue, depthshade=False, edgecolor="white", zorder=5)
        axis.set(
            title=title, box_aspect=(1, 1, 1), xlim=(-0.8, 0.8), ylim=(-0.8, 0.8), zlim=(-0.8, 0.8)
        )
        axis.view_init(*view)
        axis.axis("off")
    figure.set_layout_engine("constrained", wspace=0, w_pad=0)
    return figure


def similarities_over(
    runs: pd.DataFrame, panels: Sequence[tuple[str, str]], columns: int, title: str
) -> Figure:
    """Histograms of cosine similarity of pairs of one and of two labels, one panel for each (arm,
    base): filled the arm, outlined the base, and in the title the base's overlap and the arm's.

    runs: indexed by arm, with the columns projections_same and projections_different (the shares of
    equal bins over [-1, 1]) and projections_overlap, as `experiments.representations.visualise`
    returns them.
    """
    rows, overlap = -(-len(panels) // columns), runs["projections_overlap"].to_dict()
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(4.2 * columns, 2.9 * rows),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, (arm, base) in zip(axes.flat, panels, strict=True):
        for kind, shade in SHADES.items():
            was, now = (np.array(runs.loc[name, f"projections_{kind}"]) for name in (base, arm))
            edges, per_unit = np.linspace(-1, 1, len(now) + 1), len(now) / 2
            axis.stairs(per_unit * now, edges, fill=True, alpha=0.45, color=shade)
            axis.stairs(per_unit * was, edges, color=plots.colour(base), linestyle="--")
        overlaps = " → ".join(f"{overlap[name]:.3f}" for name in (base, arm))
        axis.set_title(f"{arm}: {overlaps}", fontsize="medium")
    for axis in axes[-1]:
        axis.set_xlabel("cosine similarity")
    for axis in axes[:, 0]:
        axis.set_ylabel("density")
    marks: list[Artist] = [
        plt.Rectangle((0, 0), 1, 1, color=shade, alpha=0.45) for shade in SHADES.values()
    ]
    marks.append(plt.Line2D([], [], color="0.3", linestyle="--", linewidth=1.2))
    names = ["pairs of one label", "pairs of two", "dashed: the loss it is compared with"]
    figure.legend(marks, names, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title)
    return figure


def negatives_of_anchors(
    data: Dataset, anchors: Sequence[int], rows: Mapping[str, Sequence[Sequence[int]]]
) -> Figure:
    """Anchors, each with rows of its negatives, all indices into `data`; a red frame marks a
    negative of the anchor's class.

    anchors: [A]; rows: for each row's name the indices [A][n].
    """
    named = [
        (anchor, name, chosen[at])
        for at, anchor in enumerate(anchors)
        for name, chosen in rows.items()
    ]
    wide = len(named[0][2])
    figure, axes = plt.subplots(
        len(named), wide + 1, figsize=(wide + 1.8, 1.05 * len(named)), squeeze=False
    )
    for number, (line, (anchor, name, chosen)) in enumerate(zip(axes, named, strict=True)):
        first = number % len(rows) == 0
        for column, (axis, index) in enumerate(zip(line, (anchor, *chosen), strict=True)):
            axis.set(xticks=[], yticks=[])
            for spine in axis.spines.values():
                false = column and data.labels[index] == data.labels[anchor]
                spine.set(visible=True, color=RED if false else "white", linewidth=4)
            if column or first:
                axis.imshow(data.images[index].permute(1, 2, 0))
            else:
                axis.patch.set_visible(False)
        line[0].set_ylabel(
            f"{data.classes[data.labels[anchor]]}:\n{name}" if first else name,
            rotation=0,
            ha="right",
            va="center",
        )
    return figure


def molecules_and_scores(part: Graphs, scores: Tensor, count: int = 6) -> Figure:
    """The first `count` graphs of a batch, nodes coloured by their kind, and beside them the scores
    [nodes, graphs] of these nodes and graphs, a node's own graph framed.
    """
    figure = plt.figure(figsize=(11.5, 3.9))
    grid = figure.add_gridspec(2, count // 2 + 1, width_ratios=[1] * (count // 2) + [2.2])
    for at in range(count):
        axis = figure.add_subplot(grid[at // (count // 2), at % (count // 2)])
        molecule(axis, part.subset(torch.tensor([at], device=part.labels.device)))
        axis.set_title(f"graph {at}", fontsize="medium")
    axis = figure.add_subplot(grid[:, -1])
    shown = scores[part.batch < count][:, :count].cpu()
    limit = float(shown.abs().max())
    look: dict[str, Any] = dict(cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    picture = axis.imshow(shown, interpolation="nearest", **look)
    figure.colorbar(picture, ax=axis, label="score $T$")
    start = 0
    for at, size in enumerate(torch.bincount(part.batch)[:count].tolist()):
        frame: dict[str, Any] = dict(fill=False, linewidth=2, edgecolor="black", clip_on=False)
        axis.add_patch(plt.Rectangle((at - 0.5, start - 0.5), 1, size, **frame))
        start += size
    axis.set(xlabel="graph", ylabel="node", title="Framed: a node's own graph")
    axis.grid(visible=False)
    return figure


def molecule(axis: Axes, graph: Graphs) -> None:
    """A single graph, its nodes placed by multidimensional scaling of the lengths of paths, and
    coloured by their kind.
    """
    nodes = len(graph.x)
    path = torch.full((nodes, nodes), 99.0).fill_diagonal_(0)
    path[graph.edges[0].cpu(), graph.edges[1].cpu()] = 1
    for via in range(nodes):
        path = torch.minimum(path, path[:, via, None] + path[via])
    centre = torch.eye(nodes) - 1 / nodes
    size, axes = torch.linalg.eigh(-centre @ path.square() @ centre)
    place = (axes * size.clamp_min(0).sqrt())[:, -2:]
    for a, b in graph.edges.T.tolist():
        axis.plot(*place[[a, b]].T, color=plots.QUIET, linewidth=1.2, zorder=1)
    colours = [f"C{kind}" for kind in graph.x.argmax(1).tolist()]
    x, y = place.T
    axis.scatter(x, y, s=70, c=colours, edgecolor="white", zorder=2)
    axis.margins(0.15)
    axis.set_aspect("equal", adjustable="datalim")
    axis.axis("off")
