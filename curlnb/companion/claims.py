"""A claim and its verdict: what a paper says, judged on measured data.

A claim names a region of a statistic (`above`, `below` or `within`). Paired differences over seeds give the statistic's mean and its 95% t
interval; the claim is *reproduced* when the interval lies inside the region, *contradicted* when it lies outside, *inconclusive* when it
holds a bound of the region (touching it included), and *not run* where nothing was measured. On a data set that stands in for the paper's
own the verdict reads "reproduced (stand-in)" and is counted apart. An inconclusive claim says how many paired seeds would settle it.

    row = claim("chuang2020/fig4a", "debiased beats biased", where="Section 5.1, Figure 4a", above=0, unit="points",
                differences=paired(runs, "linear", "loss", "debiased", "biased"), dataset="cifar10-mini", stand_in="CIFAR-10")
    notebook.judge(settings, [row])

A reader's own claims have ids of their own, "mine/...".
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from curlnb.companion import formatting
from curlnb.companion.formatting import STAND_IN
from curlnb.companion.statistics import MOST_SEEDS, power, seeds_needed, t_interval, verdict

__all__ = ["OWN", "PAPERS", "Claim", "claim", "display", "exact", "paired", "t_interval", "verdicts"]

PAPERS = ("arora2019", "chuang2020", "robinson2021", "curlnb")  # the last: findings of this project's own
OWN = "mine"  # a reader's


@dataclass(frozen=True)
class Claim:
    """A claim and its verdict: one row of the ledger. What does not apply is None or empty. Made by `claim` and `exact`."""

    id: str  # paper/slug
    where: str  # section, figure, table or equation in the paper
    statement: str  # what the paper says, in our words
    verdict: str
    statistic: str
    unit: str = ""
    claimed_low: float | None = None  # the region claimed; None is unbounded; a theory claim has neither bound
    claimed_high: float | None = None
    mean: float | None = None
    low: float | None = None  # 95% interval
    high: float | None = None
    sd: float | None = None  # standard deviation of the differences
    n: int | None = None  # paired seeds; for a theory claim the cases checked
    published: str = ""
    dataset: str = ""
    stand_in: str = ""  # the paper's data set that `dataset` stands in for
    classes: int | None = None  # of `dataset`, and of the paper's
    paper_classes: int | None = None
    tau_plus: float | None = None  # class prior of `dataset`, and of the paper's
    paper_tau_plus: float | None = None
    effect: float | None = None  # the effect that power and seeds_needed are computed at
    effect_from: str = ""  # its source: "pilot", "published", or "observed mean" where none was stated
    seeds_needed: int | None = None  # paired seeds that give 80% power at the effect
    power: float | None = None  # at n
    profile: str = ""
    note: str = ""
    notebook: str = ""

    @property
    def paper(self) -> str:
        return self.id.split("/")[0]


def claim(
    id: str,
    statement: str,
    *,
    where: str,
    differences: Sequence[float] | np.ndarray | pd.Series | None = None,
    interval: tuple[float, float, float] | None = None,
    above: float | None = None,
    below: float | None = None,
    within: tuple[float, float] | None = None,
    statistic: str = "mean paired difference",
    published: float | str = "",
    effect: float | None = None,
    effect_from: str = "stated",
    stand_in: str | None = None,
    note: str = "",
    **about: Any,
) -> Claim:
    """Judge an empirical claim on `differences` [n], one a seed, or on an `interval` (mean, low, high) that was computed otherwise.

    Exactly one of `above`, `below` and `within` says what the paper claims of the statistic: a gain is `above=0`; a gain that vanishes,
    or two arms that agree to 2 points, `within=(-2, 2)`. With neither differences nor interval the claim is not run, and `note` says why.
    effect: a value of the statistic on the claimed side at which power is wanted, `effect_from` its source ("pilot", "published");
    without one the observed mean serves, which flatters a study that came out well, and the ledger says so.
    stand_in: the paper's data set, where `dataset` stands in for it. about: further fields of `Claim` as they are (unit, dataset, classes,
    paper_classes, tau_plus, paper_tau_plus, profile, notebook).
    ValueError: an id that is not paper/slug, an empty region, no differences, an effect that the claim denies, two things that exclude
    each other.
    """
    region = _region(above, below, within)
    low, high = (bound if math.isfinite(bound) else None for bound in region)
    about |= {
        "id": _id(id),
        "where": where,
        "statement": _line(statement),
        "statistic": statistic,
        "claimed_low": low,
        "claimed_high": high,
    }
    about |= {"published": _text(published), "stand_in": stand_in or ""}
    if effect is not None:
        if not region[0] < effect < region[1]:
            raise ValueError(
                f"{id}: effect {effect:g} is not on the claimed side ({formatting.region_text(*region)}): state one that the claim implies"
            )
        about |= {"effect": effect, "effect_from": effect_from}
    if differences is not None and interval is not None:
        raise ValueError(f"{id}: give differences or an interval, not both")
    if differences is None and interval is None:
        if not note:
            raise ValueError(f"{id}: nothing measured and no note: say in note= why it was not run")
        return Claim(verdict="not run", note=_line(note), **about)

    measured, reason = _of_interval(id, interval) if interval is not None else _of_differences(id, differences)
    about |= measured
    if measured.get("sd"):
        n, sd, at = measured["n"], measured["sd"], measured["mean"] if effect is None else effect
        needed = seeds_needed(at, sd, region)
        about |= {"effect": at, "power": power(n, at, sd, region), "seeds_needed": needed}
        about["effect_from"] = "observed mean" if effect is None else effect_from
        if needed is None:
            reason = f"no number of seeds up to {MOST_SEEDS:,} settles it at {at:.3g} ({about['effect_from']})"
    decided = verdict(measured.get("low"), measured.get("high"), region)
    notes = (_line(note), reason if decided == "inconclusive" else "")
    return Claim(verdict=decided + (STAND_IN if stand_in else ""), note="; ".join(part for part in notes if part), **about)


def exact(
    id: str,
    statement: str,
    *,
    where: str,
    holds: bool,
    value: float | None = None,
    statistic: str = "largest ratio of the two sides",
    published: float | str = "",
    note: str = "",
    **about: Any,
) -> Claim:
    """Record a theory claim, checked without sampling error: reproduced if it `holds` in every case, contradicted if one case breaks it.

    value: the number that shows how nearly (largest ratio found, smallest slack), which `statistic` names. about: further fields of
    `Claim` (n, the number of cases; unit, profile, notebook). ValueError where the value is not finite, since a comparison with NaN
    proves nothing.
    """
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{id}: value {value} is not finite: an exact claim needs the number that shows it")
    about |= {"id": _id(id), "where": where, "statement": _line(statement), "statistic": statistic, "published": _text(published)}
    decided = "reproduced" if bool(holds) else "contradicted"
    return Claim(verdict=decided, mean=None if value is None else float(value), note=_line(note), **about)


def paired(runs: pd.DataFrame, metric: str, by: str, treatment: object, control: object, *, seed: str = "seed") -> pd.Series:
    """Differences of `metric` between two arms (values of column `by`), one a seed, indexed by seed.

    runs: a tidy table of `sweep`, one row a run, filtered so that an arm has one row a seed. ValueError where it has several, where the
    arms' seeds differ (a lost run is not dropped silently) or where a column or an arm is missing.
    """
    missing = [column for column in (metric, by, seed) if column not in runs]
    if missing:
        raise ValueError(f"no column {missing[0]!r} among the runs': {', '.join(map(str, runs.columns))}")
    arms = []
    for arm in (treatment, control):
        rows = runs[runs[by] == arm]
        if rows.empty:
            raise ValueError(f"no run with {by} {arm!r}: one of {', '.join(repr(a) for a in runs[by].unique())}")
        if rows[seed].duplicated().any():
            raise ValueError(
                f"several runs with {by} {arm!r} and {seed} {rows[seed][rows[seed].duplicated()].iloc[0]}: filter to one a seed"
            )
        arms.append(rows.set_index(seed)[metric].astype(float).sort_index())
    unpaired = arms[0].index.symmetric_difference(arms[1].index)
    if len(unpaired):
        raise ValueError(f"seeds of one arm only, {treatment!r} or {control!r}: {', '.join(map(str, unpaired))}")
    return (arms[0] - arms[1]).rename(f"{metric}: {treatment} minus {control}")


def verdicts(rows: Iterable[Claim], digits: int = 2) -> str:
    """One line a claim, for a cell whose output is checked: verdict, statistic to `digits` decimals, what would settle it."""
    return formatting.verdict_lines(map(vars, rows), digits)


def display(rows: Iterable[Claim]) -> formatting.ClaimsTable:
    """The rows as a small table: claim, what was claimed, what was measured, the published value, the verdict with its reason."""
    return formatting.ClaimsTable(map(vars, rows))


# --- parts


def _region(above: float | None, below: float | None, within: tuple[float, float] | None) -> tuple[float, float]:
    if sum(side is not None for side in (above, below, within)) != 1:
        raise ValueError(f"a claim needs exactly one of above, below and within, got above={above}, below={below}, within={within}")
    region = within or (-math.inf if above is None else above, math.inf if below is None else below)
    if not region[0] < region[1]:
        raise ValueError(f"the claimed region {region} is empty: its lower bound must be below its upper")
    return float(region[0]), float(region[1])


def _id(id: str) -> str:
    if not re.fullmatch(rf"({'|'.join((*PAPERS, OWN))})/[\w.+-]+", id):
        known = f"the paper one of {', '.join(PAPERS)}, or {OWN!r} for a claim of your own"
        raise ValueError(f"claim id {id!r} should read paper/slug, such as 'chuang2020/fig4a', {known}")
    return id


def _of_differences(id: str, differences: Sequence[float] | np.ndarray | pd.Series | None) -> tuple[dict[str, Any], str]:
    """The fields of `Claim` that the differences give, and why there is no interval where there is none."""
    x = np.asarray(differences, dtype=np.float64)
    if x.ndim != 1 or not len(x):
        raise ValueError(
            f"{id}: differences of shape {list(x.shape)}, expected one a seed, [n] with n >= 1; leave them out where nothing was run"
        )
    if not np.isfinite(x).all():
        return {"n": len(x)}, f"{int((~np.isfinite(x)).sum())} of {len(x)} differences are not finite"
    if len(x) == 1:
        return {"n": 1, "mean": float(x[0])}, "one seed gives no interval"
    if np.ptp(x) == 0:  # a t interval of no width would settle anything: far likelier one run counted twice
        reason = "all differences are equal, which leaves no interval: are they different runs? (a deterministic comparison is for `exact`)"
        return {"n": len(x), "mean": float(x[0]), "sd": 0.0}, reason
    mean, low, high = t_interval(x)
    return {"mean": mean, "low": low, "high": high, "sd": float(x.std(ddof=1)), "n": len(x)}, ""


def _of_interval(id: str, interval: tuple[float, float, float]) -> tuple[dict[str, Any], str]:
    mean, low, high = (float(x) for x in interval)
    if not low <= mean <= high:
        raise ValueError(f"{id}: interval {interval} should be (mean, low, high) with low <= mean <= high")
    return {"mean": mean, "low": low, "high": high}, "no number of seeds: the interval was given, not computed from seeds"


def _line(text: str) -> str:
    return " ".join(text.split())


def _text(published: float | str) -> str:
    return published if isinstance(published, str) else f"{published:.6g}"
