"""The package as it is installed: what torch and numpy alone give, what a missing extra says, what
a wheel carries and its commands do.
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
from curlnb.data import datasets
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
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(HOME / name, source)
    shutil.copytree(
        HOME / "curlnb", source / "curlnb", ignore=shutil.ignore_patterns("__pycache__")
    )
    for pattern in carried():
        for path in HOME.glob(pattern):
            (source / path.relative_to(HOME)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, source / path.relative_to(HOME))
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    line = [sys.executable, "-c", build, str(wheels)]
    subprocess.run(line, cwd=source, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    assert wheel.stat().st_size < 1_000_000
    shutil.unpack_archive(wheel, target, "zip")  # pure Python: nothing more is installed
    return target


def carried():
    """The patterns in setup.py."""
    tree = ast.parse((HOME / "setup.py").read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CARRIED"
    )
    return ast.literal_eval(value)


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
for name in ("curlnb.runs.sweep", "curlnb.data.datasets", "curlnb.theory.packing", "curlnb.companion.report", "curlnb.experiments.images"):
    try:
        importlib.import_module(name)
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
        "curlnb.runs.sweep",
        "curlnb.data.datasets",
        "curlnb.theory.packing",
        "curlnb.companion.report",
        "curlnb.experiments.images",
    }
    for line in said.values():
        assert re.fullmatch(
            r"curlnb\.\w+ needs \w+: install the extra 'notebooks', `pip install 'curlnb\[notebooks\]'`",
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


IN_A_WHEEL = """
import contextlib, io, json, os
import curlnb
from curlnb.__main__ import main
from curlnb.companion import published, claims
from curlnb.data import datasets
from curlnb.runs import environment
said = {}
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    said[" ".join(words)] = [status, out.getvalue(), err.getvalue()]
places = [curlnb.__file__, str(environment.results_folder()), os.environ.get("CURLNB_DATA", "")]
print(json.dumps([places, list(datasets.names()), len(claims.table()), said]))
"""
RUN = "run images.simclr epochs=1 dataset=cifar10-mini"
COMMANDS = (
    "doctor",
    "data",
    "reproduce",
    "report",
    "reference",
    "reference --restamp",
    RUN,
    "--version",
)


@pytest.fixture(scope="module")
def from_a_wheel(installed, tmp_path_factory):
    """What every command says where there is a wheel and no checkout."""
    cwd = tmp_path_factory.mktemp("elsewhere")
    words = [line.split() for line in COMMANDS]
    done = run(IN_A_WHEEL.replace("sys.argv[1]", repr(json.dumps(words))), installed, cwd)
    assert done.returncode == 0, done.stderr
    return *json.loads(done.stdout), cwd


def test_every_command_of_a_wheel_works_or_says_what_it_needs(from_a_wheel, installed):
    places, names, rows, said, cwd = from_a_wheel
    assert places == [
        str(installed / "curlnb" / "__init__.py"),
        str(cwd / "results"),
        str(cwd / ".cache" / "curlnb"),
    ]
    assert names == list(datasets.names())
    assert rows > 200
    assert said["--version"] == [0, f"curlnb {curlnb.__version__}\n", ""]
    status, out, err = said["doctor"]
    assert (status, err) == (0, "")
    assert f"results     {cwd / 'results'}" in out
    for line in ("data", "reproduce", "report", "reference", "reference --restamp"):
        needs = f"curlnb {line.split()[0]}: `curlnb {line.split()[0]}` needs a checkout of this project, and this is a package alone: "
        assert said[line] == [2, "", needs + "set CURLNB_HOME to one, or start this in it\n"]
    status, out, err = said[RUN]
    assert (status, out) == (2, "")
    assert re.fullmatch(
        r"curlnb run: cifar10-mini .*it comes with a checkout, not with the package: .*\n",
        err,
    )


def test_nothing_is_written_into_an_installed_package(from_a_wheel, installed):
    left = [
        path
        for path in (installed / "curlnb").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    record = next(installed.glob("*.dist-info")) / "RECORD"
    assert {path.relative_to(installed).as_posix() for path in left} <= {
        line.split(",")[0] for line in record.read_text().splitlines()
    }


def test_a_wheel_finds_the_checkout_around_it(installed):
    code = (
        "from curlnb.runs import environment\nprint(environment.home(), environment.in_checkout())"
    )
    done = run(code, installed, HOME / "notebooks" / "1_curl")
    assert done.stdout == f"{HOME} True\n"


def test_what_a_wheel_carries_is_what_is_read(installed):
    for pattern in carried():
        found = list(HOME.glob(pattern))
        assert found, pattern
        for path in found:
            assert (
                installed / "curlnb" / "carried" / path.relative_to(HOME)
            ).read_bytes() == path.read_bytes()
    assert not (HOME / "curlnb" / "carried").exists(), (
        "a checkout would read it instead of its own data"
    )


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
