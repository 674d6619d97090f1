"""Drawings of the notebook on chuang2020, Section 5.4: control."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from curlnb.companion.figures import picture


def crops_and_scores(queries: Tensor, keys: Tensor, scores: Tensor) -> Figure:
    """Left, two crops [n, 3, size, size] of each of n observations; right, their scores [n, n] less
    each row's mean, positives framed.
    """
    import seaborn as sns  # two seconds, which few notebooks need

    n = len(scores)
    figure = plt.figure(figsize=(12, 3.5), layout="constrained")
    grid = figure.add_gridspec(2, n + 1, width_ratios=[1] * n + [0.55 * n])
    for row, crops in enumerate((queries, keys)):
        line = [figure.add_subplot(grid[row, column]) for column in range(n)]
        for axis, crop in zip(line, crops, strict=True):
            picture(axis, crop)
        line[0].set_ylabel(("query", "key")[row])
    axis = figure.add_subplot(grid[:, n])
    relative = scores - scores.mean(1, keepdim=True)
    limit = 1.6 * float(relative.abs().max())  # pale colours, on which black numbers can be read
    look = dict(cmap="vlag", vmin=-limit, vmax=limit, cbar=False, square=True, linewidths=2)
    sns.heatmap(relative, ax=axis, annot=True, fmt="z.1f", annot_kws={"color": "black"}, **look)
    for i in range(n):
        axis.add_patch(plt.Rectangle((i, i), 1, 1, fill=False, edgecolor="black", linewidth=2.5))
    names = dict(xlabel="key of observation", ylabel="query of observation")
    axis.set(title="score, less its row's mean", **names)
    return figure
