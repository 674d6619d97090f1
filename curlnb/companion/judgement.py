"""One judgement: a claim of the table and what was measured of it give a row of the ledger."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from curlnb.companion import formatting
from curlnb.companion.claims import Claim
from curlnb.companion.formatting import FAILS, HOLDS, NOT_RUN, NOTE, READING, STEP, THEORY
from curlnb.companion.statistics import (
    FEWEST_SEEDS,
    UNDECIDED,
    correlation_interval,
    t_interval,
    verdict,
)

EXACT = (HOLDS, STEP, FAILS)  # what a notebook may say of a claim that it computed
SCOPES = PAPER_SETTING, PAPER_DATA, PAPER_PART, STAND_IN, NO_SCOPE = (
    "paper's setting",
    "paper's data, smaller training",
    "part of the paper's data",
    "stand-in",
    "",
)
# parts of a paper's set, and its name in the claims
PARTS = {"stl10-48": "stl10", "tiny-imagenet-mini": "Tiny ImageNet"}
TEXTS = ("id", "verdict", "scope", "data", "profile", "diagnostic", "note", "notebook")
INTEGERS = ("n", "cases", "seeds")
FLOATS = ("mean", "low", "high", "sd", "value", "claimed_low", "claimed_high", "effect")
WORDS = ("claim", "where", "statistic", "unit")
ABOUT = ("paper", "kind", "group", *WORDS, *FLOATS[5:], "effect_from", "seeds", "remark", "changed")


def judged(
    claim: Claim,
    differences: Sequence[float] | np.ndarray | pd.Series | None = None,
    *,
    interval: tuple[float, float, float] | None = None,
    n: int | None = None,
    exact: bool | str | None = None,
    value: float | None = None,
    cases: int | None = None,
    data: str = "",
    diagnostic: Mapping[str, float | str] = {},
    note: str = "",
    profile: str = "",
) -> dict[str, Any]:
    """A row of the ledger: the claim's verdict on what was measured, which is one of

    - differences [n], one a seed, in the claim's unit; or an interval (mean, low, high) at 95% that
      was computed otherwise, with `n`, the independent units that it rests on. Five or more are
      needed, or the claim is undecided.
    - exact: whether it holds, or "proof step fails", of a claim that plans no seeds; value: the
      statistic, such as a largest ratio found; cases: how many were tried. Where a region is
      claimed, the value alone decides, and `exact` may be left out.
    - nothing, and note says why it was not run; or no differences, where an arm was not trained.

    data: the data sets it was measured on, joined by "|"; with the profile they give the verdict's
    scope. diagnostic: what the claim asks for to exclude a trivial explanation, by name.
    ValueError, in one line, for what is missing or excludes each other.
    """
    if differences is not None and not len(differences):
        differences = None
        note = f"{profile.partition(',')[0]} does not train what it compares"
    if "bool" in str(getattr(exact, "dtype", type(exact))):  # NumPy's and torch's, too
        exact = HOLDS if exact else FAILS
    if value is not None:
        value = float(value)
        if exact is None and claim.bounded:
            exact = by_value(claim, value)
    given = [part for part in (differences, interval, exact) if part is not None]
    over_seeds = bool(given) and exact is None
    lacking = [name for name in claim.diagnostic if name not in diagnostic]
    words, region = ", ".join(EXACT), formatting.region_text(claim.low, claim.high)
    faults = {
        "give differences, an interval or exact, and only one of them": len(given) > 1,
        f"nothing measured: say in note= why; a value needs exact=, one of {words}": (
            not given and (not note or value is not None)
        ),
        "it is measured over seeds: judge it by differences or an interval": (
            exact is not None and claim.sd is not None
        ),
        f"it claims no region: judge it by exact=, one of {words}": (
            over_seeds and not claim.bounded
        ),
        f"give diagnostic=, which excludes the trivial explanation: {', '.join(lacking)}": (
            given and lacking
        ),
        f"exact={exact!r} is not one of {words}": exact not in (None, *EXACT),
        f"value {value} is not finite: an exact claim needs the number that shows it": (
            value is not None and not math.isfinite(value)
        ),
        f"exact={exact!r} with the value {value}, claimed {region}": (
            exact
            and claim.bounded
            and (value is None or (by_value(claim, value) == HOLDS) != (exact == HOLDS))
        ),
        f"say in data= what it was measured on; the paper's is {', '.join(claim.data)}": (
            over_seeds and claim.data and not data
        ),
    }
    for fault, true in faults.items():
        if true:
            raise ValueError(f"{claim.id}: {fault}")
    row: dict[str, Any] = dict.fromkeys(TEXTS, "") | dict.fromkeys(INTEGERS + FLOATS)
    row |= {"id": claim.id, "verdict": NOT_RUN, "profile": profile, "note": " ".join(note.split())}
    if given:
        told = [
            f"{name} {x:.4g}" if isinstance(x, int | float) else f"{name} {x}"
            for name, x in diagnostic.items()
        ]
        row |= {"data": data, "diagnostic": ", ".join(told), "cases": cases}
    if exact is not None:
        row |= {"verdict": exact, "value": value}
    elif given:
        numbers, reason = (
            _of_differences(claim, differences)
            if interval is None
            else _of_interval(claim.id, interval, n)
        )
        if not reason and numbers["n"] < FEWEST_SEEDS:
            reason = f"{numbers['n']} are fewer than {FEWEST_SEEDS}"
        notes = formatting.joined(row["note"], reason)
        row |= numbers | {"verdict": UNDECIDED, "note": notes}
    return again(row, claim)


def by_value(claim: Claim, value: float) -> str:
    """Whether an exactly computed value lies in the region claimed."""
    return HOLDS if claim.region[0] < value < claim.region[1] else FAILS


def again(row: Mapping[str, Any], claim: Claim) -> dict[str, Any]:
    """A row of the ledger judged from its numbers by the claim as it stands.

    So a change of the rule or of a claim's region reaches committed rows without a notebook being
    executed. A row without an interval of five units or more, or without a value, keeps its
    verdict. A statement that was computed and fails is a note where the paper itself settles it,
    and depends on the reading where it is true as it stands.
    """
    decided, exact = row["verdict"], row["verdict"] in THEORY
    if exact:
        if claim.bounded:
            decided = by_value(claim, row["value"])
        elif decided in (READING, NOTE):
            decided = FAILS
        if decided != HOLDS and claim.remark:
            decided = READING if claim.readings else NOTE
    elif pd.notna(row["low"]) and row["low"] < row["high"] and row["n"] >= FEWEST_SEEDS:
        decided = verdict(row["low"], row["high"], claim.region, claim.effect)
    none = exact or decided == NOT_RUN
    reach = NO_SCOPE if none else scope(claim, row["data"], row["profile"])
    return {**row, **about(claim), "verdict": decided, "scope": reach, "notebook": claim.notebook}


def scope(claim: Claim, data: str, profile: str) -> str:
    """How far a verdict reaches: whose data it was measured on, all of them or a part, and whether
    with the paper's training. Findings of our own have none.
    """
    if not claim.data or claim.kind == "ours":
        return NO_SCOPE
    sets = set(data.split("|"))
    if not {PARTS.get(name, name) for name in sets} <= set(claim.data):
        return STAND_IN
    if sets & PARTS.keys():
        return PAPER_PART
    as_printed = profile in ("paper", *claim.as_printed_at)
    return PAPER_SETTING if as_printed else PAPER_DATA


def about(claim: Claim) -> dict[str, Any]:
    """What a row of the ledger has from the table of claims."""
    return {name: getattr(claim, name.removeprefix("claimed_")) for name in ABOUT}


def _of_differences(claim: Claim, differences: object) -> tuple[dict[str, Any], str]:
    """The numbers of a row, and why they have no interval where they have none."""
    x = np.asarray(differences, dtype=np.float64)
    if x.ndim != 1:
        raise ValueError(
            f"{claim.id}: differences of shape {list(x.shape)}, "
            "expected one a seed, [n] with n >= 1"
        )
    numbers: dict[str, Any] = {"n": len(x)}
    if lost := int((~np.isfinite(x)).sum()):
        return numbers, f"{lost} of {len(x)} differences are not finite"
    numbers["mean"] = float(x[0])
    if len(x) == 1:
        return numbers, "one seed gives no interval"
    # an interval of no width would settle anything: far likelier one run counted twice
    if np.allclose(x, x[0], rtol=1e-9, atol=0):
        return numbers | {"sd": 0.0}, "all differences are equal: are they different runs?"
    interval = correlation_interval if claim.unit == "correlation" else t_interval
    return numbers | interval(x)._asdict() | {"sd": float(x.std(ddof=1))}, ""


def _of_interval(
    id: str, interval: tuple[float, float, float], n: int | None
) -> tuple[dict[str, Any], str]:
    mean, low, high = map(float, interval)
    if n is None or not low <= mean <= high:
        raise ValueError(
            f"{id}: interval {interval} should be (mean, low, high), in order, "
            f"with n, the units it rests on, not {n}"
        )
    numbers = {"mean": mean, "low": low, "high": high, "n": n}
    return numbers, "" if low < high else "the interval has no width"
