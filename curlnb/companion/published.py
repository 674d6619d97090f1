"""The published numbers of the three papers, one a row: every value of their tables, and those that
stand in their text only.

Columns: paper, item (the table or section), dataset, method, setting, metric, value (float, NaN
where the paper prints words), printed (as printed: "97.8", "1 to 2"), spread, source_kind ("table",
"text" or "readme", the authors' repository) and note. Empty text means "not stated".
"""

import difflib
from functools import cache
from pathlib import Path

import pandas as pd

_KEYS = ("paper", "item", "dataset", "method", "setting", "metric", "source_kind")
_FILE = Path(__file__).with_name("published.csv")


@cache
def _table() -> pd.DataFrame:
    table = pd.read_csv(_FILE, dtype=str, keep_default_na=False)
    table.insert(list(table.columns).index("value") + 1, "printed", table["value"])
    for column in ("value", "spread"):
        table[column] = pd.to_numeric(table[column], errors="coerce")
    return table


def published(
    paper: str | None = None,
    item: str | None = None,
    dataset: str | None = None,
    method: str | None = None,
    setting: str | None = None,
    metric: str | None = None,
    source_kind: str | None = None,
) -> pd.DataFrame:
    """Rows that agree with every filter given, in the papers' order, as a fresh DataFrame with the
    columns above.

    published("arora2019", item="Table 1", dataset="CIFAR-100"). Filters apply from left to right.
    ValueError, with the closest values, for one that occurs in none of the rows that the filters
    before it leave.
    """
    rows, so_far = _table(), ""
    for column, wanted in zip(
        _KEYS, (paper, item, dataset, method, setting, metric, source_kind), strict=True
    ):
        if wanted is None:
            continue
        found = rows[rows[column] == wanted]
        if found.empty:
            known = {name.lower(): repr(name) for name in rows[column].unique()}
            closest = difflib.get_close_matches(wanted.lower(), known, n=5, cutoff=0)
            raise ValueError(
                f"no published value with {column} {wanted!r}{so_far}; the closest are "
                f"{', '.join(known[name] for name in closest)}"
            )
        rows, so_far = found, f"{so_far or ' among those with'} {column} {wanted!r}"
    return rows.reset_index(drop=True)


def value(*given: str | None, **filters: str | None) -> float:
    """The one published number that the filters of `published` select, in the paper's own unit
    (accuracies in percent).

    ValueError where they select none or several rows, or one whose printed value is words.
    """
    rows = published(*given, **filters)
    if len(rows) > 1:
        several = [column for column in _KEYS if rows[column].nunique() > 1]
        raise ValueError(f"{len(rows)} published values, which differ in {', '.join(several)}")
    row = rows.iloc[0]
    if pd.isna(row["value"]):
        raise ValueError(
            f"the published value is the text {row['printed']!r}, not a number: "
            "read it from published(...)['printed']"
        )
    return float(row["value"])
