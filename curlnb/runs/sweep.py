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

from curlnb.runs import environment
from curlnb.runs.devices import default_device
from curlnb.runs.executors import (
    Job,
    OtherCodeError,
    SweepError,
    local_processes,
    scheduled,
    shown,
    work,
)
from curlnb.runs.experiment import Experiment, as_json, check_seed, parameters_of
from curlnb.runs.store import COSTS, Record, Store, default_store

MOST_SEEDS = 10**6
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
    if workers is not None and (type(workers) is not int or workers < 0):
        raise ValueError(
            f"workers is {workers!r}: it must be a number of processes, 0 (this process) or more"
        )
    store = store or default_store()
    points = _points(grid, seeds, "arm" not in parameters_of(experiment.function))
    names = [name for _, _, name in points]
    jobs = [
        Job(experiment, experiment.parameters({**fixed, **point}), check_seed(seed), store)
        for point, seed, _ in points
    ]
    _refuse_namesakes(jobs)
    for job in jobs:
        store.note_use(job)
    if environment.dry():
        return _table(_dry(jobs), names)
    found = {job.key: job.find() for job in jobs}
    if missing := list({job.key: job for job in jobs if found[job.key] is None}.values()):
        _compute(missing, executor, workers)
        found |= {job.key: shown(job) for job in missing}
    for job in missing:
        if replace(job).key != job.key:
            raise SweepError(
                f"{job} changed its own key while it ran: a part of your own writes to a list, a "
                "counter or another value that the key holds; keep that out of the part"
            )
        if found[job.key] is None:
            raise SweepError(
                f"a worker finished {job}, but not in {store.root}: all must share that folder"
            )
    return _table([_row(job, found[job.key]) for job in jobs], names)


def _table(rows: list[dict[str, Any]], names: list[dict[str, str]]) -> pd.DataFrame:
    return pd.DataFrame([row | name for row, name in zip(rows, names, strict=True)])


_ALIKE = {  # their values change no metric's name
    "dataset", "encoder", "bn_groups", "positives", "views", "size", "batch", "precision",
    "objective", "negatives", "tau_plus", "beta", "schedule", "temperature", "momentum",
}  # fmt: skip
# encoders that a dry run need not train twice
_LARGE = ("resnet18", "resnet34", "resnet50", "resnet50-imagenet", "vgg16", "vgg16_bn")
# by experiment: the values shown, and the last record of each form
_DRY_RUNS: dict[str, tuple[set[str], dict[frozenset[str], Record]]] = {}


def _dry(jobs: list[Job]) -> list[dict[str, Any]]:
    """Run as few jobs as show every value of every parameter, up to the size of numbers above 2 and
    of fractions, in this process; the others' rows repeat the metrics of the last run of the same
    form.

    Runs have the same form where all but those in _ALIKE have the same value, up to the same sizes:
    what is true, None, above zero, a whole number above one or a name, a method's for example,
    decides which metrics there are (a dry run has one epoch, after which nothing is measured that
    comes every fifth). A large encoder that was trained once has the small one in its place later.
    """
    rows = []
    for job in jobs:
        shown, records = _DRY_RUNS.setdefault(job.experiment.name, (set(), {}))
        values = {name: f"{name}={_up_to_size(v)!r}" for name, v in job.parameters.items()}
        form = frozenset(value for name, value in values.items() if name not in _ALIKE)
        if form not in records or not shown.issuperset(values.values()):
            seen = values.get("encoder") in shown and job.parameters["encoder"] in _LARGE
            small = {"encoder": "cnn"} if seen else {}
            record = job.store.run(replace(job, parameters=job.parameters | small))
            assert record is not None
            records[form] = record
            shown.update(values.values())
        rows.append(_row(job, {**records[form], "identity": job.key}))
    return rows


def _up_to_size(value: Any) -> Any:
    if isinstance(value, float):
        return value > 0
    return min(value, 3) if isinstance(value, int) else value


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
        if isinstance(chosen, int):
            if not 0 <= chosen <= MOST_SEEDS:
                raise ValueError(
                    f"seeds is {chosen}: it must be how many, at most {MOST_SEEDS}, or a list of "
                    "them"
                )
            chosen = range(chosen)
        chosen = [*chosen]
        chosen = chosen[:1] if environment.dry() else chosen
        points += [(parameters, seed, name) for seed in chosen]
    return points


def _row(job: Job, record: Record | None) -> dict[str, Any]:
    assert record is not None
    shown = as_json(job.parameters, digests=False)
    costs = {name: record[name] for name in COSTS}
    return {**shown, **record["metrics"], "seed": job.seed, **costs}


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


def _compute(jobs: list[Job], executor: Executor | None, workers: int | None) -> None:
    """Do the jobs, in this process where there is neither an executor nor a worker; raise at the
    end if some failed. Runs that other processes are at work on come last, and are then waited for.
    Processes of this package's own that died, or that have imported a module as it was before a
    reader edited it, are replaced.
    """
    if executor is None and workers is None and (address := os.environ.get("CURLNB_SCHEDULER")):
        with scheduled(address) as executor:
            return _compute(jobs, executor, workers)
    if workers is None:
        workers = environment.workers() if default_device().type == "cpu" else 0
    own = executor is None and workers > 0
    failed: list[tuple[Job, BaseException]] = []
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
                elif outcome is not False:
                    if isinstance(outcome, BaseException):
                        failed.append((job, outcome))
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


def _outcomes(
    executor: Executor | None, jobs: list[Job], wait: bool
) -> Iterator[tuple[Job, bool | BaseException]]:
    """Each job with its outcome, in the order in which they end. True: the run is finished. False:
    another process is at work on it. An exception: it failed.
    """
    if executor is None:
        for job in jobs:
            try:
                yield job, job.run(wait)
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
