"""The run store: every run is computed once, written whole, and found again.

`Store.run` executes an experiment (`curlnb.runs.experiment`) unless a finished run with the same
key is there. A key holds what was asked for, the code that computes it, and the numerics.

    <store>/<experiment>/<key>/run.json              parameters, metrics, provenance; written last
                               arrays.safetensors    what it keeps beside its metrics, its curve
                               checkpoint.safetensors, progress.json      while it runs
    <store>/trained/<key>.safetensors                a training that several experiments share

What is damaged is set aside and computed again (`curlnb.runs.files`).
"""

import contextlib
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from curlnb.runs import environment, files, provenance
from curlnb.runs.devices import default_device, in_force, other_numerics
from curlnb.runs.experiment import Asked, Experiment, StoreError, as_json, grouped

Record = dict[str, Any]

CURVE = "curve/"  # before a learning curve's name among a run's arrays
ARRAYS = "arrays.safetensors"
COSTS = ("experiment", "seconds", "device", "identity", "origin")  # columns of a table


@dataclass
class Run:
    """What an experiment sees of the store: where its checkpoint, arrays and progress go."""

    folder: Path
    device: torch.device = field(default_factory=default_device)
    arrays: dict[str, Tensor] = field(default_factory=dict)
    curve: dict[str, list[float]] = field(default_factory=dict)  # scalar -> a number an epoch
    notes: dict[str, Any] = field(default_factory=dict)  # kept in the record's provenance
    trained: Path | None = None  # where a shared training is kept
    _last_note: float = 0.0

    def progress(self, done: float, total: float, **values: float) -> None:
        """Note how far the run is, at most once a second and at the end, for those who wait."""
        if time.monotonic() - self._last_note > 1 or done >= total:
            self._last_note = time.monotonic()
            note = {"done": done, "total": total, **values}
            with contextlib.suppress(OSError):  # a run does not fail for want of a note
                files.write_json(self.folder / "progress.json", note)

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write tensors and a JSON state as one file, whole or not at all."""
        files.save_tensors(self.folder / "checkpoint.safetensors", tensors, state)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint's tensors (on the run's device) and state, or those that the same
        training left in another run, or None.
        """
        own = files.load_tensors(self.folder / "checkpoint.safetensors", self.device)
        if own or self.trained is None:
            return own
        return files.load_tensors(self.trained, self.device)

    def keep_training(self) -> None:
        """Keep the last checkpoint for experiments that share the training, without the optimiser's
        moments: no step follows.
        """
        if self.trained is None or self.trained.exists() or not (saved := self.load_checkpoint()):
            return
        kept = {n: t for n, t in saved[0].items() if not n.startswith("optimizer/")}
        files.save_tensors(self.trained, kept, saved[1])

    def tidy(self) -> None:
        """Remove what a run needs only while it runs."""
        for name in ("checkpoint.safetensors", "progress.json"):
            (self.folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Store:
    """Runs under `root`, and the committed runs in `reference`, if given.

    reference_only: `find` and `run` only look records up in `reference` and compute nothing.
    Otherwise a reference run is *adopted* if the store has no run of its own and the reference's
    code is the present one, whatever its numerics.
    """

    root: Path
    reference: Path | None = None
    reference_only: bool = False

    def folder(self, asked: Asked) -> Path:
        return self.root / asked.experiment.name / asked.key

    def begin(self, asked: Asked) -> Run:
        """The run as the experiment sees it."""
        training = asked.training_key
        trained = self.root / "trained" / f"{training}.safetensors" if training else None
        return Run(self.folder(asked), trained=trained)

    def find(
        self, experiment: Experiment, parameters: Mapping[str, Any], seed: int
    ) -> Record | None:
        """The finished run's record, or None. Its "origin" is "computed", or "reference" if
        adopted, followed by the numerics that differ.
        """
        return self.found(experiment.asked(parameters, seed))

    def found(self, asked: Asked) -> Record | None:
        """See `find`."""
        if not self.reference_only and (record := _finished(self.folder(asked))):
            return record
        name = asked.experiment.name
        if self.reference is not None:
            found = read_reference(self.reference / f"{name}.jsonl").get(asked.identity)
            if found and (self.reference_only or found["code"] == asked.code):
                others = other_numerics(found.get("numerics", {}), asked.numerics)
                return found | {"origin": ", ".join(["reference", *others])}
        if self.reference_only:
            raise StoreError(
                f"no reference run of {name} with these parameters: "
                "run `make reproduce reference` and commit"
            )
        return None

    def run(self, asked: Asked, *, wait: bool = True) -> Record | None:
        """The run's record, computed if it is not there yet.

        Waits for another process that computes the same run, or a training that it shares; with
        `wait=False` returns None instead. After a crash the run resumes from its last checkpoint.
        It is stored under its present key: your own part may have changed since the run was
        requested.
        """
        asked = replace(asked)
        if record := self.found(asked):
            return record
        run = self.begin(asked)
        locks = [run.folder / "lock"]
        # else two experiments that share a training would both train at once
        if run.trained is not None and not run.trained.exists():
            locks.append(run.trained.with_suffix(".lock"))
        try:
            with contextlib.ExitStack() as held:
                for lock in locks:
                    held.enter_context(FileLock(lock, timeout=-1 if wait else 0))
                return _finished(run.folder) or _execute(asked, run)
        except Timeout:
            return None

    def note_use(self, asked: Asked) -> None:
        """Record that the running notebook uses this run, so that `make reference` includes the
        run.
        """
        if not self.reference_only and (notebook := environment.notebook_name()):
            path = self.root / "used" / f"{notebook.replace('/', '--')}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a") as file:
                file.write(f"{asked.experiment.name}/{asked.key}\n")

    def arrays(self, asked: Asked) -> dict[str, Tensor]:
        """What the run kept beside its metrics, its learning curve too: name -> tensor. A run that
        is not in this store is computed first.
        """
        asked = replace(asked)
        Store(self.root).run(asked)
        saved = files.load_tensors(self.folder(asked) / ARRAYS)
        return saved[0] if saved else {}

    def curve(
        self, experiment: Experiment, parameters: Mapping[str, Any], seed: int
    ) -> dict[str, list[float]]:
        """The run's learning curve: for "loss" and each scalar that its training logs, a list with
        one number per epoch. See `arrays`.
        """
        kept = self.arrays(experiment.asked(parameters, seed)).items()
        return {n.removeprefix(CURVE): t.tolist() for n, t in kept if n.startswith(CURVE)}

    def trained(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int) -> Any:
        """What the run's training returns, including the trained network, which is loaded if it is
        in this store.

        `store.trained(simclr, dict(objective="hard", tau_plus=0.1, beta=1.0), 0).model` is the
        network of a finished run. StoreError for an experiment that keeps no training.
        """
        if experiment.training is None:
            raise StoreError(
                f"{experiment.name} keeps no trained network: `@experiment(training=...)` says "
                "which function trains it"
            )
        asked = experiment.asked(parameters, seed)
        Store(self.root).run(asked)
        run = self.begin(asked)
        precision = asked.numerics["precision"]
        with FileLock(run.folder / "lock"), in_force(asked.seed, precision, run.device):
            # trains where the network was lost
            arguments = grouped(experiment.training, asked.parameters)
            found = experiment.training(run, seed=asked.seed, **arguments)
            run.keep_training()
            run.tidy()
            return found


def _finished(folder: Path) -> Record | None:
    """The record in a run's folder, if it and the run's arrays are whole."""
    record = files.read_sealed(folder / "run.json")
    if not record or (record["arrays"] and files.load_tensors(folder / ARRAYS) is None):
        return None
    return record | {"origin": "computed"}


def _execute(asked: Asked, run: Run) -> Record:
    experiment, full, seed = asked.experiment, asked.parameters, asked.seed
    for leftover in run.folder.glob(".*"):  # what a killed writer left half done
        leftover.unlink()
    start, earlier = time.perf_counter(), run.load_checkpoint()
    before = earlier[1].get("seconds", 0.0) if earlier else 0.0
    with in_force(seed, asked.numerics["precision"], run.device) as threads:
        metrics = experiment.call(run, full, seed)
        arrays = run.arrays | {
            f"{CURVE}{name}": torch.tensor(values, dtype=torch.float64)
            for name, values in run.curve.items()
        }
    if taken := {*metrics} & {*full, "seed", *COSTS}:
        raise StoreError(
            f"{experiment.name} returned a metric {min(taken)!r}, which a table has a column "
            "of: give it another name"
        )
    try:
        json.dumps(metrics, allow_nan=False)
    except (TypeError, ValueError):
        raise StoreError(
            f"{experiment.name} returned NaN, infinity, or what is no number or text, among its "
            "metrics: such a run is not kept"
        ) from None
    if arrays:
        files.save_tensors(run.folder / ARRAYS, arrays, {})
    record: Record = {
        "experiment": experiment.name,
        "parameters": as_json(full, digests=False),
        "seed": seed,
        "metrics": metrics,
        "seconds": round(time.perf_counter() - start + before, 2),
        "device": run.device.type,
        "identity": asked.identity,
        "code": asked.code,
        "numerics": asked.numerics,
        "machine": provenance.machine() | {"threads": threads} | run.notes,
        "commit": provenance.commit(),
        "arrays": sorted(arrays),
    }
    run.keep_training()
    files.write_sealed(run.folder / "run.json", record)
    run.tidy()
    return record | {"origin": "computed"}


def default_store(profile: str = "quick") -> Store:
    """The profile's store in the results folder, which adopts committed reference runs unless
    CURLNB_ADOPT is 0, as in `make reproduce`.

    Where `CURLNB_REFERENCE` is 1 the reference runs are all there is.
    """
    reference = environment.reference_folder() / profile / "runs"
    adopt = environment.adopt() or environment.reference_only()
    return Store(
        environment.results_root() / profile / "runs",
        reference if adopt else None,
        environment.reference_only(),
    )


@functools.cache
def read_reference(path: Path) -> dict[str, Record]:
    """Reference records of one experiment by identity; one JSON object a line.

    The file is committed, so a damaged line is not set aside: it is named, and counts as absent.
    """
    found = {}
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = files.unseal(json.loads(line), reference_place(path.stem))
            found[record["identity"]] = record
        except ValueError as error:
            files.say(
                f"{path}, line {number}, is damaged ({error}): it counts as absent; "
                "`git checkout` restores it"
            )
    return found


def reference_place(experiment: str) -> str:
    """What the seal of a reference record is bound to."""
    return f"runs/{experiment}.jsonl"
