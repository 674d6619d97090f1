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
from curlnb.companion.claims import PAPERS
from curlnb.companion.formatting import MARKS, NOT_RUN
from curlnb.runs.files import write_atomically

PAPER_TITLES = {
    "arora2019": "Arora et al. 2019 (CURL)",
    "chuang2020": "Chuang et al. 2020 (DCL)",
    "robinson2021": "Robinson et al. 2021 (HCL)",
    "curlnb": "Findings of this project",
    "mine": "Claims of your own",
}
KIND_TITLES = {
    "experiment": "experiments",
    "theorem": "theorems",
    "proof step": "steps of proofs",
    "text": "remarks",
    "released code": "the released code",
    "ours": "what we add",
}
MOST_ROWS = 200  # of a table on the page; the CSV has the rest
_IMAGES = {".svg": "image/svg+xml", ".png": "image/png"}

T = TypeVar("T")


def write_report(results_dir: Path, reference_dir: Path, out: Path, provenance: Mapping[str, Any] | None = None) -> Path:
    """Write the page of one reproduction to `out` and return it.

    results_dir: results/<profile>, with what there is of claims.csv, own_claims.csv, tables/, figures/, notebooks/, status.json and
    provenance.json; the folders of other profiles beside it, and those of reference_dir (results/reference), give the best evidence.
    provenance: instead of results_dir/provenance.json. What is missing, or cannot be read, is said on the page.
    """
    results_dir, reference_dir, out = Path(results_dir), Path(reference_dir), Path(out)
    page = _page(results_dir, reference_dir, out.parent, provenance)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    text = template.render(**page)
    write_atomically(out, lambda file: file.write_text(text, encoding="utf-8"))
    return out


def verdict_table(rows: pd.DataFrame) -> str:
    """The ledger for a terminal: one line a claim, then how often each verdict was reached, and how many may be wrong by chance."""
    if rows.empty:
        return "no claim has been judged"
    cells = [(formatting.verdict_text(row), row["id"], formatting.number_text({**row, "seeds": None})) for row in ledger.records(rows)]
    widths = [max(len(line[column]) for line in cells) for column in (0, 1)]
    lines = (f"{verdict:{widths[0]}}  {id:{widths[1]}}  {number}".rstrip() for verdict, id, number in cells)
    total = ", ".join(f"{count} {name}" for name, count in ledger.summary(rows).sum().items())
    return "\n".join([*lines, "", total + _chance(rows)])


def _chance(rows: pd.DataFrame) -> str:
    expected = ledger.expected_false(rows)
    return f"; chance alone makes at most {expected:.1f} of them wrong on average" if expected else ""


def _page(results: Path, references: Path, base: Path, provenance: Mapping[str, Any] | None) -> dict[str, Any]:
    """Everything the template needs, as plain values; links are relative to the folder `base`."""
    problems: list[str] = []
    nothing: dict[str, Any] = {}

    def read(path: Path) -> pd.DataFrame:
        return _read_or_say(problems, path, ledger.read, ledger.frame([]))

    profile = results.name
    present = {name: read(results.parent / name / ledger.FILE) for name in ledger.PROFILES}
    committed = {name: read(references / name / ledger.FILE) for name in ledger.PROFILES}
    here, own = read(results / ledger.FILE) if profile not in present else present[profile], read(results / ledger.OWN_FILE)
    best = ledger.best_of(side[name] for name in ledger.PROFILES for side in (present, committed))
    run, reference = ({row["id"]: row for row in ledger.records(rows)} for rows in (here, committed.get(profile, ledger.frame([]))))
    rows = [_row(row, [run.get(row["id"]), reference.get(row["id"])]) for row in ledger.records(best)]
    rows += [_row(row, [row, None]) for row in ledger.records(own)]
    status = _read_or_say(problems, results / "status.json", _json, nothing)
    source = dict(provenance) if provenance is not None else _read_or_say(problems, results / "provenance.json", _json, nothing)
    sources = {name: _read_or_say(problems, references / name / "provenance.json", _json, nothing) for name in ledger.PROFILES}
    notebooks = _notebooks(results, base, pd.concat([here, own]), status, problems)
    counts = ledger.summary(best, ["kind", "scope"])
    return {
        "profile": profile,
        "provenance": _provenance(source),
        "reference_provenance": {f"Reference, {name} profile": _provenance(known) for name, known in sources.items() if known},
        "bodies": [
            (f"{title}: {KIND_TITLES[kind]}" if paper in PAPERS[:3] else title, part)
            for paper, title in PAPER_TITLES.items()
            for kind in KIND_TITLES
            if (part := [row for row in rows if (row["paper"], row["kind"]) == (paper, kind)])
        ],
        "verdicts": [(name, MARKS[name], _slug(name), sum(row["verdict"] == name for row in rows)) for name in MARKS],
        "counts": counts.reset_index().to_dict("split"),
        "chance": _chance(best).removeprefix("; "),
        "judged": len(here) + len(own),
        "notebooks": notebooks,
        "anchors": {notebook["anchor"] for notebook in notebooks},
        "failures": [notebook for notebook in notebooks if notebook["state"] not in ("done", "")],
        "problems": problems,
    }


# --- the ledger


def _row(row: dict[str, Any], sides: list[dict[str, Any] | None]) -> dict[str, Any]:
    """A claim with its best evidence, and beside it what this run and the reference of its profile have."""
    words = ("id", "paper", "kind", "where", "claim", "statistic", "diagnostic", "note", "profile", "scope")
    return {
        **{name: row[name] for name in words},
        **_side(row, row),
        "anchor": _anchor(row["notebook"]),
        "claimed": formatting.claimed_text(row),
        "mean": None if pd.isna(row["mean"]) else row["mean"],
        "data": f"on {row['data'].replace('|', ', ')}" if row["data"] else "",
        "sides": [_side(side, row) if side else None for side in sides],
        "plot": _plot(row),
    }


def _side(row: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, Any]:
    differs = NOT_RUN not in (row["verdict"], best["verdict"]) and row["verdict"] != best["verdict"]
    verdict = {"verdict": row["verdict"], "mark": MARKS[row["verdict"]], "slug": _slug(row["verdict"]), "scope": row["scope"]}
    return {**verdict, "measured": formatting.measured(row), "differs": differs}


def _slug(verdict: str) -> str:
    return verdict.replace(",", "").replace(" ", "-")


def _plot(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where the interval, the claimed region and the effect lie, in percent of the row's own range; None without an interval."""
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return None
    low, high, effect = (None if pd.isna(row[name]) else row[name] for name in ("claimed_low", "claimed_high", "effect"))
    bounds = [bound for bound in (low, high) if bound is not None]
    marks = [row["low"], row["high"], *bounds, *([] if effect is None else [effect])]
    left, right = min(marks), max(marks)
    margin = 0.12 * (right - left) or 1.0

    def at(value: float) -> float:
        return round(100 * (value - left + margin) / (right - left + 2 * margin), 2)

    return {
        "region": (0 if low is None else at(low), 100 if high is None else at(high)),
        "bounds": [at(bound) for bound in bounds],
        **{name: at(row[name]) for name in ("low", "high", "mean")},
        "effect": None if effect is None else at(effect),
    }


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
