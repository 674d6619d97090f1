"""Kill a reproduction again and again, and look at what it leaves: `python tools/kill_campaign.py
--kills 100`.

A checkout of its own is made in a temporary folder, with three small notebooks: exact theory that
saves a table, a sweep on two worker processes, and two experiments that share one training. `curlnb
reproduce` runs there once undisturbed. Then it is run while SIGKILL strikes at random moments its
own process, a kernel or a worker; after each strike at the command the same command is started
again. When it is done, its runs' metrics and its tables must be those of the undisturbed one; then
all is removed and the next round begins, until there were enough kills. Five seconds after each
kill of the command there must be no process left, no lock held and no file half written.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import nbformat
import psutil
from filelock import FileLock, Timeout
from safetensors import safe_open

from curlnb.runs import files

ORPHAN_SECONDS = 5.0
LONGEST_WAIT = 10.0  # seconds before a strike: a small reproduction takes about twenty
NAMES = ("theory", "sweep", "shared")
TARGETS = ("command", "kernel", "worker")

THEORY = """
import pandas as pd
from curlnb.companion import notebook
from curlnb.evaluation.accuracy import average_accuracy
import torch
settings = notebook.settings("theory", profile, quick=dict(classes=10))
scores = torch.eye(settings.classes).double()
rows = [dict(k=k, accuracy=average_accuracy(scores, torch.arange(settings.classes), k)) for k in range(2, 6)]
notebook.save_table(settings, pd.DataFrame(rows), "accuracy")
"""
SWEEP = """
from campaign_runs import regression
from curlnb.companion import notebook
from curlnb.runs.sweep import sweep
settings = notebook.settings("sweep", profile, quick=dict(width=[8, 16], seeds=3))
runs = sweep(regression, dict(width=settings.width), seeds=settings.seeds, store=settings.store, workers=WORKERS, pause=PAUSE)
notebook.save_table(settings, runs[["width", "seed", "loss"]], "losses")
"""
SHARED = """
from campaign_runs import loss_of, weights_of
from curlnb.companion import notebook
from curlnb.runs.sweep import sweep
settings = notebook.settings("shared", profile, quick=dict(seeds=2))
for experiment in (loss_of, weights_of):
    runs = sweep(experiment, seeds=settings.seeds, store=settings.store, workers=0, pause=PAUSE)
    notebook.save_table(settings, runs[["seed", "value"]], experiment.function.__name__)
"""
RUNS = '''
"""The campaign's experiments: quick to compute, and with every random stream that a resumed run must restore."""

import time

import torch
from torch import nn

from curlnb.runs.experiment import experiment
from curlnb.runs.training import Optimisation, train


def fit(run, *, seed, width=8, pause=0.02):
    data = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1))
    noise = torch.Generator().manual_seed(seed)

    def step(indices, _):
        time.sleep(pause)
        x = data[indices] + 0.1 * torch.randn(len(indices), 8, generator=noise)
        return (model(x).squeeze(1) - data[indices].sum(1)).square().mean(), {}

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    log = train(
        run, model, step, Optimisation(epochs=4, batch=32), samples=128, seed=seed,
        generator=noise, optimizer=optimizer, checkpoint_seconds=0.05,
    )
    run.arrays["weight"] = model[0].weight
    return model, log


@experiment
def regression(run, *, seed, width=8, pause=0.02):
    return {"loss": fit(run, seed=seed, width=width, pause=pause)[1]["loss"][-1]}


@experiment(training=fit)
def loss_of(run, *, seed, width=8, pause=0.02):
    return {"value": fit(run, seed=seed, width=width, pause=pause)[1]["loss"][-1]}


@experiment(training=fit)
def weights_of(run, *, seed, width=8, pause=0.02):
    return {"value": fit(run, seed=seed, width=width, pause=pause)[0][4].weight.sum().item()}
'''


class Broken(AssertionError):
    """What a kill must not do, and did."""


class Campaign:
    """The checkout, the commands that run in it, and what is asserted of them."""

    def __init__(
        self, root: Path, names: tuple[str, ...], pause: float, workers: int, seed: int
    ) -> None:
        self.root, self.chance, self.kills = root, random.Random(seed), Counter[str]()
        self.line = [sys.executable, "-m", "curlnb", "reproduce"]
        for name, code in {"theory": THEORY, "sweep": SWEEP, "shared": SHARED}.items():
            if name in names:
                self._write(
                    root / "notebooks" / f"{name}.ipynb",
                    code.replace("PAUSE", str(pause)).replace("WORKERS", str(workers)),
                )
        (root / "campaign_runs.py").write_text(RUNS)

    @staticmethod
    def _write(path: Path, code: str) -> None:
        parameters = nbformat.v4.new_code_cell(
            'profile = "quick"\nseed = 0', metadata={"tags": ["parameters"]}
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(
            nbformat.v4.new_notebook(cells=[parameters, nbformat.v4.new_code_cell(code)]), path
        )

    @property
    def results(self) -> Path:
        return self.root / "results" / "quick"

    def start(self) -> subprocess.Popen[bytes]:
        package = Path(files.__file__).parents[2]
        own = {
            "CURLNB_HOME": str(self.root),
            "CURLNB_RESULTS": str(self.root / "results"),
            "CURLNB_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(package), str(self.root), os.environ.get("PYTHONPATH", "")]
            ),
        }
        with open(self.root / "output.txt", "ab") as output:
            own = {**os.environ, **own}
            return subprocess.Popen(
                self.line,
                env=own,
                cwd=self.root,
                start_new_session=True,
                stdout=output,
                stderr=output,
            )

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Everything that works for this checkout, by what it is."""
        found: dict[str, list[psutil.Process]] = {target: [] for target in (*TARGETS, "other")}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE or process.environ().get(
                    "CURLNB_HOME"
                ) != str(self.root):
                    continue
                line = " ".join(process.cmdline())
                kinds = {
                    "ipykernel_launcher": "kernel",
                    "spawn_main": "worker",
                    "curlnb reproduce": "command",
                }
                kind = next((kind for word, kind in kinds.items() if word in line), "other")
                if (
                    "forkserver" in line
                    and (parent := process.parent())
                    and "forkserver" in " ".join(parent.cmdline())
                ):
                    kind = "worker"  # a fork of the process that only starts others
                found[kind].append(process)
        return found

    def outcome(self) -> dict[str, object]:
        """The metrics of all runs, and the tables."""
        runs = {}
        for path in sorted((self.results / "runs").glob("*/*/run.json")):
            record = json.loads(path.read_text())
            runs[f"{record['experiment']} {record['parameters']} {record['seed']}"] = record[
                "metrics"
            ]
        return {
            **runs,
            **{
                path.name: path.read_text()
                for path in sorted((self.results / "tables").glob("*.csv"))
            },
        }

    def check_left(self) -> None:
        """After a kill of the command: no orphan, nothing half written, no lock held."""
        until = time.monotonic() + ORPHAN_SECONDS
        while any(left := self.processes().values()):
            if time.monotonic() > until:
                raise Broken(
                    f"still there after {ORPHAN_SECONDS:g} s: {[p.cmdline() for group in left for p in group]}"
                )
            time.sleep(0.1)
        for path in self.results.rglob("*"):
            if path.name.startswith(".") or not path.is_file():
                continue
            if path.suffix in (".json", ".ipynb"):
                json.loads(path.read_text())
            elif path.suffix == ".safetensors":
                with safe_open(path, framework="pt") as file:
                    file.metadata()
            elif path.name == "lock" or path.suffix == ".lock":
                # a process that is dying loses its environment, by which it is known here, before
                # its locks
                try:
                    with FileLock(path, timeout=max(0.0, until - time.monotonic())):
                        pass
                except Timeout:
                    raise Broken(f"{path} is held by nobody that lives") from None

    def strike(self) -> str:
        """SIGKILL one process at a random moment; what it was, or the empty string where the
        command had ended before.
        """
        time.sleep(self.chance.uniform(0, LONGEST_WAIT))
        there = self.processes()
        if not there["command"]:
            return ""
        target, process = self.chance.choice(
            [(kind, process) for kind in TARGETS for process in there[kind]]
        )
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            self.kills[target] += 1
        return target

    def round(self, kills: int) -> None:
        """One reproduction from nothing to its end, struck up to `kills` times."""
        shutil.rmtree(self.root / "results", ignore_errors=True)
        process, before = self.start(), sum(self.kills.values())
        while True:
            struck = self.strike() if sum(self.kills.values()) - before < kills else ""
            if struck == "command":
                process.wait()
                self.check_left()
                process = self.start()
            elif not struck:
                if process.wait() == 0:
                    break
                process = (
                    self.start()
                )  # a notebook whose kernel was killed has failed: the same command goes on
        self.check_left()

    def run(self, kills: int) -> str:
        self.round(0)
        expected = self.outcome()
        while (left := kills - sum(self.kills.values())) > 0:
            self.round(min(left, 12))
            if (found := self.outcome()) != expected:
                wrong = [
                    name for name in {**found, **expected} if found.get(name) != expected.get(name)
                ]
                raise Broken(f"not what the undisturbed run gives: {wrong}")
            if leftovers := list(self.results.rglob("*.part")):
                raise Broken(f"left over: {leftovers}")
            if damaged := list(self.results.rglob("*.damaged*")):
                raise Broken(f"a kill damaged a file: {damaged}")
            print(
                f"{sum(self.kills.values())} kills: {dict(self.kills)}; the metrics are those of the undisturbed run",
                flush=True,
            )
        if "Traceback" in (text := (self.root / "output.txt").read_text(errors="replace")):
            raise Broken(f"a traceback: {text[text.index('Traceback') :][:2000]}")
        return f"{sum(self.kills.values())} kills ({', '.join(f'{n} of a {kind}' for kind, n in self.kills.items())}): nothing lost"

    def end(self) -> None:
        """End what still works in the checkout."""
        for group in self.processes().values():
            for process in group:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)


def campaign(
    kills: int,
    *,
    names: tuple[str, ...] = ("theory", "sweep", "shared"),
    pause: float = 0.1,
    workers: int = 2,
    seed: int = 0,
) -> str:
    """Run a campaign in a temporary folder; what it found, in a line. Raises Broken or another
    error where a promise is broken.
    """
    with tempfile.TemporaryDirectory() as folder:
        it = Campaign(Path(folder).resolve(), names, pause, workers, seed)
        try:
            return it.run(kills)
        finally:
            it.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the targets")
    given = parser.parse_args()
    print(campaign(given.kills, seed=given.seed))
