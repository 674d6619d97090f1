"""Image sets as tensors, and what is computed on them: held-out parts, long tails, superclasses."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from zlib import crc32

import torch
from torch import Tensor

from curlnb.data import catalogue, verified
from curlnb.data.contents import records_digest
from curlnb.data.download import DataError
from curlnb.data.sampling import held_out
from curlnb.runs import environment

LONG_TAIL, LONG_TAIL_RATIO = "train/long-tail", 10.0

SUPERCLASS_OF = (
    "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 "
    "16 9 11 5 5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 "
    "2 10 0 1 16 12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"
)
"""The superclass of each of CIFAR-100's 100 classes, separated by blanks (Krizhevsky 2009), the 20
superclasses in alphabetical order from aquatic mammals to vehicles 2.
"""


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
"""The row of an image set (name, split=None); DataError if the set or split is unknown."""


def load(name: str, split: str, device: str | torch.device = "cpu") -> Dataset:
    """A split of an image set, on `device`, its content verified.

    name: one of `names()`; split: "train" or "test", for stl10 also "unlabeled" and
    "train+unlabeled"; "train/long-tail" is the part of "train" that `long_tail` leaves at its
    default ratio. No network is touched, with one exception: a damaged file in the cache is fetched
    again. DataError for an unknown name or split, and for data that is absent or damaged. Under
    CURLNB_DRY=1 it returns `synthetic` data.
    """
    if split == LONG_TAIL:
        return long_tail(load(name, "train", device))
    entry = entry_of(name, split)
    if environment.dry():
        return synthetic(name, split).to(device)
    parts = [verified.read(entry, part) for part in split.split("+")]
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
    """A split with unequal classes: the first n r^(-c/(C-1)) images of class c, rounded and at
    least 2, in their order.

    n: the size of the smallest class; ratio: r > 1, of the largest class to the smallest. Nothing
    is drawn: the order of the classes is the set's own, and says nothing about them. This is the
    usual construction (Cui et al., CVPR 2019). DataError for r <= 1, unlabelled images or a class
    of one.
    """
    if not ratio > 1:
        remedy = "at 10 the first class is ten times as large as the last"
        raise DataError(f"ratio is {ratio}, but must be above 1: {remedy}")
    labels, classes = dataset.labels, len(dataset.classes)
    smallest = int(torch.bincount(labels.clamp_min(0), minlength=classes).min())
    if classes < 2 or smallest < 2 or bool((labels < 0).any()):
        raise DataError(
            f"{dataset.name} ({dataset.split}) has no long tail: "
            "that takes two labelled images of each of two classes or more"
        )
    sizes = [max(2, round(smallest * ratio ** (-c / (classes - 1)))) for c in range(classes)]
    chosen = (
        torch.cat([(labels == c).nonzero()[:size, 0] for c, size in enumerate(sizes)]).sort().values
    )
    return dataset.part("long-tail", chosen)


def coarse_labels(labels: Tensor) -> Tensor:
    """The superclasses of CIFAR-100, int64 [n] in 0..19, of its classes [n] in 0..99."""
    return torch.tensor([int(number) for number in SUPERCLASS_OF.split()], device=labels.device)[
        labels
    ]


@environment.kept_in_memory(64)
def digest(name: str) -> str:
    """What identifies a set's content, for keys, without reading it: from the committed table."""
    entry = entry_of(name)
    known = (
        f"synthetic {name}"
        if environment.dry()
        else json.dumps(entry.sha256 or name, sort_keys=True)
    )
    return hashlib.sha256(known.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class OwnImages:
    """Labelled images of the user, divided into a training and a test set. Make one with
    `datasets.from_folder` or `datasets.from_arrays`.

    images: uint8 [n, c, h, w], c = 1 or 3; labels: int64 [n], the index into `classes`. `digest`
    identifies the content, and so the runs on it, whatever it is called.
    """

    name: str
    classes: tuple[str, ...]
    train_images: Tensor = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the classes, the shape, and both sets' labels and pixels."""
        sets = ((self.train_images, self.train_labels), (self.test_images, self.test_labels))
        labels = [  # a record's label byte does not tell more than 256 classes apart
            hashlib.sha256(own.numpy().astype("<i8").tobytes()).hexdigest() for _, own in sets
        ]
        records = [records_digest(*own) for own in sets]
        about = [self.classes, list(self.train_images.shape[1:]), labels, records]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def split(self, split: str, device: str | torch.device = "cpu") -> Dataset:
        """The split "train", "test" or "train/long-tail" (see `long_tail`) on `device`, marked as a
        stand-in, since no paper uses it.
        """
        if split == LONG_TAIL:
            return long_tail(self.split("train", device))
        if split not in ("train", "test"):
            raise DataError(
                f"{self.name} has no split {split!r}, but train, test; "
                "for a validation split, divide the training data with holdout()"
            )
        own = (self.test_images, self.test_labels)
        images, labels = (self.train_images, self.train_labels) if split == "train" else own
        origin = f"{self.name}, the user's own"
        return Dataset(self.name, split, images, labels, self.classes, origin, True).to(device)
