"""The code of a run as a digest: the package's as its source has it (`curlnb.runs.source`), that of
a notebook's cell, a script or a module beside it as it is at run time.

The latter is followed through everything that it reaches: a function through its code, defaults,
closure and the globals that it names, a class through its attributes and bases, a value by its
content. What an installed package defines counts by its name alone (of versions, torch's is part of
a run's numerics), so install your own package with `pip install -e`, or keep it beside the script,
to have its code followed. What cannot be followed is refused: under a key without all of its code,
a result could be taken for another's.

One way for both was tried and given up. Bytecode differs between Python versions, so that keys of
the package could not be kept; and source does not tell two functions of one line apart, is absent
for what `exec` makes, and after an edit is not what runs.

What is loaded of the package must be what its source says, or a run is refused: a function, a
constant or a method may have been replaced at run time, or its file edited after the import. A
definition's statement is executed once more, among the names that its module holds now, and what it
gives is compared with what the module holds. So no constant may change as it is used: a cache is
`functools.cache`'s.
"""

import ast
import contextlib
import copyreg
import dis
import functools
import importlib.util
import inspect
import itertools
import site
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from curlnb.runs.files import digest_of_tensors
from curlnb.runs.source import HERE, digest_of, is_ours

_PLAIN = {type(None), bool, int, float, complex, str, bytes, type(Ellipsis)}
_IMPORTING = ("IMPORT_FROM", "STORE_FAST", "STORE_DEREF")
LEFT_OUT = {
    "__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__annotations__",
    "__firstlineno__", "__slotnames__", "__static_attributes__", "__annotate_func__",
    "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__class_getitem__",
    "__dataclass_fields__", "__dataclass_params__", "__parameters__", "__orig_bases__",
    "_backward_cls",
}  # fmt: skip
"""Attributes of classes that say nothing of what they compute."""
_PARTS = (  # of a function, and of what wraps one
    "__code__", "__defaults__", "__kwdefaults__", "__wrapped__", "func", "args", "keywords", "fget",
    "fset",
)  # fmt: skip


class IdentityError(ValueError):
    """Code that cannot be followed, or that differs from its source: no key could identify its
    runs.
    """


def package_digest(module: str, name: str, chosen: frozenset[str] | None = None) -> str:
    """Digest of a definition of the package and of all that it reaches, 16 hex digits.

    chosen: the names that a run gives, which pick entries of `Choices`; None for all entries.
    IdentityError, in one line, for a definition or an import that is not loaded as its source says.
    """
    graph = HERE.graph(HERE.resolved(module, name), chosen)
    for place, found in (*graph.texts, *graph.imports):
        if not _is_loaded(place, found):
            raise IdentityError(
                f"{place}.{found} is not what its source says: it was replaced at run time, or its "
                "file was edited after the import. Pass your own part as an argument, "
                "objective=my_loss for example, or restart the kernel"
            )
    return graph.digest


def follow(value: Any, name: str) -> str:
    """Digest of a value and of all that it reaches; 16 hex digits. name: what to call it in an
    error.

    IdentityError names what can't be followed, and what to do instead. An object with a string
    attribute `digest` is taken at its word.
    """
    return _Follower().digest(value, name)


def installed(module: str) -> bool:
    """Whether a module is Python's or an installed package's, whose code is not followed."""
    root = module.split(".")[0]
    if root in sys.stdlib_module_names:
        return True
    spec = None
    with contextlib.suppress(ValueError):  # __main__, and a module made by hand
        spec = importlib.util.find_spec(root)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    roots = (*site.getsitepackages(), site.getusersitepackages())
    return any(str(place).startswith(roots) for place in places)


def is_held(value: Any) -> bool:
    """Whether a function or class is what its module holds under its name, or is wrapped by that;
    what wraps it has its name as well.
    """
    held: Any = getattr(sys.modules.get(value.__module__), value.__qualname__, None)
    return inspect.unwrap(held, stop=lambda each: each is value) is value


class _Follower:
    def __init__(self) -> None:
        # id -> in which order it was met, by which what refers to itself is told, and the value,
        # so that no id is used twice
        self.met: dict[int, tuple[int, Any]] = {}

    def digest(self, value: Any, name: str) -> str:
        if type(value) in _PLAIN:
            return digest_of(type(value).__name__, repr(value))
        if id(value) in self.met:
            return digest_of("again", str(self.met[id(value)][0]))
        self.met[id(value)] = len(self.met), value
        return digest_of(*self.parts(value, name))

    def all(self, values: Mapping[str, Any], name: str) -> list[str]:
        """The names and the digests of what they stand for."""
        found: list[str] = []
        for key, each in values.items():
            found += [key, self.digest(each, f"{key}, {name}")]
        return found

    def parts(self, value: Any, name: str) -> list[str]:
        if isinstance(value, types.ModuleType):
            return ["module", *self.module(value, name)]
        if isinstance(value, type | types.FunctionType):
            home, (first, *inner) = value.__module__ or "", value.__qualname__.split(".")
            if is_ours(home) and (is_held(value) if not inner else "<locals>" not in inner):
                return ["package", package_digest(home, first), *inner]
            if installed(home):
                return [home, value.__qualname__]
            return self.type(value, name) if isinstance(value, type) else self.function(value, name)
        cls, kind = type(value), type(value).__name__
        if cls in (list, tuple):
            return [kind, *(self.digest(each, f"{name}[{i}]") for i, each in enumerate(value))]
        if cls in (set, frozenset):
            return [kind, *sorted(follow(each, f"an element of {name}") for each in value)]
        told = inspect.getattr_static(value, "digest", None)
        if isinstance(told, str | property | functools.cached_property):
            return [kind, str(value.digest)]
        if isinstance(value, torch.Tensor):
            raw = digest_of_tensors(f"{value.requires_grad}", {"": value.detach().cpu()})
            return ["tensor", raw, self.digest(cls, kind), *self.all(vars(value), f"of {name}")]
        if (functions := self.wrapped(value)) is not None:
            shown = kind if is_ours(cls.__module__) else self.digest(cls, kind)
            return [shown, *(self.digest(each, name) for each in functions)]
        return self.reduced(value, name)

    def wrapped(self, value: Any) -> tuple[Any, ...] | None:
        """The functions of a property, of a static or class method, of `functools.cache` or an
        `Experiment`; None of anything else.
        """
        if isinstance(value, property):
            return value.fget, value.fset, value.fdel
        if isinstance(value, functools.cached_property):
            return (value.func,)
        home = type(value).__module__
        inner = getattr(value, "__wrapped__", None) if installed(home) or is_ours(home) else None
        return (inner,) if callable(inner) else None

    def reduced(self, value: Any, name: str) -> list[str]:
        """Any other value, by what it is made of anew: what `pickle` would keep of it."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            said = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise IdentityError(
                f"{name} is a {kind}, which cannot be followed into a run's key: make it a number, "
                "a string, a tensor, a function or a class, or hand it in as a parameter"
            ) from None
        if isinstance(said, str):
            return [str(getattr(value, "__module__", "")), said]
        make, given, state, *items = (*said, None, None, None)[:5]
        parts = [make, *given, state, *(each and [*each] for each in items)]
        return ["object", *(self.digest(each, f"a part of {name}") for each in parts)]

    def type(self, cls: type, name: str) -> list[str]:
        own = {
            key: each
            for key, each in vars(cls).items()
            if key not in LEFT_OUT and not isinstance(each, types.GetSetDescriptorType)
        }
        above = (*cls.__bases__, type(cls))
        bases = [self.digest(base, f"a base of {name}") for base in above]
        return ["class", *bases, *self.all(own, f"of {name}")]

    def module(self, module: types.ModuleType, name: str) -> list[str]:
        if installed(module.__name__):
            return [module.__name__]
        if is_ours(module.__name__):
            names = HERE.parse(module.__name__).definitions
            return [package_digest(module.__name__, each) for each in names]
        own = {
            key: each
            for key, each in vars(module).items()
            if not key.startswith("__") and not isinstance(each, types.ModuleType)
        }
        return self.all(own, f"of {name}")

    def function(self, function: types.FunctionType, name: str) -> list[str]:
        code, defaults = function.__code__, (function.__defaults__, function.__kwdefaults__)
        closure: dict[str, Any] = {}
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            closure[free] = None
            with contextlib.suppress(ValueError):  # not filled yet
                closure[free] = cell.cell_contents
        return [
            *("function", *code_text(code, function.__doc__)),
            *(self.digest(each, f"a default of {name}") for each in defaults),
            *self.all(closure, f"in the closure of {name}"),
            *self.all(dict(_globals(code, function.__globals__)), f"used in {name}"),
            *self.all(vars(function), f"of {name}"),
        ]


def _globals(code: types.CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Global names that code uses, with their values; of a module that is only asked for an
    attribute, that attribute.
    """
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        name, after = step.argval, steps[at + 1 :]
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if name in scope:
                yield _attribute(name, scope[name], after)
        elif step.opname == "IMPORT_NAME" and not installed(name):
            try:
                module = importlib.import_module(name)
            except ImportError:  # which the code may expect
                yield name, None
                continue
            steps_of_it = itertools.takewhile(lambda s: s.opname in _IMPORTING, after)
            names = [s.argval for s in steps_of_it if s.opname == "IMPORT_FROM"]
            yield from [(each, getattr(module, each)) for each in names] or [(name, module)]
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _globals(const, scope)


def _attribute(name: str, value: Any, steps: list[dis.Instruction]) -> tuple[str, Any]:
    for step in itertools.takewhile(lambda s: s.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps):
        if not isinstance(value, types.ModuleType) or not hasattr(value, step.argval):
            break
        name, value = f"{name}.{step.argval}", getattr(value, step.argval)
    return name, value


# --- what is loaded is what its source says -------------------------------------------------------


def _is_loaded(place: str, name: str) -> bool:
    module, source = sys.modules.get(place), HERE.parse(place)
    if module is None:
        return True
    live = getattr(module, name, None)
    if name in source.definitions:
        return _alike(_said(module, name), live)
    full = source.imports.get(name, "")
    base, _, attribute = full.rpartition(".")
    return live is getattr(sys.modules.get(base), attribute, sys.modules.get(full, live))


@functools.cache
def _said(module: types.ModuleType, name: str) -> Any:
    """What the source of a module gives to a name, among the names that the module holds now."""
    source, scope = HERE.parse(module.__name__), dict(vars(module))
    imports = [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    # an imported name is called by another instruction
    tree = ast.Module([*imports, *source.definitions[name]], [])
    exec(compile(tree, "<source>", "exec", dont_inherit=True), scope)
    return scope.get(name)


def _alike(said: Any, live: Any) -> bool:
    """Whether two values are equal, functions and classes by what they say; True where that cannot
    be seen.
    """
    if said is live:
        return True
    if type(said) is not type(live):
        return False
    if isinstance(said, types.CodeType):
        return said == live or [*code_text(said)] == [*code_text(live)]
    if parts := _parts(said):
        own = _parts(live)
        return parts.keys() == own.keys() and all(_alike(parts[key], own[key]) for key in parts)
    try:
        return type(said).__eq__ is object.__eq__ or bool(said == live)
    except Exception:  # what has no truth value
        return True


def _parts(value: Any) -> dict[Any, Any]:
    """What a value consists of; nothing where `==` tells it from others."""
    if isinstance(value, type):
        parts = {**vars(value), "bases": value.__bases__}
        return {key: each for key, each in parts.items() if key not in LEFT_OUT}
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return {name: getattr(value, name) for name in _PARTS if hasattr(value, name)}


def code_text(code: types.CodeType, doc: str | None = None) -> Iterator[str]:
    """What a code object says, without lines and file, and without its docstring if given."""
    yield from (code.co_code.hex(), repr(code.co_names), repr(code.co_varnames))
    counts = (code.co_flags & 0xFF, code.co_argcount, code.co_kwonlyargcount)
    yield repr((code.co_freevars, *counts, code.co_posonlyargcount))
    for place, const in enumerate(code.co_consts):
        if isinstance(const, types.CodeType):
            yield from code_text(const)
        elif isinstance(const, frozenset):
            yield repr(sorted(map(repr, const)))
        else:
            yield repr(None if place == 0 and const == doc else const)
