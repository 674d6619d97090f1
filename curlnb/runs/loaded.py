"""What is loaded of the package is what its source says, or a run is refused: a function, constant
or method that was replaced at run time, or whose file was edited after the import.
"""

import ast
import contextlib
import dataclasses
import functools
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

from curlnb.runs.source import HERE, Definition, Graph, defined


class IdentityError(ValueError):
    """Code that cannot be followed, or that is not what its source says: its runs would have no
    honest key.
    """


def check_loaded(graph: Graph) -> None:
    """IdentityError, in one line, for a definition or an import that is not as the source says."""
    for at in graph.texts:
        if not _is_loaded(at):
            raise IdentityError(_REPLACED.format(at.module, at.name))
    for module, local in graph.imports:
        if not _is_imported(module, local):
            raise IdentityError(_REPLACED.format(module, local))


_REPLACED = (
    "{}.{} is not what its source says: it was replaced at run time, or its file was edited after "
    "the import. Pass your own part as an argument, objective=my_loss for example, or restart the "
    "kernel"
)
_UNKNOWN = object()


def _is_loaded(at: Definition) -> bool:
    module, node = sys.modules.get(at.module), HERE.parse(at.module).definitions.get(at.name)
    return (
        module is None
        or not node
        or _is_source(at.name, vars(module).get(at.name), node[-1], module)
    )


def _is_imported(place: str, local: str) -> bool:
    """Whether a name that a module imports still is what it imported."""
    base, attribute = HERE.parse(place).imports[local]
    live = vars(sys.modules[place]).get(local, _UNKNOWN) if place in sys.modules else _UNKNOWN
    said = sys.modules.get(f"{base}.{attribute}" if attribute else base)
    if said is None and attribute:
        said = vars(sys.modules[base]).get(attribute) if base in sys.modules else None
    named = isinstance(live, types.ModuleType) and live.__name__ == base  # `import a.b` binds a
    return live is _UNKNOWN or said is None or live is said or named


def _is_source(
    name: str, live: Any, node: ast.stmt, module: types.ModuleType, owner: str = ""
) -> bool:
    """Whether `live` is what a statement of the source gives `name`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _is_function(live, node, f"{owner}{name}", module)
    if isinstance(node, ast.ClassDef):
        return isinstance(live, type) and _is_class(live, node, module)
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    empty = isinstance(value, ast.Dict | ast.List | ast.Set) and not ast.unparse(value)[1:-1]
    if value is None or empty:  # a field without a default; a cache, which fills
        return True
    said = _evaluated(node, name, module)
    said = said.default if isinstance(said, dataclasses.Field) else said
    return said is _UNKNOWN or _alike(said, live)


def _is_function(live: Any, node: Any, name: str, module: types.ModuleType) -> bool:
    """Whether `live` is the source's function below its decorators, with the same defaults."""
    for _ in node.decorator_list:
        if _is_code(getattr(live, "__code__", None), module.__name__, name):
            break
        below = ("__wrapped__", "__func__", "fget", "func")
        live = next((v for n in below if (v := getattr(live, n, None)) is not None), live)
    if not isinstance(live, types.FunctionType):
        return False
    said = _defaults(node, module)
    same = said is _UNKNOWN or _alike(said, (live.__defaults__, live.__kwdefaults__))
    return same and _is_code(live.__code__, module.__name__, name)


@functools.cache
def _defaults(node: Any, module: types.ModuleType) -> Any:
    given = node.args
    if not given.defaults and not any(given.kw_defaults):
        return None, None
    plain = ast.Assign([ast.Name("said", ast.Store())], ast.Lambda(given, ast.Constant(None)))
    said = _evaluated(plain, "said", module)
    return said if said is _UNKNOWN else (said.__defaults__, said.__kwdefaults__)


def _is_class(live: type, node: ast.ClassDef, module: types.ModuleType) -> bool:
    """Whether methods and constants are the source's, and any other method an installed package's
    (a dataclass's).
    """
    own = vars(live)
    for child in node.body:
        for name in defined(child):
            value = own.get(name, _UNKNOWN)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            slot = not function and (value is _UNKNOWN or hasattr(type(value), "__get__"))
            if not slot and not _is_source(name, value, child, module, f"{node.name}."):
                return False
    names = {name for child in node.body for name in defined(child)}
    added = [f for n, f in own.items() if isinstance(f, types.FunctionType) and n not in names]
    return all(f.__code__.co_filename.startswith(("<string>", *_INSTALLED)) for f in added)


_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = ("<frozen ", *map(sysconfig.get_path, _PATHS))


@functools.cache
def _evaluated(node: ast.stmt, name: str, module: types.ModuleType) -> Any:
    """What an assignment gives `name` where the module's names stand for what they are now;
    _UNKNOWN where it needs more.
    """
    scope = dict(vars(module))
    with contextlib.suppress(Exception):
        tree = ast.fix_missing_locations(ast.Module([node], []))
        exec(compile(tree, "<string>", "exec", dont_inherit=True), scope)
        return scope[name]
    return _UNKNOWN


def _alike(said: Any, live: Any) -> bool:
    """Whether two values are equal, functions by their code; True where that cannot be seen."""
    if type(said) is not type(live):
        return False
    if isinstance(said, dict):
        return said.keys() == live.keys() and all(_alike(said[key], live[key]) for key in said)
    if isinstance(said, list | tuple):
        return len(said) == len(live) and all(map(_alike, said, live))
    if isinstance(said, functools.partial):
        parts = [(each.func, each.args, each.keywords) for each in (said, live)]
        return _alike(*parts)
    if isinstance(said, types.FunctionType):
        return [*code_text(said.__code__)] == [*code_text(live.__code__)]
    try:
        return type(said).__eq__ is object.__eq__ or bool(said == live)
    except Exception:  # what has no truth value
        return True


_KNOWN: dict[
    tuple[str, str], types.CodeType
] = {}  # the last code that was found to be the source's


def _is_code(live: types.CodeType | None, module: str, name: str) -> bool:
    """Whether code is that of a function or method, by qualified name, of a module's source."""
    if live is None or name not in _codes(module):
        return False
    if _KNOWN.get((module, name)) is not live:
        if [*code_text(live)] != [*code_text(_codes(module)[name])]:
            return False
        _KNOWN[module, name] = live
    return True


@functools.cache
def _codes(module: str) -> dict[str, types.CodeType]:
    """The code of the functions and methods of a module's source, by qualified name."""
    found: dict[str, types.CodeType] = {}
    waiting = [compile(HERE.parse(module).tree, "<source>", "exec", dont_inherit=True)]
    for code in waiting:
        inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
        found |= {each.co_qualname: each for each in inner}
        waiting += inner
    return found


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
