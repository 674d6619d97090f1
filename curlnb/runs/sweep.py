"""A grid of parameters x seeds -> one tidy DataFrame, by way of the run store.

Runs that are missing are computed in this process, in local processes, or on the workers of a Dask cluster. The local processes are a
plain pool, not a local Dask cluster: both take the seconds that importing torch takes, and the pool needs no scheduler, port or extra
package, and ends with its parent.
"""

import contextlib
import importlib
import itertools
import json
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from curlnb.runs import cluster, environment
from curlnb.runs.devices import default_device, keep_memory
from curlnb.runs.store import Experiment, Record, Store, default_store

if TYPE_CHECKING:
    import pandas as pd  # imported where a table is made: a worker process makes none

RETRIES = 2  # of the runs at hand when a worker process dies, by the out-of-memory killer say


WHY_DEAD = (
    "its process was killed, out of memory perhaps, or by a script that calls sweep outside `if __name__ == '__main__':`; "
    "try CURLNB_WORKERS=1, or 0 for this process alone"
)


class SweepError(RuntimeError):
    """Runs that failed; the others of their sweep are finished and kept."""


def sweep(
    experiment: Experiment,
    grid: Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]] = ({},),
    *,
    seeds: int | Iterable[int] = 3,
    store: Store | None = None,
    workers: int | None = None,
    client: Any = None,
    **fixed: Any,
) -> "pd.DataFrame":
    """Run `experiment` at every point of `grid` with every seed, computing only what the store does not hold.

    grid: a mapping of lists (their product is run), or points (mappings), each of which may carry its own "seeds".
    seeds: a number n (0 to n-1) or the seeds themselves. fixed: parameters common to all points.
    workers: local processes, one CPU thread each; default `CURLNB_WORKERS`, else one a core, and on a GPU 0: this process.
    client: a `distributed.Client` on whose workers to compute; default the scheduler at `CURLNB_SCHEDULER`, if set and `workers` is
    not given. They need the same code, data and, at the same path, store (docs/cluster.md).
    Returns one row a run, in the grid's order: parameters, metrics, seed, seconds, device. A failed run does not stop the
    others; SweepError names it at the end.
    """
    store = store or default_store()
    jobs = [_Job(experiment, store, experiment.parameters({**fixed, **point}), seed) for point, seed in _points(grid, seeds)]
    for job in jobs:
        store.note_use(experiment, job.parameters, job.seed)
    missing = list({job.key: job for job in jobs if job.find() is None}.values())
    if environment.dry():
        return _dry(jobs)
    if missing:
        address = os.environ.get("CURLNB_SCHEDULER") if workers is None else None
        client = client or (cluster.connect(address) if address else None)
        workers = _workers(experiment) if workers is None else workers
        if workers and client is None:
            _warm(min(workers, len(missing)), experiment)
        with environment.turn():
            _compute(missing, workers, client)
    return _table([_row(job.find()) for job in jobs])


def _table(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows)


def _dry(jobs: list["_Job"]) -> "pd.DataFrame":
    """Run as few jobs as show every value of every parameter, up to the size of numbers above 2 and of fractions; the others' rows repeat
    their metrics.
    """

    def shown(value: Any) -> Any:
        return value > 0 if isinstance(value, float) else min(value, 3) if isinstance(value, int) else value

    rows, seen, last = [], set[str](), None
    for job in jobs:
        values = {f"{name}={shown(value)!r}" for name, value in job.parameters.items()}
        if last is None or not values <= seen:
            last, seen = job.store.run(job.experiment, job.parameters, job.seed), seen | values
        assert last is not None
        rows.append(_row({**last, "parameters": job.parameters, "seed": job.seed, "identity": job.key}))
    return _table(rows)


def _points(grid: Any, seeds: int | Iterable[int]) -> list[tuple[dict[str, Any], int]]:
    if isinstance(grid, Mapping):
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    points = []
    for point in grid:
        chosen = point.get("seeds", seeds)
        chosen = list(range(chosen) if isinstance(chosen, int) else chosen)
        parameters = {name: value for name, value in point.items() if name != "seeds"}
        points += [(parameters, int(seed)) for seed in (chosen[:1] if environment.dry() else chosen)]
    return points


def _row(record: Record | None) -> dict[str, Any]:
    assert record is not None
    costs = {name: record[name] for name in ("experiment", "seed", "seconds", "device", "identity")}
    return {**record["parameters"], **record["metrics"], **costs}


def _workers(experiment: Experiment) -> int:
    if default_device().type != "cpu":
        return 0
    return int(os.environ.get("CURLNB_WORKERS", os.cpu_count() or 1))


@dataclass(frozen=True)
class _Job:
    experiment: Experiment
    store: Store
    parameters: dict[str, Any]
    seed: int

    @property
    def key(self) -> str:
        return self.experiment.key(self.parameters, self.seed)

    def find(self) -> Record | None:
        return self.store.find(self.experiment, self.parameters, self.seed)

    def arguments(self) -> tuple[str, str, str, dict[str, Any], int]:
        """What another process needs to do the job: plain values only."""
        function = self.experiment.function
        return str(self.store.root), function.__module__, function.__name__, self.parameters, self.seed

    def progress(self) -> dict[str, float]:
        try:
            return json.loads((self.store.folder(self.experiment, self.parameters, self.seed) / "progress.json").read_text())
        except (OSError, ValueError):
            return {}

    def __str__(self) -> str:
        asked = {k: v for k, v in self.parameters.items() if v is not None}
        return f"{self.experiment.name}({', '.join(f'{k}={v!r}' for k, v in asked.items())}, seed={self.seed})"


def _compute(jobs: list[_Job], workers: int, client: Any = None) -> None:
    """Do the jobs, in this process, in `workers` others, or on a cluster; raise at the end if some failed."""
    in_a_cell = jobs[0].experiment.function.__module__ == "__main__"  # other processes cannot import it
    with _Display(jobs) as display:
        if client is not None and not in_a_cell:
            errors = _on_cluster(jobs, client, display)
        else:
            errors = _here(jobs, display) if workers == 0 or in_a_cell else _elsewhere(jobs, min(workers, len(jobs)), display)
    if errors:
        job, why = errors[0]
        raise SweepError(f"{len(errors)} of {len(jobs)} runs failed, the others are kept; the first: {job}: {why}")


def _here(jobs: list[_Job], display: "_Display") -> list[tuple[_Job, str]]:
    errors = []
    for job in jobs:
        over = threading.Event()
        watch = threading.Thread(target=_refresh, args=(display, job, over), daemon=True)
        watch.start()
        try:
            job.store.run(job.experiment, job.parameters, job.seed)
        except Exception as error:
            errors.append((job, f"{type(error).__name__}: {error}"))
        finally:
            over.set()
            watch.join()
        display.finished(job)
    return errors


def _refresh(display: "_Display", job: _Job, over: threading.Event) -> None:
    while not over.wait(1):
        display.refresh([job])


def _elsewhere(jobs: list[_Job], workers: int, display: "_Display") -> list[tuple[_Job, str]]:
    """Keep `workers` processes busy. A run that another sweep is at work on comes last, and is then waited for."""
    errors: list[tuple[_Job, str]] = []
    waiting, deaths = deque((job, False) for job in jobs), 0
    busy: dict[Future[bool], tuple[_Job, bool]] = {}
    pool = _pool(workers)
    while waiting or busy:
        dead = False
        while waiting and len(busy) < workers:
            try:
                busy[pool.submit(_work, waiting[0][0].arguments(), waiting[0][1])] = waiting[0]
                waiting.popleft()
            except BrokenProcessPool:  # a worker died between runs
                dead = True
                break
        done, _ = wait(busy, timeout=0 if dead else 1, return_when=FIRST_COMPLETED)
        display.refresh([job for job, _ in busy.values()])
        for future in done:
            job, patient = busy.pop(future)
            try:
                if future.result():
                    display.finished(job)
                else:
                    waiting.append((job, True))
            except BrokenProcessPool:
                dead = True
                waiting.append((job, patient))
            except Exception as error:
                errors.append((job, f"{type(error).__name__}: {error}"))
                display.finished(job)
        if dead:
            deaths += 1
            waiting.extend(busy.values())
            busy.clear()
            _POOLS.clear()
            if deaths > RETRIES:
                return errors + [(job, WHY_DEAD) for job, _ in waiting]
            pool = _pool(workers)
    return errors


def _on_cluster(jobs: list[_Job], client: Any, display: "_Display") -> list[tuple[_Job, str]]:
    """Do the jobs on the workers of a Dask cluster. Runs that other sweeps are at work on come last, and are then waited for."""
    errors: list[tuple[_Job, str]] = []
    left = {job.key: job for job in jobs}
    try:
        for patient in (False, True):
            calls = {key: (job.arguments(), key, patient) for key, job in left.items()}
            for outcome in cluster.outcomes(client, _work_there, calls) if calls else ():
                if outcome is None:
                    display.refresh(list(left.values()))
                    continue
                key, result = outcome
                if isinstance(result, Exception):
                    errors.append((left[key], f"{type(result).__name__}: {result}"))
                elif not result:
                    continue
                elif not _visible(left[key]):
                    errors.append((left[key], f"a worker finished it, but not in {left[key].store.root}: all must share that folder"))
                display.finished(left.pop(key))
    except cluster.ClusterError as error:
        finished = sum(job.find() is not None for job in jobs)  # also by a worker that could no longer say so
        raise SweepError(
            f"{error}: {finished} of {len(jobs)} runs are finished and kept, the others go on from their checkpoints "
            "when the sweep is run again"
        ) from None
    return errors


def _visible(job: _Job) -> bool:
    """Whether the finished run is in the store as seen from here; a network file system may take a moment to show it."""
    for _ in range(20):
        if job.find() is not None:
            return True
        time.sleep(0.5)
        if job.store.root.exists():
            os.listdir(job.store.root)  # has the folder looked up anew
    return False


def _work_there(job: tuple[str, str, str, dict[str, Any], int], key: str, patient: bool) -> bool:
    """`_work` on another machine, after a look at whether it has the same code and data: else its run would have another key."""
    _, module, name, parameters, seed = job
    experiment: Experiment = getattr(importlib.import_module(module), name)
    with _ONE_AT_A_TIME:
        if experiment.key(parameters, seed) != key:
            raise SweepError(f"the worker on {platform.node()} has other code or data for {experiment.name}: give it the same checkout")
        return _work(job, patient)


_ONE_AT_A_TIME = threading.Lock()  # a run sets its process's seed and threads, and a Dask worker may have several threads


def _work(job: tuple[str, str, str, dict[str, Any], int], patient: bool) -> bool:
    """Do one run (`_Job.arguments`) in this process; False when another process is at it and this one is not `patient`."""
    root, module, name, parameters, seed = job
    experiment: Experiment = getattr(importlib.import_module(module), name)
    return Store(Path(root)).run(experiment, parameters, seed, wait=patient) is not None


_POOLS: dict[int, ProcessPoolExecutor] = {}  # kept between sweeps: importing torch and tracing a model take seconds


def _pool(workers: int) -> Executor:
    if workers not in _POOLS:
        for other in _POOLS.values():
            other.shutdown()
        _POOLS.clear()
        _POOLS[workers] = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),))
    return _POOLS[workers]


def _warm(workers: int, experiment: Experiment) -> None:
    """Have the workers start and import, for seconds, before this notebook's turn comes rather than in it."""
    if experiment.function.__module__ == "__main__":
        return
    for _ in range(workers):
        with contextlib.suppress(BrokenProcessPool):  # `_elsewhere` makes a new pool
            _pool(workers).submit(importlib.import_module, experiment.function.__module__)


def _prepare(parent: int) -> None:
    """Make this a worker: it keeps its memory, and ends soon after its parent was killed, since an orphan would go on computing."""
    keep_memory()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Display:
    """A bar over runs with the current ones' progress where somebody looks, a line a minute in the log where nobody does."""

    def __init__(self, jobs: list[_Job]) -> None:
        self.name, self.total, self.start, self.told = jobs[0].experiment.name, len(jobs), time.monotonic(), time.monotonic()
        self.done: set[str] = set()

    def __enter__(self) -> "_Display":
        self.bar = tqdm(total=self.total, desc=self.name, unit="run", disable=environment.headless(), leave=False)
        environment.log(f"{self.name}: {self.total} runs to do")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if len(self.done) == self.total:
            environment.log(f"{self.name}: {self.total} runs done in {time.monotonic() - self.start:.0f} s")

    def finished(self, job: _Job) -> None:
        self.done.add(job.key)
        self.bar.update()

    def refresh(self, busy: list[_Job]) -> None:
        now = time.monotonic()
        if self.bar.disable and now - self.told < 60:
            return
        notes = [p for p in (job.progress() for job in busy) if p]
        text = ", ".join(f"epoch {p['done']:.1f} of {p['total']:g}" + (f", loss {p['loss']:.3f}" if "loss" in p else "") for p in notes)
        if len(notes) > 4:  # of a cluster
            shares = [p["done"] / p["total"] for p in notes]
            text = f"{len(notes)} begun, {min(shares):.0%} to {max(shares):.0%} done"
        self.bar.set_postfix_str(text)
        if now - self.told >= 60:
            self.told = now
            environment.log(f"{self.name}: {len(self.done)} of {self.total} runs done; {text}")
