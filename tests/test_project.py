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

from curlnb.__main__ import doctor, main
from curlnb.runs import devices, environment

HOME = environment.home()
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]


def bootstrap():
    spec = importlib.util.spec_from_file_location("bootstrap", HOME / "tools" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_types():
    """mypy, as one of the tests: alone, before them, it would keep one core busy and leave the
    other idle for half a minute.
    """
    checked = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=HOME, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_conda_and_binder_agree_with_pyproject():
    """conda-forge's CPU build of PyTorch in the ranges of pyproject.toml, all else by pip, which
    finds torch there.
    """
    listed = yaml.safe_load((HOME / "environment.yml").read_text())
    vision = next(
        line
        for line in PROJECT["optional-dependencies"]["notebooks"]
        if line.startswith("torchvision")
    )
    torch = [line.replace("torch>", "pytorch-cpu>") for line in (*PROJECT["dependencies"], vision)]
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


def test_the_lock_holds_every_dependency_with_hashes_and_names_no_index():
    lock = (HOME / "requirements.lock").read_text()
    names = [
        re.match(r"[\w.-]+", line)[0]
        for line in PROJECT["dependencies"]
        + [*itertools.chain(*PROJECT["optional-dependencies"].values())]
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
    dropped = set(re.findall(r"^([\w.-]+)==", lock, re.M)) - set(
        re.findall(r"^([\w.-]+)==", rest, re.M)
    )
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
    assert set(hashed("tools/uv.lock")) == {"uv"}
    locked = dict(
        re.findall(r"^(torch|torchvision)==(\S+)", (HOME / "requirements.lock").read_text(), re.M)
    )
    wheels = 2 * len(bootstrap().SUPPORTED)  # for x86_64 and aarch64
    assert hashed("requirements-cpu.lock") == {
        name: (f"{version}+cpu", wheels) for name, version in locked.items()
    }
    assert (
        "http"
        not in (HOME / "requirements-cpu.lock").read_text()
        + (HOME / "tools" / "uv.lock").read_text()
    )


def commands_of_the_set_up(monkeypatch, folder, backend):
    """The commands that a set-up in an empty folder would run."""
    module, commands = bootstrap(), []
    monkeypatch.setenv("CURLNB_TORCH_BACKEND", backend)
    monkeypatch.setattr(module, "VENV", str(folder))
    monkeypatch.setattr(module, "STAMP", str(folder / "installed"))
    monkeypatch.setattr(module, "BACKEND", str(folder / "torch_backend"))
    monkeypatch.setattr(module, "uv_is", lambda version, inside: False)
    monkeypatch.setattr(module, "run", lambda command, otherwise: commands.append(command))
    monkeypatch.setattr(module, "print", lambda *line, **how: None, raising=False)
    module.main()
    return commands


@pytest.mark.parametrize("backend", ["", "cpu"])
def test_nothing_is_installed_without_its_digest(monkeypatch, tmp_path, backend):
    _, *installs, own = commands_of_the_set_up(monkeypatch, tmp_path, backend)
    assert own[-1] == bootstrap().ROOT  # this checkout, built by the setuptools that is locked
    lists = []
    for command in installs:
        assert "--require-hashes" in command
        assert "--no-deps" in command
        lists.append(os.path.basename(command[command.index("-r") + 1]))
        assert {"--no-build", "--only-binary", "--no-build-isolation"} & set(command)
    extra = ["requirements-cpu.lock"] if backend and sys.platform != "darwin" else []
    assert lists == ["uv.lock", *extra, "wheels.txt", "source_only.txt"]
    both = (tmp_path / "wheels.txt").read_text() + (tmp_path / "source_only.txt").read_text()
    assert ("\ntorch==" in both) == (not extra)
    assert re.findall(r"^[\w.-]+", (tmp_path / "source_only.txt").read_text(), re.M) == list(
        bootstrap().SOURCE_ONLY
    )


def test_a_build_of_torch_without_known_digests_is_refused_unless_the_user_says_so(
    monkeypatch, tmp_path
):
    monkeypatch.delenv("CURLNB_UNVERIFIED", raising=False)
    for backend in ("cu128", "../../tmp/x"):
        with pytest.raises(
            SystemExit, match=r"no SHA-256 is known here of torch for '.*'; .* CURLNB_UNVERIFIED=1"
        ):
            commands_of_the_set_up(monkeypatch, tmp_path, backend)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("CURLNB_UNVERIFIED", "1")
    commands = commands_of_the_set_up(monkeypatch, tmp_path, "cu128")
    assert [
        command for command in commands if "cu128" in command and "--require-hashes" not in command
    ]


def test_an_unsupported_python_says_so_in_one_line(monkeypatch):
    module = bootstrap()
    monkeypatch.setattr(module.sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(
        SystemExit,
        match=r"Python 3.9 is not supported and no 3.11, 3.12, 3.13 was found; install one or say",
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--profile", "paper"],
        ["reproduce", "--jobs", "0"],
        ["run", "images.simclear"],
        ["run", "images.simclr", "epochs"],
    ],
)
def test_commands_answer_bad_input_in_one_line(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    try:
        code = main(arguments)
    except SystemExit as ended:  # of the parser
        code = ended.code
    assert code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_nothing_committed_names_a_registry_or_a_path_of_a_machine():
    files = subprocess.run(
        ["git", "ls-files"], cwd=HOME, capture_output=True, text=True
    ).stdout.split()
    for name in files:
        if (
            name.endswith(
                (
                    ".py",
                    ".md",
                    ".toml",
                    ".yml",
                    ".lock",
                    ".html",
                    ".ipynb",
                    ".csv",
                    ".json",
                    "Makefile",
                )
            )
            and (HOME / name).exists()
        ):
            text = (HOME / name).read_text()
            assert not re.search(
                r"(https?://|index-url[ =]+)[a-z0-9.-]*(pypi|hosted|npm|debian|anaconda)[a-z0-9-]*\.[a-z]",
                text,
            ), name
            assert not re.search(r"(^|[^A-Za-z0-9_.])/(work|farm|root)/", text), name
