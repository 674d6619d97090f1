"""Why a run is not the committed one: which parameter, which data, which definition."""

from pathlib import Path

from curlnb.companion import reference
from curlnb.companion.profiles import PROFILES
from curlnb.runs.devices import other_numerics
from curlnb.runs.experiment import Asked, as_json, code_graphs
from curlnb.runs.source import HERE, Definition, Source
from curlnb.runs.store import Record, read_reference


def why(asked: Asked, profile: str) -> str:
    """What tells a run from the committed runs of its experiment, a line for each difference: from
    those of the profile, or of another one that has this very run.

    Of a run whose parameters, seed and data are those of a committed one, the definitions that
    changed since the commit that wrote the committed runs are named; of any other, what tells it
    from the committed run that is nearest to it.
    """
    experiment = asked.experiment
    paths = {
        name: reference.folder(name) / "runs" / f"{experiment.name}.jsonl"
        for name in (profile, *PROFILES)
    }
    for name, path in paths.items():
        if record := read_reference(path).get(asked.identity):
            if record["code"] != asked.code:
                return "\n".join(_other_code(asked, path))
            others = other_numerics(record.get("numerics", {}), asked.numerics)
            made = f", made with {', '.join(others)}" if others else ""
            return f"this is a committed run of {name}{made}: a notebook run by hand adopts it"
    if known := [*read_reference(paths[profile]).values()]:
        return "\n".join(_other_run(asked, known))
    return f"no run of {experiment.name} is committed at {profile}"


def _other_run(asked: Asked, known: list[Record]) -> list[str]:
    here = as_json(asked.parameters, digests=False) | {"seed": asked.seed}

    def differing(record: Record) -> list[str]:
        there = record["parameters"] | {"seed": record["seed"]}
        return [
            f"{name}: {value!r} here, {there.get(name, 'not a parameter then')!r} there"
            for name, value in here.items()
            if there.get(name) != value
        ]

    same = ["data: the content of its data, or a default, is another"]
    return [
        f"no committed run of {asked.experiment.name} is this one; the nearest differs in",
        *(min(map(differing, known), key=len) or same),
    ]


def _other_code(asked: Asked, path: Path) -> list[str]:
    with reference.former_code(path, "curlnb") as (commit, folder):
        before = _texts(asked, Source(folder / "curlnb"))
    now = _texts(asked, HERE)
    # by name, since a definition may have moved to another module
    known = {(at.name, text) for at, text in before.items()}
    then, here = ({at.name for at in texts} for texts in (before, now))
    lines = [
        f"{at.module}.{at.name}: {'changed' if at.name in then else 'new'}"
        for at, text in now.items()
        if (at.name, text) not in known
    ]
    lines += [f"{at.module}.{at.name}: no longer used" for at in before if at.name not in here]
    name = asked.experiment.name
    return [f"{name} is not the code of its committed runs, of commit {commit[:12]}:", *lines]


def _texts(asked: Asked, source: Source) -> dict[Definition, str]:
    graphs = code_graphs(asked.experiment.function, asked.parameters, source)
    return {at: text for graph in graphs for at, text in graph.texts.items() if at.name}
