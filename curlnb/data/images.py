"""Image sets as tensors: small ones committed to the repository, full ones fetched once into the
cache, all checked whenever they are read.

The catalogue has each set's shape, splits, classes and the SHA-256 of each split's content
(`records_digest`), whatever the file format. A committed split is a picture that holds its images
as tiles, a fetched one a file of tensors.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from curlnb.data import catalogue, image_sources
from curlnb.data.catalogue import Entry, Tensors
from curlnb.data.download import DataError
from curlnb.data.image_sources import records_digest
from curlnb.data.sampling import held_out
from curlnb.runs import environment

LONG_TAIL, LONG_TAIL_RATIO = "train/long-tail", 10.0


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of an image set.

    images: uint8 [n, c, h, w]; labels: int64 [n], the index into `classes`, -1 where unlabelled;
    stand_in: True where none of the three papers uses this data, so that a verdict on it must say
    so.
    """

    name: str
    split: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    origin: str
    stand_in: bool

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device) -> "Dataset":
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def part(self, split: str, chosen: Tensor) -> "Dataset":
        """The images `chosen` (indices, or bool [n]) as the split `split` of this one."""
        return replace(
            self,
            split=f"{self.split}/{split}",
            images=self.images[chosen],
            labels=self.labels[chosen],
        )


entry_of = partial(catalogue.find, modality="images")
"""The row of an image set (name, split=None); DataError where there is no such set, or no such
split of it.
"""


def load(name: str, split: str, device: str | torch.device = "cpu") -> Dataset:
    """A split of an image set, on `device`, its content verified.

    name: one of `names()`; split: "train" or "test", for stl10 also "unlabeled" and
    "train+unlabeled"; "train/long-tail" is the part of "train" that `long_tail` leaves at its
    default ratio. Never touches the network, with one exception: a damaged file in the cache is
    fetched again. Raises DataError for a name or split that does not exist, and for data that is
    absent or damaged. Under CURLNB_DRY=1 it returns `synthetic` data.
    """
    if split == LONG_TAIL:
        return long_tail(load(name, "train", device))
    entry = entry_of(name, split)
    if environment.dry():
        return synthetic(name, split).to(device)
    parts = [catalogue.read(entry, part) for part in split.split("+")]
    images, labels = (
        torch.cat([part[key] for part in parts]) if len(parts) > 1 else parts[0][key]
        for key in ("images", "labels")
    )
    return Dataset(name, split, images, labels, entry.classes, entry.origin, entry.stand_in).to(
        device
    )


def synthetic(name: str, split: str, n: int | None = None) -> Dataset:
    """Noise with the shapes and classes of a set, for dry runs, the same every time.

    n: number of images; default 16, or two a class if that is more. Labels go round all classes;
    those of "unlabeled" are -1, and so is the second half of "train+unlabeled".
    """
    entry = entry_of(name, split)
    n = max(16, 2 * len(entry.classes)) if n is None else n
    generator = torch.Generator().manual_seed(crc32(f"{name}/{split}".encode()))
    images = torch.randint(0, 256, (n, *entry.shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(n) % len(entry.classes)
    if "unlabeled" in split:
        labels[n // 2 if "+" in split else 0 :] = -1
    return Dataset(
        name,
        split,
        images,
        labels,
        entry.classes,
        f"synthetic (dry run) in the shape of {name}",
        True,
    )


def holdout(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Divide a split in two, class by class, to choose settings without looking at test data: (fit,
    validation).

    fraction: the share of each class that goes to validation, in (0, 1), rounded to at least one
    image and at most all but one. The same seed gives the same division on every device; both parts
    keep the order of the images. DataError as `sampling.held_out`.
    """
    validation = held_out(dataset.labels, fraction, seed, f"{dataset.name} ({dataset.split})").to(
        dataset.labels.device
    )
    return dataset.part("fit", ~validation), dataset.part("validation", validation)


def long_tail(dataset: Dataset, ratio: float = LONG_TAIL_RATIO) -> Dataset:
    """A split with unequal classes: of class c the first n r^(-c/(C-1)) images, rounded, at least
    2, in their own order.

    n: the size of the smallest class; ratio: r > 1, of the largest class to the smallest. Nothing
    is drawn: the order of the classes is the set's own, and says nothing about them. The usual
    construction (Cui et al., CVPR 2019). DataError for a ratio or labels that do not do.
    """
    if not ratio > 1:
        raise DataError(
            f"ratio is {ratio}, but must be above 1: at 10 the first class is ten times as large as the last"
        )
    labels, classes = dataset.labels, len(dataset.classes)
    smallest = int(torch.bincount(labels.clamp_min(0), minlength=classes).min())
    if classes < 2 or smallest < 2 or bool((labels < 0).any()):
        raise DataError(
            f"{dataset.name} ({dataset.split}) has no long tail: that takes two labelled images of each of two classes or more"
        )
    sizes = [max(2, round(smallest * ratio ** (-c / (classes - 1)))) for c in range(classes)]
    chosen = (
        torch.cat([(labels == c).nonzero()[:size, 0] for c, size in enumerate(sizes)]).sort().values
    )
    return dataset.part("long-tail", chosen)


def digest(name: str) -> str:
    """What identifies a set's content, for keys, without reading it: from the committed table. Dry
    runs have their own.
    """
    entry = entry_of(name)
    known = (
        f"synthetic {name}"
        if environment.dry()
        else json.dumps(entry.sha256 or entry.archive_md5, sort_keys=True)
    )
    return hashlib.sha256(known.encode()).hexdigest()


def from_mosaic(
    picture: np.ndarray, shape: tuple[int, int, int], classes: int
) -> tuple[Tensor, Tensor]:
    """Images and labels from a picture [H, W, 3] that holds them as tiles, row by row, one class
    after the other, equally many of each.

    The images returned go round the classes instead, so that any number of first ones is balanced.
    """
    channels, height, width = shape
    rows, columns = picture.shape[0] // height, picture.shape[1] // width
    tiles = torch.from_numpy(picture[..., :channels]).reshape(
        rows, height, columns, width, channels
    )
    by_class = tiles.permute(0, 2, 4, 1, 3).reshape(classes, -1, *shape)
    return by_class.transpose(0, 1).flatten(0, 1).contiguous(), torch.arange(
        rows * columns
    ) % classes


# --- files


def _read(entry: Entry, path: Path) -> Tensors:
    if not entry.committed:
        return catalogue.read_tensors(path)
    with Image.open(path, formats=("WEBP",)) as picture:
        images, labels = from_mosaic(
            np.array(picture.convert("RGB")), entry.shape, len(entry.classes)
        )
    return {"images": images, "labels": labels}


def _digest(entry: Entry, tensors: Tensors) -> str:
    special = {
        "cifar100": image_sources.cifar100_file_digest,
        "stl10": image_sources.stl10_file_digests,
    }
    return (
        special[entry.name](tensors)
        if entry.original
        else records_digest(tensors["images"], tensors["labels"])
    )


def _fault(entry: Entry, split: str, tensors: Tensors) -> str:
    """How the tensors differ from what the catalogue promises, whatever the digest; "" where they
    do not.
    """
    images, labels, expected = (
        tensors["images"],
        tensors["labels"],
        (entry.splits[split], *entry.shape),
    )
    if (
        images.dtype != torch.uint8
        or labels.dtype != torch.int64
        or tuple(images.shape) != expected
        or len(labels) != expected[0]
    ):
        return f"images {images.dtype} {list(images.shape)}, labels {labels.dtype} {list(labels.shape)} instead of {list(expected)}"
    return ""


catalogue.MODALITIES["images"] = catalogue.Modality(
    file=lambda entry, part: f"{entry.name}/{part}.{'webp' if entry.committed else 'safetensors'}",
    digest=_digest,
    fault=_fault,
    sources=image_sources.SOURCES,
    read=_read,
)
