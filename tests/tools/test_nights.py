"""Families of long runs have the arms and the seeds of every row that they serve."""

import importlib.util
import itertools
import re
import sys

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


def sides_of(served: dict) -> list[str | list[str]]:
    """Treatment and control, where there is one."""
    return [served[side] for side in ("treatment", "control") if side in served]


def lacks(family: dict, id: str, served: dict, every: dict) -> list[str]:
    """What the family, one of `every`, lacks of what the row takes."""
    if id not in ROWS:
        return ["there is no such row"]
    less, planned, choice = served.get("less", {}), ROWS[id].seeds, served.get("choice", "")
    others = every[less["family"]] if "family" in less else family
    found, there = [], []
    for of, sides in ((family, sides_of(served)), (others, sides_of(less))):
        for arm in itertools.chain(*map(arms_of, sides)):
            if arm in of["arms"]:
                there.append(of["arms"][arm].get("seeds", of["seeds"]))
            else:
                found.append(f"there is no arm {arm!r}")
    if "on" in served and served["on"] not in next(iter(family.get("on", {"": []}).values())):
        found.append(f"it does not repeat on {served['on']!r}")
    several = [side for side in sides_of(served) if not isinstance(side, str)]
    if several and choice not in CHOICES:
        tried = every.get(choice.removeprefix("validation: "), {"common": {}, "arms": {}})
        if tried["common"].get("evaluate_on") != "validation":
            found.append(f"{choice!r} does not say what several arms stand for")
        missing = set(itertools.chain(*several)) - set(tried["arms"])
        found += [f"{choice} has no arm {arm!r}" for arm in sorted(missing)]
    seeds = min((n for n in there if n > 1), default=0)  # what no seed changes is computed once
    if planned and seeds < planned and not family.get("fewer"):
        found.append(f"{seeds} seeds, {planned} are planned, and `fewer` is empty")
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_arms_and_the_seeds_that_its_rows_take(name):
    family = FAMILIES[name]
    for id, served in family.get("claims", {}).items():
        assert lacks(family, id, served, FAMILIES) == [], id


@pytest.mark.parametrize("name", FAMILIES)
def test_the_experiments_take_the_arms(name):
    family = FAMILIES[name]
    arms = [arm for group in run.groups(family) for arm in group.arms.values()]
    for experiment in {family["experiment"], family.get("also", family["experiment"])}:
        for arm in arms:
            experiment_named(experiment).parameters(arm)


def test_the_rows_that_are_planned_are_in_the_families_that_they_name():
    for id, row in ROWS.items():
        if match := PLANNED.search(row.unrun):
            assert id in FAMILIES[match[1]]["claims"]


def test_what_a_family_lacks_is_named():
    family = {"arms": {"a": {"seeds": 5}, "b": {}}, "seeds": 20, "common": {}}
    id, both = "curlnb/fig4c-three-views", {"treatment": "a", "control": "b"}  # eight seeds
    every = {"tried": {"arms": {"a": {}}, "common": {"evaluate_on": "validation"}}, "f": family}
    assert lacks(family, "curlnb/none", both, every) == ["there is no such row"]
    assert lacks(family, id, {"treatment": "b"}, every) == []
    assert lacks(family | {"fewer": "time"}, id, both, every) == []
    several = {"treatment": ["b", "b"], "choice": "validation: tried"}
    away = {"treatment": "b", "less": {"treatment": "c", "family": "f"}}
    for served, said in (
        (both, "5 seeds, 8 are planned"),
        (several, "validation: tried has no arm 'b'"),
        (several | {"choice": ""}, "does not say what several arms stand for"),
        ({"treatment": "b", "on": "x"}, "does not repeat on 'x'"),
        (away, "there is no arm 'c'"),
    ):
        assert said in "; ".join(lacks(family, id, served, every))


def test_a_family_takes_the_settings_of_another_and_repeats_its_arms(tmp_path, monkeypatch):
    path = tmp_path / "families.toml"
    path.write_text(
        """
        a = { common = { epochs = 1, lr = 0.1 }, arms = { x = {} } }
        [b]
        like = "a"
        common = { lr = 0.2 }
        arms = { x = { beta = 1 } }
        each = { t = [0.5, 1.0] }
        """
    )
    monkeypatch.setattr(run, "FAMILIES", path)
    found = run.families()["b"]
    assert found["common"] == {"epochs": 1, "lr": 0.2}
    assert found["arms"] == {"x at 0.5": {"beta": 1, "t": 0.5}, "x at 1": {"beta": 1, "t": 1.0}}


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
    monkeypatch.setattr(run.provenance, "machine", lambda: {"cpu": "this", "gpu": "one"})
    of = {
        name: {"device": device, "machine": {"cpu": cpu, "gpu": "one"}}
        for name, device, cpu in (
            ("this", "cpu", "this"),
            ("that", "cpu", "that"),
            ("gpu", "cuda", "this"),
        )
    }
    monkeypatch.setenv("CURLNB_DEVICE", "cpu")
    assert run.begun_elsewhere([None, of["this"]]) == ""
    assert run.begun_elsewhere([None, of["this"], of["that"]]) == "that"
    assert run.begun_elsewhere([of["gpu"]]) == "one"
    monkeypatch.setenv("CURLNB_DEVICE", "cuda")
    assert run.begun_elsewhere([of["gpu"]]) == ""
    assert run.begun_elsewhere([of["this"]]) == "this"


def test_a_family_in_bf16_is_left_to_a_processor_that_has_it(monkeypatch):
    monkeypatch.setattr(run.devices, "admitted", lambda *_: ("float32", False, ""))
    assert run.why_not({"common": {}}) == ""
    assert "lacks" in run.why_not({"common": {"precision": "bf16"}})


def test_an_arm_that_no_chosen_family_has_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "classes", "--arms", "biased", "baised"])
    with pytest.raises(SystemExit):
        run.main()
    assert "there is no arm 'baised' in classes" in capsys.readouterr().err
