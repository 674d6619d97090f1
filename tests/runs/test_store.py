"""The store's promises: computed once, written whole, found again, and the same after a crash."""

import contextlib
import functools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from formulas import generator, refused
from safetensors import safe_open

from curlnb.companion import notebook
from curlnb.experiments.graphs import infograph
from curlnb.runs import environment, files
from curlnb.runs.devices import numerics, other_numerics
from curlnb.runs.executors import Job, SweepError, local_processes, work
from curlnb.runs.experiment import StoreError, experiment
from curlnb.runs.files import write_atomically
from curlnb.runs.store import Store, default_store, read_reference
from curlnb.runs.sweep import sweep

HERE = Path(__file__).parent.parent


def test_a_run_is_computed_once_and_found_again(tmp_path):
    """Points may carry their own seeds, and have names."""
    where, store = str(tmp_path / "count"), Store(tmp_path / "runs")
    grid = [{"where": where}, {"where": where, "pause": 0.1, "seeds": [4]}]
    for _ in range(2):
        table = sweep(toy.counted, grid, seeds=3, store=store, workers=0)
    assert list(table["twice"]) == [0, 2, 4, 8]
    assert Path(where).read_text().split() == ["0", "1", "2", "4"]
    arms = sweep(toy.counted, dict(zip("ab", grid, strict=True)), seeds=3, store=store)
    assert list(arms.pop("arm")) == ["a", "a", "a", "b"]
    assert arms.equals(table)


@experiment
def told_at_the_start(run, *, seed):
    return {
        "first": float(torch.rand(())),
        "initial": torch.initial_seed(),
        "threads": torch.get_num_threads(),
    }


def test_a_run_begins_with_its_seed_and_its_threads_whatever_came_before(tmp_path, monkeypatch):
    """The store's code counts in no key, and this much of it decides numbers: it may not change
    unnoticed.
    """
    monkeypatch.setenv("CURLNB_THREADS", "2")
    before = torch.get_num_threads()
    for seed in (0, 5):
        torch.manual_seed(99)
        first = float(torch.rand((), generator=generator(seed)))
        assert Store(tmp_path).run(told_at_the_start.asked({}, seed))["metrics"] == {
            "first": first,
            "initial": seed,
            "threads": 2,
        }
    assert torch.get_num_threads() == before


def test_an_unknown_parameter_is_named(tmp_path):
    with refused(r"no parameter 'widht'; it has .*width", StoreError):
        sweep(toy.regression, [{"widht": 3}], store=Store(tmp_path))


def test_a_default_given_or_left_out_is_the_same_run():
    assert toy.regression.asked({}, 0).identity == toy.regression.asked({"width": 16}, 0).identity
    assert toy.regression.asked({}, 0).identity != toy.regression.asked({"width": 8}, 0).identity
    assert toy.regression.asked({}, 0).identity != toy.regression.asked({}, 1).identity


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")

    def half(p):
        p.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its metrics and its weight."""
    store = Store(tmp_path_factory.mktemp("whole"))
    metrics = store.run(toy.regression.asked({}, 3))["metrics"]
    return metrics, store.arrays(toy.regression.asked({}, 3))["weight"]


@pytest.mark.parametrize("stop_after", [1, 8, 13])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, whole, stop_after):
    """Stopped at any step, in mid-epoch or between epochs; noise, dropout, batch norm, Adam and the
    log all go on.
    """
    store = Store(tmp_path)
    toy.interrupt(store, toy.regression, {}, 3, after=stop_after)
    torch.manual_seed(99)  # whatever happened in between
    assert store.run(toy.regression.asked({}, 3))["metrics"] == whole[0]
    assert torch.equal(store.arrays(toy.regression.asked({}, 3))["weight"], whole[1])


def test_killed_twenty_times_the_table_is_that_of_an_uninterrupted_sweep(tmp_path):
    """kill -9 of the whole process group at random moments of its work: nothing lost, nothing
    twice, no half-written file.
    """

    line = [sys.executable, str(HERE / "forks.py"), "-m", "killed_sweep"]
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    own = {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "CURLNB_LOG": os.devnull,
    }  # no bar among the numbers it prints
    told = {"env": {**os.environ, **own}, "text": True}
    forker = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **told)

    def start(store, workers, pause=0.03):
        forker.stdin.write(f"{tmp_path / store} {tmp_path / store}.json {workers} {pause}\n")
        forker.stdin.flush()
        return int(forker.stdout.readline())

    def ended():
        return int(forker.stdout.readline())

    def at_work(since):
        return any(
            path.stat().st_mtime > since
            for path in (tmp_path / "cut").rglob("*")
            if path.suffix in (".safetensors", ".json")
        )

    start("whole", 0, pause=0.0)
    assert ended() == 0
    chance, killed = random.Random(0), 0
    for attempt in range(20):
        began = time.time()
        process = start("cut", workers=2 * (attempt % 10 == 9))
        with contextlib.suppress(FileNotFoundError):  # a file replaced while it is looked at
            while not at_work(began):
                time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.2))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        killed += ended() == -signal.SIGKILL
        for path in (tmp_path / "cut").rglob("[!.]*.json"):
            json.loads(path.read_text())
    assert killed >= 18, "the sweep was over too soon for the test to mean much"
    start("cut", 2)
    assert ended() == 0
    forker.stdin.close()
    forker.wait()
    assert json.loads((tmp_path / "cut.json").read_text()) == json.loads(
        (tmp_path / "whole.json").read_text()
    )
    unfinished = [
        path for path in (tmp_path / "cut").glob("*/*") if not (path / "run.json").exists()
    ]
    assert unfinished == []


def test_two_processes_that_want_one_run_train_it_once(tmp_path):
    store, full = Store(tmp_path / "runs"), {"where": str(tmp_path / "count"), "pause": 1.0}
    job = Job(toy.counted, full, 5, store)
    pool = local_processes(2)
    futures = [pool.submit(work, job.sent(), True, True) for _ in range(2)]
    assert [each.result()["metrics"] for each in futures] == [{"twice": 10}] * 2
    assert (tmp_path / "count").read_text() == "5\n"


def test_experiments_of_one_training_train_it_once_and_measure_what_each_alone_would(tmp_path):
    where, alone = tmp_path / "steps", tmp_path / "alone"
    shared = Store(tmp_path / "shared")
    for function, parameters in (
        (toy.weights_of, {"times": 2.0}),
        (toy.loss_of, {}),
        (toy.weights_of, {}),
    ):
        steps = {"where": str(where), **parameters}
        record = shared.run(function.asked(steps, 3))
        assert (
            record["metrics"]
            == Store(alone / function.name / str(parameters)).run(function.asked(steps, 3))[
                "metrics"
            ]
        )
    assert (
        where.read_text().split() == ["3"] * 8 * 4
    )  # once in the shared store, and thrice each alone
    (kept,) = (shared.root / "trained").glob("*.safetensors")
    with safe_open(kept, framework="pt") as file:
        names = file.keys()
        assert not [name for name in names if name.startswith("optimizer/")]


def test_another_training_is_not_shared(tmp_path, monkeypatch):
    where, store = tmp_path / "steps", Store(tmp_path / "runs")
    for seed, parameters in ((0, {}), (1, {}), (0, {"width": 5}), (0, {"epochs": 3})):
        store.run(toy.loss_of.asked({"where": str(where), **parameters}, seed))
    assert len(where.read_text().split()) == 8 + 8 + 8 + 12
    assert len(list((store.root / "trained").glob("*.safetensors"))) == 4
    assert toy.regression.asked({}, 0).training_key == ""  # keeps none
    monkeypatch.setenv("CURLNB_THREADS", "2")  # other numerics
    assert not store.begin(toy.loss_of.asked({"where": str(where)}, 0)).trained.exists()


def test_a_kept_trainings_seconds_count_in_every_run_that_looks_at_it(tmp_path):
    store, parameters = Store(tmp_path), {"where": str(tmp_path / "steps")}
    store.run(toy.loss_of.asked(parameters, 0))
    (kept,) = (tmp_path / "trained").glob("*.safetensors")
    tensors, state = files.load_tensors(kept)
    files.save_tensors(kept, tensors, state | {"seconds": 1000.0})
    assert store.run(toy.weights_of.asked(parameters, 0))["seconds"] >= 1000


def test_curves_arrays_and_trained_networks_of_a_finished_run_are_had_by_name(tmp_path):
    where, store = tmp_path / "steps", Store(tmp_path / "runs")
    record = store.run(toy.loss_of.asked({"where": str(where)}, 3))
    assert store.curve(toy.loss_of, {"where": str(where)}, 3)["loss"] == record["metrics"]["loss"]
    assert store.arrays(toy.regression.asked({"epochs": 1}, 0))["weight"].shape == (
        16,
        8,
    )  # computed where it is not there
    before = len(where.read_text().split())
    model, _, log = store.trained(toy.loss_of, {"where": str(where)}, 3)
    assert len(where.read_text().split()) == before, (
        "the network is there: nothing is trained again"
    )
    assert log["loss"] == record["metrics"]["loss"]
    assert (
        model.weight.flatten().tolist()
        == store.run(toy.weights_of.asked({"where": str(where)}, 3))["metrics"]["weights"]
    )
    with refused(r"toy.regression keeps no trained network", StoreError):
        store.trained(toy.regression, {}, 0)


def test_a_notebook_run_by_hand_adopts_reference_runs_and_computes_what_is_new_alone(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    record = min(
        read_reference(
            environment.home() / "results/reference/quick/runs/graphs.infograph.jsonl"
        ).values(),
        key=lambda r: r["seconds"],
    )
    grid = [
        record["parameters"] | {"seeds": [record["seed"]]},
        record["parameters"] | {"epochs": 1, "seeds": [99]},
    ]
    table = sweep(infograph, grid, workers=0)
    assert list(table["origin"]) == ["reference", "computed"]
    assert table["svm"][0] == record["metrics"]["svm"]
    monkeypatch.setenv("CURLNB_THREADS", "3")
    other = sweep(infograph, grid[:1], workers=0)
    assert list(other["origin"]) == ["reference, threads 1"], (
        "its numerics are said where they are not those of here"
    )
    capsys.readouterr()
    assert list(notebook.compute(other).index) == [
        ("graphs.infograph", "cpu", "reference, threads 1")
    ]
    assert not capsys.readouterr().out
    notebook.compute(table)
    assert "curlnb why" in capsys.readouterr().out
    monkeypatch.setenv("CURLNB_ADOPT", "0")
    assert default_store().find(infograph, record["parameters"], record["seed"]) is None


def test_the_precision_in_force_is_part_of_the_key(monkeypatch):
    from curlnb.experiments.images import simclr
    from curlnb.runs import devices

    keys = set()
    for fast in (True, False):
        monkeypatch.setattr(devices, "fast_bf16", lambda _, fast=fast: fast)
        keys.add(simclr.asked({"precision": "bf16"}, 0).key)
    assert len(keys) == 2


def test_a_record_from_before_numerics_were_kept_says_nothing_of_them():
    assert other_numerics({}, numerics({})) == []


def test_dry_runs_never_lie_among_results(monkeypatch, tmp_path):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    monkeypatch.setenv("CURLNB_DRY", "1")
    assert default_store().root == tmp_path / "dry" / "quick" / "runs"


def test_a_reference_store_computes_nothing(tmp_path):
    store = Store(tmp_path / "runs", reference=tmp_path / "reference", reference_only=True)
    with refused(r"no reference run of toy.counted", StoreError):
        sweep(toy.counted, [{"where": str(tmp_path / "count")}], seeds=1, store=store)
    assert not (tmp_path / "count").exists()


def test_values_that_a_table_could_not_tell_apart_are_refused(tmp_path):
    store, alike = Store(tmp_path / "runs"), [functools.partial(pow, n) for n in (2, 3)]
    with refused(r"two different runs are both toy.given\(own='partial', seed=0\): give each"):
        sweep(toy.given, {"own": alike}, seeds=1, store=store, workers=0)
    table = sweep(toy.given, {"own": [toy.double, toy.half]}, seeds=1, store=store, workers=0)
    assert list(table["own"]) == ["double", "half"]


def test_numbers_of_numpy_are_numbers(tmp_path):
    store = Store(tmp_path / "runs")
    table = sweep(toy.given, {"own": np.arange(1, 3)}, seeds=1, store=store, workers=0)
    assert list(table["own"]) == [1, 2]
    assert toy.given.asked({"own": np.int64(2)}, 0).key == toy.given.asked({"own": 2}, 0).key


@experiment
def measured(run, *, seed, metrics=None):
    return metrics


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"seconds": 1.0}, "returned a metric 'seconds', which a table has a column of"),
        ({"loss": [1.0, math.nan]}, "returned NaN, infinity, or what is no number or text"),
    ],
)
def test_metrics_that_hide_a_column_or_are_no_numbers_are_refused(tmp_path, metrics, message):
    with refused(message, SweepError):
        sweep(measured, seeds=1, store=Store(tmp_path), workers=0, metrics=metrics)
    assert not [*tmp_path.rglob("run.json")]


@pytest.mark.parametrize("value", ["hard", 62])
def test_a_grid_of_single_values_says_what_to_write(value, tmp_path):
    with refused(
        rf"own is {value!r}: a grid takes a list of values; what all runs have in common is "
        rf"own={value!r}"
    ):
        sweep(toy.given, {"own": value}, seeds=1, store=Store(tmp_path / "runs"))
