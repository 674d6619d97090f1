"""Make results the committed reference: a whole reproduction, some notebooks judged anew, or runs
alone.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curlnb.companion import ledger, notebooks
from curlnb.companion.finished import (
    alone_in,
    changed,
    inputs_of,
    list_of_runs,
    saved,
)
from curlnb.companion.notebooks import name_of
from curlnb.companion.reference import folder, records, records_in, write_runs
from curlnb.companion.reproduce import reproduce
from curlnb.runs import environment, files
from curlnb.runs.files import read_json, write_atomically, write_json
from curlnb.runs.store import read_reference


def add_runs(profile: str) -> str:
    """Add the finished runs of results/<profile> to the committed ones. No notebook is executed and
    no committed run is dropped; a run that was computed again takes the former's place. Returns a
    line that says how many there are.
    """
    paths = sorted((environment.results_root() / profile / "runs").glob("*/*/run.json"))
    found = [*filter(None, map(files.read_sealed, paths))]
    known = {record["identity"]: record for record in records(profile)}
    new = {record["identity"]: record for record in found}
    write_runs((known | new).values(), folder(profile) / "runs")
    read_reference.cache_clear()
    return f"{len(new.keys() - known.keys())} runs added, {len(new.keys() & known.keys())} renewed"


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
    for last in (False, True):
        if group := [path for path in paths if notebooks.needs(path).last == last]:
            if failed := reproduce(profile, [str(path) for path in group], adopt=True):
                raise RuntimeError(
                    f"{failed} of {len(group)} notebooks failed: mend them, and run the same "
                    "command again"
                )
            said.append(promote(profile, group))
    return "\n".join(said)


def promote(profile: str = "quick", renewed: Sequence[Path] = ()) -> str:
    """Make the finished reproduction in results/<profile> the reference; at quick, its executed
    notebooks become the committed ones.

    Quick has to be whole. Of another profile what is finished here takes its notebooks' places, and
    the others' results stay. renewed: notebooks that were executed on the committed runs (`renew`),
    and that alone take their places. Returns a line that says what was promoted. ValueError where a
    notebook is not finished or not up to date: run `make reproduce`.
    """
    results, target = environment.results_root() / profile, folder(profile)
    with alone_in(results):
        status = files.read_json(results / "status.json")
        candidates = notebooks.with_profile(notebooks.find(), profile)
        problems = {
            path: _unfinished(results, status.get(name_of(path), {}), path, profile, bool(renewed))
            for path in renewed or candidates
        }
        books = [path for path, problem in problems.items() if not problem]
        left_out = [problem for problem in problems.values() if problem]
        if left_out and (renewed or profile == "quick" or not books):
            raise ValueError(f"{left_out[0]}: run `make reproduce PROFILE={profile}` first")
        names = [name_of(path) for path in books]
        lists = [list_of_runs(results, name) for name in names]
        used = {line for file in lists if file.exists() for line in file.read_text().split()}
        paths = [results / "runs" / key / "run.json" for key in sorted(used)]
        found = [*filter(None, map(files.read_sealed, paths))]
        if not renewed and (absent := [path for path in paths if not path.exists()]):
            raise ValueError(
                f"{absent[0]} is lost: remove {results / 'status.json'}, and run "
                f"`make reproduce PROFILE={profile}` again"
            )
        with tempfile.TemporaryDirectory(dir=results) as scratch:
            fresh = Path(scratch)
            (fresh / "tables").mkdir()
            claims = ledger.read(results / ledger.FILE)
            # settings that were changed are the committed ones now
            judged = claims[claims["notebook"].isin(names)].assign(profile=profile)
            ledger.write(judged, fresh / ledger.FILE)
            about = read_json(results / "provenance.json")
            seconds = {name: status[name]["longest"] for name in names}
            if renewed and (target / "provenance.json").exists():
                before = read_json(target / "provenance.json")
                own = {name: about[name] for name in ("date", "commit", "machine")}
                about = before | {"judged": before.get("judged", {}) | own}
                seconds |= {
                    name: x for name, x in before["notebook_seconds"].items() if name in names
                }
            settings = {
                name_of(path): notebooks.digest_of_settings(values[profile])
                for path in books
                if (values := notebooks.settings_of(path))
            }
            about |= {"notebook_seconds": seconds, "settings": settings}
            write_json(fresh / "provenance.json", about)
            _copy_tables(results, fresh, names)
            write_runs(found, fresh / "runs")
            others = [name for name in map(name_of, candidates) if name not in names]
            if (others or renewed) and target.exists():
                _keep_others(target, fresh, others)
            for measured in results.glob("bench*.csv"):
                shutil.copy(measured, fresh / measured.name)
            target.mkdir(parents=True, exist_ok=True)
            for piece in [*fresh.iterdir()]:  # benchmarks stay where this reproduction made none
                shutil.rmtree(target / piece.name, ignore_errors=True)
                shutil.move(piece, target / piece.name)
        # what was read before is no longer what stands there; the next promotion would lose the
        # difference
        read_reference.cache_clear()
        for name, path in zip(names, books, strict=True) if profile == "quick" else ():
            write_executed(results / "notebooks" / f"{name}.ipynb", path)
        rest = f"; what is committed of others stays: {'; '.join(left_out)}" if left_out else ""
        return (
            f"{', '.join(names)}: in the {profile} reference now, with {len(found)} runs that were "
            f"computed here{rest}"
        )


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
    same = status["inputs"] == inputs_of(path, profile)
    return "" if same else f"{name_of(path)} or what it stands on has changed since"


def _copy_tables(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy the tables of notebooks, by name, from one folder of results to another."""
    for table in (table for name in names for table in saved(source / "tables", name)):
        place = target / table.relative_to(source)
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
        kept = {name: value for name, value in known[of_each].items() if name in others}
        both = kept | here[of_each]
        here[of_each] = {name: both[name] for name in order if name in both}
    seconds = here["notebook_seconds"]
    if seconds != known["notebook_seconds"]:
        here |= {"notebooks": len(seconds), "total_seconds": round(sum(seconds.values()), 1)}
    if "note" in known:
        here["note"] = known["note"]
    write_json(fresh / "provenance.json", here)
    before = ledger.read(old / ledger.FILE)
    rows = [before[before["notebook"].isin(others)], ledger.read(fresh / ledger.FILE)]
    both = [row for part in rows for row in ledger.records(part)]
    ledger.write(ledger.frame(both), fresh / ledger.FILE)
    _copy_tables(old, fresh, others)
    runs = {record["identity"]: record for folder in (old, fresh) for record in records_in(folder)}
    write_runs(runs.values(), fresh / "runs")


def write_executed(executed: Path, target: Path) -> None:
    """Put an executed notebook's outputs into the committed one, without what differs from machine
    to machine.
    """
    import nbformat  # two seconds, which only this needs

    book = nbformat.read(executed, as_version=4)
    for part in (book, *book.cells):
        kept = ("curlnb", "kernelspec", "language_info", "tags", "jupyter")  # the last folds a cell
        part.metadata = {k: value for k, value in part.metadata.items() if k in kept and value}
    book.metadata.get("language_info", {}).pop("version", None)
    write_atomically(target, lambda p: nbformat.write(book, p))
