"""The report page: one HTML file, the headline claims first, then the ledger paper by paper, then
what each notebook measured and drew.

It needs no network and no script from elsewhere. Figures stay files beside it, which it loads when
they come into view. The parts that show claims are macros of claims.html, which the site's pages
also use (tools/build_site.py).
"""

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from curlnb.companion import formatting, ledger, typeset
from curlnb.companion.formatting import MARKS, NOT_RUN
from curlnb.companion.report_notebooks import (
    duration,
    extract_figures,
    notebooks,
    read_or_say,
    short_name,
)
from curlnb.runs.files import json_if_there, write_atomically

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
    results_dir: Path,
    reference_dir: Path,
    out: Path,
    provenance: Mapping[str, Any] | None = None,
    *,
    committed: Path | None = None,
    links: Mapping[str, str] | None = None,
    home: str = "",
) -> Path:
    """Write the page of one reproduction to `out` and return it.

    results_dir: results/<profile>, with what there is of claims.csv, own_claims.csv, tables/,
    figures/, notebooks/, status.json and provenance.json; the folders of other profiles beside it,
    and those of reference_dir (results/reference), give the best evidence. provenance: instead of
    results_dir/provenance.json. What is missing, or cannot be read, is said on the page. committed:
    a folder of committed notebooks; where it is given, the page shows the references alone, with
    the figures of these notebooks. links: where the page finds each notebook, by name. home: the
    address of a site that the page is part of.
    """
    results_dir, reference_dir, out = Path(results_dir), Path(reference_dir), Path(out)
    page = _page(results_dir, reference_dir, out.parent, provenance, committed, links or {})
    text = environment().get_template("report.html").render(**page, home=home)
    write_atomically(out, lambda file: file.write_text(text, encoding="utf-8"))
    return out


def write_committed(
    reference_dir: Path, committed: Path, out: Path, profile: str = "quick", **options: Any
) -> Path:
    """Write the page of the committed references of `profile`, for a checkout on which nothing was
    reproduced yet, and return it.

    Figures are taken from the outputs of the committed notebooks, tables are copied, both into a
    folder beside the page.
    """
    folder = out.parent / f"{out.stem}_files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if (reference_dir / profile / "tables").exists():
        shutil.copytree(reference_dir / profile / "tables", folder / "tables")
    for path in sorted(committed.rglob("*.ipynb")):
        if ".ipynb_checkpoints" not in path.parts:
            extract_figures(path, folder / "figures" / path.relative_to(committed).with_suffix(""))
    provenance = json_if_there(reference_dir / profile / "provenance.json")
    return write_report(folder, reference_dir, out, provenance, committed=committed, **options)


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
    results: Path,
    references: Path,
    base: Path,
    provenance: Mapping[str, Any] | None,
    committed: Path | None,
    links: Mapping[str, str],
) -> dict[str, Any]:
    """Everything the template needs, as plain values; links are relative to the folder `base`."""
    problems: list[str] = []
    nothing: dict[str, Any] = {}

    def read(path: Path) -> pd.DataFrame:
        return read_or_say(problems, path, ledger.read, ledger.frame([]))

    profile = "reference" if committed else results.name
    present = {
        name: read(results.parent / name / ledger.FILE) for name in ledger.PROFILES if not committed
    }
    reference = {name: read(references / name / ledger.FILE) for name in ledger.PROFILES}
    here = (
        ledger.frame([])
        if committed
        else present[profile]
        if profile in present
        else read(results / ledger.FILE)
    )
    own = read(results / ledger.OWN_FILE)
    best = ledger.best_of(
        side[name] for name in ledger.PROFILES for side in (present, reference) if name in side
    )
    sides = [
        {row["id"]: row for row in ledger.records(rows)}
        for rows in (here, reference.get(profile, ledger.frame([])))
    ]
    rows = [claim_row(row, [side.get(row["id"]) for side in sides]) for row in ledger.records(best)]
    rows += [claim_row(row, [row, None]) for row in ledger.records(own)]
    status = read_or_say(problems, results / "status.json", json_if_there, nothing)
    source = (
        dict(provenance)
        if provenance is not None
        else read_or_say(problems, results / "provenance.json", json_if_there, nothing)
    )
    sources = {
        name: read_or_say(problems, references / name / "provenance.json", json_if_there, nothing)
        for name in ledger.PROFILES
    }
    judged = best if committed else pd.concat([here, own])
    folder = committed or results / "notebooks"
    shown = notebooks(results, folder, base, judged, status, problems, links)
    counts = ledger.summary(best, ["kind", "scope"])
    return {
        "profile": profile,
        "committed": committed is not None,
        "provenance": _provenance(source),
        "reference_provenance": {
            f"Reference, {name} profile": _provenance(known)
            for name, known in sources.items()
            if known
        },
        "headlines": [row for id in HEADLINES for row in rows if row["id"] == id],
        "papers": papers_of(rows),
        "verdicts": _counts(rows),
        "total": len(rows),
        "columns": [] if committed else ["This run", "Reference"],
        "counts": counts.reset_index().to_dict("split"),
        "chance": _chance(best).removeprefix("; "),
        "judged": len(judged),
        "notebooks": shown,
        "links": {notebook["name"]: f"#{notebook['anchor']}" for notebook in shown},
        "failures": [notebook for notebook in shown if notebook["state"] not in ("done", "")],
        "problems": problems,
    }


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
        "notebook": short_name(row["notebook"]),
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
