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
        now, within = new["metrics"].get(metric), tolerance(record, metric)
        if now == old:
            continue
        assert record["machine"] != new["machine"], (metric, now, old)
        a, b = np.asarray(now, float), np.asarray(old, float)
        assert a.shape == b.shape, (metric, now, old)
        near = abs(a - b) <= within["absolute"] + within["relative"] * abs(b)
        assert np.all(near), (metric, now, old)


def test_every_metric_of_the_reference_has_a_stated_tolerance():
    assert all(tolerance(record, metric) for record in RECORDS for metric in record["metrics"])
