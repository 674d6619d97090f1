"""An experiment: a named function from parameters and a seed to a flat dict of metrics, and what
tells one run of it from another.

`f(run, *, seed, **parameters) -> dict` under `@experiment`. A parameter annotated with a frozen
dataclass stands for the dataclass's fields: `sweep` and the store take and show the fields, by
name, and the function gets the dataclass. So what travels together (data, objective, optimisation)
is one argument in the code and several parameters of the run.
"""

import dataclasses
import functools
import inspect
import json
import pkgutil
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
from curlnb.runs.validation import check_parameters


class StoreError(RuntimeError):
    """A run that cannot be had, or an experiment that breaks the store's rules."""


@dataclass(frozen=True)
class Experiment:
    """A named function from parameters and a seed to a flat dict of metrics. Made by `@experiment`,
    which says what the fields mean.
    """

    function: Callable[..., dict[str, Any]]
    data: Callable[[dict[str, Any]], str]
    training: Callable[..., Any] | None = None
    given_name: str = ""

    def __post_init__(self) -> None:
        """`help(simclr)` and `simclr?` show the function's text and what it takes."""
        signature = inspect.signature(self.function)
        taken = [parameter for name, parameter in signature.parameters.items() if name != "run"]
        object.__setattr__(self, "__doc__", self.function.__doc__)
        object.__setattr__(self, "__signature__", signature.replace(parameters=taken))

    def __call__(self, *_: Any, **parameters: Any) -> dict[str, Any]:
        """An experiment is not called: TypeError, in one line, says how its runs are had."""
        given = "".join(f", {name}=..." for name in parameters if name != "seed")
        raise TypeError(
            f"{self.name} is run by a sweep, which keeps what it gives: "
            f"sweep({self.function.__name__}, seeds=1{given})"
        )

    @property
    def __wrapped__(self) -> Callable[..., dict[str, Any]]:
        return self.function

    @property
    def name(self) -> str:
        """The name that it was given, as `images.simclr`; without one, the last part of the
        module's name and the function's.
        """
        home = self.function.__module__.split(".")[-1]
        return self.given_name or f"{home}.{self.function.__name__}"

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` with defaults filled in; a parameter that is unknown, missing or out of range is
        an error that names it.

        A part of the package's, "curlnb.models.encoders:resnet9" in a record or on the command
        line, is imported.
        """
        known = _parameters_of(self.function)
        if unknown := [name for name in given if name not in known]:
            raise StoreError(
                f"{self.name} has no parameter {unknown[0]!r}; it has {', '.join(sorted(known))}"
            )
        given = {n: v.item() if isinstance(v, np.generic) else v for n, v in given.items()}
        if is_ours(self.function.__module__):
            given = {name: _placed(value) for name, value in given.items()}
            check_parameters(self.name, given, {name: hint for name, (_, hint) in known.items()})
        full = {name: default for name, (default, _) in known.items()} | given
        for name, (default, _) in known.items():
            if any(full[name] is each for each in _MISSING):
                raise StoreError(f"{self.name} needs a value for {name}")
            if isinstance(default, float) and type(full[name]) is int:
                full[name] = float(full[name])  # 1 given for 1.0 is the same run
        return full

    def call(self, run: Any, parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The metrics: the function called with `parameters`, all of them given, in the groups that
        it takes.
        """
        return self.function(run, seed=seed, **grouped(self.function, parameters))

    def identity(self, parameters: Mapping[str, Any], seed: int) -> str:
        """Digest of what was asked for: parameters that differ from their defaults, the seed, and
        the data; 16 hex digits.

        A default's value is code, and counts in `code`; so a new parameter leaves older runs'
        identities as they were. References are looked up by it. An own part, a function given as a
        parameter say, counts by all that it reaches (`following`).
        """
        full = self.parameters(parameters)
        return _hash([self.name, _asked(full, self.function), int(seed), self.data(full)])

    def code(self, parameters: Mapping[str, Any]) -> str:
        """Digest of the code that makes a run's numbers; of a notebook's function as it is now."""
        return code_digest(self.function, self.parameters(parameters))

    def key(self, parameters: Mapping[str, Any], seed: int) -> str:
        """Name of the run in a store: identity, code and numerics."""
        numbers = numerics(self.parameters(parameters))
        return _hash([self.identity(parameters, seed), self.code(parameters), numbers])

    def training_key(self, parameters: Mapping[str, Any], seed: int) -> str:
        """Name of the training that it shares with all experiments of the same `training`; empty
        where it has none.
        """
        if self.training is None:
            return ""
        full = self.parameters(parameters)
        asked, code = _asked(full, self.training), code_digest(self.training, full)
        return _hash([asked, int(seed), self.data(full), code, numerics(full)])

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process by name where it can be imported there; else by value, with the
        function (cloudpickle).
        """
        home = self.function.__module__
        if is_ours(home) or installed(home):
            return pkgutil.resolve_name, (f"{home}:{self.function.__name__}",)
        return Experiment, (self.function, self.data, self.training, self.given_name)


def experiment(
    function: Callable[..., dict[str, Any]] | None = None,
    *,
    name: str = "",
    data: Callable[[dict[str, Any]], str] = lambda _: "",
    training: Callable[..., Any] | None = None,
) -> Any:
    """Decorator: make `function(run, *, seed, **parameters)` an `Experiment`.

    name: under which its runs are kept; it stays when the module is renamed. Default: the module's
    and the function's. data: from all parameters to the digest of the data that they name.
    training: the function with which it trains, whose parameters are among its own. The trained
    network is kept: of all experiments with this training, the first with given arguments and seed
    trains, the others look at what it left.
    """
    make = functools.partial(Experiment, data=data, training=training, given_name=name)
    return make if function is None else make(function)


def code_digest(function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """Digest of a function, of the groups that it takes and of all code that they reach; 16 hex
    digits. `curlnb.runs.source` says what counts. Names among the parameters pick what they stand
    for.
    """
    chosen = _names_in([*parameters.values()])
    digests = (
        package_digest(part.__module__, part.__name__, chosen)
        if is_ours(part.__module__)
        else follow(part, part.__name__)
        for part in _parts(function, parameters)
    )
    return digest_of(*digests)


def _parts(function: Callable[..., Any], parameters: Mapping[str, Any]) -> list[Any]:
    """Where a run's code begins: its function, the groups of its parameters, functions of the
    package among their values, and the classes of those that are the user's own data.
    """
    given = [value for value in parameters.values() if _place(value)]
    kinds = dict.fromkeys(type(value) for value in parameters.values() if hasattr(value, "digest"))
    return [function, *groups_of(function).values(), *given, *kinds]


def code_graphs(
    function: Callable[..., Any], parameters: Mapping[str, Any], source: Source
) -> list[Graph]:
    """What the code of a run of the package's `function` reaches, in a source of the package."""
    chosen = _names_in([*parameters.values()])
    return [
        source.graph(source.resolved(part.__module__, part.__name__), chosen)
        for part in _parts(function, parameters)
        if is_ours(part.__module__)
    ]


def _names_in(value: Any) -> frozenset[str]:
    if isinstance(value, list | tuple):
        return frozenset(name for each in value for name in _names_in(each))
    return frozenset({value} if isinstance(value, str) else ())


# --- parameters -----------------------------------------------------------------------------------


_MISSING = (inspect.Parameter.empty, dataclasses.MISSING)


@functools.cache
def groups_of(function: Callable[..., Any]) -> dict[str, type]:
    """The function's parameters that are annotated with a dataclass, and the dataclass."""
    hints = typing.get_type_hints(function)
    return {
        name: hints[name]
        for name in inspect.signature(function).parameters
        if name != "run" and isinstance(hints.get(name), type) and is_dataclass(hints[name])
    }


@functools.cache
def _parameters_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Name -> default and annotation of all parameters, a group's fields in its place."""
    found: dict[str, tuple[Any, Any]] = {}
    groups, hints = groups_of(function), typing.get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            kinds = typing.get_type_hints(groups[name])
            for field in dataclasses.fields(groups[name]):
                default = getattr(parameter.default, field.name, field.default)
                found[field.name] = default, kinds[field.name]
        elif name not in ("run", "seed") and parameter.kind is not parameter.VAR_KEYWORD:
            found[name] = parameter.default, hints.get(name, object)
    return found


def grouped(function: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The function's arguments out of a run's `parameters`: fields in their groups, the rest as
    they are.
    """
    groups = groups_of(function)
    arguments = {
        n: parameters[n] for n in inspect.signature(function).parameters if n in parameters
    }
    for name, group in groups.items():
        own = {each.name: parameters[each.name] for each in dataclasses.fields(group)}
        arguments[name] = group(**own)
    return arguments


def _asked(parameters: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    """Those of the function's parameters that differ from their defaults, as JSON."""
    known = _parameters_of(function).items()
    changed = [name for name, (default, _) in known if _differs(parameters[name], default)]
    return as_json({name: parameters[name] for name in changed})


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
    if not isinstance(value, str) or ":" not in value or not is_ours(value):
        return FORMER.get(value, value) if isinstance(value, str) else value
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


def _differs(value: Any, default: Any) -> bool:
    if isinstance(value, torch.Tensor):  # has no one truth value
        return value is not default
    return bool(value != default)


def _hash(value: Any) -> str:
    return digest_of(json.dumps(value, sort_keys=True))
