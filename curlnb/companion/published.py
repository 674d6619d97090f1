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
    ValueError where a filter's value occurs in none of the rows that the filters before it leave;
    it lists the values that do, the closest first.
    """
    rows, so_far = _table(), ""
    for column, wanted in zip(
        _KEYS, (paper, item, dataset, method, setting, metric, source_kind), strict=True
    ):
        if wanted is None:
            continue
        found = rows[rows[column] == wanted]
        if found.empty:
            known = _suggest(wanted, list(rows[column].unique()))
            raise ValueError(f"no published value with {column} {wanted!r}{so_far}: {known}")
        rows, so_far = found, f"{so_far or ' among those with'} {column} {wanted!r}"
    return rows.reset_index(drop=True)


def value(*given: str | None, **filters: str | None) -> float:
    """The one published number that the filters of `published` select, in the paper's own unit
    (accuracies in percent).

    ValueError where they select none or several rows, or one whose printed value is words.
    """
    rows = published(*given, **filters)
    if len(rows) > 1:
        choices = "; ".join(
            f"{c} is one of {_listed(list(rows[c].unique()))}"
            for c in _KEYS
            if rows[c].nunique() > 1
        )
        raise ValueError(f"{len(rows)} published values, not one: {choices}")
    row = rows.iloc[0]
    if pd.isna(row["value"]):
        raise ValueError(
            f"the published value is the text {row['printed']!r}, not a number: "
            "read it from published(...)['printed']"
        )
    return float(row["value"])


def _suggest(wanted: str, known: list[str]) -> str:
    lower = {name.lower(): name for name in known}
    close = [
        lower[name] for name in difflib.get_close_matches(wanted.lower(), lower, n=5, cutoff=0.5)
    ]
    return f"did you mean {_listed(close)}?" if close else f"one of {_listed(known)}"


def _listed(names: list[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
