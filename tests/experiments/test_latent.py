"""CURL on latent classes: how blocks are drawn, their loss, and runs of equal cost."""

import itertools
import math

import pytest
import torch
from direct import Noise, execute, resumes
from formulas import curl as curl_of
from formulas import generator, normal, refused
from torch.testing import assert_close

from curlnb import losses
from curlnb.data import datasets, sampling
from curlnb.experiments import latent_images
from curlnb.experiments.image_data import normalised
from curlnb.experiments.latent import curl_block_loss, fresh_block_loss, leave_one_out
from curlnb.experiments.latent_images import ShiftAndFlip, curl, image_world, representation_network
from curlnb.experiments.latent_losses import (
    average_task_loss,
    best_scale_loss,
    mean_loss,
    sampled_similarities,
)

TINY = {"dataset": Noise(), "batch": 12, "epochs": 2, "shift": 2, "negatives": 2}


LOG_2 = math.log(2)


# --- sampling


def test_blocks_are_distinct_samples_of_one_class_which_comes_with_its_share():
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 0, 2, 1, 1])
    drawn = sampling.blocks(sampling.class_index(labels), 20_000, 3, generator(), largest=4)
    assert drawn.shape == (20_000, 3)
    assert (labels[drawn] == labels[drawn[:, :1]]).all()
    assert all((drawn[:, i] != drawn[:, j]).all() for i in range(3) for j in range(i))
    for place in range(3):  # exchangeable: every place has the marginal, uniform over samples
        counts = torch.bincount(drawn[:, place], minlength=10)
        assert (counts - 2000).abs().max() < 4.5 * (20_000 * 0.09) ** 0.5
    of_largest = drawn[labels[drawn[:, 0]] == 2]
    pairs = torch.bincount(of_largest[:, 0] * 10 + of_largest[:, 1], minlength=100)
    expected = 20_000 * 0.4 / 12
    assert (pairs[pairs > 0] - expected).abs().max() < 4.5 * expected**0.5  # ordered, uniform
    assert (pairs > 0).sum() == 12


def test_negative_blocks_are_the_batchs_others_uniformly_and_never_the_anchors_own():
    drawn = sampling.other_blocks(5, 3, 4000, generator())
    assert drawn.shape == (5, 3, 4000)
    for block in range(5):
        counts = torch.bincount(drawn[block].flatten(), minlength=5)
        assert counts[block] == 0
        assert (counts[torch.arange(5) != block] - 3000).abs().max() < 4.5 * (
            12_000 * 3 / 16
        ) ** 0.5
    with refused("1 block has no other block for a negative; use a larger batch"):
        sampling.other_blocks(1, 2, 1, generator())


def test_a_subset_keeps_every_class_and_smaller_ones_lie_within_larger_ones():
    labels = torch.arange(300) % 6
    tenth, half = sampling.subset(labels, 0.1, 7), sampling.subset(labels, 0.5, 7)
    assert torch.bincount(labels[tenth]).tolist() == [5] * 6
    assert torch.bincount(labels[half]).tolist() == [25] * 6
    assert torch.bincount(labels[sampling.subset(labels, 0.001, 7)]).tolist() == [2] * 6
    assert torch.isin(tenth, half).all()
    assert torch.equal(tenth, sampling.subset(labels, 0.1, 7))
    assert not torch.equal(tenth, sampling.subset(labels, 0.1, 8))
    assert torch.equal(sampling.subset(labels, 1.0, 7), torch.arange(300))
    with refused(r"share is 0: it lies in \(0, 1\]"):
        sampling.subset(labels, 0, 7)


# --- losses


@pytest.mark.parametrize("kind", ["logistic", "hinge"])
def test_the_loss_of_blocks_is_eq_12_with_the_other_points_of_each_block_averaged(kind):
    z, k = normal(4, 3, 5), 2
    partner, total = sampling.other_blocks(4, 3, k, generator(9)), 0.0
    for i in range(4):
        for p in range(3):
            rest = [q for q in range(3) if q != p]
            mean = {j: sum(z[j, q] for q in rest) / 2 for j in range(4)}
            v = [float(z[i, p] @ (mean[i] - mean[int(j)])) for j in partner[i, p]]
            total += curl_of(v, kind)
    assert float(curl_block_loss(z, k, generator(9), kind)) == pytest.approx(total / 12, rel=1e-12)


def test_a_pair_gives_definition_2_3_and_fresh_negatives_agree_with_reused_ones():
    z = normal(6, 2, 4)
    assert_close(leave_one_out(z), z.flip(1))
    # [6, 3, 2, 4]: as if these had been drawn
    negative = z[sampling.other_blocks(6, 1, 3, generator(2))[:, 0]]
    one_way = losses.curl_loss(z[:, 0], z[:, 1], negative[:, :, 1])
    other_way = losses.curl_loss(z[:, 1], z[:, 0], negative[:, :, 0])
    assert_close(fresh_block_loss(z, negative), torch.cat([one_way, other_way]).mean())


@pytest.mark.parametrize("kind", ["logistic", "hinge"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_estimate_of_l_un_agrees_with_enumeration_and_is_the_constants_at_a_constant_f(kind, k):
    g = generator(3)
    x, labels = torch.randn(12, 3, generator=g), torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 1, 2])
    sets, s = torch.cartesian_prod(*[torch.arange(12)] * k).view(-1, k), x @ x.T
    v = s[:, :, None, None] - s[:, None, sets]  # [anchors, positives, sets, k]
    loss = (1 - v.amin(3)).clamp_min(0) if kind == "hinge" else (-v).exp().sum(3).log1p() / LOG_2
    same = (labels[:, None] == labels).double()
    exact = float((same / same.sum(1) * loss.mean(2)).sum() / 12)
    found = mean_loss(sampled_similarities(x, labels, negatives=k, generator=g, draws=400), kind)
    assert found == pytest.approx(exact, rel=0.03)
    constant = mean_loss(sampled_similarities(0 * x + 1, labels, negatives=k, generator=g), kind)
    assert constant == pytest.approx(1.0 if kind == "hinge" else math.log2(1 + k), abs=1e-5)


@pytest.mark.parametrize("kind", ["logistic", "hinge"])
def test_the_loss_of_average_tasks_is_definition_2_2(kind):
    x, means = torch.randn(7, 3, generator=generator(4)), torch.randn(4, 3, generator=generator(5))
    labels, total = torch.tensor([0, 1, 2, 3, 3, 0, 1]), 0.0
    for point, own in zip(x, labels.tolist(), strict=True):
        for other in range(4):
            v = float(point @ (means[own] - means[other]))
            total += curl_of([v], kind) if other != own else 0
    assert average_task_loss(x, labels, means, kind) == pytest.approx(total / 7 / 3, abs=2e-6)


@pytest.mark.parametrize("kind", ["logistic", "hinge"])
def test_the_loss_at_the_best_scale_does_not_depend_on_the_scale_and_is_at_most_a_constants(kind):
    g = generator(6)
    labels = torch.arange(60) % 3
    x = torch.randn(3, 4, generator=g)[labels] + torch.randn(60, 4, generator=g)
    best = best_scale_loss(x, labels, kind=kind, seed=0)
    assert best == best_scale_loss(8 * x, labels, kind=kind, seed=0)
    assert best <= min(
        1.001, mean_loss(sampled_similarities(30 * x, labels, negatives=1, generator=g), kind)
    )


# --- runs


def test_data_and_updates_are_equal_for_every_block_size_number_of_negatives_method_and_share(
    tmp_path, monkeypatch
):
    """150 images in batches of 30: always five updates per epoch, on thirty images each."""
    original, seen = latent_images.image_world, []

    def counting(*args, **options):
        world = original(*args, **options)
        return world._replace(
            inputs=lambda samples, g: seen.append(len(samples)) or world.inputs(samples, g)
        )

    monkeypatch.setattr(latent_images, "image_world", counting)
    for varied in (
        {},
        {"block": 9, "negatives": 10, "loss": "hinge"},
        {"method": "supervised", "share": 0.2},
    ):
        seen.clear()
        execute(
            curl,
            tmp_path / str(varied),
            {"dataset": Noise(150), "batch": 30, "epochs": 2, **varied},
        )
        assert seen == [30] * 10, varied


@pytest.mark.parametrize(("method", "stop_after"), [("curl", 4), ("supervised", 1)])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    tmp_path, monkeypatch, stop_after, method
):
    given = TINY | {"method": method, "track": True, "tr_tasks": 2}
    whole = resumes(curl, tmp_path, given, monkeypatch, after=stop_after)
    assert len(whole["track_un"]) == len(whole["track_sup"]) == 1 + TINY["epochs"]
    kinds = ["mu", "mu5", "few", "tr"] + ["head"] * (method == "supervised")
    measures = ("avg2", "avg5", "top1", "top5")
    assert all(0 <= whole[f"{kind}_{name}"] <= 1 for kind in kinds for name in measures)


def test_training_inputs_are_the_images_moved_and_mirrored_and_nothing_else():
    data = datasets.synthetic("cifar10-mini", "train", n=20)
    plain, moved = (
        image_world(data, data, ShiftAndFlip(shift, flip=bool(shift))) for shift in (0, 3)
    )
    samples = torch.arange(20)
    whole = plain.inputs(samples, generator())
    assert_close(whole, normalised(data.images))
    padded = torch.nn.functional.pad(whole, (3,) * 4, mode="reflect")
    candidates = {}
    for y, x in itertools.product(range(7), repeat=2):
        candidates[y, x, False] = padded[:, :, y : y + 32, x : x + 32]
        candidates[y, x, True] = candidates[y, x, False].flip(3)
    views, used = moved.inputs(samples, generator(5)), set()
    for i in range(20):
        fitting = [key for key, images in candidates.items() if torch.equal(images[i], views[i])]
        assert len(fitting) == 1
        used.add(fitting[0])
    assert len(used) > 10


def test_representations_have_a_hundred_numbers_as_in_the_paper():
    for name, shape in (
        ("small", (1, 28, 28)),
        ("small", (3, 32, 32)),
        ("vgg16", (3, 32, 32)),
        ("cnn", (1, 28, 28)),
    ):
        assert representation_network(name, torch.Size(shape)).eval()(
            torch.randn(2, *shape)
        ).shape == (2, 100)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"method": "curled"},
            "method 'curled' is unknown; use one of curl, supervised, untrained",
        ),
        ({"negatives": 0}, "negatives is 0: it must be int"),
        ({"block": 6}, "a batch of 12 holds less than two blocks of 7 points"),
        (
            {"block": 4, "batch": 20, "share": 0.5},
            "a class has 2 training samples, a block needs 5",
        ),
    ],
)
def test_bad_settings_are_named_in_one_line(tmp_path, parameters, message):
    with refused(message):
        execute(curl, tmp_path, TINY | parameters)
