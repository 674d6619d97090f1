"""The code of a run as a digest: the package's as its source has it (`curlnb.runs.source`), that of
a notebook's cell, a script or a module beside it as it is at run time.

The latter is followed through everything that it reaches: a function through its code, defaults,
closure and the globals that it names, a class through its attributes and bases, a value by its
content. What an installed package defines counts by its name, since its version is part of a run's
numerics. What can't be followed is refused: a result under a key that does not hold all that made
it would be taken for another's.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import importlib
import inspect
import itertools
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from curlnb.runs.loaded import IdentityError, check_loaded, code_text
from curlnb.runs.source import HERE, digest_of, is_ours

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice)
_NAMED = (
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    np.dtype,
    PurePath,
    re.Pattern,
    enum.Enum,
)
_CONTAINERS = (list, tuple, set, frozenset, Mapping, torch.Tensor, np.ndarray, enum.Enum)
_CONTENT = (*_CONTAINERS, functools.partial, property, functools.cached_property)
"""They count by what they hold, and a class derived from them also by what it adds."""
_UNSEEN = ("globals", "eval", "exec", "__import__")  # built-ins behind which no name can be seen
_METHODS = (types.FunctionType, property, classmethod, staticmethod, functools.cached_property)
_LEFT_OUT = set(
    [
        "__module__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__qualname__",
        "__annotations__",
        "__firstlineno__",
        "__slotnames__",
        "__static_attributes__",
        "__annotate_func__",
        "__annotations_cache__",
        "__abstractmethods__",
        "_abc_impl",
        "__class_getitem__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__parameters__",
        "__orig_bases__",
    ]
)
"""Attributes of classes that say nothing of what they compute."""


def package_digest(module: str, name: str, chosen: frozenset[str] | None = None) -> str:
    """Digest of a definition of the package and of all that it reaches, 16 hex digits.

    chosen: the names that a run gives, which pick entries of `Choices`; None for all entries.
    IdentityError, in one line, for a definition that is not loaded as its source says.
    """
    graph = HERE.graph(HERE.resolved(module, name), chosen)
    check_loaded(graph)
    return graph.digest


def follow(value: Any, name: str) -> str:
    """Digest of a value and of all that it reaches; 16 hex digits. name: what to call it in an
    error.

    IdentityError names what can't be followed, and what to do instead. An object with a string
    attribute `digest` is taken at its word.
    """
    return _Follower().digest(value, name)


def installed(module: str) -> bool:
    """Whether a module is Python's or an installed package's, whose code is told by its version."""
    root = module.split(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or next(
        iter(getattr(sys.modules.get(root), "__path__", [])), None
    )
    if root == "__main__" or file is None:
        return root in sys.builtin_module_names
    return any(str(file).startswith(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))


def is_held(value: Any) -> bool:
    """Whether a function or class is what its module holds under its name, or is wrapped by that;
    what wraps it has its name as well.
    """
    held = getattr(sys.modules.get(value.__module__), value.__qualname__, None)
    while held is not None and held is not value:
        held = getattr(held, "__wrapped__", None)
    return held is not None


class _Follower:
    def __init__(self) -> None:
        self.begun: dict[
            int, int
        ] = {}  # id -> in which order it was met: what refers to itself is told by that
        self.kept: list[Any] = []  # so that no id is used twice

    def digest(self, value: Any, name: str) -> str:
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return digest_of(type(value).__name__, repr(value))
        if id(value) in self.begun:
            return digest_of("again", str(self.begun[id(value)]))
        self.begun[id(value)] = len(self.begun)
        self.kept.append(value)
        return digest_of(*self.parts(value, name))

    def parts(self, value: Any, name: str) -> list[str]:
        if isinstance(value, types.ModuleType):
            return self.module(value, name)
        if isinstance(value, type | types.FunctionType):
            home, (first, *inner) = value.__module__ or "", value.__qualname__.split(".")
            if is_ours(home) and (is_held(value) if not inner else "<locals>" not in inner):
                return ["package", package_digest(home, first), *inner]
            if installed(home):
                return [home, value.__qualname__]
            return self.type(value, name) if isinstance(value, type) else self.function(value, name)
        return [*self.content(value, name), *self.own_class(value, name)]

    def content(self, value: Any, name: str) -> list[str]:
        """What a value holds, whatever its class adds to that."""
        if isinstance(value, torch.Tensor):
            content = value.detach().cpu().contiguous()
            raw = (
                content.view(torch.uint8).numpy().tobytes()
                if content.dim()
                else repr(content.item()).encode()
            )
            return [
                "tensor",
                str(value.dtype),
                str(tuple(value.shape)),
                str(value.requires_grad),
                hashlib.sha256(raw).hexdigest(),
            ]
        if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            return [
                "array",
                str(value.dtype),
                str(value.shape),
                hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest(),
            ]
        if isinstance(value, torch.Generator):
            return ["generator", hashlib.sha256(value.get_state().numpy().tobytes()).hexdigest()]
        if isinstance(value, _NAMED):
            return [type(value).__name__, repr(value)]
        if isinstance(told := inspect.getattr_static(value, "digest", None), str) or isinstance(
            told, property | functools.cached_property
        ):
            return [type(value).__name__, str(value.digest)]
        if isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | np.ufunc):
            return [
                "built-in",
                str(getattr(value, "__module__", "")),
                getattr(value, "__qualname__", "") or value.__name__,
            ]
        return self.container(value, name)

    def container(self, value: Any, name: str) -> list[str]:
        kind = type(value).__name__
        if isinstance(value, list | tuple):
            return [kind, *(self.digest(each, f"{name}[{i}]") for i, each in enumerate(value))]
        if isinstance(value, set | frozenset):
            return [kind, *sorted(follow(each, f"an element of {name}") for each in value)]
        if isinstance(value, Mapping):
            return [
                kind,
                *(
                    d
                    for k, v in value.items()
                    for d in (self.digest(k, f"a key of {name}"), self.digest(v, f"{name}[{k!r}]"))
                ),
            ]
        if isinstance(value, functools.partial):
            return [
                "partial",
                *(
                    self.digest(each, f"{name}'s part")
                    for each in (value.func, value.args, value.keywords)
                ),
            ]
        if isinstance(value, types.MethodType):
            return [
                "method",
                self.digest(value.__func__, name),
                self.digest(value.__self__, f"{name}'s object"),
            ]
        if isinstance(value, property):
            return [
                kind,
                *(self.digest(each, name) for each in (value.fget, value.fset, value.fdel)),
            ]
        if isinstance(value, functools.cached_property):
            return [kind, self.digest(value.func, name)]
        known = installed(type(value).__module__) or is_ours(type(value).__module__)
        if known and callable(
            inner := getattr(value, "__wrapped__", None)
        ):  # static and class methods, functools.cache; an Experiment
            return [kind, self.digest(inner, name)]
        if kind == "_tuplegetter":  # a field of a named tuple
            return [kind, str(value.__reduce__()[1][0])]
        if type(value).__module__ == "dataclasses":  # the mark of a default that a factory makes
            return [kind]
        return self.object(value, name)

    def own_class(self, value: Any, name: str) -> list[str]:
        """What a class of the user's adds to a list, a tuple, a dict, a tensor, a member of an
        enumeration and the like.
        """
        cls = type(value)
        if not isinstance(value, _CONTENT) or installed(cls.__module__) or is_ours(cls.__module__):
            return []
        if isinstance(value, enum.Enum):
            methods = {key: each for key, each in vars(cls).items() if isinstance(each, _METHODS)}
            return [
                "of",
                *(
                    part
                    for key, each in methods.items()
                    for part in (key, self.digest(each, f"{name}.{key}"))
                ),
            ]
        held = getattr(value, "__dict__", {})
        return [
            "of",
            self.digest(cls, cls.__qualname__),
            *(self.digest(held[key], f"{name}.{key}") for key in held),
        ]

    def object(self, value: Any, name: str) -> list[str]:
        """An instance of a class: its class and its attributes, where these are all that it is."""
        cls = type(value)
        plain = (
            dataclasses.is_dataclass(value)
            or isinstance(value, torch.nn.Module)
            or cls.__module__ == "types"
        )
        own = not installed(cls.__module__) or isinstance(value, torch.nn.Module)
        if not (plain or own) or not hasattr(value, "__dict__"):
            raise IdentityError(
                f"{name} is a {cls.__module__}.{cls.__qualname__}, which cannot be followed into "
                "a run's key: make it a number, a string, a tensor, a function or a class, or hand "
                "it in as a parameter"
            )
        return [
            "object",
            self.digest(cls, cls.__qualname__),
            *(self.digest(vars(value)[k], f"{name}.{k}") for k in vars(value)),
        ]

    def type(self, cls: type, name: str) -> list[str]:
        own = [
            (key, each)
            for key, each in vars(cls).items()
            if key not in _LEFT_OUT and not isinstance(each, types.GetSetDescriptorType)
        ]
        bases = [self.digest(base, f"a base of {name}") for base in cls.__bases__]
        if not installed(type(cls).__module__):
            bases.append(self.digest(type(cls), f"the metaclass of {name}"))
        return [
            "class",
            *bases,
            *(part for key, each in own for part in (key, self.digest(each, f"{name}.{key}"))),
        ]

    def module(self, module: types.ModuleType, name: str) -> list[str]:
        if installed(module.__name__):
            return ["module", module.__name__]
        if is_ours(module.__name__):
            return [
                "module",
                *(
                    package_digest(module.__name__, each)
                    for each in HERE.parse(module.__name__).definitions
                ),
            ]
        own = {
            k: v
            for k, v in vars(module).items()
            if not k.startswith("__") and not isinstance(v, types.ModuleType)
        }
        return [
            "module",
            *(
                part
                for key, each in own.items()
                for part in (key, self.digest(each, f"{name}.{key}"))
            ),
        ]

    def function(self, function: types.FunctionType, name: str) -> list[str]:
        parts = ["function", *code_text(function.__code__, function.__doc__)]
        parts += [
            self.digest(each, f"a default of {name}")
            for each in (function.__defaults__, function.__kwdefaults__)
        ]
        for free, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                parts += [
                    free,
                    self.digest(cell.cell_contents, f"{free}, in the closure of {name}"),
                ]
            except ValueError:  # not filled yet
                parts.append(free)
        for used, value in _globals(function.__code__, function.__globals__):
            parts += [used, self.digest(value, f"{used}, used in {name}")]
        if wrapped := getattr(function, "__wrapped__", None):
            parts.append(self.digest(wrapped, name))
        for key, value in vars(function).items():
            if key != "__wrapped__":
                parts += [key, self.digest(value, f"{name}.{key}")]
        return parts


def _globals(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Global names that code uses, with their values; of a module that is only asked for an
    attribute, that attribute.
    """
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if (
            step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
            and step.argval in _UNSEEN
            and step.argval not in scope
        ):
            raise IdentityError(
                f"{code.co_name} calls {step.argval}(), and what that reads cannot be followed "
                "into a run's key: use the names themselves"
            )
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in scope:
            yield _attribute(step.argval, scope[step.argval], steps[at + 1 :])
        elif step.opname == "IMPORT_NAME" and not installed(step.argval):
            module = importlib.import_module(step.argval)
            after = itertools.takewhile(
                lambda s: s.opname in ("IMPORT_FROM", "STORE_FAST", "STORE_DEREF"), steps[at + 1 :]
            )
            names = [s.argval for s in after if s.opname == "IMPORT_FROM"]
            yield from (
                ((name, getattr(module, name)) for name in names)
                if names
                else ((step.argval, module),)
            )
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _globals(const, scope)


def _attribute(name: str, value: Any, steps: list[dis.Instruction]) -> tuple[str, Any]:
    for step in itertools.takewhile(lambda s: s.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps):
        if not isinstance(value, types.ModuleType) or not hasattr(value, step.argval):
            break
        name, value = f"{name}.{step.argval}", getattr(value, step.argval)
    return name, value
