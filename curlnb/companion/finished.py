"""What became of each notebook of a reproduction, and whether it is still what it was made from."""

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from curlnb.companion import ledger, notebooks
from curlnb.runs import environment, provenance
from curlnb.runs.devices import default_device

PACKAGE = Path(__file__).resolve().parents[1]

Status = dict[str, dict[str, Any]]


@contextlib.contextmanager
def alone_in(results: Path) -> Iterator[None]:
    """Hold a folder of results, so that one command at a time changes what is in it. RuntimeError
    where another does.
    """
    try:
        with FileLock(results / "lock", timeout=0):
            yield
    except Timeout:
        raise RuntimeError(
            f"another `make reproduce` is at work in {results}; wait for it, "
            "or use another CURLNB_RESULTS"
        ) from None


def changed(results: Path, left: Mapping[str, str]) -> list[str]:
    """Those of the files that a notebook left, relative to `results`, that are no longer what they
    were.
    """
    return [name for name, digest in left.items() if _digest_of(results / name) != digest]


def files_of(results: Path, name: str) -> dict[str, str]:
    """Path, relative to `results`, and digest of what a notebook left: its executed copy, its list
    of runs, its tables and figures.
    """
    own = [results / "notebooks" / f"{name}.ipynb", list_of_runs(results, name)]
    own += saved(results / "tables", name) + saved(results / "figures", name)
    return {p.relative_to(results).as_posix(): _digest_of(p) for p in own if p.is_file()}


def saved(folder: Path, name: str) -> list[Path]:
    """What a notebook saved in a folder of tables or figures."""
    return sorted((folder / name).parent.glob(f"{glob.escape(Path(name).name)}-*"))


def list_of_runs(results: Path, name: str) -> Path:
    """The file that names the runs which a notebook used."""
    return results / "runs" / "used" / f"{name.replace('/', '--')}.txt"


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def inputs_of(path: Path, profile: str, change: Mapping[str, Any] = {}) -> str:
    """Digest of what a notebook's outputs follow from: its cells and settings, the package's files,
    the lock, the data's checksums, the committed tables that it shows, the machine, the profile.
    """
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebooks.read(path)["cells"]]
    shown = ("gpu", *ledger.better_than(profile))  # their references stand beside this profile's
    home, reference = environment.home(), environment.reference_folder()
    around = [home / "requirements.lock", *(home / "data").glob("*.json")]
    for folder in (PACKAGE, *(reference / name for name in shown)):
        around += [f for f in folder.rglob("*") if f.suffix in (".csv", ".html", ".py", ".toml")]
    known = [_digest_of(file) for file in (path.with_suffix(".toml"), *sorted(around))]
    machine = [provenance.machine(), str(default_device()), os.environ.get("CURLNB_THREADS", "")]
    text = json.dumps([cells, known, machine, profile, dict(change)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
