"""Text sets are what they claim to be, and are read as they are written."""

import json
from pathlib import Path

import pytest
import torch

from curlnb.data import catalogue, datasets, glove, texts, verified
from curlnb.data.datasets import DataError

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


# --- parts, absent sets, dry runs


def test_of_classes_takes_articles_out() -> None:
    data = datasets.load_text("wiki-mini", "dev")
    part = data.of_classes(torch.tensor([1]), "part")
    assert part.classes == data.classes[1:2]
    assert part.labels.tolist() == [0] * 20
    assert part.sentence(0) == data.sentence(20)


def test_an_absent_set_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    told = r"imdb \(train\) is not on .*: fetch it \(\d+ MB\) with .*datasets.fetch\('imdb'\)"
    with pytest.raises(DataError, match=told):
        datasets.load_text("imdb", "train")


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
