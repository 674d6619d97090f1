"""Reference results: the committed claims, tables and run metrics of a finished reproduction, and
whether they still hold.

results/reference/<profile>/  claims.csv, tables/, provenance.json, runs/<experiment>.jsonl (one run
a line)

`make reproduce` never reads them; a notebook run by hand adopts them (`curlnb.runs.store`). `make
test` executes notebooks on top of them (`CURLNB_REFERENCE=1`), and computes a sample of runs again
and compares. `curlnb.companion.restamp` renews their digests after a refactoring. GPU results carry
their provenance and are shown beside the others, not recomputed.
"""

import contextlib
import fnmatch
import functools
import itertools
import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from curlnb.data import control_frames
from curlnb.experiments import all_experiments
from curlnb.runs import environment, files, provenance
from curlnb.runs.experiment import Asked, Experiment
from curlnb.runs.files import write_atomically
from curlnb.runs.store import Record, Store, read_reference, reference_place

ROTATION = 10  # commits within which the sample of `make test` reaches every experiment


def folder(profile: str) -> Path:
    return environment.reference_folder() / profile


def experiment_named(name: str) -> Experiment:
    """`images.simclr` -> the experiment of that name. ValueError, with the names that there are."""
    known = {each.name: each for each in all_experiments()}
    if name not in known:
        raise ValueError(f"no experiment {name!r}; there are {', '.join(known)}")
    return known[name]


def asked_by(record: Record) -> Asked:
    """The run that a record is of, as it would be asked for now."""
    return experiment_named(record["experiment"]).asked(record["parameters"], record["seed"])


def records(profile: str = "quick") -> list[Record]:
    """All committed reference runs of a profile."""
    return records_in(folder(profile))


def records_in(reference: Path) -> list[Record]:
    return [
        record
        for path in sorted((reference / "runs").glob("*.jsonl"))
        for record in read_reference(path).values()
    ]


def stale(profile: str = "quick") -> dict[str, str]:
    """Experiment -> one line that says why its reference runs are stale; empty when all hold."""
    problems = {each["experiment"]: why for each in records(profile) if (why := why_stale(each))}
    return {
        name: f"reference runs of {name} are stale: {why}. Run `make reproduce reference`; after a "
        "pure refactoring `make restamp` will do; `curlnb why` names what changed"
        for name, why in problems.items()
    }


def why_stale(record: Record) -> str:
    """Why a run would not be computed as it was; empty where it would."""
    try:
        asked = asked_by(record)
        identity = asked.identity
    except Exception as error:
        return f"its parameters changed ({error})"
    if record["code"] != asked.code:
        return "its code changed"
    return "" if record["identity"] == identity else "its defaults or its data changed"


def sample(profile: str, count: int, commit: str, *, seconds: float = 10) -> list[Record]:
    """Reference runs to compute again at a commit, the `count`-th: they rotate, and reach every
    experiment within ROTATION commits.

    One run of each experiment whose turn it is, drawn by the commit's name; then others while their
    time fits in `seconds`.
    """
    drawn = shuffled(records(profile), commit)
    firsts = {record["experiment"]: record for record in reversed(drawn)}
    chosen = [firsts[name] for name in sorted(firsts)[count % ROTATION :: ROTATION]]
    spent = sum(record["seconds"] for record in chosen)
    for record in drawn:
        if record not in chosen and spent + record["seconds"] <= seconds:
            chosen.append(record)
            spent += record["seconds"]
    return chosen


def shuffled(records: list[Record], commit: str) -> list[Record]:
    """In an order that a commit's name gives."""
    ordered = sorted(records, key=lambda record: record["identity"])
    random.Random(commit).shuffle(ordered)
    return ordered


def present_commit() -> tuple[int, str]:
    """How many commits led to the checkout's, and its name; (0, "") outside a git checkout."""
    return int(provenance.git("rev-list", "--count", "HEAD") or 0), provenance.git(
        "rev-parse", "HEAD"
    )


def recompute(record: Record) -> list[str]:
    """Compute a reference run again, in an empty store. Returns the metrics that disagree, a line
    each: bit for bit where both are of one machine, else beyond the stated tolerance.

    A run that needs frames is passed over where none can be rendered, as its notebook is.
    """
    with tempfile.TemporaryDirectory() as empty:
        try:
            new = Store(Path(empty)).run(asked_by(record))
        except control_frames.Unavailable:
            return []
    assert new is not None
    same, now = record["machine"] == new["machine"], new["metrics"]
    which, experiment = "same" if same else "another", record["experiment"]
    return [
        f"{experiment} {name}: {now.get(name)} now, {value} in the reference ({which} machine)"
        for name, value in record["metrics"].items()
        if not agree(value, now.get(name), None if same else tolerance(experiment, name))
    ]


@functools.cache
def _tolerances() -> list[tuple[str, float, float]]:
    table = pd.read_csv(Path(__file__).with_name("tolerances.csv"))
    return [*zip(table["metric"], table["absolute"], table["relative"], strict=True)]


def tolerance(experiment: str, metric: str) -> tuple[float, float]:
    """(absolute, relative) by which a metric may differ on other hardware or versions: the first
    row of tolerances.csv that fits its name.

    Infinite for picture_*, t-SNE's places and the images shown beside: they are drawings, which a
    last bit turns over.
    """
    for pattern, absolute, relative in _tolerances():
        if fnmatch.fnmatchcase(f"{experiment}.{metric}", pattern):
            return absolute, relative
    raise ValueError(
        f"{experiment}'s metric {metric!r} has no tolerance: "
        "add a row to curlnb/companion/tolerances.csv"
    )


def agree(old: Any, new: Any, within: tuple[float, float] | None) -> bool:
    """Whether two values of a metric agree: equal where `within` is None, else apart by at most
    absolute + relative x the larger.
    """
    if old == new or within is None:
        return bool(old == new)
    absolute, relative = within
    if math.isinf(absolute):
        return True
    try:
        a, b = np.asarray(old, float), np.asarray(new, float)
    except (TypeError, ValueError):  # no numbers
        return False
    near = a.shape == b.shape and abs(a - b) <= absolute + relative * np.maximum(abs(a), abs(b))
    return bool(np.all(near))


@contextlib.contextmanager
def former_code(path: Path, *folders: str) -> Iterator[tuple[str, Path]]:
    """The commit that last wrote a reference file, and a temporary folder with these folders of the
    checkout as they were then. ValueError outside a git checkout.
    """
    commit = provenance.git("log", "-1", "--format=%H", "--", str(path))
    if not commit:
        raise ValueError(f"{path} is in no git checkout, which alone knows the code that wrote it")
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "former.tar"
        provenance.git("archive", f"--output={archive}", commit, *folders)
        shutil.unpack_archive(archive, folder, filter="data")
        yield commit, Path(folder)


def write_runs(found: Iterable[Record], target: Path) -> None:
    """Write runs into a reference's folder, a file for each of their experiments."""
    ordered = sorted(
        found,
        key=lambda r: (r["experiment"], json.dumps(r["parameters"], sort_keys=True), r["seed"]),
    )
    for name, own in itertools.groupby(ordered, key=lambda r: r["experiment"]):
        text = "".join(
            json.dumps(files.seal(record, reference_place(name))) + "\n" for record in own
        )
        write_atomically(target / f"{name}.jsonl", lambda p, text=text: p.write_text(text))  # type: ignore[misc]
    read_reference.cache_clear()  # the next promotion would lose the difference
