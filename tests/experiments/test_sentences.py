"""Books and tasks, quick-thoughts against its formula, SentEval against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from direct import resumes
from formulas import generator, normal, refused
from sklearn.linear_model import LogisticRegression

from curlnb.data import datasets
from curlnb.evaluation import sentence_tasks
from curlnb.experiments.neighbour_loss import columns, neighbour_loss
from curlnb.experiments.sentences import (
    TwoEncoders,
    batches_of,
    encoders,
    next_sentence,
    quick_thoughts,
)
from curlnb.models.gru import encode
from curlnb.runs.store import Store

# --- the objective


def scores_of(size, seed=0):
    return 3 * normal(size, size, seed=seed)


def test_biased_with_the_released_options_is_the_released_softmax():
    # Logeswaran and Lee's code: scores with a zero diagonal, targets 1/2 for each neighbour, 1 at
    # the ends, cross-entropy.
    scores, size = scores_of(9), 9
    target = torch.diag(torch.ones(size - 1, dtype=torch.float64), 1) + torch.diag(
        torch.ones(size - 1, dtype=torch.float64), -1
    )
    target /= target.sum(1, keepdim=True)
    for diagonal, own in (("zero", 0.0), ("out", -1e9)):
        log_share = scores.clone().fill_diagonal_(own).log_softmax(1)
        released = -(target * log_share).sum(1).mean()
        ours, _ = neighbour_loss(scores, torch.zeros(size), diagonal=diagonal, sibling="in")
        assert float(ours) == pytest.approx(float(released), abs=1e-12)


@pytest.mark.parametrize(
    ("tau_plus", "beta", "clip"),
    [
        (0.01, 0.0, None),
        (0.0, 2.0, "rescale"),
        (0.05, 1.0, "clamp"),
    ],
)
def test_the_objective_is_its_formula_in_a_loop(tau_plus, beta, clip):
    size, own = 8, torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    scores = scores_of(size, 1)
    negative = columns(own)[2][0]
    peak = scores[negative].abs().max()

    def mean(s):
        seen = {None: s, "clamp": s.clamp(-2, 2), "rescale": 2 * s / peak}[clip]
        w = (beta * seen).exp()
        return (w * s.exp()).mean() / w.mean()

    total = []
    for i in range(size):
        near = [j for j in (i - 1, i + 1) if 0 <= j < size and own[j] == own[i]]
        far = [k for k in range(size) if k not in (i, *near)]
        if near:  # not the only sentence of its book in the batch
            g = (mean(scores[i, far]) - tau_plus * mean(scores[i, near])) / (1 - tau_plus)
            e = scores[i, near].exp()
            total.append(-(e / (e + (size - 3) * g.clamp_min(math.exp(-1)))).log().mean())
    ours, about = neighbour_loss(scores, own, tau_plus=tau_plus, beta=beta, weight_clip=clip)
    assert float(ours) == pytest.approx(float(torch.stack(total).mean()), abs=1e-10)
    assert 0 <= float(about["clamped"]) <= 1


def test_without_a_floor_an_anchor_that_knows_its_neighbours_has_no_loss():
    # tau+ mean e^v above mean e^s makes g negative: the trouble of robinson2021's text runs, and
    # what the floor hides
    scores = torch.zeros(6, 6)
    scores[torch.arange(5), torch.arange(1, 6)] = scores[torch.arange(1, 6), torch.arange(5)] = 12.0
    loss, about = neighbour_loss(scores, torch.zeros(6), tau_plus=0.5, beta=1.0, floor=None)
    assert loss.isnan()
    loss, about = neighbour_loss(scores, torch.zeros(6), tau_plus=0.5, beta=1.0)
    assert loss.isfinite()
    assert float(about["clamped"]) == 1.0


# --- protocol


def two_classes(n=300, d=6):
    draw = generator()
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return x, (x[:, 0] + 0.8 * torch.randn(n, generator=draw, dtype=torch.float64) > 0.3).long()


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_is_scikit_learns_for_every_fold_and_strength(classes):
    x, y = two_classes()
    y = y if classes == 2 else y + (x[:, 1] > 1).long()
    weight = torch.ones(300, 3, dtype=torch.float64)
    weight[::3, 1] = 0
    C = torch.tensor([0.25, 1.0, 8.0], dtype=torch.float64)
    ours = sentence_tasks.logistic(x, y, weight, C, classes=classes, tolerance=1e-9)
    for fit in range(3):
        kept = weight[:, fit] > 0
        oracle = LogisticRegression(C=float(C[fit]), tol=1e-10, max_iter=5000).fit(x[kept], y[kept])
        coefficients = np.concatenate([oracle.coef_, oracle.intercept_[:, None]], 1)
        np.testing.assert_allclose(ours[:, :, fit].numpy(), coefficients, atol=2e-4)
    same = sentence_tasks.logistic(x.float(), y, weight.float(), C.float(), classes=classes)
    agree = sentence_tasks.predictions(same, x.float()) == sentence_tasks.predictions(ours, x)
    assert agree.float().mean() > 0.995


def test_nested_cross_validation_is_the_simple_loop():
    x, y = two_classes(120)
    count, strengths = 4, (0.01, 1.0)
    fold = sentence_tasks.folds(y, count)

    def right(train, test, C):
        fitted = LogisticRegression(C=C, tol=1e-9, max_iter=5000).fit(x[train], y[train])
        return fitted.predict(x[test]) == y[test].numpy()

    outer, inner = [], []
    for a in range(count):
        held = dict.fromkeys(strengths, 0.0)
        for C in strengths:
            for b in {*range(count)} - {a}:
                held[C] += right((fold != a) & (fold != b), fold == b, C).mean() / (count - 1)
        best = max(held, key=held.get)
        inner.append(held[best])
        outer.append(right(fold != a, fold == a, best))
    score = sentence_tasks.cross_validated(x, y, count=count, inner=count - 1, strengths=strengths)
    assert score.accuracy == pytest.approx(np.concatenate(outer).mean(), abs=1e-6)
    assert score.dev == pytest.approx(np.mean(inner), abs=1e-6)


def test_folds_are_stratified_and_every_sample_is_tested_once():
    y = torch.tensor([0] * 20 + [1] * 40)
    fold = sentence_tasks.folds(y, 10)
    assert fold.bincount().tolist() == [6] * 10
    assert [int(y[fold == a].sum()) for a in range(10)] == [4] * 10
    with refused("30 folds need 30 samples of every class, the smallest has 20"):
        sentence_tasks.folds(y, 30)


def test_a_task_with_a_test_set_and_the_measures_of_pairs():
    x, y = two_classes()
    score = sentence_tasks.train_test(x[:200], y[:200], x[200:], y[200:], count=5, inner=5)
    with refused(r"inner must lie in 1\.\.5, the number of folds, got 6"):
        sentence_tasks.train_test(x[:200], y[:200], x[200:], y[200:], count=5, inner=6)
    assert 0.65 < score.accuracy < 0.95
    assert 0.65 < score.dev < 0.95
    assert sentence_tasks.pair_features(
        torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 2.0]])
    ).tolist() == [[2.0, 4.0, 3.0, -4.0]]
    named, truth = torch.tensor([1, 1, 1, 0, 0]), torch.tensor([1, 1, 0, 1, 0])
    assert sentence_tasks.f1(named, truth) == pytest.approx(2 / 3)  # precision 2/3, recall 2/3
    assert sentence_tasks.f1(torch.zeros(5), torch.zeros(5)) == 0.0


# --- the experiment


@pytest.fixture
def dry(monkeypatch):
    monkeypatch.setenv("CURLNB_DRY", "1")


def test_a_resumed_run_equals_the_uninterrupted_one_and_names_its_measures(
    tmp_path, dry, monkeypatch
):
    given = {"method": "hard", "beta": 2.0, "tau_plus": 0.01, "word_dim": 7, "vocabulary": 30}
    given |= {"tasks": ("MR", "TREC", "MSRP"), "hidden": 5, "folds": 3, "inner": 2}
    whole = resumes(quick_thoughts, tmp_path, given, monkeypatch, after=3)
    shares = (name + kind for name in given["tasks"] for kind in ("", "_dev"))
    assert all(0 <= whole[name] <= 1 for name in (*shares, "MSRP_f1", "next", "clamped"))


def test_training_moves_f_and_g_and_trained_words_get_gradients(dry):
    torch.manual_seed(0)
    books = datasets.synthetic_text("books-mini", "train")
    model = encoders(books, 4, word_dim=6)
    z = encode(model, books, words=8)
    assert z.shape == (len(books), 16)
    assert isinstance(model, TwoEncoders)
    from curlnb.models.gru import pack

    batch = pack(books, torch.arange(12), 8)
    loss, _ = neighbour_loss(model.f(batch) @ model.g(batch).T, books.labels[:12])
    loss.backward()
    for part in model.parameters():
        assert part.grad is not None
        assert part.grad.abs().sum() > 0


def test_next_sentence_is_the_share_of_successors_found(monkeypatch):
    books = datasets.synthetic_text("books-mini", "train", articles=1, each=12)
    # g of a sentence points to the one before it
    f, g = (torch.eye(12), torch.eye(12).roll(-1, 0).roll(2, 0))
    monkeypatch.setattr(
        "curlnb.experiments.sentences.encode", lambda *_, **__: torch.cat([f, g], 1)
    )
    assert next_sentence(torch.nn.Identity(), books, 30, 12) == 1.0
    monkeypatch.setattr(
        "curlnb.experiments.sentences.encode", lambda *_, **__: torch.cat([f, f], 1)
    )
    # all scores alike: one in eleven by chance
    assert next_sentence(torch.nn.Identity(), books, 30, 12) < 0.1


def test_bad_input_is_answered_in_one_line(tmp_path, dry):
    with refused("144 sentences, fewer than a batch of 400: use a smaller batch or more books"):
        batches_of(144, 400)
    with refused("method 'debiassed' is unknown; use one of biased, debiased"):
        Store(tmp_path).run(quick_thoughts.asked({"method": "debiassed"}, 0))
    with refused("method 'biased' takes no tau_plus"):
        Store(tmp_path).run(quick_thoughts.asked({"tau_plus": 0.1}, 0))
