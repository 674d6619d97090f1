"""A sample of the reference runs, computed again: bit for bit on the machine that they are of,
elsewhere as near as tests/tolerances.csv says.
"""

import random
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from curlnb.companion import reference
from curlnb.data import control_frames
from curlnb.runs import provenance
from curlnb.runs.store import Store

ROTATION = 10  # commits within which the sample reaches every experiment
RECORDS = reference.records("quick")
TOLERANCES = pd.read_csv(Path(__file__).parent.parent / "tolerances.csv").to_dict("records")


def sample(count, commit, seconds=10):
    """Of the `count`-th commit: one run of each experiment whose turn it is, drawn by the commit's
    name; then others while their time fits in `seconds`.
    """
    drawn = random.Random(commit).sample(RECORDS, len(RECORDS))
    firsts = {record["experiment"]: record for record in drawn}
    chosen = [firsts[name] for name in sorted(firsts)[count % ROTATION :: ROTATION]]
    for record in drawn:
        if record not in chosen and sum(r["seconds"] for r in [*chosen, record]) <= seconds:
            chosen.append(record)
    return chosen


def tolerance(record, metric):
    """The first row that fits a metric: it may differ by `absolute` + `relative` x the reference's.
    Infinite for drawings, t-SNE's places and the images shown beside, which a last bit turns over.
    """
    name = f"{record['experiment']}.{metric}"
    found = [row for row in TOLERANCES if fnmatchcase(name, row["metric"])]
    assert found, f"{name} has no tolerance: add a row to tests/tolerances.csv"
    return found[0]


def near(old, now, within):
    a, b = np.asarray(now, float), np.asarray(old, float)
    allowed = within["absolute"] + within["relative"] * abs(b)
    return a.shape == b.shape and bool(np.all(abs(a - b) <= allowed))


@pytest.mark.parametrize(
    ("old", "now", "metric"),
    [(0.4, 0.46, "knn"), ([0.1, 0.2], [0.1], "knn"), (0.5, None, "knn"), (0.01, 0.05, "loss")],
)
def test_a_planted_difference_is_seen(old, now, metric):
    assert not near(old, now, tolerance({"experiment": "images.simclr"}, metric))


def test_the_sample_reaches_every_experiment_within_ten_commits():
    reached = [{r["experiment"] for r in sample(n, str(n), seconds=0)} for n in range(7, 17)]
    assert all(reached)
    assert set().union(*reached) == {record["experiment"] for record in RECORDS}


SAMPLE = sample(
    int(provenance.git("rev-list", "--count", "HEAD") or 0), provenance.git("rev-parse", "HEAD")
)


@pytest.mark.parametrize(
    "record", SAMPLE, ids=[f"{r['experiment']}-{r['identity']}" for r in SAMPLE]
)
def test_a_reference_run_computed_again_agrees(record, tmp_path):
    try:
        new = Store(tmp_path).run(reference.asked_by(record))
    except control_frames.Unavailable as why:  # its notebook is passed over, too
        pytest.skip(str(why))
    for metric, old in record["metrics"].items():
        now = new["metrics"].get(metric)
        if now != old:
            assert record["machine"] != new["machine"], (metric, now, old)
            assert near(old, now, tolerance(record, metric)), (metric, now, old)


def test_every_metric_of_the_reference_has_a_stated_tolerance():
    assert all(tolerance(record, metric) for record in RECORDS for metric in record["metrics"])
