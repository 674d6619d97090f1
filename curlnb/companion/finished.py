"""What became of each notebook of a reproduction, and whether it is still what it was made from."""

import contextlib
import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from curlnb.companion import ledger, notebooks
from curlnb.data.download import sha256_of
from curlnb.runs import environment, provenance
from curlnb.runs.devices import default_device
from curlnb.runs.source import digest_of

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


def unfinished(
    status: Status,
    results: Path,
    path: Path,
    profile: str,
    change: Mapping[str, Any] = {},
    *,
    adopted: bool = False,
) -> str:
    """Why a notebook is not finished; empty where it is and what it left is whole. adopted: whether
    it may stand on adopted runs.
    """
    name = notebooks.name_of(path)
    state = status.get(name, {})
    if state.get("state") != "done" or (state["adopted"] and not adopted):
        return f"{name} has not been reproduced at {profile}"
    if state["inputs"] != inputs_of(path, profile, change):
        return f"{name} or what it stands on has changed since"
    lost = state["left"].items() ^ files_of(results, name).items()
    return f"{name}: {results / min(lost)[0]} was changed or lost since" if lost else ""


def files_of(results: Path, name: str) -> dict[str, str]:
    """Path, relative to `results`, and digest of what a notebook left: its executed copy, its list
    of runs, its tables and figures; of the ledger, how many rows are its own.
    """
    own = [results / "notebooks" / f"{name}.ipynb", list_of_runs(results, name)]
    own += saved(results / "tables", name) + saved(results / "figures", name)
    judged = (ledger.read_all(results)["notebook"] == name).sum()
    digests = {file.relative_to(results).as_posix(): sha256_of(file) for file in own}
    return digests | {ledger.FILE: f"{judged} rows"}


def saved(folder: Path, name: str) -> list[Path]:
    """What a notebook saved in a folder of tables or figures."""
    return sorted((folder / name).parent.glob(f"{glob.escape(Path(name).name)}-*"))


def list_of_runs(results: Path, name: str) -> Path:
    """The file that names the runs which a notebook used."""
    return results / "runs" / "used" / f"{name.replace('/', '--')}.txt"


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
    known = [sha256_of(file) for file in (path.with_suffix(".toml"), *sorted(around))]
    machine = [provenance.machine(), str(default_device()), os.environ.get("CURLNB_THREADS", "")]
    return digest_of(json.dumps([cells, known, machine, profile, dict(change)]))
