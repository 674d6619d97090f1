"""The two optimisers and three schedules of the learning rate that the papers' experiments use."""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from curlnb.experiments.settings import Optimisation, check_known
from curlnb.runs.store import Run
from curlnb.runs.training import Step, train

OPTIMISERS = ("adam", "sgd")
MOMENTUM = 0.9  # of SGD, in the code released with MoCo and with contrastive multiview coding
DROP = 0.1  # by which the rate is multiplied at a milestone, there too


def optimiser(model: nn.Module, settings: Optimisation, device: torch.device, name: str = "adam") -> torch.optim.Optimizer:
    """Over those of model's parameters that are trained. name: one of OPTIMISERS. ValueError for another."""
    check_known("optimiser", name, OPTIMISERS)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lr, weight_decay, fused = settings.lr, settings.weight_decay, device.type != "mps"
    if name == "sgd":
        return torch.optim.SGD(trained, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM, fused=fused)
    return torch.optim.Adam(trained, lr=lr, weight_decay=weight_decay, fused=fused)


def train_by(
    settings: Optimisation,
    run: Run,
    model: nn.Module,
    step: Step,
    *,
    samples: int,
    seed: int,
    generator: torch.Generator,
    optimizer: torch.optim.Optimizer | None = None,
    **more: Any,
) -> dict[str, list[float]]:
    """`training.train` by the settings; optimizer: Adam, unless the caller made one; `more` as there. Returns its log.

    samples: how many there are; seed: orders them; generator: what `step` draws from.
    """
    optimizer = optimizer or optimiser(model, settings, run.device)
    steps: dict[str, Any] = {"samples": samples, "batch": settings.batch, "epochs": settings.epochs}
    return train(run, model, step, optimizer, **steps, seed=seed, generator=generator, **more)


def scheduler(
    optimizer: torch.optim.Optimizer, lr: float, *, cosine: bool = False, milestones: Sequence[float] = ()
) -> Callable[[float], None]:
    """`training.train`'s before_step that sets the learning rate to `rate`."""

    def before_step(done: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate(lr, done, cosine=cosine, milestones=milestones)

    return before_step


def rate(lr: float, done: float, *, cosine: bool = False, milestones: Sequence[float] = ()) -> float:
    """The learning rate when the share `done` in [0, 1) of the training is over.

    cosine: down to 0 along half a cosine, at every step (the released MoCo code: once an epoch). milestones: shares of the training,
    rising, at each of which the rate falls to a tenth.
    """
    if list(milestones) != sorted(milestones) or any(not 0 <= at < 1 for at in milestones):
        raise ValueError(f"milestones are {list(milestones)}: shares of the training in [0, 1), rising")
    return lr * (0.5 * (1 + math.cos(math.pi * done)) if cosine else 1.0) * DROP ** bisect.bisect_right(list(milestones), done)
