"""Your own data set behaves like the others, and what cannot be one is refused in one line."""

import pickle
import struct
import zlib
from pathlib import Path
from zlib import crc32

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from curlnb.data import datasets
from curlnb.data.datasets import DataError, OwnImages, from_arrays, from_folder


def pictures(
    folder: Path, count: int, size: tuple[int, int] = (6, 4), mode: str = "RGB", ending: str = "png"
) -> None:
    folder.mkdir(parents=True)
    draw = np.random.default_rng(crc32(str(folder).encode()))
    for i in range(count):
        shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
        Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(
            folder / f"{i:03}.{ending}"
        )


def arrays(n: int = 12, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randint(
        0, 256, (n, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    return images, torch.arange(n) % classes


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    for split, count in (("train", 5), ("test", 2)):
        for name in ("oak", "ash"):
            pictures(tmp_path / "leaves" / split / name, count)
    (tmp_path / "leaves" / "train" / "oak" / ".DS_Store").write_text("hidden files are skipped")
    mine = from_folder(tmp_path / "leaves")
    assert (mine.name, mine.classes) == ("leaves", ("ash", "oak"))
    train, test = mine.split("train"), mine.split("test")
    assert train.images.shape == (10, 3, 4, 6)
    assert (train.images.dtype, train.labels.dtype) == (torch.uint8, torch.int64)
    assert train.labels.tolist() == [0] * 5 + [1] * 5
    assert train.stand_in
    with Image.open(tmp_path / "leaves" / "test" / "ash" / "001.png") as picture:
        assert torch.equal(test.images[1], torch.from_numpy(np.array(picture)).permute(2, 0, 1))


def test_a_flat_folder_gives_a_fifth_of_each_class_to_the_test_set(tmp_path: Path) -> None:
    pictures(tmp_path / "flat" / "a", 10, mode="L")
    pictures(tmp_path / "flat" / "b", 20, mode="L")
    mine, again = from_folder(tmp_path / "flat"), from_folder(str(tmp_path / "flat"), name="other")
    assert mine.split("train").labels.bincount().tolist() == [8, 16]
    assert mine.split("test").labels.bincount().tolist() == [2, 4]
    assert mine.split("train").images.shape[1] == 1  # all pictures are grey
    assert mine.digest == again.digest  # whatever it is called
    everything = torch.cat([mine.train_images, mine.test_images]).flatten(1)
    assert len({row.numpy().tobytes() for row in everything}) == 30


def test_the_digest_is_of_content_labels_and_classes() -> None:
    (x, y), test = arrays(), arrays(6)
    mine = from_arrays(x, y, *test)
    assert len(mine.digest) == 64
    assert from_arrays(x.numpy(), y.tolist(), *test).digest == mine.digest
    changed = x.clone()
    changed[5, 1, 2, 3] ^= 1
    others = [
        from_arrays(changed, y, *test),
        from_arrays(x, y.flip(0), *test),
        from_arrays(x, y, test[0].flip(0), test[1]),
        from_arrays(x, y, *test, classes=["a", "b", "c"]),
    ]
    assert len({other.digest for other in others} | {mine.digest}) == 5
    x[0] = 0  # the arrays are copied
    assert mine.digest == from_arrays(mine.train_images, y, *test).digest


LABELS = [0, 1, 2] * 4
NAMES = ["ash", "elm", "oak"] * 4


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (NAMES, ("ash", "elm", "oak")),
        (pd.Series(NAMES, index=range(7, 19)), ("ash", "elm", "oak")),
        (pd.Categorical(NAMES), ("ash", "elm", "oak")),
        (pd.array(LABELS, dtype="Int64"), ("0", "1", "2")),
        ([torch.tensor(label) for label in LABELS], ("0", "1", "2")),
        (
            [10_000_000 + 10**9 * label for label in LABELS],
            ("10000000", "1010000000", "2010000000"),
        ),
    ],
)
def test_labels_may_be_names_ids_or_anything_that_holds_them(labels, classes) -> None:
    images, _ = arrays()
    mine = from_arrays(images, labels, images[:6], labels[:6])
    assert mine.classes == classes
    assert mine.train_labels.tolist() == LABELS
    assert mine.test_labels.tolist() == LABELS[:6]
    if classes[0] == "0":
        assert mine.digest == from_arrays(images, LABELS, images[:6], LABELS[:6]).digest


def test_names_point_into_given_classes() -> None:
    images, _ = arrays()
    given = ["oak", "ash", "elm"]
    mine = from_arrays(images, NAMES, images[:6], NAMES[:6], classes=given)
    assert mine.classes == ("oak", "ash", "elm")
    assert mine.train_labels.tolist() == [1, 2, 0] * 4
    assert from_arrays(images, LABELS, images, LABELS, classes=given).train_labels[2] == 2


@pytest.mark.parametrize(
    "form",
    [
        list,
        lambda x: [image.numpy() for image in x],
        lambda x: x.numpy()[:, :, ::-1].copy()[:, :, ::-1],  # negative strides
    ],
)
def test_images_may_be_lists_and_views(form) -> None:
    x, y = arrays()
    assert torch.equal(from_arrays(form(x), y, form(x), y).train_images, x)


def test_pictures_are_turned_as_their_orientation_says(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pictures(tmp_path / name, 2, (4, 6))
    upright = np.array(Image.open(tmp_path / "a" / "000.png"))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(np.rot90(upright).copy()).save(tmp_path / "a" / "000.png", exif=exif)
    mine = from_folder(tmp_path)
    whole = torch.cat([mine.train_images, mine.test_images])
    expected = torch.from_numpy(upright).permute(2, 0, 1)
    assert any(torch.equal(image, expected) for image in whole)


@pytest.mark.parametrize("layout", [("Train", "Test"), ("training", "validation")])
def test_common_names_of_the_two_folders_are_known(tmp_path: Path, layout: tuple[str, str]) -> None:
    for split, count in zip(layout, (3, 2), strict=True):
        for name in ("a", "b"):
            pictures(tmp_path / split / name, count)
            for left in ("Thumbs.db", "desktop.ini", ".DS_Store"):
                (tmp_path / split / name / left).write_text("left by a file manager")
    (tmp_path / "README.txt").write_text("files beside the folders do not count")
    mine = from_folder(tmp_path)
    assert (len(mine.train_images), len(mine.test_images)) == (6, 4)


def png_of_16_bits() -> bytes:
    """A picture of 6 x 4 pixels with 16 bits a channel in RGB, which Pillow cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        length, check = struct.pack(">I", len(content)), struct.pack(">I", crc32(kind + content))
        return length + kind + content + check

    head = struct.pack(">IIBBBBB", 6, 4, 16, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(36)) * 4)
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_it_is_pickled_whole_and_divides_like_other_sets() -> None:
    mine = from_arrays(*arrays(60), *arrays(6), name="mine")
    for again in (pickle.loads(pickle.dumps(mine)), cloudpickle.loads(cloudpickle.dumps(mine))):
        assert isinstance(again, OwnImages)
        assert again.digest == mine.digest
        assert torch.equal(again.split("train").images, mine.train_images)
    fit, validation = datasets.holdout(mine.split("train"), 0.2, seed=0)
    assert (len(fit), len(validation)) == (48, 12)
    assert mine.split("train/long-tail").labels.bincount().tolist() == [20, 6, 2]
    with pytest.raises(DataError, match="mine has no split 'validation', but train, test"):
        mine.split("validation")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"train_images": torch.rand(12, 3, 4, 4)},
            r"train_images are float32 \[12, 3, 4, 4\]: expected uint8",
        ),
        ({"train_images": torch.zeros(12, 4, 4, 3, dtype=torch.uint8)}, r"channels last: permute"),
        ({"test_images": torch.zeros(6, 3, 5, 4, dtype=torch.uint8)}, "they must be alike"),
        ({"train_labels": [0] * 12}, "two or more are needed"),
        (
            {"train_labels": [-1, *range(11)]},
            r"train_labels hold -1 \(int64\): expected whole numbers, 0 or more",
        ),
        ({"train_labels": pd.Series(["a", np.nan] * 6)}, "train_labels hold nan"),
        (
            {"train_images": [torch.zeros(3, 4, n, dtype=torch.uint8) for n in (4, 5)]},
            r"train_images have 2 shapes \[\(3, 4, 4\), \(3, 4, 5\)\]: all must have one",
        ),
        ({"train_labels": torch.arange(11) % 3}, "there are 12 training images and 11 labels"),
        ({"test_labels": [0] * 6}, "class '1' has no test image"),
        ({"test_labels": [3, 2, 1, 0, 1, 2]}, "test label 3 is none of the 3 classes"),
        ({"classes": ["a", "b"]}, "training label 2 is none of the 2 classes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(change: dict, words: str) -> None:
    names = "train_images", "train_labels", "test_images", "test_labels"
    given = dict(zip(names, (*arrays(), *arrays(6)), strict=True))
    with pytest.raises(DataError, match=words) as caught:
        from_arrays(**{**given, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("size", r"b/000\.jpg is 8 x 8 pixels, .*a/000\.png is 6 x 4: all must have one size"),
        ("text", r"b/notes\.txt is no readable picture .*: replace or remove it"),
        ("cut", r"b/000\.png is no readable picture"),
        ("deep", r"b/000\.png is no readable picture .*more than 8 bits"),
        ("folder", r"b/more is a folder where a picture is expected: give train/<class>/\*"),
        ("one", r"flat/b has 1 pictures: each class needs 2 or more"),
        ("one class", r"flat has 1 folders of classes: two or more are needed"),
        ("nothing", r"flat is no folder"),
        ("Test", r"class 'c' is not in both train and Test"),
        ("val too", r"flat holds test, train, val: expected train and one of test or val, no more"),
    ],
)
def test_folders_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, damage: str, words: str
) -> None:
    flat = tmp_path / "flat"
    layouts = {
        "Test": "train/a train/b Test/a Test/b Test/c",
        "val too": "train/a train/b test/a test/b val/a",
    }
    if damage in layouts:
        for folder in layouts[damage].split():
            pictures(flat / folder, 2)
    elif damage != "nothing":
        pictures(flat / "a", 5)
    second = flat / "b"
    if damage == "size":
        pictures(second, 2, (8, 8), ending="jpg")
    elif damage in ("text", "cut", "deep", "one", "folder"):
        pictures(second, 1 if damage == "one" else 2)
        if damage == "text":
            (second / "notes.txt").write_text("no picture")
        elif damage == "cut":
            (second / "000.png").write_bytes((second / "000.png").read_bytes()[:60])
        elif damage == "folder":
            (second / "more").mkdir()
        elif damage == "deep":
            (second / "000.png").write_bytes(png_of_16_bits())
    with pytest.raises(DataError, match=words) as caught:
        from_folder(flat)
    assert "\n" not in str(caught.value)
