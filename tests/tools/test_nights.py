"""Families of long runs have the arms and the seeds of every row that they serve."""

import importlib.util
import re

import pytest

from curlnb.companion import claims
from curlnb.companion.reference import experiment_named
from curlnb.runs import environment

_PATH = environment.home() / "tools" / "nights" / "run.py"
_SPEC = importlib.util.spec_from_file_location("nights_run", _PATH)
assert _SPEC is not None
run = importlib.util.module_from_spec(_SPEC)
assert _SPEC.loader is not None
_SPEC.loader.exec_module(run)

FAMILIES, ROWS = run.families(), claims.table()
CHOICES = {"other seeds", "held-out", "mean", "slope"}
PLANNED = re.compile(r"planned: its runs are in family ([\w-]+)")


def arms_of(side: str | list[str]) -> list[str]:
    return [side] if isinstance(side, str) else side


def seeds_of(family: dict, arms: set[str]) -> int:
    """How many seeds all of these arms have."""
    return min(family["arms"][arm].get("seeds", family["seeds"]) for arm in arms)


def lacks(family: dict, id: str, served: dict, every: dict) -> list[str]:
    """What the family, one of `every`, lacks of what the row takes."""
    if id not in ROWS:
        return ["there is no such row"]
    sides = [served, *([served["less"]] if "less" in served else [])]
    named = {
        arm for x in sides for end in ("treatment", "control") for arm in arms_of(x.get(end, []))
    }
    found = [f"there is no arm {arm!r}" for arm in sorted(named - set(family["arms"]))]
    if "on" in served and served["on"] not in next(iter(family.get("on", {"": []}).values())):
        found.append(f"it does not repeat on {served['on']!r}")
    several = any(
        not isinstance(x.get(end, ""), str) for x in sides for end in ("treatment", "control")
    )
    choice = served.get("choice", "")
    if several and choice not in CHOICES:
        other = every.get(choice.removeprefix("validation: "))
        tried = {arm for x in sides for end in ("treatment", "control")
                 for arm in arms_of(x.get(end, [])) if not isinstance(x.get(end, ""), str)}  # fmt: skip
        if other is None:
            found.append(f"several arms, and {choice!r} does not say what they stand for")
        else:
            found += [f"{choice} has no arm {arm!r}" for arm in sorted(tried - set(other["arms"]))]
            if other["common"].get("evaluate_on") != "validation":
                found.append(f"{choice} is not measured on validation images")
    planned = ROWS[id].seeds
    # a reference that does not depend on the seed has one run
    of = {arm for arm in named & set(family["arms"]) if family["arms"][arm].get("seeds") != 1}
    if planned and of and seeds_of(family, of) < planned and not family.get("fewer"):
        found.append(f"{seeds_of(family, of)} seeds, {planned} are planned, and `fewer` is empty")
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_arms_and_the_seeds_that_its_rows_take(name):
    family = FAMILIES[name]
    wrong = {id: lacks(family, id, x, FAMILIES) for id, x in family.get("claims", {}).items()}
    assert not {id: found for id, found in wrong.items() if found}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_experiments_take_the_arms(name):
    family = FAMILIES[name]
    for experiment in map(
        experiment_named, {family["experiment"], family.get("also", family["experiment"])}
    ):
        for group in run.groups(family):
            for arm in group.arms.values():
                experiment.parameters(arm)


def test_the_rows_that_are_planned_are_in_the_families_that_they_name():
    named = {id: match[1] for id, row in ROWS.items() if (match := PLANNED.search(row.unrun))}
    missing = {id: family for id, family in named.items()
               if id not in FAMILIES.get(family, {}).get("claims", {})}  # fmt: skip
    assert not missing


def test_what_a_family_lacks_is_named():
    family = {
        "arms": {"a": {"seeds": 5}, "b": {}},
        "seeds": 20,
        "common": {},
    }
    id = "curlnb/fig4c-three-views"  # eight seeds
    other = {"choice": family}
    assert lacks(family, "curlnb/none", {}, {}) == ["there is no such row"]
    assert lacks(family, id, {"treatment": "c", "control": "b"}, {}) == ["there is no arm 'c'"]
    assert "5 seeds, 8 are planned" in lacks(family, id, {"treatment": "a", "control": "b"}, {})[0]
    assert lacks(family, id, {"treatment": "b"}, {}) == []
    several = {"treatment": ["b"], "choice": "validation: choice"}
    assert "not measured on validation" in lacks(family, id, several, other)[0]
    assert "does not say" in lacks(family, id, {"treatment": ["b"]}, other)[0]


def test_the_arms_of_a_seed_come_together_and_some_end_earlier():
    family = {
        "on": {"dataset": ["x", "y"]},
        "common": {"epochs": 1},
        "arms": {"a": {}, "b": {"beta": 1.0, "seeds": 1}},
        "seeds": 2,
        "first_seed": 5,
    }
    found = run.groups(family)
    assert [(value, seed, list(arms)) for value, seed, arms in found] == [
        ("x", 5, ["a", "b"]), ("x", 6, ["a"]), ("y", 5, ["a", "b"]), ("y", 6, ["a"]),
    ]  # fmt: skip
    assert found[0].arms["b"] == {"epochs": 1, "dataset": "x", "beta": 1.0}


def test_a_seed_is_left_to_the_processor_that_began_it(monkeypatch):
    monkeypatch.setattr(run.provenance, "machine", lambda: {"cpu": "this"})
    assert run.why_not({"common": {}}, {"this"}) == ""
    assert run.why_not({"common": {}}, {"that"}) == "begun on that, left to such a processor"
    monkeypatch.setattr(run.devices, "admitted", lambda *_: ("float32", False, ""))
    assert "lacks" in run.why_not({"common": {"precision": "bf16"}}, set())
