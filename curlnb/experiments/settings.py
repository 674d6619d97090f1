"""What the experiments share of their settings: how a network is optimised, what a dry run makes
smaller, and which data stay in memory.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from curlnb.runs import environment
from curlnb.runs.store import Run
from curlnb.runs.training import accelerated

Group = TypeVar("Group")
Loader = TypeVar("Loader", bound=Callable[..., Any])


@dataclass(frozen=True)
class Optimisation:
    """How a network is trained. The optimiser is Adam unless an experiment says otherwise.

    epochs: passes over the data, 0 for no training; batch: samples a step, at least 1; lr: the
    learning rate; weight_decay: the weight of the squared length of all parameters. ValueError for
    counts out of range.
    """

    epochs: int = 10
    batch: int = 256
    lr: float = 1e-3
    weight_decay: float = 1e-6

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{name} is {value!r}: it needs a whole number of at least {least}"
                )


@dataclass(frozen=True)
class Accelerated(Optimisation):
    """The same, of a network that may be made faster.

    precision: one of `devices.PRECISIONS`; losses are computed in float32 in any case. compile:
    whether by torch.compile. Where the machine lacks either, the run goes on without it and says so
    in its notes (see `training.accelerated`).
    """

    precision: str = "float32"
    compile: bool = False

    def accelerate(self, function: Callable[..., Any], run: Run) -> Callable[..., Any]:
        """`training.accelerated` by these settings."""
        return accelerated(function, run, precision=self.precision, compile=self.compile)


def check_known(name: str, value: Any, known: Sequence[str]) -> None:
    """ValueError, in one line, where a setting has none of its values."""
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")


def limited(settings: Group, **most: int) -> Group:
    """The settings as they are; in a dry run with the named numbers at most as large as given. None
    stays None.
    """
    if not environment.dry():
        return settings
    smaller = {
        name: min(value, most[name])
        for name in most
        if (value := getattr(settings, name)) is not None
    }
    return replace(settings, **smaller)  # type: ignore[type-var]


def kept_in_memory(most: int) -> Callable[[Loader], Loader]:
    """Decorator: keep the last `most` results of a function that loads data, since a process does
    many runs on few sets.

    A dry run's are kept apart, so that noise is never taken for data.
    """

    def decorate(load: Loader) -> Loader:
        kept = functools.lru_cache(most)(lambda _, *arguments: load(*arguments))
        return functools.wraps(load)(lambda *arguments: kept(environment.dry(), *arguments))  # type: ignore[return-value]

    return decorate
