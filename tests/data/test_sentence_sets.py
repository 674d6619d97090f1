"""Books and tasks of sentences are what they claim to be; what only the user has is said so."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curlnb.data import catalogue, datasets, sentences, texts
from curlnb.data.datasets import DataError

ROWS = {
    "MR": {"train": 8530},
    "CR": {"train": 3708},
    "SUBJ": {"train": 10_000},
    "TREC": {"train": 5452, "test": 500},
}
CLASSES = {"MR": 2, "CR": 2, "SUBJ": 2, "TREC": 6}


# --- data


@pytest.mark.parametrize("name", ROWS)
def test_committed_tasks_have_all_their_rows_and_labels(name: str) -> None:
    assert datasets.available(name) == "embedded"
    for split, expected in ROWS[name].items():
        data = sentences.load(name, split)
        assert len(data) == len(data.classes) == expected
        assert data.labels.tolist() == list(range(expected))  # a sentence a row
        assert data.sentiment is not None
        assert data.sentiment.unique().tolist() == list(range(CLASSES[name]))
        assert (data.tokens == 0).float().mean() < 0.08
    if name in ("MR", "SUBJ"):
        assert data.sentiment.bincount().tolist() == [expected // 2] * 2


@pytest.mark.parametrize("name", ["MR-full", "CR-full", "SUBJ-full", "MPQA", "MSRP"])
def test_original_tasks_need_the_vectors_that_are_fetched_for_the_books(name: str) -> None:
    assert texts.entry_of(name).vectors == texts.entry_of("gutenberg").vectors == "glove.6B.50d"


def test_absent_data_says_which_files_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    told = "it cannot be fetched: get the original mpqa.neg, mpqa.pos yourself, then run `make data"
    with pytest.raises(DataError, match=told):
        datasets.load_text("MPQA", "train")
    with pytest.raises(DataError, match=told):
        datasets.fetch("MPQA", lambda line: None)
    assert datasets.available("MPQA") == "absent"


def test_a_supplied_set_is_read_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    with_small = replace(texts.entry_of("bookcorpus"), vectors=sentences.VECTORS)
    monkeypatch.setitem(catalogue.entries(), "bookcorpus", with_small)
    lines: list[str] = []
    (tmp_path / "books.txt").write_text("It rained.\nWe slept.\n")
    datasets.fetch("bookcorpus", lines.append, tmp_path)
    assert lines[:2] == [f"bookcorpus: reading {tmp_path}", "bookcorpus: here, verified"]
    assert sentences.load("bookcorpus", "train").sentence(1) == "we slept"
    books = tmp_path / "cache" / "bookcorpus" / "train.txt.gz"
    books.write_bytes(gzip.compress(b"= book 1\nwe slept\n"))
    with pytest.raises(DataError, match="it cannot be fetched"):  # no longer what was read in
        sentences.load("bookcorpus", "train")


def test_a_vocabulary_of_ones_own_is_the_most_frequent_words() -> None:
    books = datasets.synthetic_text("books-mini", "train")
    number, known = sentences.most_frequent(books, 50)
    count = torch.bincount(books.tokens.long(), minlength=200)[1:]
    assert len(known) == 51
    assert known[1] == books.vocabulary[int(count.argmax()) + 1]
    kept = number[books.tokens.long()] > 0
    assert int(kept.sum()) == int(count.sort(descending=True).values[:50].sum())
