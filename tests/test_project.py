"""The set-up files agree with one another, and the commands answer bad input in one line."""

import ast
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
import yaml

from curlnb.__main__ import doctor
from curlnb.runs import environment

HOME = environment.home()
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]


def bootstrap():
    spec = importlib.util.spec_from_file_location("bootstrap", HOME / "tools" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_types():
    """By mypy, which began before all tests (conftest.py) if all of them are run."""
    if begun := os.environ.get("TESTS_TYPES"):
        while not (status := Path(begun)).exists() or not status.read_text():
            time.sleep(0.1)
        assert status.read_text() == "0\n", Path(f"{begun}.txt").read_text()
    else:
        checked = subprocess.run([sys.executable, "-m", "mypy"], cwd=HOME, capture_output=True)
        assert checked.returncode == 0, checked.stdout.decode()


def test_conda_and_binder_agree_with_pyproject():
    """conda-forge's CPU build of PyTorch in the ranges of pyproject.toml, all else by pip, which
    finds torch there.
    """
    listed = yaml.safe_load((HOME / "environment.yml").read_text())
    numpy = [line for line in PROJECT["dependencies"] if not line.startswith("torch")]
    both = [line for line in PROJECT["optional-dependencies"]["notebooks"] if "torch" in line]
    torch = [line.replace("torch>", "pytorch-cpu>") for line in (*numpy, *both)]
    ours = sorted(["python" + PROJECT["requires-python"], "pip", "make", "git", *torch])
    *conda, pip = listed["dependencies"]
    assert listed["channels"] == ["conda-forge"]
    assert sorted(conda) == ours
    assert pip == {"pip": ["--editable .[notebooks,graphs]"]}
    binder = yaml.safe_load((HOME / "binder" / "environment.yml").read_text())
    assert binder == listed | {"dependencies": conda}
    last = HOME / "binder" / "postBuild"
    assert (
        last.read_text().splitlines()[-1]
        == 'python -m pip install --no-cache-dir --editable ".[notebooks,graphs]"'
    )
    assert os.access(last, os.X_OK)


def test_the_lock_names_no_index():
    lock = (HOME / "requirements.lock").read_text()
    assert "index" not in lock.replace("--no-emit-index-url", "")


def test_another_torch_build_leaves_the_rest_of_the_lock_as_it_is():
    names = re.compile(r"^([\w.-]+)==", re.M)
    lock = (HOME / "requirements.lock").read_text()
    dropped = set(names.findall(lock)) - set(names.findall(bootstrap().without_torch(lock)))
    assert {"torch", "torchvision"} <= dropped
    assert all(name.startswith(("torch", "triton", "nvidia-", "cuda-")) for name in dropped)
    assert "torch-geometric" not in dropped


def hashed(path):
    """The packages of a list with hashes: name -> (version, the number of its digests)."""
    text = re.sub(r"^#.*\n", "", (HOME / path).read_text(), flags=re.M)
    entries = re.findall(
        r"^([a-z0-9.-]+)==(\S+).*\n((?: +--hash=sha256:[0-9a-f]{64}.*\n?)+)", text, re.M
    )
    assert len(entries) == len(re.findall(r"^\S", text, re.M)), f"{path} has a line without digests"
    return {name: (version, digests.count("--hash")) for name, version, digests in entries}


def test_the_installer_and_the_cpu_build_are_locked_too():
    locked = {name: version for name, (version, _) in hashed("requirements.lock").items()}
    uv = hashed("tools/uv.lock")
    assert set(uv) == {"uv", "setuptools"}
    assert uv["setuptools"][0] == locked["setuptools"]
    cpu = hashed("requirements-cpu.lock")
    assert {name: version for name, (version, _) in cpu.items()} == {
        name: f"{locked[name]}+cpu" for name in ("torch", "torchvision")
    }
    for name in ("requirements-cpu.lock", "tools/uv.lock"):
        assert "http" not in (HOME / name).read_text()


def set_up(monkeypatch, folder, backend, *, answers=False, cuda=False):
    """The commands of a set-up in an empty folder, each with its standard input, if it installs.

    answers: whether the index of CPU builds does; cuda: whether an NVIDIA device is seen.
    """
    module, commands = bootstrap(), []

    def run(command, otherwise, given=None):
        if "install" in command:
            commands.append((command, given))

    done = subprocess.CompletedProcess([], 0 if answers else 1, "")
    if backend is None:
        monkeypatch.delenv("CURLNB_TORCH_BACKEND", raising=False)
    else:
        monkeypatch.setenv("CURLNB_TORCH_BACKEND", backend)
    monkeypatch.setattr(module, "VENV", str(folder))
    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "call", lambda *_: done)
    monkeypatch.setattr(module, "needs_no_cuda", lambda: not cuda)
    module.main()
    return commands


@pytest.mark.parametrize(
    ("backend", "answers", "cuda", "cpu"),
    [
        ("", True, False, False), ("cpu", False, True, True), (None, True, False, True),
        (None, False, False, False), (None, True, True, False),
    ],
)  # fmt: skip
def test_nothing_is_installed_without_its_digest(
    monkeypatch, tmp_path, backend, answers, cuda, cpu
):
    """And where no NVIDIA device is seen, torch's CPU build is taken, if its index answers."""
    cpu = cpu and sys.platform != "darwin"
    *installs, own = set_up(monkeypatch, tmp_path, backend, answers=answers, cuda=cuda)
    assert own[0][-1] == bootstrap().ROOT  # this checkout, built by the setuptools that is locked
    for command, _ in installs:
        assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(command)
    lists = [given for _, given in installs[1:]]
    assert ["+cpu" in given for given in lists] == [True, False][not cpu :]
    assert ("\ntorch==" in lists[-1]) == (not cpu)
    again = set_up(monkeypatch, tmp_path, backend, answers=answers, cuda=cuda)
    assert again == []


def test_the_package_is_found_beside_a_clone_of_its_name(tmp_path):
    """As in the folder in which `git clone` was said: there `curlnb` is the clone's root."""
    (tmp_path / "curlnb" / "data").mkdir(parents=True)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [sys.executable, "-c", "from curlnb.data import datasets"]
    done = subprocess.run(line, cwd=tmp_path, env=own | {"CURLNB_HOME": str(HOME)}, text=True,
                          capture_output=True)  # fmt: skip
    assert not done.returncode, done.stderr


def test_a_copied_or_moved_checkout_is_set_up_anew(monkeypatch, tmp_path):
    assert set_up(monkeypatch, tmp_path, "")
    monkeypatch.setattr(os.path, "realpath", lambda _: "/elsewhere/tools/bootstrap.py")
    assert bootstrap().ROOT == "/elsewhere"
    (tmp_path / "place").write_text("/where/it/was")
    module, began = bootstrap(), []
    monkeypatch.setattr(module, "VENV", str(tmp_path))
    monkeypatch.setattr(module, "ROOT", str(tmp_path))
    monkeypatch.setattr(module, "run", lambda command, *_: began.append(command))
    module.main()
    assert began[0][1:4] == ["-m", "venv", "--clear"]


def test_the_users_settings_of_pip_and_python_do_not_reach_an_installation(monkeypatch):
    """A set-up with PIP_USER=1 or PIP_TARGET installed elsewhere, or ended in pip's own text."""
    module = bootstrap()
    for name in (*module.FOREIGN, "PIP_USER"):
        monkeypatch.setenv(name, "1")
    said = module.call([sys.executable, "-c", "import os; print(dict(os.environ))"]).stdout
    seen = ast.literal_eval(said)
    assert seen["PIP_USER"] == "0"
    assert not set(module.FOREIGN) & set(seen)
    assert {"PIP_TARGET", "PIP_PREFIX", "PYTHONPATH"} <= set(module.FOREIGN)


def test_of_two_set_ups_at_once_one_waits_for_the_other(monkeypatch, tmp_path):
    module, began = bootstrap(), threading.Event()
    monkeypatch.setattr(module, "ROOT", str(tmp_path))
    monkeypatch.setattr(module, "set_up", lambda python: began.set())
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    second = threading.Thread(target=module.main)
    second.start()
    assert not began.wait(0.3)
    os.close(other)  # the first has ended
    second.join(60)
    assert began.is_set()


def test_a_build_of_torch_without_known_digests_is_refused_unless_the_user_says_so(
    monkeypatch, tmp_path
):
    monkeypatch.delenv("CURLNB_UNVERIFIED", raising=False)
    for backend in ("cu128", "../../tmp/x"):
        refused = r"no SHA-256 is known here of torch for '.*'; .* CURLNB_UNVERIFIED=1"
        with pytest.raises(SystemExit, match=refused):
            set_up(monkeypatch, tmp_path, backend)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("CURLNB_UNVERIFIED", "1")
    commands = [command for command, _ in set_up(monkeypatch, tmp_path, "cu128")]
    assert any("cu128" in each and "--require-hashes" not in each for each in commands)


def test_an_unsupported_python_says_so_in_one_line(monkeypatch):
    module = bootstrap()
    monkeypatch.setattr(module.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(
        SystemExit,
        match=r"Python 3.9 is not supported and no 3.11, 3.12, 3.13, 3.14 was found; install",
    ):
        module.supported_python()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("error: Failed to connect to host", "no network, or the package index cannot be reached"),
        ("error: hash mismatch", "otherwise"),
    ],
)
def test_a_failed_install_ends_in_one_line(said, expected):
    with pytest.raises(SystemExit, match=expected):
        bootstrap().run(
            [sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"], "otherwise"
        )


def test_the_python_versions_are_the_same_everywhere():
    supported = bootstrap().SUPPORTED
    assert (
        PROJECT["requires-python"] == f">={supported[0]},<3.{int(supported[-1].split('.')[1]) + 1}"
    )
    workflow = (HOME / ".github" / "workflows" / "ci.yml").read_text()
    assert set(re.findall(r'python: "([\d.]+)"', workflow)) == set(supported)


def test_doctor_says_what_there_is_in_a_screenful():
    text = doctor()
    assert len(text.splitlines()) <= 30
    for word in ("device", "precision", "versions", "cifar10-mini", "embedded", "results"):
        assert word in text


def test_a_closed_standard_output_is_no_error(tmp_path):
    line = f"exec >&-; exec {sys.executable} -m curlnb report --profile quick"
    own = {"CURLNB_RESULTS": str(tmp_path), "CURLNB_HOME": str(HOME), "PYTHONPATH": str(HOME)}
    done = subprocess.run(
        ["sh", "-c", line], env=os.environ | own, stderr=subprocess.PIPE, text=True, cwd=HOME
    )
    assert (done.returncode, done.stderr) == (0, "")


TEXTS = (".py", ".md", ".toml", ".yml", ".lock", ".html", ".ipynb", ".csv", ".json", "Makefile")


def test_nothing_committed_names_a_registry_or_a_path_of_a_machine():
    files = subprocess.run(
        ["git", "ls-files"], cwd=HOME, capture_output=True, text=True
    ).stdout.split()
    for name in files:
        if name.endswith(TEXTS) and (HOME / name).exists():
            text = (HOME / name).read_text()
            assert not re.search(
                r"(https?://|index-url[ =]+)[a-z0-9.-]*"
                r"(pypi|hosted|npm|debian|anaconda)[a-z0-9-]*\.[a-z]",
                text,
            ), name
            assert not re.search(r"(^|[^A-Za-z0-9_.])/(work|farm|root)/", text), name
