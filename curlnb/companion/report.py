"""The report page: one HTML file, the headline claims first, then the ledger paper by paper, then
the notebooks and where the numbers come from. `make report` writes it, and the site shows it.

It needs no network and no script from elsewhere.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from curlnb.companion import formatting, ledger, notebooks, typeset
from curlnb.companion.formatting import MARKS, Row
from curlnb.runs import environment, provenance
from curlnb.runs.files import read_json, write_atomically

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
HEADLINES = (  # four a paper, what it says of theory and of results, whatever the verdicts
    "arora2019/theorem4.1",
    "arora2019/table1-images-supervised",
    "arora2019/table1-wiki-avg2",
    "arora2019/table2-images-b10",
    "chuang2020/theorem3-t1",
    "chuang2020/fig2-N510",
    "chuang2020/fig4a-debiased",
    "chuang2020/fig4b-debiased",
    "robinson2021/prop3",
    "robinson2021/fig2-cifar100-simclr",
    "robinson2021/fig2-stl10-simclr",
    "robinson2021/fig2-cifar10-gone",
)


def write_report(
    results: Path | None, out: Path, *, links: Mapping[str, str] = {}, home: str = ""
) -> Path:
    """Write the page of one reproduction, or of the committed references alone, and return it.

    results: results/<profile>, with what there is of claims.csv, own_claims.csv, notebooks/,
    status.json and provenance.json; None: the references alone. The other profiles' results and the
    references give the best evidence. A damaged ledger of this reproduction is set aside and named
    in a line; other damaged files are a ValueError that names them. links: where the page finds
    each notebook, by name. home: the address of a site that the page is part of.
    """
    page = _page(results, out.parent, links)
    text = PAGES.get_template("report.html").render(**page, home=home)
    write_atomically(out, lambda file: file.write_text(text, encoding="utf-8"))
    return out


def verdicts(rows: pd.DataFrame) -> str:
    """How often each verdict was reached, and how many may be wrong by chance, in a line."""
    counts = ledger.summary(rows).sum().items()
    total = ", ".join(f"{count} {name}" for name, count in counts) or "no claim has been judged"
    chance = ledger.expected_false(rows)
    said = f"; chance alone makes at most {chance:.2g} of them wrong on average"
    return total + (said if chance else "")


def _page(results: Path | None, base: Path, links: Mapping[str, str]) -> dict[str, Any]:
    """Everything the template needs; links are relative to the folder `base`."""
    here = ledger.read_all(results) if results else ledger.frame([])  # first: it sets damage aside
    best = ledger.best_evidence(committed=results is None)
    rows, judged = ledger.records(best), (here if results else best)["notebook"]
    about = {
        f"Reference, {name} profile": provenance.of_reference(name) for name in ledger.PROFILES
    }
    sides: dict[str, dict[str, Row]] = {}
    status: dict[str, Any] = {}
    if results:
        committed = ledger.read(environment.reference_folder() / results.name / ledger.FILE)
        for title, side in {"This run": here, "Reference": committed}.items():
            sides[title] = {row["id"]: row for row in ledger.records(side)}
        rows += ledger.records(here[here["paper"] == ledger.OWN])
        status = read_json(results / "status.json")
        about = {"This run": read_json(results / "provenance.json")} | about
    shown = _notebooks(results, base, status, links, judged.value_counts())
    return {
        "profile": results.name if results else "",
        "provenance": {name: known for name, known in about.items() if known},
        "headlines": [row for id in HEADLINES for row in rows if row["id"] == id],
        "rows": rows,
        "sides": sides,
        "counts": ledger.summary(best).reset_index().to_dict("split"),
        "chance": ledger.expected_false(best),
        "judged": len(judged),
        "notebooks": shown,
        "links": {notebook["name"]: notebook["link"] for notebook in shown},
        "failures": [notebook for notebook in shown if notebook["state"] not in ("done", "")],
    }


def _notebooks(
    results: Path | None,
    base: Path,
    status: Mapping[str, Any],
    links: Mapping[str, str],
    judged: pd.Series,
) -> list[dict[str, Any]]:
    """The notebooks in reading order: title, what became of each, how many claims it judges, and
    where it is found, executed or as it is committed.
    """

    def link(path: Path) -> str:
        return quote(Path(os.path.relpath(path, base)).as_posix()) if path.exists() else ""

    shown = []
    for path in notebooks.find():
        name = notebooks.name_of(path)
        state = {"state": "", "seconds": 0.0, "error": "", "log": ""} | status.get(name, {})
        executed = link(results / "notebooks" / f"{name}.ipynb") if results else ""
        shown.append(
            state
            | {
                "name": name,
                "title": notebooks.title_of(path),
                "claims": judged.get(name, 0),
                "link": links.get(name) or executed or link(path),
                "log": link(results / state["log"]) if results and state["log"] else "",
            }
        )
    return shown


def duration(seconds: float) -> str:
    """Seconds in words: '42 s', '7 min', '2.5 h'."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _plot(row: Row) -> dict[str, Any] | None:
    """Where the interval, the claimed region and the effect lie, in percent of the row's own range;
    None without an interval.
    """
    names = ("low", "high", "mean", "claimed_low", "claimed_high", "effect")
    values = {name: row[name] for name in names if pd.notna(row[name])}
    if "low" not in values:
        return None
    left, right = min(values.values()), max(values.values())
    margin = 0.12 * (right - left) or 1.0
    width = right - left + 2 * margin
    at = {name: round(100 * (x - left + margin) / width, 2) for name, x in values.items()}
    bounds = [at[name] for name in ("claimed_low", "claimed_high") if name in at]
    region = (at.get("claimed_low", 0), at.get("claimed_high", 100))
    return {"effect": None} | at | {"region": region, "bounds": bounds}


PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""The templates beside this module, and what they show rows of the ledger by."""
PAGES.globals |= {"PAPERS": PAPER_TITLES, "KINDS": KIND_TITLES, "MARKS": MARKS}
PAGES.filters |= {
    "formulas": typeset.html,
    "claimed": formatting.claimed_text,
    "measured": formatting.measured,
    "plot": _plot,
    "duration": duration,
}
