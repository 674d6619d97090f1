"""The set-up files agree with one another, and the commands answer bad input in one line."""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from curlnb.__main__ import doctor
from curlnb.runs import devices, environment

HOME = environment.home()
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]


def bootstrap():
    spec = importlib.util.spec_from_file_location("bootstrap", HOME / "tools" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_environment_yml_agrees_with_pyproject():
    listed = yaml.safe_load((HOME / "environment.yml").read_text())["dependencies"]
    python = next(line for line in listed if isinstance(line, str) and line.startswith("python"))
    pip = next(line["pip"] for line in listed if isinstance(line, dict))
    assert python == "python" + PROJECT["requires-python"]
    assert pip == [*PROJECT["dependencies"], "--editable .[graphs]"]


def test_the_lock_holds_every_dependency_with_hashes_and_names_no_index():
    lock = (HOME / "requirements.lock").read_text()
    names = [
        re.match(r"[\w.-]+", line)[0] for line in PROJECT["dependencies"] + [*itertools.chain(*PROJECT["optional-dependencies"].values())]
    ]
    locked = re.findall(r"^([a-z0-9.-]+)==", lock, re.M)
    assert {name.lower() for name in names} <= set(locked)
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.M)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "http" not in re.sub(r"(aio)?http\w*", "", lock)
    assert "index" not in lock.replace("--no-emit-index-url", "")


def test_another_torch_build_leaves_the_rest_of_the_lock_as_it_is():
    lock = (HOME / "requirements.lock").read_text()
    rest = bootstrap().without_torch(lock)
    dropped = set(re.findall(r"^([\w.-]+)==", lock, re.M)) - set(re.findall(r"^([\w.-]+)==", rest, re.M))
    assert {"torch", "torchvision"} <= dropped
    assert all(name.startswith(("torch", "triton", "nvidia-", "cuda-")) for name in dropped)
    assert "torch-geometric" not in dropped


def test_an_unsupported_python_says_so_in_one_line(monkeypatch):
    module = bootstrap()
    monkeypatch.setattr(module.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"Python 3.9 is not supported and no 3.11, 3.12, 3.13 was found; install one or say"):
        module.supported_python()


@pytest.mark.parametrize(
    ("said", "expected"),
    [("error: Failed to connect to host", "no network, or the package index cannot be reached"), ("error: hash mismatch", "otherwise")],
)
def test_a_failed_install_ends_in_one_line(said, expected):
    with pytest.raises(SystemExit, match=expected):
        bootstrap().run([sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"], "otherwise")


def test_the_python_versions_are_the_same_everywhere():
    supported = bootstrap().SUPPORTED
    assert PROJECT["requires-python"] == f">={supported[0]},<3.{int(supported[-1].split('.')[1]) + 1}"
    workflow = (HOME / ".github" / "workflows" / "ci.yml").read_text()
    assert set(re.findall(r'python: "([\d.]+)"', workflow)) == set(supported)


def test_curlnb_device_overrides_and_a_wrong_one_is_named(monkeypatch):
    monkeypatch.setenv("CURLNB_DEVICE", "cpu")
    assert devices.default_device().type == "cpu"
    monkeypatch.setenv("CURLNB_DEVICE", "gpu7")
    with pytest.raises(ValueError, match="CURLNB_DEVICE='gpu7' is no device; use cuda"):
        devices.default_device()


def test_doctor_says_what_there_is_in_a_screenful():
    text = doctor()
    assert len(text.splitlines()) <= 30
    for word in ("device", "precision", "compiler", "cifar10-mini", "embedded", "minutes"):
        assert word in text


def test_commands_answer_bad_input_in_one_line(tmp_path):
    env = {**os.environ, "CURLNB_RESULTS": str(tmp_path)}
    for arguments in (["report"], ["reproduce", "--jobs", "0"], ["run", "images.simclear"], ["run", "images.simclr", "epochs"]):
        done = subprocess.run([sys.executable, "-m", "curlnb", *arguments], env=env, capture_output=True, text=True)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1


def test_nothing_committed_names_a_registry_or_a_path_of_a_machine():
    files = subprocess.run(["git", "ls-files"], cwd=HOME, capture_output=True, text=True).stdout.split()
    for name in files:
        if (
            name.endswith((".py", ".md", ".toml", ".yml", ".lock", ".html", ".ipynb", ".csv", ".json", "Makefile"))
            and (HOME / name).exists()
        ):
            text = (HOME / name).read_text()
            assert not re.search(r"(https?://|index-url[ =]+)[a-z0-9.-]*(pypi|hosted|npm|debian|anaconda)[a-z0-9-]*\.[a-z]", text), name
            assert not re.search(r"(^|[^A-Za-z0-9_.])/(work|farm|root)/", text), name
