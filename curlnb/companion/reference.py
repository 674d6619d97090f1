"""Reference results: the committed claims, tables and run metrics of a finished reproduction, and whether they still hold.

results/reference/<profile>/  claims.csv, tables/, provenance.json, runs/<experiment>.jsonl (one run a line)

`make reproduce` never reads them. `make test` does: notebooks are executed on top of them (`CURLNB_REFERENCE=1`), and a sample of runs is
computed again and compared. GPU results carry their provenance and are shown beside the others, not recomputed.
"""

import importlib
import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from curlnb.companion import claims
from curlnb.companion.reproduce import inputs_of, name_of, notebooks
from curlnb.data import control_frames
from curlnb.runs import environment, provenance
from curlnb.runs.experiment import Experiment
from curlnb.runs.files import write_atomically, write_json
from curlnb.runs.store import Record, Store, read_reference

SHARE_TOLERANCE = 0.05  # of an accuracy (a share in [0, 1]) on other hardware or versions: training amplifies the last bit
RELATIVE_TOLERANCE = 0.1  # of other metrics there


def folder(profile: str) -> Path:
    return environment.home() / "results" / "reference" / profile


def experiment_named(name: str) -> Experiment:
    """`images.simclr` -> the experiment in curlnb.experiments.images."""
    module, function = name.split(".")
    return getattr(importlib.import_module(f"curlnb.experiments.{module}"), function)


def records(profile: str = "quick") -> list[Record]:
    """All committed reference runs of a profile."""
    return [record for path in sorted((folder(profile) / "runs").glob("*.jsonl")) for record in read_reference(path).values()]


def stale(profile: str = "quick") -> list[str]:
    """One line for each experiment whose code, parameters or data changed since its reference runs; empty when all hold."""
    problems = {}
    for record in records(profile):
        try:
            experiment = experiment_named(record["experiment"])
            identity = experiment.identity(record["parameters"], record["seed"])
        except Exception as error:
            problems[record["experiment"]] = f"its parameters changed ({error})"
            continue
        if record["code"] != experiment.code:
            problems[record["experiment"]] = "its code changed"
        elif record["identity"] != identity:
            problems[record["experiment"]] = "its defaults or its data changed"
    return [
        f"reference runs of {name} are stale: {why}. Run `make reproduce reference`; after a pure refactoring `make restamp` will do"
        for name, why in problems.items()
    ]


def sample(profile: str, seed: str, *, seconds: float) -> list[Record]:
    """A random sample of reference runs, drawn by `seed`: one an experiment at least, more while their time fits in `seconds`."""
    shuffled = sorted(records(profile), key=lambda record: record["identity"])
    random.Random(seed).shuffle(shuffled)
    chosen: dict[str, Record] = {}
    for record in shuffled:
        chosen.setdefault(record["experiment"], record)
    spent, more = sum(record["seconds"] for record in chosen.values()), []
    for record in shuffled:
        if record not in chosen.values() and spent + record["seconds"] <= seconds:
            more.append(record)
            spent += record["seconds"]
    return [*chosen.values(), *more]


def recompute(record: Record) -> list[str]:
    """Compute a reference run again, in an empty store. Returns what disagrees, a line each.

    Bit for bit on the same hardware and versions; elsewhere shares of test samples within SHARE_TOLERANCE, the rest within
    RELATIVE_TOLERANCE. Metrics named picture_*, t-SNE's places and the images shown beside, are left out there: they are drawings, which a
    last bit turns over. A run that needs frames is passed over where none can be rendered, as its notebook is.
    """
    with tempfile.TemporaryDirectory() as empty:
        try:
            new = Store(Path(empty)).run(experiment_named(record["experiment"]), record["parameters"], record["seed"])
        except control_frames.Unavailable:
            return []
    assert new is not None
    same = new["machine"] == record["machine"]
    return [
        f"{record['experiment']} {name}: {new['metrics'].get(name)} now, {old} in the reference ({'same' if same else 'another'} machine)"
        for name, old in record["metrics"].items()
        if (same or not name.startswith("picture_")) and not _agree(old, new["metrics"].get(name), exact=same)
    ]


def _agree(old: Any, new: Any, *, exact: bool) -> bool:
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(_agree(a, b, exact=exact) for a, b in zip(old, new, strict=True))
    if new is None or exact:
        return old == new or (isinstance(old, float) and isinstance(new, float) and math.isnan(old) and math.isnan(new))
    share = -1 <= old <= 1 and -1 <= new <= 1  # an accuracy, or a similarity or silhouette
    return abs(old - new) <= (SHARE_TOLERANCE if share else RELATIVE_TOLERANCE * max(abs(old), abs(new)))


def promote(profile: str = "quick") -> str:
    """Make the finished reproduction in results/<profile> the reference; at quick, its executed notebooks become the committed ones.

    Returns a line that says what was promoted. ValueError where a notebook is not finished or not up to date: run `make reproduce`.
    """
    results, target = environment.results_root() / profile, folder(profile)
    status_file = results / "status.json"
    status = json.loads(status_file.read_text()) if status_file.exists() else {}
    books = [path for path in notebooks() if profile == "quick" or status.get(name_of(path), {}).get("state") == "done"]
    for path in books:
        if status.get(name_of(path), {}).get("state") != "done":
            raise ValueError(f"{name_of(path)} has not been reproduced at {profile}: run `make reproduce PROFILE={profile}` first")
        if status[name_of(path)]["inputs"] != inputs_of(path, profile):
            raise ValueError(f"{name_of(path)} or what it stands on has changed since: run `make reproduce PROFILE={profile}` first")
    names = [name_of(path) for path in books]
    lists = [results / "runs" / "used" / f"{name.replace('/', '--')}.txt" for name in names]
    used = {line for file in lists if file.exists() for line in file.read_text().split()}
    found = [json.loads((results / "runs" / key / "run.json").read_text()) for key in sorted(used)]
    with tempfile.TemporaryDirectory(dir=results) as fresh_name:
        fresh = Path(fresh_name) / "reference"
        (fresh / "tables").mkdir(parents=True)
        ledger = claims.read(results / "claims.csv")
        ledger[ledger["notebook"].isin(names)].to_csv(fresh / "claims.csv", index=False, float_format="%.6g", lineterminator="\n")
        seconds = {name_of(path): status[name_of(path)]["longest"] for path in books}
        write_json(fresh / "provenance.json", json.loads((results / "provenance.json").read_text()) | {"notebook_seconds": seconds})
        for table in (results / "tables").rglob("*.csv"):
            place = table.relative_to(results / "tables")
            if place.as_posix().startswith(tuple(f"{name}-" for name in names)):
                (fresh / "tables" / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(table, fresh / "tables" / place)
        _write_runs(found, fresh / "runs")
        for measured in results.glob("bench*.csv"):
            shutil.copy(measured, fresh / measured.name)
        target.mkdir(parents=True, exist_ok=True)
        for piece in fresh.iterdir():  # benchmarks stay where this reproduction made none
            shutil.rmtree(target / piece.name, ignore_errors=True)
            shutil.move(piece, target / piece.name)
    if profile == "quick":
        for path in books:
            write_executed(results / "notebooks" / f"{name_of(path)}.ipynb", path)
    return f"{len(found)} runs and {len(books)} notebooks are the {profile} reference now, in {target}"


def _write_runs(found: Iterable[Record], target: Path) -> None:
    by_experiment: dict[str, list[Record]] = {}
    for record in found:
        by_experiment.setdefault(record["experiment"], []).append(record)
    for name, own in by_experiment.items():
        own.sort(key=lambda r: (json.dumps(r["parameters"], sort_keys=True), r["seed"]))
        text = "".join(json.dumps(record) + "\n" for record in own)
        write_atomically(target / f"{name}.jsonl", lambda p, text=text: p.write_text(text))  # type: ignore[misc]


def write_executed(executed: Path, target: Path) -> None:
    """Put an executed notebook's outputs into the committed one, without what differs from machine to machine."""
    book = nbformat.read(executed, as_version=4)
    book.metadata = {name: book.metadata[name] for name in ("kernelspec", "language_info") if name in book.metadata}
    book.metadata.get("language_info", {}).pop("version", None)
    for cell in book.cells:
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "tags" and value}
    write_atomically(target, lambda p: nbformat.write(book, p))


def restamp(profile: str = "quick", *, seconds: float = 600) -> str:
    """After a pure refactoring: recompute a sample of the runs and, where all agree bit for bit, give them the new digest.

    ValueError where a run disagrees, or this machine is not the reference's.
    """
    for record in sample(profile, "restamp", seconds=seconds):
        if problems := recompute(record):
            raise ValueError(f"not a pure refactoring: {problems[0]}. Run `make reproduce reference`")
        if record["machine"] != provenance.machine() | {k: v for k, v in record["machine"].items() if k not in provenance.machine()}:
            raise ValueError("the reference was made on other hardware or versions, where runs cannot be compared bit for bit")
    renewed = []
    for record in records(profile):
        experiment = experiment_named(record["experiment"])
        renewed.append(record | {"code": experiment.code, "identity": experiment.identity(record["parameters"], record["seed"])})
    _write_runs(renewed, folder(profile) / "runs")
    return f"{len(renewed)} reference runs have the present code's digest"
