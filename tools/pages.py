"""Renew what the pages show of the committed references: `python tools/pages.py`. A test says when.

README.md has the figure docs/night.svg, docs/verdicts.md the number of verdicts, and
docs/changed_rows.md the rows of the table of claims that were changed after a look at results.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from curlnb.companion import claims, notebook, plots
from curlnb.companion.formatting import MARKS
from curlnb.companion.ledger import best_evidence, once
from curlnb.companion.report import KIND_TITLES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BEGIN, END = "<!-- begin: made by tools/pages.py -->\n", "<!-- end -->\n"
MANY = {
    "holds": "hold",
    "fails": "fail",
    "proof step fails": "proof steps fail",
    "depends on the reading": "depend on the reading",
    "note": "notes",
}
"""The verdicts that have a form of their own for more than one claim."""
PAPERS = {
    "arora2019": "CURL (2019)",
    "chuang2020": "debiased (2020)",
    "robinson2021": "hard negatives (2021)",
    "curlnb": "this companion",
}


def counts(evidence):
    """Kinds down, papers across: how many groups of claims have which verdict, in Markdown."""
    found = once(evidence).groupby(["kind", "paper", "verdict"]).size()
    papers = [paper for paper in PAPERS if paper in evidence["paper"].to_numpy()]

    def cell(kind, paper):
        here = {name: found[kind, paper, name] for name in MARKS if (kind, paper, name) in found}
        words = (f"{n} {MANY.get(name, name) if n > 1 else name}" for name, n in here.items())
        return ", ".join(said.replace(", ", " but ") for said in words)  # one verdict, one comma

    rows = [
        f"| **{title}** | " + " | ".join(cell(kind, paper) for paper in papers) + " |"
        for kind, title in KIND_TITLES.items()
    ]
    head = "| | " + " | ".join(PAPERS[paper] for paper in papers) + " |"
    return "\n".join([head, "|---" * (len(papers) + 1) + "|", *rows]) + "\n"


def changed_rows():
    """The claims that were changed or added after a look at results, in Markdown."""
    source = "<!-- source: the entry of the table of claims -->"
    rows = [
        f"| {id} | {claim.where} | {' '.join(claim.changed.split())}{source} |"
        for id, claim in claims.table().items()
        if claim.changed
    ]
    return "\n".join(["| row | where | what was changed |", "|---|---|---|", *rows]) + "\n"


def figure():
    """What three losses gain over SimCLR, by kNN, as sixty epochs pass: paired over five seeds."""
    runs = notebook.committed("night/5_across_papers-long_curves")
    wide = runs.pivot_table(index=["epoch", "seed"], columns="arm", values="knn")
    arms = {
        plots.UNBIASED: "labelled negatives",
        plots.HARD: "hard, β 1",
        plots.DEBIASED: "debiased, τ⁺ 0.1",
    }
    drawn, axis = plt.subplots(figsize=(8, 4))
    for name, column in arms.items():
        gains = (wide[column] - wide["SimCLR"]).groupby(level="epoch").apply(plots.interval)
        middle, low, high = pd.DataFrame(gains.tolist(), gains.index).to_numpy().T
        colour = plots.colour(name)
        axis.plot(gains.index, middle, marker="o", color=colour)
        axis.fill_between(gains.index, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.annotate(f" {name}", (60, middle[-1]), color=colour, va="center")
    axis.axhline(0, color=plots.QUIET, linewidth=1)
    axis.text(60.6, 0, "SimCLR", color=plots.QUIET, va="top")
    axis.set(xlabel="epochs", ylabel="kNN accuracy minus SimCLR's, points", xlim=(4, 92))
    axis.set_xticks(range(10, 61, 10))
    axis.set_title("The hard loss's lead is a head start; that of labelled negatives lasts")
    return drawn


def renewed(page, made):
    """A page's text with `made` between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has lost the lines {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + made + END + after


def pages():
    """The text that each page should have."""
    made = {
        DOCS / "verdicts.md": counts(best_evidence(committed=True)),
        DOCS / "changed_rows.md": changed_rows(),
    }
    return {path: renewed(path.read_text(encoding="utf-8"), text) for path, text in made.items()}


def main():
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    with plt.style.context(["default", notebook.STYLE]), plt.rc_context({"svg.hashsalt": "curlnb"}):
        figure().savefig(DOCS / "night.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
