"""A figure's means and intervals are those that the verdicts rest on."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from curlnb.companion import figures
from curlnb.companion.statistics import t_interval


def test_the_bars_are_the_t_intervals_and_the_arms_stand_side_by_side():
    rows = pd.DataFrame({"k": [1, 1, 1, 4, 4, 4] * 2, "arm": ["a"] * 6 + ["b"] * 6, "accuracy": [1.0, 2, 4, 3, 5, 6, 2, 3, 5, 9, 9.5, 11]})
    figure, axis = plt.subplots()
    places = figures.means_with_intervals(axis, rows, "k", "accuracy", "arm", width=0.4)
    assert places == {"a": pytest.approx(-0.2), "b": pytest.approx(0.2)}
    (_, _, (bars,)) = axis.containers[1]  # of arm b
    for segment, values, at in zip(bars.get_segments(), ([2, 3, 5], [9, 9.5, 11]), (0.2, 1.2), strict=True):
        _, low, high = t_interval(values)
        assert segment.tolist() == [pytest.approx([at, low]), pytest.approx([at, high])]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "4"]
    plt.close(figure)


def test_a_single_run_has_no_interval():
    rows = pd.DataFrame({"k": ["x"], "arm": ["a"], "accuracy": [3.0]})
    figure, axis = plt.subplots()
    assert figures.means_with_intervals(axis, rows, "k", "accuracy", "arm") == {"a": 0.0}
    (_, _, (bars,)) = axis.containers[0]
    assert bars.get_segments()[0].tolist() == [[0.0, 3.0], [0.0, 3.0]]
    plt.close(figure)


def test_gains_are_paired_by_seed_and_by_the_number_of_negatives():
    """Seeds that differ by ten points, in another order in each arm: a gain of means over unlike seeds would not be exact."""
    rows = [("untrained", 0, 0, 30.0)]
    for n, gain in ((510, 1.0), (62, 2.0)):
        rows += [("SimCLR", n, seed, 40.0 + 10 * seed) for seed in (0, 1, 2)]
        rows += [("hard", n, seed, 40.0 + 10 * seed + gain) for seed in (1, 0)]  # the third seed is not there yet
    table = pd.DataFrame(rows, columns=["arm", "N", "seed", "accuracy"])
    figure = figures.accuracies_and_gains({"made up": table}, {"STL-10": 7.3})
    left, right = figure.axes
    assert right.containers[0].lines[0].get_ydata().tolist() == [2.0, 1.0]
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["62", "510"]
    by_name = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    assert set(by_name) == {"untrained encoder", "SimCLR", "hard"}
    assert set(by_name["untrained encoder"].get_ydata()) == {30.0}
    plt.close(figure)
