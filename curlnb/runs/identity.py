"""What a run is: the digest of the code that makes its numbers, of this package and of a notebook.

Code of this package is read from its source (`curlnb.runs.source`), and what is loaded must be what the source says: a function or
constant of the package that was replaced at run time, or a file edited after it was imported, is refused. Code of a notebook or script is
followed at run time by value (`curlnb.runs.following`).
"""

import ast
import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from curlnb.runs.source import Definition, defined, graph_digest, parse, resolved


class IdentityError(ValueError):
    """Code that cannot be followed, or that is not what its source says: its runs would have no honest key."""


def package_digest(module: str, name: str) -> str:
    """Digest of a definition of this package and of all that it reaches, after a look at whether what is loaded is what the source says.

    IdentityError names an attribute that was replaced at run time, or whose file was edited after it was imported.
    """
    start = resolved(module, name)
    digest, reached, used_imports = graph_digest(start)
    for definition in reached:
        _check_loaded(definition)
    for place, local in used_imports:
        _check_import(place, local)
    return digest


# --- what is loaded is what the source says ---------------------------------------------------------------------------

_SEEN: dict[tuple[str, str], Any] = {}  # (module, name) -> the object that was found to be its source's


def _check_loaded(at: Definition) -> None:
    module = sys.modules.get(at.module)
    if module is None or not at.name:
        return
    live, seen = vars(module).get(at.name), _SEEN.get((at.module, at.name))
    node = parse(at.module).definitions.get(at.name, [None])[-1]
    if isinstance(node, ast.ClassDef) and isinstance(live, type):
        now: Any = tuple(live.__dict__.get(name) for child in node.body for name in defined(child))
        same = seen == now if seen is not None else _same_class(live, node)
    else:
        now = live
        same = seen is live if seen is not None else _is_source(live, node, module)
    if not same:
        raise IdentityError(_replaced(at.module, at.name))
    _SEEN[at.module, at.name] = now


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
    expected = whole if whole is not None else vars(sys.modules[base]).get(attribute) if base in sys.modules and attribute else None
    live = vars(module)[local]
    if expected is not None and live is not expected and not (isinstance(live, ModuleType) and live.__name__ == base):
        raise IdentityError(_replaced(place, local))


def _function_code(value: Any) -> CodeType | None:
    """The code of a function, through decorators that say what they wrap, or None."""
    for _ in range(20):
        code, wrapped = getattr(value, "__code__", None), getattr(value, "__wrapped__", None)
        if wrapped is None and isinstance(code, CodeType):
            return code
        value = next((v for n in ("__wrapped__", "__func__", "fget", "func") if (v := getattr(value, n, None)) is not None), None)
    return None


def _is_source(live: Any, node: ast.stmt | None, module: ModuleType) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _same_code(_function_code(live), _codes(module.__name__).get(node.name))
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return True
    value, target = node.value, node.targets[0] if isinstance(node, ast.Assign) else node.target
    if value is None or (isinstance(value, ast.Dict | ast.List | ast.Set) and not ast.unparse(value)[1:-1]):
        return True  # an empty container is a cache, which fills
    scope = dict(vars(module))
    try:
        imports = [each for each in parse(module.__name__).tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module([*imports, node], []), "<constant>", "exec", dont_inherit=True), scope)
        return not isinstance(target, ast.Name) or _alike(scope[target.id], live)
    except Exception:  # what needs more than the module's names, or has no truth value
        return True


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
    return type(said).__eq__ is object.__eq__ or bool(said == live)


def _same_class(live: type, node: ast.ClassDef) -> bool:
    codes = _codes(live.__module__)
    methods = [child.name for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]
    return all(_same_code(_function_code(live.__dict__.get(name)), codes.get(f"{node.name}.{name}")) for name in methods)


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
    """What a code object says, without lines and file, and without its docstring where that is given."""
    yield from (code.co_code.hex(), repr(code.co_names), repr(code.co_varnames), repr(code.co_freevars), str(code.co_flags & 0xFF))
    yield from (str(code.co_argcount), str(code.co_kwonlyargcount), str(code.co_posonlyargcount))
    for place, const in enumerate(code.co_consts):
        if isinstance(const, CodeType):
            yield from code_text(const)
        elif isinstance(const, frozenset):
            yield repr(sorted(map(repr, const)))
        else:
            yield repr(None if place == 0 and const == doc else const)
