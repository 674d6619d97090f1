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
SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation")


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
    with one channel if all are grey. Hidden files and those without the ending of a picture are
    skipped. name: by default the folder's own. DataError, in one line that names the file or
    folder, for a picture that can't be read, has more than 8 bits a channel or another size than
    the first, for a class without a picture, and for train/ without one of test/ or val/.
    """
    from torchvision.datasets import ImageFolder  # slow to import

    folder = Path(path).expanduser()
    title = name or folder.resolve().name
    inside = [own.name for own in folder.glob("*/")]
    splits = sorted(name for name in inside if name.lower() in SPLITS)
    if splits not in ([], ["test", "train"], ["train", "val"]):
        found = ", ".join(splits)
        raise DataError(f"{folder} holds {found}: expected train and one of test or val")
    parts = sorted(splits, key="train".__ne__) or ["."]
    endings = {end for end, kind in Image.registered_extensions().items() if kind in FORMATS}

    def counts(file: str) -> bool:
        return Path(file).suffix.lower() in endings and not Path(file).name.startswith(".")

    try:
        sets = [ImageFolder(folder / part, loader=_picture, is_valid_file=counts) for part in parts]
    except OSError as error:  # no such folder, none in it, or one without a picture
        raise DataError(f"{error}: give train/<class>/* and test/<class>/*, or <class>/*") from None
    pictures = [picture for each in sets for picture, _ in each]
    files = [file for each in sets for file, _ in each.samples]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            size, first = (f"{a.shape[1]} x {a.shape[0]}" for a in (picture, pictures[0]))
            raise DataError(f"{file} is {size} pixels, the first is {first}: all must be alike")
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    if bool((images == images[:, :1]).all()):
        images = images[:, :1]
    labels = np.array([each.classes[label] for each in sets for label in each.targets])
    test = torch.arange(len(images)) >= len(sets[0])
    if len(sets) == 1:
        test = held_out(torch.tensor(sets[0].targets), 0.2, 0, title)
    return from_arrays(images[~test], labels[~test], images[test], labels[test], name=title)


def _picture(file: str) -> np.ndarray:
    """uint8 [h, w, 3] of a picture of 8 bits a channel, upright."""
    try:
        with Image.open(file, formats=FORMATS) as picture:
            if picture.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits a channel")
            return np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = " ".join(str(error).split()).replace(repr(file), "it")
        raise DataError(f"{file} is no readable picture ({why}): replace or remove it") from None
