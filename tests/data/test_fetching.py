"""Downloads resume, nothing is parsed before its SHA-256 is right, and official files are read from
a folder; only servers on this machine are used.
"""

import hashlib
import http.server
import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import tar_of, unpacked
from formulas import generator, refused

from curlnb.__main__ import main
from curlnb.data import catalogue, contents, datasets, download, official_sets, verified
from curlnb.data.datasets import DataError
from curlnb.data.download import cache_folder

CHECKOUT = Path(__file__).resolve().parent.parent.parent


class Server(http.server.ThreadingHTTPServer):
    """Serves `content`: `cut` bytes a reply at most, resuming if `ranges`, or else `status`.

    requests: the Range headers seen.
    """

    content, cut, ranges, status = b"", None, True, 200

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/cifar-10-binary.tar.gz"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.requests.append(asked)
        start = int(asked[6:-1]) if asked and self.server.ranges else 0
        status = 416 if start >= len(self.server.content) else self.server.status
        if status != 200:
            self.send_error(status)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])  # and the connection closes

    def log_message(self, *_): ...


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        poll = {"poll_interval": 0.01}
        threading.Thread(target=server.serve_forever, kwargs=poll, daemon=True).start()
        server.content = np.random.default_rng(0).bytes(700_000)
        yield server
        server.shutdown()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


# --- downloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "left", "ranges", "requests"),
    [
        (300_000, 0, True, [None, "bytes=300000-", "bytes=600000-"]),  # the connection breaks off
        (None, 500_000, True, ["bytes=500000-"]),  # an earlier call was stopped
        (None, 700_000, True, ["bytes=700000-"]),  # and this one before the renaming
        (None, 500_000, False, ["bytes=500000-"]),  # the server sends everything again
        (None, -14_000, True, ["bytes=14000-", None]),  # what was left is damaged
    ],
)
def test_download_resumes(server, tmp_path, cut, left, ranges, requests):
    server.cut, server.ranges, content = cut, ranges, server.content
    if left:
        before = content[:left] if left > 0 else b"something else" * 1000
        (tmp_path / "file.part").write_bytes(before)
    for _ in range(2):  # what is here and right is not asked for again
        download.download(server.url, tmp_path / "file", sha256(content))
        assert server.requests == requests
    assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("url", "status", "words"),
    [
        (None, 404, "404"),
        ("http://127.0.0.1:9/file.tgz", 200, "refused"),
        (None, 200, "SHA-256 is not 0000"),
    ],
)
def test_download_says_what_went_wrong_and_keeps_nothing(server, tmp_path, url, status, words):
    server.status = status
    with refused(words, DataError):
        download.download(url or server.url, tmp_path / "file", "0" * 64)
    assert not list(tmp_path.iterdir())


def test_download_gives_up_when_nothing_more_comes(server, tmp_path):
    server.cut, server.ranges = 1000, False
    with refused("run the same command again to resume", DataError):
        download.download(server.url, tmp_path / "file", sha256(server.content))
    assert not (tmp_path / "file").exists()


# --- a small world: a checkout whose cifar10 has two images a batch -------------------------------


class World:
    def __init__(self, root, server):
        self.root, self.server, self.own = root, server, root / "own"
        self.images = torch.randint(
            0, 256, (12, 3, 32, 32), generator=generator(), dtype=torch.uint8
        )
        self.labels = torch.tensor([0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 9, 8])
        names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
        self.files = {
            f"cifar-10-batches-bin/{name}.bin": self.records(2 * i, 2 * i + 2)
            for i, name in enumerate(names)
        }
        server.content = tar_of(self.files)
        self.table = json.loads((CHECKOUT / "data" / "catalogue.json").read_text())
        for folder in ("data", "own"):
            (root / folder).mkdir()
        self.change(
            splits={"train": 10, "test": 2},
            sha256={"train": sha256(self.records(0, 10)), "test": sha256(self.records(10, 12))},
            archive=server.url,
            archive_sha256=sha256(server.content),
            mirror="",
        )

    def records(self, first, end):
        """CIFAR's binary version: for each image its label byte and its pixels."""
        labels = self.labels[first:end, None].to(torch.uint8)
        return torch.cat([labels, self.images[first:end].flatten(1)], 1).numpy().tobytes()

    def change(self, **row):
        self.table["cifar10"] |= row
        (self.root / "data" / "catalogue.json").write_text(json.dumps(self.table))
        catalogue._entries.cache_clear()

    def damage(self):
        """Turn a bit of a file in the cache round."""
        path = cache_folder() / "cifar10" / "train.safetensors"
        content = bytearray(path.read_bytes())
        content[-2000] ^= 1
        path.write_bytes(content)

    def cached(self):
        """What lies in the cache, locks aside."""
        return sorted(
            str(path.relative_to(cache_folder()))
            for path in cache_folder().rglob("*")
            if path.is_file() and path.suffix != ".lock"
        )

    def check(self):
        assert self.cached() == ["cifar10/test.safetensors", "cifar10/train.safetensors"]
        assert datasets.available("cifar10") == "cached"
        train, test = (datasets.load("cifar10", split) for split in ("train", "test"))
        assert torch.equal(torch.cat([train.images, test.images]), self.images)
        assert torch.equal(torch.cat([train.labels, test.labels]), self.labels)


@pytest.fixture
def world(tmp_path, monkeypatch, server):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    monkeypatch.delenv("CURLNB_DATA", raising=False)
    yield World(tmp_path, server)
    catalogue._entries.cache_clear()


def test_fetch_from_the_original_address(world, capsys):
    world.server.cut = 5000
    for _ in range(2):
        datasets.fetch("cifar10")
        world.check()
    assert capsys.readouterr().out.splitlines() == [
        f"cifar10: reading {world.server.url}",
        "cifar10: here, verified",
        "cifar10: already here, verified",
    ]


def test_two_processes_fetch_a_set_once(world):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(datasets.fetch, ["cifar10", "cifar10"]))
    world.check()
    assert len(world.server.requests) == 1


@pytest.mark.parametrize("source", ["address", "folder"])
def test_nothing_is_parsed_before_its_digest_is_right(world, monkeypatch, source):
    parsed = []
    monkeypatch.setattr(official_sets, "cifar10", lambda entry, place: parsed.append(place))
    world.change(archive_sha256="0" * 64)
    (world.own / "cifar-10-binary.tar.gz").write_bytes(world.server.content)
    with refused("SHA-256 is not 0000", DataError):
        datasets.fetch("cifar10", folder=world.own if source == "folder" else None)
    assert not parsed
    assert world.cached() == []


def test_content_that_differs_from_the_committed_digest_is_refused(world):
    world.change(sha256={"train": "0" * 64})
    with refused(r"another SHA-256 than 0000.*, the known one; not kept", DataError):
        datasets.fetch("cifar10")
    assert datasets.available("cifar10") == "absent"


@pytest.mark.parametrize("order", ["first", "last"])
def test_a_mirror_is_asked_where_the_catalogue_says_so(world, monkeypatch, capsys, order):
    # A mirror is a program of the checkout that gets the set's name and fills the cache.
    program = world.root / "mirrors.py"
    program.write_text("import sys\nsys.exit(f'no {sys.argv[1]} here')")
    monkeypatch.setattr(verified, "MIRRORS", program)
    world.change(mirror=order)
    world.server.status = 404
    with refused("cifar10: could not be had", DataError):
        datasets.fetch("cifar10")
    said = capsys.readouterr().out.splitlines()[1::2]
    assert said[order == "last"] == "cifar10: no cifar10 here"
    assert "404" in said[order == "first"]


def test_one_failure_does_not_stop_the_others(world, capsys):
    world.server.status = 404
    with refused("not here: cifar10; the lines above say why", DataError):
        datasets.prepare(["cifar10", "MPQA"])
    told = "MPQA: it cannot be fetched: get the original mpqa.neg, mpqa.pos yourself, then run"
    assert capsys.readouterr().out.splitlines()[-1].startswith(told)


def test_an_archive_without_a_published_digest_is_never_fetched(world):
    world.change(archive_sha256="")
    told = "no digest of its archive is published: download http://127.0.0.1"
    with refused(told, DataError):
        datasets.fetch("cifar10")
    with refused(f"cifar10 .train. is not on this machine: {told}", DataError):
        datasets.load("cifar10", "train")
    assert not world.server.requests
    (world.own / "cifar-10-binary.tar.gz").write_bytes(world.server.content)
    datasets.fetch("cifar10", folder=world.own)  # which the user has checked
    world.check()


def test_a_damaged_cache_file_is_fetched_again_never_used(world):
    datasets.fetch("cifar10")
    for damage in (
        world.damage,
        lambda: os.truncate(cache_folder() / "cifar10/test.safetensors", 99),
    ):
        damage()
        world.check()
    world.damage()
    world.server.status = 404
    with refused("could not be had", DataError):
        datasets.load("cifar10", "train")  # without a network it is an error, not data


def test_a_set_without_a_committed_digest_is_checked_against_the_one_noted(world):
    world.change(sha256={})
    datasets.fetch("cifar10")
    assert "cifar10/train.sha256" in world.cached()
    before = datasets.load("cifar10", "train").images.clone()  # the file is mapped into memory
    world.damage()
    assert torch.equal(datasets.load("cifar10", "train").images, before)
    assert len(world.server.requests) == 2


def test_a_write_that_fails_leaves_no_data_and_the_finished_archive(world):
    def full(_, path, *__):
        path.write_bytes(b"the beginning")
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(contents, "save_file", full)
        with refused("No space left", DataError):
            datasets.fetch("cifar10")
    assert world.cached() == [".cifar10.fetching/cifar-10-binary.tar.gz"]
    datasets.fetch("cifar10")  # what was transferred is not transferred again
    world.check()
    assert len(world.server.requests) == 1


# --- official files that the user has -------------------------------------------------------------


@pytest.mark.parametrize("form", ["archive", "unpacked"])
def test_official_files_are_read_from_a_folder(world, form, capsys, monkeypatch):
    monkeypatch.setattr("curlnb.__main__.check_environment", lambda: None)
    monkeypatch.setattr("curlnb.runs.environment.checkout", lambda what: None)
    (world.own / "notes.txt").touch()
    for place in (world.own, world.own / "notes.txt"):
        assert main(["data", "--from", str(place)]) == 2
        assert f"{place.name} holds no official files" in capsys.readouterr().err
    if form == "archive":
        (world.own / "cifar-10-binary.tar.gz").write_bytes(world.server.content)
    else:
        unpacked(world.own, world.files)
    assert main(["data", "--from", str(world.own)]) == 0
    world.check()
    assert not world.server.requests


def test_a_folder_that_lacks_files_and_a_damaged_archive_are_one_line(world):
    name = "cifar-10-batches-bin/test_batch.bin"
    unpacked(world.own, {name: world.files[name]})
    with refused(r"own lacks cifar-10-batches-bin/data_batch_1\.bin", DataError):
        datasets.fetch("cifar10", folder=world.own)
    world.change(archive_sha256="")
    for damaged in (world.server.content[:-3000], b"no archive"):
        (world.own / "cifar-10-binary.tar.gz").write_bytes(damaged)
        with refused("does not hold the original files of", DataError):
            datasets.fetch("cifar10", folder=world.own)


# --- nothing is unpickled -------------------------------------------------------------------------


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_no_pickle_in_the_cache_is_ever_opened(tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(verified, "_sources", lambda *_: [])
    payload = pickle.dumps(Payload(marker))
    for name in ("cifar10", "stl10", "imdb", "DD", "glove.6B.50d"):  # one of each kind
        entry = catalogue.find(name)
        for part in entry.parts:
            unpacked(tmp_path, {str(verified.file_of(entry, part)): payload})
            with pytest.raises(DataError):
                verified.read(entry, part)
    assert not marker.exists()
    pickle.loads(payload)
    assert marker.exists()  # the payload works
