"""Compute families of long runs (families.toml) into the night's store: seed by seed, all arms of a
seed on one kind of processor. It can be stopped at any time; the same command goes on.

python tools/nights/run.py graphs            compute (CURLNB_WORKERS=1 beside other work)
python tools/nights/run.py --list            what there is, what is done
curlnb reference --add-runs --profile night  put finished runs among the committed ones
"""

import argparse
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from curlnb.companion.reference import experiment_named
from curlnb.runs import provenance
from curlnb.runs.store import default_store
from curlnb.runs.sweep import sweep

FAMILIES = Path(__file__).with_name("families.toml")


def families() -> dict[str, dict[str, Any]]:
    return tomllib.loads(FAMILIES.read_text())


def groups(family: dict[str, Any]) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """(value of `on`, seed, parameters of each arm), in the order in which they are computed."""
    ((name, values),) = family.get("on", {"": [""]}).items()
    first = family.get("first_seed", 0)
    return [
        (str(value), seed, [family["common"] | ({name: value} if name else {}) | arm
                            for arm in family["arms"].values()])
        for value in values
        for seed in range(first, first + family["seeds"])
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", nargs="*", help="by default all, in their order")
    parser.add_argument("--list", action="store_true", help="count runs, compute none")
    given, known = parser.parse_args(), families()
    if unknown := [name for name in given.family if name not in known]:
        parser.error(f"there is no family {unknown[0]!r}; there are {', '.join(known)}")
    store, here = default_store("night"), provenance.machine()["cpu"]
    for name in given.family or known:
        family, experiment = known[name], experiment_named(known[name]["experiment"])
        for value, seed, arms in groups(family):
            found = [store.find(experiment, arm, seed) for arm in arms]
            done = [record for record in found if record is not None]
            label = " ".join(filter(None, [name, value, f"seed {seed}"]))
            if given.list or len(done) == len(arms):
                print(f"{label}: {len(done)} of {len(arms)}", flush=True)
                continue
            if others := {r["machine"]["cpu"] for r in done} - {here}:
                print(f"{label}: begun on {others.pop()}, left to such a machine", flush=True)
                continue
            start = time.monotonic()
            sweep(experiment, [*arms], seeds=[seed], store=store)
            print(f"{time.strftime('%H:%M')} {label}: {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
