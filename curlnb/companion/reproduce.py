"""`make reproduce`: every notebook in a process and kernel of its own, resumable; then the report.

What stands in results/<profile>: status.json (what became of each notebook), notebooks/ (the
executed copies), tables/, figures/, claims.csv, runs/, logs/, provenance.json and report.html.
"""

import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curlnb.companion import ledger, notebooks, profiles, report
from curlnb.companion.finished import (
    PACKAGE,
    Status,
    alone_in,
    files_of,
    inputs_of,
    list_of_runs,
    unfinished,
)
from curlnb.companion.notebooks import name_of, needs
from curlnb.runs import environment, provenance
from curlnb.runs.devices import default_device
from curlnb.runs.files import printable, read_json, write_json

MOST_AT_ONCE = 4  # notebooks, unless asked for otherwise: each takes up to a GB
PYTHON = [sys.executable, "-m"]
FOREIGN = ("COLAB_RELEASE_TAG", "JPY_SESSION_NAME", "JUPYTER_PATH", "MATPLOTLIBRC", "MPLBACKEND",
           "PYTHONSTARTUP", "VSCODE_PID")  # fmt: skip
"""Variables with which a user's surroundings would change what a kernel computes or shows."""


def reproduce(
    profile: str,
    selected: Iterable[str],
    *,
    jobs: int | None = None,
    adopt: bool = False,
    change: Mapping[str, Any] = {},
) -> int:
    """Run the notebooks at `profile`, write the report, print where it is. Returns how many failed.

    jobs: notebooks at a time, each with its share of the cores for its runs; None: one a core, at
    most MOST_AT_ONCE, and of those that train one at a time on a GPU. Those that time something are
    then run one by one on all cores, and at the end those that read the ledger. adopt: whether
    committed reference runs are taken, as by a notebook that is run by hand; a reproduction
    computes all, and so runs such a notebook again. change: settings to use in place of the
    profile's, which all of the notebooks must have; their ledger says that they were changed.
    A notebook that is finished is not run again unless its code, the package, the data or the
    profile changed, or it reads the ledger and another is run; one that was interrupted goes on
    from its finished runs.
    """
    paths = notebooks.with_profile(notebooks.find(selected), profile)
    for path in paths if change else ():
        profiles.changed(notebooks.settings_of(path)[profile], change)
    results = environment.results_root() / profile
    with alone_in(results), tempfile.TemporaryDirectory() as scratch:
        status = ledger.unless_damaged(read_json, results / "status.json", {})
        work = _Reproduction(profile, results, scratch, adopt, change, status)
        return work.reproduce(paths, jobs)


@dataclass
class _Reproduction:
    """What became of notebooks, and what is said of the whole."""

    profile: str
    results: Path
    scratch: str
    adopt: bool
    change: Mapping[str, Any]
    status: Status

    def reproduce(self, paths: list[Path], jobs: int | None) -> int:
        """What `reproduce` does, and returns."""
        todo = self.todo(paths)
        self.done, self.total = len(paths) - len(todo), len(paths)
        self.run(_turns(todo, jobs))
        place = self.results / "provenance.json"
        if todo or not ledger.unless_damaged(read_json, place, {}):
            write_json(place, self.provenance())
        page = self.results / "report.html"
        report.write_report(self.results, page)
        print(f"\n{report.verdicts(ledger.read_all(self.results))}\n\nReport: {page}")
        names = map(name_of, paths)
        failed = [name for name in names if self.status[name]["state"] != "done"]
        for name in failed:
            state = self.status[name]
            print(f"FAILED {name}: {state['error']} (log: {self.results / state['log']})")
        return len(failed)

    def todo(self, paths: list[Path]) -> list[Path]:
        """The notebooks to run; why one is made again, and which are finished, is printed."""
        why = {
            path: unfinished(
                self.status, self.results, path, self.profile, self.change, adopted=self.adopt
            )
            for path in paths
        }
        some = any(why.values())
        # what the others come to stands in the ledger that the last ones read
        todo = [path for path in paths if self.adopt or why[path] or (some and needs(path).last)]
        for path in paths:
            name = name_of(path)
            if path not in todo:
                seconds = f"{self.status[name]['seconds']:.0f} s then"
                print(f"  {name}: finished before, its inputs unchanged ({seconds})")
            elif self.status.get(name, {}).get("state") == "done" and why[path]:
                print(f"  {why[path]}: it is made again")
        return todo

    def run(self, turns: list[tuple[list[Path], int]]) -> None:
        """Run the notebooks, group after group, so many of each at a time. The longest come first,
        so that none is left over at the end.
        """
        reference = provenance.of_reference(self.profile) or provenance.of_reference("quick")
        seconds = reference.get("notebook_seconds", {})
        for group, at_once in turns:
            waiting = sorted(group, key=lambda path: seconds.get(name_of(path), math.inf))
            share = max(1, environment.cores() // at_once)
            at_work: list[Iterator[bool]] = []
            while waiting or at_work:
                while waiting and len(at_work) < at_once:
                    at_work.append(self.execute(waiting.pop(), share))
                at_work = [notebook for notebook in at_work if next(notebook, False)]
                time.sleep(0.2)

    def execute(self, path: Path, share: int) -> Iterator[bool]:
        """Execute a notebook in a process of its own, which ends soon after this one does, and note
        what became of it. True again and again while it is at work; what it says is passed on.
        """
        name, start = name_of(path), time.monotonic()
        print(f"  {name}: started", flush=True)
        inputs = inputs_of(path, self.profile, self.change)
        output = self.results / "notebooks" / f"{name}.ipynb"
        log = self.results / "logs" / f"{name.replace('/', '--')}.log"
        progress, runs = log.with_suffix(".progress"), list_of_runs(self.results, name)
        for file in (output, log, runs):
            file.parent.mkdir(parents=True, exist_ok=True)
        runs.unlink(missing_ok=True)
        progress.write_text("")
        variables = self.variables(share) | {"CURLNB_NOTEBOOK": name, "CURLNB_LOG": str(progress)}
        line = [*PYTHON, "curlnb.companion.execute", str(path), str(output), self.profile]
        line.append(json.dumps(dict(self.change)))
        with open(log, "wb") as to:
            process = subprocess.Popen(
                line, env=variables, stdin=subprocess.DEVNULL, stdout=to, stderr=to
            )
        status = None
        with open(progress, encoding="utf-8", errors="replace") as lines:
            while status is None:
                status = process.poll()  # before the last lines are read
                for said in lines:
                    print(f"    {name} {printable(said.rstrip())}", flush=True)
                if status is None:
                    yield True
        error = ""
        if status:
            text = log.read_text(encoding="utf-8", errors="replace")
            _, known, why = f"\n{text}".rpartition("\nFAILED: ")
            error = printable(why) if known else f"its process ended with status {status}"
        seconds = round(time.monotonic() - start, 1)
        longest = max(seconds, self.status.get(name, {}).get("longest", 0.0))
        self.status[name] = {
            "state": "failed" if error else "done",
            "error": error,
            "seconds": seconds,
            "longest": longest,  # which trained its runs; later ones found them
            "cores": share,
            "log": str(log.relative_to(self.results)),
            "inputs": inputs,
            "left": files_of(self.results, name),
            "adopted": self.adopt,
        }
        write_json(self.results / "status.json", self.status)
        self.done += not error
        print(f"  {name}: " + (f"FAILED: {error}" if error else f"done in {seconds:.0f} s"))
        print(f"whole: {self.done} of {self.total} notebooks", flush=True)

    def variables(self, share: int) -> dict[str, str]:
        """The environment of a kernel with a share of the cores: the project's own Python, package
        and style, whatever the user's start-up files and search paths say.
        """
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        return kept | {
            "CURLNB_RESULTS": str(environment.results_folder()),
            "CURLNB_ADOPT": "1" if self.adopt else "0",
            "CURLNB_WORKERS": os.environ.get("CURLNB_WORKERS", str(share)),
            # A notebook's own tensors are small, and threads would wait for each other.
            "OMP_NUM_THREADS": str(environment.threads()),
            "PYTHONPATH": str(PACKAGE.parent),
            "IPYTHONDIR": self.scratch,
            "JUPYTER_DATA_DIR": self.scratch,
            "JUPYTER_PREFER_ENV_PATH": "1",
        }

    def provenance(self) -> dict[str, Any]:
        """What these results were made with."""
        cores = environment.cores()
        done = [state for state in self.status.values() if state["state"] == "done"]
        return {
            "profile": self.profile,
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "commit": provenance.commit(),
            "device": str(default_device()),
            "cores": cores,
            "machine": {name: value for name, value in provenance.machine().items() if value},
            "python": platform.python_version(),
            "notebooks": len(done),
            # one on half of the cores counts half
            "total_seconds": round(sum(x["seconds"] * x["cores"] for x in done) / cores, 1),
        }


def _turns(todo: Sequence[Path], jobs: int | None) -> list[tuple[list[Path], int]]:
    """The notebooks in groups that come one after the other, each with how many of it run at once,
    so that all cores are busy while one of them imports or draws.
    """
    # Two that train might not both find room on a GPU.
    alone_on_gpu = jobs is None and default_device().type != "cpu"
    groups: list[list[Path]] = [[], [], [], []]
    for path in todo:
        own = needs(path)
        turn = 3 if own.last else 2 if own.alone else int(alone_on_gpu and own.trains)
        groups[turn].append(path)
    together, *one_by_one = groups
    most = jobs or min(environment.cores(), MOST_AT_ONCE)
    turns = [(together, min(most, len(together))), *((group, 1) for group in one_by_one)]
    return [turn for turn in turns if turn[0]]
