"""Text sets, books and tasks of sentences are what they claim to be, and are read as they are
written; what only the user has is said so.
"""

import gzip
from dataclasses import replace

import pytest
import torch
from formulas import refused

from curlnb.data import catalogue, datasets, glove, sentences, texts
from curlnb.data.datasets import DataError

pytestmark = pytest.mark.usefixtures("plain_environment")


# --- the committed sets


@pytest.mark.parametrize("name", ["wiki-mini", "imdb-mini"])
def test_committed_texts_are_complete(name):
    entry = texts.entry_of(name)
    assert datasets.available(name) == "embedded"
    for part, expected in entry.splits.items():
        data = datasets.load_text(name, part)
        assert len(data) == expected == len(data.starts) - 1
        assert len(data.classes) == len(set(data.classes)) == entry.articles[part]
        assert data.starts.diff().min() >= 1  # no empty sentence
        assert int(data.starts[-1]) == len(data.tokens)
        assert data.labels.diff().min() >= 0  # article by article
        assert data.labels.unique().numel() == len(data.classes)
        assert data.tokens.max() < len(data.vocabulary) == len(data.vectors)


@pytest.mark.parametrize(("name", "classes"), [("MR", 2), ("CR", 2), ("SUBJ", 2), ("TREC", 6)])
def test_committed_tasks_have_a_sentence_a_row_and_all_labels(name, classes):
    for split, expected in texts.entry_of(name).splits.items():
        data = sentences.load(name, split)
        assert data.labels.tolist() == list(range(expected))
        assert data.sentiment is not None
        assert data.sentiment.unique().tolist() == list(range(classes))


def test_a_known_word_has_its_vector_and_an_unknown_one_none():
    words, vectors = glove.word_vectors("glove.6B.50d-mini")
    assert vectors[glove.UNKNOWN].eq(0).all()
    assert words[1] == "the"  # glove.6B.50d's first line
    assert vectors[1, :3].tolist() == pytest.approx([0.418, 0.24968, -0.41242], abs=3e-4)


# --- parts, absent sets, dry runs


def test_of_classes_takes_articles_out():
    data = datasets.synthetic_text("wiki-mini", "dev", articles=3, each=20)
    part = data.of_classes(torch.tensor([1]), "part")
    assert part.classes == data.classes[1:2]
    assert part.labels.tolist() == [0] * 20
    assert part.sentence(0) == data.sentence(20)


def test_absent_sets_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    told = r"imdb \(train\) is not on .*: fetch it \(\d+ MB\) with .*datasets.fetch\('imdb'\)"
    with refused(told, DataError):
        datasets.load_text("imdb", "train")


def test_dry_runs_have_every_sets_form_without_its_data(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    real = {name: datasets.text_digest(name) for name in catalogue.names("texts")}
    monkeypatch.setenv("CURLNB_DRY", "1")
    for name in catalogue.names("texts"):
        entry = texts.entry_of(name)
        data = datasets.load_text(name, entry.parts[0])
        assert data.vectors.shape[1] == (300 if "840B" in entry.vectors else 50)
        assert (data.sentiment is not None) == entry.labelled
        assert datasets.text_digest(name) != real[name]
    assert len(set(real.values())) == len(real)


def test_holdout_divides_reviews_of_both_labels_alike():
    data = datasets.synthetic_text("imdb-mini", "train", articles=20, each=3)
    fit, validation = datasets.text_holdout(data, 0.2, seed=0)
    assert validation.sentiment is not None
    assert validation.sentiment.bincount().tolist() == [2, 2]
    assert sorted(fit.classes + validation.classes) == sorted(data.classes)
    both = [part.sentence(i) for part in (fit, validation) for i in range(len(part))]
    assert sorted(both) == sorted(data.sentence(i) for i in range(60))


def test_a_supplied_set_is_read_in(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    with_small = replace(texts.entry_of("bookcorpus"), vectors=sentences.VECTORS)
    monkeypatch.setitem(catalogue.entries(), "bookcorpus", with_small)
    (tmp_path / "books.txt").write_text("It rained.\nWe slept.\n")
    datasets.fetch("bookcorpus", tmp_path)
    assert sentences.load("bookcorpus", "train").sentence(1) == "we slept"
    books = tmp_path / "cache" / "bookcorpus" / "train.txt.gz"
    books.write_bytes(gzip.compress(b"= book 1\nwe slept\n"))
    with refused("it cannot be fetched", DataError):  # no longer what was read in
        sentences.load("bookcorpus", "train")


def test_a_vocabulary_of_ones_own_is_the_most_frequent_words():
    books = datasets.synthetic_text("books-mini", "train")
    number, known = sentences.most_frequent(books, 50)
    count = torch.bincount(books.tokens.long(), minlength=200)[1:]
    assert len(known) == 51
    assert known[1] == books.vocabulary[int(count.argmax()) + 1]
    kept = number[books.tokens.long()] > 0
    assert int(kept.sum()) == int(count.sort(descending=True).values[:50].sum())
