"""Numbers in prose are those of the committed rows that they name, and planted errors are found."""

import re

import nbformat
import pytest

from curlnb.companion import ledger
from curlnb.companion.prose import faults
from curlnb.runs import environment

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
        ("0.55, 1.50", "0.55, 1.51", r"which has \[0.55396, 1.49854\]"),
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
    found = faults(RIGHT.replace(right, wrong, 1))
    with pytest.raises(AssertionError, match=says):
        assert found == []


def test_rows_of_one_profile_and_of_tables_can_be_named():
    table = "night/5_across_papers-ranking?arm=true+positives,+SimCLR"
    assert faults(f"True positives gain 3.5 points [3.1, 3.9]<!-- {table} -->.") == []
    assert faults(f"True positives gain 3.6 points [3.1, 3.9]<!-- {table} -->.")
    queue = "<!-- quick:curlnb/zero-overhead-queue -->"
    quick = ledger.read(environment.reference_folder() / "quick" / "claims.csv")
    row = quick.set_index("id").loc["curlnb/zero-overhead-queue"]
    said = f"{row['mean']:+.1f}% [{row['low']:.1f}, {row['high']:.1f}]"
    assert faults(f"{said}{queue}") == []
    assert "is not in" in faults(f"+41% [35, 48]{queue}")[0]
    assert "has no column 'armm'" in faults(f"1.0 points<!-- {table.replace('arm', 'armm')} -->")[0]
    assert "selects no row" in faults(f"1.0 points<!-- {table}+9 -->")[0]


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
