"""Reference results: the committed claims, tables and run metrics of a finished reproduction, and
whether they still hold.

results/reference/<profile>/  claims.csv, tables/, provenance.json, runs/<experiment>.jsonl (one run
a line)

`make reproduce` never reads them; a notebook run by hand adopts them (`curlnb.runs.store`). `make
test` executes notebooks on top of them (`CURLNB_REFERENCE=1`), and computes a sample of quick's
runs again and compares. `curlnb.companion.restamp` renews their digests after a refactoring.
"""

import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from curlnb.experiments import all_experiments
from curlnb.runs import environment, files, provenance
from curlnb.runs.experiment import Asked, Experiment
from curlnb.runs.files import write_atomically
from curlnb.runs.store import Record, read_reference, reference_place


def folder(profile: str) -> Path:
    """Where a profile's committed reference lies."""
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
    paths = sorted((folder(profile) / "runs").glob("*.jsonl"))
    return [record for path in paths for record in read_reference(path).values()]


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
        write_atomically(
            target / f"{name}.jsonl",
            lambda p, text=text: p.write_text(text),  # type: ignore[misc]
        )
    read_reference.cache_clear()  # the next promotion would lose the difference
