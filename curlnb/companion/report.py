"""The report page: one HTML file, the headline claims first, then the ledger paper by paper, then
the notebooks and where the numbers come from. `make report` writes it, and the site shows it.

It needs no network and no script from elsewhere.
"""

import functools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from curlnb.companion import formatting, ledger, notebooks, typeset
from curlnb.companion.formatting import MARKS, NOT_RUN
from curlnb.runs.files import json_if_there, write_atomically

T = TypeVar("T")
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
HEADLINES = (  # three or four a paper, what it says of theory and of results, whatever the verdicts
    *("arora2019/theorem4.1", "arora2019/table1-wiki-avg2", "arora2019/table2-wiki-b10"),
    *("chuang2020/theorem3-t1", "chuang2020/fig4a-debiased", "chuang2020/fig4b-debiased"),
    *(
        "robinson2021/prop3",
        "robinson2021/fig2-stl10-simclr",
        "robinson2021/fig2-cifar10-gone",
        "robinson2021/zero-overhead",
    ),
)


def write_report(
    results: Path | None,
    references: Path,
    out: Path,
    *,
    links: Mapping[str, str] | None = None,
    home: str = "",
) -> Path:
    """Write the page of one reproduction, or of the committed references alone, and return it.

    results: results/<profile>, with what there is of claims.csv, own_claims.csv, notebooks/,
    status.json and provenance.json; None: the references alone. The folders of other profiles
    beside it, and those of `references` (results/reference), give the best evidence. What cannot be
    read is said on the page. links: where the page finds each notebook, by name. home: the address
    of a site that the page is part of.
    """
    page = _page(results, references, out.parent, links or {})
    text = environment().get_template("report.html").render(**page, home=home)
    write_atomically(out, lambda file: file.write_text(text, encoding="utf-8"))
    return out


@functools.cache
def environment() -> Environment:
    """The templates beside this module, with claims' formulas typeset by the filter `formulas`."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["formulas"] = typeset.html
    return made


def verdict_table(rows: pd.DataFrame) -> str:
    """The ledger for a terminal: one line a claim, then how often each verdict was reached, and how
    many may be wrong by chance.
    """
    if rows.empty:
        return "no claim has been judged"
    cells = [
        (formatting.verdict_text(row), row["id"], formatting.number_text({**row, "seeds": None}))
        for row in ledger.records(rows)
    ]
    widths = [max(len(line[column]) for line in cells) for column in (0, 1)]
    lines = (
        f"{verdict:{widths[0]}}  {id:{widths[1]}}  {number}".rstrip()
        for verdict, id, number in cells
    )
    total = ", ".join(f"{count} {name}" for name, count in ledger.summary(rows).sum().items())
    return "\n".join([*lines, "", total + _chance(rows)])


def _chance(rows: pd.DataFrame) -> str:
    expected = ledger.expected_false(rows)
    return (
        f"; chance alone makes at most {expected:.1f} of them wrong on average" if expected else ""
    )


def papers_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `claim_row` by paper and kind: title, total, counts of verdicts, and the groups with
    theirs.
    """
    found = []
    for paper, title in PAPER_TITLES.items():
        groups: list[dict[str, Any]] = [
            {
                "title": KIND_TITLES[kind],
                "slug": f"{paper}-{_slug(kind)}",
                "rows": part,
                "counts": _counts(part),
            }
            for kind in KIND_TITLES
            if (part := [row for row in rows if (row["paper"], row["kind"]) == (paper, kind)])
        ]
        own = [row for group in groups for row in group["rows"]]
        if own:
            found.append(
                {
                    "slug": paper,
                    "title": title,
                    "groups": groups,
                    "total": len(own),
                    "counts": _counts(own),
                }
            )
    return found


def _counts(rows: list[dict[str, Any]]) -> list[tuple[str, str, str, int]]:
    counts = [
        (name, MARKS[name], _slug(name), sum(row["verdict"] == name for row in rows))
        for name in MARKS
    ]
    return [count for count in counts if count[3]]


def _page(
    results: Path | None, references: Path, base: Path, links: Mapping[str, str]
) -> dict[str, Any]:
    """Everything the template needs, as plain values; links are relative to the folder `base`."""
    problems: list[str] = []

    def read(path: Path, get: Callable[[Path], T], otherwise: T) -> T:
        try:
            return get(path)
        except (OSError, ValueError, LookupError) as error:
            why = " ".join(str(error).split())
            problems.append(f"{path.parent.name}/{path.name} cannot be read: {why}")
            return otherwise

    def rows_of(path: Path) -> pd.DataFrame:
        return read(path, ledger.read, ledger.frame([]))

    known: dict[str, Any] = {}
    committed = {name: rows_of(references / name / ledger.FILE) for name in ledger.PROFILES}
    about = {
        f"Reference, {name} profile": read(
            references / name / "provenance.json", json_if_there, known
        )
        for name in ledger.PROFILES
    }
    here, own, present, status = ledger.frame([]), ledger.frame([]), {}, known
    if results is not None:
        beside = results.parent
        present = {name: rows_of(beside / name / ledger.FILE) for name in ledger.PROFILES}
        here = present[results.name] if results.name in present else rows_of(results / ledger.FILE)
        own = rows_of(results / ledger.OWN_FILE)
        status = read(results / "status.json", json_if_there, known)
        about = {"This run": read(results / "provenance.json", json_if_there, known)} | about
    best = ledger.best_of(
        side[name] for name in ledger.PROFILES for side in (present, committed) if name in side
    )
    reference = committed.get(results.name, ledger.frame([])) if results else ledger.frame([])
    sides = [{row["id"]: row for row in ledger.records(rows)} for rows in (here, reference)]
    rows = [claim_row(row, [side.get(row["id"]) for side in sides]) for row in ledger.records(best)]
    rows += [claim_row(row, [row, None]) for row in ledger.records(own)]
    judged = pd.concat([here, own])["notebook"] if results else best["notebook"]
    shown = _notebooks(
        results, base, {str(k): int(n) for k, n in judged.value_counts().items()}, status, links
    )
    counts = ledger.summary(best, ["kind", "scope"])
    return {
        "profile": results.name if results else "",
        "provenance": {name: _provenance(source) for name, source in about.items() if source},
        "headlines": [row for id in HEADLINES for row in rows if row["id"] == id],
        "papers": papers_of(rows),
        "verdicts": _counts(rows),
        "total": len(rows),
        "columns": ["This run", "Reference"] if results else [],
        "counts": counts.reset_index().to_dict("split"),
        "chance": _chance(best).removeprefix("; "),
        "judged": len(judged),
        "notebooks": shown,
        "links": {notebook["name"]: notebook["link"] for notebook in shown if notebook["link"]},
        "failures": [notebook for notebook in shown if notebook["state"] not in ("done", "")],
        "problems": problems,
    }


def _notebooks(
    results: Path | None,
    base: Path,
    claims: Mapping[str, int],
    status: Mapping[str, Any],
    links: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The notebooks in reading order: title, what became of each, and where it is found, executed
    or as it is committed.
    """
    paths = {notebooks.name_of(path): path for path in notebooks.find()}
    shown = []
    for name in dict.fromkeys([*paths, *status]):
        state, path = status.get(name, {}), paths.get(name)
        executed = results / "notebooks" / f"{name}.ipynb" if results else None
        found = executed if executed and executed.exists() else path
        log = results / state["log"] if results and state.get("log") else None
        shown.append(
            {
                "name": name,
                "title": notebooks.title_of(path) if path else name,
                "link": links.get(name) or (_link(found, base) if found else ""),
                "state": state.get("state", ""),
                "duration": duration(state.get("seconds")),
                "error": state.get("error", ""),
                "log": _link(log, base) if log and log.exists() else "",
                "claims": claims.get(name, 0),
            }
        )
    return shown


def _link(path: Path, base: Path) -> str:
    return quote(Path(os.path.relpath(path, base)).as_posix())


def duration(seconds: object) -> str:
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


# --- the ledger


def claim_row(row: dict[str, Any], sides: list[dict[str, Any] | None]) -> dict[str, Any]:
    """A claim with its best evidence, for the macros of claims.html; beside it what this run and
    the reference of its profile have.
    """
    words = (
        "id",
        "paper",
        "kind",
        "where",
        "claim",
        "statistic",
        "diagnostic",
        "note",
        "profile",
        "scope",
    )
    return {
        **{name: row[name] for name in words},
        **_side(row, row),
        "notebook": row["notebook"],
        "by": PAPER_TITLES[row["paper"]].partition(" (")[0],
        "claimed": formatting.claimed_text(row),
        "mean": None if pd.isna(row["mean"]) else row["mean"],
        "data": f"on {row['data'].replace('|', ', ')}" if row["data"] else "",
        "sides": [_side(side, row) if side else None for side in sides],
        "plot": _plot(row),
    }


def _side(row: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, Any]:
    differs = NOT_RUN not in (row["verdict"], best["verdict"]) and row["verdict"] != best["verdict"]
    verdict = {
        "verdict": row["verdict"],
        "mark": MARKS[row["verdict"]],
        "slug": _slug(row["verdict"]),
        "scope": row["scope"],
    }
    changed = row["profile"].endswith(ledger.CHANGED.format(""))
    return {**verdict, "measured": formatting.measured(row), "differs": differs, "changed": changed}


def _slug(verdict: str) -> str:
    return verdict.replace(",", "").replace(" ", "-")


def _plot(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where the interval, the claimed region and the effect lie, in percent of the row's own range;
    None without an interval.
    """
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return None
    low, high, effect = (
        None if pd.isna(row[name]) else row[name]
        for name in ("claimed_low", "claimed_high", "effect")
    )
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


def _provenance(source: Mapping[str, Any]) -> dict[str, str]:
    """What a run was made with, as text: nested values in one line, seconds as minutes."""
    known = {}
    for name, value in source.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items() if v not in ("", None))
        elif name.endswith("seconds"):
            name, value = name.removesuffix("seconds").strip("_ ") or "time", duration(value)
        if value not in ("", None):
            known[name.replace("_", " ")] = str(value)
    return known
