"""The notebooks of the checkout, and what each needs: its settings, its data, its place among the
others.

What a notebook needs of its surroundings stands in its metadata under "curlnb" (JupyterLab:
Property Inspector, Advanced Tools):

    {"trains": false}   it computes no runs: on a GPU several such notebooks may be at work at once
    {"alone": true}     it times something: nothing else may be at work
    {"last": true}      it reads the ledger, and so comes after all others
    {"before": "...", "learnt": "..."}   what the course says of the lesson
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curlnb.companion import profiles
from curlnb.data import datasets
from curlnb.runs import environment
from curlnb.runs.source import digest_of


@dataclass(frozen=True)
class Needs:
    """A notebook's metadata under "curlnb", with the defaults."""

    trains: bool = True
    alone: bool = False
    last: bool = False
    before: str = ""
    learnt: str = ""


def find(selected: Iterable[str] = ()) -> list[Path]:
    """The notebooks below notebooks/ in reading order, or those among the files and folders
    `selected`, as typed.

    ValueError for what holds no notebook.
    """
    root = (environment.home() / "notebooks").resolve()
    found: set[Path] = set()
    for name in [*selected] or ["notebooks"]:
        path = (environment.home() / name).resolve()
        path = path if path.exists() else Path(name).resolve()
        below = [p for p in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
        files = [path] if path.suffix == ".ipynb" else below
        if not files or not path.exists() or not path.is_relative_to(root):
            raise ValueError(f"no notebook at {name!r}: give files or folders below {root}")
        found.update(files)
    # a space sorts before the point: 0 comes before its subsection 0.1
    return sorted(found, key=lambda file: name_of(file).replace("_", " "))


def name_of(path: Path) -> str:
    """A notebook's path below notebooks/ without the ending, as `notebook.settings` takes it."""
    root = (environment.home() / "notebooks").resolve()
    return path.resolve().relative_to(root).with_suffix("").as_posix()


def read(path: Path) -> dict[str, Any]:
    """A notebook as JSON. ValueError, with its path, for a file that is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _ = [cell["cell_type"] + "".join(cell["source"]) for cell in content["cells"]]
        return content
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{path} is no notebook ({type(error).__name__}: {error}): restore it, for example "
            "with `git checkout`"
        ) from None


def sources(path: Path, kind: str = "code") -> list[str]:
    """The text of a notebook's cells of one kind ("code", "markdown")."""
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == kind]


def title_of(path: Path) -> str:
    """A notebook's first heading; its name where it has none."""
    lines = "\n".join(sources(path, "markdown")).splitlines()
    return lines[0].lstrip("# ") if lines else name_of(path)


def needs(path: Path) -> Needs:
    """What the notebook's metadata says that it needs. ValueError for a name that is not known."""
    try:
        return Needs(**read(path).get("metadata", {}).get("curlnb", {}))
    except TypeError as error:
        raise ValueError(f"{name_of(path)}, metadata under curlnb: {error}") from None


def with_profile(paths: Iterable[Path], profile: str) -> list[Path]:
    """Those that have settings for the profile: all have quick, most have others.

    How many are left out is printed. ValueError where none has settings for it, or one's settings
    cannot be read.
    """
    every = [*paths]
    kept = [path for path in every if profile in settings_of(path)]
    if not kept:
        names = ", ".join(map(name_of, every))
        raise ValueError(
            f"none of {names} has settings for the profile {profile}, a table [{profile}] in the "
            "TOML file of its name beside it"
        )
    if len(kept) < len(every):
        print(
            f"  {len(kept)} of {len(every)} notebooks have settings for {profile}; "
            "the others are left out"
        )
    return kept


def settings_of(path: Path) -> dict[str, dict[str, Any]]:
    """A notebook's settings by profile, from the file beside it; none where there is no file: it is
    no page of the companion.
    """
    file = path.with_suffix(".toml")
    return profiles.read(file)[0] if file.exists() else {}


def digest_of_settings(values: Mapping[str, Any]) -> str:
    """Of one profile's settings, by which a notebook that runs with others than the committed
    reference is known.
    """
    return digest_of(json.dumps(values, sort_keys=True, default=repr))[:12]


def data_of(path: Path, profile: str) -> list[str]:
    """The data sets that the notebook's settings name at `profile`, sorted."""
    # a setting may be a name, a list of them, or a mapping from them
    texts = re.findall('"(.*?)"', json.dumps(settings_of(path).get(profile, {})))
    return sorted({*texts} & {*datasets.names()})
