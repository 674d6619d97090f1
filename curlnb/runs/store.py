"""The run store: every run is computed once, written whole, and found again.

An experiment is a function `f(run, *, seed, **parameters) -> dict` decorated with `@experiment`. `Store.run` executes it
unless a finished run with the same key is there. A run lives in its own folder,

    <store>/<experiment>/<key>/run.json            parameters, metrics, provenance: written last, so its presence means done
                               arrays.safetensors  what the experiment keeps beside its metrics
                               checkpoint.safetensors, progress.json   only while it runs
    <store>/trained/<key>.safetensors   what a training left that several experiments look at, each in its way

Nothing that is loaded is unpickled.
"""

import functools
import hashlib
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor

from curlnb.runs import environment, provenance
from curlnb.runs.devices import cpu_threads, default_device

Record = dict[str, Any]


class StoreError(RuntimeError):
    """A run that cannot be had, or an experiment that breaks the store's rules."""


# --- experiments ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """A named function from parameters and a seed to a flat dict of metrics."""

    function: Callable[..., dict[str, Any]]
    data: Callable[[dict[str, Any]], str]
    extends: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The last part of the module's name and the function's: `images.simclr`."""
        return f"{self.function.__module__.split('.')[-1]}.{self.function.__name__}"

    @functools.cached_property
    def _known(self) -> dict[str, inspect.Parameter]:
        """The function's own parameters and those of what it extends."""
        known: dict[str, inspect.Parameter] = {}
        for function in (self.extends, self.function):
            known |= dict(inspect.signature(function).parameters) if function else {}
        return {name: p for name, p in known.items() if name not in ("run", "seed") and p.kind is not p.VAR_KEYWORD}

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` with defaults filled in; an unknown or missing parameter is an error that names it."""
        known = self._known
        for name in given:
            if name not in known:
                raise StoreError(f"{self.name} has no parameter {name!r}; it has {', '.join(sorted(known))}")
        full = {name: _like(p.default, given.get(name, p.default)) for name, p in known.items()}
        missing = [name for name, value in full.items() if value is inspect.Parameter.empty]
        if missing:
            raise StoreError(f"{self.name} needs a value for {', '.join(missing)}")
        return full

    def identity(self, parameters: Mapping[str, Any], seed: int) -> str:
        """Digest of what was asked for: parameters that differ from their defaults, the seed, and the data; 16 hex digits.

        A default's value is code, and counts in `code`; so a new parameter leaves older runs' identities as they were.
        """
        full = self.parameters(parameters)
        asked = {name: value for name, value in full.items() if value != self._known[name].default}
        return _hash([self.name, asked, int(seed), self.data(full)])

    @functools.cached_property
    def code(self) -> str:
        """Digest of the code that makes this experiment's numbers (see `provenance.code_digest`)."""
        return provenance.code_digest(self.function)

    def key(self, parameters: Mapping[str, Any], seed: int) -> str:
        return _hash([self.identity(parameters, seed), self.code])

    def training(self, parameters: Mapping[str, Any], seed: int) -> str:
        """Key of the training that it shares with all that extend the same function; empty where it extends none."""
        if self.extends is None:
            return ""
        full, known = self.parameters(parameters), inspect.signature(self.extends).parameters
        asked = {name: full[name] for name, p in known.items() if name in full and full[name] != p.default}
        name = f"{self.extends.__module__}.{self.extends.__qualname__}"
        return _hash([name, asked, int(seed), self.data(full), provenance.code_digest(self.extends)])


def _like(default: Any, value: Any) -> Any:
    """1 given where the default is 0.0 is 1.0, so that it is the same run."""
    return float(value) if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool) else value


def experiment(
    function: Callable[..., dict[str, Any]] | None = None,
    *,
    data: Callable[[dict[str, Any]], str] = lambda _: "",
    extends: Callable[..., Any] | None = None,
) -> Any:
    """Decorator: make `function(run, *, seed, **parameters)` an `Experiment`; `data(parameters)` is the digest of its data.

    extends: the function that trains, to which it passes its `**` arguments on, and whose parameters are its own, too. What was trained is
    kept: of all experiments that extend it, the first with its arguments and seed trains, the others look at what it left.
    """
    if function is None:
        return lambda f: Experiment(f, data, extends)
    return Experiment(function, data, extends)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What an experiment sees of the store: a place for its checkpoint and arrays, and an ear for its progress."""

    folder: Path
    device: torch.device = field(default_factory=default_device)
    arrays: dict[str, Tensor] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)  # kept in the record's provenance: the precision really used, say
    trained: Path | None = None  # where its training is kept, or will be, for whoever shares it
    _told: float = 0.0

    def progress(self, done: float, total: float, **values: float) -> None:
        """Leave a small note of how far the run is (at most one a second) for whoever waits for it."""
        if time.monotonic() - self._told > 1:
            self._told = time.monotonic()
            write_json(self.folder / "progress.json", {"done": done, "total": total, **values})

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write tensors and a JSON state as one file, whole or not at all."""
        _save(self.folder / "checkpoint.safetensors", tensors, state)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint's tensors (on the run's device) and state, or those that the same training left in another run, or None."""
        for path in (self.folder / "checkpoint.safetensors", self.trained):
            if path is not None and path.exists():
                from safetensors import safe_open

                with safe_open(path, framework="pt") as file:
                    state = json.loads(file.metadata()["state"])
                return load_file(path, device=str(self.device)), state
        return None

    def keep_training(self) -> None:
        """Keep the last checkpoint for whoever shares the training, without the optimiser's moments: it takes no further step."""
        if self.trained is not None and not self.trained.exists() and (saved := self.load_checkpoint()):
            tensors, state = saved
            _save(self.trained, {name: t for name, t in tensors.items() if not name.startswith("optimizer/")}, state)


def _save(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    contiguous = {name: t.detach().contiguous() for name, t in tensors.items()}
    write_atomically(path, lambda p: save_file(contiguous, p, {"state": json.dumps(state)}))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, and rename it: readers see all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1)
    write_atomically(path, lambda p: p.write_text(text))


# --- the store --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """Runs under `root`; with `reference`, records are only looked up there and nothing is ever computed."""

    root: Path
    reference: Path | None = None

    def folder(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int) -> Path:
        return self.root / experiment.name / experiment.key(parameters, seed)

    def begin(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int, kind: Callable[[Path], Run] = Run) -> Run:
        """The run as the experiment sees it."""
        run, training = kind(self.folder(experiment, parameters, seed)), experiment.training(parameters, seed)
        run.trained = self.root / "trained" / f"{training}-{run.device.type}.safetensors" if training else None
        return run

    def find(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int) -> Record | None:
        """The finished run's record, or None."""
        if self.reference is not None:
            return self._find_reference(experiment, parameters, seed)
        path = self.folder(experiment, parameters, seed) / "run.json"
        return json.loads(path.read_text()) if path.exists() else None

    def _find_reference(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int) -> Record:
        identity = experiment.identity(parameters, seed)
        assert self.reference is not None
        record = read_reference(self.reference / f"{experiment.name}.jsonl").get(identity)
        if record is None:
            raise StoreError(f"no reference run of {experiment.name} with these parameters: run `make reproduce reference` and commit")
        return record

    def run(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int, *, wait: bool = True) -> Record | None:
        """The run's record, computed if it is not there yet.

        Another process at work on the same run is waited for; with `wait=False` None is returned instead. After a crash
        the run goes on from its last checkpoint.
        """
        if record := self.find(experiment, parameters, seed):
            return record
        folder = self.folder(experiment, parameters, seed)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder / "lock", timeout=-1 if wait else 0):
                return self.find(experiment, parameters, seed) or self._execute(experiment, parameters, seed, folder)
        except Timeout:
            return None

    def _execute(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int, folder: Path) -> Record:
        for leftover in folder.glob(".*"):  # what a killed writer left half done
            leftover.unlink(missing_ok=True)
        full, run, start = experiment.parameters(parameters), self.begin(experiment, parameters, seed), time.perf_counter()
        earlier = run.load_checkpoint()
        torch.manual_seed(seed)  # for initial weights and dropout; everything else draws from explicit generators
        with cpu_threads(int(os.environ.get("CURLNB_THREADS", 1)) if run.device.type == "cpu" else None) as threads:
            metrics = experiment.function(run, seed=seed, **full)
        if run.arrays:
            arrays = {name: a.detach().cpu().contiguous() for name, a in run.arrays.items()}
            write_atomically(folder / "arrays.safetensors", lambda p: save_file(arrays, p))
        record: Record = {
            "experiment": experiment.name,
            "parameters": full,
            "seed": seed,
            "metrics": metrics,
            "seconds": round(time.perf_counter() - start + (earlier[1].get("seconds", 0.0) if earlier else 0.0), 2),
            "device": str(run.device.type),
            "identity": experiment.identity(parameters, seed),
            "code": experiment.code,
            "machine": provenance.machine() | {"threads": threads} | run.notes,
            "commit": provenance.commit(),
        }
        run.keep_training()
        write_json(folder / "run.json", record)
        for name in ("checkpoint.safetensors", "progress.json"):
            (folder / name).unlink(missing_ok=True)
        return record

    def note_use(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int) -> None:
        """Remember that the running notebook stands on this run, so that `make reference` takes it along."""
        if self.reference is None and (notebook := environment.notebook_name()):
            path = self.root / "used" / f"{notebook.replace('/', '--')}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a") as file:
                file.write(f"{experiment.name}/{experiment.key(parameters, seed)}\n")

    def arrays(self, experiment: Experiment, parameters: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
        """The arrays that a finished run kept beside its metrics."""
        path = self.folder(experiment, parameters, seed) / "arrays.safetensors"
        if not path.exists():
            raise StoreError(f"no arrays kept for this run of {experiment.name}; run it first")
        return load_file(path)


def default_store(profile: str = "quick") -> Store:
    """The profile's store in the results folder; the committed reference runs alone where `CURLNB_REFERENCE` says so."""
    root = environment.results_root() / profile / "runs"
    return Store(root, environment.home() / "results" / "reference" / profile / "runs" if environment.reference_only() else None)


@functools.cache
def read_reference(path: Path) -> dict[str, Record]:
    """Reference records of one experiment by identity; one JSON object a line."""
    if not path.exists():
        return {}
    records = (json.loads(line) for line in path.read_text().splitlines())
    return {record["identity"]: record for record in records}
