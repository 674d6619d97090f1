"""What a precision means: float32 is float32, TF32 is taken where it is asked for alone, and afterwards all is as before."""

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
    assert before == (False, True), "torch's own default, of which neither half is what a precision means"
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
