"""What a precision means: float32 is float32, TF32 is taken where it is asked for alone, and
afterwards all is as before.
"""

import os
import subprocess
import sys

import pytest
import torch
from toy import counted

from curlnb.runs import devices
from curlnb.runs.experiment import Experiment
from curlnb.runs.store import Store

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def taken() -> tuple[bool, bool]:
    """Whether matrix products and cuDNN's operations take TF32 on a GPU."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def ampere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    devices.fast_bf16.cache_clear()
    yield
    devices.fast_bf16.cache_clear()


@pytest.mark.parametrize("precision", devices.PRECISIONS)
def test_tf32_is_taken_where_the_precision_says_so_and_nowhere_else(ampere, precision):
    before = taken()
    assert before == (False, True), (
        "torch's own default, of which neither half is what a precision means"
    )
    with devices.numeric_mode(precision, GPU):
        assert taken() == ((True, True) if precision == "tf32" else (False, False))
    assert taken() == before


def test_what_was_set_before_comes_back_after_a_failure(ampere):
    def fail() -> None:
        with devices.numeric_mode("float32", GPU):
            assert taken() == (False, False)
            raise KeyError("in the block")

    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(KeyError, match="in the block"):
            fail()
        assert taken() == (True, True)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_tf32_is_float32_where_there_is_none(monkeypatch):
    assert devices.admitted("tf32", False, CPU) == ("float32", False, "no TF32 on this cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 0))
    assert devices.admitted("tf32", False, GPU) == ("float32", False, "no TF32 on this cuda")


def test_a_run_computes_with_the_numerics_of_its_record(ampere, monkeypatch, tmp_path):
    seen, compute = [], Experiment.call
    monkeypatch.setattr(Experiment, "call", lambda *given: seen.append(taken()) or compute(*given))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "none")
    monkeypatch.setenv("CURLNB_DEVICE", "cuda:1")
    record = Store(tmp_path).run(counted, {"where": str(tmp_path / "log")}, 0)
    assert seen == [(False, False)]
    assert (record["numerics"]["precision"], record["numerics"]["tf32"]) == ("float32", False)


@pytest.mark.parametrize(("set_before", "in_force"), [(None, "AVX512_CORE_FP16"), ("AVX2", "AVX2")])
def test_runs_go_without_matrix_tiles_unless_one_asks_for_them(set_before, in_force):
    """On a machine that announces AMX and does not have it whole, this process ends in an illegal
    instruction without the setting.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"
    }
    code = (
        "import os; from curlnb.runs import store; import torch\n"
        "with torch.autocast('cpu', torch.bfloat16):\n"
        "    torch.nn.Conv2d(3, 16, 3)(torch.randn(64, 3, 16, 16)).float().sum().backward()\n"
        "print(os.environ['ONEDNN_MAX_CPU_ISA'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | ({"ONEDNN_MAX_CPU_ISA": set_before} if set_before else {}),
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stdout.strip()) == (0, in_force), run.stderr


def test_apples_gpu_is_taken_only_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.delenv("CURLNB_DEVICE", raising=False)
    assert devices.default_device().type == "cpu"
    monkeypatch.setenv("CURLNB_DEVICE", "mps")
    assert devices.default_device().type == "mps"
