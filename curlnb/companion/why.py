"""Why a run is not the committed one: which parameter, which data, which definition."""

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from curlnb.companion import reference
from curlnb.companion.profiles import PROFILES
from curlnb.runs import environment, provenance
from curlnb.runs.experiment import Experiment, as_json, code_graphs
from curlnb.runs.source import HERE, Definition, Source, is_ours
from curlnb.runs.store import Record, read_reference


def why(experiment: Experiment, parameters: Mapping[str, Any], seed: int, profile: str) -> str:
    """What tells a run from the committed runs of its experiment, a line for each difference: from
    those of the profile, or of another one that has this very run.

    Of a run whose parameters, seed and data are those of a committed one, the definitions that
    changed since the commit that wrote the committed runs are named; of any other, what tells it
    from the committed run that is nearest to it.
    """
    path = reference.folder(profile) / "runs" / f"{experiment.name}.jsonl"
    known = read_reference(path)
    if not known:
        return f"no run of {experiment.name} is committed at {profile}"
    full = experiment.parameters(parameters)
    identity = experiment.identity(full, seed)
    record = known.get(identity)
    if record is None:
        for other in PROFILES:
            there = reference.folder(other) / "runs" / f"{experiment.name}.jsonl"
            if identity in read_reference(there):
                return why(experiment, parameters, seed, other)
        return "\n".join(_other_run(experiment, full, seed, [*known.values()]))
    if record["code"] != experiment.code(full):
        return "\n".join(_other_code(experiment, full, path))
    others = provenance.other_numerics(record.get("numerics", {}), full)
    made = f", made with {', '.join(others)}" if others else ""
    return f"this is a committed run of {profile}{made}: a notebook run by hand adopts it"


def _other_run(
    experiment: Experiment, full: Mapping[str, Any], seed: int, known: list[Record]
) -> list[str]:
    shown = as_json(full, digests=False)

    def differing(record: Record) -> list[str]:
        there = record["parameters"]
        lines = [
            f"{name}: {value!r} here, {there.get(name, 'not a parameter then')!r} there"
            for name, value in shown.items()
            if there.get(name) != value
        ]
        same_seed = record["seed"] == seed
        return lines + ([] if same_seed else [f"seed: {seed} here, {record['seed']} there"])

    nearest = min(known, key=lambda record: len(differing(record)))
    if not (lines := differing(nearest)):
        parts = [name for name, value in full.items() if as_json(value) != shown[name]]
        lines = [f"{name}: its content or its code is another" for name in parts]
        lines = lines or ["data: the content of its data, or a default, is another"]
    return [f"no committed run of {experiment.name} is this one; the nearest differs in", *lines]


def _other_code(experiment: Experiment, full: Mapping[str, Any], path: Path) -> list[str]:
    if not is_ours(experiment.function.__module__):
        return [f"{experiment.name} is not of the package, and its code is not that of then"]
    commit = provenance.git("log", "-1", "--format=%H", "--", str(path))
    archive = subprocess.run(
        ["git", "archive", commit or "HEAD", "curlnb"], cwd=environment.home(), capture_output=True
    )
    start = f"{experiment.name} is not the code of its committed runs"
    if not commit or archive.returncode:
        return [f"{start}; which definitions changed can only be said in a git checkout"]
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        before = _texts(experiment, full, Source(Path(folder) / "curlnb"))
    now = _texts(experiment, full, HERE)
    moved = {at.name for at in before.keys() - now.keys()}
    lines = [
        f"{at.module}.{at.name}: changed"
        for at, text in now.items()
        if before.get(at, text) != text
    ]
    for at in sorted(now.keys() - before.keys()):
        lines.append(f"{at.module}.{at.name}: {'moved here' if at.name in moved else 'new'}")
    gone = sorted(before.keys() - now.keys())
    came = {at.name for at in now.keys() - before.keys()}
    lines += [f"{at.module}.{at.name}: no longer used" for at in gone if at.name not in came]
    return [f"{start}, of commit {commit[:12]}:", *lines]


def _texts(
    experiment: Experiment, full: Mapping[str, Any], source: Source
) -> dict[Definition, str]:
    graphs = code_graphs(experiment.function, full, source)
    return {at: text for graph in graphs for at, text in graph.texts.items() if at.name}
