"""What became of each notebook of a reproduction, and whether it is still what it was made from."""

import ast
import functools
import glob
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from curlnb.companion import ledger, notebooks, profiles
from curlnb.runs import environment, files, provenance
from curlnb.runs.devices import default_device

PACKAGE = Path(__file__).resolve().parents[1]

Status = dict[str, dict[str, Any]]


def read_status(path: Path) -> Status:
    """What became of each notebook, by name; empty where there is no file. ValueError, with the
    path, for a damaged one.
    """
    status = files.read_json(path)
    if not all(isinstance(state, dict) for state in status.values()):
        raise ValueError(f"{path} is damaged: `make reproduce` makes it again")
    return status


def unless_damaged(read: Callable[[Path], Status], path: Path) -> Status:
    """What is read; a damaged file is set aside and counts as absent, so that it is made again."""
    try:
        return read(path)
    except (ValueError, OSError) as error:
        files.set_aside(path, files.printable(error))
        return {}


def outcome(error: str, **known: Any) -> dict[str, Any]:
    """What status.json says of a notebook, of which `known` is empty where it was not run. error:
    why it failed; empty where it did not.
    """
    nothing = {"seconds": 0.0, "longest": 0.0, "cores": 0, "log": "", "adopted": False}
    return {"state": "failed" if error else "done", "error": error, **nothing, **known}


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
    for folder in (results / "tables", results / "figures"):
        own += sorted((folder / name).parent.glob(f"{glob.escape(Path(name).name)}-*"))
    return {p.relative_to(results).as_posix(): _digest_of(p) for p in own if p.is_file()}


def list_of_runs(results: Path, name: str) -> Path:
    return results / "runs" / "used" / f"{name.replace('/', '--')}.txt"


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def inputs_of(path: Path, profile: str, change: Mapping[str, Any] | None = None) -> str:
    """Digest of what a notebook's outputs follow from: its cells and settings, the code of the
    package (without docstrings and comments), the lock, the data's checksums, the committed tables
    that it shows, the machine, the profile.
    """
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebooks.read(path)["cells"]]
    shown = ("gpu", *ledger.better_than(profile))  # their references stand beside this profile's
    home, companion = environment.home(), PACKAGE / "companion"
    folders = [environment.reference_folder() / name for name in shown]
    around = [file for folder in (*folders, companion) for file in folder.rglob("*.csv")]
    around += [home / "requirements.lock", *(home / "data").glob("*.json")]
    around += [*companion.rglob("*.toml"), *companion.rglob("*.html")]
    known = [_digest_of(file) for file in (profiles.file_of(path), *sorted(around))]
    machine = [provenance.machine(), str(default_device()), os.environ.get("CURLNB_THREADS", "")]
    text = json.dumps([cells, _package(), known, machine, profile, change or {}])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _package() -> str:
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant(...)  # a docstring, or a string that stands for itself
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()
