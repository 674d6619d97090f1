"""Where a number comes from: the numerics that decide its last bits, the machine, the commit."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from curlnb.runs import devices
from curlnb.runs.environment import WITHOUT_TILES, dry, home, reference_folder, threads
from curlnb.runs.files import json_if_there


def numerics(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a run's bits beside code, parameters, seed and data: it is part of the run's
    key.

    The device's type, the precision really in force on this machine, whether matrix units round to
    TF32, whether the step is compiled, CPU threads, torch's version, and the processor's
    instructions where ONEDNN_MAX_CPU_ISA names others than this project does.
    """
    device = devices.default_device()
    precision, compiled, _ = devices.admitted(
        parameters.get("precision", "float32"),
        bool(parameters.get("compile", False)) and not dry(),
        device,
    )
    instructions = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    others = (
        {"instructions": instructions}
        if device.type == "cpu" and instructions != WITHOUT_TILES
        else {}
    )
    return {
        **others,
        "device": device.type,
        "precision": precision,
        "tf32": device.type == "cuda" and precision == "tf32",
        "compiled": compiled,
        "threads": threads() if device.type == "cpu" else None,
        "ranks": 1,  # processes that share a batch: none do, and keys of older runs hold it
        "torch": torch.__version__.split("+")[0],
    }


def other_numerics(made: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """What of a record's numerics `made` differs from those that the same run would have here, as
    in ["threads 4", "torch 2.9.0"].
    """
    here = numerics(parameters)
    return [
        f"{name} {made.get(name, 'of this project')}"
        for name in {**made, **here}
        if made and made.get(name) != here.get(name)
    ]


@functools.cache
def machine() -> dict[str, str]:
    """Hardware and versions that decide whether two runs can agree bit for bit."""
    versions = {
        name: importlib.metadata.version(name)
        for name in ("torch", "torchvision", "numpy", "scikit-learn")
    }
    return {
        "cpu": _cpu_name(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        **versions,
    }


def _cpu_name() -> str:
    about = Path("/proc/cpuinfo")
    if about.exists():
        pairs = [line.partition(":") for line in about.read_text().splitlines()]
        fields = {name.strip(): value.strip() for name, _, value in reversed(pairs)}
        names = ("model name", "cpu family", "model", "stepping", "CPU part")
        return " ".join(fields.get(name, "") for name in names).strip()
    with contextlib.suppress(OSError):  # macOS; platform.processor() says only "arm" there
        line = ["sysctl", "-n", "machdep.cpu.brand_string"]
        if name := subprocess.run(line, capture_output=True, text=True).stdout.strip():
            return name
    return platform.processor() or platform.machine()


def of_reference(profile: str) -> dict[str, Any]:
    """Date, commit, machine and times of a profile's committed reference; empty where there is
    none.
    """
    return json_if_there(reference_folder() / profile / "provenance.json")


@functools.cache
def commit() -> str:
    """The checkout's commit, with a plus where files differ from it; empty where there is none."""
    return git("describe", "--always", "--dirty=+", "--abbrev=12")


def git(*words: str) -> str:
    """What a git command prints of the checkout; empty where it fails, as outside a git checkout.

    The checkout may be another user's, in a container for example, and GIT_DIR may name another
    repository: neither is to change what is read.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    line = ["git", "-c", f"safe.directory={home().resolve()}", *words]
    try:
        answer = subprocess.run(line, cwd=home(), env=own, capture_output=True, text=True)
    except OSError:
        return ""
    return "" if answer.returncode else answer.stdout.strip()
