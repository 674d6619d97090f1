"""Build the paper from the ledger: `make paper`, in seconds, into results/paper/paper.pdf.

The text is paper.typ; every number in it is a row of the committed ledger, which this writes beside
it as ledger.json.
"""

import json
import re
import shutil
from collections import Counter
from html import unescape
from pathlib import Path

import matplotlib.pyplot as plt
import pages
import pandas as pd

import curlnb
from curlnb.companion import (
    claims,
    external,
    formatting,
    ledger,
    notebook,
    plots,
    reference,
    typeset,
)
from curlnb.companion.second_opinion import second_opinion
from curlnb.runs import environment, provenance

TEXT = Path(__file__).with_name("paper.typ")
FOREST = {
    "unbiased, N = 510": "chuang2020/fig2-N510",
    "debiased, N = 510": "chuang2020/fig4a-debiased",
    "debiased, second positive": "chuang2020/fig4c-positives",
    "debiased, minus three views": "curlnb/fig4c-three-views",
    "hard, N = 62": "robinson2021/fig2-cifar10-small-n",
    "hard, N = 510": "robinson2021/fig2-cifar10-gone",
    "blocks of five, articles": "arora2019/table2-wiki-b5",
}
"""The rows of the figure of gains, an arm first."""


def typst_of(text):
    """A claim's text with its formulas typeset, as Typst markup."""
    tags = {"<i>": "#emph[", "<sub>": "#sub[", "<sup>": "#super["}
    tags |= dict.fromkeys(["</i>", "</sub>", "</sup>"], "]")
    parts = re.split("(" + "|".join(tags) + ")", str(typeset.html(text)))
    return "".join(
        tags.get(part) or re.sub(r"([^\w\s]|_)", r"\\\1", unescape(part)) for part in parts
    )


def data():
    """What the text reads: by claim its numbers as text, all of them in order, and counts."""
    found = ledger.records(ledger.best_evidence(committed=True))
    rows = {}
    for row in found:
        measured = pd.notna(row["mean"])  # '+1.55' and '[1.00, 2.10]'
        marks = external.marks(row["id"]).items()
        rows[row["id"]] = {
            "verdict": row["verdict"],
            "seeds": f"{row['n']:.0f}" if pd.notna(row["n"]) else "",
            "claim": " ".join(claims.table()[row["id"]].claim.split()),
            "opinion": second_opinion(row),
            "mean": f"{row['mean']:+.2f}" if measured else "",
            "interval": f"[{row['low']:.2f}, {row['high']:.2f}]" if measured else "",
            "others": "; ".join(f"{name}: {value:+.2f}" for name, value in marks),
        }
    rows["ledger"] = [
        {
            "id": row["id"],
            "claim": typst_of(rows[row["id"]]["claim"]),
            "verdict": row["verdict"],
            "measured": formatting.number_text(row),
        }
        for row in found
    ]
    counted = ledger.records(ledger.once(ledger.best_evidence(committed=True)))
    words = Counter(row["verdict"] for row in counted if row["kind"] == "theorem")
    ours = sum(row["kind"] == "ours" for row in found)
    rows["counts"] = {
        "claims": str(len(found) - ours),
        "ours": str(ours),
        "runs": f"{sum(len(reference.records(p)) for p in ('quick', 'night')):,}",
        "not run": str(sum(row["verdict"] == "not run" for row in counted)),
        "theorems": ", ".join(f"{n} {pages.MANY.get(k, k)}" for k, n in words.items()),
        "version": curlnb.__version__,
        "commit": provenance.commit() or "unknown",
    }
    return rows


def gains():
    """The forest of gains, with what was published and what others measured."""
    best = {label: ledger.best(id) for label, id in FOREST.items()}
    drawn, axis = plt.subplots(figsize=(6.5, 4))
    plots.paired_gains(
        axis,
        {k: plots.Interval(r["mean"], r["low"], r["high"]) for k, r in best.items()},
        independent={label: external.marks(id) for label, id in FOREST.items()},
        unit="points of accuracy",
    )
    return drawn


def main():
    import typst

    folder = environment.results_folder() / "paper"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ledger.json").write_text(json.dumps(data(), indent=1), encoding="utf-8")
    with plt.style.context(["default", notebook.STYLE]):
        pages.figure().savefig(folder / "lead.svg")
        gains().savefig(folder / "gains.svg")
    source = Path(shutil.copy(TEXT, folder))
    typst.compile(source, output=folder / "paper.pdf")
    print(folder / "paper.pdf")


if __name__ == "__main__":
    main()
