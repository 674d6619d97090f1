"""One notebook, executed in a kernel of its own."""

import contextlib
import os
import re
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from curlnb.runs.files import write_atomically

_AT_WORK: set[NotebookClient] = set()


class NotebookError(RuntimeError):
    """A notebook that did not run to its end: why, in one line. `state` is "failed" or "timeout"."""

    def __init__(self, why: str, state: str = "failed") -> None:
        super().__init__(why)
        self.state = state


def execute(path: Path, output: Path, log: Path, *, profile: str, variables: Mapping[str, str], limit: float) -> None:
    """Execute the notebook at `path` and write it to `output`, with what it got to where it fails.

    log: gets what the kernel and its processes print, and the traceback of a failure. variables: of the kernel's environment, beside this
    process's. limit: seconds. The kernel is the head of a process group, and ends when this process does. Raises NotebookError.
    """
    book = nbformat.read(path, as_version=4)
    if profile != "quick":  # which the notebook says itself
        at = next((i for i, cell in enumerate(book.cells) if "parameters" in cell.metadata.get("tags", [])), -1)
        book.cells.insert(at + 1, nbformat.v4.new_code_cell(f'profile = "{profile}"', metadata={"tags": ["injected-parameters"]}))
    client = NotebookClient(
        book, kernel_name="python3", timeout=None, startup_timeout=300, resources={"metadata": {"path": str(path.parent)}}
    )
    over = threading.Event()

    def stop() -> None:
        over.set()
        _kill(client)

    clock = threading.Timer(limit, stop)
    _AT_WORK.add(client)
    clock.start()
    try:
        with open(log, "ab") as kernels:
            client.execute(env={**os.environ, **variables}, stdout=kernels, stderr=kernels)
    except (CellExecutionError, RuntimeError) as error:
        with open(log, "a", encoding="utf-8") as file:
            file.write(re.sub(r"\x1b\[[\d;]*m", "", f"{error}\n"))
        if over.is_set():
            raise NotebookError(f"not finished within {limit / 60:.3g} minutes", "timeout") from None
        if isinstance(error, CellExecutionError):
            raise NotebookError(f"{error.ename}: {error.evalue}".splitlines()[0]) from None
        raise NotebookError("its kernel died, out of memory perhaps" if isinstance(error, DeadKernelError) else str(error)) from None
    finally:
        clock.cancel()
        _AT_WORK.discard(client)
        write_atomically(output, lambda file: nbformat.write(book, file))


def stop_all() -> None:
    """End the kernels at work, with their worker processes; each `execute` then raises."""
    for client in list(_AT_WORK):
        _kill(client)


def _kill(client: NotebookClient) -> None:
    pid = getattr(getattr(client.km, "provisioner", None), "pid", None)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid:
            os.killpg(pid, signal.SIGKILL)
