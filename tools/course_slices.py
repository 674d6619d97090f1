"""What an exercise needs of the code before it: a backward slice of a notebook's statements.

An assignment holds a lesson's exercises without the lesson. A check may use a data set, a function
or a number that earlier cells define, and these statements come along, but no figure and no
training that the exercise does not use.
"""

import ast
import builtins
from collections.abc import Iterable
from dataclasses import dataclass, field

BUILTINS = frozenset(dir(builtins))
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Statement:
    """One statement of a notebook's top level: the cell that it stands in, its syntax tree and
    text, and its names.

    needs: what it loads when it is executed; later: what the function or class that it defines
    loads when that is called; binds: what it assigns; changes: objects that it changes in place, as
    `rows[name] = ...` and `rows.append(...)` do.
    """

    cell: int
    node: ast.stmt
    text: str
    needs: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._visit(self.node)
        self.later -= self.needs

    @property
    def imports(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def replaces(self) -> set[str]:
        """The names whose former value is not looked at and does not survive. (A loop is taken to
        go round at least once.)
        """
        return set() if isinstance(self.node, ast.If | ast.Try) else self.binds - self.needs

    def only(self, names: set[str]) -> str:
        """The text; of an import only the part that binds one of `names`."""
        if isinstance(self.node, ast.ImportFrom):
            return ast.unparse(
                ast.ImportFrom(
                    self.node.module,
                    [a for a in self.node.names if _bound_by(a) in names],
                    self.node.level,
                )
            )
        if isinstance(self.node, ast.Import):
            return ast.unparse(ast.Import([a for a in self.node.names if _bound_by(a) in names]))
        return self.text

    def _visit(self, node: ast.AST | None) -> None:
        """Notes names in the order in which Python evaluates them."""
        match node:
            case None:
                return
            case ast.Name(ctx=ast.Load()):
                self.needs |= {node.id} - self.binds - BUILTINS
            case ast.Name():
                self.binds.add(node.id)
            case ast.Import() | ast.ImportFrom():
                self.binds |= {_bound_by(alias) for alias in node.names}
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                outside = (
                    node.bases
                    if isinstance(node, ast.ClassDef)
                    else [*node.args.defaults, *node.args.kw_defaults]
                )
                self._visit_all([*node.decorator_list, *outside])
                self.later |= loaded(node) - {node.name}
                self.binds.add(node.name)
            case ast.Lambda():
                self.needs |= loaded(node) - self.binds
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self.needs |= loaded(node) - self.binds
            case ast.Assign():
                self._visit_all([node.value, *node.targets])
            case ast.AnnAssign():
                self._visit_all([node.value, node.target])
            case ast.AugAssign():
                self.needs |= {
                    n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)
                } - self.binds
                self._visit_all([node.value, node.target])
            case ast.For():
                self._visit_all([node.iter, node.target, *node.body, *node.orelse])
            case ast.withitem():
                self._visit_all([node.context_expr, node.optional_vars])
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                self.changes |= _base(node)
                self._visit_all(ast.iter_child_nodes(node))
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
                self.changes |= _base(method)
                self._visit(node.value)
            case _:
                self._visit_all(ast.iter_child_nodes(node))

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            self._visit(node)


def loaded(node: ast.AST) -> set[str]:
    """The names that a function, a class or a comprehension takes from outside: those that it loads
    and does not bind, builtins aside.
    """
    inside = list(ast.walk(node))
    own = {n.id for n in inside if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    own |= {n.arg for n in inside if isinstance(n, ast.arg)} | {
        n.name for n in inside if isinstance(n, NAMED) and n is not node
    }
    own |= {
        _bound_by(alias)
        for n in inside
        if isinstance(n, ast.Import | ast.ImportFrom)
        for alias in n.names
    }
    return {n.id for n in inside if isinstance(n, ast.Name)} - own - BUILTINS


def statements(source: str, cell: int = 0) -> list[Statement]:
    """The statements of a cell, each with the comment lines directly above it."""
    lines, found, last = source.splitlines(), [], 0
    for node in ast.parse(source).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        while first > last and lines[first - 1].startswith("#"):
            first -= 1
        last = node.end_lineno or node.lineno
        found.append(Statement(cell, node, "\n".join(lines[first:last])))
    return found


def needed_from_outside(code: list[Statement]) -> set[str]:
    """The names that statements load, executed one after the other, before they bind them."""
    needs: set[str] = set()
    bound: set[str] = set()
    for one in code:
        needs |= one.needs - bound
        bound |= one.binds
    return needs | set().union(*(one.later for one in code)) - bound


def slice_for(before: list[Statement], names: set[str]) -> dict[int, set[str]]:
    """The places of the statements in `before` on which `names` depend once all have run, each with
    the names it is there for, in order.

    For each name these are the statement that bound it last, those that changed it since, and the
    same again for what they need. What the body of a function needs is looked up from where the
    function is called.
    """
    found: dict[int, set[str]] = {}
    done: set[tuple[str, int]] = set()
    wanted = [(name, len(before)) for name in names]
    while wanted:
        name, end = wanted.pop()
        if (name, end) in done:
            continue
        done.add((name, end))
        changed = []
        for at in range(end - 1, -1, -1):
            one = before[at]
            if name in one.binds:
                found.setdefault(at, set()).add(name)
                wanted += [(other, at) for other in one.needs] + [
                    (other, end) for other in one.later
                ]
            elif name in one.changes:
                changed.append(at)
            if name in one.replaces:
                break
        else:
            continue
        if not before[at].imports:  # a call of a module's function changes no module
            for at in changed:
                found.setdefault(at, set()).add(name)
                wanted += [(other, at) for other in before[at].needs | before[at].later]
    return dict(sorted(found.items()))


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _base(node: ast.AST) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()
