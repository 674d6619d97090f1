"""The committed runs are found: parameters, defaults and data give each record's identity."""

import json

import pytest

from curlnb.companion.reference import experiment_named
from curlnb.runs import environment
from curlnb.runs.experiment import Experiment

FILES = sorted((environment.home() / "results" / "reference" / "quick" / "runs").glob("*.jsonl"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_reference_run_has_the_identity_it_was_recorded_with(file):
    for line in file.read_text().splitlines():
        record = json.loads(line)
        found: Experiment = experiment_named(record["experiment"])
        assert found.identity(record["parameters"], record["seed"]) == record["identity"]
