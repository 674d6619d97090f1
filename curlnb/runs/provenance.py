"""Where a number comes from: the code that made it, the versions, the machine."""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import platform
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from curlnb.runs.environment import home

PACKAGE = "curlnb"
_KEEPS = {"curlnb.runs.store", "curlnb.runs.provenance", "curlnb.runs.environment"}  # modules that keep numbers and make none
_SKIPPED_FIELDS = {"type_comment", "type_params", "kind"}  # absent, or empty, in some supported Python versions


# --- the code behind a function ---------------------------------------------------------------------------------------


@dataclass
class _Module:
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # local name -> (module, attribute or None)
    statements: list[ast.stmt] = field(default_factory=list)  # what runs at import and defines no name


def code_digest(function: Callable[..., Any]) -> str:
    """Digest of `function` and of all code of its own package that it can reach by name; 16 hex digits.

    Comments, docstrings, layout and unreachable definitions do not count, so that a new function beside those in use leaves finished
    runs valid. Names are followed statically: a module used as a value counts whole, and a dictionary
    of functions counts with every function in it.
    """
    if function.__module__ != "__main__":
        return _digest(((function.__module__, function.__qualname__.split(".")[0]),))
    source = ast.parse(textwrap.dedent(inspect.getsource(function)))  # written in a notebook's cell
    names = {n.id for n in ast.walk(source) if isinstance(n, ast.Name)}
    used = [value for name, value in function.__globals__.items() if name in names and _is_ours(getattr(value, "__module__", ""))]
    return _digest(tuple((value.__module__, value.__qualname__.split(".")[0]) for value in used), _dump(source.body))


@functools.cache
def _digest(start: tuple[tuple[str, str], ...], text: str = "") -> str:
    followed = {PACKAGE, *(module.split(".")[0] for module, _ in start)}
    reached: dict[tuple[str, str], str] = {}
    waiting = list(start)
    while waiting:
        at = waiting.pop()
        if at in reached or at[0] in _KEEPS:
            continue
        source = _parse(at[0])
        nodes = source.definitions.get(at[1], []) if at[1] else source.statements
        reached[at] = "".join(_dump(node) for node in nodes)
        waiting.append((at[0], ""))
        for node in nodes:
            waiting.extend(target for target in _references(node, source, at[0]) if target[0].split(".")[0] in followed)
    text += "\n".join(f"{module}:{name}={dump}" for (module, name), dump in sorted(reached.items()) if dump)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _parse(module: str) -> _Module:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return _Module()
    parsed = _Module()
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                parsed.imports[local] = (alias.name if alias.asname else local, None)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), spec.parent) if node.level else node.module or ""
            for alias in node.names:
                parsed.imports[alias.asname or alias.name] = (base, alias.name)
        elif names := _defined(node):
            for name in names:
                parsed.definitions.setdefault(name, []).append(node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            parsed.statements.append(node)
    return parsed


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _references(node: ast.stmt, source: _Module, module: str) -> Iterator[tuple[str, str]]:
    based = {id(n.value): n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    for name in ast.walk(node):
        if isinstance(name, ast.Name):
            if name.id in source.definitions:
                yield module, name.id
            elif name.id in source.imports:
                yield from _resolve(source.imports[name.id], based.get(id(name)))
        elif isinstance(name, ast.ImportFrom):  # an import inside a function
            for alias in name.names:
                yield from _resolve((name.module or "", alias.name), None)


def _resolve(target: tuple[str, str | None], attribute: str | None) -> Iterator[tuple[str, str]]:
    module, name = target
    if name is not None and _is_module(f"{module}.{name}"):
        module, name = f"{module}.{name}", None
    if name is not None:
        imported = _parse(module).imports.get(name) if _is_ours(module) else None
        if imported:  # a name passed on by a package's __init__
            yield from _resolve(imported, attribute)
        else:
            yield module, name
    elif attribute is not None:
        yield from _resolve((module, attribute), None) if attribute in _parse(module).imports else ((module, attribute),)
    elif _is_ours(module):
        yield from ((module, each) for each in _parse(module).definitions)


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def _is_module(name: str) -> bool:
    path = Path(__file__).parent.parent.joinpath(*name.split(".")[1:])  # looked up without importing its parent, which may take a second
    return _is_ours(name) and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def _dump(node: object) -> str:
    """A syntax tree as text, without positions and docstrings, alike in every supported Python version."""
    if isinstance(node, list):
        return "[" + ",".join(map(_dump, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            value = value[1:]
        if name not in _SKIPPED_FIELDS and value is not None and value != []:
            parts.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


# --- the machine ------------------------------------------------------------------------------------------------------


@functools.cache
def machine() -> dict[str, str]:
    """Hardware and versions that decide whether two runs can agree bit for bit."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "numpy", "scikit-learn")}
    return {"cpu": _cpu_name(), "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "", **versions}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in reversed(lines)}
        return " ".join(fields.get(name, "") for name in ("model name", "cpu family", "model", "stepping", "CPU part")).strip()
    except OSError:
        name = ["sysctl", "-n", "machdep.cpu.brand_string"]  # macOS; platform.processor() says only "arm" there
        try:
            return subprocess.run(name, capture_output=True, text=True).stdout.strip() or platform.processor()
        except OSError:
            return platform.processor() or platform.machine()


@functools.cache
def commit() -> str:
    """The checkout's commit, with a plus where files differ from it; empty outside a git checkout."""
    try:
        answer = subprocess.run(["git", "describe", "--always", "--dirty=+", "--abbrev=12"], cwd=home(), capture_output=True, text=True)
    except OSError:
        return ""
    return answer.stdout.strip()
