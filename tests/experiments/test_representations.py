"""Representations: training is SimCLR's, the measures agree with scikit-learn and with loops."""

import json

import pytest
import torch
from direct import Noise
from sklearn.metrics import roc_auc_score, silhouette_score
from torch.nn.functional import normalize

from curlnb.experiments import image_data
from curlnb.experiments.images import simclr
from curlnb.experiments.representations import (
    BETAS,
    BINS,
    SCALE,
    Pictures,
    hardest_negatives,
    neighbourhood,
    overlap,
    picture,
    similarity_histograms,
    visualise,
)
from curlnb.runs.store import Store


def points(n=60, d=5, classes=4, spread=0.7, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    return torch.randn(classes, d, generator=g)[labels] + spread * torch.randn(
        n, d, generator=g
    ), labels


def test_the_encoder_is_simclrs_own_and_the_record_is_small(tmp_path):
    parameters = {
        "dataset": Noise(60),
        "objective": "hard",
        "tau_plus": 0.1,
        "beta": 1.0,
        "batch": 16,
        "epochs": 2,
        "size": 16,
    }
    seen = Store(tmp_path).run(visualise, {**parameters, "points": 40, "drawn": 20}, 3)["metrics"]
    plain = Store(tmp_path).run(simclr, parameters, 3)["metrics"]
    for name in ("knn", "linear", "loss", "clamped"):
        assert seen[name] == plain[name]
    assert len(seen["picture_tsne"]) == len(seen["picture_points"]) == 40
    assert len(json.dumps(seen)) < 20_000


def test_neighbourhoods_agree_with_scikit_learn_and_a_loop():
    x, labels = points()
    for cosine, metric in ((True, "cosine"), (False, "euclidean")):
        found = neighbourhood(x, labels, cosine=cosine)
        assert found["silhouette"] == pytest.approx(
            silhouette_score(x.double().numpy(), labels.numpy(), metric=metric), abs=1e-4
        )
    distance = torch.cdist(normalize(x.double(), dim=1), normalize(x.double(), dim=1))
    right = 0.0
    for i in range(len(x)):
        near = [j for j in distance[i].argsort().tolist() if j != i][:10]
        votes = torch.bincount(labels[near], minlength=4)
        best = (votes == votes.max()).nonzero()[:, 0].tolist()
        right += (int(labels[i]) in best) / len(best)
    assert neighbourhood(x, labels)["knn10"] == pytest.approx(right / len(x))


def test_a_class_of_one_point_has_no_width_of_its_own():
    x, labels = points(9, classes=4)
    assert neighbourhood(x, labels)["silhouette"] == pytest.approx(
        silhouette_score(x.double(), labels, metric="cosine"), abs=1e-4
    )


def test_histograms_are_those_of_all_pairs():
    x, labels = points(40)
    found = similarity_histograms(x, labels)
    unit = normalize(x.double(), dim=1)
    pairs = [
        (float(unit[i] @ unit[j]), bool(labels[i] == labels[j]))
        for i in range(40)
        for j in range(i)
    ]
    for name, same in (("same", True), ("different", False)):
        values = torch.tensor([value for value, agree in pairs if agree == same])
        expected = torch.histc(values, BINS, -1, 1) / len(values)
        assert torch.tensor(found[name]).sum() == pytest.approx(1, abs=2e-3)
        torch.testing.assert_close(torch.tensor(found[name]), expected, atol=1e-3, rtol=0)
        assert found[f"mean_{name}"] == pytest.approx(float(values.mean()), abs=1e-4)
    assert found["auc"] == pytest.approx(
        roc_auc_score([agree for _, agree in pairs], [value for value, _ in pairs]), abs=2e-3
    )


def test_overlap_of_histograms():
    one = torch.tensor([2.0, 2.0, 0.0])
    assert overlap(one, 3 * one) == pytest.approx(1)
    assert overlap(one, torch.tensor([0.0, 0.0, 5.0])) == 0
    assert overlap(one, torch.tensor([0.0, 1.0, 3.0])) == pytest.approx(0.25)


def test_the_hardest_negatives_are_the_most_similar_of_the_batch_and_counted_by_label():
    x, labels = points(40, d=6)
    found = hardest_negatives(x, labels, Pictures(drawn=20, anchors=3, shown=5), temperature=0.5)
    unit = normalize(x, dim=1)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    top_share, all_share, weights = [], [], [[] for _ in BETAS]
    for batch in order.split(20):
        for i in batch.tolist():
            others = torch.tensor([j for j in batch.tolist() if j != i])
            s = (unit[others] @ unit[i]).double()
            same = labels[others] == labels[i]
            top_share.append(float(same[s.argsort(descending=True)[:5]].float().mean()))
            all_share.append(float(same.float().mean()))
            for beta, own in zip(BETAS, weights, strict=True):
                own.append(
                    float(torch.exp(beta * s / 0.5)[same].sum() / torch.exp(beta * s / 0.5).sum())
                )
    assert found["false_hardest"] == pytest.approx(sum(top_share) / 40, abs=1e-4)
    assert found["false_uniform"] == pytest.approx(sum(all_share) / 40, abs=1e-4)
    assert found["false_weight"] == pytest.approx([sum(own) / 40 for own in weights], abs=2e-4)
    assert found["false_weight"][0] == pytest.approx(found["false_uniform"], abs=2e-4)
    batch = set(order[:20].tolist())
    for anchor, hard, random in zip(
        found["picture_anchors"], found["picture_hardest"], found["picture_random"], strict=True
    ):
        others = torch.tensor(sorted(batch - {anchor}))
        expected = others[(unit[others] @ unit[anchor]).argsort(descending=True)[:5]].tolist()
        assert hard == expected
        assert len(set(random)) == 5
        assert set(random) <= batch - {anchor}
    assert len(set(labels[found["picture_anchors"]].tolist())) == 3


def test_the_picture_keeps_clusters_and_its_scale():
    x, labels = points(80, d=10, spread=0.05)
    flat = picture(x, perplexity=10, seed=0)
    assert flat.abs().max() == pytest.approx(SCALE)
    assert neighbourhood(flat, labels, cosine=False)["knn10"] == 1
    assert torch.equal(flat, picture(x, perplexity=10, seed=0))


def test_the_first_of_each_class_are_alike_many():
    labels = torch.tensor([0, 0, 2, 2, 2, 5, 0, 5])
    assert image_data.first_of_each(labels, 6).tolist() == [0, 1, 2, 3, 5, 7]
    assert image_data.first_of_each(labels, 2).tolist() == [0, 2, 5]


def test_drawings_are_compared_on_the_machine_that_made_them_only(monkeypatch):
    """t-SNE's points depend on the last bit; accuracies must still agree everywhere."""
    from curlnb.companion import reference

    old = {
        "experiment": "representations.look",
        "parameters": {},
        "seed": 0,
        "machine": {"cpu": "one"},
    }
    old["metrics"] = {"linear": 0.5, "features_silhouette": -0.1, "picture_tsne": [[1, 2]]}
    fresh = {
        "machine": {"cpu": "one"},
        "metrics": {"linear": 0.51, "features_silhouette": -0.12, "picture_tsne": [[7, 0]]},
    }
    monkeypatch.setattr(
        reference, "Store", lambda root: type("Empty", (), {"run": lambda *a: fresh})()
    )
    assert len(reference.recompute(old)) == 3
    fresh["machine"] = {"cpu": "another"}
    assert reference.recompute(old) == []
    fresh["metrics"]["linear"] = 0.6
    assert [line.split()[1] for line in reference.recompute(old)] == ["linear:"]
