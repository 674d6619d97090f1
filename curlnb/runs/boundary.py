"""What is refused before work starts: settings of the environment and parameters of a run that are
of the wrong kind or out of range.

Each refusal is a ValueError in one line, which names the setting and says what would do.
"""

import difflib
import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from curlnb.runs import environment
from curlnb.runs.devices import default_device

# --- the environment ------------------------------------------------------------------------------


def check_environment() -> None:
    """Look at every CURLNB_* variable, and give the paths among them their full length: ~ is the
    home folder there, too.
    """
    for name in sorted(os.environ):
        if name.startswith("CURLNB_") and name not in environment.VARIABLES:
            near = difflib.get_close_matches(name, environment.VARIABLES, 1)
            raise ValueError(
                f"{name} is no setting"
                + (f"; {near[0]} is" if near else f"; those are {', '.join(environment.VARIABLES)}")
            )
    for name, check in _CHECKS.items():
        if value := os.environ.get(name):
            check(name, value)
    environment.threads()
    environment.workers()


def _one_of(*known: str) -> Callable[[str, str], None]:
    def check(name: str, value: str) -> None:
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; use {' or '.join(known)}")

    return check


def _whole_path(name: str, value: str) -> Path:
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"{name}={value!r} names the home folder of nobody here") from None
    os.environ[name] = str(path)
    return path


def _folder(name: str, value: str) -> None:
    """A folder, or a place where one can be made."""
    path = _whole_path(name, value)
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not there.is_dir():
        raise ValueError(f"{name}={value!r} is no place for a folder: {there} is a file")


def _present_folder(name: str, value: str) -> None:
    if not _whole_path(name, value).is_dir():
        raise ValueError(f"{name}={value!r} is no folder")


def _file(name: str, value: str) -> None:
    path = _whole_path(name, value)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{name}={value!r} is no place for a file")


def _scheduler(name: str, value: str) -> None:
    if not value.endswith(".json") and not re.fullmatch(r"\w+://\S+:\d+", value):
        raise ValueError(
            f"{name}={value!r} is no scheduler; use its address, tcp://host:8786, or its file, which ends in .json"
        )


def _notebook(name: str, value: str) -> None:
    if not value.isprintable() or value.startswith("/") or ".." in Path(value).parts:
        raise ValueError(
            f"{name}={value!r} is no notebook; give its path below notebooks/ without the ending"
        )


def _device(name: str, value: str) -> None:
    device = default_device()
    count = {
        "cpu": 1,
        "mps": int(torch.backends.mps.is_available()),
        "cuda": torch.cuda.device_count(),
    }.get(device.type)
    if count is None:
        raise ValueError(
            f"{name}={value!r} is no device that runs are made for; use cuda, cuda:1, mps or cpu"
        )
    if int(value.partition(":")[2] or 0) >= count:  # torch keeps an index in a byte
        raise ValueError(f"{name}={value!r} is not on this machine, which has {count} of that kind")


_switch = _one_of("0", "1")
_CHECKS: dict[str, Callable[[str, str], None]] = {
    "CURLNB_HOME": _present_folder,
    "CURLNB_DATA": _folder,
    "CURLNB_RESULTS": _folder,
    "CURLNB_LOG": _file,
    "CURLNB_NOTEBOOK": _notebook,
    "CURLNB_ADOPT": _one_of("0", "1", "any"),
    "CURLNB_REFERENCE": _switch,
    "CURLNB_DRY": _switch,
    "CURLNB_DEBUG": _switch,
    "CURLNB_CUDA_GRAPHS": _switch,
    "CURLNB_SCHEDULER": _scheduler,
    "CURLNB_DEVICE": _device,
}

# --- a run ----------------------------------------------------------------------------------------

MOST = 2**31 - 1  # of any whole number
SEEDS = 2**32  # numpy and scikit-learn take seeds below it
RANGES: dict[str, tuple[float, float, str]] = {
    "epochs": (0, 10**6, "a whole number of at least 0, and at most 1000000"),
    "batch": (2, 10**7, "a whole number of at least 2, and at most 10000000"),
    "negatives": (1, 2**31 - 1, "a whole number of at least 1, and at most 2147483647"),
    "block": (1, 2**31 - 1, "a whole number of at least 1, and at most 2147483647"),
    "lr": (1e-12, 1e3, "a number above 0, and at most 1000"),
    "weight_decay": (0, 1e3, "a number of at least 0, and at most 1000"),
    "temperature": (1e-6, 1e6, "a number above 0, and at most 1000000"),
    "tau_plus": (0, 1 - 1e-12, "a number in [0, 1)"),
    "beta": (0, 1e6, "a number of at least 0, and at most 1000000"),
}
SIGNED = ("weight_sign",)  # whole numbers that may be below 0

_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "None",
}


def check_known(name: str, value: Any, known: Sequence[str]) -> None:
    """ValueError, in one line, where a setting has none of its values."""
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")


def check_seed(seed: Any) -> int:
    """A run's seed. It must be a whole number from 0 to 2^32 - 1."""
    if hasattr(seed, "item") and getattr(seed, "ndim", 1) == 0:
        seed = seed.item()  # of numpy
    if type(seed) is not int or not 0 <= seed < SEEDS:
        raise ValueError(f"seed is {_short(seed)}: it must be a whole number from 0 to {SEEDS - 1}")
    return seed


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:90]} ... ({len(text)} characters)"


def check_parameters(experiment: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Refuse numbers, truth values and text among `given` that are not of the kind that `hints`
    says, or out of range.

    Own parts are looked at by the experiment (`curlnb.experiments.own_parts`).
    """
    for name, value in given.items():
        if name not in hints or not isinstance(
            value, bool | int | float | str | list | tuple | dict | None
        ):
            continue
        kinds = _members(hints[name])
        known = [_KINDS.get(kind) or _list_or_part(kind) for kind in kinds]
        start = f"{experiment}: {name} is {_short(value)}: it must be "
        if all(known) and not any(_is(value, kind) for kind in kinds):
            raise ValueError(start + " or ".join(dict.fromkeys(filter(None, known))))
        numbers = (
            [value]
            if isinstance(value, int | float)
            else value
            if isinstance(value, list | tuple)
            else []
        )
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            low, high, words = RANGES.get(name, (-math.inf, math.inf, "a finite number"))
            if isinstance(number, int) and name not in RANGES:
                low, high, words = (
                    -MOST if name in SIGNED else 0,
                    MOST,
                    f"a whole number of at least 0, and at most {MOST}",
                )
            if not (low <= number <= high and math.isfinite(number)):
                raise ValueError(start + words)


def _members(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [each for part in typing.get_args(hint) for each in _members(part)]
    return [hint]


def _list_or_part(kind: Any) -> str:
    """What a kind that is no single value is called; empty for one that is not known here, which
    anything may be.
    """
    origin = typing.get_origin(kind) or kind
    if origin in (list, tuple):
        return "a list"
    return (
        "a part of your own"
        if origin is Callable or (isinstance(origin, type) and origin not in (object, dict))
        else ""
    )


def _is(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    if origin in (list, tuple):
        items = [each for each in typing.get_args(kind) if each is not Ellipsis]
        return isinstance(value, list | tuple) and (
            not items or all(any(_is(each, item) for item in items) for each in value)
        )
    if origin not in _KINDS or isinstance(value, bool):
        return origin is bool and isinstance(value, bool)
    return isinstance(value, int | float) if origin is float else isinstance(value, origin)
