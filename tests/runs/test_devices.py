"""What a precision means: float32 is float32, TF32 is taken where it is asked for alone, and
afterwards all is as before.
"""

import contextlib
import os
from functools import partial

import pytest
import torch
from toy import counted, loss_of, regression

from curlnb.runs import devices, environment
from curlnb.runs.experiment import Experiment
from curlnb.runs.store import Run, Store
from curlnb.runs.training import Accelerated

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def taken():
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
    with devices.in_force(0, precision, GPU):
        assert taken() == ((True, True) if precision == "tf32" else (False, False))
    assert taken() == before


def test_tf32_is_float32_where_there_is_none(monkeypatch):
    assert devices.admitted("tf32", False, CPU) == ("float32", False, "no TF32 on this cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 0))
    assert devices.admitted("tf32", False, GPU) == ("float32", False, "no TF32 on this cuda")


def test_a_run_computes_with_the_numerics_of_its_record(ampere, monkeypatch, tmp_path):
    seen, compute = [], Experiment.call
    monkeypatch.setattr(Experiment, "call", lambda *given: seen.append(taken()) or compute(*given))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "none")
    monkeypatch.setenv("CURLNB_DEVICE", "cuda:1")
    record = Store(tmp_path).run(counted.asked({"where": str(tmp_path / "log")}, 0))
    assert seen == [(False, False)]
    assert (record["numerics"]["precision"], record["numerics"]["tf32"]) == ("float32", False)


@contextlib.contextmanager
def called(switch, value, before):
    switch(value)
    try:
        yield
    finally:
        switch(before)


def switched(part, name, value):
    return called(partial(setattr, part, name), value, getattr(part, name))


READERS = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64": lambda: called(torch.set_default_dtype, torch.float64, torch.float32),
    "a device": lambda: torch.device("meta"),
    "the device": lambda: called(torch.set_default_device, "meta", None),
    "matmul": lambda: called(torch.set_float32_matmul_precision, "medium", "highest"),
    "no oneDNN": lambda: switched(torch.backends.mkldnn, "enabled", False),
    "convolutions": lambda: switched(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
    "cuDNN's choice": lambda: switched(torch.backends.cudnn, "benchmark", True),
}


def state():
    """What decides how torch computes in this thread."""
    backends = torch.backends
    parts = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)
    return [
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_float32_matmul_precision(),
        backends.mkldnn.enabled,
        backends.cudnn.allow_tf32,
        (backends.cudnn.deterministic, backends.cudnn.benchmark),
        [part.fp32_precision for part in parts],
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
    ]


PLAIN = state()[:-1]


def in_a_run(tmp_path, reader):
    """A run's metrics, the state of torch inside of it and before and after it."""
    seen, compute = [], Experiment.call
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "call", lambda *given: seen.append(state()) or compute(*given))
        with reader():
            before = state()
            record = Store(tmp_path).run(regression.asked({"epochs": 1}, 3))
            after = state()
    return record["metrics"], seen, before, after


def test_a_run_sets_its_own_numerics_and_restores_the_readers(tmp_path):
    """A run computed under a reader's autocast was found later as one of float32."""
    plain, (inside,), before, after = in_a_run(tmp_path / "plain", contextlib.nullcontext)
    assert before == after
    for number, (name, reader) in enumerate(READERS.items()):
        metrics, (there,), before, after = in_a_run(tmp_path / str(number), reader)
        assert metrics == plain, name
        assert there == inside, name
        assert before == after, name
        assert before[:-1] != PLAIN, name


def test_a_training_is_looked_at_with_a_runs_numerics_too(tmp_path):
    given = {"where": str(tmp_path / "log")}
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        here, _, _ = Store(tmp_path / "here").trained(loss_of, given, 0)
    plain, _, _ = Store(tmp_path / "plain").trained(loss_of, given, 0)
    assert not here.weight.is_inference()
    assert torch.equal(here.weight, plain.weight)


def test_the_readers_random_numbers_do_not_depend_on_what_the_store_holds(tmp_path):
    store, drawn = Store(tmp_path), []
    for _ in ("computed", "found"):
        torch.manual_seed(1)
        store.curve(regression, {"epochs": 1}, 0)
        drawn.append(torch.rand(3).tolist())
    torch.manual_seed(1)
    assert drawn == [torch.rand(3).tolist()] * 2


def test_bf16_casts_its_weights_anew_in_every_step_also_under_the_readers_autocast(
    tmp_path, monkeypatch
):
    """torch forgets cast weights at the end of the outermost autocast only."""
    monkeypatch.setattr(devices, "fast_bf16", lambda _: True)
    run, layer = Run(tmp_path, device=CPU), torch.nn.Linear(2, 2)
    step = Accelerated(precision="bf16").accelerate(layer, run)
    with torch.autocast("cpu", torch.bfloat16):
        step(torch.ones(1, 2))
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.zero_()
        assert torch.equal(step(torch.ones(1, 2)), torch.zeros(1, 2, dtype=torch.bfloat16))


def test_runs_go_without_matrix_tiles():
    """On a machine that announces AMX and does not have it whole, a bfloat16 convolution ends in an
    illegal instruction without the setting, which counts before torch is imported.
    """
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == environment.WITHOUT_TILES == "AVX512_CORE_FP16"


def test_apples_gpu_is_taken_only_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.delenv("CURLNB_DEVICE", raising=False)
    assert devices.default_device().type == "cpu"
    monkeypatch.setenv("CURLNB_DEVICE", "mps")
    mps = devices.default_device()
    assert mps.type == "mps"
    assert devices.admitted("float32", True, mps) == (
        "float32",
        False,
        "no torch.compile on this mps",
    )
