"""One arm out of a table with a row a run, and what an arm gains over another, paired by seed."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

Arm = str | Mapping[str, Any]  # a value of the column "arm", or values of columns by name


def of_arm(table: pd.DataFrame, measure: str, /, **arm: Any) -> pd.Series:
    """`measure` of the rows in which each column named has the value given, indexed by seed; empty
    where there are none.

    of_arm(runs, "linear", objective="hard", beta=1.0); None selects the rows without a value.
    ValueError for a column that the table lacks and for several rows of one seed.
    """
    if missing := [name for name in ("seed", measure, *arm) if name not in table]:
        raise ValueError(f"no column {missing[0]!r}: {', '.join(map(str, table))}")
    rows = table
    for name, value in arm.items():
        rows = rows[rows[name].isna() if value is None else rows[name] == value]
    if (twice := rows["seed"].duplicated()).any():
        seed = rows["seed"][twice].iloc[0]
        raise ValueError(f"several rows of {arm} have seed {seed}: name what tells them apart")
    return rows.set_index("seed")[measure]


def gain(
    table: pd.DataFrame, measure: str, treatment: Arm, control: Arm, /, **shared: Any
) -> pd.Series:
    """`measure` of the treatment minus that of the control, over the seeds that have both; empty
    where an arm was not run.

    treatment, control: a value of the column "arm", or the values of several columns by name.
    shared: columns in which both have the same value, such as dataset="cifar10". ValueError as
    `of_arm`.
    """
    both = ({"arm": each} if isinstance(each, str) else each for each in (treatment, control))
    one, other = (of_arm(table, measure, **shared, **each) for each in both)
    return (one - other).dropna()
