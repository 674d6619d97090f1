"""Your own data set behaves like the others, and what cannot be one is refused in one line."""

from zlib import crc32

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch
from formulas import generator, refused
from PIL import Image

from curlnb.data import datasets
from curlnb.data.datasets import DataError, OwnImages, from_arrays, from_folder


def pictures(folder, count, size=(6, 4), mode="RGB"):
    folder.mkdir(parents=True)
    draw = np.random.default_rng(crc32(str(folder).encode()))
    for i in range(count):
        pixels = draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{i:03}.png")


def arrays(n=12, classes=3):
    images = torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8, generator=generator())
    return images, torch.arange(n) % classes


def test_a_folder_with_train_and_test(tmp_path):
    folder = tmp_path / "leaves"
    for split, count in (("train", 5), ("val", 2)):
        for name in ("oak", "ash"):
            pictures(folder / split / name, count)
            for left in ("Thumbs.db", "._1.png"):
                (folder / split / name / left).write_text("left by a file manager")
    (folder / "README.txt").write_text("files beside the folders do not count")
    mine = from_folder(folder)
    assert (mine.name, mine.classes) == ("leaves", ("ash", "oak"))
    train, test = mine.split("train"), mine.split("test")
    assert train.images.shape == (10, 3, 4, 6)
    assert (train.images.dtype, train.labels.dtype) == (torch.uint8, torch.int64)
    assert train.labels.tolist() == [0] * 5 + [1] * 5
    assert train.stand_in
    with Image.open(folder / "val" / "ash" / "001.png") as picture:
        assert torch.equal(test.images[1], torch.from_numpy(np.array(picture)).permute(2, 0, 1))


def test_a_flat_folder_gives_a_fifth_of_each_class_to_the_test_set(tmp_path):
    pictures(tmp_path / "flat" / "a", 10, mode="L")
    pictures(tmp_path / "flat" / "b", 20, mode="L")
    mine, again = from_folder(tmp_path / "flat"), from_folder(str(tmp_path / "flat"), name="other")
    assert mine.split("train").labels.bincount().tolist() == [8, 16]
    assert mine.split("test").labels.bincount().tolist() == [2, 4]
    assert mine.split("train").images.shape[1] == 1  # all pictures are grey
    assert mine.digest == again.digest  # whatever it is called
    everything = torch.cat([mine.train_images, mine.test_images]).flatten(1)
    assert len({row.numpy().tobytes() for row in everything}) == 30


def test_pictures_are_turned_as_their_orientation_says(tmp_path):
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


def test_the_digest_is_of_content_labels_and_classes():
    (x, y), test = arrays(), arrays(6)
    mine = from_arrays(x, y, *test)
    assert from_arrays(list(x.numpy()), y.tolist(), *test).digest == mine.digest
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
        (pd.Series(NAMES, index=range(7, 19)), ("ash", "elm", "oak")),
        (pd.Categorical(NAMES), ("ash", "elm", "oak")),
        (pd.array(LABELS, dtype="Int64"), ("0", "1", "2")),
        ([torch.tensor(label) for label in LABELS], ("0", "1", "2")),
        ([7 + 10**9 * label for label in LABELS], ("7", "1000000007", "2000000007")),
    ],
)
def test_labels_may_be_names_ids_or_anything_that_holds_them(labels, classes):
    images, _ = arrays()
    mine = from_arrays(images, labels, images[:6], labels[:6])
    assert mine.classes == classes
    assert mine.train_labels.tolist() == LABELS
    assert mine.test_labels.tolist() == LABELS[:6]


def test_names_and_numbers_point_into_given_classes():
    images, _ = arrays()
    mine = from_arrays(images, NAMES, images, LABELS, classes=["oak", "ash", "elm"])
    assert mine.classes == ("oak", "ash", "elm")
    assert mine.train_labels.tolist() == [1, 2, 0] * 4
    assert mine.test_labels.tolist() == LABELS


def test_it_is_pickled_whole_and_divides_like_other_sets():
    mine = from_arrays(*arrays(60), *arrays(6), name="mine")
    again = cloudpickle.loads(cloudpickle.dumps(mine))
    assert isinstance(again, OwnImages)
    assert again.digest == mine.digest
    fit, validation = datasets.holdout(mine.split("train"), 0.2, seed=0)
    assert (len(fit), len(validation)) == (48, 12)
    assert mine.split("train/long-tail").labels.bincount().tolist() == [20, 6, 2]
    with refused("mine has no split 'validation', but train, test", DataError):
        mine.split("validation")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"train_images": torch.rand(12, 3, 4, 4)},
            r"train_images are float32 \[12, 3, 4, 4\]: expected uint8",
        ),
        ({"train_images": torch.zeros(12, 4, 4, 3, dtype=torch.uint8)}, r"channels last: permute"),
        (
            {"test_images": torch.zeros(6, 3, 5, 4, dtype=torch.uint8)},
            r"test images are \[6, 3, 5, 4\], not \[6, 3, 4, 4\]: one a label",
        ),
        (
            {"train_labels": LABELS[:11]},
            r"training images are \[12, 3, 4, 4\], not \[11, 3, 4, 4\]",
        ),
        ({"train_labels": [0] * 12}, "two or more are needed"),
        ({"train_images": [np.zeros((3, 4, 4)), np.zeros((3, 4, 5))]}, "train_images are no array"),
        ({"test_images": []}, "test_images are no array .*need at least one"),
        ({"test_labels": [[0], [1, 2]]}, "test_labels are no array"),
        ({"train_labels": [-1, *range(11)]}, r"train_labels are \[-1, 0, 1\] \.\.\., int64 \[12\]"),
        ({"train_labels": pd.Series(["a", np.nan] * 6)}, r"are \['a', nan, 'a'\].*none missing"),
        ({"test_labels": [0] * 6}, "class '1' has no test image"),
        ({"test_labels": [3, 2, 1, 0, 1, 2]}, "test label 3 is none of the 3 classes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(change, words):
    names = "train_images", "train_labels", "test_images", "test_labels"
    given = dict(zip(names, (*arrays(), *arrays(6)), strict=True))
    with refused(words, DataError):
        from_arrays(**{**given, **change})


@pytest.mark.parametrize(
    ("folders", "damage", "words"),
    [
        ("Train/a Train/b Test/a Test/b", "", r"flat holds Test, Train: expected train and one of"),
        ("a b", "size", r"b/000\.png is 8 x 8 pixels, the first is 6 x 4: all must be alike"),
        ("a b", "cut", r"b/000\.png is no readable picture .*: replace or remove it"),
        ("a b", "deep", r"b/000\.png is no readable picture .*more than 8 bits"),
        ("a b", "one", r"class 1 of flat has one sample only"),
        ("a b", "bare", r"no valid file for the classes c\."),
        ("a", "", r"two or more are needed"),
        ("", "", r"No such file .*flat': give train/<class>/\* and test/<class>/\*, or"),
        ("train/a train/b test/a test/b test/c", "", r"test label 'c' is none of the 2 classes"),
        (
            "train/a train/b test/a test/b val/a",
            "",
            r"flat holds test, train, val: expected train and one of test or val",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused_in_one_line(tmp_path, folders, damage, words):
    for folder in folders.split():
        pictures(tmp_path / "flat" / folder, 2)
    first, second = (tmp_path / "flat" / "b" / f"00{number}.png" for number in (0, 1))
    if damage == "size":
        Image.new("RGB", (8, 8)).save(first)
    elif damage == "cut":
        first.write_bytes(first.read_bytes()[:60])
    elif damage == "deep":
        Image.fromarray(np.zeros((4, 6), dtype=np.uint16)).save(first)
    elif damage == "one":
        second.unlink()
    elif damage == "bare":
        (tmp_path / "flat" / "c").mkdir()
    with refused(words, DataError):
        from_folder(tmp_path / "flat")
