"""A run is what its code says: a changed cell gives a new run, a moved function the same one, and a
patched package is refused.
"""

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from jupyter_client.manager import start_new_kernel

from curlnb import losses
from curlnb.experiments import images
from curlnb.models import encoders
from curlnb.runs import environment, loaded
from curlnb.runs.fingerprint import follow
from curlnb.runs.loaded import IdentityError

# --- the package's own code, read from a copy of its source ---------------------------------------


HERE = Path(environment.__file__).parent.parent  # the package


@pytest.fixture
def package(tmp_path):
    """A copy of the package, and a function that digests some of its experiments."""
    shutil.copytree(HERE, tmp_path / "curlnb", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "curlnb", lambda: digests_of(tmp_path)


@pytest.fixture(scope="module")
def before():
    """The digests of the package as it is."""
    return digests_of(HERE.parent)


def digests_of(home: Path) -> list[str]:
    """Of some experiments of the package that lies in `home`, without importing them."""
    code = (
        "import json, curlnb; from curlnb.runs.source import HERE, Definition;"
        "names = [('images', 'simclr'), ('images', 'surrogate'), ('graphs', 'infograph')];"
        "print(json.dumps([curlnb.__path__[0], *(HERE.graph(Definition('curlnb.experiments.' + m, n),"
        " frozenset({'cnn', 'hard'})).digest for m, n in names)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env={"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    read_from, *digests = json.loads(done.stdout)
    assert read_from == str(home / "curlnb")
    return digests


def rewrite(folder: Path, pattern: str, by: str) -> int:
    """Replace a pattern in every file; returns how often it stood there."""
    count = 0
    for path in folder.rglob("*.py"):
        text, n = re.subn(pattern, by, path.read_text(), flags=re.M)
        count += n
        path.write_text(text)
    return count


def test_a_renamed_module_leaves_every_key_as_it_was(package, before):
    folder, digests = package
    (folder / "data" / "augment.py").rename(folder / "data" / "picture_changes.py")
    assert rewrite(
        folder,
        r"^(\s*)from curlnb\.data import ((?:\w+, )*)augment((?:, \w+)*)$",
        r"\1from curlnb.data import \2picture_changes as augment\3",
    )
    rewrite(folder, r"from curlnb\.data\.augment import", "from curlnb.data.picture_changes import")
    assert digests() == before


def test_a_renamed_module_of_experiments_leaves_every_name_and_key_as_it_was(package):
    folder, _ = package
    code = "from curlnb import experiments as x; print(x.__file__, [(e.name, e.code({})) for e in x.all_experiments()])"

    def names_and_codes() -> str:
        env = os.environ | {"PYTHONPATH": str(folder.parent)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder.parent, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    before = names_and_codes()
    (folder / "experiments" / "images.py").rename(folder / "experiments" / "trained_on_images.py")
    rewrite(
        folder,
        r"^from curlnb\.experiments\.images import",
        "from curlnb.experiments.trained_on_images import",
    )
    assert rewrite(
        folder,
        r"^(\s*)from curlnb\.experiments import ((?:\w+, )*)images((?:, \w+)*)$",
        r"\1from curlnb.experiments import \2trained_on_images as images\3",
    )
    assert before.startswith(str(folder))  # the copy's, and not the installed package's
    assert "images.simclr" in before
    assert names_and_codes() == before


def test_a_moved_and_a_renamed_function_leave_every_key_as_it_was(package, before):
    folder, digests = package
    path = folder / "losses" / "estimate.py"
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
    (folder / "moved.py").write_text(imports + "\n\n\n".join(pieces))
    for piece in pieces:
        text = text.replace(piece, "")
    names = ", ".join(node.name for node in alone)
    path.write_text(text.replace("HOLE", f"from curlnb.moved import {names}\n\nHOLE", 1))
    assert digests() == before
    assert rewrite(folder, r"\bsubsample\b", "fewer") > 2
    assert digests() == before


def test_words_do_not_count_and_a_constant_does(package, before):
    folder, digests = package
    path = folder / "losses" / "estimate.py"
    assert rewrite(folder, r'^    """Mean ', '    """The mean ') or rewrite(
        folder, r'^    """', '    """In other words: '
    )
    path.write_text(path.read_text() + "\n\ndef unused(x):  # a comment\n    return x\n")
    assert digests() == before
    assert rewrite(folder, "-1e20", "-1e19") == 1
    after = digests()
    assert after[0] != before[0]


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

    def run(code: str) -> str:
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


def test_threads_give_a_new_run(kernel):
    said = kernel(
        "import os\nbefore = study.key({}, 0)\nos.environ['CURLNB_THREADS'] = '2'\nprint(study.key({}, 0) != before)\n"
        "del os.environ['CURLNB_THREADS']\nprint(study.key({}, 0) == before)"
    )
    assert said.split() == ["True", "True"]
    count = "\nprint(len(list(store.root.glob('*/*/run.json'))))\n"
    more = kernel(
        f"ask(){count}os.environ['CURLNB_THREADS'] = '2'\nask(){count}del os.environ['CURLNB_THREADS']\nask(){count}"
    ).split()
    assert int(more[1]) == int(more[2]) == int(more[0]) + 1


def test_the_precision_gives_a_new_run(kernel):
    kernel(f"sys.path.append({str(Path(__file__).parent.parent)!r})\nfrom direct import Noise")
    runs = "sweep(images.simclr, [dict(precision=name)], seeds=1, store=store, workers=0, dataset=Noise(), batch=8, epochs=0)"
    said = kernel(
        f"took = [{runs}['identity'][0] for name in ('float32', 'bf16', 'float32')]\nprint(took[0] == took[2] != took[1])"
    )
    assert said == "True"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_patched_package_is_refused_in_one_line(kernel, workers):
    patch = "kept, images.objective_loss = images.objective_loss, lambda *a, **k: None\n"
    said = kernel(
        patch + f"sweep(images.simclr, seeds=1, store=store, workers={workers}, epochs=1)"
    )
    kernel("images.objective_loss = kept")
    assert said.startswith(
        "IdentityError: curlnb.experiments.images.objective_loss is not what its source says"
    )
    assert "objective=my_loss" in said
    assert len(said.splitlines()) == 1
    patch = "kept, estimate.HOLE = estimate.HOLE, -5.0\nimages.simclr.key({}, 0)"
    said = kernel(f"from curlnb.losses import estimate\n{patch}")
    kernel("estimate.HOLE = kept")
    assert said.startswith("IdentityError: curlnb.losses.estimate.HOLE is not what its source says")


def wrapped(patch):
    patch.setattr(images, "objective_loss", functools.wraps(images.objective_loss)(none))


def defaulted(patch):
    patch.setattr(
        losses.loss_and_clamped,
        "__kwdefaults__",
        losses.loss_and_clamped.__kwdefaults__ | {"beta": 2.0},
    )


PATCHES = {
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
    before = images.simclr.key({}, 0)
    if not looked:
        loaded._said.cache_clear()
    with monkeypatch.context() as patch:
        PATCHES[what](patch)
        with pytest.raises(IdentityError, match="is not what its source says"):
            images.simclr.key({}, 0)
    assert images.simclr.key({}, 0) == before


def test_what_cannot_be_followed_is_named(kernel):
    said = kernel(
        "stream = open('/dev/null')\n@experiment\ndef reads(run, *, seed): return {'a': len(stream.name)}\n"
        "sweep(reads, seeds=1, store=store, workers=0)"
    )
    assert said.startswith(
        "IdentityError: stream, used in reads is a _io.TextIOWrapper, which cannot be followed into a run's key"
    )
    assert len(said.splitlines()) == 1


def test_an_own_part_counts_by_what_it_reaches(kernel):
    own = "SCALE = {}\ndef mine(pos, neg): return SCALE * (neg.logsumexp(1) - pos)\nprint(images.simclr.key(dict(objective=mine), 0))"
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


OWN = {  # what a cell may hold, with NUMBER in the place of what is changed
    "a function's attribute": "def own(x):\n    return x * own.t\nown.t = NUMBER",
    "a list's method": "class L(list):\n    def f(self):\n        return NUMBER\nown = L([1])",
    "a list's attribute": "class L(list):\n    pass\nown = L([1])\nown.t = NUMBER",
    "a dictionary's method": "class D(dict):\n    def f(self):\n        return NUMBER\nown = D(a=1)",
    "a named tuple's method": "class P(NamedTuple):\n    x: int\n    def f(self):\n        return NUMBER\nown = P(1)",
    "a named tuple's default": "class P(NamedTuple):\n    x: int = NUMBER\nown = P",
    "an enumeration's method": "class E(enum.Enum):\n    A = 1\n    def f(self):\n        return NUMBER\nown = E.A",
    "a property's class": "class R(property):\n    def f(self):\n        return NUMBER\nclass C:\n    x = R(len)\nown = C()",
    "a tensor's method": "class T(torch.Tensor):\n    def f(self):\n        return NUMBER\nown = torch.zeros(2).as_subclass(T)",
    "a wrapper's call": "class W:\n    __wrapped__ = len\n    def __call__(self, x):\n        return NUMBER\nown = W()",
    "a metaclass's method": "class M(type):\n    def f(cls):\n        return NUMBER\nclass C(metaclass=M):\n    pass\nown = C",
    "a factory's class": "@dataclass\nclass C:\n    x: list = field(default_factory=list)\n    t: int = NUMBER\nown = C()",
    "a generic class": "class G(Generic[T]):\n    def f(self):\n        return NUMBER\nown = G()",
}


def run_cell(source):
    before = "import enum, torch\nfrom dataclasses import dataclass, field\nfrom typing import Generic, NamedTuple, TypeVar\nT = TypeVar('T')\n"
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


@pytest.mark.parametrize("name", ["globals", "eval", "__import__"])
def test_a_function_that_reads_names_unseen_is_refused(name):
    with pytest.raises(
        IdentityError,
        match=rf"own calls {name}\(\), and what that reads cannot be followed .*: use the names themselves",
    ):
        follow(run_cell(f"def own(x):\n    return {name}()"), "own")


def test_a_value_that_holds_itself_is_followed_once():
    around: list = []
    around.append(around)
    assert follow(around, "around") == follow(around, "around")


def test_a_lock_is_refused():
    import threading

    with pytest.raises(IdentityError, match=r"lock is a _thread.lock, which cannot be followed"):
        follow(threading.Lock(), "lock")
