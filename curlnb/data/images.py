"""Image sets as tensors: small ones committed to the repository, full ones fetched once into the cache, all checked whenever they are read.

`data/images.json` lists every set: its shape, splits, classes and the SHA-256 of each split's content (`records_digest`),
whatever the file format. The content of the two sets that only their original source has (CIFAR-100, STL-10) is not known in advance:
for them the table holds torchvision's MD5 of the archive, and the cache records the content's SHA-256 when it is written.
"""

import difflib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from curlnb.data.download import DataError, cache_folder
from curlnb.runs import environment

Source = Callable[[Path], Iterator[tuple[str, Tensor, Tensor]]]
"""From the folder for its working files to splits: name, images uint8 [n, c, h, w], labels int64 [n]."""

LONG_TAIL, LONG_TAIL_RATIO = "train/long-tail", 10.0


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of an image set.

    images: uint8 [n, c, h, w]; labels: int64 [n], the index into `classes`, -1 where unlabelled; stand_in: True where none of the three
    papers uses this data, so that a verdict on it must say so.
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


@dataclass(frozen=True)
class Entry:
    """A row of `data/images.json`. shape: [c, h, w] of an image; splits: name -> number of images; megabytes: what a fetch transfers."""

    name: str
    origin: str
    stand_in: bool
    committed: bool
    shape: tuple[int, int, int]
    splits: dict[str, int]
    classes: tuple[str, ...]
    sha256: dict[str, str]
    archive_md5: str = ""
    megabytes: int = 0

    @property
    def parts(self) -> list[str]:
        """The splits that have a file of their own; `train+unlabeled` is read as its two parts."""
        return [split for split in self.splits if "+" not in split]


class _Damaged(Exception):
    """A file is there, and its content is not what it should be."""


def names() -> tuple[str, ...]:
    """Every image set there is."""
    return tuple(_table(_data_folder()))


def load(name: str, split: str, device: str | torch.device = "cpu") -> Dataset:
    """A split of an image set, on `device`, its content verified.

    name: one of `names()`; split: "train" or "test", for stl10 also "unlabeled" and "train+unlabeled"; "train/long-tail" is the part of
    "train" that `long_tail` leaves at its default ratio. Never touches the network, with one exception: a damaged file in the cache is
    fetched again. Raises DataError for a name or split that does not exist, and for data that is absent or damaged. Under CURLNB_DRY=1 it
    returns `synthetic` data.
    """
    if split == LONG_TAIL:
        return long_tail(load(name, "train", device))
    entry = _entry(name, split)
    if environment.dry():
        fake = synthetic(name, split)
        return replace(fake, images=fake.images.to(device), labels=fake.labels.to(device))
    parts = [_read(entry, part) for part in split.split("+")]
    images, labels = (torch.cat(tensors) if len(tensors) > 1 else tensors[0] for tensors in zip(*parts, strict=True))
    return Dataset(name, split, images.to(device), labels.to(device), entry.classes, entry.origin, entry.stand_in)


def synthetic(name: str, split: str, n: int | None = None) -> Dataset:
    """Noise with the shapes and classes of a set, for dry runs, the same every time.

    n: number of images; default 16, or two a class if that is more. Labels go round all classes; those of "unlabeled" are -1, and so is
    the second half of "train+unlabeled".
    """
    entry = _entry(name, split)
    n = max(16, 2 * len(entry.classes)) if n is None else n
    generator = torch.Generator().manual_seed(crc32(f"{name}/{split}".encode()))
    images = torch.randint(0, 256, (n, *entry.shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(n) % len(entry.classes)
    if "unlabeled" in split:
        labels[n // 2 if "+" in split else 0 :] = -1
    return Dataset(name, split, images, labels, entry.classes, f"synthetic (dry run) in the shape of {name}", True)


def holdout(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Divide a split in two, class by class, to choose settings without looking at test data: (fit, validation).

    fraction: the share of each class that goes to validation, in (0, 1), rounded to at least one image and at most all but one. The same
    seed gives the same division on every device; both parts keep the order of the images.
    """
    if not 0 < fraction < 1:
        raise DataError(f"fraction is {fraction}, but must lie between 0 and 1: 0.2 holds out a fifth of each class")
    labels = dataset.labels.cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        own = order[labels[order] == label]
        if len(own) < 2:
            raise DataError(f"class {int(label)} of {dataset.name} ({dataset.split}) has one image only, which cannot be divided")
        held_out[own[: min(max(round(fraction * len(own)), 1), len(own) - 1)]] = True
    fit, validation = (
        replace(dataset, split=f"{dataset.split}/{part}", images=dataset.images[chosen], labels=dataset.labels[chosen])
        for part, chosen in (("fit", ~held_out.to(dataset.labels.device)), ("validation", held_out.to(dataset.labels.device)))
    )
    return fit, validation


def long_tail(dataset: Dataset, ratio: float = LONG_TAIL_RATIO) -> Dataset:
    """A split with unequal classes: of class c the first n r^(-c/(C-1)) images, rounded, at least 2, in their own order.

    n: the size of the smallest class; ratio: r > 1, of the largest class to the smallest. Nothing is drawn: the order of the classes is the
    set's own, and says nothing about them. The usual construction (Cui et al., CVPR 2019). DataError for a ratio or labels that do not do.
    """
    if not ratio > 1:
        raise DataError(f"ratio is {ratio}, but must be above 1: at 10 the first class is ten times as large as the last")
    labels, classes = dataset.labels, len(dataset.classes)
    smallest = int(torch.bincount(labels.clamp_min(0), minlength=classes).min())
    if classes < 2 or smallest < 2 or bool((labels < 0).any()):
        raise DataError(f"{dataset.name} ({dataset.split}) has no long tail: that takes two labelled images of each of two classes or more")
    sizes = [max(2, round(smallest * ratio ** (-c / (classes - 1)))) for c in range(classes)]
    chosen = torch.cat([(labels == c).nonzero()[:size, 0] for c, size in enumerate(sizes)]).sort().values
    return replace(dataset, split=f"{dataset.split}/long-tail", images=dataset.images[chosen], labels=labels[chosen])


def digest(name: str) -> str:
    """What identifies a set's content, for keys, without reading it: from the committed table. Dry runs have their own."""
    entry = _entry(name)
    known = f"synthetic {name}" if environment.dry() else json.dumps(entry.sha256 or entry.archive_md5, sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()


def available(name: str) -> str:
    """Where a set is: "embedded" (committed to the repository), "cached" (fetched) or "absent". Looks for files, does not read them."""
    entry = _entry(name)
    if not all(_file(entry, part).is_file() for part in entry.parts):
        return "absent"
    return "embedded" if entry.committed else "cached"


def fetch(name: str, report: Callable[[str], object] = print) -> None:
    """Have a set on this machine: verify what is here, and fetch what is absent or damaged from its original source, else from its mirror.

    Partial downloads stay in the cache to be resumed; data appears only complete and verified. Two processes fetch a set once. Raises
    DataError where no source delivers it.
    """
    entry = _entry(name)
    if entry.committed:
        for part in entry.parts:
            _read(entry, part)
        report(f"{name}: part of the repository, verified")
        return
    from curlnb.data.image_sources import MIRRORS, original  # torchvision, two seconds

    sources: list[tuple[str, Source]] = [("its original source", functools.partial(original, name))]
    sources += [("its mirror", MIRRORS[name])] if name in MIRRORS else []
    cache, failures = cache_folder(), []
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f".{name}.lock"):
            if _intact(entry):
                report(f"{name}: already here, verified")
                return
            for words, source in sources:
                report(f"{name}: fetching about {entry.megabytes:,} MB from {words}")
                if not (failure := _fetch_from(entry, words, source)):
                    report(f"{name}: fetched, verified")
                    return
                report(f"{name}: {failure}")
                failures.append(failure)
    except OSError as error:
        raise DataError(f"{name} cannot be kept in {cache}: {error}; CURLNB_DATA names another folder") from None
    where = " or ".join(words for words, _ in sources)
    raise DataError(f"{name} could not be had from {where}; check the network and try again ({'; '.join(failures)})")


def _fetch_from(entry: Entry, words: str, source: Source) -> str:
    """Put all splits from a source into the cache. Returns what went wrong; the empty string where nothing did."""
    working = cache_folder() / f".{entry.name}.fetching"  # kept after a failure: what it holds is resumed, or checked and replaced
    try:
        for split, images, labels in source(working):
            _write(entry, split, images, labels, words)
    except (DataError, OSError, RuntimeError) as error:  # also a full disk, and torchvision on an archive it refuses
        return " ".join(str(error).split())
    shutil.rmtree(working, ignore_errors=True)
    return ""


def _intact(entry: Entry) -> bool:
    """Whether every file of a set is in the cache and verified; removes those that are damaged."""
    intact = True
    for part in entry.parts:
        try:
            _open(entry, part)
        except FileNotFoundError:
            intact = False
        except _Damaged:
            _file(entry, part).unlink()
            intact = False
    return intact


def _read(entry: Entry, part: str) -> tuple[Tensor, Tensor]:
    """Images and labels of a split that has its own file, in words for the user where that fails."""
    try:
        return _open(entry, part)
    except FileNotFoundError:
        remedy = f"fetch it ({entry.megabytes:,} MB) with curlnb.data.datasets.fetch({entry.name!r})"
        remedy += ", or all that a profile needs with `make data PROFILE=gpu|paper`"
        if entry.committed:
            remedy = f"restore it with `git checkout -- {_file(entry, part).relative_to(environment.home())}`"
        raise DataError(f"{entry.name} ({part}) is not on this machine: {remedy}") from None
    except _Damaged as damage:
        if entry.committed:
            path = _file(entry, part).relative_to(environment.home())
            raise DataError(f"{path} is damaged ({damage}): restore it with `git checkout -- {path}`") from None
        print(f"{entry.name} ({part}): the cached file is damaged ({damage}), fetching it again")
    fetch(entry.name)
    return _open(entry, part)


def _open(entry: Entry, part: str) -> tuple[Tensor, Tensor]:
    """Images and labels of a file, verified; FileNotFoundError, or _Damaged where the content is not what the table or the file says."""
    path = _file(entry, part)
    expected = entry.sha256.get(part, "")
    try:
        if entry.committed:
            with Image.open(path) as picture:
                images, labels = from_mosaic(np.array(picture.convert("RGB")), entry.shape, len(entry.classes))
        else:
            with safe_open(path, "pt") as file:
                images, labels = file.get_tensor("images"), file.get_tensor("labels")
                expected = expected or (file.metadata() or {}).get("sha256", "")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError, Image.DecompressionBombError) as error:
        raise _Damaged(" ".join(str(error).split())) from None
    if _fault(entry, part, images, labels) or records_digest(images, labels) != expected:
        raise _Damaged("its SHA-256 is not the recorded one")
    return images, labels


def records_digest(images: Tensor, labels: Tensor, algorithm: str = "sha256") -> str:
    """Digest of a split's content: a record each image, its label byte (255 where unlabelled) and its pixels, channel by channel.

    images: uint8 [n, c, h, w]; labels: int64 [n]. It is the layout of CIFAR-10's binary version.
    """
    digest = hashlib.new(algorithm, usedforsecurity=False)
    for few, own in zip(images.split(1000), labels.split(1000), strict=True):
        digest.update(torch.cat([own.remainder(256).to(torch.uint8)[:, None], few.flatten(1)], dim=1).numpy().tobytes())
    return digest.hexdigest()


def _write(entry: Entry, split: str, images: Tensor, labels: Tensor, source: str) -> None:
    """Put a split into the cache, whole or not at all, if it is what the table says."""
    sha256 = records_digest(images, labels)
    fault = _fault(entry, split, images, labels)
    if fault or sha256 != entry.sha256.get(split, sha256):
        raise DataError(f"{entry.name} ({split}) from {source} has {fault or 'other content than this project knows'}; not kept")
    path = _file(entry, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    try:
        save_file({"images": images.contiguous(), "labels": labels.contiguous()}, unfinished, {"sha256": sha256, "source": source})
        unfinished.chmod(0o644)  # safetensors makes it private, but a cache may be shared
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _fault(entry: Entry, split: str, images: Tensor, labels: Tensor) -> str:
    """How the tensors differ from what the table promises, whatever the digest; empty where they do not."""
    expected = (entry.splits[split], *entry.shape)
    if images.dtype != torch.uint8 or labels.dtype != torch.int64 or tuple(images.shape) != expected or len(labels) != expected[0]:
        return f"images {images.dtype} {list(images.shape)}, labels {labels.dtype} {list(labels.shape)} instead of {list(expected)}"
    return ""


def from_mosaic(picture: np.ndarray, shape: tuple[int, int, int], classes: int) -> tuple[Tensor, Tensor]:
    """Images and labels from a picture [H, W, 3] that holds them as tiles, row by row, one class after the other, equally many of each.

    The images returned go round the classes instead, so that any number of first ones is balanced.
    """
    channels, height, width = shape
    rows, columns = picture.shape[0] // height, picture.shape[1] // width
    tiles = torch.from_numpy(picture[..., :channels]).reshape(rows, height, columns, width, channels)
    by_class = tiles.permute(0, 2, 4, 1, 3).reshape(classes, -1, *shape)
    return by_class.transpose(0, 1).flatten(0, 1).contiguous(), torch.arange(rows * columns) % classes


def to_mosaic(images: Tensor, classes: int, columns: int) -> np.ndarray:
    """The inverse of `from_mosaic`: images uint8 [n, c, h, w] that go round the classes, as a picture [H, W, 3], grey where c is 1."""
    by_class = images.unflatten(0, (-1, classes)).transpose(0, 1).flatten(0, 1)  # [n, c, h, w]
    tiles = by_class.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2)  # [rows, h, columns, w, c]
    return tiles.flatten(2, 3).flatten(0, 1).expand(-1, -1, 3).numpy()


def _file(entry: Entry, part: str) -> Path:
    folder, suffix = (_data_folder(), "webp") if entry.committed else (cache_folder(), "safetensors")
    return folder / entry.name / f"{part}.{suffix}"


def _data_folder() -> Path:
    return environment.home() / "data"


@functools.cache
def _table(folder: Path) -> dict[str, Entry]:
    """`data/images.json`, read once."""
    try:
        rows = json.loads((folder / "images.json").read_text())
    except FileNotFoundError:
        raise DataError(f"{folder / 'images.json'} is missing: set CURLNB_HOME to a checkout of this project") from None
    lists_as_tuples: dict[str, dict[str, Any]] = {
        name: {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()} for name, row in rows.items()
    }
    return {name: Entry(name=name, **row) for name, row in lists_as_tuples.items()}


def _entry(name: str, split: str | None = None) -> Entry:
    """The row of a set; DataError where there is no such set, or no such split of it."""
    table = _table(_data_folder())
    if name not in table:
        close = difflib.get_close_matches(str(name), table, 1, cutoff=0.5)
        raise DataError(f"unknown data set {name!r}{f', did you mean {close[0]!r}?' if close else ''}: there are {', '.join(table)}")
    if split is not None and split not in table[name].splits:
        hint = "; for a validation split, divide the training data with holdout()" if str(split).startswith("val") else ""
        raise DataError(f"{name} has no split {split!r}, but {', '.join(table[name].splits)}{hint}")
    return table[name]
