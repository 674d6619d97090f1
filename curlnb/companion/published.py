"""The published numbers of the three papers, one a row: every value of their tables, and those that
stand in their text only.

Columns: paper, item (the table or section), dataset, method, setting, metric, value (float, NaN
where the paper prints words), printed (as printed: "97.8", "1 to 2"), spread, source_kind ("table",
"text" or "readme", the authors' repository) and note. Empty text means "not stated".
"""

from functools import cache
from pathlib import Path

import pandas as pd

_FILE = Path(__file__).with_name("published.csv")


@cache
def _table() -> pd.DataFrame:
    table = pd.read_csv(_FILE, dtype=str, keep_default_na=False)
    table.insert(list(table.columns).index("value") + 1, "printed", table["value"])
    for column in ("value", "spread"):
        table[column] = pd.to_numeric(table[column], errors="coerce")
    return table


def published(*given: str | None, **filters: str) -> pd.DataFrame:
    """Rows that agree with every filter given, in the papers' order, as a fresh DataFrame with the
    columns above.

    published("arora2019", item="Table 1", dataset="CIFAR-100"). ValueError for filters that no row
    agrees with.
    """
    rows = _table()
    wanted_of = dict(zip(rows.columns, given, strict=False)) | filters
    for column, wanted in wanted_of.items():
        if wanted is not None:
            rows = rows[rows[column] == wanted]
    if rows.empty:
        raise ValueError(f"no published value with {wanted_of}: see companion/published.csv")
    return rows.reset_index(drop=True)


def value(*given: str, **filters: str) -> float:
    """The one published number that the filters of `published` select, in the paper's own unit
    (accuracies in percent).

    ValueError where they select none or several rows, or one whose printed value is words.
    """
    rows = published(*given, **filters)
    if len(rows) > 1 or rows["value"].hasnans:
        raise ValueError(f"{given}, {filters} select no single number: {[*rows['printed']]}")
    return float(rows["value"].iloc[0])
