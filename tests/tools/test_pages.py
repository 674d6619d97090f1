"""What README and docs show is what the committed references say, and the README is short."""

import re

import matplotlib.pyplot as plt
import pages
import pandas as pd
import pytest
from formulas import refused

from curlnb.companion import ledger
from curlnb.runs import environment


def words_of(page):
    text = (environment.home() / page).read_text(encoding="utf-8")
    return len(re.sub(r"<!--.*?-->|\]\([^)]*\)|```.*?```", " ", text, flags=re.DOTALL).split())


def test_the_pages_say_what_the_references_say():
    for path, text in pages.pages().items():
        assert text == path.read_text(encoding="utf-8"), "run `python tools/pages.py`"


def test_the_figure_draws_what_the_ledger_judges():
    """The hard loss's lead falls from epoch 20 to 60 by the mean of curlnb/longer-hard-fades."""
    figure = pages.figure()
    curves = [dict(zip(*line.get_data(), strict=True)) for line in figure.axes[0].lines]
    plt.close(figure)
    falls = [curve[60] - curve[20] for curve in curves if 20 in curve]
    assert pytest.approx(ledger.best("curlnb/longer-hard-fades")["mean"]) in falls


@pytest.mark.parametrize(("page", "most"), [("README.md", 1000), ("docs/night.md", 1500)])
def test_a_page_is_short(page, most):
    assert words_of(page) <= most


def test_groups_are_counted_once_and_verdicts_in_their_order():
    rows = [
        ("a", "g", "theorem", "fails"),
        ("b", "g", "theorem", "fails"),
        ("c", "h", "theorem", "holds"),
        ("d", "i", "text", "holds"),
    ]
    evidence = pd.DataFrame(rows, columns=["id", "group", "kind", "verdict"])
    lines = pages.counts(evidence.assign(paper="arora2019")).splitlines()
    assert lines[0] == "| | CURL (2019) |"
    assert "| **theorems** | 1 holds, 1 fails |" in lines
    assert "| **remarks** | 1 holds |" in lines
    assert "| **experiments** |  |" in lines


def test_a_page_without_its_marks_is_named():
    with refused("has lost the lines"):
        pages.renewed("# curlnb\n", "")
