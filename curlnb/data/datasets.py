"""Data: `load(name, split, device)` gives images, `load_text` sentences, as tensors;
`data/README.md` tells where each set comes from.

Small sets are committed, full ones are fetched into `data/cache/` by `fetch` or `make data`, from
the original source where it is reachable, else from a mirror, and always checked (see `catalogue`).
A few sets only the user can supply. Missing data never becomes other data. `from_folder` and
`from_arrays` make a data set of one's own.
"""

import json
from collections.abc import Callable, Iterable

import torch

from curlnb.data import catalogue, graphs, imagenet100, images
from curlnb.data.download import DataError
from curlnb.data.images import Dataset, holdout, long_tail, synthetic
from curlnb.data.own_images import OwnImages, from_arrays, from_folder
from curlnb.data.texts import Texts
from curlnb.data.texts import digest as text_digest
from curlnb.data.texts import holdout as text_holdout
from curlnb.data.texts import load as load_text
from curlnb.data.texts import synthetic as synthetic_text

__all__ = [
    "DataError",
    "Dataset",
    "OwnImages",
    "Texts",
    "available",
    "digest",
    "fetch",
    "from_arrays",
    "from_folder",
    "graphs",
    "holdout",
    "load",
    "load_text",
    "long_tail",
    "names",
    "prepare",
    "supplied",
    "synthetic",
    "synthetic_text",
    "text_digest",
    "text_holdout",
]


def names(modality: str | None = None) -> tuple[str, ...]:
    """Every data set there is, or those of a modality: "images", "texts", "graphs"; "vectors" gives
    the tables of word vectors.
    """
    found = catalogue.names(modality)
    return (*found, imagenet100.NAME) if modality in (None, "images") else found


def supplied(name: str) -> tuple[str, ...]:
    """What the user must supply, since no program may fetch it: files of the cache, or
    ("CURLNB_IMAGENET",); () for all other sets.
    """
    return ("CURLNB_IMAGENET",) if name == imagenet100.NAME else catalogue.find(name).supplied


def available(name: str) -> str:
    """Where a set is: "embedded" (committed to the repository), "cached" (fetched) or "absent".
    Looks for files, does not read them.
    """
    if name == imagenet100.NAME:
        return "cached" if imagenet100.available() else "absent"
    return catalogue.available(name)


def load(name: str, split: str, device: str | torch.device = "cpu") -> Dataset:
    """A split of an image set, on `device`, its content verified. See `images.load`, and
    `imagenet100.load` for ImageNet-100.
    """
    return (
        imagenet100.load(split, device)
        if name == imagenet100.NAME
        else images.load(name, split, device)
    )


def digest(name: str) -> str:
    """What identifies an image set's content, for keys, without reading it: from the committed
    table. Dry runs have their own.
    """
    return imagenet100.digest() if name == imagenet100.NAME else images.digest(name)


def fetch(name: str, report: Callable[[str], object] = print) -> None:
    """Have a set on this machine: verify what is here, and fetch what is absent. See
    `catalogue.fetch`.

    For a set, or its word vectors, whose digest the catalogue does not know yet, it prints the line
    to commit there.
    """
    if name == imagenet100.NAME:
        report(f"{name}: read from {imagenet100.folder()}, which you supply; nothing is fetched")
        return
    catalogue.fetch(name, report)
    entry = catalogue.find(name)
    for own in (entry, *([catalogue.find(entry.vectors)] if entry.vectors else [])):
        if digests := catalogue.unlisted(own):
            report(
                f'{own.name}: its digest is not in data/catalogue.json yet, to be committed there: "sha256": {json.dumps(digests)}'
            )


def prepare(wanted: Iterable[str], report: Callable[[str], object] = print) -> None:
    """Have each set on this machine, verified; goes on after a failure, and then raises DataError
    with the names that failed.
    """
    failed = []
    for name in wanted:
        try:
            fetch(name, report)
        except DataError as error:
            report(f"{name}: {error}")
            failed.append(name)
    if absent := [name for name in failed if not supplied(name)]:
        raise DataError(f"not fetched: {', '.join(absent)}; the lines above say why")
    if failed:
        raise DataError(
            f"not here: {', '.join(failed)}, which only you can supply; the lines above say how"
        )
