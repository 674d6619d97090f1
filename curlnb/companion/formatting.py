"""Claims and verdicts as text, for notebooks, the terminal and the report page.

A row is a line of the ledger with its claim's words (`curlnb.companion.ledger`) by name, None or
NaN where one does not apply.
"""

import html
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from curlnb.companion.second_opinion import second_opinion
from curlnb.companion.statistics import CONTRADICTED, REPRODUCED, SMALL, SMALLER, UNDECIDED

HOLDS, STEP, FAILS, READING, NOTE = THEORY = (
    "holds",
    "proof step fails",
    "fails",
    "depends on the reading",  # true as the sentence stands, false as it is mostly taken
    "note",  # a slip that the paper puts right elsewhere, or what O() hides: no verdict
)
NOT_RUN = "not run"
LINES = 5  # of a notebook's ledger that are shown; the rest is folded
MARKS = {  # every verdict; it must be readable without its colour
    REPRODUCED: "✓",
    SMALL: "✓",
    SMALLER: "<",
    CONTRADICTED: "✗",
    UNDECIDED: "?",
    HOLDS: "✓",
    STEP: "!",
    FAILS: "✗",
    READING: "◐",
    NOTE: "·",
    NOT_RUN: "–",
}

Row = Mapping[str, Any]


class ClaimsTable:
    """Judged claims shown by a notebook cell: HTML where it can be shown, the same lines of text on
    every machine where it cannot.

    beside: by id, what stands in the committed reference of a better profile.
    """

    def __init__(self, rows: Iterable[Row], beside: Mapping[str, Row] = {}) -> None:
        pairs = [(row, beside.get(row["id"])) for row in rows]
        # with the second opinion on the best evidence
        self.rows = [(row, better, second_opinion(better or row)) for row, better in pairs]

    def __repr__(self) -> str:
        lines = []
        for row, better, opinion in self.rows:
            lines.append(line(row))
            if better:
                lines.append(f"  at {_at_its_profile(better)}")
            if opinion:
                lines.append(f"  second opinion: {opinion}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A line for each of the first claims; all of them, with what was claimed and measured,
        folded below.
        """
        lines = "".join(f"<li>{html.escape(_brief(row))}</li>" for row, *_ in self.rows[:LINES])
        many = f"{len(self.rows)} claims" if len(self.rows) != 1 else "The claim"
        table = pd.DataFrame(_cells(*row) for row in self.rows).fillna("")
        with pd.option_context("display.max_colwidth", None):
            shown = table.to_html(index=False, justify="left")
        shown = shown.replace("<td>", '<td style="text-align: left">')
        return (
            f'<ul style="list-style: none">{lines}</ul><details><summary>{many}, with what was '
            f"claimed and what was measured</summary>{shown}</details>"
        )


def _cells(row: Row, better: Row | None, opinion: str) -> dict[str, str]:
    """A row of the table, by heading."""
    named = joined(row["id"], row["where"], by=", ")
    cells = {
        "claim": f"{row['claim']} ({named})",
        "claimed": claimed_text(row),
        "measured": joined(measured_text(row), row["diagnostic"]),
        "verdict, by docs/verdicts.md": joined(_marked(row), notes_text(row)),
    }
    if better:
        cells["at a better profile"] = _at_its_profile(better)
    if opinion:
        cells["second opinion, by docs/second_opinion.md"] = opinion
    return cells


def joined(*parts: str, by: str = "; ") -> str:
    """The parts that are not empty, in one text."""
    return by.join(filter(None, parts))


def line(row: Row) -> str:
    """A claim in one line: id, verdict with its scope, what was measured, the diagnostic, the note,
    and both readings where the verdict depends on the reading.
    """
    measured = joined(measured_text(row), row["diagnostic"])
    return f"{row['id']}: {joined(verdict_text(row), measured, row['note'], remark_text(row))}"


def verdict_text(row: Row) -> str:
    """'reproduced (stand-in)': the verdict with its scope; 'proof step fails, statement stands'."""
    stands = ", statement stands" if row["verdict"] == STEP else ""
    scope = f" ({row['scope']})" if row["scope"] else ""
    return row["verdict"] + stands + scope


def notes_text(row: Row) -> str:
    """What stands beside a verdict: its note, its readings, and what was changed after a look."""
    changed = f"changed after a look at results: {row['changed']}" if row["changed"] else ""
    return joined(row["note"], remark_text(row), changed)


def remark_text(row: Row) -> str:
    """The two readings of a verdict that depends on them, or why a row is a note; else ''."""
    return row["remark"] if row["verdict"] in (READING, NOTE) else ""


def region_text(low: float | None, high: float | None) -> str:
    """'> 0', '< 2', 'between -2 and 2', or 'exact'; a bound that is missing is none."""
    if pd.notna(low) and pd.notna(high):
        return f"between {low:g} and {high:g}"
    return f"> {low:g}" if pd.notna(low) else f"< {high:g}" if pd.notna(high) else "exact"


def claimed_text(row: Row) -> str:
    """'> 0, effect 4.26 (Table 1)': the region, and the smallest effect that matters with its
    source.
    """
    region = region_text(row["claimed_low"], row["claimed_high"])
    if pd.isna(row["effect"]):
        return region
    source = f" ({row['effect_from']})" if row["effect_from"] else ""
    return f"{region}, effect {row['effect']:g}{source}"


def measured_text(row: Row) -> str:
    """'mean paired difference +2.90 [+1.00, +4.80] points, n = 5 (12 planned)', or '' where nothing
    was measured.
    """
    number = number_text(row, 2)
    return f"{row['statistic']} {number}" if number else ""


def number_text(row: Row, decimals: int | None = None) -> str:
    """'+2.90 [+1.00, +4.80] points, n = 5 (12 planned)', or ''."""
    part = measured(row, decimals)
    number = joined(part["mean"], part["interval"], part["unit"], by=" ")
    return joined(number, part["count"], by=", ")


def measured(row: Row, decimals: int | None = None) -> dict[str, str]:
    """What was measured as text: {"mean": "+2.9", "interval": "[+1.0, +4.9]", "unit": "points",
    "count": "n = 5 (12 planned)"}.

    Parts that are missing are empty. decimals: of every number, except that exact claims get four
    digits. None: as many as give the interval's half width two digits; without an interval three
    digits of the mean.
    """
    theory = row["verdict"] in THEORY
    cells = [row[name] for name in ("value" if theory else "mean", "low", "high")]
    mean, low, high = np.array(cells, dtype=float).tolist()
    # the claim is about a difference; z: a rounded -0.0 is 0.0
    sign = "+z" if 0 in (row["claimed_low"], row["claimed_high"]) else "z"
    style = ".4g" if theory else f"{sign}.{decimals}f"
    if decimals is None and not theory:
        half, digits = (abs(mean), 3) if math.isnan(high - low) else ((high - low) / 2, 2)
        most = digits - 1 - math.floor(math.log10(half)) if 0 < half < math.inf else 0
        style = f"{sign},.{min(6, max(0, most))}f"
    count = ""
    if pd.notna(row["n"]):
        count = f"n = {row['n']}" + ("" if pd.isna(row["seeds"]) else f" ({row['seeds']} planned)")
    elif pd.notna(row["cases"]):
        count = "1 case" if row["cases"] == 1 else f"{row['cases']:,} cases"
    return {
        "mean": "" if math.isnan(mean) else f"{mean:{style}}",
        "interval": "" if math.isnan(high - low) else f"[{low:{style}}, {high:{style}}]",
        "unit": "" if math.isnan(mean) else row["unit"],
        "count": count,
    }


def _brief(row: Row) -> str:
    """'✓ holds: the claim in our words (0.9996)'."""
    number = number_text(row, 2)
    return f"{_marked(row)}: {row['claim']}" + (f" ({number})" if number else "")


def _marked(row: Row) -> str:
    return f"{MARKS[row['verdict']]} {verdict_text(row)}"


def _at_its_profile(row: Row) -> str:
    return f"{row['profile']}: {joined(verdict_text(row), number_text(row, 2))}"
