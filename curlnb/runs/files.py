"""Files that are whole or not there, and that say when they were damaged: JSON and safetensors with
a schema and a digest of their content.

What cannot be read, is cut, has a flipped bit or another schema is set aside under a name that says
so, and counts as absent: whoever asks computes it again. Nothing is unpickled.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from curlnb.runs import environment

SCHEMA = 3
READABLE = (2, SCHEMA)  # a file of schema 2 does not say which place it was written for

NOT_THE_FILES_FAULT = {
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EROFS,
    errno.ENOSPC,
    errno.ESTALE,
}
_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]


class Damaged(ValueError):
    """A file is there, and its content is not what was written."""


# --- writing --------------------------------------------------------------------------------------


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, and rename it: readers
    see all or nothing.

    A folder that stands at `path` is set aside. An OSError names `path`.
    """
    temporary = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{threading.get_ident()}.part")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            make_way(path)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError that names no file, such as that of a full disk, name `path`; safetensors'
    own become an OSError.
    """
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from None
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def clear_leftovers(folder: Path) -> None:
    """Remove the temporary files below `folder` that killed writers of this machine left."""
    for path in folder.rglob(".*.part"):
        writer = re.search(r"\.(\w+)-(\d+)-\d+\.part$", path.name)
        if writer and writer[1] == _HOST and not _alive(int(writer[2])):
            with contextlib.suppress(OSError):
                path.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def make_way(path: Path) -> None:
    """Set aside a folder that stands where a file belongs."""
    if path.is_dir() and not path.is_symlink():
        set_aside(path, "it is a folder")


def make_folder(path: Path, below: Path) -> None:
    """Make the folder `path`; a file that stands in its place, or in that of a parent below
    `below`, is set aside.
    """
    for each in reversed([path, *path.parents]):
        if (
            each.is_relative_to(below)
            and each != below
            and os.path.lexists(each)
            and not each.is_dir()
        ):
            set_aside(each, "it is no folder")
    path.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    make_way(path)
    path.unlink(missing_ok=True)


def lock(path: Path, timeout: float = -1) -> FileLock:
    """A lock on the file at `path`. It ends with the process that holds it, however that ends."""
    make_way(path)
    return FileLock(path, timeout=timeout)


def write_json(path: Path, value: Any) -> None:
    """A JSON file without a seal, for people and for notes that may be lost."""
    text = json.dumps(value, indent=1)
    write_atomically(path, lambda p: p.write_text(text))


# --- sealed files ---------------------------------------------------------------------------------


def seal(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A JSON object with its schema, the place that it is written for, and the digest of all that."""
    own = {**value, "place": place}
    return {**own, "schema": SCHEMA, "digest": _digest(own)}


def unseal(sealed: Any, place: str) -> dict[str, Any]:
    """The object that `seal` sealed for `place`. Raises Damaged where it is not whole, of another
    schema, or of another place.
    """
    if not isinstance(sealed, dict):
        raise Damaged(f"it holds {type(sealed).__name__}, not an object")
    value = dict(sealed)
    schema, digest = value.pop("schema", None), value.pop("digest", None)
    if schema not in READABLE:
        raise Damaged(f"its schema is {schema!r}, not {SCHEMA}")
    if digest != _digest(value):
        raise Damaged("its digest is not that of its content")
    if (own := value.pop("place", place)) != place:
        raise Damaged(f"it was written for {own}")
    return value


def place_of(path: Path) -> str:
    """What a file is bound to: its name and its folder's, which in a store is the run's key. So a
    store can be moved, but no file in it.
    """
    return f"{path.parent.name}/{path.name}"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object without a seal. ValueError, with the path, for a file that holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {plain(str(error))})"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds {type(value).__name__}, not an object")
    return value


def json_if_there(path: Path) -> dict[str, Any]:
    """The same, empty where there is no file."""
    return read_json(path) if path.exists() else {}


def plain(text: str) -> str:
    """Without what could steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object, sealed for its place."""
    write_json(path, seal(value, place_of(path)))


def read_sealed(
    path: Path, accept: Callable[[dict[str, Any]], bool] = lambda _: True
) -> dict[str, Any] | None:
    """What `write_sealed` wrote, without the seal; None where there is nothing, or nothing whole:
    that is set aside, and said in one line.

    accept: whether a whole content is the one looked for; what is not is set aside too.
    """

    def read() -> dict[str, Any]:
        value = unseal(json.loads(path.read_text(encoding="utf-8")), place_of(path))
        if not accept(value):
            raise Damaged("it is another run's, or lacks a number")
        return value

    return _whole(path, read)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Tensors and a JSON state as one safetensors file, sealed for its place."""
    own = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text, place = json.dumps(state), place_of(path)
    metadata = {
        "state": text,
        "schema": str(SCHEMA),
        "place": place,
        "digest": _digest_of_tensors(own, text, place),
    }
    write_atomically(path, lambda p: save_file(own, p, metadata))


def load_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What `save_tensors` wrote, on `device`; None where there is nothing, or nothing whole (see
    `read_sealed`).
    """

    def read() -> tuple[dict[str, Tensor], dict[str, Any]]:
        with safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if found.get("schema") not in [str(schema) for schema in READABLE]:
            raise Damaged(f"its schema is {found.get('schema')!r}, not {SCHEMA}")
        if found.get("digest") != _digest_of_tensors(
            tensors, found.get("state", ""), found.get("place", "")
        ):
            raise Damaged("its digest is not that of its content")
        if found.get("place", place_of(path)) != place_of(path):
            raise Damaged(f"it was written for {found['place']}")
        return tensors, json.loads(found["state"])

    saved = _whole(path, read)
    if saved is None:
        return None
    return {name: t.to(device) for name, t in saved[0].items()}, saved[
        1
    ]  # a GPU without room is not the file's fault


def _whole(path: Path, read: Callable[[], Any]) -> Any:
    """What `read` reads; None where nothing is there. What is damaged is set aside, if it still is
    the file that was read.
    """
    try:
        before = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Damaged("it is a folder" if path.is_dir() else "it is no regular file")
        path.open("rb").close()  # tells what is wrong better than a library does
        return read()
    except FileNotFoundError:  # finished and tidied up by another process in between
        return None
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NOT_THE_FILES_FAULT:
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(before, path.lstat()):  # else another process has just renewed it
                set_aside(path, str(error).splitlines()[0] if str(error) else type(error).__name__)
        return None


def set_aside(path: Path, why: str) -> None:
    """Rename a damaged file to <name>.damaged-<n>, and say so in one line."""
    free = next(
        p
        for n in range(1, 10**6)
        if not os.path.lexists(p := path.with_name(f"{path.name}.damaged-{n}"))
    )
    try:
        os.replace(path, free)
    except FileNotFoundError:  # another process was faster
        return
    say(f"{path} was damaged ({why}): it was set aside as {free.name} and is computed again")


def say(what: str) -> None:
    """A line for whoever runs the command or reads its log."""
    line = f"curlnb: {plain(what)}"
    environment.log(line)
    print(line, file=sys.stderr)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _digest_of_tensors(tensors: Mapping[str, Tensor], state: str, place: str) -> str:
    total = hashlib.sha256((state + place).encode())
    for name in sorted(tensors):
        t = tensors[name]
        total.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        total.update(t.reshape(-1).view(torch.uint8).numpy().data if t.numel() else b"")
    return total.hexdigest()
