"""A data set of your own, from a folder of pictures or from arrays, in the form in which
experiments take a data set.

mine = datasets.from_folder("~/pictures/leaves")
mine.split("train").images                          # uint8 [n, c, h, w]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from curlnb.data.download import DataError
from curlnb.data.images import OwnImages
from curlnb.data.sampling import held_out

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # none starts another program
TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")
SKIPPED = ("thumbs.db", "desktop.ini")  # what Windows leaves in folders; hidden files are, too
LAYOUT = "give train/<class>/* and test/<class>/*, or <class>/*"


# --- arrays


def from_arrays(
    train_images: Any,
    train_labels: Any,
    test_images: Any,
    test_labels: Any,
    classes: Sequence[str] | None = None,
    name: str = "own images",
) -> OwnImages:
    """A data set from arrays, tensors or lists of them, which are copied.

    images: uint8 [n, c, h, w] with c = 1 or 3. labels: [n] whole numbers, 0 or more, or names; the
    place counts, not the index of a pandas Series. classes: C distinct names, into which numbers
    0..C-1 point; by default the distinct training labels in ascending order, so that ids are
    labels as well. DataError, in one line, for other shapes and types, and for a class without a
    training or a test image.
    """
    images = _images("train_images", train_images), _images("test_images", test_images)
    given = _labels("train_labels", train_labels), _labels("test_labels", test_labels)
    known = sorted(set(given[0])) if classes is None else [str(name) for name in classes]
    place: dict[Any, int] = {label: number for number, label in enumerate(known)}
    if len(place) < max(2, len(known)):
        raise DataError(f"classes are {known}: two or more are needed, each with its own name")
    if classes is not None:  # names and numbers point into them
        place |= {number: number for number in range(len(known))}
    labels = []
    for what, own, pictures in zip(("training", "test"), given, images, strict=True):
        if pictures.shape != (expected := (len(own), *images[0].shape[1:])):
            shapes = f"{list(pictures.shape)}, not {list(expected)}"
            raise DataError(f"{what} images are {shapes}: one a label, and all of one shape")
        if odd := [label for label in own if label not in place]:
            raise DataError(f"{what} label {odd[0]!r} is none of the {len(known)} classes")
        labels.append(torch.tensor([place[label] for label in own]))
        if empty := sorted(set(range(len(known))) - set(labels[-1].tolist())):
            raise DataError(f"class {str(known[empty[0]])!r} has no {what} image")
    return OwnImages(str(name), tuple(map(str, known)), images[0], labels[0], images[1], labels[1])


def _array(what: str, given: Any) -> np.ndarray:
    try:
        if isinstance(given, list | tuple):
            given = np.stack(given)
        return np.array(given.cpu() if isinstance(given, Tensor) else given, order="C", ndmin=1)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} are no array ({error}): give one, or items of one shape") from None


def _images(what: str, given: Any) -> Tensor:
    array = _array(what, given)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] not in (1, 3) or not array.size:
        raise DataError(
            f"{what} are {array.dtype} {list(array.shape)}: expected uint8 [n, 1 or 3, h, w] "
            "(channels last: permute(0, 3, 1, 2); numbers in [0, 1]: times 255, rounded)"
        )
    return torch.from_numpy(array)


def _labels(what: str, given: Any) -> list[Any]:
    values = _array(what, given)
    labels = values.tolist()
    kinds = {type(one) for one in labels}
    if kinds not in ({int}, {str}) or (kinds == {int} and min(labels) < 0):
        raise DataError(
            f"{what} are {labels[:3]} ..., {values.dtype} {list(values.shape)}: "
            "expected whole numbers, 0 or more, or names [n], none missing"
        )
    return labels


# --- folders


def from_folder(path: str | Path, name: str | None = None) -> OwnImages:
    """A data set from a folder: train/<class>/* and test/<class>/* (or val/), or <class>/*, of
    which a fifth of each class, drawn with a fixed seed, becomes the test set.

    All pictures must have one size, turned as their EXIF orientation says. They are read as RGB, or
    with one channel if all are grey. Hidden files are skipped. name: by default the folder's own.
    DataError, in one line that names the file or folder, for what is no picture of 8 bits a channel
    or has another size, for a class without a picture, and for folders beside train and test.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: {LAYOUT}")
    title = name or folder.resolve().name
    inside = [own for own in _entries(folder) if own.is_dir()]
    train = [own for own in inside if own.name.lower() in TRAIN]
    test = [own for own in inside if own.name.lower() in TEST]
    if not train:
        files, labels = _samples(folder, least=2)
        images, classes = _pictures(files), sorted(set(labels))
        numbers = torch.tensor([classes.index(label) for label in labels])
        chosen = held_out(numbers, 0.2, 0, title)
        parts = images[~chosen], numbers[~chosen], images[chosen], numbers[chosen]
        return from_arrays(*parts, classes, title)
    if len(train) != 1 or len(test) != 1 or len(inside) > 2:
        found = ", ".join(own.name for own in inside)
        raise DataError(f"{folder} holds {found}: expected train and one of test or val, no more")
    (files, labels), (test_files, test_labels) = _samples(train[0]), _samples(test[0])
    images = _pictures(files + test_files)
    n = len(files)
    return from_arrays(images[:n], labels, images[n:], test_labels, name=title)


def _entries(folder: Path) -> list[Path]:
    return sorted(
        own
        for own in folder.iterdir()
        if not own.name.startswith(".") and own.name.lower() not in SKIPPED
    )


def _samples(folder: Path, least: int = 1) -> tuple[list[Path], list[str]]:
    """The files in the folders of the classes, `least` or more in each, and the class of each."""
    classes = [own for own in _entries(folder) if own.is_dir()]
    if not classes:
        raise DataError(f"{folder} has no folder with pictures: {LAYOUT}")
    files = []
    for own in classes:
        if len(pictures := _entries(own)) < least:
            raise DataError(f"{own} needs pictures ({least} or more): fill it or remove it")
        files += pictures
    return files, [file.parent.name for file in files]


def _pictures(files: list[Path]) -> Tensor:
    """uint8 [n, c, h, w]."""
    arrays: list[np.ndarray] = []
    for file in files:
        arrays.append(_picture(file))
        if arrays[-1].shape != arrays[0].shape:
            size, first = (f"{a.shape[1]} x {a.shape[0]}" for a in (arrays[-1], arrays[0]))
            raise DataError(
                f"{file} is {size} pixels, {files[0]} is {first}: all must have one size"
            )
    images = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    grey = bool((images == images[:, :1]).all())
    return (images[:, :1] if grey else images).contiguous()


def _picture(file: Path) -> np.ndarray:
    """uint8 [h, w, 3] of a picture of 8 bits a channel, upright."""
    try:
        with Image.open(file, formats=FORMATS) as picture:
            if picture.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits a channel")
            return np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = " ".join(str(error).split()).replace(repr(str(file)), "it")
        raise DataError(f"{file} is no readable picture ({why}): replace or remove it") from None
