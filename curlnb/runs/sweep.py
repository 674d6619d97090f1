"""A grid of parameters x seeds -> one tidy DataFrame, by way of the run store."""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from curlnb.runs import cluster, environment
from curlnb.runs.boundary import check_seed
from curlnb.runs.devices import default_device
from curlnb.runs.executors import Executor, Here, Job, Processes, SweepError
from curlnb.runs.experiment import Experiment, as_json
from curlnb.runs.store import Record, Store, default_store

MOST_SEEDS = 10**6


def sweep(
    experiment: Experiment,
    grid: Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]] = ({},),
    *,
    seeds: int | Iterable[int] = 3,
    store: Store | None = None,
    workers: int | None = None,
    client: Any = None,
    **fixed: Any,
) -> pd.DataFrame:
    """Run `experiment` at every point of `grid` with every seed, computing only what the store does
    not hold.

    grid: a mapping of lists (their product is run), or points (mappings), each of which may carry
    its own "seeds". seeds: a number n (0 to n-1) or the seeds themselves. fixed: parameters common
    to all points. workers: local processes, one CPU thread each; default `CURLNB_WORKERS`, else one
    a core, and on a GPU 0: this process. client: a `distributed.Client` on whose workers to
    compute; default the scheduler at `CURLNB_SCHEDULER`, if set and `workers` is not given. They
    need the same code, data and, at the same path, store (docs/cluster.md). Returns one row a run,
    in the grid's order: parameters, metrics, seed, seconds, device, and origin ("computed", or
    "reference" for an adopted reference run). A failed run does not stop the others; SweepError
    names it at the end.
    """
    if workers is not None and (type(workers) is not int or workers < 0):
        raise ValueError(
            f"workers is {workers!r}: it must be a number of processes, 0 (this process) or more"
        )
    store = store or default_store()
    jobs = [
        _job(experiment, store, experiment.parameters({**fixed, **point}), seed)
        for point, seed in _points(grid, seeds)
    ]
    _refuse_namesakes(jobs)
    for job in jobs:
        store.note_use(experiment, job.parameters, job.seed)
    if environment.dry():
        return _dry(jobs)
    found = {job.key: job.find() for job in jobs}
    if missing := list({job.key: job for job in jobs if found[job.key] is None}.values()):
        _compute(missing, _executor(len(missing), workers, client))
    return pd.DataFrame([_row(job, found[job.key] or job.find()) for job in jobs])


def _job(experiment: Experiment, store: Store, parameters: dict[str, Any], seed: int) -> Job:
    return Job(experiment, store, parameters, seed, experiment.key(parameters, seed))


_ALIKE = (  # their values change no metric's name
    "dataset", "encoder", "bn_groups", "positives", "views", "size", "batch", "precision",
    "objective", "negatives", "tau_plus", "beta", "schedule", "temperature", "momentum",
)  # fmt: skip
_LARGE = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet50-imagenet",
    "vgg16",
    "vgg16_bn",
)  # encoders that a dry run need not train twice
_DRY_RUNS: dict[
    str, list[tuple[set[str], tuple[str, ...], Record]]
] = {}  # by experiment: values shown, form, record


def _dry(jobs: list[Job]) -> pd.DataFrame:
    """Run as few jobs as show every value of every parameter, up to the size of numbers above 2 and
    of fractions, in this process; the others' rows repeat the metrics of the run of the same form
    that is most like them.

    Runs have the same form where the same switches are on, those in _ALIKE aside: what is true,
    None, above zero, or a whole number above one decides which metrics there are (a dry run has one
    epoch, after which nothing is measured that comes every fifth), and so does a name that was
    chosen, a method's say. A large encoder that was trained in one form has the small one in its
    place in the next.
    """

    def shown(value: Any) -> Any:
        return (
            value > 0
            if isinstance(value, float)
            else min(value, 3)
            if isinstance(value, int)
            else value
        )

    def switch(value: Any) -> str:
        said = value is None or isinstance(value, (bool, str))
        return (
            repr(value)
            if said
            else repr(min(value, 2))
            if isinstance(value, int)
            else f"{bool(value)}"
        )

    rows = []
    for job in jobs:
        known = _DRY_RUNS.setdefault(job.experiment.name, [])
        values = {f"{name}={shown(value)!r}" for name, value in job.parameters.items()}
        form = tuple(
            f"{name}={switch(value)}"
            for name, value in job.parameters.items()
            if name not in _ALIKE
        )
        alike = [(len(values & own), record) for own, other, record in known if other == form]
        before = set().union(*(own for own, _, _ in known))
        if not alike or not values <= before:
            encoder = job.parameters.get("encoder")
            small = (
                {"encoder": "cnn"} if encoder in _LARGE and f"encoder={encoder!r}" in before else {}
            )
            last = job.store.run(job.experiment, job.parameters | small, job.seed)
            assert last is not None
            known.append((values, form, last))
        else:
            last = max(alike, key=lambda each: each[0])[1]
        rows.append(_row(job, {**last, "identity": job.key}))
    return pd.DataFrame(rows)


def _points(grid: Any, seeds: int | Iterable[int]) -> list[tuple[dict[str, Any], int]]:
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise ValueError(
                    f"{name} is {values!r}: a grid takes a list of values; what all runs have in common is {name}={values!r}"
                )
        grid = [
            dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
        ]
    points = []
    for point in grid:
        chosen = point.get("seeds", seeds)
        if isinstance(chosen, str) or (
            isinstance(chosen, int) and (chosen is True or not 0 <= chosen <= MOST_SEEDS)
        ):
            raise ValueError(
                f"seeds is {chosen!r}: it must be how many, at most {MOST_SEEDS}, or a list of them"
            )
        chosen = [
            check_seed(seed) for seed in (range(chosen) if isinstance(chosen, int) else chosen)
        ]
        parameters = {name: value for name, value in point.items() if name != "seeds"}
        points += [(parameters, seed) for seed in (chosen[:1] if environment.dry() else chosen)]
    return points


def _row(job: Job, record: Record | None) -> dict[str, Any]:
    assert record is not None
    costs = {
        name: record[name] for name in ("experiment", "seconds", "device", "identity", "origin")
    }
    return {
        **as_json(job.parameters, digests=False),
        **record["metrics"],
        "seed": job.seed,
        **costs,
    }


def _refuse_namesakes(jobs: list[Job]) -> None:
    """Two own parts that a table shows by one name would be taken for one in it, and their runs be
    averaged.
    """
    known: dict[tuple[str, str], str] = {}
    for job in jobs:
        for name, value in job.parameters.items():
            if value is None or isinstance(value, bool | int | float | str):
                continue
            shown, digest = (
                json.dumps(as_json(value, name=name, digests=digests)) for digests in (False, True)
            )
            if known.setdefault((name, shown), digest) != digest:
                raise ValueError(
                    f"two values of {name} are both called {shown}: give each a name of its own, by its __name__ say"
                )


def _workers() -> int:
    if default_device().type != "cpu":
        return 0
    return environment.workers()


def _executor(runs: int, workers: int | None, client: Any) -> Executor:
    if client is None and workers is None and (address := os.environ.get("CURLNB_SCHEDULER")):
        client = cluster.connect(address)
    if client is not None:
        return cluster.Cluster(client)
    count = min(runs, _workers() if workers is None else workers)
    return Processes(count) if count else Here()


def _compute(jobs: list[Job], executor: Executor) -> None:
    """Do the jobs; raise at the end if some failed. Runs that other sweeps are at work on come
    last, and are then waited for.
    """
    errors: list[tuple[Job, Exception]] = []
    left = {job.key: job for job in jobs}
    with _Display(jobs) as display:
        try:
            for patient in (False, True):
                for job, outcome in (
                    executor.outcomes(list(left.values()), patient=patient) if left else ()
                ):
                    if outcome is False:
                        continue
                    if isinstance(outcome, Exception):
                        errors.append((job, outcome))
                    del left[job.key]
                    display.finished(job)
        except cluster.ClusterError as error:
            finished = sum(
                job.find() is not None for job in jobs
            )  # also by a worker that could no longer say so
            raise SweepError(
                f"{error}: {finished} of {len(jobs)} runs are finished and kept, the others go on from their checkpoints "
                "when the sweep is run again"
            ) from None
    if errors:
        job, why = errors[0]
        said = str(why) if isinstance(why, SweepError) else f"{type(why).__name__}: {why}"
        raise SweepError(
            f"{said} ({len(errors)} of {len(jobs)} runs failed, the others are kept; the first: {job})"
        )


TRAINED = 0.9  # of a run, when it has taken its last step


def _watched() -> bool:
    """Whether a bar can be drawn anew: on a terminal and in a notebook, not in a file."""
    return sys.stderr.isatty() or "ipykernel.kernelapp" in sys.modules


class _Display:
    """A bar over runs with the current ones' progress where somebody looks; where nobody does, a
    line a minute.

    The bar moves with each run's steps; when it has taken its last, TRAINED of the run is done. The
    lines go to the log of `make reproduce`, or to standard error where that is a file.
    """

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = {job.key: job for job in jobs}
        self.name, self.total, self.start = jobs[0].experiment.name, len(jobs), time.monotonic()
        self.last_line = self.start
        self.over = threading.Event()

    def __enter__(self) -> "_Display":
        self.bar = tqdm(
            total=self.total,
            desc=self.name,
            unit="run",
            disable=environment.headless() or not _watched(),
            leave=False,
        )
        environment.log(f"{self.name}: {self.total} runs to do")
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.bar.close()
        if not self.jobs:
            environment.log(
                f"{self.name}: {self.total} runs done in {time.monotonic() - self.start:.0f} s"
            )

    def finished(self, job: Job) -> None:
        self.jobs.pop(job.key, None)
        self.move(self.notes())

    def notes(self) -> list[dict[str, float]]:
        return [note for job in list(self.jobs.values()) if (note := _progress(job))]

    def move(self, notes: list[dict[str, float]]) -> None:
        self.bar.n = round(
            self.total
            - len(self.jobs)
            + sum(TRAINED * note["done"] / (note["total"] or 1) for note in notes),
            1,
        )
        self.bar.refresh()

    def watch(self) -> None:
        while not self.over.wait(1):
            now = time.monotonic()
            if self.bar.disable and now - self.last_line < 60:
                continue
            notes = self.notes()
            text = _in_words(notes)
            self.bar.set_postfix_str(text, refresh=False)
            self.move(notes)
            if now - self.last_line >= 60:
                self.last_line = now
                line = f"{self.name}: {self.total - len(self.jobs)} of {self.total} runs done" + (
                    f"; {text}" if text else ""
                )
                environment.log(line)
                if self.bar.disable and not environment.headless():
                    print(line, file=sys.stderr, flush=True)


def _in_words(notes: list[dict[str, float]]) -> str:
    if len(notes) > 4:  # of a cluster
        shares = [p["done"] / p["total"] for p in notes]
        return f"{len(notes)} begun, {min(shares):.0%} to {max(shares):.0%} done"
    return ", ".join(map(_said, notes))


def _said(note: dict[str, float]) -> str:
    """A run's progress in words; after its last step it measures what it trained, which may take as
    long.
    """
    loss = f", loss {note['loss']:.3f}" if "loss" in note else ""
    if note["done"] >= note["total"]:
        return f"trained{loss}, evaluating for {note['since']:.0f} s"
    return f"epoch {note['done']:.1f} of {note['total']:g}{loss}"


def _progress(job: Job) -> dict[str, float]:
    try:
        path = job.store.root / job.experiment.name / job.key / "progress.json"
        return {"since": time.time() - path.stat().st_mtime, **json.loads(path.read_text())}
    except (OSError, ValueError):
        return {}
