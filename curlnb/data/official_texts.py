"""Text sets, graphs and word vectors from their official files: an archive, or a folder with the
same layout.
"""

import hashlib
import io
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from curlnb.data.catalogue import Entry
from curlnb.data.contents import Raw, Tensors, read_tables
from curlnb.data.download import members, named_members

Sentence = tuple[str, ...]
Parts = Iterator[tuple[str, str]]

WORD = re.compile(r"[^\W_]+?(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)+|[^\W_]+")
ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|st|prof|gen|sen|rev|jr|sr|vs|etc|no|vol|fig|ca|cf|al|e\.g|i\.e"
    r"|approx|inc|ltd|co)|\b\w)\.$",
    re.I,
)
END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")


@dataclass(frozen=True)
class Document:
    """An article, a review or a row of a task: its name, its sentences as words, and its label."""

    name: str
    sentences: Sequence[Sequence[str]]
    label: int | None = None


def words(text: str) -> Sentence:
    """Words in lower case as GloVe cuts them: "don't" is do, n't; punctuation is left out."""
    return tuple(WORD.findall(text.lower().replace("’", "'")))


def split_sentences(text: str) -> list[str]:
    """Sentences of a paragraph: cut behind . ! or ? before a capital or a digit, but not behind an
    initial or a common abbreviation.
    """
    found: list[str] = []
    for piece in END.split(text):
        if found and ABBREVIATION.search(found[-1]):
            found[-1] += " " + piece
        else:
            found.append(piece)
    return found


def sentences(lines: Iterable[str]) -> list[Sentence]:
    """The sentences of some lines, as words; a line break ends a sentence."""
    return [cut for line in lines for one in split_sentences(line) if (cut := words(one))]


def as_text(documents: Iterable[Document]) -> str:
    """The content of a part. Each document has a sentence, and each sentence a word."""
    lines: list[str] = []
    for document in documents:
        mark = "" if document.label is None else f"\t{document.label}"
        lines.append(f"= {document.name}{mark}")
        lines += [" ".join(sentence) for sentence in document.sentences]
    return "\n".join(lines) + "\n"


# --- articles, reviews, books


def divided(drawn: dict[str, list[Sentence]]) -> Parts:
    """The sentences of each article, divided 70/10/20 into train, dev and test (arora2019, D.1)."""
    for wanted in ("train", "dev", "test"):
        documents = []
        for title, own in drawn.items():
            parts = shuffled_parts(len(own), title)
            chosen = [s for s, part in zip(own, parts, strict=True) if part == wanted]
            documents.append(Document(title, chosen))
        yield wanted, as_text(documents)


def shuffled_parts(count: int, seed: str) -> list[str]:
    """The part of each of an article's `count` sentences: 70% train, 10% dev, the rest test."""
    train, dev = round(0.7 * count), round(0.1 * count)
    parts = ["train"] * train + ["dev"] * dev + ["test"] * (count - train - dev)
    random.Random(f"split/{seed}").shuffle(parts)
    return parts


def wiki3029(entry: Entry, place: Path) -> Parts:
    """The authors' archive: a file an article, a sentence a line; articles of 200 lines count."""
    drawn: dict[str, list[Sentence]] = {}
    for name, content in sorted(members(place, lambda name: True)):
        lines = [line for line in content.decode(errors="replace").splitlines() if line.strip()]
        if len(lines) >= 200:
            title = Path(name).name.removesuffix(".txt")
            drawn[title] = [sentence for line in lines if (sentence := words(line))]
    yield from divided(drawn)


def reviews(texts: Iterable[tuple[str, int]], name: str, *, labelled: bool = True) -> str:
    """Reviews in an order that depends on their texts alone, whatever their source: the order of
    their digests.
    """
    ordered = sorted(
        (hashlib.sha256(f"{label} {text}".encode()).hexdigest(), text, label)
        for text, label in texts
    )
    found = (
        (sentences(text.replace("<br />", "\n").splitlines()), label) for _, text, label in ordered
    )
    return as_text(
        Document(f"{name} {i:05d}", own, label if labelled else None)
        for i, (own, label) in enumerate(found)
        if own
    )


def one_line(text: str) -> str:
    return " ".join(text.split())


def imdb(entry: Entry, place: Path) -> Parts:
    """Maas et al.'s archive: the official split, or the 50,000 unlabelled reviews as "train"."""
    kinds = "pos|neg" if entry.labelled else "unsup"
    for part in entry.parts:
        pattern = re.compile(rf"aclImdb/{part}/({kinds})/.*\.txt$")
        texts = [
            (one_line(content.decode()), int("/pos/" in name))
            for name, content in members(place, pattern.match)
        ]
        name = part if entry.labelled else "unsup"
        yield part, reviews(texts, name, labelled=entry.labelled)


def bookcorpus(entry: Entry, place: Path) -> Parts:
    """BookCorpus as the user has it: a sentence a line in order, a blank line after each book."""
    text = (place / entry.files[0]).read_text(errors="replace")
    # hundreds of millions of words: they are interned
    books = [
        [tuple(map(sys.intern, cut)) for line in part.splitlines() if (cut := words(line))]
        for part in re.split(r"\n\s*\n", text)
    ]
    yield "train", as_text(Document(f"book {i + 1}", own) for i, own in enumerate(books) if own)


# --- tasks


def rows(name: str, texts_and_labels: Iterable[tuple[Sequence[str], int]]) -> str:
    """A task's rows, in the order given. A text without any word is kept as one unknown word, so
    that no row is lost.
    """
    return as_text(
        Document(f"{name} {i:05d}", [words(text) or ("?",) for text in parts], label)
        for i, (parts, label) in enumerate(texts_and_labels)
    )


def two_files(entry: Entry, place: Path) -> Parts:
    """A task as SentEval has it: a file of label 0 and one of label 1, a sentence a line.

    CR and MPQA end with an empty line in some copies. Published sizes (3,775 and 10,606) count it;
    it is no row here.
    """
    texts = [
        (place / file).read_text(encoding="latin-1").rstrip("\n").split("\n")
        for file in entry.files
    ]
    labelled = [((line,), label) for label, lines in enumerate(texts) for line in lines]
    yield "train", rows(entry.name.lower(), labelled)


def msrp(entry: Entry, place: Path) -> Parts:
    """Paraphrases (Dolan et al. 2004): label, two numbers and two sentences between tabs."""
    for part, file in zip(("train", "test"), entry.files, strict=True):
        lines = (place / file).read_text(encoding="utf-8-sig").splitlines()[1:]
        cells = [line.split("\t") for line in lines if line.strip()]
        pairs = [((first, second), int(label)) for label, _, _, first, second in cells]
        yield part, rows(f"msrp {part}", pairs)


# --- graphs and word vectors


def tu(entry: Entry, place: Path) -> Iterator[tuple[str, Raw]]:
    """A set of TUDataset: the tables NAME/NAME_A.txt and so on."""
    parts = ["A", "graph_indicator", "graph_labels"] + ["node_labels"] * bool(entry.node_labels)
    names = {f"{entry.name}/{entry.name}_{part}.txt": part for part in parts}
    found = named_members(place, names)
    yield "all", read_tables({names[name]: text.decode() for name, text in found.items()})


def glove(entry: Entry, place: Path) -> Iterator[tuple[str, Tensors]]:
    """A table of GloVe from its zip archive or its text file, read line by line."""
    member, dim = f"{entry.name}.txt", int(entry.name.rpartition(".")[2].removesuffix("d"))
    with (place / member).open("rb") if place.is_dir() else ZipFile(place).open(member) as file:
        yield "all", vectors(*read_glove(io.TextIOWrapper(file, "utf-8", newline="\n"), dim))


def read_glove(lines: Iterable[str], dim: int) -> tuple[list[str], Tensor]:
    """Words and float32 [V, dim] of GloVe's text format: a word and its numbers a line, separated
    by blanks; words may hold blanks.
    """
    known, values = [], []
    for line in lines:
        word, *numbers = line.rstrip("\n").rsplit(" ", dim)
        known.append(word)
        values.append(np.array(numbers, dtype=np.float32))
    return known, torch.from_numpy(np.stack(values))


def vectors(known: Sequence[str], values: Tensor) -> Tensors:
    """The content of a table: "?" and its zero vector in front, all in half precision."""
    text = "\n".join(("?", *known)).encode()
    zero = torch.zeros(1, values.shape[1])
    return {
        "words": torch.frombuffer(bytearray(text), dtype=torch.uint8),
        "vectors": torch.cat([zero, values]).half(),
    }
