"""The ledger: what was measured of the claims, and the verdicts, results/<profile>/claims.csv.

    ledger = notebook.ledger(settings)
    on = dict(data="cifar10-mini", diagnostic={"share on the floor": "12%"})
    ledger.judge("chuang2020/fig4a-debiased", differences, **on)
    ledger.judge("arora2019/lemma4.3-hinge", exact="holds", value=0.97, cases=1200)
    ledger.judge("mine/beta-3", differences, claim="beta = 3 beats beta = 1", low=0)
    ledger.show()

What is claimed stands in the table (`curlnb.companion.claims`) and is joined by id, so that the
file holds measurements alone. A reader's own claims stand with their words in a file beside it,
own_claims.csv. In memory a ledger is a DataFrame of COLUMNS and ABOUT, one row a claim, in the
table's order. Claims that the table no longer has are left out when a file is read.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock

from curlnb.companion import claims, formatting
from curlnb.companion.claims import KINDS, OWN, PAPERS, Claim
from curlnb.companion.formatting import MARKS, NOT_RUN, ClaimsTable
from curlnb.companion.judgement import (
    ABOUT,
    FLOATS,
    INTEGERS,
    SCOPES,
    TEXTS,
    WORDS,
    about,
    judged,
)
from curlnb.companion.statistics import CONFIDENCE, FEWEST_SEEDS
from curlnb.runs import environment
from curlnb.runs.files import printable, set_aside, write_atomically
from curlnb.runs.source import digest_of

FILE, OWN_FILE = "claims.csv", "own_claims.csv"
PROFILES = ("paper", "gpu", "night", "quick")  # the best evidence first
# the profile of rows whose settings are not those of the committed reference; its evidence comes
# last
CHANGED = "{}, changed"
COLUMNS = ("id", "verdict", "scope", *FLOATS[:4], "n", *TEXTS[3:], "cases", "value")
DIGEST = "digest"  # of a row, the last column of the file
_ORDER = {"paper": (*PAPERS, OWN), "kind": KINDS, "scope": SCOPES}


class Ledger:
    """The claims that one notebook judges at one profile; made by
    `curlnb.companion.notebook.ledger`.
    """

    def __init__(self, notebook: str, profile: str, results: Path) -> None:
        self.notebook, self.profile, self.results = notebook, profile, results
        self._rows: dict[str, dict[str, Any]] = {}

    def judge(
        self,
        id: str,
        differences: Sequence[float] | np.ndarray | pd.Series | None = None,
        **measured: Any,
    ) -> str:
        """Judge a claim of the table by what `judged` takes, or one of the reader's own,
        "mine/...", and return the verdict in one line.

        An own claim also needs `claim`, its words, and a region (`low`, `high`) unless it is exact;
        `where`, `statistic`, `unit` and `effect` as in the table. ValueError for an id that is not
        in the table, that another notebook judges or that was judged before.
        """
        if id in self._rows:
            raise ValueError(
                f"{id} is judged twice: give each judgement its own id; to judge anew, make the "
                "ledger anew first"
            )
        if id.startswith(f"{OWN}/"):
            named = {*WORDS, "low", "high", "effect"} & measured.keys()
            words = {name: measured.pop(name) for name in named}
            claim = Claim(id=id, notebook=self.notebook, **words)
        else:
            claim = claims.find(id)
            if claim.notebook != self.notebook:
                raise ValueError(
                    f"{id} is not for {self.notebook} to judge: {claim.notebook or claim.unrun}"
                )
        self._rows[id] = judged(claim, differences, profile=self.profile, **measured)
        return _Line(formatting.line(self._rows[id]))

    def show(self) -> ClaimsTable:
        """Write the notebook's rows into the ledger, in place of those it had, and show them beside
        a better profile's reference.
        """
        rows = frame(self._rows.values())
        own = rows["paper"] == OWN
        record(rows[~own], self.results / FILE, self.notebook)
        if own.any() or (self.results / OWN_FILE).exists():
            record(rows[own], self.results / OWN_FILE, self.notebook)
        best = best_evidence(better_than(self.profile), committed=True)
        beside = {row["id"]: row for row in records(best[best["verdict"] != NOT_RUN])}
        return ClaimsTable(records(rows), beside)


class _Line(str):
    """A line that a notebook cell shows without quotation marks."""

    def __repr__(self) -> str:
        return str(self)


# --- the file


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of the ledger as a DataFrame of COLUMNS and ABOUT, in the table's order, numbers to six
    significant digits.
    """
    place = {id: at for at, id in enumerate(claims.table())}
    ordered = sorted(
        rows, key=lambda row: (place.get(row["id"], len(place)), row["id"], row["notebook"])
    )
    table = pd.DataFrame(ordered, columns=[*COLUMNS, *ABOUT], dtype=object)
    numbers = table[[*INTEGERS, *FLOATS]].apply(pd.to_numeric)
    counts = numbers[[*INTEGERS]].astype("Int64")
    rounded = numbers[[*FLOATS]].astype(float).map(lambda x: float(f"{x:.6g}"))
    return table.fillna("").astype(str).assign(**counts, **rounded)


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows, each by column."""
    return rows.to_dict("records")  # type: ignore[return-value]


def record(rows: pd.DataFrame, path: Path, notebook: str) -> None:
    """Write a notebook's rows into the ledger at `path`, in place of all that it had there.

    The file is locked, and replaced as a whole: notebooks that end at once lose nothing, and no
    reader sees half a file. A damaged ledger is set aside (see `unless_damaged`).
    """
    with FileLock(f"{path}.lock"):
        old = unless_damaged(read, path, frame([]))
        merged = frame(records(old[old["notebook"] != notebook]) + records(rows))
        write_atomically(path, lambda file: write(merged, file))


def write(rows: pd.DataFrame, path: Path) -> None:
    """Write rows, a reader's own with their claims' words, and with the digest of each, which tells
    a number that was changed in the file from one that was measured.
    """
    columns = [*COLUMNS, *ABOUT] if OWN in set(rows["paper"]) else [*COLUMNS]
    cells = _cells(io.StringIO(rows[columns].to_csv(index=False, float_format="%.6g")))
    cells.assign(**{DIGEST: _digests(cells)}).to_csv(path, index=False, lineterminator="\n")


def _cells(file: Path | io.StringIO) -> pd.DataFrame:
    """A CSV file's cells as they are written."""
    return pd.read_csv(file, dtype=str, keep_default_na=False).fillna("")


def _digests(cells: pd.DataFrame) -> list[str]:
    return [digest_of("\x1f".join(row))[:12] for row in cells.to_numpy()]


def read(path: Path) -> pd.DataFrame:
    """The ledger at `path`, joined with the table; an empty one where there is no file. ValueError,
    with the path, for a damaged one.
    """
    if not path.exists():
        return frame([])
    try:
        cells = _cells(path)
        digests = cells.pop(DIGEST).tolist()
        if (*cells,) not in (COLUMNS, COLUMNS + ABOUT) or digests != _digests(cells):
            raise ValueError("its columns or a row were changed")
        rows = records(cells)
        if "paper" not in cells:
            table = claims.table()
            rows = [row | about(table[row["id"]]) for row in rows if row["id"] in table]
        return frame(rows)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no ledger of this version ({printable(error)})") from None


def unless_damaged(read: Callable[[Path], Any], path: Path, otherwise: Any) -> Any:
    """What is read. A damaged file is set aside and named in one line, and counts as `otherwise`,
    so that it is made again.
    """
    try:
        return read(path)
    except (ValueError, OSError) as error:
        set_aside(path, str(error))
        return otherwise


def read_all(results: Path) -> pd.DataFrame:
    """The papers' claims and the reader's own in a folder of results; a damaged ledger is set
    aside.
    """
    found = [unless_damaged(read, results / file, frame([])) for file in (FILE, OWN_FILE)]
    return pd.concat(found, ignore_index=True)


# --- many judgements


def better_than(profile: str) -> tuple[str, ...]:
    """The profiles whose evidence is better than this one's, the best first: all of them where its
    settings were changed.
    """
    return PROFILES[: PROFILES.index(profile)] if profile in PROFILES else PROFILES


def best_of(ledgers: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Of every claim of the table the best row among several ledgers; where none has it, one that
    says why it was not run.

    Best is the row of the best profile (PROFILES, then CHANGED ones) that was measured on five
    seeds or more, or exactly; then one on fewer; among equals the first given.
    """

    def rank(row: Mapping[str, Any]) -> tuple[bool, bool, int]:
        few = pd.notna(row["n"]) and row["n"] < FEWEST_SEEDS
        better = better_than(row["profile"])  # all, where settings were changed
        return row["verdict"] == NOT_RUN, few or better == PROFILES, len(better)

    rows = [row for ledger in ledgers for row in records(ledger)]
    rows += [
        judged(claim, note=claim.unrun or "not judged yet") for claim in claims.table().values()
    ]
    best = {row["id"]: row for row in reversed(sorted(rows, key=rank))}  # the last one stays
    return frame(best.values())


def best_evidence(profiles: Iterable[str] = PROFILES, *, committed: bool = False) -> pd.DataFrame:
    """The best evidence (see `best_of`) over the present results and the committed references of
    the profiles, a row a claim.

    committed: over the references alone, as where `CURLNB_REFERENCE` is 1.
    """
    roots = [environment.results_root(), environment.reference_folder()]
    if committed or environment.reference_only():
        del roots[0]
    return best_of(read(root / profile / FILE) for profile in profiles for root in roots)


def best(id: str) -> dict[str, Any]:
    """The row of `best_evidence` for one claim, by column. ValueError, with the closest ids, where
    the table has none.
    """
    claims.find(id)
    return next(row for row in records(best_evidence()) if row["id"] == id)


def once(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a group: the first in the table's order that was run, or the first if none was; the
    order was fixed before any result.
    """
    run = rows["verdict"] != NOT_RUN
    return pd.concat([rows[run], rows[~run]]).drop_duplicates("group").sort_index()


def summary(rows: pd.DataFrame, by: Sequence[str] = ("kind", "scope")) -> pd.DataFrame:
    """How often each verdict was reached, a group counted once (`once`): one row a value of the
    columns `by`, one column a verdict.
    """
    counts = once(rows).groupby([*by, "verdict"]).size().unstack("verdict", fill_value=0)
    counts = counts[[name for name in MARKS if name in counts]]
    return counts.sort_index(key=lambda level: level.map(_ORDER[str(level.name)].index))


def expected_false(rows: pd.DataFrame) -> float:
    """The most false verdicts that chance lets one expect, were every claim's truth where a false
    verdict is likeliest.

    A claim with one bound gets a false verdict with at most 2.5% whatever the truth, since each
    takes the same end of the interval to miss it; one with two bounds with at most 5%. Exact
    verdicts have no sampling error. A group counts once.
    """
    counted = once(rows)
    counted = counted[counted["low"].notna() & (counted["n"] >= FEWEST_SEEDS)]
    bounds = counted[["claimed_low", "claimed_high"]].count(axis="columns")
    return float((bounds * (1 - CONFIDENCE) / 2).sum())
