"""What is refused before work starts: settings of the environment and parameters of a run that are
of the wrong kind or out of range. Each refusal is a ValueError in one line.
"""

import os
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from curlnb.runs import environment
from curlnb.runs.devices import default_device

SEEDS = 2**32  # numpy and scikit-learn take seeds below it
MOST = 2**31 - 1  # of any whole number
FINITE = (-1e300, 1e300)
RANGES: dict[str, tuple[float, float]] = {
    "epochs": (0, 10**6),
    "batch": (2, 10**7),  # a contrast needs another sample
    "negatives": (1, MOST),
    "block": (1, MOST),
    "weight_sign": (-1, 1),
    "lr": (1e-12, 1e3),
    "weight_decay": (0, 1e3),
    "temperature": (1e-6, 1e6),
    "tau_plus": (0, 1 - 1e-12),
    "beta": (0, 1e6),
}
_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "None",
    list: "a list",
    tuple: "a list",
}


def check_environment() -> None:
    """Look at every CURLNB_* variable, and give the paths among them their full length, in which ~
    is the home folder.

    Also refuse to start in one checkout with the package of another, as a copied .venv would,
    unless CURLNB_HOME says which of them is meant.
    """
    here, own = environment.around(), environment.FOUND
    if here and not here.samefile(own) and not environment.setting("CURLNB_HOME"):
        raise ValueError(
            f"this is started in the checkout {here}, and curlnb is that of {own}: "
            f"run `make setup` in {here} and restart the kernel"
        )
    for name in sorted(os.environ):
        if name.startswith("CURLNB_") and name not in environment.VARIABLES:
            known = ", ".join(environment.VARIABLES)
            raise ValueError(f"{name} is no setting; there are {known}")
    for name, (pattern, _) in environment.VARIABLES.items():
        if (given := environment.setting(name)) and pattern == environment.PATH:
            path = Path(os.path.expanduser(given)).absolute()
            if name == "CURLNB_HOME" and not path.is_dir():
                raise ValueError(f"{name}={given!r} is no folder")
            os.environ[name] = str(path)
    device = default_device()
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"CURLNB_DEVICE={str(device)!r} is not on this machine, which has "
            f"{torch.cuda.device_count()} of that kind"
        )


def check_known(name: str, value: Any, known: Sequence[str]) -> None:
    """ValueError, in one line, where a setting has none of its values."""
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")


def check_seed(seed: Any) -> int:
    """A run's seed. It must be a whole number from 0 to 2^32 - 1."""
    if isinstance(seed, np.generic):
        seed = seed.item()
    if type(seed) is not int or not 0 <= seed < SEEDS:
        raise ValueError(
            f"seed is {reprlib.repr(seed)}: it must be a whole number from 0 to {SEEDS - 1}"
        )
    return seed


def check_parameters(experiment: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Refuse numbers, truth values, text and lists among `given` that are not of the kind that
    `hints` says, or out of range.

    Own parts are checked by the experiment (`curlnb.experiments.own_parts`).
    """
    plain = bool | int | float | str | list | tuple | dict | None
    for name in given.keys() & hints.keys():
        value, kinds = given[name], _members(hints[name])
        if not isinstance(value, plain) or {object, dict, Any} & set(kinds):
            continue
        words = [
            _KINDS.get(typing.get_origin(kind) or kind, "a part of your own") for kind in kinds
        ]
        wanted = f"{name} is {reprlib.repr(value)}: it must be {' or '.join(dict.fromkeys(words))}"
        if not any(_fits(value, kind) for kind in kinds):
            raise ValueError(f"{experiment}: {wanted}")
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            low, high = RANGES.get(name, (0, MOST) if isinstance(number, int) else FINITE)
            if not low <= number <= high:
                raise ValueError(f"{experiment}: {wanted} from {low} to {high}")


def _members(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    if kind in (list, tuple):
        items = [each for each in typing.get_args(hint) if each is not Ellipsis]
        return isinstance(value, list | tuple) and (
            not items or all(any(_fits(each, item) for item in items) for each in value)
        )
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return kind in _KINDS and isinstance(value, kind)
