"""Multiview coding: colours in float64, the loss in both directions, the bank."""

import pytest
import torch
from direct import Noise, execute, resumes
from formulas import generator, refused, unit
from torch.nn.functional import normalize
from torch.testing import assert_close

from curlnb.experiments import multiview
from curlnb.experiments.multiview import Multiview, cmc, from_bank, in_batch, lab, views


def lab_of(red, green, blue):
    """CIE 15 and IEC 61966-2-1, written out in Python's floats."""
    linear = [
        ((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in (red, green, blue)
    ]
    matrix = [(0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)]
    ratio = [sum(m * c for m, c in zip(row, linear, strict=True)) / sum(row) for row in matrix]
    x, y, z = (r ** (1 / 3) if r > 216 / 24389 else (24389 / 27 * r + 16) / 116 for r in ratio)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_colours_agree_with_the_formulas():
    g = generator()
    rgb = torch.cat(
        [
            torch.rand(50, 3, generator=g),
            0.05 * torch.rand(50, 3, generator=g),
            torch.zeros(1, 3),
            torch.ones(1, 3),
        ]
    )
    expected = torch.tensor([lab_of(*colour) for colour in rgb.double().tolist()])
    assert_close(lab(rgb[:, :, None, None])[:, :, 0, 0], expected, atol=2e-3, rtol=1e-5)
    assert_close(
        lab(rgb.double()[:, :, None, None])[:, :, 0, 0], expected.double(), atol=1e-6, rtol=1e-6
    )


def test_views_fill_their_range_and_grey_has_no_colour():
    g = generator()
    corners = torch.cartesian_prod(*3 * [torch.tensor([0.0, 1.0])])
    seen = views(torch.cat([torch.rand(500, 3, generator=g), corners])[:, :, None, None])
    channels = torch.cat(seen, 1).flatten(1)
    assert_close(channels.amin(0), -torch.ones(3), atol=1e-3, rtol=0)
    assert_close(channels.amax(0), torch.ones(3), atol=1e-3, rtol=0)
    grey = torch.linspace(0, 1, 9)[:, None, None, None].expand(-1, 3, 1, 1)
    light, colour = views(grey)
    assert (light.flatten().diff() > 0).all()
    assert colour.amax(0).sub(colour.amin(0)).abs().max() < 1e-4


def test_either_view_is_contrasted_with_all_of_the_other():
    light, colour = unit(6, 8, seed=1), unit(6, 8, seed=2)
    for anchors, others, (pos, neg) in zip(
        (light, colour), (colour, light), in_batch(light, colour), strict=True
    ):
        scores = anchors @ others.T
        assert_close(pos, scores.diagonal())
        for i in range(6):
            assert_close(neg[i], scores[i, torch.arange(6) != i])


def test_the_bank_gives_each_anchor_negatives_of_the_other_view_but_never_its_own_image():
    light, colour, bank = (
        x.requires_grad_() for x in (unit(4, 8, seed=1), unit(4, 8, seed=2), unit(2, 5, 8, seed=3))
    )
    samples = torch.tensor([3, 0, 4, 2])
    found = from_bank(light, colour, bank, samples, 400, generator())
    for view, (anchor, (pos, neg)) in enumerate(zip((light, colour), found, strict=True)):
        scores = (anchor @ bank[1 - view].T).detach()
        assert_close(pos.detach(), scores[torch.arange(4), samples])
        for i, own in enumerate(samples.tolist()):
            others = [j for j in range(5) if j != own]
            nearest = (neg[i].detach()[:, None] - scores[i]).abs().min(1)
            assert nearest.values.max() < 1e-6
            counts = torch.bincount(nearest.indices, minlength=5)
            assert counts[own] == 0
            assert (
                counts[others] > 60
            ).all()  # 100 expected, and 60 is 4.6 standard deviations away
    sum(pos.sum() + neg.sum() for pos, neg in found).backward()
    assert light.grad is not None
    assert colour.grad is not None
    assert bank.grad is None


def test_the_bank_moves_half_way_to_new_embeddings_and_others_stay():
    model = Multiview("cnn", 6)
    before, new = model.bank.clone(), (unit(2, 128, seed=1), unit(2, 128, seed=2))
    model.remember(torch.tensor([4, 1]), *new)
    for view in range(2):
        expected = before[view].double()
        expected[[4, 1]] = normalize((expected[[4, 1]] + new[view].double()) / 2, dim=1)
        assert_close(model.bank[view].double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "parameters",
    [{"tau_plus": 0.01}, {"bank": True, "negatives": 30, "optimizer": "sgd", "milestones": [0.5]}],
)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, monkeypatch, parameters):
    parameters = {"dataset": Noise(), "batch": 10, "epochs": 2, "size": 16} | parameters
    whole = resumes(cmc, tmp_path, parameters, monkeypatch, after=3)
    assert len(whole["floor"]) == len(multiview.FLOORS)
    assert all(
        0 <= whole[name] <= 1
        for name in ("linear", "linear_top5", "linear_light", "linear_colour", "knn", "clamped")
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bank": True}, "negatives is None with bank=True: a bank needs a number of negatives"),
        ({"negatives": 100}, "negatives is 100 with bank=False"),
        (
            {"dataset": Noise(200, "quickdraw-mini")},
            "quickdraw-mini has 1 channel: contrastive multiview coding needs colour",
        ),
    ],
)
def test_bad_settings_are_named_in_one_line(tmp_path, parameters, message):
    with refused(message):
        execute(cmc, tmp_path, parameters)
