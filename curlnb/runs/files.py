"""Files that are whole or not there, and that say when they were damaged: JSON and safetensors with a schema and a digest of their content.

What cannot be read, is cut, has a flipped bit or another schema is set aside under a name that says so, and counts as absent: whoever asks
computes it again. Nothing is unpickled.
"""

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from curlnb.runs import environment

SCHEMA = 2


class Damaged(ValueError):
    """A file is there, and its content is not what was written."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to the disk, and rename it: readers see all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """A JSON file without a seal, for people and for notes that may be lost."""
    text = json.dumps(value, indent=1)
    write_atomically(path, lambda p: p.write_text(text))


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object with its schema and the digest of its content."""
    write_json(path, {**value, "schema": SCHEMA, "digest": _digest(value)})


def read_sealed(path: Path, accept: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any] | None:
    """What `write_sealed` wrote, without the seal; None where there is nothing, or nothing whole: that is set aside, and said in one line.

    accept: whether a whole content is the one looked for; what is not is set aside too.
    """

    def read() -> dict[str, Any]:
        value = json.loads(path.read_text())
        if not isinstance(value, dict) or value.pop("schema", None) != SCHEMA or value.pop("digest", None) != _digest(value):
            raise Damaged("its digest or schema is not that of its content")
        if not accept(value):
            raise Damaged("it is another run's, or lacks a number")
        return value

    return _whole(path, read)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Tensors and a JSON state as one safetensors file."""
    own = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(state)
    seal = {"state": text, "schema": str(SCHEMA), "digest": _digest_of_tensors(own, text)}
    write_atomically(path, lambda p: save_file(own, p, seal))


def load_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What `save_tensors` wrote, on `device`; None where there is nothing, or nothing whole (see `read_sealed`)."""

    def read() -> tuple[dict[str, Tensor], dict[str, Any]]:
        with safe_open(path, framework="pt") as file:
            seal = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if seal.get("schema") != str(SCHEMA) or seal.get("digest") != _digest_of_tensors(tensors, seal.get("state", "")):
            raise Damaged("its digest or schema is not that of its content")
        return {name: t.to(device) for name, t in tensors.items()}, json.loads(seal["state"])

    return _whole(path, read)


def _whole(path: Path, read: Callable[[], Any]) -> Any:
    if not os.path.lexists(path):
        return None
    try:
        return read()
    except FileNotFoundError:  # finished and tidied up by another process in between
        return None
    except PermissionError:
        raise
    except Exception as error:
        set_aside(path, str(error).splitlines()[0] if str(error) else type(error).__name__)
        return None


def set_aside(path: Path, why: str) -> None:
    """Rename a damaged file to <name>.damaged-<n>, and say so in one line."""
    free = next(p for n in range(1, 10**6) if not os.path.lexists(p := path.with_name(f"{path.name}.damaged-{n}")))
    try:
        os.replace(path, free)
    except FileNotFoundError:  # another process was faster
        return
    line = f"curlnb: {path} was damaged ({why}): it was set aside as {free.name} and is computed again"
    environment.log(line)
    print(line, file=sys.stderr)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _digest_of_tensors(tensors: Mapping[str, Tensor], state: str) -> str:
    total = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        t = tensors[name]
        total.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        total.update(t.reshape(-1).view(torch.uint8).numpy().data if t.numel() else b"")
    return total.hexdigest()
