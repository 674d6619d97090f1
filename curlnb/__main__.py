"""`python -m curlnb doctor | data | run | why | reproduce | report | reference`: what the Makefile
calls.
"""

import argparse
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

from curlnb import __version__

try:
    from curlnb.companion import notebooks, promote, reference, report, reproduce, restamp
    from curlnb.companion.profiles import PROFILES
    from curlnb.companion.why import why
    from curlnb.data import datasets
    from curlnb.runs import devices, environment, provenance
    from curlnb.runs.devices import check_environment
    from curlnb.runs.experiment import Asked
    from curlnb.runs.files import printable
    from curlnb.runs.store import default_store
except ModuleNotFoundError as absent:
    print(f"curlnb: {absent}", file=sys.stderr)
    raise SystemExit(2) from None


class _Parser(argparse.ArgumentParser):
    """Whose errors are one line, like all others of these commands."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)}; `{self.prog} --help` says more\n")


def _parser() -> _Parser:
    parser = _Parser(
        "curlnb", description="The reproducible companion to three papers on contrastive learning."
    )
    parser.add_argument("--version", action="version", version=f"curlnb {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary)
        if name != "doctor":
            added.add_argument("--profile", choices=PROFILES, default="quick")
        return added

    command("doctor", "what this machine can do, and which data is present")
    data = command("data", "fetch the data that a profile needs, or read official files")
    data.add_argument(
        "--from", dest="folder", type=Path, help="read every set whose official files are there"
    )
    run = command("run", "compute one run")
    for one in (run, command("why", "what tells a run from the committed runs")):
        one.add_argument("experiment", help="its name, for example images.simclr")
        one.add_argument(
            "parameters",
            nargs="*",
            metavar="NAME=VALUE",
            help="its parameters and the seed, values as in JSON",
        )
    again = command("reproduce", "run the notebooks and write the report")
    again.add_argument("notebooks", nargs="*", help="files or folders; default all")
    again.add_argument(
        "-j",
        "--jobs",
        type=whole_number,
        help="notebooks at a time, 1 or more, each with its share of the cores",
    )
    again.add_argument(
        "--change", default="", help="settings to change, for example 'epochs=12 batch=64'"
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
        help="add the finished runs of the results folder that are of the present code and data, "
        "executing no notebook",
    )
    return parser


def whole_number(text: str) -> int:
    """1 or more, as an option has it. ValueError for anything else."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def main(arguments: list[str] | None = None) -> int:
    """Do what a command line says, by default this process's, and return its exit status."""
    given = _parser().parse_args(arguments)
    try:
        check_environment()
        return _do(given)
    except KeyboardInterrupt:
        print(
            "\ncurlnb: stopped; what is finished is kept, and the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    # what the package raises for a user; anything else is its own fault, shown with its traceback
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"curlnb {given.command}: {printable(error)}", file=sys.stderr)
        return 2


def _do(given: argparse.Namespace) -> int:
    if given.command in ("data", "reproduce", "report", "reference"):
        environment.checkout(f"`curlnb {given.command}`")  # whose notebooks it reads
    match given.command:
        case "doctor":
            print(doctor())
        case "data":
            _data(given.profile, given.folder)
        case "run":
            run(given.experiment, given.parameters, given.profile)
        case "why":
            print(why(_asked(given.experiment, given.parameters), given.profile))
        case "reproduce":
            change = _named(shlex.split(given.change))
            failed = reproduce.reproduce(
                given.profile, given.notebooks, jobs=given.jobs, change=change
            )
            return min(failed, 1)
        case "report":
            print(f"Report: {_report(given.profile)}")
        case "reference":
            print(_reference(given))
    return 0


def _reference(given: argparse.Namespace) -> str:
    if given.add_runs:
        return promote.add_runs(given.profile)
    if given.restamp:
        return restamp.restamp(given.profile)
    if given.notebooks:
        return promote.renew(given.profile, given.notebooks)
    return promote.promote(given.profile)


def _report(profile: str) -> Path:
    """Write the page of the last reproduction; on a checkout that has none, that of the committed
    references.
    """
    root = environment.results_root()
    if (root / profile).exists():
        return report.write_report(root / profile, root / profile / "report.html")
    return report.write_report(None, root / "reference.html")


def _data(profile: str, folder: Path | None) -> None:
    """Fetch what the notebooks name at a profile, or read all sets whose official files are in
    `folder`.
    """
    if folder:
        every = [*datasets.names("vectors"), *datasets.names()]
        datasets.prepare(every, folder=folder.expanduser())
    else:
        wanted = {name for path in notebooks.find() for name in notebooks.data_of(path, profile)}
        datasets.prepare([name for name in datasets.names() if name in wanted])


def _asked(name: str, words: list[str]) -> Asked:
    """The run of an experiment that NAME=VALUE words ask for."""
    experiment, given = reference.experiment_named(name), _named(words)
    return experiment.asked(given, seed=given.pop("seed", 0))


def _named(words: list[str]) -> dict[str, Any]:
    """The values of NAME=VALUE words."""
    if wrong := [word for word in words if "=" not in word]:
        raise ValueError(f"{wrong[0]!r} is no NAME=VALUE")
    return {name: _value(text) for name, text in (word.split("=", 1) for word in words)}


def run(name: str, words: list[str], profile: str) -> None:
    """Compute one run in the profile's store, so that notebooks find it, and print where it is; or
    that it is adopted, as it is in a notebook run by hand.
    """
    asked, store = _asked(name, words), default_store(profile)
    record = store.run(asked)
    assert record is not None
    numbers = {k: v for k, v in record["metrics"].items() if isinstance(v, int | float)}
    computed = record["origin"] == "computed"
    where = store.folder(asked) if computed else f"adopted from the {record['origin']}"
    print(f"{where}: {record['seconds']:.0f} s, {json.dumps(numbers)}")


def _value(text: str) -> Any:
    """A parameter as typed: JSON, Python's True, False and None, or else a string."""
    words = {"True": True, "False": False, "None": None}
    try:
        return words[text] if text in words else json.loads(text)
    except ValueError:
        return text


def doctor() -> str:
    """A few lines about this machine: device, precision, versions, results, data."""
    device, about = devices.default_device(), provenance.machine()
    precision, compiled, missing = devices.admitted("bf16", True, device)
    why_not = f" ({missing})" if missing else ""
    states = {name: datasets.available(name) for name in datasets.names()}
    lines = {
        "device": f"{device}, {about['gpu'] or about['cpu']}, {environment.cores()} cores",
        "precision": f"{precision}, torch.compile {'on' if compiled else 'off'}{why_not}",
        "versions": f"python {platform.python_version()}, torch {about['torch']}",
        "results": environment.results_root(),
    }
    for state in ("embedded", "cached", "absent"):
        lines[state] = ", ".join(name for name, found in states.items() if found == state)
    return "\n".join(f"{what:11} {said}" for what, said in lines.items())


if __name__ == "__main__":
    sys.exit(main())
