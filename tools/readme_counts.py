"""Renew the table of verdicts in README.md from the committed references: `python
tools/readme_counts.py`. A test says when to.
"""

from pathlib import Path

import pandas as pd

from curlnb.companion.formatting import MARKS
from curlnb.companion.ledger import best_evidence, once
from curlnb.companion.report import KIND_TITLES

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- counts: made by tools/readme_counts.py -->\n", "<!-- end of counts -->\n"
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


def table(evidence: pd.DataFrame) -> str:
    """Kinds down, papers across: how many groups of claims have which verdict, as a Markdown table."""
    counts = once(evidence).groupby(["kind", "paper", "verdict"]).size()
    papers = [paper for paper in PAPERS if paper in evidence["paper"].to_numpy()]

    def cell(kind: str, paper: str) -> str:
        found = {
            verdict: counts[kind, paper, verdict]
            for verdict in MARKS
            if (kind, paper, verdict) in counts
        }
        words = (
            f"{n} {MANY.get(verdict, verdict) if n > 1 else verdict}"
            for verdict, n in found.items()
        )
        return ", ".join(
            said.replace(", ", " but ") for said in words
        )  # reproduced, smaller than claimed: one verdict

    lines = [
        "| | " + " | ".join(PAPERS[paper] for paper in papers) + " |",
        "|---" * (len(papers) + 1) + "|",
    ]
    lines += [
        f"| **{said}** | " + " | ".join(cell(kind, paper) for paper in papers) + " |"
        for kind, said in KIND_TITLES.items()
    ]
    return "\n".join(lines) + "\n"


def renewed(readme: str, made: str) -> str:
    """The README's text with `made` in the place of its table."""
    before, _, rest = readme.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(
            f"README.md has lost the lines {BEGIN.strip()} and {END.strip()}, between which the table of verdicts stands"
        )
    return before + BEGIN + made + END + after


def main() -> None:
    README.write_text(
        renewed(README.read_text(encoding="utf-8"), table(best_evidence(committed=True))),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
