"""A store heals: whatever becomes of one of its files, the same command gives the clean run's
metrics and says one line.
"""

import errno
import itertools
import json
import os
import shutil

import pytest
import torch
import toy
from formulas import refused
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from curlnb.runs import files
from curlnb.runs.executors import SweepError
from curlnb.runs.store import Store, read_reference
from curlnb.runs.sweep import sweep

STEPS = {"where": os.devnull}
KINDS = ("record", "arrays", "checkpoint", "trained")


@pytest.fixture(scope="module", autouse=True)
def headless():
    """Without progress bars, which go where the lines go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURLNB_LOG", os.devnull)
        yield


def command(root):
    """A sweep of its own, and two that share a training."""
    store = Store(root)
    tables = [sweep(toy.regression, seeds=2, store=store, workers=0, epochs=2)]
    tables += [
        sweep(each, seeds=1, store=store, workers=0, **STEPS)
        for each in (toy.loss_of, toy.weights_of)
    ]
    return [row for table in tables for row in table.drop(columns=["seconds"]).to_dict("records")]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return command(tmp_path_factory.mktemp("clean"))


def half_done(root, done, cut, looked):
    """A store in the middle of the command: one seed is done, one was cut short, the shared
    training is kept and looked at once.
    """
    Store(root).run(toy.regression.asked({"epochs": 2}, done))
    toy.interrupt(Store(root), toy.regression, {"epochs": 2}, cut, after=9)
    Store(root).run(toy.loss_of.asked(STEPS, looked))
    return root


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return half_done(tmp_path_factory.mktemp("begun"), 0, 1, 0)


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """The same of other seeds."""
    return half_done(tmp_path_factory.mktemp("strange"), 5, 6, 7)


def file_of(root, kind):
    if kind == "trained":
        (path,) = (root / "trained").glob("*.safetensors")
        return path
    name = {
        "record": "run.json",
        "arrays": "arrays.safetensors",
        "checkpoint": "checkpoint.safetensors",
    }[kind]
    return next((root / "toy.regression").glob(f"*/{name}"))


def flip(path, strange):
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def empty(path, strange):
    path.write_bytes(b"")


def swapped(path, strange):
    shutil.copy(strange, path)


def other_schema(path, strange):
    if path.suffix == ".json":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
        return
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        tensors, metadata = {name: file.get_tensor(name) for name in names}, file.metadata()
    save_file(tensors, path, metadata | {"schema": "99"})


def foreign(path, strange):
    path.write_text("[]")


def deep(path, strange):
    path.write_text("[" * 99_999)


def gone(path, strange):
    path.unlink()


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *itertools.product(KINDS, [flip, swapped, other_schema, gone]),
        *itertools.product(("record", "arrays"), [empty, foreign]),
        ("record", deep),
    ],
)
def test_whatever_becomes_of_a_file_the_same_command_gives_the_clean_metrics(
    tmp_path, capfd, clean, begun, strange, kind, how
):
    root = tmp_path / "runs"
    shutil.copytree(begun, root)
    path = file_of(root, kind)
    how(path, file_of(strange, kind))
    capfd.readouterr()
    assert command(root) == clean
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == (how is not gone), lines
    assert all(line.startswith(f"curlnb: {path} ") for line in lines)
    if how is not gone:
        assert path.with_name(f"{path.name}.damaged").exists()
    assert command(root) == clean
    assert capfd.readouterr().err == "", "and it is said once"


def test_a_full_disk_names_the_file_and_the_same_command_goes_on(tmp_path, monkeypatch, clean):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_too(*_):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    for name, fails in (("save_file", full_too), ("os.fsync", full)):
        with monkeypatch.context() as patch:
            patch.setattr(f"curlnb.runs.files.{name}", fails)
            with refused("2 of 2 runs failed", SweepError) as caught:
                command(tmp_path)
            assert "No space left on device" in str(caught.value)
            assert str(tmp_path / "toy.regression") in str(caught.value)
            assert str(caught.value).isprintable()
        assert not list(tmp_path.rglob("*.part"))
    assert command(tmp_path) == clean


def test_too_many_open_files_or_no_room_on_a_gpu_is_not_the_files_fault(tmp_path, monkeypatch):
    asked = toy.regression.asked({"epochs": 1}, 0)
    Store(tmp_path).run(asked)
    folder = Store(tmp_path).folder(asked)

    def refuse(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            files.load_tensors(folder / "arrays.safetensors")
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        files.load_tensors(folder / "arrays.safetensors", torch.device("xpu"))
    assert not list(folder.glob("*.damaged"))


def test_a_damaged_line_of_a_reference_is_named_and_counts_as_absent(tmp_path, capfd):
    records = [
        Store(tmp_path / "runs").run(toy.regression.asked({"epochs": 1}, seed)) for seed in range(3)
    ]
    path = tmp_path / "toy.regression.jsonl"
    lines = [json.dumps(files.seal(record, "runs/toy.regression.jsonl")) for record in records]
    path.write_bytes(
        b"\n".join(
            [
                lines[0].encode(),
                lines[1].replace("0.", "1.", 1).encode(),
                b"\xff{",
                lines[2][:40].encode(),
            ]
        )
    )
    capfd.readouterr()
    assert list(read_reference(path)) == [records[0]["identity"]]
    said = capfd.readouterr().err.splitlines()
    assert [
        line.startswith(f"curlnb: {path}, line {n}, is damaged (")
        for n, line in zip((2, 3, 4), said, strict=True)
    ] == [True] * 3
