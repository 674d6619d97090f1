"""After a pure refactoring: show that runs keep their bits, and give the reference runs the present
code's digest.

A sample is chosen anew at each commit: of every stale experiment one run for each distinct branch
of its code. Reference runs are of several machines, and another processor gives other last bits, so
both codes are run here: the sources of the commit that last wrote the reference's digests are
unpacked, their runs are computed by their own `curlnb run`, and the present code's must have the
same bits. Only experiments of which every branch agreed are renewed.
"""

import concurrent.futures
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from curlnb.companion import reference
from curlnb.runs import environment, files, provenance
from curlnb.runs.store import Record


def branch(record: Record) -> frozenset[tuple[str, str]]:
    """What tells which code a run goes through: its parameters; numbers other than 0 and 1 count
    alike.
    """
    return frozenset(
        (name, "number" if isinstance(value, int | float) and value not in (0, 1) else str(value))
        for name, value in record["parameters"].items()
    )


def chosen(records: list[Record], commit: str) -> list[Record]:
    """One record of each branch, drawn by the commit's name."""
    drawn = random.Random(commit).sample(records, len(records))
    return list({branch(record): record for record in drawn}.values())


def restamp(profile: str) -> str:
    """Renew the digests of the reference runs of all stale experiments that kept their bits.

    ValueError names the first metric that differs, after the experiments that agree were renewed.
    """
    every, commit = reference.records(profile), provenance.git("rev-parse", "HEAD")
    names = sorted(reference.stale(profile))
    if not names:
        return "no reference run is stale"
    failed: list[str] = []
    for name in names:
        own = [record for record in every if record["experiment"] == name]
        picked = chosen(own, commit)
        print(f"  {name}: computing {len(picked)} of {len(own)} runs, one a branch", flush=True)
        runs = reference.folder(profile) / "runs"
        problems = _compare(runs / f"{name}.jsonl", picked)
        failed += problems
        if not problems:
            for record in own:
                asked = reference.asked_by(record)
                record |= {"code": asked.code, "identity": asked.identity}
            reference.write_runs(own, runs)
            print(f"  {name}: the bits are the same; {len(own)} runs renewed", flush=True)
    if failed:
        raise ValueError(f"not a pure refactoring: {failed[0]}. Run `make reproduce reference`")
    return f"{len(names)} stale experiments renewed"


def _compare(path: Path, picked: list[Record]) -> list[str]:
    """Metrics of a reference file's runs in which the code that wrote it and the present one
    differ, a line each. Of training a run's first epoch is enough: two codes are compared, and not
    results.
    """
    here, lines = environment.home(), []
    with (
        reference.former_code(path, "curlnb", "data") as (_, former),
        concurrent.futures.ThreadPoolExecutor(environment.cores()) as pool,
    ):
        then = pool.map(lambda record: _run(former, former / "then", record), picked)
        now = pool.map(lambda record: _run(here, former / "now", record), picked)
        for record, before, after in zip(picked, then, now, strict=True):
            lines += [
                f"{record['experiment']} {metric}: {after.get(metric)} now, {value} before"
                for metric, value in before.items()
                if after.get(metric) != value
            ]
    return lines


def _run(home: Path, results: Path, record: Record) -> dict[str, Any]:
    """The metrics of a run after one epoch, by a checkout's own command."""
    given = record["parameters"] | {"seed": record["seed"]}
    if "epochs" in given:
        given["epochs"] = min(given["epochs"], 1)
    words = [f"{name}={json.dumps(value)}" for name, value in given.items()]  # "true" is a text
    own = {
        "PYTHONPATH": str(home),
        "CURLNB_HOME": str(home),
        "CURLNB_RESULTS": str(results),
        "OMP_NUM_THREADS": "1",
        "CURLNB_ADOPT": "0",
    }
    line = [sys.executable, "-m", "curlnb", "run", record["experiment"], *words]
    done = subprocess.run(line, cwd=home, env=os.environ | own, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(
            f"{record['experiment']} failed in {home}: {done.stderr.strip().splitlines()[-1]}"
        )
    folder = Path(done.stdout.strip().splitlines()[-1].partition(": ")[0])
    metrics: dict[str, Any] = files.read_json(folder / "run.json")["metrics"]
    return metrics
