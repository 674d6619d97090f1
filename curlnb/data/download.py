"""Downloads that resume and are checked before they are used, and files read out of archives.

CURLNB_DATA   where fetched data lies; default: data/cache/ in the checkout, without one in the
              working directory
"""

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tqdm import tqdm

from curlnb.runs import environment

TIMEOUT = 10.0  # seconds to wait for a connection, and for each further piece


class DataError(ValueError):
    """What is wrong with the data and what to do about it, in one line."""


def cache_folder() -> Path:
    """The folder of fetched data."""
    return Path(os.environ.get("CURLNB_DATA") or environment.home() / "data" / "cache")


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file; the empty string if there is no such file."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, target: Path, sha256: str) -> Path:
    """Fetch `url` to `target`, which appears only when it is complete and has the digest `sha256`.

    An interrupted download leaves `target`.part, and the next call resumes it. Returns `target`.
    Raises DataError if the network fails or the content is not the expected one.
    """
    if sha256_of(target) == sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    # A part that an earlier call left may be damaged; then it is fetched again from the beginning.
    for _ in range(2 if part.exists() else 1):
        _transfer(url, part)
        if sha256_of(part) == sha256:
            return part.replace(target)
        part.unlink()
    raise DataError(f"{url} sent something whose SHA-256 is not {sha256}: nothing was kept")


def _transfer(url: str, part: Path) -> None:
    """Append what is missing of `url` to `part`; reconnect while each connection brings more."""
    while True:
        have = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                start = have if reply.status == 206 else 0  # some servers send everything again
                total = start + int(reply.headers.get("Content-Length", 0))
                with (
                    open(part, "ab" if start else "wb") as file,
                    tqdm.wrapattr(
                        file, "write", total, desc=part.stem, initial=start, disable=None
                    ) as counted,
                ):
                    shutil.copyfileobj(reply, counted)
            if part.stat().st_size >= total:
                return
            raise ConnectionError("the connection broke off")
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", 0) == 416:  # everything is here; the digest decides
                return
            if not part.exists() or part.stat().st_size <= have:
                resume = "; run the same command again to resume" if have else ""
                raise DataError(f"{url} could not be downloaded ({error}){resume}") from None


def members(place: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """The files of a tar or zip archive, or of a folder, whose paths are `wanted`, with content.

    Nothing is written to disk. The errors of tarfile and zipfile if the archive is damaged.
    """
    if place.is_dir():
        for path in place.rglob("*"):
            name = path.relative_to(place).as_posix()
            if wanted(name) and path.is_file():
                yield name, path.read_bytes()
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as zipped:
            for name in filter(wanted, zipped.namelist()):
                yield name, zipped.read(name)
    else:
        with tarfile.open(place) as tar:
            for member in tar:
                if wanted(member.name) and (file := tar.extractfile(member)):
                    yield member.name, file.read()


def named_members(place: Path, names: Collection[str]) -> dict[str, bytes]:
    """The files `names` of an archive, or of a folder with the same layout, by their paths.

    DataError if one is missing.
    """
    found = dict(members(place, set(names).__contains__))
    if missing := sorted({*names} - found.keys()):
        raise DataError(f"{place} lacks {missing[0]}: take the original files, in their own layout")
    return found
