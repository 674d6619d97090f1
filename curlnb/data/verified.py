"""`read`, the one way to a set's content, and `fetch`, which brings a set onto this machine.

Committed sets lie in `data/`, fetched ones in the cache. A part is read from its file, and what the
reader made of it must have the digest that the catalogue holds, whatever the reader and the format.
If the catalogue has no digest, since the content was never at hand, the digest of the first fetch
counts: a file beside the part's notes it. That finds damage, but it is no protection from somebody
who can write into the cache.

Code outside this module that reads, fetches, verifies or reports is no part of a run's key: a
result depends on what `read` returns, and that is identified by its digest.
"""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from curlnb.data import catalogue, official_sets
from curlnb.data.catalogue import Entry
from curlnb.data.contents import KINDS
from curlnb.data.download import DataError, cache_folder, download, sha256_of
from curlnb.runs import environment
from curlnb.runs.files import Damaged, printable, write_atomically

MIRRORS = environment.FOUND / "tools" / "data" / "mirrors.py"


def read(entry: Entry, part: str) -> Any:
    """The content of a part (see `contents`), verified against its digest.

    A damaged file in the cache is fetched again; otherwise no network is touched. DataError, which
    says what to do, if the part is absent or damaged.
    """
    try:
        return _open(entry, part)
    except Damaged as damage:
        what = f"{entry.name} ({part}) is damaged ({damage})"
        if entry.committed:
            raise DataError(f"{what}: {_remedy(entry, part)}") from None
        print(f"{what}, fetching it again")
    fetch(entry.name)
    return _open(entry, part)


def _open(entry: Entry, part: str) -> Any:
    """A part's content. DataError if it is absent, Damaged if it is not what it should be."""
    kind, path = KINDS[entry.modality], file_of(entry, part)
    if not path.exists():
        what = f"{entry.name} ({part}) is not on this machine"
        raise DataError(f"{what}: {_remedy(entry, part)}")
    try:
        content = kind.read(entry, path)
        digest = kind.digest(content)
    except Exception as error:  # whatever a reader makes of a damaged file
        raise Damaged(printable(error) or type(error).__name__) from None
    if digest != (_expected(entry, part) or digest):
        raise Damaged("its SHA-256 is not the recorded one")
    return content


def keep(entry: Entry, part: str, content: Any, origin: object = "these files") -> None:
    """Write a part's file, whole or not at all, if the content is what the catalogue says.

    origin: where it comes from, for messages.
    """
    kind, expected = KINDS[entry.modality], _expected(entry, part)
    came = f"{entry.name} ({part}) from {origin}"
    size, known = kind.size(entry, part, content)
    if size != known:
        raise DataError(f"{came} has size {size} instead of {known}; not kept")
    digest = kind.digest(content)
    if digest != (expected or digest):
        raise DataError(f"{came} has another SHA-256 than {expected}, the known one; not kept")

    def write(unfinished: Path) -> None:
        kind.write(content, unfinished)
        unfinished.chmod(0o644)  # safetensors makes it private, but a cache may be shared

    place = file_of(entry, part)
    write_atomically(place, write)
    if not expected:
        write_atomically(place.with_suffix(".sha256"), lambda path: path.write_text(digest))


def file_of(entry: Entry, part: str) -> Path:
    """Where a part lies, or would lie."""
    folder = environment.home() / "data" if entry.committed else cache_folder()
    return folder / KINDS[entry.modality].file(entry, part)


def _expected(entry: Entry, part: str) -> str:
    """The digest that a part must have, of the catalogue or a file beside it; "" if none is known
    yet.
    """
    note = file_of(entry, part).with_suffix(".sha256")
    return entry.sha256.get(part) or (note.read_text() if note.exists() else "")


def available(name: str) -> str:
    """Where a set is: "embedded" (committed), "cached" (fetched) or "absent"; reads no file."""
    entry = catalogue.find(name)
    if not all(file_of(entry, part).exists() for part in entry.parts) or (
        entry.vectors and available(entry.vectors) == "absent"
    ):
        return "absent"
    return "embedded" if entry.committed else "cached"


def _remedy(entry: Entry, part: str) -> str:
    """How a set that is absent can be had."""
    if entry.committed:
        path = file_of(entry, part).relative_to(environment.home())
        return f"restore it with `git checkout -- {path}`"
    if not _sources(entry, None):
        return _by_hand(entry)
    return (
        f"fetch it ({entry.megabytes:,} MB) with curlnb.data.datasets.fetch({entry.name!r}), or "
        "all with `make data`"
    )


def _by_hand(entry: Entry) -> str:
    """How the user gets a set that no program fetches."""
    if entry.archive:
        what = f"no digest of its archive is published: download {entry.archive} yourself"
    else:
        what = f"it cannot be fetched: get the original {', '.join(entry.files)} yourself"
    return f"{what}, then run `make data FROM=its-folder`"


# --- fetching


def fetch(name: str, folder: Path | None = None) -> None:
    """Bring a set, and the word vectors of a text set, onto this machine, verified.

    What is here is verified, what is absent or damaged is fetched: from `folder`, which holds
    official files in their official layout, or else from the original address or a mirror. Partial
    downloads stay in the cache and are resumed; data appears only complete and verified. Of two
    processes one fetches and the other waits. DataError if no source delivers the set.
    """
    entry = catalogue.find(name)
    if entry.committed:
        for part in entry.parts:
            read(entry, part)
        print(f"{name}: part of the repository, verified")
    else:
        with FileLock(cache_folder() / f".{name}.lock"):
            _fetch(entry, folder)
    if entry.vectors:
        fetch(entry.vectors)


def _fetch(entry: Entry, folder: Path | None) -> None:
    with contextlib.suppress(DataError, Damaged):
        for part in entry.parts:
            _open(entry, part)
        print(f"{entry.name}: already here, verified")
        return
    failures = []
    for words, source in _sources(entry, folder):
        print(f"{entry.name}: reading {words}")
        try:
            source()
            print(f"{entry.name}: here, verified")
            return
        except (DataError, OSError) as error:
            failures.append(printable(error))
            print(f"{entry.name}: {failures[-1]}")
    what = f"could not be had ({'; '.join(failures)})" if failures else _by_hand(entry)
    raise DataError(f"{entry.name}: {what}")


def _sources(entry: Entry, folder: Path | None) -> Sequence[tuple[object, Callable[[], None]]]:
    """Where to look, in order: words to show, and what puts all parts into the cache."""
    if folder is not None:
        place = official_place(entry, folder)
        if place is None:
            raise DataError(f"{folder} does not hold {entry.name}: see the table in data/README.md")
        return [(place, partial(_keep_official, entry, place))]
    archives = [(entry.archive, partial(_keep_archive, entry))] if entry.archive_sha256 else []
    mirrors = [("its mirror", partial(_keep_mirror, entry))] if entry.mirror else []
    return mirrors + archives if entry.mirror == "first" else archives + mirrors


def official_place(entry: Entry, folder: Path) -> Path | None:
    """The set's archive in `folder`, or `folder` itself if it holds the set's files."""
    archive = folder / Path(entry.archive).name
    if entry.archive and archive.is_file():
        return archive
    here = entry.files and all((folder / file).exists() for file in entry.files)
    return folder if here else None


def _keep_official(entry: Entry, place: Path) -> None:
    """Put all parts into the cache from an archive, its SHA-256 checked first, or from a folder."""
    sha256 = entry.archive_sha256
    if place.is_file() and sha256 and sha256 != sha256_of(place):
        raise DataError(f"{place} is not the original archive: its SHA-256 is not {sha256}")
    try:
        for part, content in getattr(official_sets, entry.reader)(entry, place):
            keep(entry, part, content, place)
    except (DataError, OSError):
        raise
    except Exception as error:  # whatever a reader makes of files that are not the original ones
        what = f"{place} does not hold the original files of {entry.name}"
        raise DataError(f"{what} ({type(error).__name__}: {error})") from None


def _keep_archive(entry: Entry) -> None:
    working = cache_folder() / f".{entry.name}.fetching"  # kept after a failure, to be resumed
    target = working / Path(entry.archive).name
    _keep_official(entry, download(entry.archive, target, entry.archive_sha256))
    shutil.rmtree(working)


def _keep_mirror(entry: Entry) -> None:
    """Let `tools/data/mirrors.py` of the checkout put all parts into the cache."""
    line = [sys.executable, str(MIRRORS), entry.name]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise DataError(done.stderr.strip().rpartition("\n")[2] or "the mirror failed")


def prepare(wanted: Iterable[str], folder: Path | None = None) -> None:
    """Bring each set onto this machine, verified; with `folder`, only those whose files are in it.

    Goes on after a failure, and then raises DataError with the names that failed. A set that cannot
    be fetched at all is named, and is no failure.
    """
    names = list(wanted)
    if folder is not None:
        names = [name for name in names if official_place(catalogue.find(name), folder)]
        if not names:
            raise DataError(f"{folder} holds no official files of these sets: see data/README.md")
    failed = []
    for name in names:
        try:
            fetch(name, folder)
        except (DataError, OSError) as error:
            print(error)
            if folder is not None or _sources(catalogue.find(name), None):
                failed.append(name)
    if failed:
        raise DataError(f"not here: {', '.join(failed)}; the lines above say why")
