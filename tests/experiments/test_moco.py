"""MoCo against formulas in float64: the queue, the slow network, the loss, resumption."""

import pytest
import torch
from direct import Noise, execute, resumes
from formulas import generator, refused, unit
from torch.nn.utils import parameters_to_vector
from torch.testing import assert_close

from curlnb.experiments import moco
from curlnb.experiments.moco import MoCo, mixed_negatives, moco_v2, query_key_similarities
from curlnb.models.encoders import SimCLR, momentum_update, projection_head


def tiny(queue=7, dim=3):
    return MoCo(SimCLR(torch.nn.Flatten(), projection_head(4, 5, dim)), queue, dim)


@pytest.mark.parametrize("sizes", [[3, 2], [4, 7, 5, 1]])
def test_the_queue_is_first_in_first_out_for_any_batches(sizes):
    model, kept = tiny(queue=7), []
    for number, size in enumerate(sizes):
        keys, owner = unit(size, 3, seed=number), torch.arange(size) + 10 * number
        model.enqueue(keys, owner)
        kept = [*kept, *zip(keys, owner.tolist(), strict=True)][-7:]
    place = int(model.place)
    assert place == sum(sizes) % 7
    oldest_first = torch.arange(place, place + 7) % 7
    found = model.keys[oldest_first][-len(kept) :]
    assert_close(found, torch.stack([key for key, _ in kept]))
    owners = [-1] * (7 - len(kept)) + [owner for _, owner in kept]
    assert model.owner[oldest_first].tolist() == owners


def test_the_key_network_is_the_exponential_average_of_the_query_network():
    model, g = tiny(), generator()
    average = parameters_to_vector(model.key.parameters()).double()
    for _ in range(5):
        for parameter in model.query.parameters():
            parameter.data += torch.randn(parameter.shape, generator=g)
        momentum_update(model.key, model.query, 0.1)
        average = 0.9 * average + 0.1 * parameters_to_vector(model.query.parameters()).double()
    found = parameters_to_vector(model.key.parameters()).double()
    assert_close(found, average, atol=1e-6, rtol=1e-6)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The network of a run with split batch norm, and a step of its training."""
    found = []

    def capture(run, model, step, settings, **_):
        found.append((model, step))
        return {"loss": [0.0]}

    monkeypatch.setattr(moco, "train", capture)
    given = {"dataset": Noise(), "batch": 16, "queue": 32, "size": 16, "bn_groups": 4}
    execute(moco_v2, tmp_path, given)
    return found[0]


def test_no_gradient_flows_into_keys_or_the_key_network(made):
    q, k, keys = (unit(n, 8, seed=n).requires_grad_() for n in (5, 5, 9))
    pos, neg = query_key_similarities(q, k[:5], keys)
    assert_close((pos, neg), ((q * k).sum(1), q @ keys.T))
    (pos.sum() + neg.sum()).backward()
    assert q.grad is not None
    assert k.grad is None
    assert keys.grad is None
    model, step = made
    model.train()
    step(torch.arange(16), 0.0)[0].backward()
    assert all(p.grad is None for p in model.key.parameters())
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0
        for name, p in model.query.named_parameters()
        if "weight" in name
    )


def test_a_key_does_not_depend_on_the_company_of_its_query(made):
    """Shuffling: with split batch norm, a query and its key share statistics with other images."""
    model, step = made
    seen = []
    model.key.register_forward_hook(lambda module, inputs, out: seen.append(out[1].detach()))
    step(torch.arange(16), 0.0)
    (key,) = seen
    kept = model.keys[:16]
    assert model.owner[:16].tolist() == list(range(16))
    # where each image's key was computed
    order = [int((key == row).all(1).nonzero()[0]) for row in kept]
    assert sorted(order) == list(range(16))
    same_group = [place // 4 == image // 4 for image, place in enumerate(order)]
    assert not all(same_group)


def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, monkeypatch):
    """Queue, owners, place and key network must be restored, or later losses would differ."""
    parameters = {
        "dataset": Noise(),
        "batch": 8,
        "queue": 20,
        "epochs": 2,
        "size": 16,
        "bn_groups": 2,
        "beta": 0.2,
        "momentum": 0.9,
    }
    parameters |= {"mix_hardest": 6, "mixed": 4, "mixed_with_query": 2, "cosine": True}
    resumes(moco_v2, tmp_path, parameters, monkeypatch, after=3)


def test_mixed_negatives_lie_between_the_hardest_keys_and_never_nearer_the_query_than_half_way():
    q, keys = unit(5, 6, seed=1), unit(30, 6, seed=2)
    neg = q @ keys.T
    g = generator()
    mixed = mixed_negatives(q, neg, keys, 1, 3, 0, g)  # of a single key: itself
    assert_close(mixed, keys[neg.argmax(1)][:, None].expand(-1, 3, -1))
    mixed = mixed_negatives(q, neg, keys, 8, 200, 100, g)
    assert mixed.shape == (5, 300, 6)
    assert_close(mixed.norm(dim=2), torch.ones(5, 300))
    scores = torch.einsum("bd,bkd->bk", q, mixed)
    eighth = neg.topk(8, 1).values[:, -1:]
    assert (eighth > 0).all()  # scaling to unit length then only brings a mixture nearer
    assert (scores >= eighth - 1e-5).all()
    nearest = (
        (1 + neg.amax(1)) / 2
    ).sqrt()  # half the angle to the hardest key is as near as a query's mixture may come
    assert (scores[:, 200:] <= nearest[:, None] + 1e-5).all()
    assert mixed_negatives(q, neg, keys, 0, 0, 0, g) is None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"queue": 16, "batch": 20}, "queue is 16, smaller than a batch of 20"),
        (
            {"queue": 20, "batch": 20, "momentum": 1.0},
            r"momentum is 1.0: the key network needs one in \[0, 1\)",
        ),
        ({"queue": 20, "batch": 20, "mixed": 4, "mix_hardest": 21}, "mix_hardest is 21: 4"),
    ],
)
def test_bad_settings_are_named_in_one_line(tmp_path, parameters, message):
    with refused(message):
        execute(moco_v2, tmp_path, {"dataset": Noise()} | parameters)
