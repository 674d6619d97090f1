"""A sweep over a real Dask scheduler and two worker processes: equal results, a killed worker, a
lost scheduler, wrong set-ups.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy

from curlnb.runs import cluster
from curlnb.runs.executors import Job, SweepError
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")
HERE = Path(__file__).parent.parent


@contextlib.contextmanager
def started(folder: Path, *worker_options: str):
    """A scheduler and two workers, each a process; yields (client, scheduler's process). The
    workers' parent replaces one that dies.
    """
    file, environment = folder / "scheduler.json", {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), str(HERE.parent), environment.get("PYTHONPATH", "")]
    )
    common = {
        "env": environment,
        "start_new_session": True,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    dask = [sys.executable, str(HERE / "forks.py"), "-m", "dask"]
    at = ["--scheduler-file", file]
    scheduler = subprocess.Popen(
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", *at], **common
    )
    options = [
        "--nworkers",
        "2",
        "--nthreads",
        "1",
        "--no-dashboard",
        "--local-directory",
        folder,
        *worker_options,
    ]
    workers = subprocess.Popen([*dask, "worker", *at, *options], **common)
    try:
        while not file.exists():
            time.sleep(0.05)
        client = cluster.connect(str(file))
        client.wait_for_workers(2, timeout=300)
        yield client, scheduler
    finally:
        for process in (scheduler, workers):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with started(tmp_path_factory.mktemp("cluster"), "--resources", "GPU=1") as (client, _):
        yield client


def test_results_equal_the_serial_ones(client, tmp_path, monkeypatch):
    serial = sweep(
        toy.regression, {"width": [8, 16]}, seeds=2, store=Store(tmp_path / "serial"), workers=0
    )
    spread = sweep(
        toy.regression, {"width": [8, 16]}, seeds=2, store=Store(tmp_path / "spread"), client=client
    )
    assert spread.drop(columns="seconds").equals(serial.drop(columns="seconds"))


def test_the_environment_names_the_scheduler(client, tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_SCHEDULER", client.scheduler.address)
    where = tmp_path / "pids"
    table = sweep(toy.counted, [{"where": str(where)}], seeds=3, store=Store(tmp_path / "runs"))
    assert list(table["twice"]) == [0, 2, 4]
    assert not (set(client.run(os.getpid).values()) & {os.getpid()})


def test_a_worker_killed_in_mid_run_is_replaced_and_its_run_resumes_from_its_checkpoint(
    client, tmp_path
):
    where, store = tmp_path / "steps", Store(tmp_path / "runs")
    pids = client.run(os.getpid)
    assert len(pids) == 2

    def kill() -> None:
        while not where.exists() or len(where.read_text().splitlines()) < 20:
            time.sleep(0.02)
        os.kill(next(iter(pids.values())), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    table = sweep(toy.traced, [{"where": str(where)}], seeds=2, store=store, client=client)
    killer.join()
    assert list(table["weight"]) == [40.0, 40.0]
    times = Counter(where.read_text().splitlines())
    assert {line for line in times} == {f"{seed} {step}" for seed in range(2) for step in range(40)}
    assert sum(times.values()) <= 80 + 1, "more than the step in flight was done again"
    client.wait_for_workers(2, timeout=300)
    assert len(set(client.run(os.getpid).values()) - set(pids.values())) == 1, (
        "nobody took the dead worker's place"
    )


def test_a_run_that_fails_does_not_stop_the_others_and_is_tried_once(client, tmp_path):
    store = Store(tmp_path / "runs")
    with pytest.raises(SweepError, match=r"seven will not do.*1 of 3 runs failed.*seed=7"):
        sweep(toy.fragile, [{"mark": str(tmp_path)}], seeds=[0, 7, 2], store=store, client=client)
    assert list(
        sweep(toy.fragile, [{"mark": str(tmp_path)}], seeds=[0, 2], store=store, workers=0)[
            "seed_squared"
        ]
    ) == [0, 4]


def test_a_worker_with_other_code_is_refused_in_one_line(client, tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys.modules["curlnb.runs.sweep"],
        "_job",
        lambda e, s, p, seed: Job(e, s, p, seed, "of another checkout"),
    )
    with pytest.raises(
        SweepError,
        match=r"has other code, data or numerics for toy.counted: give it the same checkout",
    ):
        sweep(
            toy.counted,
            [{"where": str(tmp_path / "c")}],
            seeds=1,
            store=Store(tmp_path / "runs"),
            client=client,
        )


def test_workers_that_write_to_another_store_are_found_out(client, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "time", SimpleNamespace(sleep=lambda _: None))

    class Elsewhere(Store):  # this process and the workers see different folders under one path
        def find(self, *_):
            return None

    with pytest.raises(
        SweepError, match=r"finished the run, but not in .*: all must share that folder"
    ):
        sweep(
            toy.counted,
            [{"where": str(tmp_path / "c")}],
            seeds=1,
            store=Elsewhere(tmp_path / "runs"),
            client=client,
        )


def test_a_lost_scheduler_ends_the_sweep_with_one_line_and_finished_runs_are_kept(tmp_path):
    where, store = tmp_path / "steps", Store(tmp_path / "runs")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "3s"}),
        started(tmp_path) as (client, scheduler),
    ):
        first = sweep(
            toy.counted, [{"where": str(tmp_path / "c")}], seeds=1, store=store, client=client
        )

        def kill() -> None:
            while len(list((tmp_path / "runs").glob("toy.traced/*/run.json"))) < 2:
                time.sleep(0.02)
            scheduler.kill()

        threading.Thread(target=kill).start()
        points = [{"epochs": 2, "seeds": 2}, {"epochs": 400, "seeds": 2}]
        with pytest.raises(SweepError) as caught:
            sweep(toy.traced, points, store=store, client=client, where=str(where))
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert "2 of 4 runs are finished and kept" in said
    assert list(first["twice"]) == [0]
    assert list(
        sweep(toy.traced, points[:1], store=store, workers=0, where=str(where))["weight"]
    ) == [8.0, 8.0]


def test_a_scheduler_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "SECONDS", 1)
    monkeypatch.setenv("CURLNB_SCHEDULER", "tcp://127.0.0.1:9")
    with pytest.raises(cluster.ClusterError, match=r"no Dask scheduler"):
        sweep(
            toy.counted, [{"where": str(tmp_path / "c")}], seeds=1, store=Store(tmp_path / "runs")
        )
    with pytest.raises(cluster.ClusterError, match="no scheduler file at"):
        cluster.connect(str(tmp_path / "absent.json"))


def test_a_cluster_without_workers_yet_is_given_work_so_that_an_adaptive_one_starts_some(
    client, tmp_path, monkeypatch
):
    seen, real = [], client.scheduler_info

    def info(*args, **options):
        until = time.monotonic() + 20  # what is submitted takes its time to the scheduler
        while (
            not (
                waiting := client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
            )
            and time.monotonic() < until
        ):
            time.sleep(0.1)
        seen.append(waiting)
        return {"workers": {}} if len(seen) == 1 else real(*args, **options)

    monkeypatch.setattr(client, "scheduler_info", info)
    table = sweep(
        toy.counted,
        [{"where": str(tmp_path / "c")}],
        seeds=[3],
        store=Store(tmp_path / "runs"),
        client=client,
    )
    assert list(table["twice"]) == [6]
    assert seen[0] == 1, "with no task at the scheduler an adaptive cluster never starts a worker"


def test_every_recipe_binds_to_localhost_or_uses_tls():
    text = (HERE.parent / "docs" / "cluster.md").read_text()
    assert text.index("runs code as the user") < text.index("```")
    commands = re.findall(r"bin/dask (scheduler|worker) (.+)", text)
    assert len(commands) >= 6
    for _, options in commands:
        assert "$home" in options or ("$options" in options and "tls" in options)
    assert re.search(r'^home="--host localhost --dashboard-address localhost:0"$', text, re.M)
    assert "SLURMCluster(\n    security=Security(require_encryption=True" in text
    assert not re.search(r"tcp://(?!localhost)", text)


@pytest.fixture
def listening():
    """The port of a socket that takes connections on every interface."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def test_doctor_warns_of_a_scheduler_that_other_machines_reach(monkeypatch, listening, tmp_path):
    from curlnb.__main__ import doctor

    own = cluster._own_addresses()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        at_home = f"tcp://localhost:{bound.getsockname()[1]}"
        assert cluster.who_reaches(at_home) == (
            False,
            f"{at_home}: all users of this machine, and they alone, can run code on it",
        )
    is_open, said = cluster.who_reaches(f"tcp://localhost:{listening}")
    assert is_open == bool(own), "a machine without a network has nobody to be open to"
    file = tmp_path / "scheduler.json"
    file.write_text('{"address": "tcp://192.0.2.77:8786"}')
    for address in (
        "tcp://192.0.2.77:8786",
        "192.0.2.77:8786",
        "tcp://[2001:db8::2]:8786",
        "ws://192.0.2.77:8786",
        str(file),
    ):
        is_open, said = cluster.who_reaches(address)
        assert is_open
        assert (
            "is open: whoever reaches it runs code as you; bind it to localhost or use TLS" in said
        )
    assert cluster.who_reaches("tls://192.0.2.77:8786") == (
        False,
        "tls://192.0.2.77:8786: whoever has a certificate of its CA runs code on it",
    )
    for wrong in (
        "tcp://no such host:8786",
        "tcp://127.0.0.1:port",
        str(tmp_path / "none.json"),
        "\n.json",
    ):
        is_open, said = cluster.who_reaches(wrong)
        assert not is_open
        assert "cannot be looked up" in said
        assert "\n" not in said
    monkeypatch.setenv("CURLNB_SCHEDULER", "tcp://192.0.2.77:8786")
    assert [
        line
        for line in doctor().splitlines()
        if line.startswith("WARNING     the scheduler tcp://192.0.2.77:8786 is open")
    ]
    monkeypatch.delenv("CURLNB_SCHEDULER")
    assert "WARNING" not in doctor()


def test_tls_without_certificates_is_one_line():
    with pytest.raises(
        cluster.ClusterError,
        match=r"no certificates for the scheduler at 'tls://127.0.0.1:9': see TLS in docs",
    ) as caught:
        cluster.connect("tls://127.0.0.1:9")
    assert "\n" not in str(caught.value)
