"""What a run is: the digest of the code that makes its numbers, of this package and of a notebook.

Code of this package is read from its source (`curlnb.runs.source`), and what is loaded must be what the source says: a function or
constant of the package that was replaced at run time, or a file edited after it was imported, is refused. Code of a notebook or script is
followed at run time by value (`curlnb.runs.following`).
"""

import ast
import functools
import sys
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


def module_definitions(module: str) -> list[str]:
    """Names that a module of this package defines itself."""
    return list(parse(module).definitions)


# --- what is loaded is what the source says ---------------------------------------------------------------------------

_SEEN: dict[tuple[str, str], Any] = {}  # (module, name) -> the object that was found to be its source's


def _check_loaded(at: Definition) -> None:
    module = sys.modules.get(at.module)
    if module is None or not at.name:
        return
    live = vars(module).get(at.name)
    node = parse(at.module).definitions.get(at.name, [None])[-1]
    seen = _SEEN.get((at.module, at.name))
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


def code_of(value: Any) -> CodeType | None:
    """The code of a function, through decorators that say what they wrap, or None."""
    for _ in range(20):
        if isinstance(code := getattr(value, "__code__", None), CodeType):
            wrapped = getattr(value, "__wrapped__", None)
            if wrapped is None:
                return code
            value = wrapped
        else:
            value = next((v for n in ("__wrapped__", "__func__", "fget", "func") if (v := getattr(value, n, None)) is not None), None)
    return None


def _is_source(live: Any, node: ast.stmt | None, module: ModuleType) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        code = code_of(live)
        return code is not None and _same_code(code, _compiled(module.__name__, node))
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return True
    value = node.value
    if value is None or (isinstance(value, ast.Dict | ast.List | ast.Set) and not ast.unparse(value)[1:-1]):
        return True  # an empty container is a cache, which fills
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    scope = dict(vars(module))
    try:
        exec(compile(ast.Module([*parse(module.__name__).import_nodes, node], []), "<constant>", "exec", dont_inherit=True), scope)
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
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            code = code_of(live.__dict__.get(child.name))
            if code is None or not _same_code(code, _compiled(live.__module__, node, child.name)):
                return False
    return True


def _compiled(module: str, node: ast.stmt, method: str = "") -> CodeType:
    """The code of a definition or of a class's method, compiled beside the module's imports, since calls of modules compile otherwise."""
    code: CodeType = compile(ast.Module([*parse(module).import_nodes, node], []), "<source>", "exec", dont_inherit=True)
    for name in (getattr(node, "name", ""), method) if method else (getattr(node, "name", ""),):
        code = [const for const in code.co_consts if isinstance(const, CodeType) and const.co_name == name][-1]
    return code


def _same_code(one: CodeType, other: CodeType) -> bool:
    if (one.co_code, one.co_names, one.co_varnames, len(one.co_consts)) != (
        other.co_code,
        other.co_names,
        other.co_varnames,
        len(other.co_consts),
    ):
        return False
    pairs = zip(one.co_consts, other.co_consts, strict=True)
    return all(_same_code(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else repr(a) == repr(b) for a, b in pairs)
