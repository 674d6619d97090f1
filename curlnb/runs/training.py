"""Training, from its settings to the last step: optimiser, schedule, loop and exact resume.

An experiment gives `train` a network and a step, a function from a batch's indices to its loss.
"""

import bisect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from curlnb.choices import check_known
from curlnb.runs import devices, environment
from curlnb.runs.store import Run

OPTIMISERS = ("adam", "sgd")
MOMENTUM = 0.9  # of SGD, in the code released with MoCo and with contrastive multiview coding
DROP = 0.1  # by which the rate is multiplied at a milestone, there too

Step = Callable[[Tensor, float], tuple[Tensor, dict[str, Tensor]]]
"""From the indices [batch] of a batch's samples, and the share in [0, 1) of all steps that are
done, to the batch's loss and to scalars worth logging, all 0-dim, left on the device.
"""


class TrainingError(RuntimeError):
    """A run that cannot go on: its loss, or a gradient and with it a parameter, is no longer
    finite.
    """


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimisation:
    """How a network is trained. The optimiser is Adam unless an experiment says otherwise.

    epochs: passes over the data, 0 for no training; batch: samples per step; lr: the learning rate;
    weight_decay: torch's (L2), on all parameters.
    """

    epochs: int = 10
    batch: int = 256
    lr: float = 1e-3
    weight_decay: float = 1e-6


@dataclass(frozen=True)
class Accelerated(Optimisation):
    """The same, of a network that may be made faster.

    precision: one of `devices.PRECISIONS`; losses are computed in float32 in any case. compile:
    whether by torch.compile. Where the machine lacks either, the run goes on without it and says so
    in its notes.
    """

    precision: str = "float32"
    compile: bool = False

    def accelerate(self, function: Callable[..., Any], run: Run) -> Callable[..., Any]:
        """`function` under bf16 autocast and torch.compile where these settings ask for them and
        the machine has them; what was used is noted in the run.

        TF32 is set around the whole run (`devices.in_force`), so "tf32" changes nothing here. What
        is compiled on a GPU is replayed as CUDA graphs where CURLNB_CUDA_GRAPHS is 1: shapes are
        fixed, and the kernels are the same.
        """
        precision, compile, missing = devices.admitted(
            self.precision, self.compile and not environment.dry(), run.device
        )
        run.notes |= {"precision": precision, "compiled": compile}
        if missing:
            run.notes["fallback"] = missing
        if compile:
            graphs = run.device.type == "cuda" and environment.cuda_graphs()
            if graphs:
                run.notes["cuda_graphs"] = True
            mode = "reduce-overhead" if graphs else None
            function = torch.compile(function, dynamic=False, mode=mode)
        if precision != "bf16":
            return function

        def autocast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(run.device.type, torch.bfloat16):
                found = function(*args, **kwargs)
            torch.clear_autocast_cache()  # torch keeps it while the reader's own autocast lasts
            return found

        return autocast


def optimiser(
    model: nn.Module, settings: Optimisation, device: torch.device, name: str = "adam"
) -> Optimizer:
    """Optimiser for those parameters of the model that are trained. name: one of OPTIMISERS, else
    ValueError.
    """
    check_known("optimiser", name, OPTIMISERS)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lr, weight_decay, fused = settings.lr, settings.weight_decay, device.type != "mps"
    if name == "sgd":
        return torch.optim.SGD(
            trained, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM, fused=fused
        )
    return torch.optim.Adam(trained, lr=lr, weight_decay=weight_decay, fused=fused)


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


# --- the loop -------------------------------------------------------------------------------------


def train(
    run: Run,
    model: nn.Module,
    step: Step,
    settings: Optimisation,
    *,
    samples: int,
    seed: int,
    generator: torch.Generator,
    optimizer: str | Optimizer = "adam",
    cosine: bool = False,
    milestones: Sequence[float] = (),
    on_epoch: Callable[[int], Mapping[str, float]] | None = None,
    order_on: torch.device | None = None,
    checkpoint_seconds: float = 60.0,
) -> dict[str, list[float]]:
    """Train for `settings.epochs` passes over `samples` samples, shuffled by `seed`, in batches of
    `settings.batch`; a last short one is dropped.

    model: holds all state that is trained or tracked (momentum encoders and queues too), so that it
    is saved whole. generator: where `step` draws from; its state is saved, so that a resumed run
    draws what the uninterrupted one would. optimizer: one of OPTIMISERS, or the caller's own.
    cosine, milestones: as in `rate`. on_epoch(epoch) with epoch counted from 1 returns scalars to
    log, after each epoch. order_on: where `step` gets its indices, by default on the run's device.
    checkpoint_seconds: a checkpoint is written when that long has passed since the last, and at the
    end. A dry run takes two steps of one epoch. The loop itself waits for no device between steps.
    Returns the log, a list with one number per epoch for "loss" and for each scalar, empty after 0
    epochs. On the CPU a run that was killed and resumed returns the same bits. TrainingError, at an
    epoch's end or before a checkpoint, if a loss or gradient was not finite; ValueError for a batch
    above `samples`.
    """
    if isinstance(optimizer, str):
        optimizer = optimiser(model, settings, run.device, optimizer)
    steps, epochs, batch = samples // settings.batch, settings.epochs, settings.batch
    if environment.dry():
        steps, epochs = min(steps, 2), min(epochs, 1)
    if steps == 0:
        raise ValueError(
            f"a batch of {batch} is larger than the {samples} samples; use a smaller batch"
        )
    epoch, at, seconds_before = 0, 0, 0.0
    log: dict[str, list[float]] = {}
    so_far: dict[str, Tensor] = {}  # this epoch's scalars, a step each, left on the device
    saved = run.load_checkpoint()
    # another device draws other numbers: such a run begins again
    if saved and saved[1]["device"] == run.device.type:
        tensors, state = saved
        _restore(model, optimizer, generator, run.device, tensors, state)
        epoch, at, log = state["epoch"], state["step"], state["log"]
        seconds_before = state["seconds"]
        so_far = {
            name.removeprefix("log/"): t for name, t in tensors.items() if name.startswith("log/")
        }

    def save(now: float) -> None:
        tensors, state = _state(model, optimizer, generator, run.device)
        tensors |= {f"log/{name}": t for name, t in so_far.items()}
        state |= {"epoch": epoch, "step": at, "log": log, "device": run.device.type}
        run.save_checkpoint(tensors, state | {"seconds": seconds_before + now - start})

    start = last = time.monotonic()
    while epoch < epochs:
        model.train()
        order = torch.randperm(
            samples, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        ).to(order_on or run.device)
        while at < steps:
            done = (epoch + at / steps) / epochs
            if cosine or milestones:
                for group in optimizer.param_groups:
                    group["lr"] = rate(settings.lr, done, cosine=cosine, milestones=milestones)
            loss, scalars = step(order[at * batch : (at + 1) * batch], done)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            for name, value in {"loss": loss, **scalars}.items():
                if name not in so_far:
                    so_far[name] = torch.zeros(steps, device=run.device)
                so_far[name][at] = value.detach()
            at += 1
            now = time.monotonic()
            if now - last > checkpoint_seconds:
                last = now
                _check_finite(so_far["loss"][:at], epoch, steps, optimizer)
                save(now)
            run.progress(epoch + at / steps, epochs)
        _check_finite(so_far["loss"], epoch, steps, optimizer)
        for name, values in so_far.items():
            log.setdefault(name, []).append(values.mean().item())
        epoch, at, so_far = epoch + 1, 0, {}
        if on_epoch is not None:
            for name, measured in on_epoch(epoch).items():
                log.setdefault(name, []).append(measured)
        run.progress(epoch, epochs, loss=log["loss"][-1])
    run.curve = log
    # what follows, a long evaluation perhaps, must not cost the training when it is killed
    save(time.monotonic())
    return log


REMEDY = (
    "try a smaller learning rate, a larger temperature, a smaller beta, weight_clip='rescale', "
    "or precision='float32'"
)


def _check_finite(losses: Tensor, epoch: int, steps: int, optimizer: Optimizer) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        step, value = epoch * steps + int(bad[0]), losses[bad[0, 0]].item()
        lr = optimizer.param_groups[0]["lr"]
        raise TrainingError(
            f"the loss is {value} at step {step} (epoch {epoch + 1}), learning rate {lr:g}: "
            f"{REMEDY}"
        )
    # No step looks at its gradients. One that is not finite leaves NaN or infinity in its
    # parameter, and no later step takes that away.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not torch.stack([parameter.detach().isfinite().all() for parameter in parameters]).all():
        raise TrainingError(
            f"a gradient was not finite in epoch {epoch + 1}, though every loss was: {REMEDY}"
        )


# --- exact resume ---------------------------------------------------------------------------------


def _state(
    model: nn.Module, optimizer: Optimizer, generator: torch.Generator, device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that decides the rest of a run, as tensors and JSON."""
    tensors = {f"model/{name}": t for name, t in model.state_dict().items()}
    tensors |= {"generator": generator.get_state(), "random": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["random/cuda"] = torch.cuda.get_rng_state(device)
    scalars = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
            else:
                scalars[f"{index}/{name}"] = value
    return tensors, {"optimizer": scalars, "groups": optimizer.state_dict()["param_groups"]}


def _restore(
    model: nn.Module,
    optimizer: Optimizer,
    generator: torch.Generator,
    device: torch.device,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    def below(prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
        }

    model.load_state_dict(below("model/"))
    generator.set_state(tensors["generator"].cpu())
    torch.set_rng_state(tensors["random"].cpu())
    if "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"].cpu(), device)
    per_parameter: dict[int, dict[str, Any]] = {}
    for path, value in (below("optimizer/") | state["optimizer"]).items():
        index, name = path.split("/")
        per_parameter.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": per_parameter, "param_groups": state["groups"]})
    # a fused step pairs memory, not elements: give moments the parameter's layout
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[name] = torch.empty_like(parameter).copy_(value)
