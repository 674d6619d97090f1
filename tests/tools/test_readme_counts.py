"""What the README says was found is what the committed references say."""

import pandas as pd
import pytest
import readme_counts

from curlnb.companion.ledger import best_evidence
from curlnb.runs import environment

README = (environment.home() / "README.md").read_text(encoding="utf-8")


def test_the_readme_counts_what_the_references_say():
    made = readme_counts.renewed(README, readme_counts.table(best_evidence(committed=True)))
    assert made == README, "run `python tools/readme_counts.py`"


def test_groups_are_counted_once_and_verdicts_in_their_order():
    rows = [
        ("a", "g", "theorem", "fails"),
        ("b", "g", "theorem", "fails"),
        ("c", "h", "theorem", "holds"),
        ("d", "i", "text", "holds"),
    ]
    evidence = pd.DataFrame(rows, columns=["id", "group", "kind", "verdict"]).assign(
        paper="arora2019"
    )
    lines = readme_counts.table(evidence).splitlines()
    assert lines[0] == "| | CURL (2019) |"
    assert "| **theorems** | 1 holds, 1 fails |" in lines
    assert "| **remarks** | 1 holds |" in lines
    assert "| **experiments** |  |" in lines


def test_a_readme_without_its_marks_is_named():
    with pytest.raises(ValueError, match="has lost the lines"):
        readme_counts.renewed("# curlnb\n", "")
