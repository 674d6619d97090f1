"""Data-parallel training by two gloo processes: the loss and gradients of one process, streams of
their own, one checkpoint.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch
from direct import Noise

from curlnb.__main__ import main
from curlnb.experiments.images import simclr
from curlnb.experiments.moco import moco_v2
from curlnb.runs import distributed
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep

HERE = Path(__file__).parent.parent


def torchrun(count: int, *arguments: object) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), str(HERE.parent), environment.get("PYTHONPATH", "")]
    )
    forks = [sys.executable, HERE / "forks.py", "-m"]
    line = [
        *forks,
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        count,
        "--no-python",
        *forks,
        "ranks",
        *arguments,
    ]
    return subprocess.run(
        [str(word) for word in line], env=environment, capture_output=True, timeout=900
    ).returncode


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two ranks found: (steps, streams)."""
    out = tmp_path_factory.mktemp("step") / "found"
    assert torchrun(2, "step", out) == 0
    return [torch.load(f"{out}.{rank}") for rank in range(2)]


def test_loss_and_gradients_are_those_of_one_process_on_the_full_batch(two):
    """For every objective, with batch norm over all ranks and split alike: N, floor, weights,
    labels and drawn negatives too.
    """
    alone = ranks.steps()
    assert {key.partition(": ")[2] for key in alone} >= {"loss", "clamped", "negatives"}
    floored = [
        value
        for key, value in alone.items()
        if key.startswith("on the floor") and key.endswith("clamped")
    ]
    assert all(0 < share < 1 for share in floored), "the floor should hold some anchors and not all"
    for found, _ in two:
        assert found.keys() == alone.keys()
        for key, value in alone.items():
            scale = value.abs().max().clamp_min(1e-6)
            assert (found[key] - value).abs().max() <= 1e-5 * scale, key


def test_both_ranks_hold_the_same_parameters_after_the_step(two):
    (first, _), (second, _) = two
    assert all(torch.equal(first[key], second[key]) for key in first if "after" in key)


def test_each_rank_draws_from_a_stream_of_its_own(two):
    _, drawn = two[0]
    flat = drawn.flatten(0, 1)
    assert len(torch.unique(flat[:, 0])) == 4, "ranks or steps share a stream"


SETTINGS = {
    "dataset": Noise(),
    "batch": 16,
    "epochs": 3,
    "size": 16,
    "objective": "hard",
    "tau_plus": 0.1,
    "beta": 1.0,
}


def test_a_run_stopped_on_two_ranks_resumes_on_two_bit_for_bit_and_is_another_run_in_one_process(
    tmp_path, monkeypatch
):
    def folder(name: str) -> Path:
        (found,) = (tmp_path / name / "images.simclr").iterdir()
        return found

    assert torchrun(2, "run", tmp_path / "whole", 0) == 0
    assert torchrun(2, "stop", tmp_path / "cut", 0) != 0
    assert (folder("cut") / "checkpoint.safetensors").exists()
    cut, parameters = Store(tmp_path / "cut"), SETTINGS | {"bn_groups": None}
    assert cut.begin(simclr, parameters, 3).load_checkpoint() is None, (
        "ranks are numerics: one process does not go on from two"
    )
    assert torchrun(2, "run", tmp_path / "cut", 0) == 0
    whole, again = (
        json.loads((folder(name) / "run.json").read_text()) for name in ("whole", "cut")
    )
    assert again["metrics"] == whole["metrics"]
    assert whole["machine"]["ranks"] == whole["numerics"]["ranks"] == 2
    assert not (folder("cut") / "checkpoint.safetensors").exists()
    assert torchrun(2, "run", tmp_path / "cut", 0) == 0, (
        "a finished run leaves the other ranks waiting"
    )
    found = Store(tmp_path / "cut", reference=tmp_path / "none")
    assert found.find(simclr, parameters, 3) is None
    monkeypatch.setenv("CURLNB_ADOPT", "any")
    assert found.find(simclr, parameters, 3)["metrics"] == whole["metrics"]


def test_parameters_of_the_run_command_are_what_they_say():
    from curlnb.__main__ import _value

    typed = {
        "False": False,
        "true": True,
        "None": None,
        "510": 510,
        "1e-3": 1e-3,
        "resnet18": "resnet18",
    }
    assert {text: _value(text) for text in typed} == typed


def test_what_cannot_be_shared_is_named(monkeypatch):
    monkeypatch.setattr(distributed, "ranks", lambda: 3)
    with pytest.raises(ValueError, match="a batch of 8 cannot be shared by 3 processes alike"):
        distributed.share(torch.arange(8))
    with pytest.raises(
        ValueError, match="bn_groups is 2: 3 processes need a multiple of 3, or None"
    ):
        distributed.groups_here(2)


def test_an_experiment_that_cannot_share_a_batch_is_refused_before_any_work(
    monkeypatch, capsys, tmp_path
):
    """Two ranks would each train the whole batch, and call it one run."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["run", "moco.moco_v2"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "curlnb run: moco.moco_v2 cannot be shared by 2 processes, which would compute it 2 times: use one; "
        "images.simclr, images.surrogate, representations.look can\n"
    )
    distributed.refuse(simclr)
    with pytest.raises(
        ValueError, match="each of torchrun's 2 processes would compute the whole sweep"
    ):
        sweep(moco_v2, seeds=1, store=Store(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "1")
    distributed.refuse(moco_v2)
