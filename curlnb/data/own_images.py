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
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

from curlnb.data.download import DataError
from curlnb.data.images import Dataset, OwnImages, holdout

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # none starts another program
GREY = ("1", "L", "LA")  # Pillow's names of modes without colour
TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")
SKIPPED = ("thumbs.db", "desktop.ini")  # what Windows leaves in folders; hidden files are, too


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
    if images[0].shape[1:] != images[1].shape[1:]:
        shapes = " and ".join(str(list(own.shape[1:])) for own in images)
        raise DataError(f"training and test images are {shapes}: they must be alike")
    given = _labels("train_labels", train_labels), _labels("test_labels", test_labels)
    known = sorted(set(given[0])) if classes is None else [str(name) for name in classes]
    place: dict[Any, int] = {label: number for number, label in enumerate(known)}
    if len(known) < 2 or len(place) < len(known):
        raise DataError(
            f"there are {len(place)} distinct classes among {len(known)}: "
            "two or more are needed, each with its own name"
        )
    if classes is not None:  # names and numbers point into them
        place |= {number: number for number in range(len(known))}
    labels = []
    for what, own, pictures in zip(("training", "test"), given, images, strict=True):
        if len(own) != len(pictures):
            raise DataError(f"there are {len(pictures)} {what} images and {len(own)} labels")
        if odd := [label for label in own if label not in place]:
            raise DataError(f"{what} label {odd[0]!r} is none of the {len(known)} classes")
        labels.append(torch.tensor([place[label] for label in own]))
        if empty := sorted(set(range(len(known))) - set(labels[-1].tolist())):
            raise DataError(f"class {str(known[empty[0]])!r} has no {what} image")
    return OwnImages(str(name), tuple(map(str, known)), images[0], labels[0], images[1], labels[1])


def _array(what: str, given: Any, expected: str) -> np.ndarray:
    try:
        return given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} are no array ({error}): {expected}") from None


def _images(what: str, given: Any) -> Tensor:
    expected = (
        "expected uint8 [n, 1 or 3, h, w] "
        "(channels last: permute(0, 3, 1, 2); numbers in [0, 1]: times 255, rounded)"
    )
    if isinstance(given, list | tuple):
        arrays = [_array(what, one, expected) for one in given]
        shapes = sorted({one.shape for one in arrays})
        if len(shapes) != 1:
            raise DataError(f"{what} have {len(shapes)} shapes {shapes[:2]}: all must have one")
        given = np.stack(arrays)
    array = _array(what, given, expected)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] not in (1, 3) or not array.size:
        raise DataError(f"{what} are {array.dtype} {list(array.shape)}: {expected}")
    return torch.from_numpy(np.array(array, order="C"))


def _labels(what: str, given: Any) -> list[Any]:
    expected = "expected whole numbers, 0 or more, or names [n], none missing"
    values = _array(what, given, expected)
    if values.ndim != 1 or not len(values):
        raise DataError(f"{what} have the shape {list(values.shape)}: {expected}")
    labels = [int(one) if isinstance(one, np.integer) else one for one in values.tolist()]
    for one in labels:
        if (
            type(one) not in (int, str)
            or type(one) is not type(labels[0])
            or (type(one) is int and one < 0)
        ):
            raise DataError(f"{what} hold {one!r} ({values.dtype}): {expected}")
    return labels


# --- folders


def from_folder(path: str | Path, name: str | None = None) -> OwnImages:
    """A data set from a folder: train/<class>/* and test/<class>/* (or val/), or <class>/*, of
    which a fifth of each class, drawn with a fixed seed, becomes the test set.

    All pictures must have one size, turned as their EXIF orientation says. They are read as RGB, or
    with one channel if all are grey. Hidden files are skipped. name: by default the folder's own.
    DataError, in one line that names the file or folder, for what is no picture, has more than 8
    bits a channel or another size, for an empty class, and for folders beside train and test.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: give one with a folder of pictures for each class")
    title = name or folder.resolve().name
    inside = [own for own in _entries(folder) if own.is_dir()]
    if not any(own.name.lower() in TRAIN for own in inside):
        files, labels, classes = _classes(folder, least=2)
        whole = Dataset(title, "all", _pictures(files), labels, classes, "", True)
        train, test = holdout(whole, 0.2, seed=0)
        return from_arrays(train.images, train.labels, test.images, test.labels, classes, title)
    train_folders = [own for own in inside if own.name.lower() in TRAIN]
    test_folders = [own for own in inside if own.name.lower() in TEST]
    if len(train_folders) != 1 or len(test_folders) != 1 or len(inside) > 2:
        found = ", ".join(own.name for own in inside)
        raise DataError(f"{folder} holds {found}: expected train and one of test or val, no more")
    files, labels, classes = _classes(train_folders[0])
    test_files, test_labels, test_classes = _classes(test_folders[0])
    if differing := sorted(set(classes) ^ set(test_classes)):
        where = f"{train_folders[0].name} and {test_folders[0].name}"
        raise DataError(f"{folder}: class {differing[0]!r} is not in both {where}")
    images = _pictures(files + test_files)
    n = len(files)
    return from_arrays(images[:n], labels, images[n:], test_labels, classes, title)


def _entries(folder: Path) -> list[Path]:
    return sorted(
        own
        for own in folder.iterdir()
        if not own.name.startswith(".") and own.name.lower() not in SKIPPED
    )


def _classes(folder: Path, least: int = 1) -> tuple[list[Path], Tensor, tuple[str, ...]]:
    """The files of each class's folder, their labels and the classes, in alphabetical order."""
    files: list[Path] = []
    labels: list[int] = []
    classes = [own for own in _entries(folder) if own.is_dir()]
    for label, own in enumerate(classes):
        found = _entries(own)
        if len(found) < least:
            raise DataError(f"{own} has {len(found)} pictures: each class needs {least} or more")
        files += found
        labels += [label] * len(found)
    if len(classes) < 2:
        raise DataError(f"{folder} has {len(classes)} folders of classes: two or more are needed")
    return files, torch.tensor(labels), tuple(own.name for own in classes)


def _pictures(files: list[Path]) -> Tensor:
    """uint8 [n, c, h, w]."""
    arrays, grey = [], True
    for file in files:
        picture = _picture(file)
        grey = grey and picture.mode in GREY
        arrays.append(np.array(picture.convert("RGB")))
        if arrays[-1].shape != arrays[0].shape:
            size, first = (f"{a.shape[1]} x {a.shape[0]}" for a in (arrays[-1], arrays[0]))
            raise DataError(
                f"{file} is {size} pixels, {files[0]} is {first}: all must have one size"
            )
    images = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
    return (images[:, :1] if grey else images).contiguous()


def _picture(file: Path) -> Image.Image:
    """A picture of 8 bits a channel, decoded and upright."""
    if file.is_dir():
        raise DataError(
            f"{file} is a folder where a picture is expected: "
            "give train/<class>/* and test/<class>/*, or <class>/*"
        )
    try:
        with Image.open(file, formats=FORMATS) as picture:
            if picture.mode.startswith(("I", "F")) or _deep(picture):
                raise ValueError("it has more than 8 bits a channel")
            return ImageOps.exif_transpose(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = " ".join(str(error).split()).replace(repr(str(file)), "it")
        raise DataError(f"{file} is no readable picture ({why}): replace or remove it") from None


def _deep(picture: ImageFile.ImageFile) -> bool:
    """Whether Pillow would cut the channels of an opened picture to 8 bits."""
    for codec, _, _, arguments in picture.tile:
        raw, *more = arguments if isinstance(arguments, tuple) else (arguments,)
        if codec == "ppm" and more[0] > 255:
            return True
        if ";16" in str(raw) and not str(raw).startswith("BGR"):  # that has 16 bits a pixel
            return True
    return False
