"""Where the runs of a sweep are computed: local processes that die, outlive nobody and follow an
edited module; a Dask cluster; any other executor.
"""

import contextlib
import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import toy
from formulas import refused

from curlnb.__main__ import _value
from curlnb.experiments.images import simclr
from curlnb.runs import executors
from curlnb.runs.executors import SweepError, local_processes
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep

HERE = Path(__file__).parent.parent


# --- local processes ------------------------------------------------------------------------------


def test_a_worker_that_dies_is_replaced_and_a_run_that_fails_does_not_stop_the_others(tmp_path):
    store, grid = Store(tmp_path / "runs"), [{"mark": str(tmp_path / "mark")}]
    with refused(r"^RuntimeError: seven will not do \(1 of 4 runs failed.*seed=7", SweepError):
        sweep(toy.fragile, grid, seeds=[0, 1, 7, 2], store=store, workers=2)
    table = sweep(toy.fragile, grid, seeds=[0, 1, 2], store=store, workers=2)
    assert list(table["seed_squared"]) == [0, 1, 4]


def test_workers_that_keep_dying_are_named(tmp_path, monkeypatch):
    with refused(r"was killed, out of memory.*2 of 2 runs failed", SweepError):
        sweep(
            toy.dying,
            [{"signal": "SIGKILL"}],
            seeds=2,
            store=Store(tmp_path / "runs"),
            workers=2,
        )


def test_workers_that_died_between_two_sweeps_are_replaced(tmp_path):
    store, grid = Store(tmp_path / "runs"), [{"where": str(tmp_path / "c")}]
    sweep(toy.counted, grid, seeds=[0, 1], store=store, workers=2)
    (pool,) = executors._POOLS.values()
    for process in list(pool._processes.values()):
        os.kill(process.pid, signal.SIGKILL)
    time.sleep(1)
    assert list(sweep(toy.counted, grid, seeds=[2, 3], store=store, workers=2)["twice"]) == [4, 6]


def test_workers_have_the_environment_of_their_pools_start(monkeypatch):
    """And not that of the process that they are forked from, which is older: what a message says to
    set would not reach them.
    """
    local_processes(1).submit(os.getpid).result()
    monkeypatch.setenv("PLANTED", "here")
    assert local_processes(1, anew=True).submit(os.getenv, "PLANTED").result() == "here"


def test_a_setting_that_was_taken_back_is_taken_back_from_workers_too(monkeypatch, tmp_path):
    store = Store(tmp_path / "runs")
    monkeypatch.setenv("CURLNB_THREADS", "2")
    sweep(toy.given, [{"own": 1}], seeds=1, store=store, workers=1)
    monkeypatch.delenv("CURLNB_THREADS")
    pool = local_processes(1)
    sweep(toy.given, [{"own": 2}], seeds=1, store=store, workers=1)
    assert local_processes(1) is pool  # else the worker refused, and was started anew


ENDLESS = """
import os, sys, toy
from pathlib import Path
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "pid").write_text(str(os.getpid()))
    sweep(toy.traced, seeds=1, where=str(folder / "steps"), epochs=9999, workers=1,
          store=Store(folder / "runs"))
"""


def test_a_worker_ends_soon_after_the_process_that_started_it(tmp_path):
    where = tmp_path / "steps"
    (tmp_path / "endless.py").write_text(ENDLESS)
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "CURLNB_LOG": os.devnull}
    line = [sys.executable, str(HERE / "forks.py"), "-m", "endless", str(tmp_path)]
    parent = subprocess.Popen(line, cwd=tmp_path, env=environment)
    while not where.exists():
        assert parent.poll() is None
        time.sleep(0.05)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    parent.wait()
    time.sleep(1)
    steps = where.read_text()
    time.sleep(0.5)
    assert where.read_text() == steps


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """Writes a module beside a notebook anew, later than its cached bytecode."""
    local_processes(1).submit(os.getpid).result()
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_helper.py"

    def write(value):
        path.write_text(
            "from curlnb.runs.experiment import experiment\n\n"
            f"def value():\n    return {value}\n\n"
            "@experiment\ndef constant(run, *, seed):\n    return {'value': value()}\n"
        )
        os.utime(path, (0, 1e9 + value))
        importlib.invalidate_caches()

    write(1.0)
    yield write
    sys.modules.pop("edited_helper", None)


def test_a_module_that_was_edited_and_reloaded_is_computed_anew_by_workers(helper, tmp_path):
    """Also one that was put beside a notebook after its workers had started."""
    store, found = Store(tmp_path / "runs"), []
    module = importlib.import_module("edited_helper")
    for value in (1.0, 2.0):
        helper(value)
        importlib.reload(module)
        found += [*sweep(module.constant, seeds=1, store=store, workers=1)["value"]]
    assert found == [1.0, 2.0]
    helper(3.0)  # and is not reloaded
    local_processes(1, anew=True)
    with refused(r"has other code.*restart the kernel", SweepError):
        sweep(module.constant, seeds=[1], store=store, workers=1)


# --- other executors ------------------------------------------------------------------------------


def test_threads_compute_what_this_process_computes(tmp_path):
    """One run at a time, since a run sets the seed and the numerics of its process."""
    serial = sweep(toy.regression, seeds=3, store=Store(tmp_path / "serial"), workers=0)
    with ThreadPoolExecutor(3) as threads:
        table = sweep(toy.regression, seeds=3, store=Store(tmp_path / "threads"), executor=threads)
    assert table.drop(columns="seconds").equals(serial.drop(columns="seconds"))


@contextlib.contextmanager
def event_loop():
    """Dask gives the thread of a loop of its own ten seconds to begin, which is not always enough
    where other tests keep the processor.
    """
    loop = pytest.importorskip("tornado.ioloop").IOLoop(make_current=False)
    begun = threading.Event()
    thread = threading.Thread(target=loop.start, daemon=True)
    thread.start()
    loop.add_callback(begun.set)
    begun.wait()
    yield loop
    loop.add_callback(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def cluster():
    """The last test closes it."""
    distributed = pytest.importorskip("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "host": "127.0.0.1"}
    gc.collect()  # a client that found no scheduler waits for ever if it goes while another starts
    with (
        # a worker that is spawned imports for twenty seconds
        pytest.importorskip("dask").config.set(
            {"distributed.worker.multiprocessing-method": "forkserver"}
        ),
        event_loop() as loop,
        distributed.LocalCluster(n_workers=2, silence_logs=50, loop=loop, **options) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with pytest.importorskip("distributed").Client(cluster, set_as_default=False) as client:
        yield client


def test_a_dask_cluster_computes_what_this_process_computes(client, tmp_path, monkeypatch):
    serial, spread = (
        sweep(toy.regression, {"width": [8, 16]}, seeds=2, store=Store(tmp_path / name), **how)
        for name, how in (
            ("serial", {"workers": 0}),
            ("spread", {"executor": client.get_executor()}),
        )
    )
    assert spread.drop(columns="seconds").equals(serial.drop(columns="seconds"))
    monkeypatch.setenv("CURLNB_SCHEDULER", client.scheduler.address)
    named = sweep(toy.regression, {"width": [8, 16]}, seeds=2, store=Store(tmp_path / "named"))
    assert named.drop(columns="seconds").equals(serial.drop(columns="seconds"))


def test_a_run_that_fails_on_a_cluster_does_not_stop_the_others_and_may_be_tried_again(
    client, tmp_path
):
    how = {"store": Store(tmp_path / "runs"), "executor": client.get_executor()}
    for seeds in ([0, 7, 2], [7]):
        with refused(r"seven will not do.*1 of .*seed=7", SweepError):
            sweep(toy.fragile, seeds=seeds, mark=str(tmp_path), **how)
    table = sweep(toy.fragile, seeds=[0, 2], mark=str(tmp_path), store=how["store"], workers=0)
    assert list(table["seed_squared"]) == [0, 4]


def test_a_killed_worker_is_replaced_and_its_run_resumes_from_its_checkpoint(client, tmp_path):
    where, pids = tmp_path / "steps", client.run(os.getpid)

    def kill():
        while not where.exists() or len(where.read_text().splitlines()) < 20:
            time.sleep(0.02)
        os.kill(next(iter(pids.values())), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    how = {"store": Store(tmp_path / "runs"), "executor": client.get_executor()}
    table = sweep(toy.traced, [{"where": str(where)}], seeds=2, **how)
    killer.join()
    assert list(table["weight"]) == [40.0, 40.0]
    times = Counter(where.read_text().splitlines())
    assert set(times) == {f"{seed} {step}" for seed in range(2) for step in range(40)}
    assert sum(times.values()) <= 80 + 1, "more than the step in flight was done again"


def test_the_line_for_slurm_names_a_run_that_there_is():
    text = (HERE.parent / "docs" / "cluster.md").read_text()
    words = re.search(r"curlnb run images.simclr (.+?) --profile gpu", text, re.S)[1]
    given = dict(word.split("=") for word in words.replace("\\\n", " ").split())
    assert given.pop("seed") == "$SLURM_ARRAY_TASK_ID"
    simclr.parameters({name: _value(text) for name, text in given.items()})


def test_a_lost_scheduler_ends_the_sweep_with_one_line_and_finished_runs_are_kept(
    cluster, client, tmp_path
):
    how = {"store": Store(tmp_path / "runs"), "where": str(tmp_path / "steps")}
    points = [{"epochs": 2, "seeds": 2}, {"epochs": 400, "seeds": 2}]

    def close():
        while len(list((tmp_path / "runs").glob("toy.traced/*/run.json"))) < 2:
            time.sleep(0.02)
        time.sleep(0.5)
        cluster.close()

    threading.Thread(target=close).start()
    with pytest.raises(SweepError) as caught:
        sweep(toy.traced, points, executor=client.get_executor(), **how)
    assert re.search(r"lost perhaps: 2 of 4 runs are finished and kept", str(caught.value))
    assert "\n" not in str(caught.value)
    assert list(sweep(toy.traced, points[:1], workers=0, **how)["weight"]) == [8.0, 8.0]
