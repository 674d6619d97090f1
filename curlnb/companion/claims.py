"""The table of claims: every sentence of the three papers that can be tested, written down before
its result.

`claims.csv` beside this module has one row a claim; `Claim` describes its columns. A notebook hands
in what it measured (`curlnb.companion.ledger`); what is claimed, of what, and by how much stands
here.
"""

import csv
import difflib
import math
import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

__all__ = ["KINDS", "OWN", "PAPERS", "Claim", "find", "paired", "read_table", "table"]

PAPERS = (
    "arora2019",
    "chuang2020",
    "robinson2021",
    "curlnb",
)  # the last: findings of this project's own
OWN = "mine"  # a reader's
KINDS = ("experiment", "theorem", "proof step", "text", "released code", "ours")
_FILE = Path(__file__).with_name("claims.csv")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the table, or a claim of the reader's own. ValueError, with the id, where the
    columns contradict each other.
    """

    id: str  # paper/slug
    paper: str = ""  # as in the id
    where: str = ""  # section, figure or table of the paper
    # number of the equation in the printed paper, and in the text file, which counts otherwise
    printed_eq: str = ""
    text_eq: str = ""
    kind: str = "ours"  # one of KINDS
    # claims that are one slip or one measurement have one group, and count once; by default the id
    group: str = ""
    claim: str  # what the paper says, in our words
    statistic: str = "mean paired difference"
    unit: str = ""
    low: float | None = (
        # the open region claimed of the statistic; None is unbounded; most theory has neither bound
        None
    )
    high: float | None = None
    # the paper's data sets, joined by "|", by their names in our catalogue where they have one
    data: str = ""
    effect: float | None = (
        None  # smallest effect that matters, a value of the statistic inside the region
    )
    effect_from: str = ""  # its source
    sd: float | None = None  # spread of a paired difference, assumed for planning
    sd_from: str = ""  # "the pilot" is this project's trial before there were notebooks
    seeds: int | None = (
        # paired seeds that give 90% power at the effect; none where the statistic is computed
        # exactly
        None
    )
    diagnostic: str = (
        ""  # what must stand beside a verdict to exclude the trivial explanation, joined by "|"
    )
    notebook: str = ""  # the one that judges it
    unrun: str = ""  # why none does

    def __post_init__(self) -> None:
        faults = {
            f"should read paper/slug, the paper one of {', '.join((*PAPERS, OWN))}": not re.fullmatch(
                rf"({'|'.join((*PAPERS, OWN))})/[\w.+-]+", self.id
            ),
            f"is of paper {self.paper!r}": self.paper not in ("", self.id.split("/")[0]),
            f"is of kind {self.kind!r}, which is not one of {', '.join(KINDS)}": self.kind
            not in KINDS,
            "says nothing: give the claim in words": not self.claim.strip(),
            f"has the empty region {self.region}": not self.region[0] < self.region[1],
            "is an experiment and has no region": self.kind == "experiment" and not self.bounded,
            "is theory and plans seeds": self.kind in ("theorem", "proof step")
            and self.seeds is not None,
            f"has the effect {self.effect}, which is not inside the region claimed": self.effect
            is not None
            and not (self.bounded and self.region[0] < self.effect < self.region[1]),
        }
        for fault, true in faults.items():
            if true:
                raise ValueError(f"claim {self.id!r} {fault}")
        object.__setattr__(self, "paper", self.id.split("/")[0])
        object.__setattr__(self, "group", self.group or self.id)

    @property
    def region(self) -> tuple[float, float]:
        """The open region claimed, with infinite bounds where there is none."""
        return (
            -math.inf if self.low is None else self.low,
            math.inf if self.high is None else self.high,
        )

    @property
    def bounded(self) -> bool:
        """Whether it claims a region, in which a measured interval or an exactly computed value can
        lie.
        """
        return self.low is not None or self.high is not None


def read_table(path: Path) -> dict[str, Claim]:
    """The claims of a CSV file by id, in its order. ValueError for other columns, a number that is
    none, or an id that occurs twice.
    """
    types: dict[str, Any] = {field.name: field.type for field in fields(Claim)}
    rows: dict[str, Claim] = {}
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        if reader.fieldnames != list(types):
            raise ValueError(f"{path.name} has the columns {reader.fieldnames}, not {list(types)}")
        for values in reader:
            if None in values or None in values.values():
                raise ValueError(
                    f"line {reader.line_num} of {path.name} has more or fewer cells than the table has columns"
                )
            cells: dict[str, Any] = {
                name: text if types[name] is str else _number(values["id"], name, text)
                for name, text in values.items()
            }
            row = Claim(**cells)
            if row.id in rows:
                raise ValueError(f"claim {row.id!r} stands twice in {path.name}")
            rows[row.id] = row
    return rows


@cache
def table() -> dict[str, Claim]:
    """The committed table, by id, in the papers' order."""
    return read_table(_FILE)


def find(id: str) -> Claim:
    """The claim of that id. ValueError, with the closest ids, where the table has none."""
    if id not in table():
        close = difflib.get_close_matches(id, table(), n=3, cutoff=0.5)
        hint = (
            f"did you mean {', '.join(close)}?"
            if close
            else "ids read paper/slug, such as 'chuang2020/fig4a-debiased'"
        )
        raise ValueError(
            f"the table of claims has no {id!r}: {hint} A claim of your own is 'mine/...'"
        )
    return table()[id]


def paired(
    runs: pd.DataFrame,
    metric: str,
    by: str,
    treatment: object,
    control: object,
    *,
    seed: str = "seed",
) -> pd.Series:
    """Differences of `metric` between two arms (values of column `by`), one a seed, indexed by
    seed.

    runs: a tidy table of `sweep`, one row a run, filtered so that an arm has one row a seed.
    ValueError where it has several, where the arms' seeds differ (a lost run is not dropped
    silently) or where a column or an arm is missing.
    """
    missing = [column for column in (metric, by, seed) if column not in runs]
    if missing:
        raise ValueError(
            f"no column {missing[0]!r} among the runs': {', '.join(map(str, runs.columns))}"
        )
    arms = []
    for arm in (treatment, control):
        rows = runs[runs[by].isna() if arm is None else runs[by] == arm]
        if rows.empty:
            raise ValueError(
                f"no run with {by} {arm!r}: one of {', '.join(repr(a) for a in runs[by].unique())}"
            )
        if rows[seed].duplicated().any():
            raise ValueError(
                f"several runs with {by} {arm!r} and {seed} {rows[seed][rows[seed].duplicated()].iloc[0]}: filter to one a seed"
            )
        arms.append(rows.set_index(seed)[metric].astype(float).sort_index())
    unpaired = arms[0].index.symmetric_difference(arms[1].index)
    if len(unpaired):
        raise ValueError(
            f"seeds of one arm only, {treatment!r} or {control!r}: {', '.join(map(str, unpaired))}"
        )
    return (arms[0] - arms[1]).rename(f"{metric}: {treatment} minus {control}")


def _number(id: str, column: str, text: str) -> float | int | None:
    if not text:
        return None
    try:
        return int(text) if column == "seeds" else float(text)
    except ValueError:
        raise ValueError(f"claim {id!r} has {text!r} for {column}, which is no number") from None
