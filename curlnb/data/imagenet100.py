"""ImageNet-100: a hundred classes of an ImageNet folder that the user supplies, as tensors
(chuang2020, Section 5.2).

ImageNet has no source from which a program may fetch it, so nothing here does.
`data/imagenet100.txt` lists the classes, those published with contrastive multiview coding (Tian et
al. 2019), on which chuang2020 builds. CURLNB_IMAGENET names the folder: train/<class>/*.JPEG and
val/<class>/*.JPEG.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from curlnb.data.download import DataError
from curlnb.data.images import Dataset
from curlnb.data.own_images import picture_of
from curlnb.runs import environment

NAME = "imagenet100"
ORIGIN = "ImageNet (Russakovsky et al. 2015), the 100 classes published with contrastive multiview coding"
# pixels: the shorter side is resized to it and the middle square kept, so that the set is one
# tensor
SIDE = 256
FOLDERS = {"train": "train", "test": "val"}
ENDINGS = (".jpeg", ".jpg", ".png")


def classes() -> tuple[str, ...]:
    """The WordNet ids of the hundred classes, sorted: their places are the labels."""
    path = environment.home() / "data" / "imagenet100.txt"
    try:
        listed = tuple(sorted(path.read_text().split()))
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: set CURLNB_HOME to a checkout of this project"
        ) from None
    if len(set(listed)) != 100:
        raise DataError(
            f"data/imagenet100.txt lists {len(set(listed))} classes instead of 100: restore it with git checkout"
        )
    return listed


def digest() -> str:
    """What identifies the set, for keys, without reading a picture: its classes and the side. Dry
    runs have their own.
    """
    return hashlib.sha256(
        f"{'synthetic ' if environment.dry() else ''}{NAME} {SIDE} {classes()}".encode()
    ).hexdigest()


def load(split: str, device: str | torch.device = "cpu") -> Dataset:
    """ "train" (126,689 pictures, 25 GB of memory) or "test" (ImageNet's validation pictures,
    5,000), uint8 [n, 3, SIDE, SIDE].

    Pictures are decoded at every call. DataError, in one line, where the folder, a class or its
    pictures are missing. Under CURLNB_DRY=1: noise, two pictures of each class, 64 pixels wide.
    """
    if split not in FOLDERS:
        raise DataError(f"{NAME} has no split {split!r}, but {', '.join(FOLDERS)}")
    names = classes()
    if environment.dry():
        generator = torch.Generator().manual_seed(len(split))
        images = torch.randint(0, 256, (200, 3, 64, 64), generator=generator, dtype=torch.uint8)
        return Dataset(
            NAME,
            split,
            images,
            torch.arange(200) % 100,
            names,
            f"synthetic in the shape of {NAME}",
            True,
        ).to(device)
    files = _files(folder() / FOLDERS[split], names)
    images = torch.empty(len(files), 3, SIDE, SIDE, dtype=torch.uint8)
    for index, (file, _) in enumerate(files):
        images[index] = _square(file)
    return Dataset(
        NAME, split, images, torch.tensor([label for _, label in files]), names, ORIGIN, False
    ).to(device)


def available() -> bool:
    """Whether CURLNB_IMAGENET names a folder. Looks no further."""
    return bool(os.environ.get("CURLNB_IMAGENET")) and Path(os.environ["CURLNB_IMAGENET"]).is_dir()


def folder() -> Path:
    """The folder that CURLNB_IMAGENET names; DataError where it names none."""
    if not available():
        raise DataError(
            f"{NAME} needs an ImageNet folder, which cannot be fetched: set CURLNB_IMAGENET to one with train/n01558993/*.JPEG and val/"
        )
    return Path(os.environ["CURLNB_IMAGENET"])


def _files(folder: Path, names: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Every picture of the classes, in the order of classes and names, and its label."""
    found: list[tuple[Path, int]] = []
    for label, name in enumerate(names):
        own = sorted(file for file in (folder / name).glob("*") if file.suffix.lower() in ENDINGS)
        if not own:
            raise DataError(
                f"{NAME}: no pictures in {folder / name}; CURLNB_IMAGENET must hold all 100 classes of data/imagenet100.txt"
            )
        found += [(file, label) for file in own]
    return found


def _square(file: Path) -> Tensor:
    """The middle SIDE x SIDE pixels [3, SIDE, SIDE] of a picture whose shorter side is resized to
    SIDE.
    """
    picture = picture_of(file)
    scale = SIDE / min(picture.size)
    width, height = (max(SIDE, round(length * scale)) for length in picture.size)
    resized = picture.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    left, top = (resized.width - SIDE) // 2, (resized.height - SIDE) // 2
    return torch.from_numpy(np.array(resized.crop((left, top, left + SIDE, top + SIDE)))).permute(
        2, 0, 1
    )
