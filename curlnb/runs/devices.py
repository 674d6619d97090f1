"""What to compute on, in which precision, and the numerics that decide a run's last bits."""

import contextlib
import functools
import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import threadpoolctl
import torch

from curlnb.choices import check_known
from curlnb.runs import environment

PRECISIONS = ("float32", "tf32", "bf16")


def default_device() -> torch.device:
    """cuda, else cpu; `CURLNB_DEVICE` overrides. Not mps by itself: Apple's GPUs lack float64,
    which several experiments measure in.
    """
    named = environment.setting("CURLNB_DEVICE")
    return torch.device(named or ("cuda" if torch.cuda.is_available() else "cpu"))


def check_environment() -> None:
    """Refuse an unknown CURLNB_* variable and an invalid number, switch or device (ValueError);
    make paths absolute, with ~ expanded.

    Also refuse to start in one checkout with the package of another, as a copied .venv would,
    unless CURLNB_HOME says which of them is meant.
    """
    here, own = environment.around(), environment.FOUND
    if here and not here.samefile(own) and not environment.setting("CURLNB_HOME"):
        raise ValueError(
            f"this is started in the checkout {here}, and curlnb is that of {own}: "
            f"run `make setup` in {here} and restart the kernel"
        )
    given = environment.given().keys()
    if unknown := given - environment.VARIABLES:
        known = ", ".join(environment.VARIABLES)
        raise ValueError(f"{min(unknown)} is no setting; there are {known}")
    for name in given & environment.PATHS:
        if path := os.environ[name]:
            os.environ[name] = str(Path(path).expanduser().absolute())
    if not environment.home().is_dir():
        raise ValueError(f"CURLNB_HOME={str(environment.home())!r} is no folder")
    for name in given & environment.SWITCHES:
        if os.environ[name] not in ("", "0", "1"):
            raise ValueError(f"{name} is {os.environ[name]!r}: it must be 0 or 1")
    environment.threads()
    environment.workers()
    if named := environment.setting("CURLNB_DEVICE"):
        check_known("CURLNB_DEVICE", named.partition(":")[0], ("cpu", "cuda", "mps"))
    device = default_device()
    count = getattr(torch, device.type).device_count()
    if (device.index or 0) >= count:
        raise ValueError(
            f"CURLNB_DEVICE={str(device)!r} is not on this machine, which has {count} of that kind"
        )


@functools.cache
def fast_bf16(device_type: str) -> bool:
    """Whether bfloat16 arithmetic is native, so that autocast gains time."""
    if device_type == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device_type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


@functools.cache
def compiler() -> str | None:
    """The C++ compiler that torch.compile would use on the CPU, or None."""
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return None
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    return next(filter(None, map(shutil.which, names)), None)


def admitted(precision: str, compile: bool, device: torch.device) -> tuple[str, bool, str]:
    """(precision, compile, why not as asked): falls back to eager float32 where the machine lacks
    what it takes.

    precision: one of PRECISIONS. "float32" is that on every device; "tf32" stores float32 and
    rounds the factors of matrix products and convolutions to 10 bits, on NVIDIA GPUs since Ampere;
    "bf16" is autocast to bfloat16, and true float32 where autocast leaves it.
    """
    check_known("precision", precision, PRECISIONS)
    missing: list[str] = []
    if precision == "bf16" and not fast_bf16(device.type):
        missing.append(f"no fast bfloat16 on this {device.type}")
    if precision == "tf32" and not (
        device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    ):
        missing.append(f"no TF32 on this {device.type}")
    if missing:
        precision = "float32"
    if compile and (device.type == "mps" or compiler() is None):
        compile = False
        missing.append(
            "no torch.compile on this mps"
            if device.type == "mps"
            else "no C++ compiler with Python headers for torch.compile"
        )
    return precision, compile, "; ".join(missing)


def numerics(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a run's bits beside code, parameters, seed and data: it is part of the run's
    key.

    The device's type, the precision really in force on this machine, whether matrix units round to
    TF32, whether the step is compiled, CPU threads, and torch's version.
    """
    device = default_device()
    precision, compiled, _ = admitted(
        parameters.get("precision", "float32"),
        bool(parameters.get("compile", False)) and not environment.dry(),
        device,
    )
    return {
        "device": device.type,
        "precision": precision,
        "tf32": precision == "tf32",
        "compiled": compiled,
        "threads": environment.threads() if device.type == "cpu" else None,
        "ranks": 1,  # processes that share a batch: none do, and keys of older runs hold it
        "torch": torch.__version__.split("+")[0],
    }


def other_numerics(made: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What of a record's numerics `made` differs from those that the same run would have here, as
    in ["threads 4", "torch 2.9.0"].
    """
    return [
        f"{name} {made.get(name)}"
        for name in {**made, **here}
        if made and made.get(name) != here.get(name)
    ]


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[int]:
    """Compute with `count` CPU threads inside the block, or with as many as before where it is
    None.

    Sums depend in their last bits on how threads share them: a fixed count gives a run the same
    bits on two cores and on sixteen, and runs side by side use the cores better than threads do.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        with threadpoolctl.threadpool_limits(count):  # numpy's and scikit-learn's threads
            yield count or before
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def in_force(seed: int, precision: str, device: torch.device) -> Iterator[int]:
    """Compute inside the block with a run's seed and numerics, whatever the caller has set, and
    afterwards restore what the caller had, random numbers included. Yields the number of CPU
    threads.

    A run is computed without autocast, with gradients, in float32 by default, on the CPU by
    default, with oneDNN, and with TF32 only where the precision in force is "tf32" (see
    `admitted`): torch's own default lets cuDNN's convolutions take TF32 and matrix products not.
    Of cuDNN's algorithms only those are taken that give the same bits each time.
    """
    tf32 = admitted(precision, False, device)[0] == "tf32"
    gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # gradients, too
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.random.fork_rng(gpus, device_type="cuda"))
        threads = environment.threads() if device.type == "cpu" else None
        count = stack.enter_context(cpu_threads(threads))
        for kind in {"cpu", device.type}:
            stack.callback(torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind))
            torch.set_autocast_enabled(kind, False)
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        stack.enter_context(rounding("tf32" if tf32 else "ieee"))
        torch.manual_seed(seed)  # of initial weights and dropout; all else draws from generators
        yield count


@contextlib.contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Compute inside the block with oneDNN, and with float32 as `precision` says, "ieee" or "tf32".

    torch has older switches and newer ones, and refuses to read an older one after a newer one was
    set; such an older one is left as the newer ones are.
    """
    backends: Any = torch.backends
    oneDNN, cuDNN = backends.mkldnn, backends.cudnn
    newer = (oneDNN.matmul, oneDNN.conv, oneDNN.rnn, backends.cuda.matmul, cuDNN.conv, cuDNN.rnn)
    with contextlib.ExitStack() as stack:

        def restore(part: Any, name: str) -> None:
            stack.callback(setattr, part, name, getattr(part, name))

        restore(oneDNN, "enabled")
        for part in newer:
            restore(part, "fp32_precision")
        with contextlib.suppress(RuntimeError):
            before = torch.get_float32_matmul_precision()
            stack.callback(torch.set_float32_matmul_precision, before)
        with contextlib.suppress(RuntimeError):
            restore(cuDNN, "allow_tf32")
        restore(cuDNN, "deterministic")
        restore(cuDNN, "benchmark")
        oneDNN.enabled = cuDNN.deterministic = True
        cuDNN.benchmark = False
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        cuDNN.allow_tf32 = precision == "tf32"
        oneDNN.conv.fp32_precision = oneDNN.rnn.fp32_precision = "ieee"
        cuDNN.conv.fp32_precision = cuDNN.rnn.fp32_precision = precision
        yield
