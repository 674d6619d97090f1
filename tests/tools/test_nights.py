"""Families of long runs have the arms and the seeds of every row that they serve."""

import importlib.util
import itertools
import re

import pytest

from curlnb.companion import claims
from curlnb.companion.reference import experiment_named
from curlnb.runs import environment

_PATH = environment.home() / "tools" / "nights" / "run.py"
_SPEC = importlib.util.spec_from_file_location("nights_run", _PATH)
run = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(run)

FAMILIES, ROWS = run.families(), claims.table()
CHOICES = {"other seeds", "held-out", "mean", "slope"}
PLANNED = re.compile(r"planned: its runs are in family ([\w-]+)")


def sides_of(served):
    """The arms of treatment and control, where there is one."""
    sides = [served[side] for side in ("treatment", "control") if side in served]
    return [[side] if isinstance(side, str) else side for side in sides]


@pytest.mark.parametrize(
    ("name", "id"), [(name, id) for name, of in FAMILIES.items() for id in of.get("claims", {})]
)
def test_a_family_has_the_arms_and_the_seeds_that_a_row_takes(name, id):
    family, planned = FAMILIES[name], ROWS[id].seeds
    served = family["claims"][id]
    less, choice = served.get("less", {}), served.get("choice", "")
    others = FAMILIES[less.get("family", name)]
    seeds = []
    for of, sides in ((family, sides_of(served)), (others, sides_of(less))):
        for arm in itertools.chain(*sides):
            seeds.append(of["arms"][arm].get("seeds", of["seeds"]))
    if "on" in served:
        assert served["on"] in next(iter(family["on"].values()))
    several = [arm for side in sides_of(served) if len(side) > 1 for arm in side]
    if several and choice not in CHOICES:
        tried = FAMILIES[choice.removeprefix("validation: ")]
        assert tried["common"]["evaluate_on"] == "validation"
        assert set(several) <= set(tried["arms"])
    if planned and not family.get("fewer"):
        repeated = [n for n in seeds if n > 1]  # what no seed changes is computed once
        assert min(repeated) >= planned


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


def test_a_family_takes_anothers_settings_repeats_its_arms_and_computes_seed_by_seed(
    tmp_path, monkeypatch
):
    path = tmp_path / "families.toml"
    path.write_text(
        """
        a = { common = { epochs = 1, lr = 0.1 }, arms = { x = {} } }
        [b]
        like = "a"
        common = { lr = 0.2 }
        arms = { x = { beta = 1 }, y = { seeds = 1 } }
        each = { t = [0.5, 1.0] }
        on = { dataset = ["u", "v"] }
        seeds = 2
        first_seed = 5
        """
    )
    monkeypatch.setattr(run, "FAMILIES", path)
    found = run.groups(run.families()["b"])
    both, one = ["x at 0.5", "y at 0.5", "x at 1", "y at 1"], ["x at 0.5", "x at 1"]
    assert [(group.value, group.seed, list(group.arms)) for group in found] == [
        ("u", 5, both), ("u", 6, one), ("v", 5, both), ("v", 6, one),
    ]  # fmt: skip
    first = {"epochs": 1, "lr": 0.2, "dataset": "u", "beta": 1, "t": 0.5}
    assert found[0].arms["x at 0.5"] == first


@pytest.mark.parametrize(
    ("device", "begun", "other"),
    [
        ("cpu", [], ""), ("cpu", ["cpu this"], ""), ("cpu", ["cpu this", "cpu that"], "that"),
        ("cpu", ["cuda this"], "one"), ("cuda", ["cuda this"], ""), ("cuda", ["cpu this"], "this"),
    ],
)  # fmt: skip
def test_a_seed_is_left_to_the_processor_that_began_it(monkeypatch, device, begun, other):
    monkeypatch.setattr(run.provenance, "machine", lambda: {"cpu": "this", "gpu": "one"})
    monkeypatch.setenv("CURLNB_DEVICE", device)
    made = [each.split() for each in begun]
    records = [{"device": on, "machine": {"cpu": cpu, "gpu": "one"}} for on, cpu in made]
    assert run.begun_elsewhere([None, *records]) == other


def test_a_family_in_bf16_is_left_to_a_processor_that_has_it(monkeypatch):
    monkeypatch.setattr(run.devices, "admitted", lambda *_: ("float32", False, ""))
    assert run.why_not({"common": {}}) == ""
    assert "lacks" in run.why_not({"common": {"precision": "bf16"}})
