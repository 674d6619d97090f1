"""`python -m curlnb doctor | data | run | why | reproduce | report | reference`: what the Makefile
calls.
"""

import argparse
import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

from curlnb import __version__, extras

try:
    from curlnb.companion import notebooks, profiles, promote, reference, report, reproduce, restamp
    from curlnb.companion.formatting import printable
    from curlnb.companion.ledger import PROFILES
    from curlnb.companion.why import why
    from curlnb.data import datasets
    from curlnb.runs import devices, environment, provenance
    from curlnb.runs.experiment import Experiment
    from curlnb.runs.store import default_store
    from curlnb.runs.validation import check_environment, check_seed
except ModuleNotFoundError as absent:
    if not extras.remedy(absent.name or ""):
        raise
    print(f"curlnb: {absent}", file=sys.stderr)
    raise SystemExit(2) from None

MOST_MINUTES = 366 * 24 * 60


class _Parser(argparse.ArgumentParser):
    """Whose errors are one line, like all others of these commands."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {printable(message)}; `{self.prog} --help` says more")


class UsageError(ValueError):
    """Words that no command understands."""


def main(arguments: list[str] | None = None) -> int:
    for name in ("stdout", "stderr"):  # closed by who started this, as a scheduler does
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    parser = _Parser(
        "curlnb", description="The reproducible companion to three papers on contrastive learning."
    )
    parser.add_argument("--version", action="version", version=f"curlnb {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary)
        added.add_argument(
            "--debug",
            action="store_true",
            default=environment.debug(),
            help="show an error's traceback",
        )
        if name != "doctor":
            added.add_argument("--profile", choices=PROFILES[::-1], default="quick")
        return added

    command(
        "doctor", "what this machine can do, which data is present, how long each profile takes"
    )
    data = command("data", "fetch the data that a profile needs, or read official files")
    data.add_argument("--from", dest="folder", help="read every set whose official files are there")
    run = command("run", "compute one run")
    for one in (run, command("why", "what tells a run from the committed runs")):
        one.add_argument("experiment", help="its name, for example images.simclr")
        one.add_argument(
            "parameters",
            nargs="*",
            default=[],
            metavar="NAME=VALUE",
            help="its parameters and the seed, values as in JSON",
        )
    again = command("reproduce", "run the notebooks and write the report")
    again.add_argument("notebooks", nargs="*", help="files or folders; default all")
    again.add_argument("-j", "--jobs", help="notebooks at a time, each with its share of the cores")
    again.add_argument(
        "--limit-minutes", help="stop a notebook after that long (default: 60 at quick)"
    )
    again.add_argument(
        "--change", help="settings to change, for example 'epochs: 12, batch: 64'", default=""
    )
    command("report", "write the report page of the last reproduction again")
    kept = command(
        "reference",
        "make a finished reproduction the committed reference, or judge notebooks anew on the "
        "committed runs",
    )
    kept.add_argument(
        "notebooks",
        nargs="*",
        help="files or folders to judge anew; default: the whole finished reproduction",
    )
    kept.add_argument(
        "--restamp",
        action="store_true",
        help="after a pure refactoring: check a sample, renew the digests",
    )
    kept.add_argument(
        "--add-runs",
        action="store_true",
        help="add the finished runs of the results folder, executing no notebook",
    )
    kept.add_argument(
        "--experiments",
        nargs="+",
        default=[],
        metavar="NAME",
        help="restamp these alone, images.simclr say",
    )
    try:
        given = parser.parse_args(arguments)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        check_environment()
        status = _do(given)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output has gone, `curlnb doctor | head -1` say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print(
            "\ncurlnb: stopped; what is finished is kept, and the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    except Exception as error:
        if given.debug:
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError) and (remedy := extras.remedy(error.name or "")):
            error = RuntimeError(f"{error.name} is not installed: {remedy}")
        told = isinstance(
            error, ValueError | OSError | RuntimeError
        )  # what the package raises for a user; anything else is its own fault
        name, hint = ("", "") if told else (f"{type(error).__name__}: ", " (--debug shows where)")
        print(f"curlnb {given.command}: {name}{printable(error)}{hint}", file=sys.stderr)
        return 2


def _above_zero(
    option: str, text: str | None, kind: type, what: str, most: float = math.inf
) -> Any:
    """An option's number, or None where the option is not given."""
    if text is None:
        return None
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= most or number == math.inf:
        raise ValueError(
            f"{option} is {text!r}: it must be {what}"
            + (f", and at most {most:g}" if most < number < math.inf else "")
        )
    return number


def _do(given: argparse.Namespace) -> int:
    if given.command in ("data", "reproduce", "reference"):
        environment.checkout(f"`curlnb {given.command}`")  # whose notebooks it reads
    if given.command == "doctor":
        print(doctor())
    elif given.command == "data":
        return _data(given.profile, given.folder)
    elif given.command == "run":
        run(given.experiment, given.parameters, given.profile)
    elif given.command == "why":
        experiment, parameters, seed = _run_asked(given.experiment, given.parameters)
        print(why(experiment, parameters, seed, given.profile))
    elif given.command == "reproduce":
        jobs = _above_zero("--jobs", given.jobs, int, "a whole number of notebooks, 1 or more")
        limit = _above_zero(
            "--limit-minutes",
            given.limit_minutes,
            float,
            "a number of minutes above 0",
            most=MOST_MINUTES,
        )
        options = dict(jobs=jobs, limit_minutes=limit, change=profiles.parse(given.change))
        return 1 if reproduce.reproduce(given.profile, given.notebooks, **options) else 0
    elif given.command == "report":
        print(f"Report: {_report(given.profile)}")
    elif given.command == "reference":
        print(_reference(given))
    return 0


def _reference(given: argparse.Namespace) -> str:
    if given.notebooks and given.restamp:
        raise ValueError("--restamp takes no notebooks: it renews the digests of runs")
    if given.add_runs:
        return promote.add_runs(given.profile)
    if given.restamp:
        return restamp.restamp(given.profile, given.experiments)
    return (
        promote.renew(given.profile, given.notebooks)
        if given.notebooks
        else promote.promote(given.profile)
    )


def _report(profile: str) -> Path:
    """Write the page of the last reproduction; on a checkout that has none, that of the committed
    references.
    """
    environment.checkout("`curlnb report`")
    results, references = environment.results_root() / profile, environment.reference_folder()
    if results.exists():
        return report.write_report(results, references, results / "report.html")
    if not (references / profile / "claims.csv").exists():
        raise ValueError(
            f"nothing reproduced at {profile} yet, and no reference is committed: "
            f"run `make reproduce PROFILE={profile}`"
        )
    return report.write_report(None, references, environment.results_root() / "reference.html")


def _data(profile: str, folder: str | None) -> int:
    """Fetch what the notebooks name at a profile, or read all sets whose official files are in
    `folder`; 1 where a broken notebook could not say it, which does not stop the others' data.
    """
    if folder is not None:
        every = [*datasets.names("vectors"), *datasets.names()]
        datasets.prepare(every, folder=Path(folder).expanduser())
        return 0
    wanted, broken = set(), 0
    for path in notebooks.find():
        try:
            wanted |= set(notebooks.data_of(path, profile))
        except (ValueError, OSError) as error:
            broken += 1
            print(f"curlnb data: {printable(error)}", file=sys.stderr)
    datasets.prepare([name for name in datasets.names() if name in wanted])
    return 1 if broken else 0


def _run_asked(name: str, words: list[str]) -> tuple[Experiment, dict[str, Any], int]:
    """The experiment, parameters and seed that NAME=VALUE words ask for."""
    experiment = reference.experiment_named(name)
    if wrong := [word for word in words if "=" not in word]:
        raise ValueError(f"{wrong[0]!r} is no NAME=VALUE")
    names = [word.partition("=")[0] for word in words]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{twice[0]} is given twice")
    given = {word.partition("=")[0]: _value(word.partition("=")[2]) for word in words}
    seed = check_seed(given.pop("seed", 0))
    return experiment, experiment.parameters(given), seed


def run(name: str, words: list[str], profile: str) -> None:
    """Compute one run in the profile's store, so that notebooks find it, and print where it is."""
    (experiment, given, seed), store = _run_asked(name, words), default_store(profile)
    record = store.run(experiment, given, seed)
    assert record is not None
    numbers = {k: v for k, v in record["metrics"].items() if isinstance(v, int | float)}
    place = store.folder(experiment, given, seed)
    print(f"{place}: {record['seconds']:.0f} s, {json.dumps(numbers)}")


def _value(text: str) -> Any:
    """A parameter as typed: JSON, Python's True, False and None, or else a string."""
    words = {"True": True, "False": False, "None": None}
    try:
        return words[text] if text in words else json.loads(text)
    except (ValueError, RecursionError):
        return text


def doctor() -> str:
    """A screenful about this machine: device, precision, memory, compiler, data, time."""
    device = devices.default_device()
    precision, compiled, missing = devices.admitted("bf16", True, device)
    about = provenance.machine()
    data: dict[str, list[str]] = {"embedded": [], "cached": [], "absent": []}
    for name in datasets.names():
        data[datasets.available(name)].append(name)
    machine = f"{about['gpu'] or about['cpu']}, {environment.cores()} cores, {_memory(device)}"
    no_compiler = "none found: g++ or clang++ with Python headers would speed runs up"
    python = ".".join(map(str, sys.version_info[:3]))
    lines = [
        f"device      {device}, {machine}",
        f"precision   {precision}, torch.compile {'on' if compiled else 'off'}"
        + (f" ({missing})" if missing else ""),
        f"compiler    {devices.compiler() or no_compiler}",
        f"versions    python {python}, torch {about['torch']}, torchvision {about['torchvision']}",
        f"threads     {torch.get_num_threads()} here; a run uses 1, runs go side by side",
        f"results     {environment.results_root()}",
        "",
        *(f"{state:11} {', '.join(own)}" for state, own in data.items()),
        "",
        "minutes     "
        + "\n            ".join(f"{profile:6} {_minutes(profile)}" for profile in PROFILES[::-1]),
    ]
    return "\n".join(lines)


def _minutes(profile: str) -> str:
    """What a profile took: here, if it ran here, and for the committed reference; else what it is
    built for.
    """
    said = []
    if states := reproduce.read_status(environment.results_root() / profile / "status.json"):
        done = sum(state["state"] == "done" for state in states.values())
        minutes, notes = reproduce.machine_seconds(states) / 60, len(notebooks.find())
        said.append(f"{minutes:.1f} measured here for {done} of {notes} notebooks")
    if about := provenance.of_reference(profile):
        machine = f"{about['cores']} cores, {about['machine']['cpu']}"
        said.append(
            f"{about['total_seconds'] / 60:.1f} for the reference's {about['notebooks']} notebooks "
            f"({machine})"
        )
    built_for = {
        "quick": "half an hour to an hour of two cores",
        "night": "a night of two cores",
        "gpu": "at most 10 a run on a data-centre GPU",
        "paper": "days of one GPU a figure",
    }
    return "; ".join(said) or f"not measured yet; built for {built_for[profile]}"


def _memory(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB"
    try:
        return (
            f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory"
        )
    except (ValueError, OSError):
        return "memory unknown"


if __name__ == "__main__":
    sys.exit(main())
