"""The published numbers: the ones printed, found by name, and never a guess."""

import math

import pytest
from formulas import refused

from curlnb.companion.claims import table
from curlnb.companion.published import published, value


@pytest.mark.parametrize(
    ("given", "expected"),
    [  # read off the papers' own tables, one row from each
        (("arora2019", "Table 1", "Wiki-3029", "supervised", "TR", "AVG-2"), 97.8),
        (("chuang2020", "Table 3", "cheetah run", "debiased tau+=0.1", "M=2"), 303.0),
        (("robinson2021", "Table 1", None, "hard beta=1"), 57.0),
    ],
)
def test_value_is_the_printed_number(given, expected):
    assert value(*given) == expected


def test_every_row_can_be_told_from_every_other():
    """`value` promises that filters can single out any number."""
    rows = published()
    assert len(rows) == 223
    assert not rows.duplicated(["paper", "item", "dataset", "method", "setting", "metric"]).any()
    assert (rows["printed"] != "").all()


def test_spreads_are_numbers_and_words_stay_words():
    """Some printed values are words; they must neither vanish nor turn into a number."""
    row = published("chuang2020", "Table 3", "finger spin", "biased (CURL)").iloc[0]
    assert (row["value"], row["spread"]) == (310, 33)
    row = published("robinson2021", item="Section 5.2", dataset="DD").iloc[0]
    assert row["printed"] == "1 to 2"
    assert math.isnan(row["value"])
    assert math.isnan(row["spread"])
    with refused(r"no single number: \['1 to 2'\]"):
        value("robinson2021", item="Section 5.2", dataset="DD")


def test_a_caller_cannot_change_the_numbers():
    rows = published()
    rows["value"] = 0.0
    assert value("arora2019", item="Table 2", dataset="IMDb", method="CURL", setting="b=2") == 89.2


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        (dict(paper="aurora2019"), "no published value with .*'aurora2019'.*published.csv"),
        # a value that exists, but not with the other filter
        (dict(paper="arora2019", dataset="STL-10"), "no published value with .*'STL-10'"),
        (
            dict(paper="arora2019", item="Table 2", dataset="IMDb", method="CURL"),
            "select no single number: \\['89.2', ",
        ),
    ],
)
def test_filters_that_single_out_no_number_are_refused_in_one_line(filters, says):
    with refused(says):
        value(**filters)


def test_claims_on_agents_have_the_gains_and_spreads_that_are_printed():
    """The debiased agent's minus the baseline's."""
    claims = [
        claim for claim in table().values() if claim.effect_from.startswith("published, Table 3: ")
    ]
    assert len(claims) == 6
    for claim in claims:
        few = "reacher" in claim.id
        method, setting = ("debiased tau+=0.01", "M=1") if few else ("debiased tau+=0.1", "M=2")
        rows = published("chuang2020", "Table 3", claim.data[0])
        ours = rows[(rows["method"] == method) & (rows["setting"] == setting)].iloc[0]
        base = rows[rows["method"] == "biased (CURL)"].iloc[0]
        assert claim.effect == ours["value"] - base["value"]
        assert claim.sd == pytest.approx(math.hypot(ours["spread"], base["spread"]), abs=0.06)
