"""Numbers in prose: every interval and every accuracy names the committed row that it comes from,
and planted errors are found.

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
from functools import cache
from urllib.parse import parse_qsl

import nbformat
import pytest

from curlnb.companion import ledger
from curlnb.companion.notebook import committed
from curlnb.runs import environment

NUMBER = r"[-+\N{MINUS SIGN}]?\d[\d,]*(?:\.\d+)?"
COMMENT = r"<!--\s*(?P<names>(?:source: |[\w.:]+/)[^>]*?)\s*-->"
INTERVAL = rf"\[(?P<low>{NUMBER}), (?P<high>{NUMBER})\]"
ACCURACY = r"(?P<accuracy>[-+\N{MINUS SIGN}]?\d+\.\d+)(?= (?:points?|hundredths)\b| ?%)"
DECIMAL = r"(?P<decimal>(?<![\w.])[-+\N{MINUS SIGN}]?\d+(?:\.\d+)?(?![\w.]*\d))"
TOKEN = re.compile("|".join((COMMENT, INTERVAL, ACCURACY, DECIMAL)))
NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|https?://\S+", re.DOTALL
)


def faults(text):
    """What is wrong with the numbers of a page in Markdown, a line each; empty where all are found
    in the rows that they name.
    """
    blanked = NOT_PROSE.sub(lambda match: re.sub(r"[^\n|]", " ", match[0]), text)
    return [fault for block in blocks(blanked) for fault in faults_of(block)]


def blocks(text):
    """Paragraphs, items of a list and cells of a table."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        lines = paragraph.splitlines()
        if any(line.lstrip().startswith("|") for line in lines):
            yield from (cell for line in lines for cell in line.split("|"))
        else:
            yield " ".join(lines)


def faults_of(block):
    waiting = []  # numbers whose comment is still to come
    for token in TOKEN.finditer(block):
        if token["names"] is None:
            waiting.append(token)
            continue
        if not token["names"].startswith("source: "):
            yield from unfound(waiting, token["names"])
        waiting = []
    for token in waiting:
        if token["decimal"] is None:
            around = block[max(0, token.start() - 40) : token.end()]
            yield f"{token[0]} names no row, in: {around.strip()}"


def unfound(numbers, names):
    rows = [row for name in re.split(r"[;\s]+", names) for row in rows_of(name)]
    ends = [(row["low"], row["high"]) for row in rows if "low" in row]
    for token in numbers:
        if not token["decimal"] and not any(holds(row, token) for row in rows):
            yield f"{token[0]} is not in {names}, which has {ends}"
    before = [token["accuracy"] or token["decimal"] for token in numbers if not token["low"]]
    for row in rows:
        shown = any(holds(row, token) for token in numbers if token["low"])
        if shown and "mean" in row and not any(rounds_to(row["mean"], x) for x in before):
            yield f"the mean {row['mean']:g} of {row['id']} does not stand before its interval"


def rounds_to(value, text):
    """Whether a number, sign and all, rounds to the text."""
    if not isinstance(value, int | float):
        return False
    plain = text.replace(",", "").replace("\N{MINUS SIGN}", "-")
    digits = len(plain.partition(".")[2])
    return abs(value - float(plain)) <= 0.5 * 10**-digits + 1e-9


def holds(row, token):
    """Whether a row has an accuracy, or an interval as its own if it has one."""
    if token["low"] and "low" in row:
        return rounds_to(row["low"], token["low"]) and rounds_to(row["high"], token["high"])
    texts = filter(None, (token["low"], token["high"], token["accuracy"]))
    return all(any(rounds_to(x, text) for x in row.values()) for text in texts)


# --- the rows


def rows_of(name):
    """The rows that a comment names."""
    profile, colon, id = name.rpartition(":")
    if not colon and name.split("/")[0] in ledger.PROFILES:
        return of_table(name)
    assert id in evidence(profile), f"{name!r} is no row of the committed ledgers"
    return [evidence(profile)[id]]


@cache
def evidence(profile):
    """By id; of one profile, or the best of all."""
    if profile:
        rows = ledger.read(environment.reference_folder() / profile / ledger.FILE)
    else:
        rows = ledger.best_evidence(committed=True)
    return {row["id"]: row for row in ledger.records(rows)}


def of_table(name):
    """Rows of results/reference/<profile>/tables, filtered by equality of columns."""
    path, _, filters = name.partition("?")
    table = committed(path)
    for column, wanted in parse_qsl(filters):
        assert column in table, f"{path} has no column {column!r}"
        table = table[table[column].astype(str) == wanted]
    assert len(table), f"{name!r} selects no row"
    return ledger.records(table)


# --- the pages


HOME = environment.home()
PAGES = [
    HOME / "README.md",
    HOME / "CONTRIBUTING.md",
    *sorted((HOME / "docs").rglob("*.md")),
    *sorted((HOME / "notebooks").rglob("*.ipynb")),
]


def text_of(path):
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(HOME)))
def test_numbers_are_those_of_the_rows_that_they_name(path):
    assert faults(text_of(path)) == []


ITEM = re.compile(r"([-+*>]|\d+[.)]|#+) ")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(HOME)))
def test_no_line_of_a_paragraph_begins_like_a_list(path):
    """Where a formula breaks before its plus, the site would show a bullet."""
    paragraphs = re.split(r"\n\s*\n", re.sub(r"```.*?```", "\n\n", text_of(path), flags=re.S))
    broken = [
        line
        for first, *others in (paragraph.split("\n") for paragraph in paragraphs)
        if not ITEM.match(first) and not first.startswith(" ")
        for line in others
        if ITEM.match(line)
    ]
    assert broken == []


RIGHT = (
    "At N = 510 the hard loss gains 1.03 points [0.55, 1.50]<!-- robinson2021/fig2-cifar10-gone -->"
    " and the debiased one -0.09 [-0.42, +0.24]<!-- chuang2020/fig4a-debiased -->."
)


def test_right_numbers_pass_at_any_rounding():
    assert faults(RIGHT) == []
    assert faults(RIGHT.replace("-0.09 [-0.42, +0.24]", "−0.1 [−0.4, 0.2]")) == []
    assert faults(RIGHT.replace("1.03 points [0.55, 1.50]", "+1 [1, 1]")) == []


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("0.55, 1.50", "0.56, 1.50", r"\[0.56, 1.50\] is not in robinson2021/fig2-cifar10-gone"),
        ("0.55, 1.50", "0.55, 1.51", r"which has \[\(0.55396, 1.49854\)"),
        ("[-0.42, +0.24]", "[-0.24, +0.42]", r"\[-0.24, \+0.42\] is not in chuang2020/fig4a"),
        ("-0.09 [", "0.09 [", "the mean -0.09125 of chuang2020/fig4a-debiased does not stand"),
        ("1.03 points", "0.93 points", "0.93 is not in robinson2021/fig2-cifar10-gone"),
        ("fig2-cifar10-gone", "fig2-cifar10-small-n", "is not in robinson2021/fig2-cifar10-small"),
        ("fig2-cifar10-gone", "fig2-cifar10", "'robinson2021/fig2-cifar10' is no row of the"),
        ("<!-- chuang2020/fig4a-debiased -->", "", r"\[-0.42, \+0.24\] names no row"),
        ("<!-- robinson2021/fig2-cifar10-gone -->", "", "is not in chuang2020/fig4a-debiased"),
    ],
)
def test_planted_errors_of_digit_sign_and_row_are_refused(right, wrong, says):
    assert right in RIGHT
    with pytest.raises(AssertionError, match=says):
        assert faults(RIGHT.replace(right, wrong, 1)) == []


def test_rows_of_one_profile_and_of_tables_can_be_named():
    table = "night/5_across_papers-ranking?arm=true+positives,+SimCLR"
    assert faults(f"True positives gain 3.5 points [3.1, 3.9]<!-- {table} -->.") == []
    assert faults(f"True positives gain 3.6 points [3.1, 3.9]<!-- {table} -->.")
    assert "is not in" in faults("+41% [35, 48]<!-- quick:curlnb/zero-overhead-queue -->")[0]
    for name, says in ((table.replace("arm", "armm"), "has no column"), (f"{table}+9", "no row")):
        with pytest.raises(AssertionError, match=says):
            faults(f"1.0 points<!-- {name} -->")


def test_cells_of_a_table_and_paragraphs_stand_for_themselves():
    gone = "+1.03 [0.55, 1.50]<!-- robinson2021/fig2-cifar10-gone -->"
    assert faults(f"| a | {gone} |\n|---|---|\n| b | [0.55, 1.50] |") == [
        "[0.55, 1.50] names no row, in: [0.55, 1.50]"
    ]
    assert len(faults(f"[0.55, 1.50]\n\n{gone}")) == 1
    assert len(faults(f"- [0.55, 1.50]\n- {gone}")) == 1


def test_what_is_no_result_is_not_looked_at():
    for text in (
        "A share in `[0, 1]`, a formula $x \\in [0, 1]$, [a link](page.md), 0.5 and 25 pixels",
        "```\nx = [0.5, 1.5]  # 2.5 points\n```",
        "The paper prints 4.26 points<!-- source: chuang2020, Section 5.1 -->.",
        "<!-- counts: made by a tool -->",
    ):
        assert faults(text) == []
    assert faults("a gain of 4.26 points") == ["4.26 names no row, in: a gain of 4.26"]
    assert faults("98.5% of them") == ["98.5 names no row, in: 98.5"]
