"""Data is what it claims to be, whatever happened to the disk; nothing here uses a network."""

import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import build_images
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR100

from curlnb.data import catalogue, contents, datasets, graphs, sentences, verified
from curlnb.data.contents import records_digest
from curlnb.data.datasets import DataError

# SHA-1 of data_batch_1.bin ... data_batch_5.bin and test_batch.bin in the original cifar-10-binary
# archive, as MXNet's loader lists them: 10,000 records each of a label byte and 3,072 pixels,
# channel by channel. Images and labels in canonical order rebuild them bit for bit.
CIFAR10_BINARY = (
    "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "67eb016db431130d61cd03c7ad570b013799c88c",
)

CHECKOUT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CURLNB_DRY", "CURLNB_HOME", "CURLNB_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


# --- the committed sets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split", "classes", "each", "shape"),
    [
        ("cifar10-mini", "train", 10, 1000, (3, 32, 32)),
        ("cifar10-mini", "test", 10, 200, (3, 32, 32)),
        ("quickdraw-mini", "train", 100, 70, (1, 28, 28)),
        ("quickdraw-mini", "test", 100, 30, (1, 28, 28)),
    ],
)
def test_committed_sets_are_complete(
    name: str, split: str, classes: int, each: int, shape: tuple[int, ...]
) -> None:
    data = datasets.load(name, split)
    assert data.images.shape == (classes * each, *shape)
    assert data.images.dtype == torch.uint8
    assert data.labels.dtype == torch.int64
    assert data.labels.bincount().tolist() == [each] * classes
    assert len(data.classes) == len(set(data.classes)) == classes
    # any prefix is balanced, as users take `images[:n]`
    assert data.labels[:classes].unique().numel() == classes
    assert datasets.available(name) == "embedded"
    assert data.stand_in == (name == "quickdraw-mini")  # no paper uses it


def test_committed_train_and_test_images_are_distinct() -> None:
    # A test image that is also a training image would flatter every probe. (CIFAR-10's known
    # near-duplicates are not equal in every pixel.)
    for name in ("cifar10-mini", "quickdraw-mini"):
        splits = (datasets.load(name, split).images for split in ("train", "test"))
        train, test = ({image.numpy().tobytes() for image in images} for images in splits)
        assert not train & test


def test_committed_data_stays_small() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "data"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    files = [CHECKOUT / line for line in listed.stdout.splitlines()]
    assert sum(path.stat().st_size for path in files) < 40e6


def test_every_row_has_a_digest_of_each_part_or_none() -> None:
    rows = json.loads((CHECKOUT / "data" / "catalogue.json").read_text())
    unknown = [name for name, row in rows.items() if "sha256" not in row]
    assert unknown == [
        *("stl10", "imagenet100", "wiki3029", "imdb-unlabeled", "bookcorpus", "glove.840B.300d"),
    ]
    readme = (CHECKOUT / "data" / "README.md").read_text()
    for name, row in rows.items():
        entry = catalogue.find(name)
        assert set(row.get("sha256", entry.parts)) == set(entry.parts)
        assert entry.committed or entry.archives or entry.files or entry.mirror
        assert f"`{name}`" in readme
    assert sorted(verified.READERS) == sorted(
        name for name in rows if catalogue.find(name).archives or catalogue.find(name).files
    )


def test_superclasses_are_the_official_ones() -> None:
    # Krizhevsky's page lists five classes a superclass; torchvision has no table of them.
    of = {}
    classes = catalogue.find("cifar100").classes
    names = datasets.SUPERCLASSES.split()
    for name, coarse in zip(classes, datasets.coarse_labels(torch.arange(100)), strict=True):
        of.setdefault(names[int(coarse)], set()).add(name)
    assert {len(own) for own in of.values()} == {5}
    assert len(of) == 20
    assert of["fish"] == {"aquarium_fish", "flatfish", "ray", "shark", "trout"}
    assert of["people"] == {"baby", "boy", "girl", "man", "woman"}
    assert of["vehicles_2"] == {"lawn_mower", "rocket", "streetcar", "tank", "tractor"}
    assert CIFAR100.url.replace("python", "binary") == catalogue.find("cifar100").archives[0][0]


def test_a_long_tail_falls_geometrically_and_is_part_of_the_training_split() -> None:
    splits = "train", "train/long-tail"
    whole, tail = (datasets.load("cifar10-mini", split) for split in splits)
    sizes = tail.labels.bincount()
    assert tail.split == "train/long-tail"
    assert sizes.tolist() == [round(1000 * 10 ** (-c / 9)) for c in range(10)]
    for label in range(10):  # the first images of each class, in their order
        assert torch.equal(
            tail.images[tail.labels == label], whole.images[whole.labels == label][: sizes[label]]
        )
    assert datasets.long_tail(whole, 100.0).labels.bincount()[-1] == 10


def test_a_long_tail_needs_labels_and_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"ratio is 1\.0, but must be above 1"):
        datasets.long_tail(datasets.load("cifar10-mini", "test"), 1.0)
    monkeypatch.setenv("CURLNB_DRY", "1")
    assert datasets.load("cifar10-mini", "train/long-tail").labels.bincount().min() >= 2
    with pytest.raises(DataError, match=r"stl10 \(train\+unlabeled\) has no long tail"):
        datasets.long_tail(datasets.load("stl10", "train+unlabeled"))


# --- the full sets, where somebody fetched them ---------------------------------------------------


def test_full_cifar10_is_the_original_bit_for_bit() -> None:
    if datasets.available("cifar10") == "absent":
        pytest.skip("full CIFAR-10 is not in the cache")
    data = {split: datasets.load("cifar10", split) for split in ("train", "test")}
    images = [*data["train"].images.split(10000), data["test"].images]
    labels = [*data["train"].labels.split(10000), data["test"].labels]
    found = (records_digest(x, y, "sha1") for x, y in zip(images, labels, strict=True))
    assert tuple(found) == CIFAR10_BINARY
    for split, n in (("train", 1000), ("test", 200)):  # and the committed subset is what it says
        mini = datasets.load("cifar10-mini", split)
        for label in range(10):
            assert torch.equal(
                mini.images[mini.labels == label],
                data[split].images[data[split].labels == label][:n],
            )


# --- names, splits, dry runs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("cifar-10", "train", "did you mean 'cifar10'"),
        ("cifar10-mini", "validation", "holdout"),
        ("stl10", "train+test", "train, test, unlabeled, train+unlabeled"),
    ],
)
def test_unknown_names_and_splits_say_what_there_is(name: str, split: str, words: str) -> None:
    with pytest.raises(DataError, match=words.replace("+", r"\+")) as caught:
        datasets.load(name, split)
    assert "\n" not in str(caught.value)


def test_dry_runs_have_every_sets_shapes_without_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    real = {name: datasets.digest(name) for name in catalogue.names("images")}
    monkeypatch.setenv("CURLNB_DRY", "1")
    for name in catalogue.names("images"):
        data = datasets.load(name, "train")
        assert data.stand_in
        assert data.images.shape[1:] == catalogue.find(name).shape
        assert data.labels.bincount(minlength=len(data.classes)).min() >= 2
        # so that no stored dry run is taken for a real one
        assert datasets.digest(name) != real[name]
        datasets.holdout(data, 0.1, seed=0)
    half = datasets.load("stl10", "train+unlabeled").labels
    assert 0 < (half == -1).sum() < len(half)


def test_synthetic_data_is_the_same_every_time_and_differs_between_splits() -> None:
    splits = "train", "train", "test"
    one, two, test = (datasets.synthetic("cifar10", split, 20) for split in splits)
    assert torch.equal(one.images, two.images)
    assert not torch.equal(one.images, test.images)
    assert len(one) == 20


def test_digests_are_those_that_stored_runs_have_in_their_keys() -> None:
    # One that changes makes every stored run on that set unknown: the reference runs, and those of
    # all users.
    of = {
        "images": datasets.digest,
        "texts": datasets.text_digest,
        "sentences": sentences.digest,
        "graphs": graphs.digest,
    }
    expected = json.loads((Path(__file__).parent / "set_digests.json").read_text())
    assert {key: of[key.partition("/")[0]](key.partition("/")[2]) for key in expected} == expected
    images = [digest for key, digest in expected.items() if key.startswith("images/")]
    assert len(set(images)) == len(images)
    assert {key.partition("/")[2] for key in expected} == set(catalogue.names())


def test_content_digest_is_of_label_and_pixels_in_order() -> None:
    pixels = torch.arange(12, dtype=torch.uint8).reshape(2, 3, 1, 2)
    # unlabelled is none of the classes
    records = bytes([7, *range(6)]) + bytes([255, *range(6, 12)])
    assert records_digest(pixels, torch.tensor([7, -1])) == hashlib.sha256(records).hexdigest()


# --- holding out ----------------------------------------------------------------------------------


def test_holdout_divides_every_class_alike() -> None:
    data = datasets.load("quickdraw-mini", "train")
    fit, validation = datasets.holdout(data, 0.2, seed=0)
    assert validation.labels.bincount().tolist() == [14] * 100
    assert fit.labels.bincount().tolist() == [56] * 100
    together = torch.cat([fit.images, validation.images]).flatten(1)
    assert torch.equal(together.sum(0), data.images.flatten(1).sum(0))
    assert not {x.numpy().tobytes() for x in fit.images} & {
        x.numpy().tobytes() for x in validation.images
    }
    assert (fit.split, validation.split) == ("train/fit", "train/validation")
    torch.manual_seed(1)  # which does not count
    assert torch.equal(validation.images, datasets.holdout(data, 0.2, seed=0)[1].images)
    assert not torch.equal(validation.images, datasets.holdout(data, 0.2, seed=6)[1].images)


def test_holdout_refuses_fractions_that_leave_nothing() -> None:
    small = datasets.synthetic("cifar10", "train", 20)
    for fraction in (0.0, 1.0):
        with pytest.raises(DataError, match="between 0 and 1"):
            datasets.holdout(small, fraction, seed=0)
    # never all of a class
    assert [len(part) for part in datasets.holdout(small, 0.999, seed=0)] == [10, 10]
    with pytest.raises(DataError, match=r"class 1 of cifar10 \(train\) has one sample only"):
        datasets.holdout(datasets.synthetic("cifar10", "train", 11), 0.5, seed=0)


# --- pictures of tiles ----------------------------------------------------------------------------


def test_mosaic_round_trip() -> None:
    shape = 3, 4, 6
    tiles = torch.randint(
        0, 256, (24, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    picture = build_images.to_mosaic(tiles, classes=4, columns=3)
    again, labels = contents.from_mosaic(picture, shape, classes=4)
    assert torch.equal(again, tiles)
    assert labels.tolist() == [0, 1, 2, 3] * 6


# --- what `read` returns is what the digest names -------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part", "turn"),
    [
        ("quickdraw-mini", "test", lambda x: x | {"labels": x["labels"].flip(0)}),
        ("quickdraw-mini", "test", lambda x: x | {"images": x["images"].flip(3)}),
        ("MR", "train", lambda text: text.replace("\t0\n", "\t2\n").replace("\t1\n", "\t0\n")),
        ("MUTAG", "all", lambda raw: raw._replace(labels=1 - raw.labels)),
        ("glove.6B.50d-mini", "all", lambda x: x | {"vectors": -x["vectors"]}),
    ],
)
def test_a_reader_that_turns_something_round_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, part: str, turn
) -> None:
    # Readers are no part of a run's key, so what they return has to be what the key names.
    entry = catalogue.find(name)
    kind = contents.KINDS[entry.modality]
    other = replace(kind, read=lambda entry, path: turn(kind.read(entry, path)))
    monkeypatch.setitem(contents.KINDS, entry.modality, other)
    with pytest.raises(DataError, match="its SHA-256 is not the recorded one"):
        verified.read(entry, part)


# --- damage to committed files --------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["one bit", "missing", "another picture"])
def test_damaged_committed_data_says_how_to_restore_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    path = tmp_path / "data" / "quickdraw-mini" / "test.webp"
    path.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / "data" / "catalogue.json", tmp_path / "data")
    content = bytearray((CHECKOUT / "data" / "quickdraw-mini" / "test.webp").read_bytes())
    path.write_bytes(content)
    assert len(datasets.load("quickdraw-mini", "test")) == 3000
    if damage == "one bit":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif damage == "missing":
        path.unlink()
        assert datasets.available("quickdraw-mini") == "absent"
    else:
        Image.new("RGB", (840, 2801)).save(path, lossless=True)
    with pytest.raises(
        DataError, match=r"git checkout -- data/quickdraw-mini/test\.webp"
    ) as caught:
        datasets.load("quickdraw-mini", "test")
    assert "\n" not in str(caught.value)


def test_a_home_without_data_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    with pytest.raises(DataError, match="set CURLNB_HOME to a checkout"):
        datasets.names()
