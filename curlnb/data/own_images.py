"""A data set of one's own: a folder of pictures, or arrays, in the form in which experiments take a
data set.

mine = datasets.from_folder("~/pictures/leaves")
mine.split("train").images                          # uint8 [n, c, h, w]
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from curlnb.data.download import DataError
from curlnb.data.image_sources import records_digest
from curlnb.data.images import LONG_TAIL, Dataset, holdout, long_tail

FORMATS = (
    "BMP",
    "GIF",
    "JPEG",
    "PNG",
    "PPM",
    "TIFF",
    "WEBP",
)  # none of them starts another program, as EPS does
GREY = ("1", "L", "LA")  # Pillow's names of modes without colour


@dataclass(frozen=True, eq=False)
class OwnImages:
    """Labelled images of the user, divided into a training and a test set. Make one with
    `from_folder` or `from_arrays`.

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
        """SHA-256 of the classes, the shape, and both sets' labels and pixels (`records_digest`)."""
        sets = ((self.train_images, self.train_labels), (self.test_images, self.test_labels))
        labels = [
            hashlib.sha256(own.numpy().astype("<i8").tobytes()).hexdigest() for _, own in sets
        ]  # more than 256 classes
        about = [
            self.classes,
            list(self.train_images.shape[1:]),
            labels,
            [records_digest(*own) for own in sets],
        ]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def split(self, split: str, device: str | torch.device = "cpu") -> Dataset:
        """ "train", "test", or "train/long-tail" (see `long_tail`), on `device`; a stand-in, since
        no paper uses it.
        """
        if split == LONG_TAIL:
            return long_tail(self.split("train", device))
        if split not in ("train", "test"):
            raise DataError(
                f"{self.name} has no split {split!r}, but train, test; for a validation split, divide the training data with holdout()"
            )
        images, labels = (
            (self.train_images, self.train_labels)
            if split == "train"
            else (self.test_images, self.test_labels)
        )
        return Dataset(
            self.name,
            split,
            images.to(device),
            labels.to(device),
            self.classes,
            f"{self.name}, the user's own",
            True,
        )


def from_arrays(
    train_images: Tensor | np.ndarray,
    train_labels: Tensor | np.ndarray | Sequence[int],
    test_images: Tensor | np.ndarray,
    test_labels: Tensor | np.ndarray | Sequence[int],
    classes: Sequence[str] | None = None,
    name: str = "own images",
) -> OwnImages:
    """A data set from arrays. images: uint8 [n, c, h, w] with c = 1 or 3; labels: whole numbers [n]
    in 0..C-1.

    classes: C distinct names, by default "0", "1", and so on up to the largest label. The arrays
    are copied. DataError, in one line, for other shapes and types, and for a class without a
    training or a test image.
    """
    images = [
        _images(what, given)
        for what, given in (("train_images", train_images), ("test_images", test_images))
    ]
    labels = [
        _labels(what, given)
        for what, given in (("train_labels", train_labels), ("test_labels", test_labels))
    ]
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"training images are {list(images[0].shape[1:])}, test images {list(images[1].shape[1:])}: they must be alike"
        )
    named = (
        tuple(map(str, classes))
        if classes is not None
        else tuple(str(c) for c in range(int(labels[0].max()) + 1))
    )
    if len(named) < 2 or len(set(named)) != len(named):
        raise DataError(
            f"there are {len(set(named))} distinct classes among {len(named)}: two or more are needed, each with its own name"
        )
    for what, own, pictures in zip(("training", "test"), labels, images, strict=True):
        if len(own) != len(pictures):
            raise DataError(f"there are {len(pictures)} {what} images and {len(own)} labels")
        if int(own.min()) < 0 or int(own.max()) >= len(named):
            raise DataError(
                f"{what} labels go from {int(own.min())} to {int(own.max())}, but there are {len(named)} classes, from 0 on"
            )
        if empty := [
            named[c] for c in (own.bincount(minlength=len(named)) == 0).nonzero()[:, 0].tolist()
        ]:
            raise DataError(f"class {empty[0]!r} has no {what} image")
    return OwnImages(str(name), named, images[0], labels[0], images[1], labels[1])


def from_folder(path: str | Path, name: str | None = None) -> OwnImages:
    """A data set from a folder: train/<class>/* and test/<class>/*, or <class>/*, of which a fifth
    of each class becomes the test set.

    The fifth is drawn with a fixed seed from the files in the order of their names. All pictures
    must have one size; they are read as RGB, or with one channel if all of them are grey. Hidden
    files are skipped. name: by default the folder's own. DataError, in one line that names the file
    or folder, for what is no picture, has another size, or is empty.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{folder} is no folder: give one with train/<class>/ and test/<class>/, or with a folder for each class"
        )
    title = name or folder.resolve().name
    if not {"train", "test"} <= {own.name for own in _folders(folder)}:
        files, labels, classes = _files(folder)
        whole = Dataset(title, "all", _pictures(files), labels, classes, "", True)
        train, test = holdout(whole, 0.2, seed=0)
        return from_arrays(train.images, train.labels, test.images, test.labels, classes, title)
    sets = [_files(folder / split) for split in ("train", "test")]
    classes = sets[0][2]
    if differing := sorted(set(classes) ^ set(sets[1][2])):
        raise DataError(f"{folder}: class {differing[0]!r} is not in both train and test")
    images = _pictures(sets[0][0] + sets[1][0])
    n = len(sets[0][0])
    return from_arrays(images[:n], sets[0][1], images[n:], sets[1][1], classes, title)


def _folders(folder: Path) -> list[Path]:
    return sorted(own for own in folder.iterdir() if own.is_dir() and not own.name.startswith("."))


def _files(folder: Path) -> tuple[list[Path], Tensor, tuple[str, ...]]:
    """The files of each class's folder, their labels and the classes, in alphabetical order."""
    files: list[Path] = []
    labels: list[int] = []
    classes = _folders(folder)
    for label, own in enumerate(classes):
        found = sorted(file for file in own.iterdir() if not file.name.startswith("."))
        if not found:
            raise DataError(
                f"{own} is empty: each class needs pictures; remove the folder or fill it"
            )
        files += found
        labels += [label] * len(found)
    if len(classes) < 2:
        raise DataError(f"{folder} has {len(classes)} folders of classes: two or more are needed")
    return files, torch.tensor(labels), tuple(own.name for own in classes)


def _pictures(files: list[Path]) -> Tensor:
    """uint8 [n, c, h, w]."""
    arrays, grey = [], True
    for file in files:
        picture = picture_of(file)
        grey = grey and picture.mode in GREY
        arrays.append(np.array(picture.convert("RGB")))
        if arrays[-1].shape != arrays[0].shape:
            size, first = (
                f"{array.shape[1]} x {array.shape[0]}" for array in (arrays[-1], arrays[0])
            )
            raise DataError(
                f"{file} is {size} pixels, {files[0]} is {first}: all must have one size; resize them first"
            )
    images = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    return (images[:, :1] if grey else images).contiguous()


def picture_of(file: Path) -> Image.Image:
    """A picture of 8 bits a channel, decoded. DataError, in one line, for what is none."""
    try:
        with Image.open(file, formats=FORMATS) as picture:
            if picture.mode.startswith(("I", "F")):
                raise OSError(f"its mode {picture.mode} has more than 8 bits a channel")
            picture.load()
            return picture
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = " ".join(str(error).split()).replace(repr(str(file)), "it")
        raise DataError(f"{file} is no readable picture ({why}): replace or remove it") from None


def _images(what: str, given: Tensor | np.ndarray) -> Tensor:
    images = torch.as_tensor(given).cpu()
    if (
        images.dtype != torch.uint8
        or images.ndim != 4
        or images.shape[1] not in (1, 3)
        or not len(images)
    ):
        raise DataError(
            f"{what} are {str(images.dtype).removeprefix('torch.')} {list(images.shape)}: expected uint8 [n, c, h, w] with c = 1 or 3 "
            "(channels last: permute(0, 3, 1, 2); numbers in [0, 1]: times 255, rounded)"
        )
    return images.clone(memory_format=torch.contiguous_format)


def _labels(what: str, given: Tensor | np.ndarray | Sequence[int]) -> Tensor:
    labels = torch.as_tensor(given).cpu()
    if (
        labels.is_floating_point()
        or labels.is_complex()
        or labels.dtype == torch.bool
        or labels.ndim != 1
        or not len(labels)
    ):
        raise DataError(
            f"{what} are {str(labels.dtype).removeprefix('torch.')} {list(labels.shape)}: expected whole numbers [n]"
        )
    return labels.long().clone()
