"""Books and tasks of sentences are what they claim to be; what only the user has is said so."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curlnb.data import catalogue, datasets, sentences, texts
from curlnb.data.datasets import DataError
from curlnb.runs import environment

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


def test_books_are_whole_and_in_order() -> None:
    train, held_out = (sentences.load("books-mini", split) for split in ("train", "dev"))
    assert train.stand_in
    assert len(train.classes) == 9
    assert set(held_out.classes).isdisjoint(train.classes)
    assert train.sentence(0).startswith("emma woodhouse handsome clever and rich")
    assert train.sentence(1).startswith("she was the youngest of the two daughters")
    assert train.labels.diff().min() >= 0
    assert (train.tokens == 0).float().mean() < 0.03


def test_committed_sentence_data_stays_small() -> None:
    folders = [environment.home() / "data" / name for name in (*ROWS, "books-mini")]
    files = [path for folder in folders for path in folder.iterdir()] + [
        environment.home() / "data/glove" / f"{sentences.VECTORS}.safetensors"
    ]
    assert sum(path.stat().st_size for path in files) < 5e6


@pytest.mark.parametrize("name", ["MR-full", "CR-full", "SUBJ-full", "MPQA", "MSRP"])
def test_original_tasks_need_the_vectors_that_are_fetched_for_the_books(name: str) -> None:
    assert texts.entry_of(name).vectors == texts.entry_of("gutenberg").vectors == "glove.6B.50d"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("MR-full", {"train": [5331, 5331]}),
        ("CR-full", {"train": [1367, 2406]}),
        ("SUBJ-full", {"train": [5000, 5000]}),
        ("MPQA", {"train": [7293, 3311]}),
        ("MSRP", {"train": [1323, 2753], "test": [578, 1147]}),
    ],
)
def test_original_tasks_have_their_rows(name: str, counts: dict[str, list[int]]) -> None:
    assert {split: sum(own) for split, own in counts.items()} == texts.entry_of(name).articles
    if datasets.available(name) == "absent":
        pytest.skip(f"{name} is not in the cache")
    for split, own in counts.items():
        data = sentences.load(name, split)
        assert data.sentiment is not None
        assert data.sentiment.bincount().tolist() == own


def test_absent_data_says_which_files_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    for name, files in {
        "MSRP": "msr_paraphrase_train.txt, msr_paraphrase_test.txt",
        "MPQA": "mpqa.neg, mpqa.pos",  # label 0 first
        "bookcorpus": "books.txt",
    }.items():
        told = f"it cannot be fetched: get the original {files} yourself, then run `make data FROM"
        with pytest.raises(DataError, match=told):
            datasets.load_text(name, "train")
        with pytest.raises(DataError, match=told):
            datasets.fetch(name, lambda line: None)
        assert datasets.available(name) == "absent"


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
    with pytest.raises(DataError, match="it cannot be fetched"):
        sentences.load("bookcorpus", "train")


def test_a_vocabulary_of_ones_own_is_the_most_frequent_words() -> None:
    books = datasets.synthetic_text("books-mini", "train")
    number, known = sentences.most_frequent(books, 50)
    count = torch.bincount(books.tokens.long(), minlength=200)[1:]
    assert len(known) == 51
    assert known[1] == books.vocabulary[int(count.argmax()) + 1]
    kept = number[books.tokens.long()] > 0
    assert int(kept.sum()) == int(count.sort(descending=True).values[:50].sum())
