"""An experiment: a named function from parameters and a seed to a flat dict of metrics, and what
tells one run of it from another.

`f(run, *, seed, **parameters) -> dict` under `@experiment`. A parameter annotated with a frozen
dataclass stands for the dataclass's fields: `sweep` and the store take and show the fields, by
name, and the function gets the dataclass. So what travels together (data, objective, optimisation)
is one argument in the code and several parameters of the run.
"""

import functools
import inspect
import json
import pkgutil
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch

from curlnb.choices import FORMER
from curlnb.runs.devices import numerics
from curlnb.runs.fingerprint import follow, installed, is_held, package_digest
from curlnb.runs.source import Graph, Source, digest_of, is_ours

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
_PLAIN = bool | int | float | str | list | tuple | dict | None
_ALSO = {int: float, list: tuple, tuple: list}  # what a value is taken for beside its own type


class StoreError(RuntimeError):
    """A run that is unavailable, or an experiment that breaks the store's rules."""


@dataclass(eq=False)
class Experiment:
    """A named function from parameters and a seed to a flat dict of metrics. Made by `@experiment`,
    which says what the fields mean.
    """

    function: Callable[..., dict[str, Any]]
    data: Callable[[dict[str, Any]], str]
    training: Callable[..., Any] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        """`help(simclr)` and `simclr?` show the function's text and what it takes."""
        functools.update_wrapper(self, self.function)
        signature = inspect.signature(self.function)
        taken = [parameter for name, parameter in signature.parameters.items() if name != "run"]
        self.__signature__ = signature.replace(parameters=taken)
        home = self.function.__module__.split(".")[-1]
        self.name = self.name or f"{home}.{self.function.__name__}"

    def __call__(self, *_: Any, **parameters: Any) -> dict[str, Any]:
        """Raises TypeError: experiments are run through `sweep`, which stores the results."""
        given = "".join(f", {name}=..." for name in parameters if name != "seed")
        raise TypeError(
            f"{self.name} is run by a sweep, which keeps what it gives: "
            f"sweep({self.function.__name__}, seeds=1{given})"
        )

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` with defaults filled in. StoreError for an unknown or missing one; for the
        package's experiments, ValueError for a wrong type or range.

        The name of a function of the package, such as "curlnb.models.encoders:resnet9", is
        imported.
        """
        known = parameters_of(self.function)
        if unknown := given.keys() - known.keys():
            raise StoreError(
                f"{self.name} has no parameter {min(unknown)!r}; it has {', '.join(sorted(known))}"
            )
        full = {}
        for name, parameter in known.items():
            value = given.get(name, parameter.default)
            if value is parameter.empty:
                raise StoreError(f"{self.name} needs a value for {name}")
            if isinstance(value, np.generic):
                value = value.item()
            if is_ours(self.function.__module__):
                value = _placed(value)
                check_parameter(f"{self.name}: {name}", value, parameter)
            if isinstance(parameter.default, float) and type(value) is int:
                value = float(value)  # 1 given for 1.0 is the same run
            full[name] = value
        return full

    def call(self, run: Any, parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The metrics: the function called with `parameters`, all of them given, in the groups that
        it takes.
        """
        return self.function(run, seed=seed, **grouped(self.function, parameters))

    def asked(self, parameters: Mapping[str, Any], seed: int) -> "Asked":
        """The run with these parameters and this seed, both checked."""
        return Asked(self, self.parameters(parameters), check_seed(seed))

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process by name where it can be imported there; else by value, with the
        function (cloudpickle).
        """
        home = self.function.__module__
        if is_ours(home) or installed(home):
            return pkgutil.resolve_name, (f"{home}:{self.function.__name__}",)
        return Experiment, (self.function, self.data, self.training, self.name)


@dataclass(frozen=True, eq=False)
class Asked:
    """A requested run and its names, each computed once. Made by `Experiment.asked`.

    parameters: all of them. Your own part, such as a function given as a parameter, enters the
    names with all that it reaches (`follow`) when they are computed.
    """

    experiment: Experiment
    parameters: dict[str, Any]
    seed: int

    @functools.cached_property
    def identity(self) -> str:
        """Digest of what was asked for: parameters that differ from their defaults, the seed, and
        the data; 16 hex digits.

        A default's value counts in `code`, so that a new parameter does not change the identities
        of older runs. Reference runs are looked up by identity.
        """
        differing = _differing(self.parameters, self.experiment.function)
        data = self.experiment.data(self.parameters)
        return _hash([self.experiment.name, differing, self.seed, data])

    @functools.cached_property
    def code(self) -> str:
        """Digest of the code that makes a run's numbers; of a notebook's function as it is now."""
        return code_digest(self.experiment.function, self.parameters)

    @functools.cached_property
    def numerics(self) -> dict[str, Any]:
        """See `devices.numerics`."""
        return numerics(self.parameters)

    @functools.cached_property
    def key(self) -> str:
        """Name of the run in a store: identity, code and numerics."""
        return _hash([self.identity, self.code, self.numerics])

    @functools.cached_property
    def training_key(self) -> str:
        """Name of the training that it shares with all experiments of the same `training`; empty
        where it has none.
        """
        training = self.experiment.training
        if training is None:
            return ""
        differing = _differing(self.parameters, training)
        data = self.experiment.data(self.parameters)
        code = code_digest(training, self.parameters)
        return _hash([differing, self.seed, data, code, self.numerics])


def experiment(
    function: Callable[..., dict[str, Any]] | None = None,
    *,
    name: str = "",
    data: Callable[[dict[str, Any]], str] = lambda _: "",
    training: Callable[..., Any] | None = None,
) -> Any:
    """Decorator: make `function(run, *, seed, **parameters)` an `Experiment`.

    name: under which its runs are stored, even after the module is renamed. Default: the last part
    of the module's name, a dot and the function's. data: from all parameters to the digest of the
    data that they name.
    training: the function with which it trains, whose parameters are among its own. The trained
    network is kept: of all experiments with this training, the first that needs it with the same
    arguments and seed trains it; the others load it.
    """
    make = functools.partial(Experiment, data=data, training=training, name=name)
    return make if function is None else make(function)


def code_digest(function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """Digest of a function, of the groups that it takes and of all code that they reach; 16 hex
    digits. `curlnb.runs.source` says what counts. Names among the parameters pick what they stand
    for.
    """
    chosen = _names_in(parameters)
    return digest_of(
        *(
            package_digest(part.__module__, part.__name__, chosen)
            if is_ours(part.__module__)
            else follow(part, part.__name__)
            for part in _parts(function, parameters)
        )
    )


def _parts(function: Callable[..., Any], parameters: Mapping[str, Any]) -> list[Any]:
    """Where a run's code begins: its function, the groups of its parameters, functions of the
    package among their values, and the classes of those that are the user's own data.
    """
    values = parameters.values()
    kinds = dict.fromkeys(type(value) for value in values if hasattr(value, "digest"))
    hints = (taken.annotation for taken in _taken(function).values())
    return [function, *filter(is_dataclass, hints), *filter(_place, values), *kinds]


def code_graphs(
    function: Callable[..., Any], parameters: Mapping[str, Any], source: Source
) -> list[Graph]:
    """What the code of a run of the package's `function` reaches, in a source of the package."""
    chosen = _names_in(parameters)
    return [
        source.graph(source.resolved(part.__module__, part.__name__), chosen)
        for part in _parts(function, parameters)
        if is_ours(part.__module__)
    ]


def _names_in(parameters: Mapping[str, Any]) -> frozenset[str]:
    """The texts among the values and in the lists among them."""
    several = (v if isinstance(v, list | tuple) else [v] for v in parameters.values())
    return frozenset(each for values in several for each in values if isinstance(each, str))


# --- parameters -----------------------------------------------------------------------------------


def check_seed(seed: Any) -> int:
    """A run's seed. It must be a whole number from 0 to 2^32 - 1."""
    if isinstance(seed, np.generic):
        seed = seed.item()
    if type(seed) is not int or not 0 <= seed < SEEDS:
        raise ValueError(
            f"seed is {reprlib.repr(seed)}: it must be a whole number from 0 to {SEEDS - 1}"
        )
    return seed


def check_parameter(said: str, value: Any, parameter: inspect.Parameter) -> None:
    """ValueError for a number, bool, string or list that is not of the annotated type, or a number
    out of range; the items of a list are not checked. said: the experiment and the name, for the
    error.

    Own parts are checked by the experiment (`curlnb.experiments.own_parts`).
    """
    hint, kind = parameter.annotation, type(value)
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = {
        typing.get_origin(each) or each for each in (typing.get_args(hint) if union else [hint])
    }
    if not isinstance(value, _PLAIN) or kinds & {object, dict, Any, parameter.empty}:
        return
    wanted = f"{said} is {reprlib.repr(value)}: it must be {inspect.formatannotation(hint)}"
    if kind not in kinds and _ALSO.get(kind) not in kinds:
        raise ValueError(wanted)
    if isinstance(value, int | float) and kind is not bool:
        low, high = RANGES.get(parameter.name, (0, MOST) if kind is int else FINITE)
        if not low <= value <= high:
            raise ValueError(f"{wanted} from {low} to {high}")


@functools.cache
def _taken(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """By name, what a function takes beside the run and its seed; a dataclass, its fields."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if name not in ("run", "seed") and parameter.kind is not parameter.VAR_KEYWORD
    }


@functools.cache
def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """By name, the parameters of the function's runs, a group's fields in its place."""
    found: dict[str, inspect.Parameter] = {}
    for name, taken in _taken(function).items():
        group = taken.annotation
        if isinstance(group, type) and is_dataclass(group):
            for field, own in _taken(group).items():
                found[field] = own.replace(default=getattr(taken.default, field, own.default))
        else:
            found[name] = taken
    return found


def grouped(function: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The function's arguments out of a run's `parameters`: fields in their groups, the rest as
    they are.
    """
    arguments = {}
    for name, taken in _taken(function).items():
        group = taken.annotation
        if isinstance(group, type) and is_dataclass(group):
            arguments[name] = group(**{field: parameters[field] for field in _taken(group)})
        else:
            arguments[name] = parameters[name]
    return arguments


def _differing(parameters: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    """Those of the function's parameters that differ from their defaults, as JSON."""
    found = {}
    for name, parameter in parameters_of(function).items():
        value, default = parameters[name], parameter.default
        # a tensor's comparison has no one truth value
        if value is not default and (isinstance(value, torch.Tensor) or value != default):
            found[name] = value
    return as_json(found)


def as_json(value: Any, *, name: str = "a parameter", digests: bool = True) -> Any:
    """A parameter's value as JSON: an own part by its name, and with `digests` by its digest too;
    a function of the package by its place, where `_placed` finds it again.
    """
    if isinstance(value, Mapping):
        return {str(k): as_json(v, name=str(k), digests=digests) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each, name=name, digests=digests) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if place := _place(value):
        return place
    shown = getattr(value, "name", None) or getattr(value, "__name__", None)
    shown = shown if isinstance(shown, str) else type(value).__name__
    return f"{shown}:{follow(value, name)}" if digests else shown


def _place(value: Any) -> str:
    """module:function of a function that the package holds under its own name; empty of anything
    else, a wrapper of such a one, say.
    """
    if isinstance(value, types.FunctionType) and is_ours(value.__module__ or "") and is_held(value):
        return f"{value.__module__}:{value.__name__}"
    return ""


def _placed(value: Any) -> Any:
    """The function of the package that a string names, as `_place` does; the present name for a
    former one; else the value itself.
    """
    if not isinstance(value, str):
        return value
    if ":" not in value or not is_ours(value):
        return FORMER.get(value, value)
    found = None
    try:
        found = pkgutil.resolve_name(value)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not is_ours(error.name or ""):
            raise  # what an extra brings
    if _place(found) != value:
        raise StoreError(
            f"{value} is no function of the package: give its module and name, "
            "for example curlnb.models.encoders:resnet9"
        )
    return found


def _hash(value: Any) -> str:
    return digest_of(json.dumps(value, sort_keys=True))
