"""Representations: the measures agree with scikit-learn and with loops."""

import pytest
import torch
from formulas import generator
from sklearn.metrics import roc_auc_score, silhouette_score
from sklearn.neighbors import NearestNeighbors
from torch.nn.functional import normalize

from curlnb.experiments import image_data
from curlnb.experiments.representations import (
    BETAS,
    BINS,
    SCALE,
    Pictures,
    geometry,
    hardest_negatives,
    nearest,
    neighbourhood,
    overlap,
    picture,
    similarity_histograms,
)


def points(n=60, d=5, classes=4, spread=0.7, seed=0):
    g = generator(seed)
    labels = torch.arange(n) % classes
    return torch.randn(classes, d, generator=g)[labels] + spread * torch.randn(
        n, d, generator=g
    ), labels


def test_neighbourhoods_agree_with_scikit_learn_and_a_loop():
    x, labels = points()
    lonely, own = points(9)  # a class of one point has no width of its own
    for some, which, metric in (
        (x, labels, "cosine"),
        (x, labels, "euclidean"),
        (lonely, own, "cosine"),
    ):
        found = neighbourhood(some, which, cosine=metric == "cosine")["silhouette"]
        expected = silhouette_score(some.double().numpy(), which.numpy(), metric=metric)
        assert found == pytest.approx(expected, abs=1e-4)
    kept = NearestNeighbors(n_neighbors=10, metric="cosine").fit(x.double().numpy())
    closest = kept.kneighbors(return_distance=False).tolist()  # of others than the point itself
    assert nearest(x).tolist() == closest
    assert nearest(lonely).shape == (9, 8)
    right = 0.0
    for i, near in enumerate(closest):
        votes = torch.bincount(labels[near], minlength=4)
        best = (votes == votes.max()).nonzero()[:, 0].tolist()
        right += (int(labels[i]) in best) / len(best)
    assert neighbourhood(x, labels)["knn10"] == pytest.approx(right / len(x))


def test_histograms_are_those_of_all_pairs():
    x, labels = points(40)
    found = similarity_histograms(x, labels)
    unit, (i, j) = normalize(x.double(), dim=1), torch.tril_indices(40, 40, -1)
    cosine, agree = (unit @ unit.T)[i, j], labels[i] == labels[j]
    for name, some in (("same", agree), ("different", ~agree)):
        expected = torch.histc(cosine[some].float(), BINS, -1, 1) / some.sum()
        torch.testing.assert_close(torch.tensor(found[name]), expected, atol=1e-3, rtol=0)
        assert found[f"mean_{name}"] == pytest.approx(float(cosine[some].mean()), abs=1e-4)
    assert found["auc"] == pytest.approx(roc_auc_score(agree, cosine), abs=2e-3)


def test_uniformity_alignment_and_effective_rank_are_their_formulas():
    x, views = points(30)[0], [points(20, seed=seed)[0] for seed in (1, 2)]
    unit, one, other = (normalize(each.double(), dim=1) for each in (x, *views))
    found = geometry(x, *views)
    uniformity = (-2 * torch.pdist(unit).square()).exp().mean().log()
    assert found["uniformity"] == pytest.approx(float(uniformity), abs=1e-4)
    alignment = sum(float((a - b) @ (a - b)) for a, b in zip(one, other, strict=True)) / 20
    assert found["alignment"] == pytest.approx(alignment, abs=1e-4)
    singular = torch.linalg.eigvalsh(torch.cov(unit.T)).sqrt()
    share = singular / singular.sum()
    assert found["effective_rank"] == pytest.approx(float((share**-share).prod()), abs=0.01)


def test_overlap_of_histograms():
    one = torch.tensor([2.0, 2.0, 0.0])
    assert overlap(one, 3 * one) == pytest.approx(1)
    assert overlap(one, torch.tensor([0.0, 0.0, 5.0])) == 0
    assert overlap(one, torch.tensor([0.0, 1.0, 3.0])) == pytest.approx(0.25)


def test_the_hardest_negatives_are_the_most_similar_of_the_batch_and_counted_by_label():
    x, labels = points(40, d=6)
    found = hardest_negatives(x, labels, Pictures(drawn=20, anchors=3, shown=5), temperature=0.5)
    unit = normalize(x, dim=1).double()
    order = torch.randperm(40, generator=generator())
    shares = []
    for batch in order.split(20):
        for i in batch:
            others = batch[batch != i]
            cosine, same = unit[others] @ unit[i], (labels[others] == labels[i]).double()
            hardest = same[cosine.argsort(descending=True)[:5]].mean()
            weights = [(beta * cosine / 0.5).softmax(0) @ same for beta in BETAS]
            shares.append([hardest, same.mean(), *weights])
    hardest, uniform, *weights = torch.tensor(shares).mean(0).tolist()
    assert found["false_hardest"] == pytest.approx(hardest, abs=1e-4)
    assert found["false_uniform"] == pytest.approx(uniform, abs=1e-4)
    assert found["false_weight"] == pytest.approx(weights, abs=2e-4)
    names = ("picture_anchors", "picture_hardest", "picture_random")
    for anchor, hard, random in zip(*(found[name] for name in names), strict=True):
        others = order[:20][order[:20] != anchor]
        cosine = unit[others] @ unit[anchor]
        assert hard == others[cosine.argsort(descending=True)[:5]].tolist()
        assert len(set(random)) == 5
        assert set(random) <= set(others.tolist())
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
