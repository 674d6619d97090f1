"""A run is what its code says: a changed cell gives a new run, a moved function the same one, and a
patched package is refused.
"""

import ast
import functools
import re
import shutil
import site
import symtable
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jupyter_client.manager import start_new_kernel

from curlnb import losses
from curlnb.experiments import all_experiments, images
from curlnb.losses import estimate
from curlnb.models import encoders
from curlnb.runs import fingerprint
from curlnb.runs.fingerprint import IdentityError, follow
from curlnb.runs.source import HERE, Definition, Source, global_names

# --- the package's own code, read from a copy of its source ---------------------------------------


@pytest.fixture
def package(tmp_path):
    """A copy of the package's source."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(HERE.folder, tmp_path / "curlnb", ignore=ignored))


def digests(folder: Path, images: str = "images") -> list[str]:
    """Of some experiments of the package that lies in a folder, without importing them."""
    source = Source(folder)
    names = [(images, "simclr"), (images, "surrogate"), ("graphs", "infograph")]
    places = [Definition(f"curlnb.experiments.{module}", name) for module, name in names]
    return [source.graph(place, frozenset({"cnn", "hard"})).digest for place in places]


@pytest.fixture(scope="module")
def before():
    return digests(HERE.folder)


def rewrite(folder, pattern, by):
    """Replace a pattern in every file; returns how often it stood there."""
    count = 0
    for path in folder.rglob("*.py"):
        text, n = re.subn(pattern, by, path.read_text(), flags=re.M)
        count += n
        path.write_text(text)
    return count


def test_a_renamed_module_leaves_every_key_as_it_was(package, before):
    for room, old, new in (
        ("data", "augment", "picture_changes"),
        ("experiments", "images", "trained_on_images"),
    ):
        (package / room / f"{old}.py").rename(package / room / f"{new}.py")
        rewrite(package, rf"from curlnb\.{room}\.{old} import", f"from curlnb.{room}.{new} import")
        assert rewrite(
            package,
            rf"^(\s*)from curlnb\.{room} import ((?:\w+, )*){old}((?:, \w+)*)$",
            rf"\1from curlnb.{room} import \2{new} as {old}\3",
        )
    assert digests(package, "trained_on_images") == before
    for experiment in all_experiments():  # a given name, not the module's
        text = Path(experiment.function.__code__.co_filename).read_text()
        assert f'name="{experiment.name}"' in text


def test_a_moved_and_a_renamed_function_leave_every_key_as_it_was(package, before):
    path = package / "losses" / "estimate.py"
    text = path.read_text()
    body = ast.parse(text).body
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {
        "HOLE"
    }
    alone = [
        n
        for n in body
        if isinstance(n, ast.FunctionDef)
        and not n.decorator_list
        and not defined & {x.id for x in ast.walk(n) if isinstance(x, ast.Name)}
    ]
    assert len(alone) > 2
    pieces = [ast.get_source_segment(text, node) for node in alone]
    imports = text[
        text.index("from collections" if "from collections" in text else "import ") : text.index(
            "HOLE"
        )
    ]
    (package / "moved.py").write_text(imports + "\n\n\n".join(pieces))
    for piece in pieces:
        text = text.replace(piece, "")
    names = ", ".join(node.name for node in alone)
    path.write_text(text.replace("HOLE", f"from curlnb.moved import {names}\n\nHOLE", 1))
    assert digests(package) == before
    assert rewrite(package, r"\bsubsample\b", "fewer") > 2
    assert digests(package) == before


def test_words_do_not_count(package, before):
    path = package / "losses" / "estimate.py"
    assert rewrite(package, r'^    """(?=\w)', '    """In other words: ')
    path.write_text(path.read_text() + "\n\ndef unused(x):  # a comment\n    return x\n")
    assert digests(package) == before


SCOPES = """
@mark
def fit(loss: given, *, rate: given = start) -> given:
    steps: given = [rate * step for step in range(9)]
    def inner():
        return [loss(each, steps) + other for each in steps]
    return inner, lambda more: fit(more)
TABLE = [row for row in rows]
class Own(Base):
    size: given = 1
    sizes = [one for one in many]
    def area(self):
        return size
"""


def test_names_mean_the_same_in_every_python_version():
    """Symbol tables differ between versions: from 3.12 on a comprehension is part of what it stands
    in, from 3.14 on annotations have a scope of their own.
    """
    own = {"fit", "TABLE", "Own"}
    used = {"mark", "start", "range", "other", "rows", "Base", "many", "size"}
    assert global_names(ast.parse(SCOPES).body) == own | used


def test_no_definition_of_a_run_has_a_module_s_name_for_a_local_as_well():
    """Such a local would count as what the module holds under its name."""
    places = {
        place
        for experiment in all_experiments()
        for place in HERE.graph(
            Definition(experiment.function.__module__, experiment.function.__name__)
        ).texts
    }
    assert len(places) > 300
    for place in places:
        module = HERE.parse(place.module)
        nodes = module.definitions.get(place.name, [])
        known = (module.definitions.keys() | module.imports.keys()) & global_names(nodes)
        _, *inner = scopes(symtable.symtable(ast.unparse(ast.Module(nodes, [])), "", "exec"))
        symbols = [symbol for table in inner for symbol in table.get_symbols()]
        bound = {each.get_name() for each in symbols if each.is_local() and not each.is_namespace()}
        assert not known & bound, place


def scopes(table):
    yield table
    for child in table.get_children():
        yield from scopes(child)


# --- a notebook's code, in a real kernel ----------------------------------------------------------

CELLS = """
import pathlib, sys, tempfile
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep
from curlnb.experiments import images
store = Store(pathlib.Path(tempfile.mkdtemp()))
LIMIT = 1
def deep(x): return x + LIMIT
def helper(x): return deep(x)
def my_loss(x): return helper(x)
class Doubler:
    def twice(self, x): return 2 * x
@experiment
def study(run, *, seed, times=1):
    return {"value": Doubler().twice(my_loss(times))}
def ask(workers=0, **given):
    return sweep(study, [given], seeds=1, store=store, workers=workers)["value"][0]
"""


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(kernel_name="python3")

    def run(code):
        """What a cell prints; of an error its last line."""
        said: list[str] = []

        def hear(message):
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                said.append(content["text"])
            if message["msg_type"] == "error":
                said.append(f"{content['ename']}: {content['evalue']}")

        client.execute_interactive(code, timeout=240, output_hook=hear)
        return "".join(said).strip()

    assert run(CELLS) == ""
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_changed_cell_gives_a_new_run_and_never_an_old_number(kernel, workers):
    """A loss, a helper two calls deep, a constant, a method; in this process and in others."""
    changes = {
        "": "4",
        "LIMIT = 10": "22",
        "def deep(x): return x + 2 * LIMIT": "42",
        "def my_loss(x): return helper(x) + 100": "242",
        "class Doubler:\n    def twice(self, x): return 3 * x": "363",
        CELLS.partition("LIMIT")[1] + CELLS.partition("LIMIT")[2]: "4",
    }
    kernel("store = Store(pathlib.Path(tempfile.mkdtemp()))")
    assert [kernel(f"{change}\nprint(ask({workers}))") for change in changes] == list(
        changes.values()
    )


def test_the_same_cell_run_again_finds_its_run(kernel):
    count = "print(len(list(store.root.glob('*/*/run.json'))))"
    kernel("ask()")
    before = kernel(count)
    assert (
        kernel(CELLS.partition("LIMIT")[1] + CELLS.partition("LIMIT")[2] + "\nask()\n" + count)
        == before
    )


def test_a_patched_package_is_refused_in_one_line(kernel):
    patch = "kept, images.objective_loss = images.objective_loss, lambda *a, **k: None\n"
    said = kernel(patch + "sweep(images.simclr, seeds=1, store=store, workers=0, epochs=1)")
    kernel("images.objective_loss = kept")
    assert said.startswith(
        "IdentityError: curlnb.experiments.images.objective_loss is not what its source says"
    )
    assert "objective=my_loss" in said
    assert len(said.splitlines()) == 1


def wrapped(patch):
    patch.setattr(images, "objective_loss", functools.wraps(images.objective_loss)(none))


def defaulted(patch):
    patch.setattr(
        losses.loss_and_clamped,
        "__kwdefaults__",
        losses.loss_and_clamped.__kwdefaults__ | {"beta": 2.0},
    )


PATCHES = {
    "a constant": lambda patch: patch.setattr(estimate, "HOLE", -5.0),
    "a wrapper that says what it wraps": wrapped,
    "a default": defaulted,
    "a function's code": lambda patch: patch.setattr(losses.pairwise, "__code__", none.__code__),
    "an element of a table": lambda patch: patch.setitem(encoders.ENCODERS, "cnn", none),
    "a method that a class did not write itself": lambda patch: patch.setattr(
        images.Contrast, "__init__", none
    ),
    "a field's default": lambda patch: patch.setattr(images.Contrast, "tau_plus", 0.5),
}


def none(*args, **options):
    return None


@pytest.mark.parametrize("looked", [False, True], ids=["before the first look", "after it"])
@pytest.mark.parametrize("what", PATCHES)
def test_every_kind_of_patch_is_refused(monkeypatch, what, looked):
    before = images.simclr.asked({}, 0).key
    if not looked:
        fingerprint._said.cache_clear()
    with monkeypatch.context() as patch:
        PATCHES[what](patch)
        with pytest.raises(IdentityError, match="is not what its source says"):
            _ = images.simclr.asked({}, 0).key
    assert images.simclr.asked({}, 0).key == before


def test_what_cannot_be_followed_is_named(kernel):
    said = kernel(
        "stream = open('/dev/null')\n"
        "@experiment\ndef reads(run, *, seed): return {'a': len(stream.name)}\n"
        "sweep(reads, seeds=1, store=store, workers=0)"
    )
    assert said.startswith(
        "IdentityError: stream, used in reads is a _io.TextIOWrapper, "
        "which cannot be followed into a run's key"
    )
    assert len(said.splitlines()) == 1


def test_an_own_part_counts_by_what_it_reaches(kernel):
    own = (
        "SCALE = {}\ndef mine(pos, neg): return SCALE * (neg.logsumexp(1) - pos)\n"
        "print(images.simclr.asked(dict(objective=mine), 0).key)"
    )
    assert kernel(own.format(1.0)) != kernel(own.format(2.0))
    assert kernel(own.format(1.0)) == kernel(own.format(1.0))


# --- values ---------------------------------------------------------------------------------------


def closure(limit):
    def inner(x):
        return x + limit

    return inner


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ("1", 1),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        (torch.zeros(3), torch.zeros(3, 1)),
        (torch.zeros(3), torch.ones(3)),
        (np.zeros(2, "f4"), np.zeros(2, "f8")),
        (closure(1), closure(2)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: torch.relu(x), lambda x: torch.tanh(x)),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    ],
    ids=range(11),
)
def test_different_values_have_different_digests(one, other):
    assert follow(one, "one") != follow(other, "other")
    assert follow(one, "one") == follow(one, "again")


METHOD = "    def f(self):\n        return NUMBER\n"
OWN = {  # what a cell may hold, with NUMBER in the place of what is changed
    "a function's attribute": "def own(x):\n    return x * own.t\nown.t = NUMBER",
    "a list's method": f"class L(list):\n{METHOD}own = L([1])",
    "a list's attribute": "class L(list):\n    pass\nown = L([1])\nown.t = NUMBER",
    "a dictionary's method": f"class D(dict):\n{METHOD}own = D(a=1)",
    "a named tuple's method": f"class P(NamedTuple):\n    x: int\n{METHOD}own = P(1)",
    "a named tuple's default": "class P(NamedTuple):\n    x: int = NUMBER\nown = P",
    "an enumeration's method": f"class E(enum.Enum):\n    A = 1\n{METHOD}own = E.A",
    "a property's class": f"class R(property):\n{METHOD}class C:\n    x = R(len)\nown = C()",
    "a tensor's method": f"class T(torch.Tensor):\n{METHOD}own = torch.zeros(2).as_subclass(T)",
    "a wrapper's call":
        "class W:\n    __wrapped__ = len\n    def __call__(self, x):\n        return NUMBER\n"
        "own = W()",
    "a metaclass's method": f"class M(type):\n{METHOD}class C(metaclass=M):\n    pass\nown = C",
    "a factory's class":
        "@dataclass\nclass C:\n    x: list = field(default_factory=list)\n    t: int = NUMBER\n"
        "own = C()",
    "a generic class": f"class G(Generic[T]):\n{METHOD}own = G()",
}  # fmt: skip


def run_cell(source):
    before = (
        "import enum, torch\nfrom dataclasses import dataclass, field\n"
        "from typing import Generic, NamedTuple, TypeVar\nT = TypeVar('T')\n"
    )
    scope = {"__name__": "cell"}
    exec(before + source, scope)
    return scope["own"]


@pytest.mark.parametrize("what", OWN)
def test_what_a_cell_changes_anywhere_changes_the_digest(what):
    one, again, other = (
        follow(run_cell(OWN[what].replace("NUMBER", number)), "own") for number in ("1", "1", "2")
    )
    assert one == again
    assert one != other


def test_an_import_in_a_function_counts_alike_before_and_after_it(monkeypatch, tmp_path):
    own = run_cell("def own(x):\n    import filelock, not_there_yet")
    missing = follow(own, "own")  # code may expect that something is not installed
    monkeypatch.delitem(sys.modules, "filelock")
    assert follow(own, "own") == missing
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "not_there_yet.py").touch()
    assert follow(own, "own") != missing


def test_a_value_that_holds_itself_is_followed_once():
    around: list = []
    around.append(around)
    assert follow(around, "around") == follow(around, "around")


def test_what_lies_in_any_of_pythons_folders_of_packages_is_installed(tmp_path, monkeypatch):
    """Those of the environment, of the Python below it, and the user's."""
    (tmp_path / "far_away.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not fingerprint.installed("far_away")
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path))
    assert fingerprint.installed("far_away.part")
