"""Numbers in prose: every interval and every accuracy names the committed row that it comes from.

Behind an interval stands a comment, which no page shows, with the row or rows that it was copied
from:

    The hard loss gains 0.97 points [0.42, 1.52]<!-- robinson2021/fig2-cifar10-gone -->.

A comment names rows for all numbers between it and the comment before it in the same paragraph or
cell of a table. A row is an entry of the ledger by its best committed evidence, one profile's
(`quick:curlnb/zero-overhead-queue`), or rows of a committed table
(`night/2_dcl/5.1_figure4_images-gains?N=62&objective=debiased`). `source: Table 3` exempts a number
that was copied from a paper, and says from where. Formulas, code and links are not looked at.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from curlnb.companion import ledger
from curlnb.companion.notebook import committed
from curlnb.runs import environment
from curlnb.runs.files import printable

_NUMBER = r"[-+\N{MINUS SIGN}]?\d[\d,]*(?:\.\d+)?"
_COMMENT = r"<!--\s*(?P<names>(?:source: |[\w.:]+/)[^>]*?)\s*-->"
_INTERVAL = rf"\[(?P<low>{_NUMBER}), (?P<high>{_NUMBER})\]"
_ACCURACY = r"(?P<accuracy>[-+\N{MINUS SIGN}]?\d+\.\d+)(?= (?:points?|hundredths)\b| ?%)"
_DECIMAL = r"(?P<decimal>(?<![\w.])[-+\N{MINUS SIGN}]?\d+(?:\.\d+)?(?![\w.]*\d))"
_TOKEN = re.compile("|".join((_COMMENT, _INTERVAL, _ACCURACY, _DECIMAL)))
_NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|https?://\S+", re.DOTALL
)

Row = dict[str, Any]


def faults(text: str) -> list[str]:
    """What is wrong with the numbers of a page in Markdown, a line each; empty where all are found
    in the rows that they name.
    """
    blanked = _NOT_PROSE.sub(lambda match: re.sub(r"[^\n|]", " ", match[0]), text)
    return [fault for block in _blocks(blanked) for fault in _faults_of(block)]


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of a list and cells of a table."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        lines = paragraph.splitlines()
        if any(line.lstrip().startswith("|") for line in lines):
            yield from (cell for line in lines for cell in line.split("|"))
        else:
            yield " ".join(lines)


def _faults_of(block: str) -> Iterator[str]:
    waiting: list[re.Match[str]] = []  # numbers whose comment is still to come
    for token in _TOKEN.finditer(block):
        if token["names"] is None:
            waiting.append(token)
            continue
        if not token["names"].startswith("source: "):
            yield from _unfound(waiting, token["names"])
        waiting = []
    for token in waiting:
        if token["decimal"] is None:
            around = block[max(0, token.start() - 40) : token.end()]
            yield f"{token[0]} names no row, in: {around.strip()}"


def _unfound(numbers: list[re.Match[str]], names: str) -> Iterator[str]:
    try:
        rows = [row for name in re.split(r"[;\s]+", names) for row in _rows(name)]
    except (ValueError, OSError) as error:
        yield printable(error)
        return
    ends = ", ".join(f"[{row['low']:g}, {row['high']:g}]" for row in rows if "low" in row)
    for token in numbers:
        if not token["decimal"] and not any(_holds(row, token) for row in rows):
            yield f"{token[0]} is not in {names}, which has {ends or 'no interval'}"
    before = [token["accuracy"] or token["decimal"] for token in numbers if not token["low"]]
    for row in rows:
        shown = any(_holds(row, token) for token in numbers if token["low"])
        if shown and "mean" in row and not any(_rounds_to(row["mean"], x) for x in before):
            yield f"the mean {row['mean']:g} of {row['id']} does not stand before its interval"


def _rounds_to(value: object, text: str) -> bool:
    """Whether a number, sign and all, rounds to the text."""
    if not isinstance(value, int | float):
        return False
    plain = text.replace(",", "").replace("\N{MINUS SIGN}", "-")
    digits = len(plain.partition(".")[2])
    near = abs(value - float(plain)) <= 0.5 * 10**-digits + 1e-9
    signed = plain.startswith("-") or value >= 0 or float(plain) == 0
    return near and signed


def _holds(row: Row, token: re.Match[str]) -> bool:
    """Whether a row has an accuracy, or an interval as its own if it has one."""
    if token["low"] and "low" in row:
        return _rounds_to(row["low"], token["low"]) and _rounds_to(row["high"], token["high"])
    texts = filter(None, (token["low"], token["high"], token["accuracy"]))
    return all(any(_rounds_to(x, text) for x in row.values()) for text in texts)


# --- the rows


def _rows(name: str) -> list[Row]:
    """The rows that a comment names. ValueError, in one line, where there are none."""
    profile, colon, id = name.rpartition(":")
    if not colon and name.split("/")[0] in ledger.PROFILES:
        return _of_table(name)
    if id not in _evidence(profile):
        raise ValueError(f"{name!r} is no row of the committed ledgers")
    return [_evidence(profile)[id]]


@cache
def _evidence(profile: str) -> dict[str, Row]:
    """By id; of one profile, or the best of all."""
    if profile:
        rows = ledger.read(environment.reference_folder() / profile / ledger.FILE)
    else:
        rows = ledger.best_evidence(committed=True)
    return {row["id"]: row for row in ledger.records(rows)}


def _of_table(name: str) -> list[Row]:
    """Rows of results/reference/<profile>/tables, filtered by equality of columns."""
    path, _, filters = name.partition("?")
    table = committed(path)
    for column, wanted in parse_qsl(filters):
        if column not in table:
            raise ValueError(f"{path} has no column {column!r}: {', '.join(map(str, table))}")
        table = table[table[column].astype(str) == wanted]
    if table.empty:
        raise ValueError(f"{name!r} selects no row")
    return ledger.records(table)
