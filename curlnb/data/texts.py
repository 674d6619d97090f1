"""Sets of sentences as tensors: words as numbers in one flat tensor, with their vectors."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from curlnb.data import catalogue, verified
from curlnb.data.catalogue import Entry
from curlnb.data.glove import UNKNOWN, word_vectors
from curlnb.data.sampling import held_out
from curlnb.runs import environment

SENTENCE_VECTORS = "glove.6B.50d-sentences-mini"
"""The committed word vectors of the books and tasks of `sentences`."""


@dataclass(frozen=True, eq=False)
class Texts:
    """One split of a text set: sentences as samples, the articles (or reviews) that they come from
    as latent classes.

    tokens: int32 [words], all sentences one after the other, indices into `vocabulary`, UNKNOWN for
    a word without a vector; starts: int64 [n + 1], sentence i is tokens[starts[i]:starts[i + 1]],
    never empty, an article's in the order of its text. labels: int64 [n], the index into `classes`.
    vectors: float32 [V, d], fixed, row UNKNOWN zero. sentiment: int64 [classes], 1 where a review
    is positive; None for articles. stand_in: True where no paper uses this very data.
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
        return " ".join(
            self.vocabulary[token]
            for token in self.tokens[self.starts[index] : self.starts[index + 1]].tolist()
        )

    def to(self, device: str | torch.device) -> "Texts":
        moved: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def of_classes(self, chosen: Tensor, split: str) -> "Texts":
        """The articles `chosen` [m] (indices into `classes`) and their sentences, as a split of its
        own.
        """
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


entry_of = partial(catalogue.find, modality="texts")
"""The row of a text set (name, split=None); DataError if the set or split is unknown."""


def load(
    name: str, split: str, device: str | torch.device = "cpu", *, vectors: str | None = None
) -> Texts:
    """A split of a text set, on `device`, its content verified (`verified.read`).

    split: "train", "dev" or "test" of an encyclopaedia, "train" or "test" of reviews. vectors: the
    table of word vectors, by default the set's own ("glove.6B.50d-mini" for committed sets,
    "glove.6B.50d", "glove.840B.300d"). DataError for a name or split that does not exist, and for
    data that is absent or damaged. Under CURLNB_DRY=1 it returns `synthetic` data.
    """
    entry = entry_of(name, split)
    if environment.dry():
        return synthetic(name, split, vectors=vectors).to(device)
    text = verified.read(entry, split)
    return _tensors(entry, split, text, *word_vectors(vectors or entry.vectors)).to(device)


def _tensors(
    entry: Entry, split: str, text: str, vocabulary: tuple[str, ...], vectors: Tensor
) -> Texts:
    number = {word: place for place, word in enumerate(vocabulary)}
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


def synthetic(
    name: str, split: str, articles: int = 12, each: int = 12, vectors: str | None = None
) -> Texts:
    """Noise in the form of a set, for dry runs, the same every time: `each` sentences of 4 to 30
    words in each of `articles` articles.

    vectors: the table whose dimension the word vectors have, by default the set's own.
    """
    entry = entry_of(name, split)
    generator = torch.Generator().manual_seed(crc32(f"{name}/{split}".encode()))
    length = torch.randint(4, 31, (articles * each,), generator=generator)
    table = torch.randn(
        200, int((vectors or entry.vectors).split(".")[2].split("d")[0]), generator=generator
    )
    table[UNKNOWN] = 0
    return Texts(
        name,
        split,
        torch.randint(200, (int(length.sum()),), generator=generator, dtype=torch.int32),
        torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)]),
        torch.arange(articles).repeat_interleave(each),
        tuple(
            f"{split} {article}" if entry.labelled else f"article {article}"
            for article in range(articles)
        ),
        ("?", *(f"word{number}" for number in range(1, 200))),
        table,
        f"synthetic (dry run) in the form of {name}",
        True,
        torch.arange(articles) % 2 if entry.labelled else None,
    )


def holdout(texts: Texts, fraction: float, seed: int) -> tuple[Texts, Texts]:
    """Divide the reviews of a split in two, each label alike, to choose settings without looking at
    test data: (fit, validation).

    fraction: the share of the reviews of each label that goes to validation, in (0, 1). For sets
    that have no "dev" split. DataError as `sampling.held_out`.
    """
    marks = (
        torch.zeros(len(texts.classes), dtype=torch.int64)
        if texts.sentiment is None
        else texts.sentiment
    )
    validation = held_out(marks, fraction, seed, f"{texts.name} ({texts.split})").to(
        texts.labels.device
    )
    parts = (("fit", ~validation), ("validation", validation))
    fit, held = (
        texts.of_classes(chosen.nonzero()[:, 0], f"{texts.split}/{part}") for part, chosen in parts
    )
    return fit, held


def digest(name: str) -> str:
    """What identifies a set's content and its word vectors, for keys, without reading it: from the
    committed table.
    """
    entry = entry_of(name)
    # the keys of runs on sentences have the digest of their vectors behind this one instead
    # (`sentences.digest`)
    vectors = (
        ""
        if entry.vectors == SENTENCE_VECTORS
        else catalogue.find(entry.vectors).sha256.get("all", "")
    )
    content = [entry.sha256 or name, entry.vectors, vectors]
    known = f"synthetic {name}" if environment.dry() else json.dumps(content, sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()
