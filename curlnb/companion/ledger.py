"""The ledger: the table of claims and their verdicts, results/<profile>/claims.csv.

A reader's own claims stand in a table of their own beside it, own_claims.csv.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock

from curlnb.companion.claims import OWN, PAPERS, Claim
from curlnb.companion.formatting import MARKS, STAND_IN
from curlnb.runs.files import write_atomically

FILE, OWN_FILE = "claims.csv", "own_claims.csv"
VERDICTS = tuple(MARKS)
_COUNTED = (*VERDICTS, *(name + STAND_IN for name in VERDICTS if name != "not run"))
_ORDER = (*PAPERS, OWN)
_INTEGERS = ("n", "classes", "paper_classes", "seeds_needed")
_COLUMNS = ("id", "paper", *(field.name for field in fields(Claim) if field.name != "id"))
_FLOATS = tuple(field.name for field in fields(Claim) if field.type == float | None)
_TEXTS = tuple(column for column in _COLUMNS if column not in _INTEGERS + _FLOATS)


def table(rows: Iterable[Claim]) -> pd.DataFrame:
    """The rows as a tidy table, one a claim and notebook, sorted by paper, id and notebook, numbers to six significant digits."""
    records = [{"paper": row.paper, **asdict(row)} for row in rows]
    return _typed(pd.DataFrame.from_records(records, columns=list(_COLUMNS)))


def record(rows: Iterable[Claim], path: str | Path, *, notebook: str = "", profile: str = "", replace_notebook: bool = False) -> None:
    """Write rows into the ledger at `path`, each over the one with its id and notebook, other rows kept.

    notebook, profile: filled in where a row leaves them empty. replace_notebook: also drop the notebooks' rows that are not written
    again, so that a claim that was renamed or removed does not linger. The file is locked, and replaced as a whole: notebooks that end at
    once lose nothing, and no reader sees half a file. A damaged ledger is set aside (see `read_or_set_aside`).
    """
    path = Path(path)
    filled = [replace(row, notebook=row.notebook or notebook, profile=row.profile or profile) for row in rows]
    for row in filled:
        if not row.notebook:
            raise ValueError(f"claim {row.id} names no notebook: pass record(..., notebook='2_dcl/5.1_figure4_images')")
    new = table(filled)
    if new.duplicated(["id", "notebook"]).any():
        twice = new["id"][new.duplicated(["id", "notebook"])].iloc[0]
        raise ValueError(f"claim {twice} is judged twice in one call: give each judgement its own id")
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        old = read_or_set_aside(path)
        keys = set(zip(new["id"], new["notebook"], strict=True))
        emptied = {notebook, *new["notebook"]} if replace_notebook else set()
        stale = [key in keys or key[1] in emptied for key in zip(old["id"], old["notebook"], strict=True)]
        kept = old[~np.array(stale, dtype=bool)]
        merged = _typed(new if kept.empty else pd.concat([kept, new]))
        write_atomically(path, lambda file: write(merged, file))


def write(rows: pd.DataFrame, path: Path) -> None:
    rows.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def read(path: str | Path) -> pd.DataFrame:
    """The ledger at `path`, as `table` gives it; an empty one where there is no file. ValueError, with the path, for a damaged one."""
    path = Path(path)
    if not path.exists():
        return table([])
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        if odd := sorted(set(rows.columns) ^ set(_COLUMNS)):
            raise ValueError(f"its columns differ from a ledger's: {', '.join(odd)}")
        if unknown := sorted(set(rows["verdict"]) - set(_COUNTED)):
            raise ValueError(f"it has the verdict {unknown[0]!r}, which is not one of {', '.join(VERDICTS)}")
        if unknown := sorted(set(rows["paper"]) - set(_ORDER)):
            raise ValueError(f"it has claims of {unknown[0]!r}, which is not one of {', '.join(_ORDER)}")
        return _typed(rows[list(_COLUMNS)].replace("", None))
    except ValueError as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path} is no ledger of this version ({why})") from None


def read_or_set_aside(path: Path, say: Callable[[str], object] = warnings.warn) -> pd.DataFrame:
    """The ledger at `path`. A damaged one is renamed, and said so in one line; it then counts as empty, since notebooks write it anew."""
    try:
        return read(path)
    except ValueError as error:
        say(f"{error}; it is kept as {set_aside(path).name}, and the next `make reproduce` makes it again")
        return table([])


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it can be looked at and made again: claims.csv becomes claims.csv.damaged."""
    aside = path.with_name(f"{path.name}.damaged")
    with contextlib.suppress(FileNotFoundError):  # another notebook was quicker
        path.rename(aside)
    return aside


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Verdicts counted: one row a paper and one for all, one column a verdict, those on stand-ins in columns of their own."""
    papers = [paper for paper in _ORDER if paper in set(rows["paper"])]
    counts = pd.DataFrame(0, index=pd.Index([*papers, "all"], name="paper"), columns=pd.Index(_COUNTED, name="verdict"))
    for paper, decided in zip(rows["paper"], rows["verdict"], strict=True):
        counts.loc[[paper, "all"], decided] += 1
    return counts


def _typed(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.copy()
    for column in _INTEGERS:
        rows[column] = pd.to_numeric(rows[column]).astype("Int64")
    for column in _FLOATS:
        rows[column] = [float(f"{x:.6g}") for x in pd.to_numeric(rows[column]).astype("float64")]
    for column in _TEXTS:
        rows[column] = rows[column].astype(object).where(rows[column].notna(), "").astype(str)
    order = sorted(range(len(rows)), key=lambda i: (_ORDER.index(rows["paper"].iloc[i]), rows["id"].iloc[i], rows["notebook"].iloc[i]))
    return rows.iloc[order].reset_index(drop=True)
