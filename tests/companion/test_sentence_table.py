"""What the two pages on sentences compare is paired by seed, and stands beside what is printed."""

import pandas as pd

from curlnb.companion.sentence_table import MEAN, differences, table_2

ROWS = pd.DataFrame(
    [
        ["biased", 0, 70.0, 80.0],
        ["biased", 1, 72.0, 80.0],
        ["hard", 1, 71.0, 82.0],
        ["hard", 0, 71.0, 81.0],
        ["vectors", 0, 60.0, 70.0],
    ],
    columns=["arm", "seed", "MR-full", "TREC"],
)
TASKS = ["MR-full", "TREC"]


def test_differences_are_paired_by_seed_and_have_their_mean_over_tasks():
    found = differences(ROWS, TASKS, "hard", "biased")
    assert {task: of.sort_index().tolist() for task, of in found.items()} == {
        "MR": [1.0, -1.0],
        "TREC": [1.0, 2.0],
        MEAN: [1.0, 0.5],
    }


def test_an_arm_without_a_seed_is_taken_from_every_seed():
    found = differences(ROWS, TASKS, "biased", "vectors")
    assert found["MR"].tolist() == [10.0, 12.0]


def test_the_table_has_the_papers_columns_and_a_spread_where_there_are_seeds():
    printed = pd.DataFrame({"TREC": [89.8], "MR": [76.8], "CR": [81.3]}, index=["QT"])
    table = table_2(ROWS.assign(**{"MR-full_dev": 1.0}), TASKS, printed)
    assert list(table) == ["MR", "CR", "TREC"]
    assert table.loc[("here, n = 2", "hard"), "TREC"] == 81.5
    assert table.loc[("here, standard deviation", "biased"), "TREC"] == 0
    assert pd.isna(table.loc[("here, n = 2", "hard"), "CR"])
    one = table_2(ROWS[ROWS["seed"] == 0], TASKS, printed)
    assert set(one.index.get_level_values("source")) == {"here, n = 1", "the paper"}
