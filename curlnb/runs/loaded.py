"""What is loaded of the package is what its source says, or a run is refused: a function, constant
or method that was replaced at run time, or whose file was edited after the import.

A definition's statement is executed once more, among the names that its module holds now, and what
it gives is compared with what the module holds.
"""

import ast
import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from curlnb.runs.source import HERE, Definition, Graph

LEFT_OUT = {
    "__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__annotations__",
    "__firstlineno__", "__slotnames__", "__static_attributes__", "__annotate_func__",
    "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__class_getitem__",
    "__dataclass_fields__", "__dataclass_params__", "__parameters__", "__orig_bases__",
    "_backward_cls",
}  # fmt: skip
"""Attributes of classes that say nothing of what they compute."""
_PARTS = (  # of a function, and of what wraps one
    "__defaults__", "__kwdefaults__", "__wrapped__", "func", "args", "keywords", "fget", "fset",
)  # fmt: skip
_UNKNOWN = object()


class IdentityError(ValueError):
    """Code that cannot be followed, or that is not what its source says: its runs would have no
    honest key.
    """


def check_loaded(graph: Graph) -> None:
    """IdentityError, in one line, for a definition or an import that is not as the source says."""
    replaced = [(at.module, at.name) for at in graph.texts if not _is_loaded(at)]
    replaced += [place for place in graph.imports if not _is_imported(*place)]
    if replaced:
        raise IdentityError(
            f"{'.'.join(replaced[0])} is not what its source says: it was replaced at run time, or "
            "its file was edited after the import. Pass your own part as an argument, "
            "objective=my_loss for example, or restart the kernel"
        )


def _is_loaded(at: Definition) -> bool:
    module, nodes = sys.modules.get(at.module), HERE.parse(at.module).definitions.get(at.name)
    if module is None or not nodes:
        return True
    return _alike(_said(at.name, nodes[-1], module), vars(module).get(at.name))


def _is_imported(place: str, local: str) -> bool:
    """Whether a name that a module imports still is what it imported."""
    base, attribute = HERE.parse(place).imports[local]
    module, live = sys.modules.get(base), getattr(sys.modules.get(place), local, _UNKNOWN)
    said = getattr(module, attribute, live) if attribute else module or live
    return live is _UNKNOWN or live is said


@functools.cache
def _said(name: str, node: ast.stmt, module: types.ModuleType) -> Any:
    """What a statement gives `name` among the module's names; _UNKNOWN where it needs more, and for
    a cache, which fills.
    """
    scope, body = dict(vars(module)), HERE.parse(module.__name__).tree.body
    imports = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    tree = ast.Module([*imports, node], [])  # an imported name is called by another instruction
    run = functools.partial(exec, compile(tree, "<source>", "exec", dont_inherit=True), scope)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        run()
        return scope[name]
    if getattr(node, "value", None) is None or isinstance(node, ast.AugAssign):
        return _UNKNOWN
    with contextlib.suppress(Exception):
        run()
        if scope[name] not in ({}, [], set()):
            return scope[name]
    return _UNKNOWN


def _alike(said: Any, live: Any) -> bool:
    """Whether two values are equal, functions and classes by their code; True where that cannot be
    seen.
    """
    if said is live or said is _UNKNOWN:
        return True
    if type(said) is not type(live):
        return False
    if isinstance(said, type):
        one, other = ({**vars(each), "bases": each.__bases__} for each in (said, live))
        left = (one.keys() | other.keys()) - LEFT_OUT
        return all(_alike(one.get(key), other.get(key)) for key in left)
    if isinstance(said, dict):
        return said.keys() == live.keys() and all(_alike(said[key], live[key]) for key in said)
    if isinstance(said, list | tuple):
        return len(said) == len(live) and all(map(_alike, said, live))
    if isinstance(said, types.FunctionType) and not _same_code(said.__code__, live.__code__):
        return False
    if parts := [name for name in _PARTS if hasattr(said, name)]:
        return all(_alike(getattr(said, name), getattr(live, name, None)) for name in parts)
    try:
        return type(said).__eq__ is object.__eq__ or bool(said == live)
    except Exception:  # what has no truth value
        return True


def _same_code(said: types.CodeType, live: types.CodeType) -> bool:
    return said == live or [*code_text(said)] == [*code_text(live)]


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
