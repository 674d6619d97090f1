"""Books and tasks of sentences are what they claim to be; what only the user has is read and
counted; no network is used.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curlnb.data import catalogue, datasets, sentences, text_sources, texts
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


def test_a_book_loses_its_headings_and_nothing_else() -> None:
    first = (
        '[A Tale by N. N. 1900]\r\n\r\nCHAPTER I\r\n\r\nIt was late.  He\nslept. "Who?" She said.'
    )
    text = first + "\n\nII. The Sea\n\nTHE END\n\nIt rained--much."
    found = text_sources.book("tale", text)
    assert found.name == "A Tale by N. N."
    assert [" ".join(s) for s in found.sentences] == [
        "it was late",
        "he slept",
        "who",
        "she said",
        "it rained much",
    ]


@pytest.fixture
def supplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    return tmp_path


def test_msrp_is_read_in_its_original_format(supplied: Path) -> None:
    (supplied / "msrp").mkdir()
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    for split, rows in (("train", 4076), ("test", 1725)):
        lines = "".join(f'{i % 2}\t{i}\t{i + 9}\tHe said "no.\t...\r\n' for i in range(rows))
        (supplied / "msrp" / f"msr_paraphrase_{split}.txt").write_text(head + lines)
    found = dict(text_sources.msrp(supplied))
    assert [len(found[split]) for split in ("train", "test")] == [4076, 1725]
    assert found["train"][1].label == 1
    assert found["train"][1].sentences == [
        ("he", "said", "no"),
        ("?",),
    ]  # a sentence without a word keeps its row


@pytest.mark.parametrize("name", ["MR-full", "CR-full", "SUBJ-full", "MPQA"])
def test_a_task_file_with_a_wrong_number_of_rows_is_refused_in_one_line(
    supplied: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with committed word vectors, instead of large ones that would be fetched
    entry = replace(texts.entry_of(name), vectors=sentences.VECTORS)
    monkeypatch.setitem(catalogue.entries(), name, entry)
    expected = entry.articles["train"]
    negative, positive = (supplied / file for file in entry.supplied)
    negative.parent.mkdir()
    negative.write_text("bad\n" * (expected - 20))
    positive.write_text("good\n" * 19)
    told = rf"^{name} \(train\) .* has {expected - 1:,} rows, not {expected:,}: the file is incomplete or another one"
    with pytest.raises(DataError, match=told) as error:
        datasets.fetch(name, lambda line: None)
    assert "\n" not in str(error.value)
    assert datasets.available(name) == "absent"
    positive.write_text("good\n" * 20)
    datasets.fetch(name, lambda line: None)
    assert sentences.load(name, "train").sentiment.bincount().tolist() == [expected - 20, 20]


def test_a_task_that_has_lost_rows_is_neither_kept_nor_loaded(
    supplied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = texts.entry_of("MPQA")
    lost = [texts.Document("mpqa 0", [("good",)], 1)]
    with pytest.raises(
        DataError, match=r"MPQA \(train\) has 1 rows, not 10,606: the file is incomplete"
    ):
        catalogue.keep(entry, "train", lost)
    monkeypatch.setitem(
        catalogue.entries(), "MPQA", replace(entry, articles={}, vectors=sentences.VECTORS)
    )
    _, digest = catalogue.keep(texts.entry_of("MPQA"), "train", lost)
    catalogue.note(entry, {"train": digest})
    assert len(sentences.load("MPQA", "train")) == 1
    monkeypatch.setitem(catalogue.entries(), "MPQA", replace(entry, vectors=sentences.VECTORS))
    with pytest.raises(
        DataError, match=r"MPQA cannot be fetched: put its original file mpqa\.neg into"
    ):
        sentences.load("MPQA", "train")


@pytest.mark.parametrize(
    ("name", "file"),
    [("MSRP", "msr_paraphrase_train.txt"), ("MPQA", "mpqa.neg"), ("bookcorpus", "books.txt")],
)
def test_absent_data_says_which_file_goes_where(supplied: Path, name: str, file: str) -> None:
    assert datasets.available(name) == "absent"
    with pytest.raises(DataError, match=f"put its original file {file} into"):
        list(text_sources.SOURCES[name][0][1](supplied))


def test_what_only_the_user_can_supply_is_said_so_and_never_fetched(supplied: Path) -> None:
    binary = ("MR-full", "CR-full", "SUBJ-full", "MPQA")
    assert datasets.supplied("MPQA") == ("mpqa/mpqa.neg", "mpqa/mpqa.pos")  # label 0 first
    for name in (*binary, "MSRP", "bookcorpus"):
        with pytest.raises(
            DataError,
            match=r"it cannot be fetched; put its original .* into .*, then read it in with",
        ) as told:
            datasets.load_text(name, "train")
        assert "MB" not in str(told.value)
    lines: list[str] = []
    with pytest.raises(DataError, match=r"not here: imagenet100, which only you can supply"):
        datasets.prepare(["imagenet100"], lines.append)
    assert "imagenet100 needs an ImageNet folder, which cannot be fetched" in lines[-1]
    assert {name for name in datasets.names() if datasets.supplied(name)} == {
        *binary,
        "MSRP",
        "bookcorpus",
        "imagenet100",
    }


def test_a_supplied_set_is_read_in(supplied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        catalogue.entries(),
        "bookcorpus",
        replace(texts.entry_of("bookcorpus"), vectors=sentences.VECTORS),
    )
    lines: list[str] = []
    (supplied / "bookcorpus").mkdir()
    (supplied / "bookcorpus" / "books.txt").write_text("It rained.\nWe slept.\n")
    datasets.fetch("bookcorpus", lines.append)
    assert lines[-3:-1] == [
        "bookcorpus: reading bookcorpus/books.txt of the cache, which you supply",
        "bookcorpus: read in, verified",
    ]
    assert "its digest is not in data/catalogue.json yet" in lines[-1]
    assert sentences.load("bookcorpus", "train").sentence(1) == "we slept"


def test_bookcorpus_leaves_empty_sentences_out_and_parts_books(supplied: Path) -> None:
    (supplied / "bookcorpus").mkdir()
    path = supplied / "bookcorpus" / "books.txt"
    path.write_text("It rained .\n...\nWe slept .\n\n\nAnother book .\n")
    ((split, books),) = text_sources.bookcorpus(supplied)
    assert split == "train"
    assert [[" ".join(s) for s in b.sentences] for b in books] == [
        ["it rained", "we slept"],
        ["another book"],
    ]
    path.write_text("...\n\n!\n")
    with pytest.raises(DataError, match="holds no sentence"):
        list(text_sources.bookcorpus(supplied))


def test_a_vocabulary_of_ones_own_is_the_most_frequent_words() -> None:
    books = datasets.synthetic_text("books-mini", "train")
    number, known = sentences.most_frequent(books, 50)
    count = torch.bincount(books.tokens.long(), minlength=200)[1:]
    assert len(known) == 51
    assert known[1] == books.vocabulary[int(count.argmax()) + 1]
    kept = number[books.tokens.long()] > 0
    assert int(kept.sum()) == int(count.sort(descending=True).values[:50].sum())
