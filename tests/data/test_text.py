"""Sentences: the GRU is torch's own, packing loses nothing, quick-thoughts is its formula, blocks
of reviews are consecutive.
"""

import math

import pytest
import torch
from direct import execute, resumes
from formulas import generator, normal, refused

from curlnb.data import datasets
from curlnb.data.datasets import Texts
from curlnb.experiments import latent_text
from curlnb.experiments.latent_text import consecutive, curl, quick_thoughts_loss, reviews
from curlnb.models.gru import BiGRU, MeanOfVectors, encode, pack
from curlnb.runs.store import Store


@pytest.fixture
def texts():
    return datasets.synthetic_text("wiki-mini", "train")


def one_by_one(model, texts, samples, words=None):
    """Last states of `nn.GRU`, a sentence at a time: nothing is padded, sorted or packed."""
    states = []
    for i in samples.tolist():
        tokens = texts.tokens[texts.starts[i] : texts.starts[i + 1]][:words]
        states.append(model.gru(model.vectors[tokens][:, None])[1].flatten())
    return torch.stack(states)


@pytest.mark.parametrize("words", [None, 7])
def test_the_encoder_is_torchs_gru_on_each_sentence_alone(texts, words):
    torch.manual_seed(0)
    model = BiGRU(texts.vectors.double(), 11).double().eval()
    samples = torch.randperm(len(texts), generator=generator(1))[:40]
    batch = pack(texts, samples, words)
    assert torch.allclose(model(batch), one_by_one(model, texts, samples, words), atol=1e-12)
    assert torch.allclose(
        model.native(batch), model.unrolled(batch), atol=1e-12
    )  # the GPU's way and the CPU's


def test_gradients_are_torchs(texts):
    torch.manual_seed(0)
    model = BiGRU(texts.vectors.double(), 9).double()
    batch, weight = pack(texts, torch.arange(0, 60, 2)), torch.randn(2, 30, 9).double()
    parameters = list(model.gru.parameters())
    ours, torchs = (
        torch.autograd.grad((way(batch) * weight).sum(), parameters)
        for way in (model.unrolled, model.native)
    )
    torch.testing.assert_close(ours, torchs, atol=1e-10, rtol=1e-5)


def test_encode_returns_the_sentences_in_their_order_without_dropout(texts):
    torch.manual_seed(0)
    model = BiGRU(texts.vectors, 5, dropout=0.5).train()
    with torch.no_grad():
        expected = one_by_one(model, texts, torch.arange(len(texts)))
    assert torch.allclose(encode(model, texts, batch=17), expected, atol=1e-5)
    assert model.training  # left as it was


def test_mean_of_vectors_ignores_unknown_words_and_survives_none_known(texts):
    tokens = texts.tokens.clone()
    tokens[: texts.starts[1]] = 0  # the first sentence has no known word
    changed = Texts(**{**vars(texts), "tokens": tokens})
    x = encode(MeanOfVectors(texts.vectors), changed)
    assert x[0].eq(0).all()
    for i in (1, 5, len(texts) - 1):
        own = tokens[texts.starts[i] : texts.starts[i + 1]]
        assert torch.allclose(x[i], texts.vectors[own[own > 0]].mean(0), atol=1e-5)


def test_quick_thoughts_is_its_formula():
    z = normal(4, 3, 6)
    total, pairs = 0.0, 0
    for a in range(4):
        for i in range(3):
            others = sum(math.exp(z[a, i] @ z[c, k]) for c in range(4) for k in range(3) if c != a)
            for j in range(3):
                if i != j:
                    similar = math.exp(z[a, i] @ z[a, j])
                    total, pairs = total - math.log(similar / (similar + others)), pairs + 1
    assert float(quick_thoughts_loss(z)) == pytest.approx(total / pairs, rel=1e-12)


def test_quick_thoughts_of_pairs_counts_both_directions_and_has_finite_gradients():
    z = (30 * torch.randn(6, 2, 8, generator=generator())).requires_grad_()
    loss = quick_thoughts_loss(z)
    loss.backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert torch.allclose(loss, quick_thoughts_loss(z.flip(1)))


def test_blocks_of_consecutive_sentences_stay_within_a_text(texts):
    starts = consecutive(texts, 5)
    inside = texts.labels[starts[:, None] + torch.arange(5)]
    assert (inside == inside[:, :1]).all()
    # and no such place is left out
    assert len(starts) == sum(max(0, n - 4) for n in texts.labels.bincount().tolist())
    told = "no text of wiki-mini has 13 sentences: use smaller blocks"
    with refused(told):
        consecutive(texts, 13)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(
        latent_text,
        "_texts",
        lambda name, split, *_: datasets.synthetic_text(name, split, articles=10, each=15),
    )


@pytest.mark.parametrize(
    ("method", "encoder"),
    [("curl", "gru"), ("supervised", "gru"), ("quick_thoughts", "gru"), ("untrained", "mean")],
)
def test_every_method_trains_on_articles(small, method, encoder, tmp_path):
    given = {"method": method, "encoder": encoder, "hidden": 8, "batch": 40, "epochs": 2}
    metrics = execute(curl, tmp_path, given | {"block": 4, "negatives": 3})
    assert 0.5 <= metrics["mu_avg2"] <= 1 or method != "supervised"
    assert {"mu_avg10", "mu_top1", "mu5_avg2"} <= metrics.keys()
    assert ("train_loss" in metrics) == (method != "untrained")


def test_a_resumed_run_with_dropout_equals_the_uninterrupted_one(tmp_path, small, monkeypatch):
    given = {"hidden": 4, "batch": 20, "epochs": 2, "dropout": 0.3}
    resumes(curl, tmp_path, given, monkeypatch, after=3)


def test_reviews_measures_sentiment_and_can_train_on_another_set_with_its_word_vectors(
    monkeypatch, tmp_path
):
    # the paper's own profile: unlabelled reviews, vectors of 300 numbers
    monkeypatch.setenv("CURLNB_DRY", "1")
    given = {"dataset": "imdb", "train_on": "imdb-unlabeled", "hidden": 4, "epochs": 1}
    metrics = Store(tmp_path).run(reviews.asked(given, 0))["metrics"]
    assert 0 <= metrics["accuracy"] <= 1
    assert 0 <= metrics["mu_accuracy"] <= 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"encoder": "lstm"}, "encoder 'lstm' is unknown; use one of gru, mean"),
        ({"method": "qt"}, "method 'qt' is unknown; use one of curl"),
        ({"encoder": "mean"}, "nothing to train: use method 'untrained'"),
    ],
)
def test_bad_arguments_say_what_would_be_right(small, given, words, tmp_path):
    with refused(words):
        execute(curl, tmp_path, given)
