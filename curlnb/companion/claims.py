"""The table of claims: every sentence of the three papers that can be tested, written down before
its result.

The folder `claims` beside this module has one TOML file a paper and in it one entry a claim, whose
fields are those of `Claim`. A notebook hands in what it measured (`curlnb.companion.ledger`); what
is claimed, of what, and by how much stands here.
"""

import difflib
import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from curlnb.companion.statistics import FEWEST_SEEDS, seeds_needed

PAPERS = ("arora2019", "chuang2020", "robinson2021", "curlnb")  # the last: this project's findings
OWN = "mine"  # a reader's
KINDS = ("experiment", "theorem", "proof step", "text", "released code", "ours")
_FOLDER = Path(__file__).with_name("claims")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One entry of the table, or a claim of the reader's own. ValueError, with the id, where its
    fields contradict each other.
    """

    id: str  # paper/slug; the slug heads the entry
    where: str = ""  # section, figure, table or equation of the printed paper
    kind: str = "ours"  # one of KINDS
    # claims that are one slip or one measurement have one group, and count once; by default the id
    group: str = ""
    claim: str = ""  # what the paper says, in our words
    statistic: str = "mean paired difference"
    unit: str = ""
    # the open region claimed of the statistic; None is unbounded; most theory has neither bound
    low: float | None = None
    high: float | None = None
    data: tuple[str, ...] = ()  # the paper's, by their names in our catalogue where they have one
    effect: float | None = None  # smallest effect that matters, a value inside the region
    effect_from: str = ""  # its source
    sd: float | None = None  # spread of a paired difference, assumed for planning
    sd_from: str = ""  # "the pilot" is this project's trial before there were notebooks
    diagnostic: tuple[str, ...] = ()  # what a verdict needs beside it against a trivial explanation
    # where the sentence is true as it stands and false as it is mostly taken: both readings
    readings: tuple[str, ...] = ()
    settled: str = ""  # where the paper itself puts a slip right, or O() hides a constant
    # profiles that train as the paper does, though on fewer data sets than it has
    as_printed_at: tuple[str, ...] = ()
    changed: str = ""  # what was changed here after a look at results
    notebook: str = ""  # the one that judges it
    unrun: str = ""  # why none does, or not yet: "planned: ...", until its runs are judged

    def __post_init__(self) -> None:
        papers, (low, high) = (*PAPERS, OWN), self.region
        inside = self.effect is None or (self.bounded and low < self.effect < high)
        faults = {
            f"should read paper/slug, the paper one of {', '.join(papers)}": (
                not re.fullmatch(rf"({'|'.join(papers)})/[\w.+-]+", self.id)
            ),
            "says nothing: give the claim in words": not self.claim.strip(),
            f"has the empty region {self.region}": not low < high,
            f"has the effect {self.effect}, which is not inside the region claimed": not inside,
        }
        for fault, true in faults.items():
            if true:
                raise ValueError(f"claim {self.id!r} {fault}")
        object.__setattr__(self, "group", self.group or self.id)

    @property
    def paper(self) -> str:
        return self.id.split("/")[0]

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

    @property
    def remark(self) -> str:
        """Both readings, or where the paper itself puts a slip right."""
        if self.readings:
            return "true if {}; false if {}".format(*self.readings)
        return self.settled

    @cached_property
    def seeds(self) -> int | None:
        """Paired seeds that give 90% power at the effect, five at least; None where the statistic
        is computed exactly, or a million seeds would not do.
        """
        if self.effect is None or self.sd is None:
            return None
        needed = seeds_needed(self.effect, self.sd, self.region)
        return needed and max(FEWEST_SEEDS, needed)


def read_table(folder: Path) -> dict[str, Claim]:
    """The claims of a folder's TOML files by id, paper by paper, in each file's order. ValueError,
    with the file, for one that is no TOML, an entry that occurs twice, an unknown field or a text
    where a number belongs.
    """
    rows: dict[str, Claim] = {}
    for path in sorted(folder.glob("*.toml"), key=lambda path: PAPERS.index(path.stem)):
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path.name}: {error}") from None
        for slug, entry in entries.items():
            id = f"{path.stem}/{slug}"
            try:
                rows[id] = Claim(id=id, **{name: _value(x) for name, x in entry.items()})
            except TypeError as error:
                raise ValueError(f"claim {id!r}: {error}") from None
    return rows


def _value(given: Any) -> Any:
    """A field's value; texts in one line, since an entry breaks them where a line ends."""
    if isinstance(given, list):
        return tuple(map(_value, given))
    return " ".join(given.split()) if isinstance(given, str) else float(given)


@cache
def table() -> dict[str, Claim]:
    """The committed table, by id, in the papers' order."""
    return read_table(_FOLDER)


def find(id: str) -> Claim:
    """The claim of that id. ValueError, with the closest ids, where the table has none."""
    if id not in table():
        closest = ", ".join(difflib.get_close_matches(id, table(), n=3, cutoff=0))
        raise ValueError(
            f"the table of claims has no {id!r}; the closest are {closest}; "
            "a claim of your own is 'mine/...'"
        )
    return table()[id]
