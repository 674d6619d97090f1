"""Runs without a store, for tests that put something in the place of a part of the package, which
the store refuses; and made-up images.
"""

import json
from dataclasses import dataclass

from toy import stop

from curlnb.data import datasets
from curlnb.runs import training
from curlnb.runs.devices import default_device, in_force
from curlnb.runs.store import Run


def execute(experiment, folder, parameters, seed=0):
    """The metrics as they are stored. The run goes on from a checkpoint in the folder."""
    with in_force(seed, parameters.get("precision", "float32"), default_device()):
        metrics = experiment.call(Run(folder), experiment.parameters(parameters), seed)
    return json.loads(json.dumps(metrics))


def resumes(experiment, folder, parameters, monkeypatch, *, after):
    """Assert that a run stopped after so many checkpoints, one a step, goes on to the metrics of
    the uninterrupted one; these.
    """
    defaults = {**training.train.__kwdefaults__, "checkpoint_seconds": 0.0}
    monkeypatch.setattr(training.train, "__kwdefaults__", defaults)
    whole = execute(experiment, folder / "whole", parameters, 3)
    stop(experiment, folder / "cut", parameters, 3, after=after)
    assert execute(experiment, folder / "cut", parameters, 3) == whole
    return whole


@dataclass(frozen=True)
class Noise:
    """Random images of a known set's shape, as a data set of one's own."""

    count: int = 40
    like: str = "cifar10-mini"

    @property
    def name(self):
        return f"{self.count} of noise like {self.like}"

    @property
    def digest(self):
        return f"{self.like} {self.count}"

    def split(self, split, device):
        return datasets.synthetic(self.like, split, n=self.count)
