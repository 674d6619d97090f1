"""A grid of parameters x seeds -> one tidy DataFrame, by way of the run store."""

import contextlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    as_completed,
)
from dataclasses import replace
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from curlnb import extras
from curlnb.runs import environment
from curlnb.runs.devices import default_device
from curlnb.runs.executors import (
    Job,
    OtherCodeError,
    SweepError,
    local_processes,
    work,
)
from curlnb.runs.experiment import Experiment, as_json, check_seed, parameters_of
from curlnb.runs.store import COSTS, Record, Store, default_store

TRAINED = 0.9  # of a run, when it has taken its last step
EVERY = (60.0, 1.0)  # seconds between two lines, and between two looks where a bar is drawn
RETRIES = 2  # of the runs at hand when a worker dies, out of memory perhaps, or has other code


def sweep(
    experiment: Experiment,
    grid: Mapping[str, Any] | Iterable[Mapping[str, Any]] = ({},),
    *,
    seeds: int | Iterable[int] = 3,
    store: Store | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    **fixed: Any,
) -> pd.DataFrame:
    """Run `experiment` at every point of `grid` with every seed, computing only what the store does
    not hold.

    grid: a mapping of lists (their product is run); or points (mappings), each of which may carry
    its own "seeds", and a name as "arm", which becomes a column; or arms, a mapping of names to
    points. seeds: a number n (0 to n-1) or the seeds themselves. fixed: parameters common to all
    points. workers: local processes, each with `CURLNB_THREADS` threads (default 1); default
    `CURLNB_WORKERS`, else one per core; on a GPU 0 (this process). executor: a `concurrent.futures`
    executor instead, such as a Dask client's `get_executor()`; default: the Dask scheduler at
    `CURLNB_SCHEDULER`, if set and `workers` is not given. Its workers need the same code, data and
    store path (docs/cluster.md). Returns one row per run, in the grid's order: parameters, metrics,
    seed, experiment, seconds, device, identity and origin ("computed", or "reference" for an
    adopted reference run). A failed run does not stop the others; SweepError names the first at the
    end.
    """
    store = store or default_store()
    points = _points(grid, seeds, "arm" not in parameters_of(experiment.function))
    jobs = [
        Job(experiment, experiment.parameters({**fixed, **point}), check_seed(seed), store)
        for point, seed, _ in points
    ]
    _refuse_namesakes(jobs)
    for job in jobs:
        store.note_use(job)
    found = {job.key: record for job in jobs if (record := store.found(job))}
    if missing := list({job.key: job for job in jobs if job.key not in found}.values()):
        found |= _compute(missing, executor, workers)
    for job in missing:
        if replace(job).key != job.key:
            raise SweepError(
                f"{job} changed its own key while it ran: a part of your own writes to a list, a "
                "counter or another value that the key holds; keep that out of the part"
            )
    rows = []
    for job, (_, _, name) in zip(jobs, points, strict=True):
        shown, record = as_json(job.parameters, digests=False), found[job.key]
        costs = {column: record[column] for column in COSTS}
        rows.append({**shown, **record["metrics"], "seed": job.seed, **costs, **name})
    return pd.DataFrame(rows)


def _points(
    grid: Any, seeds: int | Iterable[int], named: bool
) -> list[tuple[dict[str, Any], int, dict[str, str]]]:
    if isinstance(grid, Mapping) and any(isinstance(point, Mapping) for point in grid.values()):
        grid = [{**point, "arm": arm} for arm, point in grid.items()]
    elif isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise ValueError(
                    f"{name} is {values!r}: a grid takes a list of values; "
                    f"what all runs have in common is {name}={values!r}"
                )
        grid = [
            dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
        ]
    points = []
    for point in grid:
        parameters = {**point}
        chosen = parameters.pop("seeds", seeds)
        name = {"arm": parameters.pop("arm")} if named and "arm" in parameters else {}
        chosen = [*(range(chosen) if isinstance(chosen, int) else chosen)]
        chosen = chosen[:1] if environment.dry() else chosen
        points += [(parameters, seed, name) for seed in chosen]
    return points


def _refuse_namesakes(jobs: list[Job]) -> None:
    """Two own parts that a table shows by one name would be taken for one in it, and their runs be
    averaged.
    """
    known: dict[str, str] = {}
    for job in jobs:
        if known.setdefault(str(job), job.key) != job.key:
            raise ValueError(
                f"two different runs are both {job}: give each part of your own a name of its own, "
                "for example by its __name__"
            )


def _compute(jobs: list[Job], executor: Executor | None, workers: int | None) -> dict[str, Record]:
    """Do the jobs, in this process where there is neither an executor nor a worker: their records
    by key. Raises at the end if some failed. Runs that other processes are at work on come last,
    and are then waited for. Processes of this package's own that died, or that have imported a
    module as it was before a reader edited it, are replaced.
    """
    if executor is None and workers is None and (address := os.environ.get("CURLNB_SCHEDULER")):
        extras.need("CURLNB_SCHEDULER", "cluster", "distributed")
        from distributed import Client

        where = {"address": address}
        if address.endswith(".json"):
            open(address).close()  # a client would wait for the file for ever
            where = {"scheduler_file": address}
        with Client(**where, set_as_default=False) as client:
            return _compute(jobs, client.get_executor(), workers)
    if workers is None:
        workers = environment.workers() if default_device().type == "cpu" else 0
    own = executor is None and workers > 0
    failed: list[tuple[Job, BaseException]] = []
    found: dict[str, Record] = {}
    left = {job.key: job for job in jobs}
    wait, anew, renewals = False, False, 0
    with displayed(left):
        while left:
            if own:
                executor = local_processes(min(len(jobs), workers), anew)
            anew = False
            for job, outcome in _outcomes(executor, list(left.values()), wait):
                if isinstance(outcome, CancelledError):
                    raise SweepError(
                        "the executor gave its work up, its scheduler was lost perhaps: "
                        f"{len(jobs) - len(left)} of {len(jobs)} runs are finished and kept, the "
                        "others go on from their checkpoints when the sweep is run again"
                    )
                if isinstance(outcome, BrokenExecutor | OtherCodeError) and renewals < RETRIES:
                    anew = True
                elif outcome is not None:
                    if isinstance(outcome, BaseException):
                        failed.append((job, outcome))
                    else:
                        found[job.key] = outcome
                    del left[job.key]
            renewals += anew
            wait = not anew
    if failed:
        job, why = failed[0]
        if isinstance(why, BrokenExecutor):
            why = SweepError(
                "a worker process was killed, out of memory perhaps, or by a script that calls "
                "sweep outside `if __name__ == '__main__':`; try CURLNB_WORKERS=1, or 0 for this "
                "process alone"
            )
        said = str(why) if isinstance(why, SweepError) else f"{type(why).__name__}: {why}"
        raise SweepError(
            f"{said} ({len(failed)} of {len(jobs)} runs failed, the others are kept; "
            f"the first: {job})"
        )
    return found


def _outcomes(
    executor: Executor | None, jobs: list[Job], wait: bool
) -> Iterator[tuple[Job, Record | BaseException | None]]:
    """Each job with its outcome, in the order in which they end: its record; None where another
    process is at work on it; an exception where it failed.
    """
    if executor is None:
        for job in jobs:
            try:
                yield job, job.store.run(job, wait=wait)
            except Exception as error:
                yield job, error
        return
    same_machine, futures = isinstance(executor, ProcessPoolExecutor), {}
    try:
        for job in jobs:
            try:
                futures[executor.submit(work, job.sent(), wait, same_machine)] = job
            except (BrokenExecutor, EOFError, ConnectionError) as error:  # died between sweeps
                yield job, BrokenExecutor(str(error))
        for future in as_completed(futures):
            gone = future.cancelled()
            yield (
                futures[future],
                CancelledError() if gone else future.exception() or future.result(),
            )
    finally:
        for future in futures:
            future.cancel()


# --- how far the runs are: a bar where it can be drawn, else a line a minute ----------------------


@contextlib.contextmanager
def displayed(left: dict[str, Job]) -> Iterator[None]:
    """A bar over the jobs that are `left`, which moves with the steps of each run, on a terminal
    and in a notebook. Elsewhere a line a minute, in the log of `make reproduce` or on standard
    error.
    """
    name, total = next(iter(left.values())).experiment.name, len(left)
    logged, over = "CURLNB_LOG" in os.environ, threading.Event()
    drawn = not logged and (sys.stderr.isatty() or "ipykernel.kernelapp" in sys.modules)
    bar = tqdm(total=total, desc=name, unit="run", disable=not drawn, leave=False)

    def watch() -> None:
        while not over.wait(EVERY[drawn]):
            at = [_progress(job) for job in list(left.values())]
            at_work = [words for _, words in at if words][:4]  # a cluster has more
            bar.n = round(total - len(left) + sum(share for share, _ in at), 1)
            bar.set_postfix_str(", ".join(at_work))
            line = "; ".join([f"{name}: {total - len(left)} of {total} runs done", *at_work])
            if logged:
                environment.log(line)
            elif not drawn:
                print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        bar.close()


def _progress(job: Job) -> tuple[float, str]:
    """The share of a run that is done, and what it is at; empty before it begins. After its last
    step it measures what it trained, which may take as long.
    """
    try:
        note = json.loads((job.store.folder(job) / "progress.json").read_text())
    except (OSError, ValueError):
        return 0.0, ""
    done, total = note["done"], note["total"]
    if done >= total:
        return TRAINED, "trained, evaluating"
    return TRAINED * done / total, f"epoch {done:.1f} of {total:g}"
