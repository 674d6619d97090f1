"""Tables of word vectors (GloVe: Pennington, Socher and Manning 2014): those of the committed texts in `data/glove`, full ones fetched."""

import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from curlnb.data.download import DataError, cache_folder
from curlnb.runs import environment

UNKNOWN = 0
"""The number of a word that has no vector: its vector is zero."""

VECTORS_SHA256 = {
    "glove.6B.50d-mini": "46bcb35b0c0e0c77bc609a594bb1f664cb374d78993a87ba5c5af40cebeb283f",
    "glove.6B.50d": "83d9bab837f24178e155f229f43d5636d89190f7eeb90aa12a2f06df960a0ef0",
}
"""Of `vectors_digest`, where it is known."""


def word_vectors(name: str) -> tuple[tuple[str, ...], Tensor]:
    """Words and float32 [V, d] of a table of word vectors; the first word is "?", for all unknown ones, and its vector zero."""
    path = vectors_file(name)
    if not path.is_file():
        remedy = "restore it with git" if name.endswith("-mini") else f"fetch them with curlnb.data.glove.fetch_vectors({name!r})"
        raise DataError(f"the word vectors {name} are not on this machine: {remedy}")
    return _vectors(path)


@functools.lru_cache(maxsize=2)
def _vectors(path: Path) -> tuple[tuple[str, ...], Tensor]:
    try:
        with safe_open(path, "pt") as file:
            words, vectors = file.get_tensor("words"), file.get_tensor("vectors")
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path.name} is damaged ({' '.join(str(error).split())}): fetch or restore it") from None
    known = VECTORS_SHA256.get(path.stem)
    if known and vectors_digest(words, vectors) != known:
        raise DataError(f"{path.name} is damaged (its SHA-256 is not the recorded one): fetch or restore it")
    return tuple(bytes(words.numpy()).decode().split("\n")), vectors.float()


def vectors_digest(words: Tensor, vectors: Tensor) -> str:
    """SHA-256 of a table of word vectors: the words, a line each, as uint8 [bytes], and the vectors, float16 [V, d]."""
    return hashlib.sha256(words.numpy().tobytes() + vectors.numpy().tobytes()).hexdigest()


def write_vectors(name: str, words: Sequence[str], vectors: Tensor, origin: str) -> Path:
    """Write a table of word vectors, half precision, with "?" and its zero vector in front."""
    path = vectors_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = torch.frombuffer(bytearray("\n".join(("?", *words)).encode()), dtype=torch.uint8)
    unfinished = path.with_suffix(".unfinished")
    save_file({"words": known, "vectors": torch.cat([torch.zeros(1, vectors.shape[1]), vectors]).half()}, unfinished, {"origin": origin})
    unfinished.chmod(0o644)
    os.replace(unfinished, path)
    return path


def fetch_vectors(name: str, report: Callable[[str], object] = print) -> None:
    """Have a table of word vectors on this machine."""
    from curlnb.data.text_sources import VECTORS

    if vectors_file(name).is_file():
        word_vectors(name)
        return
    if name not in VECTORS:
        raise DataError(f"unknown word vectors {name!r}: there are {', '.join(VECTORS)}")
    with FileLock(lock_file(name)):
        failures = []
        for words, source in VECTORS[name]:
            report(f"{name}: fetching word vectors from {words}")
            try:
                known, vectors = source(cache_folder() / f".{name}.fetching")
            except (DataError, OSError) as error:
                failures.append(" ".join(str(error).split()))
                continue
            write_vectors(name, known, vectors, words)
            shutil.rmtree(cache_folder() / f".{name}.fetching", ignore_errors=True)
            report(f"{name}: fetched, verified")
            return
    raise DataError(f"{name} could not be had; check the network and try again ({'; '.join(failures)})")


def vectors_file(name: str) -> Path:
    folder = environment.home() / "data" if name.endswith("-mini") else cache_folder()
    return folder / "glove" / f"{name}.safetensors"


def lock_file(name: str) -> Path:
    """The file by which two processes agree that one of them fetches `name`."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    return cache_folder() / f".{name}.lock"
