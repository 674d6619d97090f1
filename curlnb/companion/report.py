"""The report page: one self-contained HTML file, the ledger first, then what each notebook measured and drew."""

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
from jinja2 import Environment, StrictUndefined

from curlnb.companion import formatting, ledger
from curlnb.companion.formatting import MARKS, STAND_IN
from curlnb.runs.files import write_atomically

PAPER_TITLES = {
    "arora2019": "Arora et al. 2019 (CURL)",
    "chuang2020": "Chuang et al. 2020 (DCL)",
    "robinson2021": "Robinson et al. 2021 (HCL)",
    "curlnb": "Findings of this project",
    "mine": "Claims of your own",
}
MOST_ROWS = 200  # of a table on the page; the CSV has the rest
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}

T = TypeVar("T")


def write_report(results_dir: Path, reference_dir: Path, out: Path, provenance: Mapping[str, Any] | None = None) -> Path:
    """Write the page of one reproduction to `out` and return it.

    results_dir: results/<profile>, with what there is of claims.csv, own_claims.csv, tables/, figures/, notebooks/, status.json and
    provenance.json.
    reference_dir: results/reference, whose <profile>/claims.csv and gpu/claims.csv stand beside this run's. provenance: instead of
    results_dir/provenance.json. What is missing, or cannot be read, is said on the page.
    """
    results_dir, reference_dir, out = Path(results_dir), Path(reference_dir), Path(out)
    page = _page(results_dir, reference_dir, out.parent, provenance)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    text = template.render(**page)
    write_atomically(out, lambda file: file.write_text(text, encoding="utf-8"))
    return out


def verdict_table(claims: pd.DataFrame) -> str:
    """The ledger for a terminal: one line a claim, then the counts, stand-ins apart."""
    if claims.empty:
        return "no claim has been judged"
    lines = []
    for row in _records(claims):
        measured = formatting.measured(row)
        number = " ".join(measured[part] for part in ("mean", "interval", "unit") if measured[part])
        lines.append((row["verdict"], row["id"], ", ".join(part for part in (number, measured["count"]) if part)))
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    counts = ledger.summary(claims).loc["all"]
    total = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return "\n".join([*(f"{kind:{widths[0]}}  {id:{widths[1]}}  {text}".rstrip() for kind, id, text in lines), "", total])


def _page(results: Path, references: Path, base: Path, provenance: Mapping[str, Any] | None) -> dict[str, Any]:
    """Everything the template needs, as plain values; links are relative to the folder `base`."""
    problems: list[str] = []
    profile = results.name
    claims, own = (_read_or_say(problems, results / file, ledger.read, ledger.table([])) for file in (ledger.FILE, ledger.OWN_FILE))
    nothing: dict[str, Any] = {}
    beside: dict[str, dict[str, Any]] = {}
    for name, title in {profile: "Reference", "gpu": "GPU reference"}.items():
        table = _read_or_say(problems, references / name / ledger.FILE, ledger.read, ledger.table([]))
        if not table.empty:
            source = _read_or_say(problems, references / name / "provenance.json", _json, nothing)
            beside[title] = {"rows": _records(table), "provenance": _provenance(source)}
    status = _read_or_say(problems, results / "status.json", _json, nothing)
    source = dict(provenance) if provenance is not None else _read_or_say(problems, results / "provenance.json", _json, nothing)
    rows = _ledger_rows(claims, {title: side["rows"] for title, side in beside.items()}, profile)
    own_rows = _ledger_rows(own, {title: [] for title in beside}, profile)
    notebooks = _notebooks(results, base, pd.concat([claims, own]), status, problems)
    anchors = {notebook["anchor"] for notebook in notebooks}
    return {
        "profile": profile,
        "provenance": _provenance(source),
        "reference_provenance": {title: side["provenance"] for title, side in beside.items() if side["provenance"]},
        "beside": list(beside),
        "papers": [(paper, title, [row for row in rows + own_rows if row["paper"] == paper]) for paper, title in PAPER_TITLES.items()],
        "counts": _counts(rows),
        "judged": len(claims) + len(own),
        "notebooks": notebooks,
        "anchors": anchors,
        "failures": [notebook for notebook in notebooks if notebook["state"] not in ("done", "")],
        "problems": problems,
    }


# --- the ledger


def _ledger_rows(claims: pd.DataFrame, beside: Mapping[str, list[dict[str, Any]]], profile: str) -> list[dict[str, Any]]:
    """This run's claims, then those that only a reference has, each with its references; ordered as in the ledger."""
    own = {(row["id"], row["notebook"]): row for row in _records(claims)}
    others = {title: {(row["id"], row["notebook"]): row for row in rows} for title, rows in beside.items()}
    absent: dict[tuple[str, str], dict[str, Any]] = {}
    for table in others.values():
        for at, row in table.items():
            if at not in own:
                blank = {"verdict": "not run", "note": f"judged in the reference, not in this {profile} run", "stand_in": "", "dataset": ""}
                absent.setdefault(at, {**row, **blank, **dict.fromkeys(("mean", "low", "high", "n", "seeds_needed"), math.nan)})
    rows = {**own, **absent}
    ordered = sorted(rows, key=lambda at: (list(PAPER_TITLES).index(rows[at]["paper"]), at))
    return [_row(rows[at], {title: table.get(at) for title, table in others.items()}) for at in ordered]


def _row(row: dict[str, Any], references: Mapping[str, dict[str, Any] | None]) -> dict[str, Any]:
    kind = formatting.kind(row)
    sides = []
    for title, other in references.items():
        side: dict[str, Any] = {"title": title, "measured": {}, "verdict": "", "slug": "", "on_stand_in": False, "differs": False}
        if other is not None:
            other_kind = formatting.kind(other)
            differs = kind != "not run" and other_kind != "not run" and other_kind != kind
            side |= {
                "measured": formatting.measured(other),
                "verdict": other_kind,
                "slug": other_kind.replace(" ", "-"),
                "differs": differs,
            }
            side["on_stand_in"] = other["verdict"].endswith(STAND_IN)
        sides.append(side)
    return {
        **{name: row[name] for name in ("id", "paper", "where", "statement", "verdict", "statistic", "published", "note", "notebook")},
        "anchor": _anchor(row["notebook"]),
        "kind": kind,
        "on_stand_in": row["verdict"].endswith(STAND_IN),
        "mark": MARKS[kind],
        "slug": kind.replace(" ", "-"),
        "claimed": formatting.region_text(row["claimed_low"], row["claimed_high"]),
        "measured": formatting.measured(row),
        "mean": None if pd.isna(row["mean"]) else row["mean"],
        "data": _data(row),
        "seeds": formatting.needed(row),
        "references": sides,
        "plot": _plot(row),
    }


def _data(row: Mapping[str, Any]) -> str:
    """'cifar10-mini, a stand-in for STL-10; 10 classes (paper 10); τ⁺ = 0.1 (paper 0.1)'."""
    parts = [f"{row['dataset']}, a stand-in for {row['stand_in']}" if row["stand_in"] and row["dataset"] else row["dataset"]]
    for name, word in (("classes", "{} classes"), ("tau_plus", "τ⁺\u00a0=\u00a0{}")):
        if pd.notna(row[name]):
            paper = row[f"paper_{name}"]
            parts.append(word.format(f"{row[name]:g}") + (f" (paper {paper:g})" if pd.notna(paper) else ""))
    return "; ".join(part for part in parts if part)


def _plot(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where the interval, the claimed region and the published value lie, in percent of the row's own range; None without an interval."""
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return None
    bounds = [row[name] for name in ("claimed_low", "claimed_high") if pd.notna(row[name])]
    published = float(row["published"]) if re.fullmatch(r"[-+]?\d+(\.\d+)?", row["published"]) else None
    marks = [row["low"], row["high"], *bounds, *([] if published is None else [published])]
    left, right = min(marks), max(marks)
    margin = 0.12 * (right - left) or 1.0

    def at(value: float) -> float:
        return round(100 * (value - left + margin) / (right - left + 2 * margin), 2)

    low, high = row["claimed_low"], row["claimed_high"]
    return {
        "region": (0 if pd.isna(low) else at(low), 100 if pd.isna(high) else at(high)),
        "bounds": [at(bound) for bound in bounds],
        "low": at(row["low"]),
        "high": at(row["high"]),
        "mean": at(row["mean"]),
        "published": None if published is None else at(published),
    }


def _counts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts with how often they occur, own data before stand-ins; those on stand-ins only where there are any."""
    kinds = [(kind, stand_in) for stand_in in (False, True) for kind in MARKS]
    counts = [
        {
            "verdict": kind + STAND_IN * stand_in,
            "kind": kind,
            "slug": kind.replace(" ", "-"),
            "mark": MARKS[kind],
            "on_stand_in": stand_in,
            "count": sum(row["kind"] == kind and row["on_stand_in"] == stand_in for row in rows),
        }
        for kind, stand_in in kinds
    ]
    return [count for count in counts if count["count"] or not count["on_stand_in"]]


# --- the notebooks


def _notebooks(results: Path, base: Path, claims: pd.DataFrame, status: Mapping[str, Any], problems: list[str]) -> list[dict[str, Any]]:
    """Every notebook that ran, judged a claim or left a table or figure, in the order of their names."""
    folder = results / "notebooks"
    executed = {_name(path.relative_to(folder).as_posix()): path for path in sorted(folder.rglob("*.ipynb"))}
    states = {_name(name): state for name, state in status.items()}
    known = {*executed, *states, *map(_name, claims["notebook"])}
    owned: dict[str, list[dict[str, Any]]] = {name: [] for name in known}
    for path in sorted((*(results / "figures").rglob("*"), *(results / "tables").rglob("*.csv"))):
        if path.suffix != ".csv" and path.suffix not in _IMAGES:
            continue
        piece = path.relative_to(results).as_posix().removesuffix(path.suffix).partition("/")[2]  # 2_dcl/5.1_figure4_images_probe
        owners = (name for name in known if re.match(re.escape(name) + r"($|[/_.-])", piece))
        owner = max(owners, key=len, default=piece.rpartition("/")[0] or "other")
        item = _read_or_say(problems, path, _table if path.suffix == ".csv" else _figure, None)
        if item is not None:
            title = piece.removeprefix(owner).strip("/_.- ") or item["kind"]
            owned.setdefault(owner, []).append({**item, "title": title.replace("_", " "), "link": _link(path, base)})
    shown = []
    for name in sorted(owned):
        state = states.get(name, {})
        log = state.get("log") or ""
        log_path = next((path for path in (results / log, results.parent.parent / log) if path.exists()), None)  # `/` keeps an absolute log
        judged = claims[[_name(notebook) == name for notebook in claims["notebook"]]]
        shown.append(
            {
                "name": name,
                "anchor": _anchor(name),
                "title": _title(executed[name]) if name in executed else name,
                "link": _link(executed[name], base) if name in executed else "",
                "state": state.get("state", ""),
                "duration": _duration(state.get("seconds")),
                "error": state.get("error") or "",
                "log": log,
                "log_link": _link(log_path, base) if log and log_path else "",
                "claims": len(judged),
                "figures": [item for item in owned[name] if item["kind"] == "figure"],
                "tables": [item for item in owned[name] if item["kind"] == "table"],
            }
        )
    return shown


def _name(notebook: str) -> str:
    """'notebooks/2_dcl/5.1_figure4_images.ipynb' and '2_dcl/5.1_figure4_images' are one notebook."""
    return notebook.removeprefix("notebooks/").removesuffix(".ipynb")


def _title(path: Path) -> str:
    """The notebook's first heading, else its name."""
    try:
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
        heading = re.match(r"#\s+(.+)", first if isinstance(first, str) else "".join(first))
    except (OSError, ValueError, LookupError, TypeError):
        heading = None
    return heading[1].strip() if heading else path.stem


def _table(path: Path) -> dict[str, Any]:
    """A table's cells as text, long decimals shortened, a bare 0, 1, 2, ... index left out, the first MOST_ROWS rows."""
    with open(path, encoding="utf-8", newline="") as file:
        head, *body = list(csv.reader(file)) or [[]]
    if head and head[0] in ("", "Unnamed: 0") and [row[0] for row in body] == [str(i) for i in range(len(body))]:
        head, body = head[1:], [row[1:] for row in body]
    numeric = [bool(body) and all(_is_number(row[column]) or not row[column] for row in body) for column in range(len(head))]
    columns = [_short(list(column)) if numeric[i] else column for i, column in enumerate(zip(*body[:MOST_ROWS], strict=True))]
    return {"kind": "table", "head": head, "numeric": numeric, "rows": list(zip(*columns, strict=True)), "total": len(body)}


def _figure(path: Path) -> dict[str, Any]:
    data = base64.b64encode(path.read_bytes()).decode()
    return {"kind": "figure", "source": f"data:{_IMAGES[path.suffix]};base64,{data}"}


# --- parts


def _provenance(source: Mapping[str, Any]) -> dict[str, str]:
    """What a run was made with, as text: nested values in one line, seconds as minutes."""
    known = {}
    for name, value in source.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items() if v not in ("", None))
        elif name.endswith("seconds"):
            name, value = name.removesuffix("seconds").strip("_ ") or "time", _duration(value)
        if value not in ("", None):
            known[name.replace("_", " ")] = str(value)
    return known


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _duration(seconds: object) -> str:
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return ""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _short(column: list[str]) -> list[str]:
    """A column of numbers; where one has four or more decimals, all with as many as give the largest five digits (1 to 6)."""
    if not any(re.search(r"\.\d{4,}", cell) for cell in column):
        return column
    values = [float(cell) for cell in column if cell]
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    decimals = min(6, max(1, 4 - math.floor(math.log10(largest)))) if largest else 1
    fits = all(value == 0 or abs(value) >= 10.0**-decimals for value in values)  # else the small ones would read 0
    return [f"{float(cell):{f'.{decimals}f' if fits else '.4g'}}" if cell else "" for cell in column]


def _anchor(name: str) -> str:
    return "notebook-" + re.sub(r"[^\w.-]", "-", _name(name))


def _link(path: Path, base: Path) -> str:
    return quote(Path(os.path.relpath(path, base)).as_posix())


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _read_or_say(problems: list[str], path: Path, get: Callable[[Path], T], otherwise: T) -> T:
    """What `get` makes of the file; one that cannot be read becomes a line on the page, since the rest of it is still worth having."""
    try:
        return get(path)
    except (OSError, ValueError, LookupError) as error:
        problems.append(f"{path.parent.name}/{path.name} cannot be read: {' '.join(str(error).split())}")
        return otherwise
