"""Sets from their official files: an archive, or a folder with the same layout. A reader yields the
name and the content of each part.
"""

import hashlib
import io
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from curlnb.data.catalogue import Entry
from curlnb.data.contents import Tensors, read_tables
from curlnb.data.download import DataError, members, named_members

Parts = Iterator[tuple[str, Any]]


# --- CIFAR


def cifar10(entry: Entry, place: Path) -> Parts:
    """CIFAR-10 in its binary version: a label byte and the pixels of each image."""
    train = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
    yield "train", _records(place, train, 1)
    yield "test", _records(place, ["cifar-10-batches-bin/test_batch.bin"], 1)


def cifar100(entry: Entry, place: Path) -> Parts:
    """CIFAR-100 in its binary version; the superclass of an image follows from its class."""
    for split in ("train", "test"):
        yield split, _records(place, [f"cifar-100-binary/{split}.bin"], 2)


def _records(place: Path, files: list[str], label_bytes: int) -> Tensors:
    """Records of label bytes, the last of which counts, and 3 x 32 x 32 pixels."""
    found = named_members(place, files)
    content = bytearray(b"".join(found[file] for file in files))
    rows = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, label_bytes + 3072)
    images = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    return {"images": images, "labels": rows[:, label_bytes - 1].long()}


# --- STL-10


def stl10(entry: Entry, place: Path) -> Parts:
    """STL-10: pixels channel by channel and column by column, labels from 1."""
    for split in entry.parts:
        names = ["X"] if split == "unlabeled" else ["X", "y"]
        found = named_members(place, [f"stl10_binary/{split}_{name}.bin" for name in names])
        pixels = bytearray(found[f"stl10_binary/{split}_X.bin"])
        columns = torch.frombuffer(pixels, dtype=torch.uint8).reshape(-1, 3, 96, 96)
        labels = found.get(f"stl10_binary/{split}_y.bin", bytes(len(columns)))
        yield split, {"images": columns.mT.contiguous(), "labels": torch.tensor(list(labels)) - 1}


def stl10_48(entry: Entry, place: Path) -> Parts:
    """The labelled part of STL-10 at half size: each block of 2 x 2 pixels as its mean, (a + b + c
    + d + 2) // 4.
    """
    for split, content in stl10(entry, place):
        blocks = content["images"].unflatten(2, (-1, 2)).unflatten(4, (-1, 2))
        halved = (blocks.sum((3, 5), dtype=torch.int32) + 2) // 4
        yield split, content | {"images": halved.to(torch.uint8)}


# --- ImageNet


def tiny_imagenet_mini(entry: Entry, place: Path) -> Parts:
    """A part of Tiny ImageNet: of each class the training files numbered 0 to 59, and the first 10
    validation files in the order of `val_annotations.txt`.

    The images go round the classes, which are in the order of their WordNet ids.
    """
    root = "tiny-imagenet-200"
    annotations = f"{root}/val/val_annotations.txt"
    of_class: dict[str, list[str]] = {label: [] for label in entry.classes}
    for line in named_members(place, [annotations])[annotations].decode().splitlines():
        file, label = line.split("\t")[:2]
        of_class[label].append(f"{root}/val/images/{file}")
    train = [
        f"{root}/train/{label}/images/{label}_{number}.JPEG"
        for number in range(60)
        for label in entry.classes
    ]
    test = [of_class[label][number] for number in range(10) for label in entry.classes]
    for split, files in (("train", train), ("test", test)):
        found = named_members(place, files)
        images = torch.stack([_pixels(_rgb(io.BytesIO(found[file]))) for file in files])
        yield split, {"images": images, "labels": torch.arange(len(files)) % len(entry.classes)}


def imagenet100(entry: Entry, place: Path) -> Parts:
    """A hundred classes of an ImageNet folder, train/<class>/* and val/<class>/*, class by class;
    of each picture the middle square, resized to the entry's size.
    """
    for split, folder in (("train", "train"), ("test", "val")):
        files = [
            (file, label)
            for label, name in enumerate(entry.classes)
            for file in sorted((place / folder / name).glob("*"))
        ]
        images = torch.empty(len(files), *entry.shape, dtype=torch.uint8)
        for index, (file, _) in enumerate(files):
            square = ImageOps.fit(_rgb(file), entry.shape[1:], Image.Resampling.BILINEAR)
            images[index] = _pixels(square)
        yield split, {"images": images, "labels": torch.tensor([label for _, label in files])}


def _pixels(picture: Image.Image) -> Tensor:
    """uint8 [3, h, w]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _rgb(file: Path | io.BytesIO) -> Image.Image:
    try:
        with Image.open(file, formats=("JPEG", "PNG")) as picture:
            return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{file} is no readable picture ({error})") from None


# --- texts

Sentence = tuple[str, ...]

WORD = re.compile(r"[^\W_]+?(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)+|[^\W_]+")
ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|st|prof|gen|sen|rev|jr|sr|vs|etc|no|vol|fig|ca|cf|al|e\.g|i\.e"
    r"|approx|inc|ltd|co)|\b\w)\.$",
    re.I,
)
END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")


class Document(NamedTuple):
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
    documents: dict[str, list[Document]] = {"train": [], "dev": [], "test": []}
    for title, own in drawn.items():
        train, dev = round(0.7 * len(own)), round(0.1 * len(own))
        parts = ["train"] * train + ["dev"] * dev + ["test"] * (len(own) - train - dev)
        random.Random(f"split/{title}").shuffle(parts)
        for wanted, found in documents.items():
            chosen = [s for s, part in zip(own, parts, strict=True) if part == wanted]
            found.append(Document(title, chosen))
    for part, found in documents.items():
        yield part, as_text(found)


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
    """The text with each stretch of white space as one blank."""
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


def tu(entry: Entry, place: Path) -> Parts:
    """A set of TUDataset: the tables NAME/NAME_A.txt and so on."""
    parts = ["A", "graph_indicator", "graph_labels"] + ["node_labels"] * bool(entry.node_labels)
    names = {f"{entry.name}/{entry.name}_{part}.txt": part for part in parts}
    found = named_members(place, names)
    yield "all", read_tables({names[name]: text.decode() for name, text in found.items()})


def glove(entry: Entry, place: Path) -> Parts:
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
