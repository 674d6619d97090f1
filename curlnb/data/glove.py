"""Tables of word vectors (GloVe: Pennington, Socher and Manning 2014)."""

import functools
from pathlib import Path

from torch import Tensor

from curlnb.data import catalogue, verified
from curlnb.data.catalogue import Entry

UNKNOWN = 0
"""The number of a word that has no vector: it is written "?", and its vector is zero."""


def word_vectors(name: str) -> tuple[tuple[str, ...], Tensor]:
    """Words and float32 [V, d] of a table of word vectors, verified.

    DataError if the table is unknown, absent or damaged.
    """
    entry = catalogue.find(name, modality="vectors")
    return _vectors(entry, verified.file_of(entry, "all"))


@functools.lru_cache(maxsize=2)
def _vectors(entry: Entry, path: Path) -> tuple[tuple[str, ...], Tensor]:
    tensors = verified.read(entry, "all")
    return tuple(bytes(tensors["words"].numpy()).decode().split("\n")), tensors["vectors"].float()
