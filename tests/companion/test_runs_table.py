"""The table of all committed runs has them all, and loses and invents no number."""

import json
import re

import pytest
from formulas import refused

from curlnb.companion.runs_table import runs_table
from curlnb.runs import environment

TABLE = runs_table()


def test_every_committed_run_is_a_row_once():
    files = environment.reference_folder().glob("*/runs/*.jsonl")
    lines = [json.loads(line) for path in files for line in path.open()]
    assert len(lines) > 1000
    assert sorted(TABLE["identity"]) == sorted(line["identity"] for line in lines)
    assert not TABLE.duplicated(["profile", "identity"]).any()


def test_it_gives_the_means_of_the_papers_comparison():
    """As the committed table of 2_dcl/5.1 has them."""
    arms = TABLE.query(
        "profile == 'night' and experiment == 'images.simclr' and dataset == 'cifar10' and "
        "encoder == 'cnn' and epochs == 20 and views == 2 and positives == 'augmented' and "
        "negatives.isna() and temperature == 0.5 and objective in ('biased', 'unbiased')"
    )
    by_seed = arms.pivot(index="seed", columns="objective", values="metrics_linear")
    gain = 100 * (by_seed["unbiased"] - by_seed["biased"]).loc[:7]  # others are of another page
    assert list(gain.index) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert gain.mean() == pytest.approx(1.54, abs=0.005)


def test_columns_are_told_apart_and_described():
    assert TABLE.columns.is_unique
    assert {"loss", "metrics_loss"} <= set(TABLE)  # one name, two meanings
    with refused("nigth"):
        runs_table("nigth")
    page = (environment.home() / "docs" / "runs_table.md").read_text()
    rows = re.findall(r"^\| (`.*`) \|", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+[a-z])`", " ".join(rows))) <= set(TABLE)
