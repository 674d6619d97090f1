"""Table 2 of chuang2020 and of robinson2021, which two pages compare: accuracies on sentence tasks
by arm, and differences of arms by task.
"""

from collections.abc import Sequence

import pandas as pd

from curlnb.companion.arms import gain
from curlnb.data.sentences import TASKS

MEAN = "mean of all"


def short(task: str) -> str:
    """The task's name in the papers: "MR-full", the original file, is their MR."""
    return task.partition("-")[0]


def differences(
    rows: pd.DataFrame, tasks: Sequence[str], treatment: str, control: str
) -> dict[str, pd.Series]:
    """Treatment minus control by task, named as in the papers, and in the mean of all tasks; a
    number for each seed that both have.

    rows: a row a run, with the columns arm and seed, and the tasks' accuracies. A control that has
    one row, as the mean of word vectors does, which has no seed, is taken from every seed.
    """
    base = rows[rows["arm"] == control]
    if len(base) == 1:
        own = rows[rows["arm"] == treatment].set_index("seed")
        found = {short(task): own[task] - base[task].iloc[0] for task in tasks}
    else:
        found = {short(task): gain(rows, task, treatment, control) for task in tasks}
    return found | {MEAN: sum(found.values()) / len(found)}


def table_2(rows: pd.DataFrame, tasks: Sequence[str], printed: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds by arm, their standard deviations where there are several, and the paper's
    values.

    rows: as in `differences`; printed: method by task, as printed. Columns are the papers' tasks in
    their order, NaN where one was not run.
    """
    named = rows[["arm", *tasks]].rename(columns={task: short(task) for task in tasks})
    groups = named.groupby("arm", sort=False)
    seeds = rows["seed"].nunique()
    parts = {f"here, n = {seeds}": groups.mean()}
    if seeds > 1:
        parts["here, standard deviation"] = groups.std()
    table = pd.concat(parts | {"the paper": printed})
    columns = [task for task in TASKS if task in printed]
    return table.reindex(columns=columns).round(2).rename_axis(["source", "arm"])
