"""A figure's means and intervals are those that the verdicts rest on."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.colors import to_rgba

from curlnb.companion import figures, figures_hcl
from curlnb.companion.statistics import slope_per_doubling


def test_a_red_frame_is_where_it_is_asked_for():
    rows = {"anchor": torch.zeros(3, 3, 2, 2), "negative": torch.ones(3, 1, 2, 2)}
    figure = figures.image_rows(rows, {"negative": torch.tensor([False, True, False])})
    plt.close(figure)
    red = to_rgba(figures.RED)
    found = [axis.spines["left"].get_edgecolor() == red for axis in figure.axes]
    assert found == [False] * 4 + [True, False], "row by row"
    assert [axis.get_ylabel() for axis in figure.axes[::3]] == list(rows)


def test_histograms_are_drawn_as_densities_with_the_base_as_an_outline():
    same = {"a": [0.0, 0.25, 0.75, 0.0], "b": [0.5, 0.5, 0.0, 0.0]}
    runs = pd.DataFrame({"projections_same": same, "projections_overlap": dict(a=0.5, b=0.5)})
    runs["projections_different"] = runs["projections_same"].map(lambda x: x[::-1])
    figure = figures_hcl.similarities_over(runs, [("a", "b")], 1, "made")
    patches = figure.axes[0].patches
    drawn = [(patch.get_fill(), patch.get_data().values.tolist()) for patch in patches]
    for fill, arm in ((True, "a"), (False, "b")):
        for shares in (same[arm], same[arm][::-1]):
            assert (fill, [2 * x for x in shares]) in drawn
    assert len(drawn) == 4
    plt.close(figure)


def test_changes_over_n_are_those_of_seeds_that_have_what_they_compare():
    no = np.nan
    by_n = pd.DataFrame(
        {62: [1.0, 2.0, 9.0], 126: [2.0, 3.0, no], 254: [3.0, 4.0, 9.0], 510: [4.0, 5.0, no]}
    )
    doublings = np.log2(510 / 62)  # almost three
    told = figures.changes_over_n(by_n)
    assert told["from 62 to 510"] == "+3.00 [+3.00, +3.00]"
    assert told["from 126 to 254"] == "+1.00 [+1.00, +1.00]"
    assert abs(float(told["slope, a doubling"].split()[0]) - 3 / doublings) < 0.01
    at = np.array([30, 62, 510])
    slopes = slope_per_doubling(at, np.stack([7 - 0.5 * np.log2(at), 1 + 2 * np.log2(at)]))
    np.testing.assert_allclose(slopes, [-0.5, 2.0], rtol=1e-12)
    assert list(figures.changes_over_n(by_n[[62, 510]])) == ["from 62 to 510"]
    by_n.loc[2, 510] = 15.0  # this seed has both ends, and not all four
    more = figures.changes_over_n(by_n)
    assert more["from 62 to 510"].startswith("+4.00")
    assert more["slope, a doubling"] == told["slope, a doubling"]
    assert figures.changes_over_n(by_n[[62]]) == {}
