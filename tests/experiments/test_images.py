"""Images: objectives by name, shared trainings, bad settings, a run resumes to the same bits."""

import json

import pytest
import torch
from direct import Noise, execute, resumes
from formulas import generator, refused
from torch.testing import assert_close

from curlnb.experiments.images import SCALES, Contrast, objective_loss, simclr, surrogate
from curlnb.experiments.objectives import scheduled
from curlnb.experiments.representations import visualise
from curlnb.losses import info_nce, pairwise, same_label_mask, subsample, unbiased
from curlnb.runs.store import Store


def test_experiments_that_look_at_one_training_share_it_and_lemma_4_3_holds_at_every_scale(
    tmp_path,
):
    given = {"dataset": Noise(60), "batch": 16, "epochs": 2, "size": 16, "objective": "hard"}
    given |= {"tau_plus": 0.1, "beta": 1.0}
    plain, pictured, bounded = (
        Store(tmp_path).run(experiment.asked(given | more, 3))["metrics"]
        for experiment, more in (
            (simclr, {}),
            (visualise, {"points": 40, "drawn": 20}),
            (surrogate, {}),
        )
    )
    assert len(list((tmp_path / "trained").glob("*.safetensors"))) == 1
    for name in ("knn", "linear", "loss", "clamped"):
        assert pictured[name] == plain[name]
    assert len(pictured["picture_tsne"]) == len(pictured["picture_points"]) == 40
    assert len(json.dumps(pictured)) < 20_000
    for kind in ("hinge", "logistic"):
        loss, supervised = (
            torch.tensor(bounded[f"{side}_{kind}"], dtype=torch.float64)
            for side in ("L_un", "L_sup_mu")
        )
        assert len(loss) == len(SCALES)
        assert (supervised <= (loss - bounded["tau"]) / (1 - bounded["tau"]) + 1e-4).all()


@pytest.mark.parametrize("done", [0.0, 0.3, 0.99])
def test_annealing_goes_from_beta_to_nothing_or_back(done):
    assert scheduled(2.0, "down", done) == pytest.approx(2 - 2 * done)
    assert scheduled(2.0, "up", done) == pytest.approx(2 * done)
    assert scheduled(2.0, "constant", done) == 2


def test_a_resumed_convolutional_run_equals_the_uninterrupted_one_bit_for_bit(
    tmp_path, monkeypatch
):
    """With channels-last weights, fused Adam's moments must keep the parameters' memory layout."""
    given = {"dataset": Noise(), "batch": 16, "epochs": 3, "size": 16, "objective": "hard"}
    given |= {"tau_plus": 0.1, "beta": 2.0, "schedule": "down", "released_probe": True}
    whole = resumes(simclr, tmp_path, given, monkeypatch, after=5)
    shares = ("knn", "linear", "linear_top5", "linear_released", "clamped")
    assert all(0 <= whole[name] <= 1 for name in shares)


def test_objectives_are_the_losses_by_name():
    g = generator()
    views = tuple(
        torch.nn.functional.normalize(torch.randn(8, 4, generator=g), dim=1) for _ in range(2)
    )
    labels = torch.arange(8) % 3
    pos, neg = pairwise(*views)
    biased, _ = objective_loss(Contrast("biased"), views, labels, g)
    assert_close(biased, info_nce(pos, neg).mean())
    ideal, _ = objective_loss(Contrast("unbiased"), views, labels, g)
    assert_close(ideal, unbiased(pos, neg, same_label_mask(labels)).mean())
    few, _ = objective_loss(Contrast("biased", negatives=5), views, labels, generator(1))
    assert_close(few, info_nce(pos, subsample(neg, 5, generator(1))).mean())
    every, _ = objective_loss(Contrast("biased", negatives=14), views, labels, g)
    assert every == biased


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"objective": "biassed"}, "objective 'biassed' is unknown; use one of biased"),
        ({"tau_plus": 0.1}, "tau_plus is 0.1: objective 'biased' takes neither tau_plus nor beta"),
        (
            {"objective": "debiased", "beta": 1.0},
            "beta is 1.0: objective 'debiased' takes tau_plus",
        ),
        ({"views": 1}, "views is 1: a positive needs at least 2"),
        ({"evaluate_on": "val"}, "evaluate_on 'val' is unknown; use 'test' or 'validation'"),
        ({"negatives": 31, "batch": 16}, "negatives is 31: a batch of 16 in 2 views holds 30"),
    ],
)
def test_bad_settings_are_named_in_one_line(tmp_path, parameters, message):
    with refused(message):
        execute(simclr, tmp_path, {"dataset": Noise()} | parameters)


def test_an_integer_given_for_a_fraction_is_the_same_run():
    assert (
        simclr.asked({"objective": "hard", "beta": 1}, 0).identity
        == simclr.asked({"objective": "hard", "beta": 1.0}, 0).identity
    )
