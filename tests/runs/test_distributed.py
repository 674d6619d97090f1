"""Data-parallel training by two gloo processes: the loss and gradients of one process, streams of their own, one checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch
from direct import Noise

from curlnb.experiments.images import simclr
from curlnb.runs import distributed
from curlnb.runs.store import Store

HERE = Path(__file__).parent.parent


def torchrun(count: int, *arguments: object) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), environment.get("PYTHONPATH", "")])
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), HERE / "ranks.py", *arguments]
    return subprocess.run([str(word) for word in line], env=environment, capture_output=True, timeout=900).returncode


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two ranks found: (steps, streams)."""
    out = tmp_path_factory.mktemp("step") / "found"
    assert torchrun(2, "step", out) == 0
    return [torch.load(f"{out}.{rank}") for rank in range(2)]


def test_loss_and_gradients_are_those_of_one_process_on_the_full_batch(two):
    """For every objective, with batch norm over all ranks and split alike: N, floor, weights, labels and drawn negatives too."""
    alone = ranks.steps()
    assert {key.partition(": ")[2] for key in alone} >= {"loss", "clamped", "negatives"}
    floored = [value for key, value in alone.items() if key.startswith("on the floor") and key.endswith("clamped")]
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


SETTINGS = {"dataset": Noise(), "batch": 16, "epochs": 3, "size": 16, "objective": "hard", "tau_plus": 0.1, "beta": 1.0}


def test_a_run_stopped_on_two_ranks_resumes_on_two_bit_for_bit(tmp_path):
    folders = {name: Store(tmp_path / name).folder(simclr, SETTINGS | {"bn_groups": None}, 3) for name in ("whole", "cut")}
    assert torchrun(2, "run", tmp_path / "whole", 0) == 0
    assert torchrun(2, "stop", tmp_path / "cut", 0) != 0
    assert (folders["cut"] / "checkpoint.safetensors").exists()
    assert torchrun(2, "run", tmp_path / "cut", 0) == 0
    whole, cut = (json.loads((folder / "run.json").read_text()) for folder in folders.values())
    assert cut["metrics"] == whole["metrics"]
    assert whole["machine"]["ranks"] == 2
    assert not (folders["cut"] / "checkpoint.safetensors").exists()
    assert torchrun(2, "run", tmp_path / "cut", 0) == 0, "a finished run leaves the other ranks waiting"


def test_a_run_stopped_on_two_ranks_goes_on_in_one_process(tmp_path, monkeypatch):
    assert torchrun(2, "stop", tmp_path / "cut", 2) != 0
    parameters, finished = SETTINGS | {"bn_groups": 2}, []
    for name in ("cut", "fresh"):
        finished.append(Store(tmp_path / name).begin(simclr, parameters, 3).load_checkpoint())
    cut = Store(tmp_path / "cut").run(simclr, parameters, 3)
    fresh = Store(tmp_path / "fresh").run(simclr, parameters, 3)
    assert finished[0][1]["step"] + 2 * finished[0][1]["epoch"] == 3
    assert finished[1] is None
    assert cut["metrics"].keys() == fresh["metrics"].keys()
    assert cut["metrics"]["loss"] != fresh["metrics"]["loss"], "it began again"


def test_parameters_of_the_run_command_are_what_they_say():
    from curlnb.__main__ import _value

    typed = {"False": False, "true": True, "None": None, "510": 510, "1e-3": 1e-3, "resnet18": "resnet18"}
    assert {text: _value(text) for text in typed} == typed


def test_what_cannot_be_shared_is_named(monkeypatch):
    monkeypatch.setattr(distributed, "ranks", lambda: 3)
    with pytest.raises(ValueError, match="a batch of 8 cannot be shared by 3 processes alike"):
        distributed.share(torch.arange(8))
    with pytest.raises(ValueError, match="bn_groups is 2: 3 processes need a multiple of 3, or None"):
        distributed.groups_here(2)
