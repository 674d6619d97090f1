"""Graphs: the committed sets, the losses, errors."""

import math
import runpy
import sys

import numpy as np
import pytest
import torch
from direct import execute, resumes
from formulas import generator, normal, refused
from torch.nn import functional as F
from torch.testing import assert_close

from curlnb.data import graphs
from curlnb.evaluation import svm_cross_validation
from curlnb.experiments import graphs as family
from curlnb.experiments.graphs import batches, effective_negatives, infograph, released_loss
from curlnb.models import gin
from curlnb.models.gin import GIN

EDGES = ((0, 1), (1, 2), (3, 4), (4, 5), (5, 6), (8, 9), (9, 10))


def made(sizes=(3, 4, 1, 5), edges=EDGES, labels=None):
    """A small set of graphs; the third has one node and no edge."""
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    both = graphs.undirected(torch.tensor(edges).T, len(batch))
    x = torch.randn(len(batch), 4, generator=generator())
    labels = torch.arange(len(sizes)) % 2 if labels is None else torch.tensor(labels)
    return graphs.Graphs("made", x, both, batch, labels, 2, "", True)


def many(n=30):
    """Paths of two to four nodes, labelled by turns."""
    edges = [(4 * i + at, 4 * i + at + 1) for i in range(n) for at in range(1 + i % 3)]
    return made([4] * n, edges)


# --- network and loss


def test_graphs_do_not_depend_on_their_company():
    torch.manual_seed(0)
    data, encoder = made(), GIN(4).eval()
    together = encoder(data.x, data.edges, data.batch, len(data))[1]
    assert torch.isfinite(together).all()  # the graph without edges too
    for graph in range(4):
        alone = data.subset(torch.tensor([graph]))
        assert_close(encoder(alone.x, alone.edges, alone.batch, 1)[1][0], together[graph])


def test_a_gin_layer_is_the_formula():
    torch.manual_seed(0)
    data, encoder = made(), GIN(4, width=5, layers=1).eval()
    adjacency = torch.zeros(13, 13).index_put((data.edges[0], data.edges[1]), torch.tensor(1.0))
    expected = encoder.convolutions[0].nn(data.x + adjacency @ data.x).relu() / math.sqrt(1 + 1e-5)
    assert_close(encoder(data.x, data.edges, data.batch, 4)[0], expected)


def test_effective_negatives_count_what_the_weights_leave():
    own = torch.tensor([0, 1])
    scores = torch.tensor([[9.0, 1.0, 1.0, 1.0], [1.0, 9.0, 1.0, 1.0]])
    assert effective_negatives(scores, own, 5.0) == pytest.approx(1)  # equal scores, equal weights
    scores = torch.tensor([[0.0, 500.0, 0.0, 0.0]])
    # one counts
    assert effective_negatives(scores, torch.tensor([0]), 1.0, None) == pytest.approx(1 / 3)
    w = np.exp([2.0, 0, 0]) / np.exp([2.0, 0, 0]).sum()  # rescaled to 2, 0, 0
    expected = np.exp(-(w * np.log(w)).sum()) / 3
    assert effective_negatives(scores, torch.tensor([0]), 1.0) == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_the_released_loss_is_its_loop(beta):
    """Entry by entry in float64, as the released code writes it."""
    scores = normal(5, 3)
    own, log_2 = torch.tensor([0, 0, 1, 2, 2]), math.log(2)
    peak = max(abs(float(scores[n, g])) for n in range(5) for g in range(3) if g != own[n])
    total = 0.0
    for n in range(5):
        t = [0.0 if g == own[n] else float(scores[n, g]) for g in range(3)]
        w = [math.exp(-2 * beta * s / peak) for s in t]
        for g in range(3):
            sp, positive = math.log1p(math.exp(t[g])), float(scores[n, g]) if g == own[n] else 0.0
            against = 2 * (sp - log_2) if beta == 0 else 2 * sp * w[g] / (sum(w) / 3) - log_2
            total += against / (5 * 2)
            total -= (log_2 - math.log1p(math.exp(-positive)) - math.log1p(math.exp(positive))) / 5
    assert_close(released_loss(scores, own, beta).item(), total)


# --- the experiment


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(family, "_load", lambda name, device: many())


def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, small, monkeypatch):
    given = {"batch": 8, "epochs": 2, "beta": 1.0}
    metrics = resumes(infograph, tmp_path, given, monkeypatch, after=4)
    assert 0 <= metrics["svm"] <= 1
    assert 0 < metrics["effective"] < 1
    terms = metrics["align"] + metrics["uniform"]  # of Appendix B.2
    assert metrics["loss"] == pytest.approx(terms - 2 * math.log(2), abs=1e-4)


def test_batches_hold_every_graph_once_and_none_is_alone():
    parts = batches(many(9), 4, seed=0)
    assert [len(part) for part in parts] == [4, 5]  # 4, 4 and 1
    assert sorted(float(x) for part in parts for x in part.x[:, 0]) == sorted(
        float(x) for x in many(9).x[:, 0]
    )
    for size, n in ((1, 9), (4, 1)):
        with refused("a batch needs at least 2 graphs to contrast"):
            batches(many(n), size, seed=0)


def test_a_class_with_one_graph_is_named_before_any_training(tmp_path, monkeypatch):
    monkeypatch.setattr(family, "_load", lambda name, device: made(labels=[0, 0, 0, 1]))
    monkeypatch.setattr(family, "train", lambda *a, **k: pytest.fail("trained first"))
    with refused("MUTAG has a class with 1 graphs, and 10 folds need 10 of each; use fewer folds"):
        execute(infograph, tmp_path, {})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"objective": "harder"}, "objective 'harder' is unknown; use one of hard, released"),
        ({"objective": "released", "weight_sign": -1}, "'released' takes beta only"),
    ],
)
def test_bad_settings_are_named_in_one_line(tmp_path, small, parameters, message):
    with refused(message):
        execute(infograph, tmp_path, parameters)


def test_without_torch_geometric_the_rest_works_and_the_error_is_one_line(monkeypatch):
    for name in ("torch_geometric", "torch_geometric.nn"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(runpy.run_path(graphs.__file__)["load"]("MUTAG")) == 188
    told = "^graphs need torch_geometric, which is not installed: `make setup`, or `pip install "
    with pytest.raises(RuntimeError, match=told):
        runpy.run_path(gin.__file__)["GIN"](4)


def test_svm_cross_validation_is_scikit_learns_nested_grid_search():
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
    from sklearn.svm import SVC

    g = generator()
    y = torch.arange(60) % 3
    x = torch.randn(60, 5, generator=g) + 0.8 * F.one_hot(y, 5)
    fold_seed = int(torch.randint(2**31, (), generator=generator(4)))
    search = GridSearchCV(SVC(), {"C": [1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3]}, cv=5)
    theirs = cross_val_score(
        search, x.numpy(), y.numpy(), cv=StratifiedKFold(10, shuffle=True, random_state=fold_seed)
    )
    ours = svm_cross_validation(x, y, generator=generator(4))
    assert ours == pytest.approx((theirs.mean(), theirs.std()))
