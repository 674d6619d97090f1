"""The package as it is installed: what torch and numpy alone give, what a missing extra says, what
a wheel says where there is no checkout.
"""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import curlnb
from curlnb.runs import environment

HOME = environment.home()
PYPROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_by(*requirements):
    """What an installation brings, by the metadata of what is installed here."""
    found = set()
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        name = canonical(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": extra})):
            continue
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another system
        found.add(name)
        waiting += [
            (Requirement(line), each) for line in needed for each in (wanted.extras or {""})
        ]
    return found


ALONE = brought_by(*PROJECT["dependencies"])


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which a wheel of this checkout was installed."""
    source, wheels, target = (
        tmp_path_factory.mktemp(name) for name in ("source", "wheels", "target")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(HOME / name, source)
    shutil.copytree(
        HOME / "curlnb", source / "curlnb", ignore=shutil.ignore_patterns("__pycache__")
    )
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    line = [sys.executable, "-c", build, str(wheels)]
    subprocess.run(line, cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    assert wheel.stat().st_size < 1_000_000
    shutil.unpack_archive(wheel, target, "zip")  # pure Python: nothing more is installed
    return target


@pytest.fixture(scope="module")
def bare(installed, tmp_path_factory):
    """A folder with the wheel, torch, numpy and what those bring, for a Python that sees nothing
    else.
    """
    folder = tmp_path_factory.mktemp("bare")
    (folder / "curlnb").symlink_to(installed / "curlnb")
    for name in ALONE:
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__", "bin"}
        for top in tops:
            if not (folder / top).exists() and Path(distribution.locate_file(top)).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    return folder


def run(code, path, cwd, *options):
    """A new Python with `path` first and no setting of this project, started elsewhere."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CURLNB_")} | {
        "HOME": str(cwd),
        "PYTHONPATH": "",
    }
    code = f"import sys\nsys.path.insert(0, {str(path)!r})\n{code}"
    return subprocess.run(
        [sys.executable, *options, "-c", code], cwd=cwd, env=env, capture_output=True, text=True
    )


QUIET = """
import importlib, pkgutil, socket
def refuse(event, _):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        print(event)
        raise AssertionError
sys.addaudithook(refuse)
import curlnb
for module in pkgutil.walk_packages(curlnb.__path__, "curlnb."):
    importlib.import_module(module.name)
try:
    socket.create_connection(("127.0.0.1", 9))
except AssertionError:
    print("and this one is ours")
"""


def test_no_import_opens_a_connection(tmp_path):
    done = run(QUIET, HOME, tmp_path)
    assert done.stdout == "socket.getaddrinfo\nand this one is ours\n", done.stderr


WITHOUT_EXTRAS = """
import importlib, json, torch
from curlnb.losses import hard, pairwise
from curlnb.models import encoders
from curlnb import evaluation
import curlnb
z = torch.nn.functional.normalize(encoders.encoder("cnn")[0](torch.rand(6, 3, 32, 32)), dim=1)
loss = hard(*pairwise(z[:3], z[3:]), beta=1.0, tau_plus=0.1).mean().item()
accuracy = float(evaluation.knn(z.detach(), torch.arange(6), z.detach(), torch.arange(6), k=1))
said = {}
for name in ("runs.sweep", "data.datasets", "theory.packing", "companion.report",
             "experiments.images"):
    try:
        importlib.import_module(f"curlnb.{name}")
    except ModuleNotFoundError as error:
        said[name] = str(error)
print(json.dumps([curlnb.__version__, loss, accuracy, said]))
from curlnb.__main__ import main
"""


def test_torch_and_numpy_give_the_losses_and_the_rest_names_its_extra(bare, tmp_path):
    done = run(WITHOUT_EXTRAS, bare, tmp_path, "-I", "-S")
    assert done.stdout, done.stderr
    version, loss, accuracy, said = json.loads(done.stdout)
    assert version == curlnb.__version__
    assert 0 < loss < 10
    assert accuracy == 1
    assert set(said) == {
        "runs.sweep",
        "data.datasets",
        "theory.packing",
        "companion.report",
        "experiments.images",
    }
    for line in said.values():
        assert re.fullmatch(
            r"curlnb\.\w+ needs \w+: install the extra 'notebooks', "
            r"`pip install 'curlnb\[notebooks\]'`",
            line,
        )
    assert done.returncode == 2  # the commands
    assert re.fullmatch(
        r"curlnb: curlnb\.\w+ needs \w+: install the extra 'notebooks', .*\n", done.stderr
    )


def folders_needs():
    """What each folder's `__init__` says that it needs."""
    said = {}
    for path in (HOME / "curlnb").glob("*/__init__.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "need"
        ]
        said[path.parent.name] = {argument.value for call in calls for argument in call.args[2:]}
    return said


def imports_of(path):
    """The modules from elsewhere that a file imports at once, and those that it imports when a
    function of it is called.
    """
    tree = ast.parse(path.read_text())

    def named(node):
        found = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
        return (
            {name.partition(".")[0] for name in found}
            - set(sys.stdlib_module_names)
            - {"curlnb", "torch", "numpy"}
        )

    kinds = ast.Import | ast.ImportFrom
    at_once = {name for node in tree.body if isinstance(node, kinds) for name in named(node)}
    return at_once, {
        name for node in ast.walk(tree) if isinstance(node, kinds) for name in named(node)
    } - at_once


def test_each_folder_says_what_its_modules_import():
    wanted = {}
    for path in (HOME / "curlnb").glob("*/*.py"):
        wanted.setdefault(path.parent.name, set()).update(imports_of(path)[0])
    assert folders_needs() == wanted


def test_what_is_imported_comes_with_an_extra_and_what_a_folder_needs_with_that_of_notebooks():
    imported = {
        name for path in (HOME / "curlnb").rglob("*.py") for name in set().union(*imports_of(path))
    }
    sources = importlib.metadata.packages_distributions()
    needed = set().union(*folders_needs().values())
    for modules, extras in (
        (imported, ("notebooks", "graphs", "control", "cluster")),
        (needed, ("notebooks",)),
    ):
        listed = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
        brought = brought_by(*listed)
        for name in modules:
            assert {canonical(source) for source in sources[name]} & brought, (
                f"{name} does not come with {extras}"
            )


MAIN = "from curlnb.__main__ import main\nsys.exit(main({}))"


def test_a_wheel_without_a_checkout_says_what_it_needs(installed, tmp_path):
    set_home = "set CURLNB_HOME to "
    for words, said in (
        (["reproduce"], f"`curlnb reproduce` needs a checkout of this project, .*: {set_home}"),
        (["run", "images.simclr", "epochs=1"], f"data/catalogue.json is missing: {set_home}"),
    ):
        done = run(MAIN.format(words), installed, tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"curlnb {words[0]}: {said}.*\n", done.stderr), done.stderr


def test_a_wheel_finds_the_checkout_around_it(installed):
    code = "from curlnb.runs import environment\nprint(environment.checkout('this'))"
    done = run(code, installed, HOME / "notebooks" / "1_curl")
    assert done.stdout == f"{HOME}\n", done.stderr


def test_the_version_is_said_once_and_told_everywhere():
    assert PROJECT["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "curlnb.__version__"}
    assert yaml.safe_load((HOME / "CITATION.cff").read_text())["version"] == curlnb.__version__
    changes = re.findall(r"^## \[?([\w.]+)\]?", (HOME / "CHANGELOG.md").read_text(), re.M)
    assert changes[0] == "Unreleased"
    assert curlnb.__version__ in changes


def test_torch_is_asked_for_by_range_and_locked_in_it():
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (HOME / "requirements.lock").read_text(), re.M))
    everything = [
        *PROJECT["dependencies"],
        *(
            line
            for extra, own in PROJECT["optional-dependencies"].items()
            for line in own
            if extra != "recipes"  # for users of the losses, who have their own versions
        ),
    ]
    for line in everything:
        asked = Requirement(line)
        assert asked.specifier.contains(locked[canonical(asked.name)]), line
    (torch,) = (Requirement(line) for line in PROJECT["dependencies"] if line.startswith("torch"))
    assert {bound.operator for bound in torch.specifier} == {">=", "<"}
