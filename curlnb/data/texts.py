"""Sets of sentences as tensors: words as numbers in one flat tensor, with their vectors; small sets committed, full ones in the cache.

`data/texts.json` lists every set. A split is one file, `<split>.txt.gz`: for each article a line "= title" (a review's line also tells its
label), then its sentences, a line each, words separated by blanks. The SHA-256 of a split's content is that of this text, uncompressed;
it is checked on every read. Word vectors are a table of their own, in `data/glove` (the words of the committed texts) or in the cache.
"""

import difflib
import functools
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32
from zlib import error as ZlibError

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from curlnb.data.download import DataError, cache_folder
from curlnb.data.glove import UNKNOWN, VECTORS_SHA256, fetch_vectors, lock_file, vectors_file, word_vectors
from curlnb.runs import environment


@dataclass(frozen=True)
class Document:
    """An article or a review as a source gives it: its name, its sentences as words, and a review's label (0 negative, 1 positive)."""

    name: str
    sentences: Sequence[Sequence[str]]
    label: int | None = None


@dataclass(frozen=True, eq=False)
class Texts:
    """One split of a text set: sentences as samples, the articles (or reviews) that they come from as latent classes.

    tokens: int32 [words], all sentences one after the other, indices into `vocabulary`, UNKNOWN for a word without a vector; starts:
    int64 [n + 1], sentence i is tokens[starts[i]:starts[i + 1]], never empty, an article's in the order of its text. labels: int64 [n], the
    index into `classes`. vectors: float32 [V, d], fixed, row UNKNOWN zero. sentiment: int64 [classes], 1 where a review is positive; None
    for articles. stand_in: True where no paper uses this very data.
    """

    name: str
    split: str
    tokens: Tensor
    starts: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    vocabulary: tuple[str, ...]
    vectors: Tensor
    origin: str
    stand_in: bool
    sentiment: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def sentence(self, index: int) -> str:
        """A sentence as it is read, "?" for an unknown word."""
        return " ".join(self.vocabulary[token] for token in self.tokens[self.starts[index] : self.starts[index + 1]].tolist())

    def of_classes(self, chosen: Tensor, split: str) -> "Texts":
        """The articles `chosen` [m] (indices into `classes`) and their sentences, as a split of its own."""
        place = torch.full((len(self.classes),), -1, dtype=torch.int64, device=self.labels.device)
        place[chosen] = torch.arange(len(chosen), device=place.device)
        keep = place[self.labels] >= 0
        length = self.starts.diff()
        starts = torch.cat([self.starts[:1] * 0, length[keep].cumsum(0)])
        return replace(
            self,
            split=split,
            tokens=self.tokens[keep.repeat_interleave(length)],
            starts=starts,
            labels=place[self.labels[keep]],
            classes=tuple(self.classes[c] for c in chosen.tolist()),
            sentiment=None if self.sentiment is None else self.sentiment[chosen],
        )


@dataclass(frozen=True)
class Entry:
    """A row of `data/texts.json`. splits: name -> number of sentences; articles: name -> number of articles or reviews; vectors: the table
    of word vectors by default; megabytes: what a fetch transfers."""

    name: str
    origin: str
    stand_in: bool
    committed: bool
    splits: dict[str, int]
    articles: dict[str, int]
    sha256: dict[str, str]
    vectors: str
    labelled: bool = False
    archive_md5: str = ""
    megabytes: int = 0


class _Damaged(Exception):
    """A file is there, and its content is not what it should be."""


def names() -> tuple[str, ...]:
    """Every text set there is."""
    return tuple(_table(environment.home() / "data"))


def load(name: str, split: str, device: str | torch.device = "cpu", *, vectors: str | None = None) -> Texts:
    """A split of a text set, on `device`, its content verified. Never touches the network.

    split: "train", "dev" or "test" of an encyclopaedia, "train" or "test" of reviews. vectors: the table of word vectors, by default the
    set's own ("glove.6B.50d-mini" for committed sets, "glove.6B.50d", "glove.840B.300d"). DataError for a name or split that does not
    exist, and for data that is absent or damaged. Under CURLNB_DRY=1 it returns `synthetic` data.
    """
    entry = entry_of(name, split)
    if environment.dry():
        fake = synthetic(name, split, vectors=vectors)
    else:
        fake = _tensors(entry, split, read(entry, split), *word_vectors(vectors or entry.vectors))
    moved = {field: getattr(fake, field).to(device) for field in ("tokens", "starts", "labels", "vectors")}
    return replace(fake, **moved, sentiment=None if fake.sentiment is None else fake.sentiment.to(device))


def _tensors(entry: Entry, split: str, text: str, vocabulary: tuple[str, ...], vectors: Tensor) -> Texts:
    number = _numbers(vocabulary)
    classes, marks, labels, lengths, tokens = [], [], [], [], []
    for line in text.splitlines():
        if line.startswith("= "):
            title, _, mark = line[2:].partition("\t")
            classes.append(title)
            marks.append(int(mark or -1))
        else:
            words = line.split(" ")
            tokens += [number.get(word, UNKNOWN) for word in words]
            lengths.append(len(words))
            labels.append(len(classes) - 1)
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return Texts(
        entry.name,
        split,
        torch.tensor(tokens, dtype=torch.int32),
        starts,
        torch.tensor(labels),
        tuple(classes),
        vocabulary,
        vectors,
        entry.origin,
        entry.stand_in,
        torch.tensor(marks) if entry.labelled else None,
    )


@functools.lru_cache(maxsize=4)
def _numbers(vocabulary: tuple[str, ...]) -> dict[str, int]:
    return {word: number for number, word in enumerate(vocabulary)}


def synthetic(name: str, split: str, articles: int = 12, each: int = 12, vectors: str | None = None) -> Texts:
    """Noise in the form of a set, for dry runs, the same every time: `each` sentences of 4 to 30 words in each of `articles` articles.

    vectors: the table whose dimension the word vectors have, by default the set's own.
    """
    entry = entry_of(name, split)
    generator = torch.Generator().manual_seed(crc32(f"{name}/{split}".encode()))
    length = torch.randint(4, 31, (articles * each,), generator=generator)
    table = torch.randn(200, int((vectors or entry.vectors).split(".")[2].split("d")[0]), generator=generator)
    table[UNKNOWN] = 0
    return Texts(
        name,
        split,
        torch.randint(200, (int(length.sum()),), generator=generator, dtype=torch.int32),
        torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)]),
        torch.arange(articles).repeat_interleave(each),
        tuple(f"{split} {article}" if entry.labelled else f"article {article}" for article in range(articles)),
        ("?", *(f"word{number}" for number in range(1, 200))),
        table,
        f"synthetic (dry run) in the form of {name}",
        True,
        torch.arange(articles) % 2 if entry.labelled else None,
    )


def holdout(texts: Texts, fraction: float, seed: int) -> tuple[Texts, Texts]:
    """Divide the reviews of a split in two, each label alike, to choose settings without looking at test data: (fit, validation).

    fraction: the share of the reviews of each label that goes to validation, in (0, 1). For sets that have no "dev" split.
    """
    if not 0 < fraction < 1:
        raise DataError(f"fraction is {fraction}, but must lie between 0 and 1: 0.2 holds out a fifth of the reviews")
    mark = (torch.zeros(len(texts.classes), dtype=torch.int64) if texts.sentiment is None else texts.sentiment).cpu()
    order = torch.randperm(len(mark), generator=torch.Generator().manual_seed(seed))
    held = torch.cat([own[: round(fraction * len(own))] for own in (order[mark[order] == value] for value in mark.unique())])
    chosen = torch.zeros(len(mark), dtype=torch.bool).index_fill_(0, held, True).to(texts.labels.device)
    fit, validation = (
        texts.of_classes(part.nonzero()[:, 0], f"{texts.split}/{word}") for part, word in ((~chosen, "fit"), (chosen, "validation"))
    )
    return fit, validation


def digest(name: str) -> str:
    """What identifies a set's content and its word vectors, for keys, without reading it: from the committed table."""
    entry = entry_of(name)
    content = [entry.sha256 or entry.archive_md5 or entry.origin, entry.vectors, VECTORS_SHA256.get(entry.vectors, "")]
    known = f"synthetic {name}" if environment.dry() else json.dumps(content, sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()


def available(name: str) -> str:
    """Where a set is: "embedded" (committed), "cached" (fetched) or "absent". Looks for files, does not read them."""
    entry = entry_of(name)
    if not all(_file(entry, split).is_file() for split in entry.splits) or not vectors_file(entry.vectors).is_file():
        return "absent"
    return "embedded" if entry.committed else "cached"


def fetch(name: str, report: Callable[[str], object] = print) -> None:
    """Have a set and its word vectors on this machine: verify what is here, fetch what is absent from its original source or its mirror.

    Data appears only complete and verified; two processes fetch a set once. DataError where no source delivers it.
    """
    from curlnb.data.text_sources import SOURCES  # it builds on this module

    entry = entry_of(name)
    fetch_vectors(entry.vectors, report)
    if entry.committed or all(_file(entry, split).is_file() for split in entry.splits):
        for split in entry.splits:
            read(entry, split)
        report(f"{name}: {'part of the repository' if entry.committed else 'already here'}, verified")
        return
    failures = []
    with FileLock(lock_file(name)):
        for words, source in SOURCES[name]:
            report(f"{name}: fetching about {entry.megabytes:,} MB from {words}")
            working = cache_folder() / f".{name}.fetching"  # kept after a failure: what it holds is resumed, or checked and replaced
            try:
                for split, documents in source(working):
                    write(entry, split, documents)
            except (DataError, OSError) as error:
                failures.append(" ".join(str(error).split()))
                report(f"{name}: {failures[-1]}")
                continue
            shutil.rmtree(working, ignore_errors=True)
            report(f"{name}: fetched, verified")
            return
    where = " or ".join(words for words, _ in SOURCES[name])
    raise DataError(f"{name} could not be had from {where}; check the network and try again ({'; '.join(failures)})")


def as_text(documents: Iterable[Document]) -> str:
    """The text of a split's file. DataError for an empty sentence or a document without any."""
    lines: list[str] = []
    for document in documents:
        lines.append(f"= {document.name}" + ("" if document.label is None else f"\t{document.label}"))
        if not document.sentences or not all(document.sentences):
            raise DataError(f"{document.name!r} has {'an empty sentence' if document.sentences else 'no sentence'}: leave it out")
        lines += [" ".join(sentence) for sentence in document.sentences]
    return "\n".join(lines) + "\n"


def write(entry: Entry, split: str, documents: Iterable[Document]) -> tuple[str, int]:
    """Write a split's file, whole or not at all, if it is what the table says. Returns its SHA-256 and its number of sentences."""
    text = as_text(documents)
    sha256, sentences = hashlib.sha256(text.encode()).hexdigest(), sum(not line.startswith("= ") for line in text.splitlines())
    if sha256 != entry.sha256.get(split, sha256):
        raise DataError(f"{entry.name} ({split}) has {sentences} sentences or other content than this project knows; not kept")
    path = _file(entry, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(gzip.compress(text.encode(), 9, mtime=0))
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return sha256, sentences


def read(entry: Entry, split: str) -> str:
    """A split's text, in words for the user where that fails."""
    path = _file(entry, split)
    remedy = (
        f"restore it with `git checkout -- {path.relative_to(environment.home())}`" if entry.committed else "remove it and fetch it again"
    )
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except FileNotFoundError:
        if not entry.committed:
            remedy = f"fetch it ({entry.megabytes:,} MB) with curlnb.data.datasets.fetch({entry.name!r})"
            remedy += ", or all that a profile needs with `make data PROFILE=gpu|paper`"
        raise DataError(f"{entry.name} ({split}) is not on this machine: {remedy}") from None
    except (OSError, EOFError, ValueError, ZlibError) as error:
        raise DataError(f"{path.name} of {entry.name} is damaged ({error}): {remedy}") from None
    if split in entry.sha256 and hashlib.sha256(text.encode()).hexdigest() != entry.sha256[split]:
        raise DataError(f"{path.name} of {entry.name} is damaged (its SHA-256 is not the recorded one): {remedy}")
    return text


def _file(entry: Entry, split: str) -> Path:
    return (environment.home() / "data" if entry.committed else cache_folder()) / entry.name / f"{split}.txt.gz"


@functools.cache
def _table(folder: Path) -> dict[str, Entry]:
    """`data/texts.json`, read once; empty where there is none."""
    path = folder / "texts.json"
    rows = json.loads(path.read_text()) if path.is_file() else {}
    return {name: Entry(name=name, **row) for name, row in rows.items()}


def entry_of(name: str, split: str | None = None) -> Entry:
    """The row of a set; DataError where there is no such set, or no such split of it."""
    table = _table(environment.home() / "data")
    if name not in table:
        close = difflib.get_close_matches(str(name), table, 1, cutoff=0.5)
        raise DataError(
            f"unknown text set {name!r}{f', did you mean {close[0]!r}?' if close else ''}: there are {', '.join(table) or 'none here'}"
        )
    if split is not None and split not in table[name].splits:
        raise DataError(f"{name} has no split {split!r}, but {', '.join(table[name].splits)}")
    return table[name]
