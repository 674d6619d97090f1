"""Images: every objective runs, bad settings are named, a killed run resumes to the same bits."""

import pytest
import torch
from direct import Noise, execute, resumes

from curlnb.experiments.images import SCALES, Contrast, objective_loss, simclr, surrogate
from curlnb.experiments.objectives import scheduled
from curlnb.losses import info_nce, pairwise, same_label_mask, subsample, unbiased
from curlnb.runs.experiment import code_graphs
from curlnb.runs.source import HERE
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep


@pytest.mark.parametrize(
    "parameters",
    [
        {"objective": "biased", "negatives": 5},
        {"objective": "unbiased", "negatives": 5},
        {"objective": "debiased", "tau_plus": 0.1, "views": 3},
        {"objective": "hard", "tau_plus": 0.1, "beta": 1.0, "positives": "true"},
        {
            "objective": "hard_corrected",
            "tau_plus": 0.1,
            "beta": 1.0,
            "bn_groups": 2,
            "released_probe": True,
            "monitor_every": 1,
        },
    ],
    ids=lambda p: p["objective"],
)
def test_every_objective_trains_and_is_measured(tmp_path, monkeypatch, parameters):
    monkeypatch.setenv("CURLNB_DRY", "1")
    metrics = execute(simclr, tmp_path, {"dataset": Noise()} | parameters)
    assert all(0 <= metrics[name] <= 1 for name in ("knn", "linear", "clamped"))
    assert ("linear_released" in metrics) == bool(parameters.get("released_probe"))
    assert len(metrics.get("knn_curve", [])) == parameters.get("monitor_every", 0)


def test_a_dry_sweep_takes_no_curve_from_a_run_that_ended_before_its_first_measurement(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("CURLNB_DRY", "1")  # one epoch: nothing is measured that comes every fifth
    monkeypatch.setattr("curlnb.runs.sweep._DRY_RUNS", {})
    runs = sweep(
        simclr,
        [{"monitor_every": every} for every in (5, 1, 2)],
        seeds=1,
        store=Store(tmp_path),
        dataset=Noise(),
        epochs=20,
    )
    assert [isinstance(curve, list) for curve in runs["knn_curve"]] == [False, True, False]


def test_lemma_4_3_holds_at_every_scale_of_trained_features_and_the_training_is_shared(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("CURLNB_DRY", "1")
    store = Store(tmp_path)
    store.run(simclr, {"dataset": Noise()}, 0)
    trainings = list((tmp_path / "trained").glob("*.safetensors"))
    metrics = store.run(surrogate, {"dataset": Noise()}, 0)["metrics"]
    assert list((tmp_path / "trained").glob("*.safetensors")) == trainings
    for kind in ("hinge", "logistic"):
        assert len(metrics[f"L_un_{kind}"]) == len(SCALES)
        bounds = [
            (loss - metrics["tau"]) / (1 - metrics["tau"]) for loss in metrics[f"L_un_{kind}"]
        ]
        assert all(
            side <= bound + 1e-4
            for side, bound in zip(metrics[f"L_sup_mu_{kind}"], bounds, strict=True)
        )


def test_annealing_goes_from_beta_to_nothing_or_back_for_any_number_of_steps():
    for steps in (1, 2, 7, 10, 400):
        down = [scheduled(2.0, "down", at / steps) for at in range(steps)]
        up = [scheduled(2.0, "up", at / steps) for at in range(steps)]
        assert down[0] == 2.0
        assert up[0] == 0.0
        assert torch.allclose(torch.tensor(down) + torch.tensor(up), torch.tensor(2.0))
        assert torch.allclose(-torch.tensor(down).diff(), torch.tensor(2.0 / steps), atol=1e-6)
        assert {scheduled(2.0, "constant", at / steps) for at in range(steps)} == {2.0}


@pytest.mark.parametrize("stop_after", [1, 5])
def test_a_resumed_convolutional_run_equals_the_uninterrupted_one_bit_for_bit(
    tmp_path, monkeypatch, stop_after
):
    """With channels-last weights, fused Adam's moments must keep the parameters' memory layout."""
    parameters = {
        "dataset": Noise(),
        "batch": 16,
        "epochs": 3,
        "size": 16,
        "objective": "hard",
        "tau_plus": 0.1,
        "beta": 2.0,
        "schedule": "down",
    }
    resumes(simclr, tmp_path, parameters, monkeypatch, after=stop_after)


def test_objectives_are_the_losses_by_name():
    g = torch.Generator().manual_seed(0)
    views = tuple(
        torch.nn.functional.normalize(torch.randn(8, 4, generator=g), dim=1) for _ in range(2)
    )
    labels = torch.arange(8) % 3
    pos, neg = pairwise(*views)
    biased, _ = objective_loss(Contrast("biased"), views, labels, g)
    torch.testing.assert_close(biased, info_nce(pos, neg).mean())
    ideal, _ = objective_loss(Contrast("unbiased"), views, labels, g)
    torch.testing.assert_close(ideal, unbiased(pos, neg, same_label_mask(labels)).mean())
    few, _ = objective_loss(
        Contrast("biased", negatives=5), views, labels, torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(
        few, info_nce(pos, subsample(neg, 5, torch.Generator().manual_seed(1))).mean()
    )


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
        (
            {"negatives": 1022, "batch": 256},
            "negatives is 1022: a batch of 256 in 2 views holds 510",
        ),
    ],
)
def test_bad_settings_are_named_in_one_line(tmp_path, parameters, message):
    with pytest.raises(ValueError, match=message):
        execute(simclr, tmp_path, {"dataset": Noise()} | parameters)


def test_a_batch_holds_as_many_negatives_as_it_may_be_asked_for(tmp_path):
    """16 images in 2 views: 30 for each anchor, which are all."""
    given = {"dataset": Noise(), "batch": 16, "epochs": 1, "size": 16}
    few, all_of_them, none_named = (
        execute(simclr, tmp_path / str(n), given | {"negatives": n})["loss"] for n in (8, 30, None)
    )
    assert few < all_of_them == none_named


def test_what_loads_trains_and_evaluates_counts_in_the_code_digest():
    """Names used through a package, `datasets.holdout`, are followed to where they are written."""
    graphs = code_graphs(simclr.function, simclr.parameters({"objective": "hard"}), HERE)
    reached = {definition.name for graph in graphs for definition in graph.texts}
    computing = "holdout load loss_and_clamped train _restore encoder released_probe view losses_of"
    assert {*computing.split(), "_estimated", "_cnn"} <= reached
    assert not {"sweep", "claim", "read", "_unbiased", "_vgg16", "check_contrast"} & reached


def test_an_integer_given_for_a_fraction_is_the_same_run():
    assert simclr.identity({"objective": "hard", "beta": 1}, 0) == simclr.identity(
        {"objective": "hard", "beta": 1.0}, 0
    )
