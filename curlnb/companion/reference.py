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
import csv
import fnmatch
import functools
import itertools
import json
import math
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from curlnb.companion import ledger, notebooks
from curlnb.companion.notebooks import name_of
from curlnb.companion.reproduce import changed, inputs_of, read_status, reproduce
from curlnb.data import control_frames
from curlnb.experiments import all_experiments
from curlnb.runs import environment, files, provenance
from curlnb.runs.experiment import Experiment
from curlnb.runs.files import read_json, write_atomically, write_json
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


def records(profile: str = "quick") -> list[Record]:
    """All committed reference runs of a profile."""
    return _records_in(folder(profile))


def _records_in(reference: Path) -> list[Record]:
    return [
        record
        for path in sorted((reference / "runs").glob("*.jsonl"))
        for record in read_reference(path).values()
    ]


def stale(profile: str = "quick") -> dict[str, str]:
    """Experiment -> one line that says why its reference runs are stale; empty when all hold."""
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
    return {
        name: f"reference runs of {name} are stale: {why}. Run `make reproduce reference`; after a pure refactoring `make restamp` will do"
        for name, why in problems.items()
    }


def sample(profile: str, count: int, commit: str, *, seconds: float = 30) -> list[Record]:
    """Reference runs to compute again at a commit, the `count`-th: they rotate, and reach every
    experiment within ROTATION commits.

    One run of each experiment whose turn it is, drawn by the commit's name; then others while their
    time fits in `seconds`.
    """
    shuffled = sorted(records(profile), key=lambda record: record["identity"])
    random.Random(commit).shuffle(shuffled)
    names = sorted({record["experiment"] for record in shuffled})
    turn = {name for index, name in enumerate(names) if index % ROTATION == count % ROTATION}
    chosen = [
        next(record for record in shuffled if record["experiment"] == name) for name in sorted(turn)
    ]
    spent = sum(record["seconds"] for record in chosen)
    for record in shuffled:
        if record not in chosen and spent + record["seconds"] <= seconds:
            chosen.append(record)
            spent += record["seconds"]
    return chosen


def present_commit() -> tuple[int, str]:
    """How many commits led to the checkout's, and its name; (0, "") outside a git checkout."""
    return int(provenance.git("rev-list", "--count", "HEAD") or 0), provenance.git(
        "rev-parse", "HEAD"
    )


def recompute(record: Record) -> list[str]:
    """Compute a reference run again, in an empty store. Returns what disagrees, a line each
    (`disagreements`).

    A run that needs frames is passed over where none can be rendered, as its notebook is.
    """
    with tempfile.TemporaryDirectory() as empty:
        try:
            new = Store(Path(empty)).run(
                experiment_named(record["experiment"]), record["parameters"], record["seed"]
            )
        except control_frames.Unavailable:
            return []
    assert new is not None
    return disagreements(record, new)


def same_machine(record: Record) -> bool:
    """Whether a record was made on this machine's kind of hardware and with its versions, where
    runs agree bit for bit.
    """
    here = provenance.machine()
    return all(record["machine"].get(name) == value for name, value in here.items())


def disagreements(old: Record, new: Record) -> list[str]:
    """Metrics in which two records of one run differ: bit for bit where both are of one machine,
    else beyond the stated tolerance.
    """
    same = old["machine"] == new["machine"]
    return [
        f"{old['experiment']} {name}: {new['metrics'].get(name)} now, {value} in the reference ({'same' if same else 'another'} machine)"
        for name, value in old["metrics"].items()
        if not agree(
            value, new["metrics"].get(name), None if same else tolerance(old["experiment"], name)
        )
    ]


@functools.cache
def _tolerances() -> list[tuple[str, float, float]]:
    with open(Path(__file__).with_name("tolerances.csv"), newline="") as file:
        return [
            (row["metric"], float(row["absolute"]), float(row["relative"]))
            for row in csv.DictReader(file)
        ]


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
        f"{experiment}'s metric {metric!r} has no tolerance: add a row to curlnb/companion/tolerances.csv"
    )


def agree(old: Any, new: Any, within: tuple[float, float] | None) -> bool:
    """Whether two values of a metric agree: equal where `within` is None, else apart by at most
    absolute + relative x the larger.
    """
    if within is None:
        return bool(old == new)
    if math.isinf(within[0]):
        return True
    if isinstance(old, list):
        return (
            isinstance(new, list)
            and len(old) == len(new)
            and all(agree(a, b, within) for a, b in zip(old, new, strict=True))
        )
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return bool(old == new)
    return abs(old - new) <= within[0] + within[1] * max(abs(old), abs(new))


def renew(profile: str, selected: Sequence[str]) -> str:
    """Execute notebooks on the committed runs, and put what comes out in the place of what is
    committed of them.

    Runs that are found neither here nor there are computed; all that were computed here become
    reference runs. What is committed of other notebooks stays, and so do the seconds of the
    reproduction behind the reference. Notebooks that read the ledger come after the others have
    taken their places. Returns a line that says what was done. RuntimeError where a notebook fails:
    what came before it is renewed.
    """
    paths, said = notebooks.with_profile(notebooks.find(selected), profile), []
    if not paths:
        raise ValueError(f"none of {', '.join(selected)} has settings for {profile}")
    if profile == "quick" and not folder(profile).exists():
        raise ValueError("no reference is committed yet: run `make reproduce reference` first")
    for last in (False, True):
        if group := [path for path in paths if notebooks.needs(path).last == last]:
            with _settings_as_committed(profile, group):
                if failed := reproduce(profile, [str(path) for path in group], adopt=True):
                    raise RuntimeError(
                        f"{failed} of {len(group)} notebooks failed: mend them, and run the same command again"
                    )
                said.append(promote(profile, group))
    return "\n".join(said)


@contextlib.contextmanager
def _settings_as_committed(profile: str, paths: Sequence[Path]) -> Iterator[None]:
    """Inside, the settings of notebooks are no changed ones to their ledgers: they become the
    committed ones, unless the block fails.
    """
    place = folder(profile) / "provenance.json"
    before = read_json(place) if place.exists() else None
    if before is not None:
        write_json(
            place, before | {"settings": before["settings"] | _settings_digests(profile, paths)}
        )
    try:
        yield
    except BaseException:
        if before is not None:
            write_json(place, before)
        raise


def _settings_digests(profile: str, paths: Iterable[Path]) -> dict[str, str]:
    return {
        name_of(path): notebooks.digest_of_settings(notebooks.settings_of(path)[1][profile])
        for path in paths
    }


def promote(profile: str = "quick", renewed: Sequence[Path] = ()) -> str:
    """Make the finished reproduction in results/<profile> the reference; at quick, its executed
    notebooks become the committed ones.

    Quick has to be whole. Of another profile what is finished here takes its notebooks' places, and
    the others' results stay. renewed: notebooks that were executed on the committed runs (`renew`),
    and that alone take their places. Returns a line that says what was promoted. ValueError where a
    notebook is not finished or not up to date: run `make reproduce`.
    """
    results = environment.results_root() / profile
    try:
        with files.lock(results / "lock", 0) if results.is_dir() else contextlib.nullcontext():
            return _promote(profile, results, folder(profile), renewed)
    except Timeout:
        raise RuntimeError(f"a `make reproduce` is at work in {results}: wait for it") from None


def _promote(profile: str, results: Path, target: Path, renewed: Sequence[Path]) -> str:
    status = read_status(results / "status.json")
    candidates = notebooks.with_profile(notebooks.find(), profile)
    problems = {
        path: _unfinished(results, status.get(name_of(path), {}), path, profile, bool(renewed))
        for path in renewed or candidates
    }
    books = [path for path, problem in problems.items() if not problem]
    left_out = [problem for problem in problems.values() if problem]
    if not books or (left_out and (renewed or profile == "quick")):
        why = left_out[0] if left_out else f"no notebook has settings for {profile}"
        raise ValueError(f"{why}: run `make reproduce PROFILE={profile}` first")
    names = [name_of(path) for path in books]
    lists = [results / "runs" / "used" / f"{name.replace('/', '--')}.txt" for name in names]
    used = {line for file in lists if file.exists() for line in file.read_text().split()}
    paths = [results / "runs" / key / "run.json" for key in sorted(used)]
    found = [record for path in paths if (record := files.read_sealed(path)) is not None]
    if not renewed and (absent := [path for path in paths if not path.exists()]):
        raise ValueError(
            f"{absent[0]} is lost: remove {results / 'status.json'}, and run `make reproduce PROFILE={profile}` again"
        )
    with tempfile.TemporaryDirectory(dir=results) as fresh_name:
        fresh = Path(fresh_name) / "reference"
        (fresh / "tables").mkdir(parents=True)
        claims = ledger.read(results / ledger.FILE)
        judged = claims[claims["notebook"].isin(names)].assign(
            profile=profile
        )  # settings that were changed are the committed ones now
        ledger.write(judged, fresh / ledger.FILE)
        seconds = {name: status[name]["longest"] for name in names}
        settings = _settings_digests(profile, books)
        about = read_json(results / "provenance.json")
        if renewed and (target / "provenance.json").exists():
            before = read_json(target / "provenance.json")
            seconds |= {
                name: before["notebook_seconds"][name]
                for name in names
                if name in before["notebook_seconds"]
            }
            about = before | {
                "judged": before.get("judged", {})
                | {name: about[name] for name in ("date", "commit", "machine")}
            }
        write_json(
            fresh / "provenance.json", about | {"notebook_seconds": seconds, "settings": settings}
        )
        _copy_tables(results, fresh, names)
        write_runs(found, fresh / "runs")
        others = [name for name in map(name_of, candidates) if name not in names]
        if (others or renewed) and target.exists():
            _keep_others(target, fresh, others)
        for measured in results.glob("bench*.csv"):
            shutil.copy(measured, fresh / measured.name)
        target.mkdir(parents=True, exist_ok=True)
        for piece in fresh.iterdir():  # benchmarks stay where this reproduction made none
            shutil.rmtree(target / piece.name, ignore_errors=True)
            shutil.move(piece, target / piece.name)
    # what was read before is no longer what stands there; the next promotion would lose the
    # difference
    read_reference.cache_clear()
    for name, path in zip(names, books, strict=True) if profile == "quick" else ():
        write_executed(results / "notebooks" / f"{name}.ipynb", path)
    rest = f"; what is committed of others stays: {'; '.join(left_out)}" if left_out else ""
    if renewed:
        return f"{', '.join(names)}: judged anew on the {profile} reference, to which {len(found)} runs were added or computed again"
    return f"{len(found)} runs and {len(books)} notebooks are the {profile} reference now, in {target}{rest}"


def _unfinished(
    results: Path, status: dict[str, Any], path: Path, profile: str, adopted: bool
) -> str:
    """Why a notebook's results cannot be promoted; empty where they can. adopted: whether it may
    stand on adopted runs.
    """
    if status.get("state") != "done" or (status.get("adopted") and not adopted):
        return f"{name_of(path)} has not been reproduced at {profile}"
    if lost := changed(results, status["left"]):
        return f"{results / lost[0]} was changed or lost since"
    return (
        f"{name_of(path)} or what it stands on has changed since"
        if status["inputs"] != inputs_of(path, profile)
        else ""
    )


def _copy_tables(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy the tables of notebooks, by name, from one folder of results or references to another."""
    for table in (source / "tables").rglob("*.csv"):
        place = target / table.relative_to(source)
        if (
            table.relative_to(source / "tables")
            .as_posix()
            .startswith(tuple(f"{name}-" for name in names))
        ):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(table, place)


def _keep_others(old: Path, fresh: Path, others: Sequence[str]) -> None:
    """Bring into the reference `fresh` what the one in `old` holds of `others`, notebooks by name.

    Their claims, tables, seconds and settings are told by the notebook's name. Runs are not: all
    those that `fresh` lacks are kept, until a promotion of all of the profile's notebooks leaves
    out what none of them uses.
    """
    here, known = read_json(fresh / "provenance.json"), read_json(old / "provenance.json")
    order = [name_of(path) for path in notebooks.find()]
    for of_each in ("notebook_seconds", "settings"):
        both = here[of_each] | {
            name: known[of_each][name] for name in others if name in known[of_each]
        }
        here[of_each] = {
            name: both[name]
            for name in sorted(
                both, key=lambda name: order.index(name) if name in order else len(order)
            )
        }
    if here["notebook_seconds"] != known["notebook_seconds"]:
        here |= {
            "notebooks": len(here["notebook_seconds"]),
            "total_seconds": round(sum(here["notebook_seconds"].values()), 1),
        }
    write_json(
        fresh / "provenance.json", here | ({"note": known["note"]} if "note" in known else {})
    )
    rows = [
        row for row in ledger.records(ledger.read(old / ledger.FILE)) if row["notebook"] in others
    ]
    ledger.write(
        ledger.frame([*rows, *ledger.records(ledger.read(fresh / ledger.FILE))]),
        fresh / ledger.FILE,
    )
    _copy_tables(old, fresh, others)
    runs = {record["identity"]: record for folder in (old, fresh) for record in _records_in(folder)}
    write_runs(runs.values(), fresh / "runs")


def write_runs(found: Iterable[Record], target: Path) -> None:
    ordered = sorted(
        found,
        key=lambda r: (r["experiment"], json.dumps(r["parameters"], sort_keys=True), r["seed"]),
    )
    for name, own in itertools.groupby(ordered, key=lambda r: r["experiment"]):
        text = "".join(
            json.dumps(files.seal(record, reference_place(name))) + "\n" for record in own
        )
        write_atomically(target / f"{name}.jsonl", lambda p, text=text: p.write_text(text))  # type: ignore[misc]


def write_executed(executed: Path, target: Path) -> None:
    """Put an executed notebook's outputs into the committed one, without what differs from machine
    to machine.
    """
    import nbformat  # two seconds, which only this needs

    book = nbformat.read(executed, as_version=4)
    book.metadata = {
        name: book.metadata[name]
        for name in ("curlnb", "kernelspec", "language_info")
        if name in book.metadata
    }
    book.metadata.get("language_info", {}).pop("version", None)
    for cell in book.cells:
        cell.metadata = {
            name: value for name, value in cell.metadata.items() if name == "tags" and value
        }
    write_atomically(target, lambda p: nbformat.write(book, p))
