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
import symtable
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "curlnb"
KEEPERS = re.compile(
    r"curlnb\.(runs\.(?!training$)\w+|"
    r"data\.(verified|catalogue|contents|download|official_\w+|own_images))"
)
_CHECK = re.compile(r"_?(check|require)(_\w+)?")
_SKIPPED = {"type_comment", "type_params", "kind", "annotation", "returns"}
_CHOICES = f"{PACKAGE}.choices.Choices"
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """A name at the top of a module; the empty name is what the module does besides defining."""

    module: str
    name: str


class Module:
    """What the statements of a module define and import, and those that do neither."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, str] = {}  # to full names
        self.statements: list[ast.stmt] = []
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports |= imported(node)
            elif names := defined(node):
                for name in names:
                    self.definitions.setdefault(name, []).append(node)
            elif not _only_words(node):
                self.statements.append(node)
        self.definitions.pop("__all__", None)


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
        return next(filter(Path.is_file, (at.with_suffix(".py"), at / "__init__.py")), None)

    def parse(self, module: str) -> Module:
        if module not in self.modules:
            path = self.path(module)
            self.modules[module] = Module(ast.parse(path.read_bytes() if path else ""))
        return self.modules[module]

    def resolved(self, module: str, name: str) -> Definition:
        """Where `name` of `module` is defined, through all modules that only pass it on."""
        source = self.parse(module)
        full = source.imports.get(name, "")
        if name not in source.definitions and is_ours(full) and not self.path(full):
            base, _, attribute = full.rpartition(".")
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
            digest = digest_of(*parts)  # type: ignore[arg-type]
            self.graphs[start, chosen] = Graph(digest, texts, frozenset(imports))
        return self.graphs[start, chosen]


HERE = Source(Path(__file__).resolve().parent.parent)


def imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """The names that a statement imports, and their full ones.

    None is relative (TID252 of ruff).
    """
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    roots = [(alias, alias.name.split(".")[0]) for alias in node.names]
    return {a.asname or root: a.name if a.asname else root for a, root in roots}


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, _FUNCTIONS | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets = node.targets
    else:
        targets = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []
    names = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    # a[b] = c and a.b = c define no name
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


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
        self.globals = global_names(nodes)
        self.text = self.dump(nodes)
        if at.name and self.module.statements:
            self.references.append(Definition(at.module, ""))

    def dump(self, node: object) -> str:
        """A syntax tree as text, without positions, alike in every supported Python version."""
        if isinstance(node, list):
            if node and isinstance(node[-1], ast.Raise):  # all of the block makes the error
                node = node[-1:]
            kept = [each for each in node if not (isinstance(each, ast.Expr) and self.checks(each))]
            return "[" + ",".join(map(self.dump, kept)) + "]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.Name | ast.Attribute):
            if (meant := self.meant(node)) is not None:
                return meant
        elif isinstance(node, ast.Raise):
            return "Raise()"
        elif isinstance(node, ast.Assert):
            return f"Assert({self.dump(node.test)})"
        elif isinstance(node, ast.Lambda):
            return f"lambda({self.dump(node.args)},{self.dump(node.body)})"
        elif isinstance(node, _FUNCTIONS):
            parts = [self.dump(node.args)]
            parts += [self.dump(each) for each in node.decorator_list if not self.keeps(each)]
            parts.append(self.dump(_without_docstring(node)))
            return f"def{self.own_name(node)}({','.join(parts)})"
        elif isinstance(node, ast.ClassDef):
            parts = [self.dump([child]) for child in _without_docstring(node)]
            return f"class{self.own_name(node)}({self.fields(node, 'name', 'body')},{parts})"
        elif isinstance(node, ast.Call) and self.origin(node.func) == _CHOICES:
            return self.choices(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):  # inside a function
            for full in imported(node).values():
                self.external(full)
        elif isinstance(node, ast.Assign) and not node.col_offset and len(defined(node)) == 1:
            return f"Assign({self.dump(node.value)})"  # a constant, whose name does not count
        return f"{type(node).__name__}({self.fields(node)})"

    def fields(self, node: ast.AST, *but: str) -> str:
        values = {n: v for n, v in ast.iter_fields(node) if n not in _SKIPPED and n not in but}
        return ",".join(f"{n}={self.dump(v)}" for n, v in values.items() if v not in (None, []))

    def own_name(self, node: Any) -> str:
        """A name inside a definition counts, as an attribute or a local; its own does not."""
        return "" if node.name == self.at.name else f" {node.name}"

    def origin(self, node: ast.expr) -> str:
        """The full name of what an expression imports, if it is an imported name."""
        return self.module.imports.get(getattr(node, "id", ""), "")

    def choices(self, call: ast.Call) -> str:
        """The entries of a table that the run names."""
        self.chooses = True
        table: Any = call.args[-1]
        picked = [
            f"{key.value}={self.dump(value)}"
            for key, value in zip(table.keys, table.values, strict=True)
            if self.chosen is None or key.value in self.chosen
        ]
        return f"choices({','.join(sorted(picked))})"

    def keeps(self, decorator: ast.expr) -> bool:
        """Whether a decorator is one of the store's, whose arguments tell how a run is kept."""
        module, _, _ = self.origin(getattr(decorator, "func", decorator)).rpartition(".")
        return bool(KEEPERS.fullmatch(module))

    def checks(self, node: ast.Expr) -> bool:
        """Whether a statement only checks: it can stop a run and cannot change a number."""
        called = node.value.func if isinstance(node.value, ast.Call) else None
        return bool(_CHECK.fullmatch(getattr(called, "id", "") or getattr(called, "attr", "")))

    def meant(self, node: ast.expr) -> str | None:
        """The text of a name, or a chain of attributes, that means something outside of the
        definition; None for a local or a built-in.
        """
        after = ""
        while isinstance(node, ast.Attribute):
            after = f".{node.attr}{after}"
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.globals:
            return None
        if node.id in self.module.definitions:
            return self.refer(self.at.module, node.id) + after
        if node.id not in self.module.imports:
            return None
        self.imports.add(node.id)
        return self.external(self.module.imports[node.id] + after)

    def external(self, full: str) -> str:
        """The text of a name that is imported: a reference if the package's, else its full name."""
        if not is_ours(full):
            return full
        module = full
        names: list[str] = []
        while not self.source.path(module):
            module, _, name = module.rpartition(".")
            names.insert(0, name)
        if KEEPERS.fullmatch(module):
            return f"kept:{'.'.join(names) or module.rpartition('.')[2]}"
        if not names:  # a module used as a value counts whole
            parts = self.source.parse(module).definitions
            return "whole" + "".join(self.refer(module, name) for name in parts)
        return ".".join([self.refer(module, names[0]), *names[1:]])

    def refer(self, module: str, name: str) -> str:
        target = self.source.resolved(module, name)
        if KEEPERS.fullmatch(target.module):
            return f"kept:{target.name}"
        self.references.append(target)
        return "@"


def _without_docstring(node: Any) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def global_names(nodes: list[ast.stmt]) -> set[str]:
    """Names that mean a module's definition, its import or a built-in somewhere in statements at a
    module's top, those that they define themselves among them.

    They hold for all of the statements: which scopes there are differs between Python versions.
    Annotations, which do not count, are taken as text, which has no names in any of them.
    """
    source = f"from __future__ import annotations\n{ast.unparse(ast.Module(nodes, []))}"
    tables = [symtable.symtable(source, "<source>", "exec")]
    for table in tables:  # grows: scopes within scopes
        tables += table.get_children()
    # what a module binds is both; from Python 3.12 on its comprehensions' variables are among it
    symbols = (symbol for table in tables for symbol in table.get_symbols())
    found = {each.get_name() for each in symbols if each.is_global() and not each.is_local()}
    return found.union(*map(defined, nodes))
