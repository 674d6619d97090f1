"""Make results the committed reference: a whole reproduction, some notebooks judged anew, or runs
alone.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curlnb.companion import ledger, notebooks
from curlnb.companion.finished import alone_in, list_of_runs, saved, unfinished
from curlnb.companion.notebooks import name_of
from curlnb.companion.reference import folder, records, why_stale, write_runs
from curlnb.companion.reproduce import reproduce
from curlnb.runs import environment
from curlnb.runs.files import read_json, read_sealed, write_atomically, write_json
from curlnb.runs.store import Record


def add_runs(profile: str) -> str:
    """Add the finished runs of results/<profile> to the committed ones, but for those that would be
    stale there. No notebook is executed and no committed run is dropped; a run that was computed
    again takes the former's place. Returns a line that says how many there are.
    """
    paths = sorted((environment.results_root() / profile / "runs").glob("*/*/run.json"))
    found = [*filter(None, map(read_sealed, paths))]
    known = {record["identity"]: record for record in records(profile)}
    judged = [(record, why_stale(record)) for record in found]
    left = [why for _, why in judged if why]
    new = {record["identity"]: record for record, why in judged if not why}
    write_runs((known | new).values(), folder(profile) / "runs")
    done = f"{len(new.keys() - known.keys())} runs added, {len(new.keys() & known.keys())} renewed"
    return f"{done}, {len(left)} left out ({left[0]})" if left else done


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


def promote(profile: str, renewed: Sequence[Path] = ()) -> str:
    """Make the finished reproduction in results/<profile> the reference; at quick, its executed
    notebooks become the committed ones.

    Quick has to be whole. Of another profile what is finished here takes its notebooks' places, and
    the others' results stay. renewed: notebooks that were executed on the committed runs (`renew`),
    and that alone take their places. Returns a line that says what was promoted. ValueError where a
    notebook is not finished or not up to date: run `make reproduce`.
    """
    results, target = environment.results_root() / profile, folder(profile)
    with alone_in(results):
        status = read_json(results / "status.json")
        candidates = notebooks.with_profile(notebooks.find(), profile)
        problems = {
            path: unfinished(status, results, path, profile, adopted=bool(renewed))
            for path in renewed or candidates
        }
        books = {name_of(path): path for path, problem in problems.items() if not problem}
        left_out = [*filter(None, problems.values())]
        if left_out and (renewed or profile == "quick" or not books):
            raise ValueError(f"{left_out[0]}: run `make reproduce PROFILE={profile}` first")
        lists = [list_of_runs(results, name) for name in books]
        used = {line for file in lists if file.exists() for line in file.read_text().split()}
        paths = [results / "runs" / key / "run.json" for key in sorted(used)]
        found = [*filter(None, map(read_sealed, paths))]
        if not renewed and (absent := [path for path in paths if not path.exists()]):
            raise ValueError(
                f"{absent[0]} is lost: remove {results / 'status.json'}, and run "
                f"`make reproduce PROFILE={profile}` again"
            )
        about, before = (read_json(each / "provenance.json") for each in (results, target))
        seconds = {name: status[name]["longest"] for name in books}
        if renewed and before:
            about = before | {
                "judged": {name: about[name] for name in ("date", "commit", "machine")}
            }
            seconds |= {name: x for name, x in before["notebook_seconds"].items() if name in books}
        settings = {
            name: notebooks.digest_of_settings(notebooks.settings_of(path)[profile])
            for name, path in books.items()
        }
        about |= {"notebook_seconds": seconds, "settings": settings}
        others = [name for name in map(name_of, candidates) if name not in books]
        _put(results, target, about, found, others, partly=bool(others or renewed))
        for name, path in books.items() if profile == "quick" else ():
            write_executed(results / "notebooks" / f"{name}.ipynb", path)
        rest = f"; what is committed of others stays: {'; '.join(left_out)}" if left_out else ""
        return (
            f"{', '.join(books)}: in the {profile} reference now, with {len(found)} runs that were "
            f"computed here{rest}"
        )


def _put(
    results: Path,
    target: Path,
    about: dict[str, Any],
    found: list[Record],
    others: Sequence[str],
    *,
    partly: bool,
) -> None:
    """Put what a reproduction found into the reference in `target`, where what it holds of
    `others`, notebooks by name, stays. about: its provenance, found: its runs.

    Claims, tables, seconds and settings are told by the notebook's name. Runs are not: where only a
    part is put, all stay, until a promotion of all of the profile's notebooks leaves out what none
    of them uses. Benchmarks stay where this reproduction made none.
    """
    names, runs = [*about["notebook_seconds"]], {}
    if partly and (known := read_json(target / "provenance.json")):
        runs = {record["identity"]: record for record in records(target.name)}
        order = [name_of(path) for path in notebooks.find()]
        for of_each in ("notebook_seconds", "settings"):
            kept = {name: value for name, value in known[of_each].items() if name in others}
            both = kept | about[of_each]
            about[of_each] = {name: both[name] for name in order if name in both}
        seconds = about["notebook_seconds"]
        if seconds != known["notebook_seconds"]:
            # of all cores, as before: a page had a share of them
            share = known["total_seconds"] / sum(known["notebook_seconds"].values())
            total = round(share * sum(seconds.values()), 1)
            about |= {"notebooks": len(seconds), "total_seconds": total}
        if "note" in known:
            about["note"] = known["note"]
    runs |= {record["identity"]: record for record in found}
    old, new = (ledger.records(ledger.read(each / ledger.FILE)) for each in (target, results))
    rows = [row for row in old if row["notebook"] in others]
    # settings that were changed are the committed ones now
    rows += [row | {"profile": target.name} for row in new if row["notebook"] in names]
    write_json(target / "provenance.json", about)
    ledger.write(ledger.frame(rows), target / ledger.FILE)
    kept_tables = {table for name in others for table in saved(target / "tables", name)}
    for table in {*(target / "tables").rglob("*.csv")} - kept_tables:
        table.unlink()
    for name in names:
        for table in saved(results / "tables", name):
            place = target / table.relative_to(results)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(table, place)
    shutil.rmtree(target / "runs", ignore_errors=True)
    write_runs(runs.values(), target / "runs")
    for measured in results.glob("bench*.csv"):
        shutil.copy(measured, target / measured.name)


def write_executed(executed: Path, target: Path) -> None:
    """Put an executed notebook's outputs into the committed one, without what differs from machine
    to machine. What the committed one says of itself may be newer than the execution.
    """
    import nbformat  # two seconds

    book, now = (nbformat.read(path, as_version=4) for path in (executed, target))
    book.metadata["curlnb"] = now.metadata.get("curlnb")
    for part in (book, *book.cells):
        kept = ("curlnb", "kernelspec", "language_info", "tags", "jupyter")  # the last folds a cell
        part.metadata = {k: value for k, value in part.metadata.items() if k in kept and value}
    book.metadata.get("language_info", {}).pop("version", None)
    write_atomically(target, lambda p: nbformat.write(book, p))
