"""A data set of one's own behaves like the others, and what cannot be one is refused in one line."""

import pickle
from pathlib import Path
from zlib import crc32

import cloudpickle
import numpy as np
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
        (
            {"train_images": torch.zeros(0, 3, 4, 4, dtype=torch.uint8)},
            r"train_images are uint8 \[0, 3, 4, 4\]",
        ),
        ({"train_labels": torch.rand(12)}, "train_labels are float32"),
        ({"train_labels": [0] * 12}, "two or more are needed"),
        ({"train_labels": [-1, *range(11)]}, "training labels go from -1 to 10"),
        ({"train_labels": torch.arange(11) % 3}, "there are 12 training images and 11 labels"),
        ({"test_labels": [0] * 6}, "class '1' has no test image"),
        (
            {"test_labels": [3, 2, 1, 0, 1, 2]},
            "test labels go from 0 to 3, but there are 3 classes",
        ),
        ({"classes": ["a", "b", "c", "d"]}, "class 'd' has no training image"),
        ({"classes": ["a", "a", "c"]}, "2 distinct classes among 3"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(change: dict, words: str) -> None:
    given = dict(
        zip(
            ("train_images", "train_labels", "test_images", "test_labels"),
            (*arrays(), *arrays(6)),
            strict=True,
        )
    )
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
        ("eps", r"b/000\.eps is no readable picture"),
        ("empty", r"flat/b is empty: each class needs pictures"),
        ("one", r"class 1 of flat \(all\) has one sample only"),
        ("one class", r"flat has 1 folders of classes: two or more are needed"),
        ("nothing", r"flat is no folder"),
        ("test", r"class 'c' is not in both train and test"),
    ],
)
def test_folders_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, damage: str, words: str
) -> None:
    flat = tmp_path / "flat"
    if damage == "test":
        for folder in ("train/a", "train/b", "test/a", "test/b", "test/c"):
            pictures(flat / folder, 2)
    elif damage != "nothing":
        pictures(flat / "a", 5)
    second = flat / "b"
    if damage == "size":
        pictures(second, 2, (8, 8), ending="jpg")
    elif damage in ("text", "cut", "deep", "eps", "one"):
        pictures(second, 1)
        if damage == "text":
            (second / "notes.txt").write_text("no picture")
        elif damage == "cut":
            (second / "000.png").write_bytes((second / "000.png").read_bytes()[:60])
        elif damage == "deep":
            Image.fromarray(np.zeros((4, 6), dtype=np.uint16)).save(second / "000.png")
        elif damage == "eps":
            (second / "000.eps").write_text(
                "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EndComments\n"
            )
    elif damage == "empty":
        second.mkdir()
    with pytest.raises(DataError, match=words) as caught:
        from_folder(flat)
    assert "\n" not in str(caught.value)
