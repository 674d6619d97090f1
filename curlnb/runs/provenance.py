"""Where a number comes from: the machine and the commit."""

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from curlnb.runs.environment import home, reference_folder
from curlnb.runs.files import read_json


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
    text = about.read_text() if about.exists() else ""
    found = dict(re.findall(r"(.+?)[ \t]*:(.*)", text))
    names = ("model name", "cpu family", "model", "stepping", "CPU part")
    said = " ".join(found.get(name, "").strip() for name in names).strip()
    return said or platform.processor() or platform.machine()


def of_reference(profile: str) -> dict[str, Any]:
    """Date, commit, machine and times of a profile's committed reference; empty where there is
    none.
    """
    return read_json(reference_folder() / profile / "provenance.json")


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
