"""The two optimisers and three schedules of the learning rate that the papers' experiments use."""

import bisect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from curlnb.experiments.settings import Optimisation, check_known
from curlnb.runs.store import Run
from curlnb.runs.training import Step, train

OPTIMISERS = ("adam", "sgd")
MOMENTUM = 0.9  # of SGD, in the code released with MoCo and with contrastive multiview coding
DROP = 0.1  # by which the rate is multiplied at a milestone, there too


def optimiser(
    model: nn.Module, settings: Optimisation, device: torch.device, name: str = "adam"
) -> torch.optim.Optimizer:
    """Over those of model's parameters that are trained. name: one of OPTIMISERS. ValueError for
    another.
    """
    check_known("optimiser", name, OPTIMISERS)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lr, weight_decay, fused = settings.lr, settings.weight_decay, device.type != "mps"
    if name == "sgd":
        return torch.optim.SGD(
            trained, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM, fused=fused
        )
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
    optimizer: str | torch.optim.Optimizer = "adam",
    rates: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, list[float]]:
    """`training.train` by the settings. Returns its log.

    samples: how many there are; seed: orders them; generator: what `step` draws from. optimizer:
    one of OPTIMISERS, or the caller's own; rates: the schedule of its learning rate, by `rate`'s
    keywords; more: as `training.train`'s.
    """
    by = (
        optimiser(model, settings, run.device, optimizer)
        if isinstance(optimizer, str)
        else optimizer
    )

    def before_step(done: float) -> None:
        for group in by.param_groups:
            group["lr"] = rate(settings.lr, done, **rates or {})

    more |= {"before_step": before_step} if rates else {}
    steps: dict[str, Any] = {"samples": samples, "batch": settings.batch, "epochs": settings.epochs}
    return train(run, model, step, by, **steps, seed=seed, generator=generator, **more)


def rate(
    lr: float, done: float, *, cosine: bool = False, milestones: Sequence[float] = ()
) -> float:
    """The learning rate when the share `done` in [0, 1) of the training is over.

    cosine: down to 0 along half a cosine, at every step (the released MoCo code: once an epoch).
    milestones: shares of the training, rising, at each of which the rate falls to a tenth.
    """
    if list(milestones) != sorted(milestones) or any(not 0 <= at < 1 for at in milestones):
        raise ValueError(
            f"milestones are {list(milestones)}: shares of the training in [0, 1), rising"
        )
    return (
        lr
        * (0.5 * (1 + math.cos(math.pi * done)) if cosine else 1.0)
        * DROP ** bisect.bisect_right(list(milestones), done)
    )
