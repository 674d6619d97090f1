"""Data is what it claims to be, whatever happened to the disk; nothing here uses a network."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from formulas import refused
from PIL import Image
from torchvision.datasets import CIFAR100

from curlnb.data import catalogue, contents, datasets, graphs, sentences, verified
from curlnb.data.contents import records_digest
from curlnb.data.datasets import DataError

CHECKOUT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("plain_environment")


# --- the committed sets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "each", "shape"),
    [
        ("cifar10-mini", 10, {"train": 1000, "test": 200}, (3, 32, 32)),
        ("quickdraw-mini", 100, {"train": 70, "test": 30}, (1, 28, 28)),
    ],
)
def test_committed_sets_are_complete_and_their_splits_distinct(name, classes, each, shape):
    seen = set()
    for split, n in each.items():
        data = datasets.load(name, split)
        assert data.images.shape == (classes * n, *shape)
        assert data.images.dtype == torch.uint8
        assert data.labels.bincount().tolist() == [n] * classes
        assert len(data.classes) == len(set(data.classes)) == classes
        # any prefix is balanced, as users take `images[:n]`
        assert data.labels[:classes].unique().numel() == classes
        assert data.stand_in == (name == "quickdraw-mini")  # no paper uses it
        # A test image that is also a training image would flatter every probe. (CIFAR-10's known
        # near-duplicates are not equal in every pixel.)
        own = {image.numpy().tobytes() for image in data.images}
        assert not own & seen
        seen |= own
    assert datasets.available(name) == "embedded"


def test_every_committed_part_is_what_its_row_says():
    for name in (*catalogue.names(), *catalogue.names("vectors")):
        entry = catalogue.find(name)
        for part in entry.parts if entry.committed else []:
            content = verified.read(entry, part)  # which has its digest
            size, known = contents.KINDS[entry.modality].size(entry, part, content)
            assert size == known
            if entry.modality == "texts":
                lines = content.splitlines()
                assert len(lines) == entry.splits[part] + entry.articles[part]
                assert all(lines)


def test_committed_data_stays_small():
    listed = subprocess.run(
        ["git", "ls-files", "data"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    files = [CHECKOUT / line for line in listed.stdout.splitlines()]
    assert sum(path.stat().st_size for path in files if path.exists()) < 40e6


def test_every_row_has_a_digest_of_each_part_or_none_and_a_source():
    readme = (CHECKOUT / "data" / "README.md").read_text()
    every = (*catalogue.names(), *catalogue.names("vectors"))
    for name in every:
        entry = catalogue.find(name)
        assert set(entry.sha256) in (set(entry.parts), set())
        assert entry.committed or entry.archive or entry.files or entry.mirror
        assert bool(entry.reader) == bool(entry.archive or entry.files)
        assert f"`{name}`" in readme
    assert [name for name in every if not catalogue.find(name).sha256] == [
        *("stl10", "imagenet100", "wiki3029", "imdb-unlabeled", "bookcorpus", "glove.840B.300d"),
    ]


def test_superclasses_are_the_official_ones():
    # Krizhevsky's page lists five classes a superclass; torchvision has no table of them.
    of = {}
    classes = catalogue.find("cifar100").classes
    for name, coarse in zip(classes, datasets.coarse_labels(torch.arange(100)), strict=True):
        of.setdefault(int(coarse), set()).add(name)
    assert sorted(of) == list(range(20))
    assert {len(own) for own in of.values()} == {5}
    assert of[1] == {"aquarium_fish", "flatfish", "ray", "shark", "trout"}
    assert of[14] == {"baby", "boy", "girl", "man", "woman"}
    assert of[19] == {"lawn_mower", "rocket", "streetcar", "tank", "tractor"}
    assert CIFAR100.url.replace("python", "binary") == catalogue.find("cifar100").archive


def test_a_long_tail_falls_geometrically_and_is_part_of_the_training_split():
    whole, tail = (datasets.load("quickdraw-mini", s) for s in ("train", "train/long-tail"))
    sizes = tail.labels.bincount()
    assert tail.split == "train/long-tail"
    assert sizes.tolist() == [max(2, round(70 * 10 ** (-c / 99))) for c in range(100)]
    for label in (0, 50, 99):  # the first images of each class, in their order
        first = whole.images[whole.labels == label][: sizes[label]]
        assert torch.equal(tail.images[tail.labels == label], first)
    assert datasets.long_tail(whole, 35.0).labels.bincount()[-1] == 2


def test_a_long_tail_needs_labels_and_a_ratio(monkeypatch):
    with refused(r"ratio is 1\.0, but must be above 1", DataError):
        datasets.long_tail(datasets.synthetic("cifar10", "train"), 1.0)
    monkeypatch.setenv("CURLNB_DRY", "1")
    assert datasets.load("cifar10-mini", "train/long-tail").labels.bincount().min() >= 2
    with refused(r"stl10 \(train\+unlabeled\) has no long tail", DataError):
        datasets.long_tail(datasets.load("stl10", "train+unlabeled"))


# --- names, splits, dry runs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("cifar-10", "train", "unknown set of images 'cifar-10': there are"),
        ("cifar10-mini", "validation", "holdout"),
        ("stl10", "train+test", "train, test, unlabeled, train+unlabeled"),
    ],
)
def test_unknown_names_and_splits_say_what_there_is(name, split, words):
    with refused(words.replace("+", r"\+"), DataError):
        datasets.load(name, split)


def test_dry_runs_have_every_sets_shapes_without_its_data(tmp_path, monkeypatch):
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


def test_synthetic_data_is_the_same_every_time_and_differs_between_splits():
    splits = "train", "train", "test"
    one, two, test = (datasets.synthetic("cifar10", split, 20) for split in splits)
    assert torch.equal(one.images, two.images)
    assert not torch.equal(one.images, test.images)
    assert len(one) == 20


def test_digests_are_those_that_stored_runs_have_in_their_keys():
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


def test_content_digest_is_of_label_and_pixels_in_order():
    pixels = torch.arange(12, dtype=torch.uint8).reshape(2, 3, 1, 2)
    # unlabelled is none of the classes
    records = bytes([7, *range(6)]) + bytes([255, *range(6, 12)])
    assert records_digest(pixels, torch.tensor([7, -1])) == hashlib.sha256(records).hexdigest()


# --- holding out ----------------------------------------------------------------------------------


def test_holdout_divides_every_class_alike():
    data = datasets.synthetic("cifar10", "train", 50)
    fit, validation = datasets.holdout(data, 0.2, seed=0)
    assert validation.labels.bincount().tolist() == [1] * 10
    assert fit.labels.bincount().tolist() == [4] * 10
    both = torch.cat([fit.images, validation.images])
    assert {x.numpy().tobytes() for x in both} == {x.numpy().tobytes() for x in data.images}
    assert (fit.split, validation.split) == ("train/fit", "train/validation")
    torch.manual_seed(1)  # which does not count
    assert torch.equal(validation.images, datasets.holdout(data, 0.2, seed=0)[1].images)
    assert not torch.equal(validation.images, datasets.holdout(data, 0.2, seed=6)[1].images)


def test_holdout_refuses_fractions_that_leave_nothing():
    small = datasets.synthetic("cifar10", "train", 20)
    for fraction in (0.0, 1.0):
        with refused("between 0 and 1", DataError):
            datasets.holdout(small, fraction, seed=0)
    # never all of a class
    assert [len(part) for part in datasets.holdout(small, 0.999, seed=0)] == [10, 10]
    with refused(r"class 1 of cifar10 \(train\) has one sample only", DataError):
        datasets.holdout(datasets.synthetic("cifar10", "train", 11), 0.5, seed=0)


# --- what `read` returns is what the digest names -------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part", "turn"),
    [
        ("quickdraw-mini", "test", lambda x: x | {"labels": x["labels"].flip(0)}),
        ("MR", "train", lambda text: text.replace("\t0\n", "\t2\n").replace("\t1\n", "\t0\n")),
        ("MUTAG", "all", lambda raw: raw._replace(labels=1 - raw.labels)),
    ],
)
def test_a_reader_that_turns_something_round_is_refused(monkeypatch, name, part, turn):
    # Readers are no part of a run's key, so what they return has to be what the key names.
    entry = catalogue.find(name)
    kind = contents.KINDS[entry.modality]
    other = kind._replace(read=lambda entry, path: turn(kind.read(entry, path)))
    monkeypatch.setitem(contents.KINDS, entry.modality, other)
    with refused("its SHA-256 is not the recorded one", DataError):
        verified.read(entry, part)


# --- damage to committed files --------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["one bit", "missing", "another picture", "other labels"])
def test_damaged_committed_data_says_how_to_restore_it(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    name = "graphs/MUTAG" if damage == "other labels" else "quickdraw-mini"
    shutil.copytree(CHECKOUT / "data" / name, tmp_path / "data" / name)
    shutil.copy(CHECKOUT / "data" / "catalogue.json", tmp_path / "data")
    path = tmp_path / "data" / "quickdraw-mini" / "test.webp"
    if damage == "one bit":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif damage == "missing":
        path.unlink()
        assert datasets.available("quickdraw-mini") == "absent"
    elif damage == "another picture":
        Image.new("RGB", (840, 2801)).save(path, lossless=True)
    else:
        labels = tmp_path / "data" / name / "MUTAG_graph_labels.txt"
        labels.write_text("".join(labels.read_text().splitlines(keepends=True)[::-1]))
    remedy = rf"restore it with `git checkout -- data/{name}"
    with refused(remedy, DataError):
        graphs.load("MUTAG") if damage == "other labels" else datasets.load(name, "test")


def test_a_home_without_data_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    with refused("set CURLNB_HOME to a checkout", DataError):
        datasets.names()
