"""Small experiments for the tests of the store, the sweep and the training loop; importable by
worker processes.
"""

import os
import signal as signals
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from curlnb.runs.devices import in_force
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Optimisation, train


@experiment
def regression(
    run: Run,
    *,
    seed: int,
    width: int = 16,
    epochs: int = 4,
    pause: float = 0.0,
    checkpoint_seconds: float = 0.0,
) -> dict:
    """Fit noisy inputs with dropout; its result depends on every random stream that a resume must
    restore.
    """
    data = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(
        nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    noise = torch.Generator().manual_seed(seed)

    def step(indices, _):
        time.sleep(pause)
        x = data[indices] + 0.1 * torch.randn(len(indices), 8, generator=noise)
        loss = (model(x).squeeze(1) - data[indices].sum(1)).square().mean()
        return loss, {"largest": x.max()}

    log = train(
        run,
        model,
        step,
        Optimisation(epochs, batch=32),
        samples=256,
        seed=seed,
        generator=noise,
        optimizer=optimizer,
        checkpoint_seconds=checkpoint_seconds,
    )
    run.arrays["weight"] = model[0].weight
    return {
        "loss": log["loss"][-1],
        "largest": log["largest"],
        "total": model[4].weight.sum().item(),
    }


@experiment
def counted(run: Run, *, seed: int, where: str, pause: float = 0.0) -> dict:
    """Leaves one line in `where` each time that it is really computed."""
    with open(where, "a") as file:
        file.write(f"{seed}\n")
    time.sleep(pause)
    return {"twice": 2 * seed}


@experiment
def fragile(run: Run, *, seed: int, mark: str) -> dict:
    """Dies like a process out of memory the first time, fails by an exception at seed 7."""
    if seed == 7:
        raise RuntimeError("seven will not do")
    if seed == 1 and not Path(mark).exists():
        Path(mark).touch()
        os._exit(137)
    return {"seed_squared": seed**2}


def double(x):
    return 2 * x


def half(x):
    return x / 2


@experiment
def given(run: Run, *, seed: int, own: object) -> dict:
    return {"value": 1.0}


@experiment
def dying(run: Run, *, seed: int, signal: str) -> dict:
    """Ends its process by a signal, as an instruction that the processor lacks does, or the
    out-of-memory killer.
    """
    os.kill(os.getpid(), getattr(signals, signal))
    return {}


@experiment
def traced(run: Run, *, seed: int, where: str, pause: float = 0.05, epochs: int = 10) -> dict:
    """A training that leaves "seed weight" in `where` at every step; the weight only grows, so a
    step done twice shows.
    """
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(indices, _):
        with open(where, "a") as file:
            file.write(f"{seed} {model.weight.item():.0f}\n")
        time.sleep(pause)
        return -model.weight.sum(), {}

    train(
        run,
        model,
        step,
        Optimisation(epochs, batch=2),
        samples=8,
        seed=seed,
        generator=torch.Generator(),
        optimizer=optimizer,
        checkpoint_seconds=0.0,
    )
    return {"weight": model.weight.item()}


@dataclass(frozen=True)
class Steps:
    where: str
    width: int = 4
    epochs: int = 2


def learn(run: Run, *, seed: int, steps: Steps) -> tuple[nn.Module, torch.Generator, dict]:
    """A training that `loss_of` and `weights_of` share: leaves a line in `where` at every step."""
    model, noise = nn.Linear(steps.width, 1), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(indices, _):
        with open(steps.where, "a") as file:
            file.write(f"{seed}\n")
        return model(torch.randn(len(indices), steps.width, generator=noise)).square().mean(), {}

    log = train(
        run,
        model,
        step,
        Optimisation(steps.epochs, batch=2),
        samples=8,
        seed=seed,
        generator=noise,
        optimizer=optimizer,
    )
    return model, noise, log


@experiment(training=learn)
def loss_of(run: Run, *, seed: int, steps: Steps) -> dict:
    _, noise, log = learn(run, seed=seed, steps=steps)
    return {"loss": log["loss"], "drawn_next": torch.rand(2, generator=noise).tolist()}


@experiment(training=learn)
def weights_of(run: Run, *, seed: int, steps: Steps, times: float = 1.0) -> dict:
    model, noise, _ = learn(run, seed=seed, steps=steps)
    return {
        "weights": (times * next(model.parameters())).flatten().tolist(),
        "drawn_next": torch.rand(2, generator=noise).tolist(),
    }


class Stopped(Exception):
    """A run that was stopped, as a kill would."""


@dataclass
class Fragile(Run):
    """A run that stops once it has written `after` checkpoints."""

    after: int = 0
    saves: int = 0

    def save_checkpoint(self, tensors, state):
        super().save_checkpoint(tensors, state)
        self.saves += 1
        if self.saves == self.after:
            raise Stopped


def stop(function, folder, parameters, seed, *, after):
    """Run the experiment in a folder until it has written `after` checkpoints."""
    run = Fragile(folder, after=after)
    with in_force(seed, "float32", run.device):
        try:
            function.call(run, function.parameters(parameters), seed)
        except Stopped:
            return
    raise AssertionError(f"the run ended before its checkpoint {after}")


def interrupt(store, function, parameters, seed, *, after):
    """The same in a store."""
    folder = store.folder(function.asked(parameters, seed))
    folder.mkdir(parents=True)
    stop(function, folder, parameters, seed, after=after)
