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
    with refused(r"'1 to 2', not a number"):
        value("robinson2021", item="Section 5.2", dataset="DD")


def test_a_caller_cannot_change_the_numbers():
    rows = published()
    rows["value"] = 0.0
    assert value("arora2019", item="Table 2", dataset="IMDb", method="CURL", setting="b=2") == 89.2


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        (dict(paper="aurora2019"), r"paper 'aurora2019'; the closest are 'arora2019'"),
        (dict(dataset="cifar100"), r"the closest are 'CIFAR-100', 'CIFAR-10', 'ImageNet-100'"),
        # a value that exists, but not with the filters before it
        (
            dict(paper="arora2019", dataset="STL-10"),
            r"among those with paper 'arora2019'; the closest are .*'CIFAR-100'",
        ),
        (
            dict(paper="arora2019", item="Table 2", dataset="IMDb", method="CURL"),
            "3 published values, which differ in setting",
        ),
    ],
)
def test_filters_that_single_out_no_number_are_refused_in_one_line(filters, says):
    with refused(says):
        value(**filters)


def test_claims_have_the_spreads_that_are_printed():
    """Of both arms, debiased first, over the three trainings that the paper states."""
    claims = [claim for claim in table().values() if claim.printed_sds]
    assert len(claims) == 6
    for claim in claims:
        few = "reacher" in claim.id
        method, setting = ("debiased tau+=0.01", "M=1") if few else ("debiased tau+=0.1", "M=2")
        rows = published("chuang2020", "Table 3", claim.data[0])
        arms = [
            rows[(rows["method"] == method) & (rows["setting"] == setting)],
            rows[rows["method"] == "biased (CURL)"],
        ]
        assert claim.printed_sds == tuple(float(arm["spread"].iloc[0]) for arm in arms)
        gain = arms[0]["value"].iloc[0] - arms[1]["value"].iloc[0]
        assert claim.effect == gain
        assert claim.sd == pytest.approx(math.hypot(*claim.printed_sds), abs=0.06)
        assert claim.printed_seeds == 3
