"""Image sets from their official files: an archive, or a folder with the same layout.

All are plain records of bytes or pictures. Of CIFAR-100's Python version, a pickle, the operations
are listed and none is carried out.
"""

import io
import pickletools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from curlnb.data.catalogue import Entry
from curlnb.data.contents import Tensors
from curlnb.data.download import DataError, named_members

Parts = Iterator[tuple[str, Tensors]]


# --- CIFAR


def cifar10(entry: Entry, place: Path) -> Parts:
    """CIFAR-10 in its binary version: a label byte and the pixels of each image."""
    train = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
    yield from _cifar(place, {"train": train, "test": ["cifar-10-batches-bin/test_batch.bin"]}, 1)


def cifar100(entry: Entry, place: Path) -> Parts:
    """CIFAR-100, binary or Python version; the superclass of an image follows from its class."""
    if place.name == "cifar-100-python.tar.gz":
        for split in ("train", "test"):
            file = f"cifar-100-python/{split}"
            yield split, cifar_pickle(named_members(place, [file])[file])
    else:
        files = {split: [f"cifar-100-binary/{split}.bin"] for split in ("train", "test")}
        yield from _cifar(place, files, 2)


def _cifar(place: Path, files: dict[str, list[str]], label_bytes: int) -> Parts:
    """Records of label bytes, the last of which counts, and 3 x 32 x 32 pixels."""
    found = named_members(place, [file for own in files.values() for file in own])
    for split, own in files.items():
        content = bytearray(b"".join(found.pop(file) for file in own))
        rows = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, label_bytes + 3072)
        images = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
        yield split, {"images": images, "labels": rows[:, label_bytes - 1].long()}


def cifar_pickle(pickled: bytes) -> Tensors:
    """Images and fine labels in the operations of a pickle that Python 2 wrote.

    The pixels are its longest string, the labels the numbers behind the string "fine_labels".
    """
    pixels, labels, last = "", [], ""
    for operation, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str) and "STRING" in operation.name:
            pixels, last = max(pixels, argument, key=len), argument
        elif last == "fine_labels" and operation.name == "BININT1":
            labels.append(argument)
    rows = torch.frombuffer(bytearray(pixels.encode("latin-1")), dtype=torch.uint8)
    return {"images": rows.reshape(-1, 3, 32, 32), "labels": torch.tensor(labels)}


# --- STL-10


def stl10(entry: Entry, place: Path) -> Parts:
    """STL-10: pixels channel by channel and column by column, labels from 1."""
    labelled = [split for split in entry.parts if split != "unlabeled"]
    names = [f"{split}_X" for split in entry.parts] + [f"{split}_y" for split in labelled]
    found = named_members(place, [f"stl10_binary/{name}.bin" for name in names])
    for split in entry.parts:
        pixels = bytearray(found.pop(f"stl10_binary/{split}_X.bin"))
        columns = torch.frombuffer(pixels, dtype=torch.uint8).reshape(-1, 3, 96, 96)
        labels = found.get(f"stl10_binary/{split}_y.bin", bytes(len(columns)))
        yield split, {"images": columns.mT.contiguous(), "labels": torch.tensor(list(labels)) - 1}


def stl10_48(entry: Entry, place: Path) -> Parts:
    """The labelled part of STL-10 at half size."""
    for split, content in stl10(entry, place):
        yield split, content | {"images": halved(content["images"])}


def halved(images: Tensor) -> Tensor:
    """Each block of 2 x 2 pixels as its mean, (a + b + c + d + 2) // 4: uint8 [n, c, h/2, w/2]."""
    blocks = images.unflatten(2, (-1, 2)).unflatten(4, (-1, 2))  # [n, c, h/2, 2, w/2, 2]
    return ((blocks.sum((3, 5), dtype=torch.int32) + 2) // 4).to(torch.uint8)


# --- ImageNet


def tiny_imagenet_mini(entry: Entry, place: Path, train: int = 60, test: int = 10) -> Parts:
    """A part of Tiny ImageNet: of each class the training files numbered 0 to 59, and the first 10
    validation files in the order of `val_annotations.txt`.

    The images go round the classes, which are in the order of their WordNet ids.
    """
    root, annotations = "tiny-imagenet-200", "tiny-imagenet-200/val/val_annotations.txt"
    of_class: dict[str, list[str]] = {label: [] for label in entry.classes}
    for line in named_members(place, [annotations])[annotations].decode().splitlines():
        file, label = line.split("\t")[:2]
        of_class[label].append(f"{root}/val/images/{file}")
    files = {
        "train": [
            f"{root}/train/{label}/images/{label}_{number}.JPEG"
            for number in range(train)
            for label in entry.classes
        ],
        "test": [of_class[label][number] for number in range(test) for label in entry.classes],
    }
    for split, own in files.items():
        found = named_members(place, own)
        pixels = np.stack([np.array(_rgb(io.BytesIO(found[file]))) for file in own])
        labels = torch.arange(len(own)) % len(entry.classes)
        yield split, {"images": torch.from_numpy(pixels).permute(0, 3, 1, 2), "labels": labels}


def imagenet100(entry: Entry, place: Path) -> Parts:
    """A hundred classes of an ImageNet folder, train/<class>/* and val/<class>/*, class by class.

    The shorter side is resized to the entry's size, and the middle square is kept.
    """
    side = entry.shape[1]
    for split, folder in (("train", "train"), ("test", "val")):
        files = [
            (file, label)
            for label, name in enumerate(entry.classes)
            for file in sorted((place / folder / name).glob("*"))
        ]
        images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
        for index, (file, _) in enumerate(files):
            images[index] = torch.from_numpy(np.array(_square(file, side))).permute(2, 0, 1)
        yield split, {"images": images, "labels": torch.tensor([label for _, label in files])}


def _square(file: Path, side: int) -> Image.Image:
    picture = _rgb(file)
    scale = side / min(picture.size)
    width, height = (max(side, round(length * scale)) for length in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - side) // 2, (height - side) // 2
    return resized.crop((left, top, left + side, top + side))


def _rgb(file: Path | io.BytesIO) -> Image.Image:
    try:
        with Image.open(file, formats=("JPEG", "PNG")) as picture:
            return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{file} is no readable picture ({error})") from None


READERS: dict[str, Callable[[Entry, Path], Parts]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "stl10": stl10,
    "stl10-48": stl10_48,
    "tiny-imagenet-mini": tiny_imagenet_mini,
    "imagenet100": imagenet100,
}
