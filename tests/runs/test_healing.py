"""A store heals: whatever becomes of one of its files, the same command gives the clean run's
metrics and says one line.
"""

import errno
import json
import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
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


def command(root: Path) -> list[dict]:
    """A sweep of its own, and two that share a training."""
    store = Store(root)
    tables = [sweep(toy.regression, seeds=2, store=store, workers=0, epochs=2)]
    tables += [
        sweep(each, seeds=1, store=store, workers=0, **STEPS)
        for each in (toy.loss_of, toy.weights_of)
    ]
    return [row for table in tables for row in table.drop(columns=["seconds"]).to_dict("records")]


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> list[dict]:
    return command(tmp_path_factory.mktemp("clean"))


def half_done(root: Path, done: int, cut: int, looked: int) -> Path:
    """A store in the middle of the command: one seed is done, one was cut short, the shared
    training is kept and looked at once.
    """
    Store(root).run(toy.regression, {"epochs": 2}, done)
    toy.interrupt(Store(root), toy.regression, {"epochs": 2}, cut, after=9)
    Store(root).run(toy.loss_of, STEPS, looked)
    return root


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    return half_done(tmp_path_factory.mktemp("begun"), 0, 1, 0)


@pytest.fixture(scope="module")
def strange(tmp_path_factory) -> Path:
    """The same of other seeds."""
    return half_done(tmp_path_factory.mktemp("strange"), 5, 6, 7)


def file_of(root: Path, kind: str) -> Path:
    if kind == "trained":
        (path,) = (root / "trained").glob("*.safetensors")
        return path
    name = {
        "record": "run.json",
        "arrays": "arrays.safetensors",
        "checkpoint": "checkpoint.safetensors",
    }[kind]
    return next((root / "toy.regression").glob(f"*/{name}"))


def flip(path: Path, strange: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path, strange: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def noise(path: Path, strange: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.randrange(1, 200)))


def swapped(path: Path, strange: Path, chance: random.Random) -> None:
    shutil.copy(strange, path)


def folder(path: Path, strange: Path, chance: random.Random) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


def pipe(path: Path, strange: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def other_schema(path: Path, strange: Path, chance: random.Random) -> None:
    if path.suffix == ".json":
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"schema": chance.choice([1, 99, "3", None])})
        )
        return
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(tensors, path, metadata | {"schema": "99"})


def gone(path: Path, strange: Path, chance: random.Random) -> None:
    path.unlink()


def foreign_json(path: Path, strange: Path, chance: random.Random) -> None:
    path.write_text(chance.choice(["null", "[]", "{}", '"x"', "NaN", "[" * 5000, '{"schema": 3}']))


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kind=st.sampled_from(KINDS),
    how=st.sampled_from(
        [flip, cut, noise, swapped, folder, pipe, other_schema, gone, foreign_json]
    ),
    chance=st.randoms(use_true_random=False),
)
@example("arrays", swapped, random.Random(0))
@example("checkpoint", swapped, random.Random(0))
@example("trained", swapped, random.Random(0))
@example("record", swapped, random.Random(0))
@example("arrays", gone, random.Random(0))
@example("trained", flip, random.Random(0))
def test_whatever_becomes_of_a_file_the_same_command_gives_the_clean_metrics(
    tmp_path_factory, capfd, clean, begun, strange, kind: str, how: Callable, chance: random.Random
):
    root = tmp_path_factory.mktemp("hurt") / "runs"
    shutil.copytree(begun, root)
    path = file_of(root, kind)
    before = path.read_bytes()
    how(path, file_of(strange, kind), chance)
    silent = how is gone and kind != "arrays"
    if how is flip and kind == "record":  # a flipped space may leave what the record says
        silent = _says(path.read_bytes()) == _says(before)
    capfd.readouterr()
    assert command(root) == clean
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == (0 if silent else 1), lines
    assert all(line.startswith(f"curlnb: {path} ") for line in lines)
    if not silent and how is not gone:
        assert path.with_name(f"{path.name}.damaged-1").exists()
    assert command(root) == clean
    assert capfd.readouterr().err == "", "and it is said once"


def _says(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_nan_in_a_sealed_record_and_a_record_without_its_fields_are_computed_again(tmp_path, capfd):
    clean = Store(tmp_path).run(toy.regression, {"epochs": 1}, 0)["metrics"]
    path = Store(tmp_path).folder(toy.regression, {"epochs": 1}, 0) / "run.json"
    record = files.read_sealed(path)
    for wrong in (
        {"metrics": clean | {"loss": math.nan}},
        {"metrics": clean | {"largest": [math.nan]}},
        {"seconds": "long"},
        {"seed": None},
    ):
        files.write_sealed(path, record | wrong)
        assert Store(tmp_path).run(toy.regression, {"epochs": 1}, 0)["metrics"] == clean
        assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "what", ["the run", "the experiment", "trained", "lock", "a leftover", "progress.json"]
)
def test_what_stands_in_the_way_is_set_aside(tmp_path, capfd, clean, what):
    store = Store(tmp_path)
    own = store.folder(toy.loss_of, STEPS, 0)
    if what in ("the run", "the experiment", "trained"):
        path = {"the run": own, "the experiment": own.parent, "trained": tmp_path / "trained"}[what]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("in the way")
    else:
        path = own / {"a leftover": ".run.json.77.part"}.get(what, what)
        (path / "x").mkdir(parents=True)
    assert command(tmp_path) == clean
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"curlnb: {path} was damaged (it is ")


def test_a_store_of_the_schema_before_is_read(tmp_path, capfd, clean):
    """It had no places in its seals; hours of runs are not thrown away for that."""
    assert command(tmp_path) == clean
    for path in tmp_path.rglob("run.json"):
        value = files.read_sealed(path)
        path.write_text(json.dumps({**value, "schema": 2, "digest": files._digest(value)}))
    for path in tmp_path.rglob("*.safetensors"):
        tensors, state = files.load_tensors(path)
        text = json.dumps(state)
        save_file(
            tensors,
            path,
            {"state": text, "schema": "2", "digest": files._digest_of_tensors(tensors, text, "")},
        )
    assert command(tmp_path) == clean
    assert capfd.readouterr().err == ""


def test_a_full_disk_names_the_file_and_the_same_command_goes_on(tmp_path, monkeypatch, clean):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_too(*_: object) -> None:
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    for name, fails in (("save_file", full_too), ("os.fsync", full)):
        with monkeypatch.context() as patch:
            patch.setattr(f"curlnb.runs.files.{name}", fails)
            with pytest.raises(SweepError, match="2 of 2 runs failed") as caught:
                command(tmp_path)
            assert "No space left on device" in str(caught.value)
            assert str(tmp_path / "toy.regression") in str(caught.value)
            assert str(caught.value).isprintable()
        assert not list(tmp_path.rglob("*.part"))
    assert command(tmp_path) == clean


def test_too_many_open_files_or_no_room_on_a_gpu_is_not_the_files_fault(tmp_path, monkeypatch):
    Store(tmp_path).run(toy.regression, {"epochs": 1}, 0)
    folder = Store(tmp_path).folder(toy.regression, {"epochs": 1}, 0)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            files.load_tensors(folder / "arrays.safetensors")
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        files.load_tensors(folder / "arrays.safetensors", torch.device("xpu"))
    assert not list(folder.glob("*.damaged-*"))


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch, clean):
    jumps = random.Random(0)
    monkeypatch.setattr("time.time", lambda: jumps.choice([-1e9, 0.0, 4e9]))
    assert command(tmp_path) == clean
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, jumps.choice([0, 4_000_000_000])))
    assert command(tmp_path) == clean


def test_leftovers_of_the_dead_are_cleared_and_those_of_the_living_kept(tmp_path):
    dead, alive, elsewhere = (
        tmp_path / f".{name}.json.{host}-{process}-1.part"
        for name, host, process in (
            ("a", files._HOST, 2**22 + 1),
            ("b", files._HOST, os.getpid()),
            ("c", "0" * 8, 2**22 + 1),
        )
    )
    for path in (dead, alive, elsewhere):
        path.touch()
    files.clear_leftovers(tmp_path)
    assert [path.exists() for path in (dead, alive, elsewhere)] == [False, True, True]


def test_a_damaged_line_of_a_reference_is_named_and_counts_as_absent(tmp_path, capfd):
    records = [
        Store(tmp_path / "runs").run(toy.regression, {"epochs": 1}, seed) for seed in range(3)
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
