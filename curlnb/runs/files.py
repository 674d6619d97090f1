"""Files that a kill at any moment leaves whole, and of which a damaged one is noticed: written
beside their place and renamed, read back only with the SHA-256 that was written.
"""

import contextlib
import hashlib
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from curlnb.runs import environment

SCHEMA = 3


class Damaged(ValueError):
    """A file is there, and its content is not what was written."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, and rename it: readers
    see all or nothing. OSError, in a line that names `path`, where that fails.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{path} cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """A JSON file without a seal, for people and for notes that may be lost."""
    write_atomically(path, lambda p: p.write_text(json.dumps(value, indent=1)))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object without a seal, empty where there is no file. ValueError, with the path, for a
    file that holds none.
    """
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise Damaged(f"it holds {type(value).__name__}, not an object")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged ({type(error).__name__}: {printable(error)})") from None
    return value


# --- sealed files ---------------------------------------------------------------------------------


def seal(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A JSON object with its schema, the place that it is written for, and a digest of it all."""
    own = {**value, "place": place}
    return {**own, "schema": SCHEMA, "digest": digest_of_tensors(json.dumps(own, sort_keys=True))}


def unseal(sealed: Any, place: str) -> dict[str, Any]:
    """The object that `seal` sealed for `place`. Raises Damaged where it is not that, whole."""
    value = {**sealed} if isinstance(sealed, dict) else {}
    for name in ("place", "schema", "digest"):
        value.pop(name, None)
    _check(sealed, seal(value, place))
    return value


def place_of(path: Path) -> str:
    """What a file is bound to: its name and its folder's, which in a store is the run's key. So a
    store can be moved, but no file in it.
    """
    return f"{path.parent.name}/{path.name}"


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object, sealed for its place."""
    write_json(path, seal(value, place_of(path)))


def read_sealed(path: Path) -> dict[str, Any] | None:
    """What `write_sealed` wrote, without the seal; None where there is nothing, or nothing whole:
    that is set aside, and said in one line.
    """
    with _set_aside_if_damaged(path):
        return unseal(json.loads(path.read_text(encoding="utf-8")), place_of(path))
    return None


def save_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Tensors and a JSON state as one safetensors file, sealed for its place."""
    own = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    about = _about(json.dumps(state), place_of(path), own)
    write_atomically(path, lambda p: save_file(own, p, about))


def load_tensors(
    path: Path, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What `save_tensors` wrote, on `device`; None where there is nothing, or nothing whole (see
    `read_sealed`).
    """
    with _set_aside_if_damaged(path):
        open(path, "rb").close()  # tells why it cannot be read better than safetensors does
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = about.get("state", "")
        _check(about, _about(state, place_of(path), tensors))
        return {name: t.to(device) for name, t in tensors.items()}, json.loads(state)
    return None


def _about(state: str, place: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """What a file of tensors says beside them."""
    digest = digest_of_tensors(state + place, tensors)
    return {"state": state, "schema": str(SCHEMA), "place": place, "digest": digest}


def _check(found: Any, written: Mapping[str, Any]) -> None:
    """Damaged where a seal is not the one that the content has in its place."""
    if found != written:
        raise Damaged("its seal is not that of its content in this place")


def digest_of_tensors(text: str, tensors: Mapping[str, Tensor] = {}) -> str:
    """SHA-256, in hex, of a text and of tensors on the CPU: names, types, shapes and content."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        total.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        total.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


@contextlib.contextmanager
def _set_aside_if_damaged(path: Path) -> Iterator[None]:
    """Leave the block where there is no file; set a damaged one aside."""
    try:
        yield
    except FileNotFoundError:
        pass
    except (ValueError, RecursionError, SafetensorError) as error:
        set_aside(path, str(error))


def set_aside(path: Path, why: str) -> None:
    """Rename a damaged file to <name>.damaged, and say so in one line."""
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        aside = path.replace(path.with_name(f"{path.name}.damaged"))
        say(f"{path} was damaged ({why}): it was set aside as {aside.name} and is computed again")


def say(what: str) -> None:
    """A line for who runs the command or reads its log."""
    line = f"curlnb: {printable(what)}"
    environment.log(line)
    print(line, file=sys.stderr)


def printable(text: object) -> str:
    """A message in one line that cannot steer a terminal: lines are joined, other control
    characters written as escapes.
    """
    line = " ".join(str(text).splitlines())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
