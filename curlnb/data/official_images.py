"""Image sets from their official files: an archive, or a folder with the same layout. All are plain
records of bytes or pictures.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from curlnb.data.catalogue import Entry
from curlnb.data.contents import Tensors
from curlnb.data.download import DataError, named_members

Parts = Iterator[tuple[str, Tensors]]


# --- CIFAR


def cifar10(entry: Entry, place: Path) -> Parts:
    """CIFAR-10 in its binary version: a label byte and the pixels of each image."""
    train = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
    yield "train", _records(place, train, 1)
    yield "test", _records(place, ["cifar-10-batches-bin/test_batch.bin"], 1)


def cifar100(entry: Entry, place: Path) -> Parts:
    """CIFAR-100 in its binary version; the superclass of an image follows from its class."""
    for split in ("train", "test"):
        yield split, _records(place, [f"cifar-100-binary/{split}.bin"], 2)


def _records(place: Path, files: list[str], label_bytes: int) -> Tensors:
    """Records of label bytes, the last of which counts, and 3 x 32 x 32 pixels."""
    found = named_members(place, files)
    content = bytearray(b"".join(found[file] for file in files))
    rows = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, label_bytes + 3072)
    images = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
    return {"images": images, "labels": rows[:, label_bytes - 1].long()}


# --- STL-10


def stl10(entry: Entry, place: Path) -> Parts:
    """STL-10: pixels channel by channel and column by column, labels from 1."""
    for split in entry.parts:
        names = ["X"] if split == "unlabeled" else ["X", "y"]
        found = named_members(place, [f"stl10_binary/{split}_{name}.bin" for name in names])
        pixels = bytearray(found[f"stl10_binary/{split}_X.bin"])
        columns = torch.frombuffer(pixels, dtype=torch.uint8).reshape(-1, 3, 96, 96)
        labels = found.get(f"stl10_binary/{split}_y.bin", bytes(len(columns)))
        yield split, {"images": columns.mT.contiguous(), "labels": torch.tensor(list(labels)) - 1}


def stl10_48(entry: Entry, place: Path) -> Parts:
    """The labelled part of STL-10 at half size: each block of 2 x 2 pixels as its mean, (a + b + c
    + d + 2) // 4.
    """
    for split, content in stl10(entry, place):
        blocks = content["images"].unflatten(2, (-1, 2)).unflatten(4, (-1, 2))
        halved = (blocks.sum((3, 5), dtype=torch.int32) + 2) // 4
        yield split, content | {"images": halved.to(torch.uint8)}


# --- ImageNet


def tiny_imagenet_mini(entry: Entry, place: Path) -> Parts:
    """A part of Tiny ImageNet: of each class the training files numbered 0 to 59, and the first 10
    validation files in the order of `val_annotations.txt`.

    The images go round the classes, which are in the order of their WordNet ids.
    """
    root = "tiny-imagenet-200"
    annotations = f"{root}/val/val_annotations.txt"
    of_class: dict[str, list[str]] = {label: [] for label in entry.classes}
    for line in named_members(place, [annotations])[annotations].decode().splitlines():
        file, label = line.split("\t")[:2]
        of_class[label].append(f"{root}/val/images/{file}")
    train = [
        f"{root}/train/{label}/images/{label}_{number}.JPEG"
        for number in range(60)
        for label in entry.classes
    ]
    test = [of_class[label][number] for number in range(10) for label in entry.classes]
    for split, files in (("train", train), ("test", test)):
        found = named_members(place, files)
        images = torch.stack([_pixels(_rgb(io.BytesIO(found[file]))) for file in files])
        yield split, {"images": images, "labels": torch.arange(len(files)) % len(entry.classes)}


def imagenet100(entry: Entry, place: Path) -> Parts:
    """A hundred classes of an ImageNet folder, train/<class>/* and val/<class>/*, class by class;
    of each picture the middle square, resized to the entry's size.
    """
    for split, folder in (("train", "train"), ("test", "val")):
        files = [
            (file, label)
            for label, name in enumerate(entry.classes)
            for file in sorted((place / folder / name).glob("*"))
        ]
        images = torch.empty(len(files), *entry.shape, dtype=torch.uint8)
        for index, (file, _) in enumerate(files):
            square = ImageOps.fit(_rgb(file), entry.shape[1:], Image.Resampling.BILINEAR)
            images[index] = _pixels(square)
        yield split, {"images": images, "labels": torch.tensor([label for _, label in files])}


def _pixels(picture: Image.Image) -> Tensor:
    """uint8 [3, h, w]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _rgb(file: Path | io.BytesIO) -> Image.Image:
    try:
        with Image.open(file, formats=("JPEG", "PNG")) as picture:
            return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{file} is no readable picture ({error})") from None
