"""The table of docs/benchmarks.md is that of the committed results, seed by seed."""

import re

import pandas as pd
import pytest

from curlnb.companion.statistics import t_interval
from curlnb.runs import environment

TABLES = environment.reference_folder() / "night" / "tables"
ARMS = {
    "SimCLR": "SimCLR",
    "debiased": "debiased, τ⁺ 0.1",
    "hard": "hard, β 1",
    "unbiased": "labelled negatives",
}


def rows(network, epochs):
    """The cells of some rows behind the loss's name, without comments."""
    text = (environment.home() / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    lines = re.sub("<!--.*?-->", "", text).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    return {c[2]: c[3:] for c in cells if network in c[0] and c[1] == epochs}


@pytest.mark.parametrize(
    ("network", "epochs", "table"),
    [("small", "60", "long"), ("resnet9", "20", "larger"), ("ResNet-18", "20", "resnet18")],
)
def test_means_and_paired_intervals_are_those_of_the_seeds(network, epochs, table):
    found = rows(network, epochs)
    results = pd.read_csv(TABLES / f"5_across_papers-{table}.csv").pivot(
        index="seed", columns="arm", values=["linear", "kNN"]
    )
    assert set(found) == set(ARMS)
    for loss, (seeds, *said) in found.items():
        assert int(seeds) == len(results)
        for measure, mean, gain in zip(("linear", "kNN"), said[::2], said[1::2], strict=False):
            own, simclr = results[measure, ARMS[loss]], results[measure, "SimCLR"]
            assert mean == f"{own.mean():.1f}"
            expected = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*t_interval(own - simclr))
            assert gain == ("" if loss == "SimCLR" else expected)
