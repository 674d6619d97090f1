"""Independent re-runs stand beside claims that exist, and say where and how they were read."""

import math

import pytest

from curlnb.companion.claims import table
from curlnb.companion.external import external, marks

ROWS = external()


@pytest.mark.parametrize("row", ROWS.to_dict("records"), ids=lambda row: row["source"][:20])
def test_a_row_says_where_it_was_read_and_beside_what_it_stands(row):
    for column in ("source", "link", "read", "data", "setting", "treatment", "unit"):
        assert row[column]
    assert row["link"].startswith("https://")
    assert row["claim"] == "" or row["claim"] in table()
    assert row["found_first"] in ("", "yes")
    assert bool(row["control"]) == math.isfinite(row["control_value"])
    assert math.isfinite(row["value"])


def test_gains_are_treatment_minus_control_in_the_direction_of_the_claim():
    assert len(ROWS) == 16
    assert marks("chuang2020/fig4a-debiased") == {
        "Troeshestova and Isachenko 2023, CIFAR-10": pytest.approx(1.2)
    }
    assert marks("arora2019/table1-images-supervised") == {
        "Nozawa, Germain and Guedj 2020, CIFAR-100": pytest.approx(2.0),
        "Nozawa, Germain and Guedj 2020, AUSLAN": pytest.approx(-5.4),
    }
    hurt = marks("arora2019/fig2a-negatives-hurt")
    assert len(hurt) == 3  # two on one data set, told apart by the treatment
    assert hurt["Nozawa and Sato 2021, CIFAR-10: N = 511, linear"] == pytest.approx(5.64)
    assert marks("curlnb/speed-90") == {}  # without a control there is no gain to draw
    assert marks("robinson2021/eq2") == {}
