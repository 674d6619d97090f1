"""Numbers and verdicts as text, for notebooks, the terminal and the report page.

A row is a claim's fields by name, None or NaN where one does not apply.
"""

import html
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from curlnb.companion.statistics import POWER

STAND_IN = " (stand-in)"
MARKS = {"reproduced": "✓", "contradicted": "✗", "inconclusive": "?", "not run": "–"}  # a verdict must be readable without its colour

Row = Mapping[str, Any]


class ClaimsTable:
    """Claims shown by a notebook cell: HTML where it can be shown, the same lines of text on every machine where it cannot."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def __repr__(self) -> str:
        return verdict_lines(self.rows)

    def _repr_html_(self) -> str:
        names = ("claim", "claimed", "measured", "published", "verdict")
        head = "".join(f'<th align="left" style="text-align: left">{name}</th>' for name in names)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_html, self.rows))}</tbody></table>"


def _html(row: Row) -> str:
    cells = (
        f"<b>{html.escape(row['statement'])}</b><br>{html.escape(row['id'] + ' · ' + row['where'])}",
        html.escape(region_text(row["claimed_low"], row["claimed_high"])),
        html.escape(measured_text(row)),
        html.escape(row["published"]),
        f"<b>{MARKS[kind(row)]} {html.escape(row['verdict'])}</b><br>{html.escape('; '.join(_reasons(row)))}",
    )
    return "<tr>" + "".join(f'<td align="left" style="text-align: left">{cell}</td>' for cell in cells) + "</tr>"


def verdict_lines(rows: Iterable[Row], decimals: int = 2) -> str:
    """One line a claim, for a cell whose output is checked: verdict, statistic, what would settle it."""
    return "\n".join(
        f"{row['id']}: {row['verdict']}" + "".join(f"; {part}" for part in (measured_text(row, decimals), *_reasons(row)) if part)
        for row in rows
    )


def kind(row: Row) -> str:
    """The verdict without the words that say that the data stands in for the paper's."""
    return row["verdict"].removesuffix(STAND_IN)


def region_text(low: float | None, high: float | None) -> str:
    """'> 0', '< 2', 'between -2 and 2', or 'exact'; a bound that is missing or infinite is none."""
    bounded_low, bounded_high = (not pd.isna(bound) and math.isfinite(bound) for bound in (low, high))  # type: ignore[arg-type]
    if bounded_low and bounded_high:
        return f"between {low:g} and {high:g}"
    return f"> {low:g}" if bounded_low else f"< {high:g}" if bounded_high else "exact"


def measured_text(row: Row, decimals: int = 2) -> str:
    """'mean paired difference +2.90 [+1.00, +4.80] points, n = 5', or '' where nothing was measured."""
    part = measured(row, decimals)
    number = " ".join(part[name] for name in ("mean", "interval", "unit") if part[name])
    return f"{row['statistic']} {number}" + (f", {part['count']}" if part["count"] else "") if number else ""


def measured(row: Row, decimals: int | None = None) -> dict[str, str]:
    """The measured numbers as text: {"mean": "+2.9", "interval": "[+1.0, +4.9]", "unit": "points", "count": "n = 5"}, empty where missing.

    decimals: of every number, except that theory claims get four digits. None: as many as give the interval's half width two digits;
    without an interval three digits of the mean, four of a theory claim's.
    """
    mean, low, high = (float("nan" if pd.isna(row[name]) else row[name]) for name in ("mean", "low", "high"))
    theory = bool(pd.isna(row["claimed_low"]) and pd.isna(row["claimed_high"]))
    sign = "+" if 0 in (row["claimed_low"], row["claimed_high"]) else ""  # the claim is about a difference
    style = ".4g" if theory else f"{sign}.{decimals}f"
    if decimals is None:
        half, digits = (mean, 4 if theory else 3) if math.isnan(high - low) else ((high - low) / 2, 2)
        decimals = min(6, max(0, digits - 1 - math.floor(math.log10(abs(half))))) if half and not math.isnan(half) else 0
        style = f"{sign},.{decimals}f"

    def number(x: float) -> str:
        return f"{x if style == '.4g' else round(x, decimals) + 0.0:{style}}"  # + 0.0 turns a rounded -0.0 into 0.0

    return {
        "mean": "" if math.isnan(mean) else number(mean),
        "interval": "" if math.isnan(high - low) else f"[{number(low)}, {number(high)}]",
        "unit": "" if math.isnan(mean) else row["unit"],
        "count": "" if pd.isna(row["n"]) else f"{row['n']:,} cases" if theory else f"n = {row['n']}",
    }


def needed(row: Row) -> str:
    """'34 paired seeds give 80% power at 0.5 (pilot)' of an inconclusive claim that says how many, else ''."""
    if kind(row) != "inconclusive" or pd.isna(row["seeds_needed"]):
        return ""
    return f"{row['seeds_needed']} paired seeds give {POWER:.0%} power at {row['effect']:.3g} ({row['effect_from']})"


def _reasons(row: Row) -> list[str]:
    return [part for part in (needed(row), row["note"]) if part]


def printable(text: object) -> str:
    """A message in one line that cannot steer a terminal: lines are joined, other control characters written as escapes."""
    line = " ".join(str(text).splitlines())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
