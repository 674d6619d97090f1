"""What the package's code says, as a digest: the part of a run's key that tells its code.

A definition (function, class or constant) is read as its syntax tree, in which every reference to
another definition of the package counts as that definition, and every other import by its full
name. Neither the module that holds a definition nor the definition's name counts, so code can be
moved and renamed. What cannot change a number does not count either:

- words: comments, docstrings, annotations, a block that ends in `raise`, the text of `assert`;
- a statement that only checks: a call of a function named `check...` or `require...` whose result
  is not used;
- what keeps runs, and what fetches, reads and verifies data: the modules of KEEPERS, by name
  (data count by the digest of what is read, which is in the key);
- entries of a table of names (`Choices`) that a run does not name.

Nothing is imported. `curlnb.runs.fingerprint` sees to it that what is loaded is what is read here.
"""

import ast
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "curlnb"
KEEPERS = re.compile(
    r"curlnb\.(runs\.(?!training$)\w+|"
    r"data\.(verified|catalogue|contents|download|official_\w+|own_images))"
)
_CHECK = re.compile(r"_?(check|require)(_\w+)?")
_SKIPPED = {"type_comment", "type_params", "kind", "annotation", "returns"}
_CHOICES = (f"{PACKAGE}.choices", "Choices")
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_NAMED = _FUNCTIONS | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar


class Definition(NamedTuple):
    """A name at the top of a module; the empty name is what the module does besides defining."""

    module: str
    name: str


@dataclass
class Module:
    tree: ast.Module
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # name -> (module, of)
    statements: list[ast.stmt] = field(default_factory=list)


class Graph(NamedTuple):
    """What a definition reaches: its digest; the text of each definition, in the order in which
    they are met; and the (module, local name) of the imports on the way.
    """

    digest: str
    texts: dict[Definition, str]
    imports: frozenset[tuple[str, str]]


def digest_of(*parts: str) -> str:
    """16 hex digits of SHA-256 over strings."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


# --- reading source -------------------------------------------------------------------------------


class Source:
    """The package's source as it lies in a folder. Nothing is imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # of the package
        self.modules: dict[str, Module] = {}
        self.graphs: dict[tuple[Definition, frozenset[str] | None], Graph] = {}
        self.readers: dict[Definition, Reader] = {}  # of definitions without a table of names

    def path(self, module: str) -> Path | None:
        at = self.folder.joinpath(*module.split(".")[1:])
        found = (each for each in (at.with_suffix(".py"), at / "__init__.py") if each.is_file())
        return next(found, None) if is_ours(module) else None

    def parse(self, module: str) -> Module:
        if module not in self.modules:
            self.modules[module] = self._parse(module)
        return self.modules[module]

    def _parse(self, module: str) -> Module:
        path = self.path(module)
        parsed = Module(ast.parse(path.read_bytes() if path else ""))
        for node in parsed.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                parsed.imports |= imported(node)
            elif names := defined(node):
                for name in names:
                    parsed.definitions.setdefault(name, []).append(node)
            elif not _only_words(node):
                parsed.statements.append(node)
        parsed.definitions.pop("__all__", None)
        return parsed

    def resolved(self, module: str, name: str) -> Definition:
        """Where `name` of `module` is defined, through all modules that only pass it on."""
        source = self.parse(module)
        if name not in source.definitions and name in source.imports:
            base, attribute = source.imports[name]
            if attribute is not None and is_ours(base) and not self.path(f"{base}.{attribute}"):
                return self.resolved(base, attribute)
        return Definition(module, name)

    def graph(self, start: Definition, chosen: frozenset[str] | None = None) -> Graph:
        """The graph of a definition. Definitions are numbered as they are first met on the way
        along the references, in their order: equal digests mean equal graphs. chosen: the names
        that pick entries of `Choices`; None for all entries.
        """
        if (start, chosen) not in self.graphs:
            texts: dict[Definition, str] = {}
            references: dict[Definition, list[Definition]] = {}
            imports: set[tuple[str, str]] = set()
            waiting = [start]
            while waiting:
                at = waiting.pop()
                if at not in texts:
                    reader = self.readers.get(at) or Reader(self, at, chosen)
                    if not reader.chooses:
                        self.readers[at] = reader
                    texts[at], references[at] = reader.text, reader.references
                    imports |= {(at.module, local) for local in reader.imports}
                    waiting.extend(reversed(reader.references))
            number = {at: str(place) for place, at in enumerate(texts)}
            parts = (part for at in texts for part in (texts[at], *map(number.get, references[at])))
            self.graphs[start, chosen] = Graph(digest_of(*parts), texts, frozenset(imports))  # type: ignore[arg-type]
        return self.graphs[start, chosen]


HERE = Source(Path(__file__).resolve().parent.parent)


def imported(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str | None]]:
    """The names that a statement imports; none is relative (TID252 of ruff)."""
    if isinstance(node, ast.Import):
        whole = {a.asname or a.name.split(".")[0]: a for a in node.names}
        return {n: (a.name if a.asname else n, None) for n, a in whole.items()}
    return {alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names}


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, _FUNCTIONS | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets = node.targets
    else:
        targets = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []
    names = []
    for target in targets:  # a[b] = c and a.b = c define no name
        flat = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        names += [each.id for each in flat if isinstance(each, ast.Name)]
    return names


def _only_words(node: ast.stmt) -> bool:
    """Whether a statement computes nothing: a docstring, or what only types need."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class Reader:
    """A definition's text with its references taken out, and the definitions they mean."""

    def __init__(self, source: Source, at: Definition, chosen: frozenset[str] | None) -> None:
        self.source, self.at, self.chosen = source, at, chosen
        self.module = source.parse(at.module)
        self.references: list[Definition] = []
        self.imports: set[str] = set()
        self.chooses = False  # whether it depends on what is chosen
        nodes = self.module.definitions.get(at.name, []) if at.name else self.module.statements
        self.text = self.dump(nodes, frozenset())
        if at.name and self.module.statements:
            self.references.append(Definition(at.module, ""))

    def dump(self, node: object, local: frozenset[str]) -> str:
        """A syntax tree as text, without positions, alike in every supported Python version."""
        if isinstance(node, list):
            if node and isinstance(node[-1], ast.Raise):  # all of the block makes the error
                node = node[-1:]
            kept = [each for each in node if not (isinstance(each, ast.Expr) and self.checks(each))]
            return "[" + ",".join(self.dump(each, local) for each in kept) + "]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.Name | ast.Attribute):
            if (meant := self.meant(node, local)) is not None:
                return meant
        elif isinstance(node, ast.Raise):
            return "Raise()"
        elif isinstance(node, ast.Assert):
            return f"Assert({self.dump(node.test, local)})"
        elif isinstance(node, _FUNCTIONS | ast.Lambda):
            return self.function(node, local)
        elif isinstance(node, ast.ClassDef):
            inner = local | {name for child in node.body for name in defined(child)}
            parts = [
                self.dump([child], local if isinstance(child, _FUNCTIONS) else inner)
                for child in _without_docstring(node)
            ]
            return f"class{self.own_name(node)}({self.fields(node, local, 'name', 'body')},{parts})"
        elif isinstance(node, ast.Call) and self.origin(node.func) == _CHOICES:
            return self.choices(node, local)
        elif isinstance(node, _COMPREHENSIONS):
            targets = [name for each in node.generators for name in ast.walk(each.target)]
            local = local | {name.id for name in targets if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):  # inside a function
            for base, attribute in imported(node).values():
                self.external(base, attribute, [])
        elif isinstance(node, ast.Assign) and not local and len(defined(node)) == 1:
            return f"Assign({self.dump(node.value, local)})"
        return f"{type(node).__name__}({self.fields(node, local)})"

    def fields(self, node: ast.AST, local: frozenset[str], *but: str) -> str:
        values = {n: v for n, v in ast.iter_fields(node) if n not in _SKIPPED and n not in but}
        return ",".join(
            f"{n}={self.dump(v, local)}" for n, v in values.items() if v not in (None, [])
        )

    def function(self, node: _FUNCTIONS | ast.Lambda, local: frozenset[str]) -> str:  # type: ignore[valid-type]
        given = node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        inner = local | {argument.arg for argument in named if argument} | bound(node)
        parts = [self.dump(given, local)]
        if isinstance(node, ast.Lambda):
            return f"lambda({parts[0]},{self.dump(node.body, inner)})"
        parts += [self.dump(each, local) for each in node.decorator_list if not self.keeps(each)]
        parts.append(self.dump(_without_docstring(node), inner))
        return f"def{self.own_name(node)}({','.join(parts)})"

    def own_name(self, node: Any) -> str:
        """A name inside a definition counts, as an attribute or a local; its own does not."""
        return "" if node.name == self.at.name else f" {node.name}"

    def origin(self, node: ast.expr | None) -> tuple[str, str | None]:
        """The module and the name that an expression imports, if it is an imported name."""
        return self.module.imports.get(getattr(node, "id", ""), ("", None))

    def choices(self, call: ast.Call, local: frozenset[str]) -> str:
        """The entries of a table that the run names."""
        self.chooses = True
        table: Any = call.args[-1]
        entries = {k.value: v for k, v in zip(table.keys, table.values, strict=True)}
        picked = [
            f"{name!s}={self.dump(entries[name], local)}"
            for name in entries
            if self.chosen is None or name in self.chosen
        ]
        return f"choices({','.join(sorted(picked))})"

    def keeps(self, decorator: ast.expr) -> bool:
        """Whether a decorator is one of the store's, whose arguments tell how a run is kept."""
        return bool(KEEPERS.fullmatch(self.origin(getattr(decorator, "func", decorator))[0]))

    def checks(self, node: ast.Expr) -> bool:
        """Whether a statement only checks: it can stop a run and cannot change a number."""
        called = node.value.func if isinstance(node.value, ast.Call) else None
        return bool(_CHECK.fullmatch(getattr(called, "id", "") or getattr(called, "attr", "")))

    def meant(self, node: ast.expr, local: frozenset[str]) -> str | None:
        """The text of a name, or a chain of attributes, that means something outside of the
        definition; None for a local or a built-in.
        """
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in local:
            return None
        if node.id in self.module.definitions:
            return self.refer(self.at.module, node.id) + "".join(f".{a}" for a in chain)
        if node.id not in self.module.imports:
            return None
        self.imports.add(node.id)
        module, name = self.module.imports[node.id]
        while chain and self.source.path(whole := f"{module}.{name}" if name else module):
            module, name = whole, chain.pop(0)
        return self.external(module, name, chain)

    def external(self, module: str, name: str | None, chain: list[str]) -> str:
        """The text of another module's `name`: a reference if the package's, else its full name."""
        after = "".join(f".{attribute}" for attribute in chain)
        if KEEPERS.fullmatch(module) or KEEPERS.fullmatch(f"{module}.{name}"):
            return f"kept:{name}{after}"
        if not is_ours(module):
            return f"{module}.{name}{after}" if name else f"{module}{after}"
        whole = module if name is None else f"{module}.{name}"
        if self.source.path(whole):  # a module used as a value counts whole
            return "whole" + "".join(
                self.refer(whole, n) for n in self.source.parse(whole).definitions
            )
        assert name is not None
        return self.refer(module, name) + after

    def refer(self, module: str, name: str) -> str:
        target = self.source.resolved(module, name)
        if KEEPERS.fullmatch(target.module):
            return f"kept:{target.name}"
        self.references.append(target)
        return "@"


def _without_docstring(node: Any) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def bound(function: _FUNCTIONS | ast.Lambda) -> set[str]:
    """Names that a function's body makes local: assigned, imported, caught, matched or defined
    there; none is declared global (PLW0603 of ruff).
    """
    bound: set[str | None] = set()
    waiting = function.body if isinstance(function.body, list) else [function.body]
    nodes: list[tuple[ast.AST, bool]] = [(node, False) for node in waiting]
    for node, nested in nodes:  # nested: within a comprehension, whose names are its own
        if isinstance(node, ast.NamedExpr):
            bound.add(node.target.id)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and not nested:
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {*imported(node)}
        elif isinstance(node, _NAMED):
            bound.add(node.name)
        if not isinstance(node, _FUNCTIONS | ast.ClassDef | ast.Lambda):
            nested = nested or isinstance(node, _COMPREHENSIONS)
            nodes += [(child, nested) for child in ast.iter_child_nodes(node)]
    return {name for name in bound if name}
