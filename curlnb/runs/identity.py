"""What a run is: the digest of the code that makes its numbers, of this package and of a notebook.

Code of this package is read from its source (`curlnb.runs.source`), and what is loaded must be what
the source says: a function or constant of the package that was replaced at run time, or a file
edited after it was imported, is refused. Code of a notebook or script is followed at run time by
value (`curlnb.runs.following`).
"""

import ast
import functools
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import Field, dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from curlnb.runs.source import Definition, defined, graph_digest, parse, resolved


class IdentityError(ValueError):
    """Code that cannot be followed, or that is not what its source says: its runs would have no
    honest key.
    """


def package_digest(module: str, name: str) -> str:
    """Digest of a definition of this package and of all that it reaches, after a look at whether
    what is loaded is what the source says.

    IdentityError names an attribute that was replaced at run time, or whose file was edited after
    it was imported.
    """
    start = resolved(module, name)
    digest, reached, used_imports = graph_digest(start)
    for definition in reached:
        _check_loaded(definition)
    for place, local in used_imports:
        _check_import(place, local)
    return digest


# --- what is loaded is what the source says -------------------------------------------------------

_SEEN: dict[
    tuple[str, str], Any
] = {}  # (module, name) -> what tells that it still is what was found to be its source's (`_held`)


def _check_loaded(at: Definition) -> None:
    module = sys.modules.get(at.module)
    if module is None or not at.name:
        return
    live, seen = vars(module).get(at.name), _SEEN.get((at.module, at.name))
    node = parse(at.module).definitions.get(at.name, [None])[-1]
    if isinstance(node, ast.ClassDef) and isinstance(live, type):
        now: Any = _held(
            {
                name: value
                for name, value in vars(live).items()
                if name in _own_names(node) or isinstance(value, FunctionType)
            }
        )
    else:
        now = _Is(live) if _is_cache(node) else _held(live)
    if not (seen == now if seen is not None else _is_source(live, node, module)):
        raise IdentityError(_replaced(at.module, at.name))
    _SEEN[at.module, at.name] = now


@dataclass(frozen=True, eq=False)
class _Is:
    """Equal to the same object only."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _held(value: Any) -> list[Any]:
    """Equal as long as the object is the same, and in it a container's elements and a function's
    code, defaults and what it wraps.
    """
    if isinstance(
        value, dict
    ):  # not by itself: a class's attributes are gathered in a new one each time
        return [dict, *(part for key, each in value.items() for part in (_Is(key), *_held(each)))]
    inner: list[Any] = []
    if isinstance(value, list | tuple):
        inner = [part for each in value for part in _held(each)]
    elif isinstance(value, set | frozenset):
        inner = sorted(map(repr, value))
    elif isinstance(value, functools.partial):
        inner = [*_held(value.args), *_held(value.keywords)]
    elif isinstance(value, FunctionType):
        inner = [_Is(value.__code__), *_held(value.__defaults__), *_held(value.__kwdefaults__)]
    below = None if isinstance(value, type) else _below(value)
    return [_Is(value), *inner, *(_held(below) if below is not None else [])]


def _replaced(module: str, name: str) -> str:
    return (
        f"{module}.{name} is not what its source says: it was replaced at run time, or its file was edited after the import. "
        "Pass your own part as an argument, objective=my_loss say, or restart the kernel"
    )


def _check_import(place: str, local: str) -> None:
    """That a name which `place` imports still is what it imported."""
    module = sys.modules.get(place)
    if module is None or local not in vars(module):
        return
    base, attribute = parse(place).imports[local]
    whole = sys.modules.get(base if attribute is None else f"{base}.{attribute}")
    expected = (
        whole
        if whole is not None
        else vars(sys.modules[base]).get(attribute)
        if base in sys.modules and attribute
        else None
    )
    live = vars(module)[local]
    if (
        expected is not None
        and live is not expected
        and not (isinstance(live, ModuleType) and live.__name__ == base)
    ):
        raise IdentityError(_replaced(place, local))


def _below(value: Any) -> Any:
    """What a decorated function stands before: what its outermost decorator was given; None for a
    plain one.
    """
    return next(
        (
            v
            for n in ("__wrapped__", "__func__", "fget", "func")
            if (v := getattr(value, n, None)) is not None
        ),
        None,
    )


def _is_function(
    live: Any, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, module: ModuleType
) -> bool:
    """Whether `live` is the function of the source, below as many decorators as it has there, with
    the same defaults.
    """
    for _ in range(len(node.decorator_list) + 1):
        code = getattr(live, "__code__", None)
        if _below(live) is None or _same_code(code, _codes(module.__name__).get(name)):
            break
        live = _below(live)
    else:
        return False
    if not isinstance(live, FunctionType) or not _same_code(
        live.__code__, _codes(module.__name__).get(name)
    ):
        return False
    given, asked = node.args, [each for each in node.args.kw_defaults if each is not None]
    if not given.defaults and not asked:
        return not live.__defaults__ and not live.__kwdefaults__
    plain = ast.arguments(
        [],
        [ast.arg(f"_{i}") for i in range(len(given.defaults))],
        None,
        [],
        [],
        None,
        given.defaults,
    )
    if asked:
        plain.kwonlyargs = [
            arg
            for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if default is not None
        ]
        plain.kwonlyargs, plain.kw_defaults = (
            [ast.arg(arg.arg) for arg in plain.kwonlyargs],
            list(asked),
        )
    said = _evaluated(
        ast.Assign([ast.Name("said", ast.Store())], ast.Lambda(plain, ast.Constant(None))),
        module,
        "said",
    )
    return said is _UNKNOWN or _alike(
        [said.__defaults__, said.__kwdefaults__], [live.__defaults__, live.__kwdefaults__]
    )


_UNKNOWN = object()


def _evaluated(node: ast.stmt, module: ModuleType, name: str) -> Any:
    """The value that an assignment gives `name` where the module's own names stand for what they
    are now; _UNKNOWN where it needs more.
    """
    scope = dict(vars(module))
    imports = [
        each
        for each in parse(module.__name__).tree.body
        if isinstance(each, ast.Import | ast.ImportFrom)
    ]
    try:
        tree = ast.fix_missing_locations(ast.Module([*imports, node], []))
        exec(compile(tree, "<constant>", "exec", dont_inherit=True), scope)
        return scope[name]
    except Exception:
        return _UNKNOWN


def _is_cache(node: ast.stmt | None) -> bool:
    """Whether a container is empty in the source, and so fills."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(value, ast.Dict | ast.List | ast.Set) and not ast.unparse(value)[1:-1]


def _is_source(live: Any, node: ast.stmt | None, module: ModuleType) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _is_function(live, node, node.name, module)
    if isinstance(node, ast.ClassDef):
        return isinstance(live, type) and _is_class(live, node, module)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or _is_cache(node):
        return True
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    said = _evaluated(node, module, target.id) if isinstance(target, ast.Name) else _UNKNOWN
    return said is _UNKNOWN or _alike(said, live)


def _alike(said: Any, live: Any) -> bool:
    """Whether two values are equal, functions by their code; True where that cannot be told."""
    if type(said) is not type(live):
        return False
    if isinstance(said, dict):
        return said.keys() == live.keys() and all(_alike(said[key], live[key]) for key in said)
    if isinstance(said, list | tuple):
        return len(said) == len(live) and all(map(_alike, said, live))
    if isinstance(said, functools.partial):
        return _alike((said.func, said.args, said.keywords), (live.func, live.args, live.keywords))
    if isinstance(said, FunctionType):
        return _same_code(said.__code__, live.__code__)
    try:
        return type(said).__eq__ is object.__eq__ or bool(said == live)
    except Exception:  # what has no truth value
        return True


_INSTALLED = (
    "<frozen ",
    *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)


@functools.cache
def _own_names(node: ast.ClassDef) -> set[str]:
    return {name for child in node.body for name in defined(child)}


def _is_class(live: type, node: ast.ClassDef, module: ModuleType) -> bool:
    """Whether methods and constants are those of the source, and what else is a function comes of a
    decorator or a base (a dataclass's).
    """
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if not _is_function(
                vars(live).get(child.name), child, f"{node.name}.{child.name}", module
            ):
                return False
        elif isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None:
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            name = target.id if isinstance(target, ast.Name) else ""
            value = vars(live).get(name, _UNKNOWN)
            if value is _UNKNOWN or _is_cache(child) or hasattr(type(value), "__get__"):
                continue  # a field without a value of its own, one of a named tuple
            said = _evaluated(child, module, name)
            if not (
                said is _UNKNOWN or _alike(said.default if isinstance(said, Field) else said, value)
            ):
                return False
    added = (
        value
        for name, value in vars(live).items()
        if isinstance(value, FunctionType) and name not in _own_names(node)
    )
    return all(
        value.__code__.co_filename == "<string>"
        or value.__code__.co_filename.startswith(_INSTALLED)
        for value in added
    )


@functools.cache
def _codes(module: str) -> dict[str, CodeType]:
    """The code of the functions and methods of a module's source, by qualified name."""
    found: dict[str, CodeType] = {}
    waiting = [compile(parse(module).tree, "<source>", "exec", dont_inherit=True)]
    for code in waiting:
        inner = [const for const in code.co_consts if isinstance(const, CodeType)]
        found |= {each.co_qualname: each for each in inner}
        waiting += inner
    return found


def _same_code(one: CodeType | None, other: CodeType | None) -> bool:
    return one is not None and other is not None and [*code_text(one)] == [*code_text(other)]


def code_text(code: CodeType, doc: str | None = None) -> Iterator[str]:
    """What a code object says, without lines and file, and without its docstring where that is
    given.
    """
    yield from (
        code.co_code.hex(),
        repr(code.co_names),
        repr(code.co_varnames),
        repr(code.co_freevars),
        str(code.co_flags & 0xFF),
    )
    yield from (str(code.co_argcount), str(code.co_kwonlyargcount), str(code.co_posonlyargcount))
    for place, const in enumerate(code.co_consts):
        if isinstance(const, CodeType):
            yield from code_text(const)
        elif isinstance(const, frozenset):
            yield repr(sorted(map(repr, const)))
        else:
            yield repr(None if place == 0 and const == doc else const)
