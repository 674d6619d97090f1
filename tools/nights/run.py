"""Compute families of long runs (families.toml) into the night's store: seed by seed, all arms of a
seed on one kind of processor. It can be stopped at any time; the same command goes on.

python tools/nights/run.py graphs --jobs 1   compute, with one process beside other work
python tools/nights/run.py --list            how many runs there are, are done, and their hours
curlnb reference --add-runs --profile night  put finished runs among the committed ones
"""

import argparse
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from curlnb.companion.reference import experiment_named
from curlnb.runs import devices, provenance
from curlnb.runs.store import default_store
from curlnb.runs.sweep import sweep

FAMILIES = Path(__file__).with_name("families.toml")


def families():
    """By name, with the settings of the family that each is `like`, and all arms."""
    found = tomllib.loads(FAMILIES.read_text())
    for family in found.values():
        common = found[family["like"]]["common"] if "like" in family else {}
        family["common"] = common | family.get("common", {})
        for parameter, values in family.get("each", {}).items():
            given = family["arms"].items()
            family["arms"] = {
                f"{arm} at {x:g}": of | {parameter: x} for x in values for arm, of in given
            }
    return found


class Group(NamedTuple):
    """The arms of a seed: their parameters by name; value: of the family's parameter `on`."""

    value: str
    seed: int
    arms: dict[str, dict[str, Any]]


def groups(family):
    """In the order in which they are computed."""
    ((name, values),) = family.get("on", {"": [""]}).items()
    first, found = family.get("first_seed", 0), []
    for value in values:
        common = family["common"] | ({name: value} if name else {})
        for nth in range(family["seeds"]):
            arms = {}
            for arm, own in family["arms"].items():
                given = common | own
                if nth < given.pop("seeds", family["seeds"]):
                    arms[arm] = given
            found.append(Group(value, first + nth, arms))
    return found


def why_not(family):
    """Why this machine computes none of the family."""
    wanted = family["common"].get("precision", "float32")
    here = devices.admitted(wanted, False, devices.default_device())[0]
    return "" if here == wanted else f"asks for {wanted}, which this processor lacks"


def begun_elsewhere(records):
    """The other kind of processor on which some of a seed's runs were made, or nothing."""

    def processor(device, machine):
        return machine["gpu" if device == "cuda" else "cpu"]

    made_on = {processor(record["device"], record["machine"]) for record in records if record}
    here = processor(devices.default_device().type, provenance.machine())
    return next(iter(made_on - {here}), "")


def compute(name, family, jobs):
    if reason := why_not(family):
        print(f"{name}: {reason}", flush=True)
        return
    store, experiment = default_store("night"), experiment_named(family["experiment"])
    for value, seed, arms in groups(family):
        label = " ".join(filter(None, [name, value, f"seed {seed}"]))
        found = {arm: store.find(experiment, what, seed) for arm, what in arms.items()}
        if left := [arm for arm, record in found.items() if record is None]:
            if other := begun_elsewhere(found.values()):
                print(f"{label}: begun on {other}, left to such a processor", flush=True)
                continue
            points = [arms[arm] for arm in left]
            runs = sweep(experiment, points, seeds=[seed], store=store, workers=jobs)
            for arm, seconds in zip(left, runs["seconds"], strict=True):
                print(f"{time.strftime('%H:%M')} {label}, {arm}: {seconds:.0f} s", flush=True)
        # a second look shares the trainings of this store, which committed runs have not left
        own = [arms[arm] for arm, r in found.items() if not r or r["origin"] == "computed"]
        if "also" in family and own:
            sweep(experiment_named(family["also"]), own, seeds=[seed], store=store, workers=jobs)


def listed(name, family):
    store, experiment = default_store("night"), experiment_named(family["experiment"])
    runs = [(what, group.seed) for group in groups(family) for what in group.arms.values()]
    left = sum(store.find(experiment, what, seed) is None for what, seed in runs)
    hours = left * family["minutes"] / 60
    return f"{name}: {len(runs)} runs, {len(runs) - left} done, {hours:.1f} core hours left"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", nargs="*", help="by default all, in their order")
    parser.add_argument("--list", action="store_true", help="count runs, compute none")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    given, known = parser.parse_args(), families()
    if unknown := [name for name in given.family if name not in known]:
        parser.error(f"there is no family {unknown[0]!r}; there are {', '.join(known)}")
    for name in given.family or known:
        if given.list:
            print(listed(name, known[name]), flush=True)
        else:
            compute(name, known[name], given.jobs)


if __name__ == "__main__":
    main()
