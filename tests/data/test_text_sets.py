"""Text sets are what they claim to be, and are read as they are written."""

import json
from pathlib import Path

import pytest
import torch

from curlnb.data import catalogue, datasets, glove, official_texts, texts, verified
from curlnb.data.datasets import DataError
from curlnb.data.official_texts import Document

CHECKOUT = Path(__file__).resolve().parent.parent.parent
COMMITTED = {"wiki-mini": ("train", "dev", "test"), "imdb-mini": ("train", "test")}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CURLNB_DRY", "CURLNB_HOME", "CURLNB_DATA"):
        monkeypatch.delenv(variable, raising=False)


# --- the committed sets


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_texts_are_complete(name: str) -> None:
    row = json.loads((CHECKOUT / "data" / "catalogue.json").read_text())[name]
    assert tuple(row["splits"]) == COMMITTED[name]
    assert datasets.available(name) == "embedded"
    for part, sentences in row["splits"].items():
        data = datasets.load_text(name, part)
        assert len(data) == sentences == len(data.starts) - 1
        assert len(data.classes) == len(set(data.classes)) == row["articles"][part]
        assert data.starts.diff().min() >= 1  # no empty sentence
        assert int(data.starts[-1]) == len(data.tokens)
        assert data.labels.diff().min() >= 0  # article by article
        assert data.labels.unique().numel() == len(data.classes)
        assert data.tokens.min() >= 0
        assert data.tokens.max() < len(data.vocabulary) == len(data.vectors)
        assert (data.tokens == glove.UNKNOWN).float().mean() < 0.03


def test_wiki_mini_is_by_the_papers_rules() -> None:
    data = {part: datasets.load_text("wiki-mini", part) for part in COMMITTED["wiki-mini"]}
    assert {len(d.labels.bincount().unique()) for d in data.values()} == {1}
    assert [int(d.labels.bincount()[0]) for d in data.values()] == [140, 20, 40]
    assert data["train"].classes == data["dev"].classes == data["test"].classes
    assert data["train"].stand_in
    assert all(int(d.starts.diff().min()) >= 4 for d in data.values())
    lines = [
        line
        for part in data
        for line in verified.read(texts.entry_of("wiki-mini"), part).splitlines()
        if not line.startswith("= ")
    ]
    assert len(lines) == 200 * len(data["train"].classes)
    # within an article no sentence comes twice; two articles may share one
    assert len(set(lines)) > 0.999 * len(lines)


def test_imdb_mini_is_balanced_and_its_training_reviews_hold_blocks_of_ten() -> None:
    train, test = (datasets.load_text("imdb-mini", part) for part in ("train", "test"))
    for data, each in ((train, 750), (test, 500)):
        assert data.sentiment.bincount().tolist() == [each, each]
    assert train.labels.bincount().min() >= 10


def test_a_known_word_has_its_vector_and_an_unknown_one_none() -> None:
    data = datasets.load_text("wiki-mini", "dev")
    assert data.vectors[glove.UNKNOWN].eq(0).all()
    the = data.vocabulary.index("the")
    assert data.vectors[the, :3].tolist() == pytest.approx(
        [0.418, 0.24968, -0.41242], abs=3e-4
    )  # glove.6B.50d's first line
    assert the == 1


# --- reading, writing, bad input


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one committed and one fetched set of two articles, and vectors of three
    words.
    """
    home = tmp_path / "home"
    monkeypatch.setenv("CURLNB_HOME", str(home))
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    row = {
        "modality": "texts",
        "origin": "made up",
        "stand_in": True,
        "splits": {"train": 3},
        "articles": {"train": 2},
        "vectors": "toy.0B.2d-mini",
    }
    rows = {
        "small": {**row, "committed": True},
        "full": {**row, "committed": False, "megabytes": 1, "mirror": "last"},
    }
    (home / "data").mkdir(parents=True)
    rows["toy.0B.2d-mini"] = {"modality": "vectors", "origin": "made up", "committed": True}
    (home / "data" / "catalogue.json").write_text(json.dumps(rows))
    toy = official_texts.vectors(["a", "cat", "sleeps"], torch.arange(6.0).view(3, 2))
    verified.keep(catalogue.find("toy.0B.2d-mini"), "all", toy)
    verified.keep(texts.entry_of("small"), "train", official_texts.as_text(DOCUMENTS))
    return home


DOCUMENTS = [
    Document("Cat", [("a", "cat", "sleeps"), ("cat",)]),
    Document("Axolotl", [("axolotl", "sleeps")]),
]


def test_what_is_written_is_read(world: Path) -> None:
    data = datasets.load_text("small", "train")
    assert data.classes == ("Cat", "Axolotl")
    assert [data.sentence(i) for i in range(3)] == [
        "a cat sleeps",
        "cat",
        "? sleeps",
    ]  # the axolotl has no vector
    assert data.labels.tolist() == [0, 0, 1]
    assert data.vectors[data.tokens[4]].tolist() == [0, 0]


def test_of_classes_takes_articles_out(world: Path) -> None:
    part = datasets.load_text("small", "train").of_classes(torch.tensor([1]), "part")
    assert part.classes == ("Axolotl",)
    assert part.sentence(0) == "? sleeps"
    assert part.labels.tolist() == [0]


def test_absent_and_damaged_sets_say_what_to_do(world: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"full \(train\) is not on .*: fetch it \(1 MB\) with .*datasets.fetch\('full'\)",
    ):
        datasets.load_text("full", "train")
    path = world / "data" / "small" / "train.txt.gz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(
        DataError,
        match=r"train.txt.gz of small is damaged .*git checkout -- data/small/train.txt.gz",
    ):
        datasets.load_text("small", "train")


def test_dry_runs_have_every_sets_form_without_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    real = {name: datasets.text_digest(name) for name in catalogue.names("texts")}
    monkeypatch.setenv("CURLNB_DRY", "1")
    for name in catalogue.names("texts"):
        part = next(iter(texts.entry_of(name).splits))
        data = datasets.load_text(name, part)
        assert data.vectors.shape[1] == (300 if "840B" in texts.entry_of(name).vectors else 50)
        assert (data.sentiment is not None) == texts.entry_of(name).labelled
        assert datasets.text_digest(name) != real[name]
    assert len(set(real.values())) == len(real)


def test_holdout_divides_reviews_of_both_labels_alike() -> None:
    data = datasets.synthetic_text("imdb-mini", "train", articles=20, each=3)
    fit, validation = datasets.text_holdout(data, 0.2, seed=0)
    assert validation.sentiment is not None
    assert validation.sentiment.bincount().tolist() == [2, 2]
    assert sorted(fit.classes + validation.classes) == sorted(data.classes)
    assert {fit.sentence(i) for i in range(len(fit))} | {
        validation.sentence(i) for i in range(12)
    } == {data.sentence(i) for i in range(60)}
    with pytest.raises(DataError, match=r"fraction is 1\.5, but must lie between 0 and 1"):
        datasets.text_holdout(data, 1.5, seed=0)
