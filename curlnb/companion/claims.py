"""The ledger: what a paper says, judged on measured data.

A claim names a region of a statistic (`above`, `below` or `within`). Paired differences over seeds give the statistic's mean and its 95% t
interval; the claim is *reproduced* when the interval lies inside the region, *contradicted* when it lies outside, *inconclusive* when it
holds a bound of the region (touching it included), and *not run* where nothing was measured. On a data set that stands in for the paper's
own the verdict reads "reproduced (stand-in)" and is counted apart. An inconclusive claim says how many paired seeds would settle it.

    row = claim("chuang2020/fig4a", "debiased beats biased", where="Section 5.1, Figure 4a", above=0, unit="points",
                differences=paired(runs, "linear", "loss", "debiased", "biased"), dataset="cifar10-mini", stand_in="CIFAR-10")
    record([row], "results/quick/claims.csv", notebook="2_dcl/5.1_figure4_images", profile="quick")
"""

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock
from scipy import special

from curlnb.runs.files import write_atomically

PAPERS = ("arora2019", "chuang2020", "robinson2021", "curlnb")  # the last: findings of this project's own
VERDICTS = ("reproduced", "contradicted", "inconclusive", "not run")
STAND_IN = " (stand-in)"
CONFIDENCE, POWER, MOST_SEEDS = 0.95, 0.8, 1_000_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)


@dataclass(frozen=True)
class Judged:
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

    @property
    def is_exact(self) -> bool:
        return self.claimed_low is None and self.claimed_high is None


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
) -> Judged:
    """Judge an empirical claim on `differences` [n], one a seed, or on an `interval` (mean, low, high) that was computed otherwise.

    Exactly one of `above`, `below` and `within` says what the paper claims of the statistic: a gain is `above=0`; a gain that vanishes,
    or two arms that agree to 2 points, `within=(-2, 2)`. With neither differences nor interval the claim is not run, and `note` says why.
    effect: a value of the statistic on the claimed side at which power is wanted, `effect_from` its source ("pilot", "published");
    without one the observed mean serves, which flatters a study that came out well, and the ledger says so.
    stand_in: the paper's data set, where `dataset` stands in for it. about: further fields of `Judged` as they are (unit, dataset, classes,
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
                f"{id}: effect {effect:g} is not on the claimed side ({claimed_text(*region)}): state one that the claim implies"
            )
        about |= {"effect": effect, "effect_from": effect_from}
    if differences is not None and interval is not None:
        raise ValueError(f"{id}: give differences or an interval, not both")
    if differences is None and interval is None:
        if not note:
            raise ValueError(f"{id}: nothing measured and no note: say in note= why it was not run")
        return Judged(verdict="not run", note=_line(note), **about)

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
    return Judged(verdict=decided + (STAND_IN if stand_in else ""), note="; ".join(part for part in notes if part), **about)


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
) -> Judged:
    """Record a theory claim, checked without sampling error: reproduced if it `holds` in every case, contradicted if one case breaks it.

    value: the number that shows how nearly (largest ratio found, smallest slack), which `statistic` names. about: further fields of
    `Judged` (n, the number of cases; unit, profile, notebook). ValueError where the value is not finite, since a comparison with NaN
    proves nothing.
    """
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{id}: value {value} is not finite: an exact claim needs the number that shows it")
    about |= {"id": _id(id), "where": where, "statement": _line(statement), "statistic": statistic, "published": _text(published)}
    decided = "reproduced" if bool(holds) else "contradicted"
    return Judged(verdict=decided, mean=None if value is None else float(value), note=_line(note), **about)


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


# --- statistics


def t_interval(differences: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Mean and 95% t interval (mean, low, high) of n >= 2 finite numbers."""
    x = np.asarray(differences, dtype=np.float64)
    if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(f"a t interval needs two or more finite numbers in one dimension, got {x.tolist()}")
    mean, half = float(x.mean()), _critical(len(x)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return mean, mean - half, mean + half


def verdict(low: float | None, high: float | None, region: tuple[float, float]) -> str:
    """Where the interval [low, high] lies against the open region claimed; inconclusive where it touches a bound or is missing."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "inconclusive"
    if region[0] < low and high < region[1]:
        return "reproduced"
    if high < region[0] or low > region[1]:
        return "contradicted"
    return "inconclusive"


def power(n: int, effect: float, sd: float, region: tuple[float, float] = (0.0, math.inf)) -> float:
    """Chance that n paired seeds settle a claim, differences being normal with mean `effect` and standard deviation `sd`.

    One bound (above or below): the power of the two-sided 5% paired t-test, as the noncentral t distribution gives it. Two bounds
    (within): the chance that the interval lies inside the region if the effect does (two one-sided tests at 2.5%), to four decimals, else
    that it lies outside. All are one expectation over the sample's standard deviation, integrated here by Gauss-Legendre, since scipy's
    noncentral t is NaN at some n for large effects. ValueError for n < 2 or sd that is not positive.
    """
    if n < 2 or not sd > 0:
        raise ValueError(f"power needs n >= 2 and sd > 0, got n = {n} and sd = {sd}")
    df, t = n - 1, _critical(n)
    low, high = ((bound - effect) * math.sqrt(n) / sd for bound in region)  # in standard errors from the effect
    tail = 1e-15  # of the distribution of u, the sample's standard deviation over the true one: df u^2 is chi-squared
    start, end = (math.sqrt(float(special.chdtri(df, upper)) / df) for upper in (1 - tail, tail))
    u = (start + end) / 2 + (end - start) / 2 * _NODES
    density = 2 * np.exp(df / 2 * (math.log(df / 2) - u * u) - special.gammaln(df / 2) + (df - 1) * np.log(u))
    inside = np.maximum(0.0, special.ndtr(high - t * u) - special.ndtr(low + t * u))
    outside = special.ndtr(low - t * u) + special.ndtr(-high - t * u)
    one_sided = math.isinf(low) or math.isinf(high)
    settled = inside + outside if one_sided else inside if low < 0 < high else outside
    return min(1.0, max(0.0, float((end - start) / 2 * (_WEIGHTS * settled * density).sum())))


def seeds_needed(effect: float, sd: float, region: tuple[float, float] = (0.0, math.inf), *, wanted: float = POWER) -> int | None:
    """Smallest number of paired seeds with `power` at least `wanted`; None where a million would not do (an effect on a bound)."""
    if effect in region:
        return None
    enough = 2
    while power(enough, effect, sd, region) < wanted:
        if enough >= MOST_SEEDS:
            return None
        enough = min(2 * enough, MOST_SEEDS)
    short = max(1, enough // 2)  # bisect: `short` has too little power (or is 1), `enough` has it
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if power(middle, effect, sd, region) >= wanted else (middle, enough)
    return enough


# --- the ledger

_INTEGERS = ("n", "classes", "paper_classes", "seeds_needed")
_COLUMNS = ("id", "paper", *(field.name for field in fields(Judged) if field.name != "id"))
_FLOATS = tuple(field.name for field in fields(Judged) if field.type == float | None)
_TEXTS = tuple(column for column in _COLUMNS if column not in _INTEGERS + _FLOATS)


def ledger(rows: Iterable[Judged]) -> pd.DataFrame:
    """The rows as a tidy table, one a claim and notebook, sorted by paper, id and notebook, numbers to six significant digits."""
    records = [{"paper": row.paper, **asdict(row)} for row in rows]
    return _typed(pd.DataFrame.from_records(records, columns=list(_COLUMNS)))


def record(rows: Iterable[Judged], path: str | Path, *, notebook: str = "", profile: str = "", replace_notebook: bool = False) -> None:
    """Write rows into the ledger at `path` (results/<profile>/claims.csv), each over the one with its id and notebook, other rows kept.

    notebook, profile: filled in where a row leaves them empty. replace_notebook: also drop the notebooks' rows that are not written
    again, so that a claim that was renamed or removed does not linger. Locked and atomic: notebooks that end at once lose nothing, and no
    reader sees half a file.
    """
    path = Path(path)
    filled = [replace(row, notebook=row.notebook or notebook, profile=row.profile or profile) for row in rows]
    for row in filled:
        if not row.notebook:
            raise ValueError(f"claim {row.id} names no notebook: pass record(..., notebook='2_dcl/5.1_figure4_images')")
    new = ledger(filled)
    if new.duplicated(["id", "notebook"]).any():
        raise ValueError(
            f"claim {new['id'][new.duplicated(['id', 'notebook'])].iloc[0]} is judged twice in one call: give each judgement its own id"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        old = read(path)
        keys = set(zip(new["id"], new["notebook"], strict=True))
        emptied = {notebook, *new["notebook"]} if replace_notebook else set()
        stale = [key in keys or key[1] in emptied for key in zip(old["id"], old["notebook"], strict=True)]
        kept = old[~np.array(stale, dtype=bool)]
        table = _typed(new if kept.empty else pd.concat([kept, new]))
        write_atomically(path, lambda file: table.to_csv(file, index=False, float_format="%.6g", lineterminator="\n"))


def read(path: str | Path) -> pd.DataFrame:
    """The ledger at `path`, as `ledger` gives it; an empty one where there is no file. ValueError where its columns are not a ledger's."""
    path = Path(path)
    if not path.exists():
        return ledger([])
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    if set(table.columns) != set(_COLUMNS):
        odd = sorted(set(table.columns) ^ set(_COLUMNS))
        raise ValueError(
            f"{path} is no ledger of this version (columns that differ: {', '.join(odd)}): remove it and run its notebooks again"
        )
    return _typed(table[list(_COLUMNS)].replace("", None))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Verdicts counted: one row a paper and one for all, one column a verdict, those on stand-ins in columns of their own."""
    columns = [name for kind in VERDICTS for name in ((kind,) if kind == "not run" else (kind, kind + STAND_IN))]
    columns.sort(key=lambda name: name.endswith(STAND_IN))  # stable: stand-ins after the rest
    papers = [paper for paper in PAPERS if paper in set(table["paper"])]
    counts = pd.DataFrame(0, index=pd.Index([*papers, "all"], name="paper"), columns=pd.Index(columns, name="verdict"))
    for paper, decided in zip(table["paper"], table["verdict"], strict=True):
        counts.loc[[paper, "all"], decided] += 1
    return counts


# --- shown


@dataclass(frozen=True)
class Shown:
    """A table for a notebook cell: HTML where it can be shown, the same lines of text on every machine where it cannot."""

    text: str
    markup: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.markup


def display(rows: Iterable[Judged]) -> Shown:
    """The rows as a small table: claim, what was claimed, what was measured, the published value, the verdict with its reason."""
    rows = list(rows)
    marks = dict(zip(VERDICTS, ("✓", "✗", "?", "–"), strict=True))
    lines = []
    for row in rows:
        kind = row.verdict.removesuffix(STAND_IN)
        cells = (
            f"<b>{html.escape(row.statement)}</b><br>{html.escape(f'{row.id} · {row.where}')}",
            html.escape(claimed_text(row.claimed_low, row.claimed_high)),
            html.escape(measured_text(row, digits=2)),
            html.escape(row.published),
            f"<b>{marks[kind]} {html.escape(row.verdict)}</b><br>{html.escape('; '.join(_reasons(row)))}",
        )
        lines.append("<tr>" + "".join(f'<td align="left" style="text-align: left">{cell}</td>' for cell in cells) + "</tr>")
    names = ("claim", "claimed", "measured", "published", "verdict")
    head = "".join(f'<th align="left" style="text-align: left">{name}</th>' for name in names)
    return Shown(verdicts(rows), f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>")


def verdicts(rows: Iterable[Judged], digits: int = 2) -> str:
    """One line a claim, for a cell whose output is checked: verdict, statistic to `digits` decimals, what would settle it."""
    lines = []
    for row in rows:
        parts = (measured_text(row, digits=digits), *_reasons(row))
        lines.append(f"{row.id}: {row.verdict}" + "".join(f"; {part}" for part in parts if part))
    return "\n".join(lines)


def measured_text(row: Judged, digits: int = 2) -> str:
    """'mean paired difference +2.90 [+1.00, +4.80] points, n = 5', or '' where nothing was measured; exact claims to four digits."""
    if row.mean is None:
        return ""
    sign = "+" if 0 in (row.claimed_low, row.claimed_high) else ""  # a difference

    def number(x: float) -> str:
        return f"{x:.4g}" if row.is_exact else f"{round(x, digits) + 0.0:{sign}.{digits}f}"  # + 0.0 turns a rounded -0.0 into 0.0

    interval = f" [{number(row.low)}, {number(row.high)}]" if row.low is not None and row.high is not None else ""
    count = "" if row.n is None else f", {row.n:,} cases" if row.is_exact else f", n = {row.n}"
    return f"{row.statistic} {number(row.mean)}{interval}{f' {row.unit}' if row.unit else ''}{count}"


def claimed_text(low: float | None, high: float | None) -> str:
    """'> 0', '< 2', 'between -2 and 2'; a missing or infinite bound is none, and a claim without bounds is 'exact'."""
    bounded_low, bounded_high = (bound is not None and not pd.isna(bound) and math.isfinite(bound) for bound in (low, high))
    if bounded_low and bounded_high:
        return f"between {low:g} and {high:g}"
    return f"> {low:g}" if bounded_low else f"< {high:g}" if bounded_high else "exact"


def _reasons(row: Judged) -> list[str]:
    seeds = ""
    if row.verdict.startswith("inconclusive") and row.seeds_needed is not None:
        seeds = f"{row.seeds_needed} paired seeds give {POWER:.0%} power at {row.effect:.3g} ({row.effect_from})"
    return [part for part in (seeds, row.note) if part]


# --- parts


def _region(above: float | None, below: float | None, within: tuple[float, float] | None) -> tuple[float, float]:
    if sum(side is not None for side in (above, below, within)) != 1:
        raise ValueError(f"a claim needs exactly one of above, below and within, got above={above}, below={below}, within={within}")
    region = within or (-math.inf if above is None else above, math.inf if below is None else below)
    if not region[0] < region[1]:
        raise ValueError(f"the claimed region {region} is empty: its lower bound must be below its upper")
    return float(region[0]), float(region[1])


def _id(id: str) -> str:
    if not re.fullmatch(rf"({'|'.join(PAPERS)})/[\w.+-]+", id):
        raise ValueError(f"claim id {id!r} should read paper/slug, such as 'chuang2020/fig4a', the paper one of {', '.join(PAPERS)}")
    return id


def _of_differences(id: str, differences: Sequence[float] | np.ndarray | pd.Series | None) -> tuple[dict[str, Any], str]:
    """The fields of `Judged` that the differences give, and why there is no interval where there is none."""
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


def _critical(n: int) -> float:
    return float(special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2))


def _line(text: str) -> str:
    return " ".join(text.split())


def _text(published: float | str) -> str:
    return published if isinstance(published, str) else f"{published:.6g}"


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    table = table.copy()
    for column in _INTEGERS:
        table[column] = pd.to_numeric(table[column]).astype("Int64")
    for column in _FLOATS:
        table[column] = [float(f"{x:.6g}") for x in pd.to_numeric(table[column]).astype("float64")]
    for column in _TEXTS:
        table[column] = table[column].astype(object).where(table[column].notna(), "").astype(str)
    order = sorted(range(len(table)), key=lambda i: (PAPERS.index(table["paper"].iloc[i]), table["id"].iloc[i], table["notebook"].iloc[i]))
    return table.iloc[order].reset_index(drop=True)
