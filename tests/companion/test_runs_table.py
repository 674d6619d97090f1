"""The table of all committed runs has them all, and loses and invents no number."""

import json
import re
import runpy
import sys

import numpy as np
import pandas as pd
import pytest
from formulas import refused

from curlnb.companion.runs_table import ABOUT, runs_table
from curlnb.runs import environment

TABLE = runs_table()


def test_every_committed_run_is_a_row_once():
    lines = [
        (path.parent.parent.name, json.loads(line)["identity"])
        for path in environment.reference_folder().glob("*/runs/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(lines) > 1000
    rows = list(zip(TABLE["profile"], TABLE["identity"], strict=True))
    assert sorted(lines) == sorted(rows)
    assert len(set(rows)) == len(rows)


def test_it_gives_the_means_of_the_papers_comparison():
    """As the committed table of 2_dcl/5.1 has them."""
    arms = TABLE.query(
        "profile == 'night' and experiment == 'images.simclr' and dataset == 'cifar10' and "
        "encoder == 'cnn' and epochs == 20 and views == 2 and positives == 'augmented' and "
        "negatives.isna() and temperature == 0.5 and objective in ('biased', 'unbiased')"
    )
    by_seed = arms.pivot(index="seed", columns="objective", values="metric_linear")
    gain = 100 * (by_seed["unbiased"] - by_seed["biased"]).loc[:7]  # others are of another page
    assert list(gain.index) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert gain.mean() == pytest.approx(1.54, abs=0.005)


def test_columns_are_told_apart_and_described():
    assert list(TABLE.columns[: len(ABOUT)]) == list(ABOUT)
    assert TABLE.columns.is_unique
    assert {"loss", "metric_loss"} <= set(TABLE)  # one name, two meanings
    page = (environment.home() / "docs" / "runs_table.md").read_text()
    rows = re.findall(r"^\| (`.*`) \|", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [*ABOUT]
    with refused(r"no committed runs of 'nigth': one of night, quick"):
        runs_table("nigth")


def test_a_file_for_other_languages(tmp_path, monkeypatch):
    file = tmp_path / "runs.csv"
    monkeypatch.setattr(sys, "argv", ["runs_table", str(file)])
    runpy.run_path(runs_table.__code__.co_filename, run_name="__main__")
    read = pd.read_csv(file, low_memory=False)
    assert read.shape == TABLE.shape
    np.testing.assert_allclose(read["metric_linear"], TABLE["metric_linear"].astype(float))
