"""What the report page shows of notebooks: their state, their figures with alternative texts, their
tables.
"""

import base64
import csv
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pandas as pd

from curlnb.companion import notebooks as books

MOST_ROWS = 200  # of a table on the page; the CSV has the rest
_IMAGES = (".svg", ".png")

T = TypeVar("T")


def notebooks(
    results: Path,
    folder: Path,
    base: Path,
    claims: pd.DataFrame,
    status: Mapping[str, Any],
    problems: list[str],
    links: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Every notebook of `folder`, or that judged a claim or left a table or figure in `results`, in
    the order of their names.

    One that was run by hand, and so has no executed copy in `folder`, has the title and the
    alternative texts of the checkout's.
    """
    found = (
        path for path in sorted(folder.rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts
    )
    executed = {short_name(path.relative_to(folder).as_posix()): path for path in found}
    states = {short_name(name): state for name, state in status.items()}
    known = {*executed, *states, *map(short_name, filter(None, claims["notebook"]))}
    places = {books.name_of(path): path for path in books.find()} | executed
    words: dict[str, dict[str, str]] = {}
    owned: dict[str, list[dict[str, Any]]] = {name: [] for name in known}
    for path in sorted((*(results / "figures").rglob("*"), *(results / "tables").rglob("*.csv"))):
        if path.suffix != ".csv" and path.suffix not in _IMAGES:
            continue
        piece = (
            path.relative_to(results).as_posix().removesuffix(path.suffix).partition("/")[2]
        )  # 2_dcl/5.1_figure4_images_probe
        owners = (
            name for name in known | set(places) if re.match(re.escape(name) + r"($|[/_.-])", piece)
        )
        owner = max(owners, key=len, default=piece.rpartition("/")[0] or "other")
        item = (
            read_or_say(problems, path, _table, None)
            if path.suffix == ".csv"
            else {"kind": "figure"}
        )
        if item is not None:
            if owner not in words:
                words[owner] = _alternative_texts(places[owner]) if owner in places else {}
            title = piece.removeprefix(owner).strip("/_.- ") or item["kind"]
            about = {
                "title": title.replace("_", " "),
                "link": _link(path, base),
                "alt": words[owner].get(title, ""),
            }
            owned.setdefault(owner, []).append(item | about)
    shown = []
    for name in sorted(owned):
        state = states.get(name, {})
        log = state.get("log") or ""
        log_path = next(
            (path for path in (results / log, results.parent.parent / log) if path.exists()), None
        )  # `/` keeps an absolute log
        judged = claims[[short_name(notebook) == name for notebook in claims["notebook"]]]
        shown.append(
            {
                "name": name,
                "anchor": _anchor(name),
                "title": _title(places[name]) if name in places else name,
                "link": links.get(name) or (_link(places[name], base) if name in places else ""),
                "state": state.get("state", ""),
                "duration": duration(state.get("seconds")),
                "error": state.get("error") or "",
                "log": log,
                "log_link": _link(log_path, base) if log and log_path else "",
                "claims": len(judged),
                "figures": [item for item in owned[name] if item["kind"] == "figure"],
                "tables": [item for item in owned[name] if item["kind"] == "table"],
            }
        )
    return shown


def short_name(notebook: str) -> str:
    """'notebooks/2_dcl/5.1_figure4_images.ipynb' and '2_dcl/5.1_figure4_images' are one notebook."""
    return notebook.removeprefix("notebooks/").removesuffix(".ipynb")


def _title(path: Path) -> str:
    """The notebook's first heading, else its name."""
    try:
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
        heading = re.match(r"#\s+(.+)", first if isinstance(first, str) else "".join(first))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        heading = None
    return heading[1].strip() if heading else path.stem


def _table(path: Path) -> dict[str, Any]:
    """A table's cells as text, long decimals shortened, a bare 0, 1, 2, ... index left out, the
    first MOST_ROWS rows.
    """
    with open(path, encoding="utf-8", newline="") as file:
        head, *body = list(csv.reader(file)) or [[]]
    if (
        head
        and head[0] in ("", "Unnamed: 0")
        and [row[0] for row in body] == [str(i) for i in range(len(body))]
    ):
        head, body = head[1:], [row[1:] for row in body]
    numeric = [
        bool(body) and all(_is_number(row[column]) or not row[column] for row in body)
        for column in range(len(head))
    ]
    columns = [
        _short(list(column)) if numeric[i] else column
        for i, column in enumerate(zip(*body[:MOST_ROWS], strict=True))
    ]
    return {
        "kind": "table",
        "head": head,
        "numeric": numeric,
        "rows": list(zip(*columns, strict=True)),
        "total": len(body),
    }


def _figures_of(path: Path) -> list[tuple[str, str, str]]:
    """A notebook's figures in order: the name under which `save_figure` saved each, else its
    number; alternative text; PNG in base 64.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [
            output
            for cell in cells
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]
        about = [output.get("metadata", {}).get("image/png", {}) for output in outputs]
        return [
            (
                str(said.get("name", f"figure {at}")),
                str(said.get("alt", "")),
                "".join(output["data"]["image/png"]),
            )
            for at, (said, output) in enumerate(zip(about, outputs, strict=True), start=1)
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def _alternative_texts(path: Path) -> dict[str, str]:
    return {name: alt for name, alt, _ in _figures_of(path)}


def extract_figures(path: Path, stem: Path) -> None:
    """Write a notebook's figures as <stem>-<name>.png."""
    for name, _, picture in _figures_of(path):
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_name(f"{stem.name}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.png").write_bytes(
            base64.b64decode(picture)
        )


# --- small parts


def duration(seconds: object) -> str:
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return ""
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _short(column: list[str]) -> list[str]:
    """A column of numbers; where one has four or more decimals, all with as many as give the
    largest five digits (1 to 6).
    """
    if not any(re.search(r"\.\d{4,}", cell) for cell in column):
        return column
    values = [float(cell) for cell in column if cell]
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = min(6, max(1, 4 - math.floor(math.log10(largest)))) if largest else 1
    fits = all(
        value == 0 or abs(value) >= 10.0**-decimals for value in values
    )  # else the small ones would read 0
    return [
        f"{float(cell):{f'.{decimals}f' if fits else '.4g'}}" if cell else "" for cell in column
    ]


def _anchor(name: str) -> str:
    return "notebook-" + re.sub(r"[^\w.-]", "-", short_name(name))


def _link(path: Path, base: Path) -> str:
    return quote(Path(os.path.relpath(path, base)).as_posix())


def read_or_say(problems: list[str], path: Path, get: Callable[[Path], T], otherwise: T) -> T:
    """What `get` makes of the file; one that cannot be read becomes a line on the page, since the
    rest of it is still worth having.
    """
    try:
        return get(path)
    except (OSError, ValueError, LookupError) as error:
        problems.append(
            f"{path.parent.name}/{path.name} cannot be read: {' '.join(str(error).split())}"
        )
        return otherwise
