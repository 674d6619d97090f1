"""The package's own code as text, by what it says and not by where it stands.

A definition (function, class or constant) is read as its syntax tree, in which every reference to
another definition of the package counts as that definition's own digest, and every other import by
its full name. So neither the module that holds a definition nor the definition's name counts: code
can be moved and renamed, and every digest stays as it was. Nothing is imported.
"""

import ast
import functools
import hashlib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "curlnb"
_KEEP = "boundary cluster environment executors experiment files following identity provenance source store sweep"
KEEPERS = {
    f"{PACKAGE}.runs.{name}" for name in _KEEP.split()
}  # they keep numbers and make none; what they define counts by name alone
_SKIPPED = {
    "type_comment",
    "type_params",
    "kind",
    "annotation",
    "returns",
}  # says nothing of what is computed, or not in every Python


@dataclass(frozen=True)
class Definition:
    """A name at the top of a module of this package; an empty name stands for the module's
    statements that define nothing.
    """

    module: str
    name: str


@dataclass
class Module:
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(
        default_factory=dict
    )  # local name -> (module, attribute or None)
    statements: list[ast.stmt] = field(
        default_factory=list
    )  # what runs at import and defines no name


def digest_of(*parts: str) -> str:
    """16 hex digits of SHA-256 over strings."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def graph_digest(
    start: Definition,
) -> tuple[str, tuple[Definition, ...], tuple[tuple[str, str], ...]]:
    """Digest, definitions reached, and the (module, local name) of imports that they go through.

    The reached definitions form a graph, possibly with cycles. Each begins with the digest of its
    own text; then, as often as there are definitions, each takes in the digests of those that it
    refers to, in order (colour refinement): equal digests mean equal graphs.
    """
    texts: dict[Definition, str] = {}
    references: dict[Definition, list[Definition]] = {}
    imports: set[tuple[str, str]] = set()
    waiting = [start]
    while waiting:
        at = waiting.pop()
        if at in texts:
            continue
        reader = _read(at)
        texts[at], references[at] = reader.text, reader.references
        imports |= {(at.module, local) for local in reader.imports}
        waiting.extend(reader.references)
    place = {at: number for number, at in enumerate(texts)}
    around = [[number, *(place[other] for other in references[at])] for at, number in place.items()]
    colours = [digest_of(text) for text in texts.values()]
    for _ in texts:
        colours = [digest_of(*(colours[number] for number in numbers)) for numbers in around]
    return colours[place[start]], tuple(texts), tuple(sorted(imports))


# --- reading source -------------------------------------------------------------------------------


@functools.cache
def parse(module: str) -> Module:
    spec = importlib.util.find_spec(module) if is_ours(module) else None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return Module()
    parsed = Module(ast.parse(Path(spec.origin).read_bytes()))
    for node in parsed.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            parsed.imports |= _imported(node, spec.parent or "")
        elif names := defined(node):
            for name in names:
                parsed.definitions.setdefault(name, []).append(node)
        elif not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ) and not _only_for_types(node):
            parsed.statements.append(node)
    parsed.definitions.pop("__all__", None)
    return parsed


def _imported(node: ast.Import | ast.ImportFrom, parent: str) -> dict[str, tuple[str, str | None]]:
    if isinstance(node, ast.Import):
        return {
            a.asname or a.name.split(".")[0]: (a.name if a.asname else a.name.split(".")[0], None)
            for a in node.names
        }
    base = (
        importlib.util.resolve_name("." * node.level + (node.module or ""), parent)
        if node.level
        else node.module or ""
    )
    return {alias.asname or alias.name: (base, alias.name) for alias in node.names}


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name] if not _only_for_types(node) else []
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign | ast.AugAssign)
        else []
    )
    return [
        name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
    ]


def _only_for_types(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return any(
            isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list
        )
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def module_definitions(module: str) -> list[str]:
    """Names that a module of this package defines itself."""
    return list(parse(module).definitions)


def is_ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


@functools.cache
def _is_module(name: str) -> bool:
    path = Path(__file__).parent.parent.joinpath(
        *name.split(".")[1:]
    )  # without importing its parent, which may take a second
    return is_ours(name) and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def resolved(module: str, name: str) -> Definition:
    """Where `name` of `module` is defined, through any number of modules that only pass it on."""
    source = parse(module)
    if name not in source.definitions and name in source.imports:
        base, attribute = source.imports[name]
        if attribute is not None and is_ours(base) and not _is_module(f"{base}.{attribute}"):
            return resolved(base, attribute)
    return Definition(module, name)


class _Reader:
    """The text of a definition with its references taken out, the definitions that they mean, and
    the imports that they go through.
    """

    def __init__(self, source: Module, at: Definition) -> None:
        self.source, self.at = source, at
        self.references: list[Definition] = []
        self.imports: set[str] = set()
        nodes = source.definitions.get(at.name, []) if at.name else source.statements
        self.text = "".join(self.dump(node, frozenset()) for node in nodes)
        if at.name and source.statements:
            self.references.append(Definition(at.module, ""))

    def dump(self, node: object, local: frozenset[str]) -> str:
        """A syntax tree as text, without positions, docstrings and annotations, alike in every
        supported Python version.
        """
        if isinstance(node, list):
            return "[" + ",".join(self.dump(each, local) for each in node) + "]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if (
            isinstance(node, ast.Name | ast.Attribute)
            and (meant := self.meant(node, local)) is not None
        ):
            return meant
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return self.function(node, local)
        if isinstance(node, ast.ClassDef):
            inner = local | {name for child in node.body for name in defined(child)}
            methods = ast.FunctionDef | ast.AsyncFunctionDef
            body = [
                self.dump(child, local if isinstance(child, methods) else inner)
                for child in _without_docstring(node)
            ]
            return f"class{self.own_name(node.name)}({self.fields(node, local, 'name', 'body')},{body})"
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            local = local | {
                name.id
                for each in node.generators
                for name in ast.walk(each.target)
                if isinstance(name, ast.Name)
            }
        if isinstance(node, ast.Import | ast.ImportFrom):  # inside a function
            for base, attribute in _imported(node, self.at.module.rpartition(".")[0]).values():
                self.external(base, attribute, None)
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and not local
        ):
            return f"Assign({self.dump(node.value, local)})"
        return f"{type(node).__name__}({self.fields(node, local)})"

    def fields(self, node: ast.AST, local: frozenset[str], *but: str) -> str:
        kept = (
            (name, value)
            for name, value in ast.iter_fields(node)
            if name not in _SKIPPED and name not in but
        )
        return ",".join(
            f"{name}={self.dump(value, local)}"
            for name, value in kept
            if value is not None and value != []
        )

    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, local: frozenset[str]
    ) -> str:
        arguments = node.args
        named = [
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ]
        inner = local | {argument.arg for argument in named if argument} | _bound(node)
        parts = [self.dump(arguments, local)]
        if isinstance(node, ast.Lambda):
            return f"lambda({parts[0]},{self.dump(node.body, inner)})"
        parts += [self.dump(each, local) for each in node.decorator_list if not self.keeps(each)]
        parts += [self.dump(child, inner) for child in _without_docstring(node)]
        return f"def{self.own_name(node.name)}({','.join(parts)})"

    def own_name(self, name: str) -> str:
        """The name of what stands inside a definition counts, since it is an attribute or a local;
        the definition's own does not.
        """
        return "" if name == self.at.name else f" {name}"

    def keeps(self, decorator: ast.expr) -> bool:
        """Whether a decorator is one of the store's, whose arguments tell how a run is kept."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.id if isinstance(called, ast.Name) else ""
        return name in self.source.imports and self.source.imports[name][0] in KEEPERS

    def meant(self, node: ast.expr, local: frozenset[str]) -> str | None:
        """The text for a name, or a chain of attributes, that means something outside of the
        definition; None for a local or a built-in.
        """
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in local:
            return None
        if node.id in self.source.definitions:
            return self.refer(self.at.module, node.id) + "".join(
                f".{attribute}" for attribute in chain
            )
        if node.id not in self.source.imports:
            return None
        self.imports.add(node.id)
        module, name = self.source.imports[node.id]
        while (
            chain
            and (name is None or _is_module(f"{module}.{name}"))
            and _is_module(f"{module}.{name}" if name else module)
        ):
            module, name = (f"{module}.{name}" if name else module), chain.pop(0)
        return self.external(module, name, chain)

    def external(self, module: str, name: str | None, chain: list[str] | None) -> str:
        """The text for `name` of another module: a reference where it is the package's, else its
        full name.
        """
        after = "".join(f".{attribute}" for attribute in chain or ())
        if module in KEEPERS or (name and f"{module}.{name}" in KEEPERS):
            return f"kept:{name}{after}"
        if not is_ours(module):
            return f"{module}.{name}{after}" if name else f"{module}{after}"
        whole = (
            module if name is None else f"{module}.{name}" if _is_module(f"{module}.{name}") else ""
        )
        if whole:  # a module used as a value counts whole
            return "whole" + "".join(self.refer(whole, each) for each in parse(whole).definitions)
        assert name is not None
        return self.refer(module, name) + after

    def refer(self, module: str, name: str) -> str:
        target = resolved(module, name)
        if target.module in KEEPERS:
            return f"kept:{target.name}"
        self.references.append(target)
        return "@"


@functools.cache
def _read(at: Definition) -> _Reader:
    return _Reader(parse(at.module), at)


def _without_docstring(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Names that a function's body makes local: assigned, imported, caught, matched or defined
    there, and not declared global.
    """
    bound: set[str] = set()
    outside: set[str] = set()

    def look(node: ast.AST, nested: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.NamedExpr):
            bound.add(node.target.id)
        elif (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) and not nested
        ):
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Global):
            outside.update(node.names)
        nested = nested or isinstance(
            node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        )
        for child in ast.iter_child_nodes(node):
            look(child, nested)

    for child in function.body if isinstance(function.body, list) else [function.body]:
        look(child, False)
    return bound - outside
