"""After a pure refactoring: show that runs keep their bits, and give the reference runs the present
code's digest.

A sample is chosen anew at each commit: of every stale experiment one run for each distinct branch
of its code. Where this machine is the reference's, the runs are compared with the reference, bit
for bit. Elsewhere another processor gives other last bits, so that both codes are run here: the
commit that last wrote the reference's digests is checked out beside, its runs are computed by its
own `curlnb run`, and the present code's must have their bits. Only experiments of which every
branch agreed are renewed.
"""

import concurrent.futures
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from curlnb.companion import reference
from curlnb.runs import environment
from curlnb.runs.experiment import Experiment
from curlnb.runs.store import Record

WEIGHTS = ("tau_plus", "beta")  # whose being zero or not is a branch of the losses


def branch(record: Record) -> tuple[tuple[str, Any], ...]:
    """What tells which code a run goes through: its parameters that are names, and whether the
    loss's weights are in force.
    """
    own = record["parameters"].items()
    names = [(name, value) for name, value in own if isinstance(value, str)]
    return tuple(sorted([*names, *((name, bool(value)) for name, value in own if name in WEIGHTS)]))


def chosen(records: list[Record], commit: str) -> list[Record]:
    """One record of each branch, drawn by the commit's name."""
    shuffled = sorted(records, key=lambda record: record["identity"])
    random.Random(commit).shuffle(shuffled)
    return list({branch(record): record for record in shuffled}.values())


def restamp(profile: str = "quick", only: Sequence[str] = ()) -> str:
    """Renew the digests of the reference runs of all stale experiments (of those in `only`, if
    given) that kept their bits.

    ValueError names the first metric that differs, after the experiments that agree were renewed.
    """
    all_records, commit = reference.records(profile), reference.present_commit()[1]
    names = sorted(name for name in reference.stale(profile) if not only or name in only)
    lines, failed = [], []
    for name in names:
        own = [record for record in all_records if record["experiment"] == name]
        picked = chosen(own, commit)
        environment.log(f"restamp: {name}: {len(picked)} of {len(own)} runs, one a branch")
        print(f"  {name}: computing {len(picked)} of {len(own)} runs, one a branch", flush=True)
        problems = _compare(name, picked, profile)
        if problems:
            failed += problems
            continue
        _renew(name, own, profile)
        lines.append(f"{name}: {len(picked)} branches have the same bits; {len(own)} runs renewed")
        print(f"  {lines[-1]}", flush=True)
    if failed:
        raise ValueError(f"not a pure refactoring: {failed[0]}. Run `make reproduce reference`")
    return (
        f"{len(lines)} of {len(names)} stale experiments renewed; the others held"
        if names
        else "no reference run is stale"
    )


def _compare(name: str, picked: list[Record], profile: str) -> list[str]:
    here = all(map(reference.same_machine, picked))
    with tempfile.TemporaryDirectory() as empty, contextlib.ExitStack() as stack:
        before = None
        if not here:
            picked = [_short(record) for record in picked]
            path = reference.folder(profile) / "runs" / f"{name}.jsonl"
            before = stack.enter_context(_checkout(path))
        with concurrent.futures.ThreadPoolExecutor(environment.cores()) as pool:
            now = [
                pool.submit(_run, environment.home(), Path(empty), record, profile)
                for record in picked
            ]
            old = (
                [pool.submit(_run, *before, record, profile) for record in picked] if before else []
            )
            after = [future.result() for future in now]
            earlier = [future.result() for future in old] if before else picked
    return [
        f"{name} {metric}: {new['metrics'].get(metric)} now, {value} before"
        for one, new in zip(earlier, after, strict=True)
        for metric, value in one["metrics"].items()
        if new["metrics"].get(metric) != value
    ]


def _short(record: Record) -> Record:
    """The same branch, trained for one epoch: two codes are compared, and not their results."""
    given = record["parameters"]
    return record | {"parameters": given | {"epochs": min(given.get("epochs", 1), 1)}}


@contextlib.contextmanager
def _checkout(path: Path) -> Iterator[tuple[Path, Path]]:
    """The commit that last wrote a reference file, checked out beside; (its folder, where its
    results are kept between calls).
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=environment.home(), capture_output=True, text=True
        )
        if done.returncode:
            raise ValueError(
                "the reference is of another machine, and the code that made it cannot be checked "
                f"out: {done.stderr.strip()}"
            )
        return done.stdout.strip()

    commit = git("log", "-1", "--format=%H", "--", str(path))
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "checkout"
        git("worktree", "add", "--detach", str(folder), commit)
        try:
            yield folder, environment.results_root() / "restamp" / commit[:12]
        finally:
            git("worktree", "remove", "--force", str(folder))


def _run(home: Path, results: Path, record: Record, profile: str) -> Record:
    """One run by a checkout's own command, in a process of its own."""
    words = [
        f"{k}={v if isinstance(v, str) or v is None else json.dumps(v)}"
        for k, v in record["parameters"].items()
    ]
    own = {
        "PYTHONPATH": str(home),
        "CURLNB_HOME": str(home),
        "CURLNB_RESULTS": str(results),
        "OMP_NUM_THREADS": "1",
        "CURLNB_ADOPT": "0",
    }
    line = [
        sys.executable,
        "-m",
        "curlnb",
        "run",
        record["experiment"],
        *words,
        f"seed={record['seed']}",
        "--profile",
        profile,
    ]
    done = subprocess.run(line, cwd=home, env={**os.environ, **own}, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(
            f"{record['experiment']} failed in {home}: {done.stderr.strip().splitlines()[-1]}"
        )
    folder = Path(done.stdout.strip().splitlines()[-1].partition(": ")[0])
    found = json.loads(
        (folder / "run.json").read_text()
    )  # of other code, perhaps, with a seal of its own
    return {
        name: value for name, value in found.items() if name not in ("schema", "place", "digest")
    }


def _renew(name: str, own: list[Record], profile: str) -> None:
    experiment: Experiment = reference.experiment_named(name)
    for record in own:
        record["code"] = experiment.code(record["parameters"])
        record["identity"] = experiment.identity(record["parameters"], record["seed"])
    reference.write_runs(own, reference.folder(profile) / "runs")
