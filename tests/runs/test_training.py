"""What the loop promises beside exact resume (tests/test_store.py): an honest log, a guard, a
fallback that says so.
"""

import pytest
import torch
from formulas import refused
from torch import nn

from curlnb.experiments.sentences import _diverged
from curlnb.runs import devices
from curlnb.runs.store import Run
from curlnb.runs.training import (
    Accelerated,
    Optimisation,
    TrainingError,
    _restore,
    _state,
    optimiser,
    rate,
    train,
)


def run_of(tmp_path):
    return Run(tmp_path, device=torch.device("cpu"))


def fit(tmp_path, step, model, optimizer=torch.optim.SGD, epochs=3, batch=4, **changes):
    """Trains on 10 samples at a rate of 0.5."""
    return train(
        run_of(tmp_path),
        model,
        step,
        Optimisation(epochs, batch, lr=0.5),
        samples=10,
        seed=0,
        generator=torch.Generator(),
        optimizer=optimizer(model.parameters(), lr=0.5),
        **changes,
    )


def test_every_epoch_visits_full_batches_of_distinct_samples_in_a_new_order(tmp_path):
    model, seen = nn.Linear(1, 1), []

    def step(indices, _):
        seen.append(indices.tolist())
        return model.weight.sum() * 0, {}

    fit(tmp_path, step, model)
    assert [len(batch) for batch in seen] == [4] * 6  # the short last batch is dropped
    epochs = [seen[i] + seen[i + 1] for i in (0, 2, 4)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_the_log_holds_the_mean_over_an_epoch_and_what_on_epoch_returns(tmp_path):
    model, values = nn.Linear(1, 1), iter([1.0, 3.0, 5.0, 7.0])
    log = fit(
        tmp_path,
        lambda *_: (model.weight.sum() * 0 + next(values), {"half": torch.tensor(0.5)}),
        model,
        epochs=2,
        on_epoch=lambda epoch: {"epoch": epoch},
    )
    assert log == {"loss": [2.0, 6.0], "half": [0.5, 0.5], "epoch": [1, 2]}


def test_a_step_gets_the_share_of_steps_done_and_a_schedule_follows_it(tmp_path):
    model, shares, rates = nn.Linear(1, 1), [], []

    def remembering(*arguments, **options):
        rates.append(torch.optim.SGD(*arguments, **options))
        return rates[0]

    def step(_, done):
        shares.append(done)
        rates.append(rates[0].param_groups[0]["lr"])
        return model.weight.sum() * 0, {}

    fit(tmp_path, step, model, remembering, milestones=[0.5])
    assert shares == pytest.approx([step / 6 for step in range(6)])
    assert rates[1:] == pytest.approx([0.5] * 3 + [0.05] * 3)


def test_rates_fall_along_half_a_cosine_or_by_steps():
    assert rate(2.0, 0.0, cosine=True) == 2.0
    assert rate(2.0, 0.5, cosine=True) == pytest.approx(1.0)
    assert [
        rate(1.0, done, milestones=[0.5, 0.75]) for done in (0, 0.49, 0.5, 0.75, 0.99)
    ] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    with refused("shares of the training in"):
        rate(1.0, 0.0, milestones=[120, 160])
    with refused("optimiser 'lars' is unknown; use one of adam, sgd"):
        optimiser(torch.nn.Linear(1, 1), Optimisation(), torch.device("cpu"), "lars")


def test_no_epoch_leaves_the_network_as_it_is_and_logs_nothing(tmp_path):
    model = nn.Linear(1, 1)
    before = model.weight.detach().clone()
    assert fit(tmp_path, lambda *_: None, model, epochs=0) == {}
    assert torch.equal(model.weight, before)


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_learning_rate(tmp_path):
    model, count = nn.Linear(1, 1), iter(range(10))
    said = r"nan at step 3 \(epoch 2\), learning rate 0.5: try a smaller"
    with refused(said, TrainingError) as stopped:
        fit(
            tmp_path,
            lambda *_: (model.weight.sum() * (float("nan") if next(count) == 3 else 1.0), {}),
            model,
        )
    assert _diverged([], str(stopped.value))["diverged_at"] == 3  # read from these words


@pytest.mark.parametrize(
    ("optimizer", "bad", "at"), [(torch.optim.SGD, "inf", 1), (torch.optim.Adam, "nan", 5)]
)
def test_a_gradient_that_is_not_finite_stops_although_every_loss_is(tmp_path, optimizer, bad, at):
    """The square root has an infinite slope at 0. The other losses do not see the weight, and after
    the last step there is none.
    """
    model, count = nn.Linear(1, 1), iter(range(10))

    def step(*_):
        zero = model.weight.sum() - model.weight.sum().detach()
        root = zero.sqrt() if bad == "inf" else (0 * zero).sqrt()
        return root if next(count) == at else model.bias.sum() * 0, {}

    with refused(
        rf"a gradient was not finite in epoch {1 + at // 2}, though every loss was: try a smaller",
        TrainingError,
    ):
        fit(tmp_path, step, model, optimizer)


def test_a_batch_larger_than_the_data_is_an_error(tmp_path):
    with refused("batch of 16 is larger than the 10 samples"):
        fit(tmp_path, lambda *_: None, nn.Linear(1, 1), batch=16)


def test_a_checkpoint_holds_the_random_numbers_of_the_runs_own_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(
        torch.cuda, "get_rng_state", lambda device: asked.append(device) or torch.get_rng_state()
    )
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda _, device: asked.append(device))
    model, generator, device = nn.Linear(1, 1), torch.Generator(), torch.device("cuda", 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tensors, state = _state(model, optimizer, generator, device)
    _restore(model, optimizer, generator, device, tensors, state)
    assert asked == [device, device]


def test_without_fast_bf16_or_a_compiler_it_falls_back_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "fast_bf16", lambda _: False)
    monkeypatch.setattr(devices, "compiler", lambda: None)
    run = run_of(tmp_path)
    function = Accelerated(precision="bf16", compile=True).accelerate(lambda x: x @ x, run)
    assert function(torch.eye(2)).dtype == torch.float32
    assert run.notes["precision"] == "float32"
    assert run.notes["compiled"] is False
    assert "no fast bfloat16" in run.notes["fallback"]
    assert "no C++ compiler" in run.notes["fallback"]


def test_an_unknown_precision_is_an_error(tmp_path):
    with refused("precision 'fp8' is unknown"):
        Accelerated(precision="fp8").accelerate(abs, run_of(tmp_path))
