"""One training loop for every family: a step function that returns a loss is its only variable
part.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from curlnb.runs import devices, distributed, environment
from curlnb.runs.store import Run

Step = Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]
"""From the indices [batch] of a batch's samples to its loss and to scalars worth logging, all
0-dim, left on the device.
"""


class TrainingError(RuntimeError):
    """A run that cannot go on: its loss, or a gradient and with it a parameter, is no longer
    finite.
    """


def accelerated(
    function: Callable[..., Any], run: Run, *, precision: str, compile: bool
) -> Callable[..., Any]:
    """`function` under bf16 autocast and torch.compile where asked for and where the machine can;
    what was used is noted in the run.

    precision: one of `devices.PRECISIONS`; TF32 is set around the whole run
    (`devices.numeric_mode`), so "tf32" changes nothing here. Losses compute in float32 in any case
    (see `losses`). What is compiled on a GPU is replayed as CUDA graphs where CURLNB_CUDA_GRAPHS is
    1: shapes are fixed, and the kernels are the same.
    """
    precision, compile, missing = devices.admitted(
        precision, compile and not environment.dry(), run.device
    )
    run.notes.update(
        precision=precision, compiled=compile, **({"fallback": missing} if missing else {})
    )
    graphs = compile and run.device.type == "cuda" and environment.cuda_graphs()
    run.notes.update({"cuda_graphs": True} if graphs else {})
    compiled = (
        torch.compile(function, dynamic=False, mode="reduce-overhead" if graphs else None)
        if compile
        else function
    )
    if precision != "bf16":
        return compiled

    def autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(run.device.type, torch.bfloat16):
            return compiled(*args, **kwargs)

    return autocast


def train(
    run: Run,
    model: nn.Module,
    step: Step,
    optimizer: Optimizer,
    *,
    samples: int,
    batch: int,
    epochs: int,
    seed: int,
    generator: torch.Generator,
    before_step: Callable[[float], None] | None = None,
    on_epoch: Callable[[int], Mapping[str, float]] | None = None,
    checkpoint_seconds: float = 60.0,
    order_on: torch.device | None = None,
) -> dict[str, list[float]]:
    """Train for `epochs` passes over `samples` samples in shuffled batches of `batch`, the last
    short one dropped.

    model: holds all state that is trained or tracked (momentum encoders and queues too), so that it
    is saved whole. generator: where `step` draws from; its state is saved, so that a resumed run
    draws what the uninterrupted one would. before_step(done) is told the share of all steps that
    are done, in [0, 1), for schedules: also by a resumed run. on_epoch(epoch) with epoch counted
    from 1 returns scalars to log, after each epoch. checkpoint_seconds: a checkpoint is written
    when that long has passed since the last, and at the end. A dry run takes two steps of one
    epoch.
    order_on: where `step` gets its indices, by default on the run's device. The loop itself waits
    for no device between steps. Returns the log, a list with one number an epoch for "loss" and for
    each scalar. On the CPU a run that was killed and resumed returns the same bits. Raises
    TrainingError at the end of the epoch in which a loss or a gradient is not finite, and before
    each checkpoint.
    """
    steps = samples // batch
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
    distributed.wait()
    if (
        saved and saved[1]["device"] == run.device.type
    ):  # another device draws other numbers: begin again
        tensors, state = saved
        _restore(model, optimizer, generator, run.device, tensors, state)
        epoch, at, log, seconds_before = (
            state["epoch"],
            state["step"],
            state["log"],
            state["seconds"],
        )
        so_far = {
            name.removeprefix("log/"): t for name, t in tensors.items() if name.startswith("log/")
        }

    def save(now: float) -> None:
        tensors, state = _state(model, optimizer, generator, run.device)
        tensors |= {f"log/{name}": t for name, t in so_far.items()}
        place = {
            "epoch": epoch,
            "step": at,
            "log": log,
            "seconds": seconds_before + now - start,
            "device": run.device.type,
        }
        run.save_checkpoint(tensors, state | place)

    start = last = time.monotonic()
    while epoch < epochs:
        model.train()
        order = torch.randperm(
            samples, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        ).to(order_on or run.device)
        while at < steps:
            if before_step is not None:
                before_step((epoch + at / steps) / epochs)
            loss, scalars = step(order[at * batch : (at + 1) * batch])
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
    save(
        time.monotonic()
    )  # what follows, a long evaluation say, need not cost the training when it is killed
    return log


REMEDY = "try a smaller learning rate, a larger temperature, a smaller beta, weight_clip='rescale', or precision='float32'"


def _check_finite(losses: Tensor, epoch: int, steps: int, optimizer: Optimizer) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        step, rate = epoch * steps + int(bad[0]), optimizer.param_groups[0]["lr"]
        raise TrainingError(
            f"the loss is {losses[bad[0, 0]].item()} at step {step} (epoch {epoch + 1}), learning rate {rate:g}: {REMEDY}"
        )
    # No step looks at its gradients. One that is not finite leaves NaN or infinity in its
    # parameter, and no later step takes that away.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not torch.stack([parameter.detach().isfinite().all() for parameter in parameters]).all():
        raise TrainingError(
            f"a gradient was not finite in epoch {epoch + 1}, though every loss was: {REMEDY}"
        )


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
    model.load_state_dict(
        {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
    )
    generator.set_state(tensors["generator"].cpu())
    torch.set_rng_state(tensors["random"].cpu())
    if "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"].cpu(), device)
    saved = {
        name.removeprefix("optimizer/"): t
        for name, t in tensors.items()
        if name.startswith("optimizer/")
    } | state["optimizer"]
    per_parameter: dict[int, dict[str, Any]] = {}
    for path, value in saved.items():
        index, name = path.split("/")
        per_parameter.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": per_parameter, "param_groups": state["groups"]})
    for (
        parameter,
        values,
    ) in (
        optimizer.state.items()
    ):  # a fused step pairs memory, not elements: give moments the parameter's layout
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[name] = torch.empty_like(parameter).copy_(value)
