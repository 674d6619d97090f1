"""One notebook through papermill, in a kernel of its own."""

import contextlib
import functools
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

# papermill, nbclient and nbformat take two seconds, which only whoever executes a notebook should
# pay
if TYPE_CHECKING:
    from nbclient import NotebookClient
    from nbformat import NotebookNode

_AT_WORK: set["NotebookClient"] = set()


EXITED = "a cell calls exit(): what stands behind it would not be run"


class NotebookError(RuntimeError):
    """A notebook that did not run to its end: why, in one line. `state` is "failed" or "timeout"."""

    def __init__(self, why: str, state: str = "failed") -> None:
        super().__init__(why)
        self.state = state


@functools.cache
def _papermill() -> Any:
    """papermill, with an engine that hands its client to the caller: it has no word for a kernel's
    environment or its process.
    """
    import papermill
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(
            cls,
            nb_man: Any,
            kernel_name: str,
            *,
            run: Callable[["NotebookClient"], None],
            **given: Any,
        ) -> None:
            place = {"metadata": {"path": str(Path(given["input_path"]).parent)}}
            run(
                PapermillNotebookClient(
                    nb_man,
                    kernel_name=kernel_name,
                    timeout=None,
                    startup_timeout=300,
                    resources=place,
                )
            )

    papermill_engines.register("curlnb", Engine)
    logging.getLogger("asyncio").setLevel(
        logging.CRITICAL
    )  # it names the tasks of each kernel that is ended in mid-cell
    return papermill


def execute(
    path: Path, output: Path, log: Path, *, profile: str, variables: Mapping[str, str], limit: float
) -> None:
    """Execute the notebook at `path` and write it to `output`, cell by cell, with what it got to
    where it fails.

    log: gets what the kernel and its processes print, and the traceback of a failure. variables: of
    the kernel's environment, beside this process's. limit: seconds. The kernel is the head of a
    process group, and ends when this process does. Raises NotebookError.
    """
    papermill = _papermill()
    parameters = (
        {} if profile == "quick" else {"profile": profile}
    )  # quick is what the notebook says itself
    over, left = threading.Event(), threading.Event()
    at_work: list[NotebookClient] = []
    draft = output.with_name(
        f".{output.name}"
    )  # papermill writes it cell by cell: what stands at `output` is whole

    def replied(execute_reply: Mapping[str, Any], **_: Any) -> None:
        if any(
            word.get("source") == "ask_exit" for word in execute_reply["content"].get("payload", [])
        ):
            left.set()  # exit() and quit(), which end the kernel and count as done

    def run(client: "NotebookClient") -> None:
        client.on_cell_executed = replied
        at_work.append(client)
        _AT_WORK.add(client)
        with open(log, "ab") as kernels:
            client.execute(env={**os.environ, **variables}, stdout=kernels, stderr=kernels)

    def stop() -> None:
        over.set()
        for client in at_work:
            _kill(client)

    output.parent.mkdir(parents=True, exist_ok=True)
    clock = threading.Timer(limit, stop)
    clock.start()
    try:
        book = papermill.execute_notebook(
            path,
            draft,
            parameters,
            engine_name="curlnb",
            kernel_name="python3",
            progress_bar=False,
            run=run,
        )
        _refuse_exits(book)
        if left.is_set():
            raise NotebookError(EXITED)
    except (papermill.PapermillExecutionError, RuntimeError) as error:
        with open(log, "a", encoding="utf-8") as file:
            file.write(re.sub(r"\x1b\[[\d;]*m", "", f"{error}\n"))
        if over.is_set():
            raise NotebookError(
                f"not finished within {limit / 60:.3g} minutes", "timeout"
            ) from None
        if isinstance(error, papermill.PapermillExecutionError):
            raise NotebookError(f"{error.ename}: {error.evalue}".splitlines()[0]) from None
        if left.is_set():
            raise NotebookError(EXITED) from None
        died = type(error).__name__ == "DeadKernelError"
        raise NotebookError(
            "its kernel died, out of memory perhaps" if died else str(error)
        ) from None
    finally:
        clock.cancel()
        if draft.exists():
            os.replace(draft, output)
        _AT_WORK.difference_update(at_work)


def _refuse_exits(book: "NotebookNode") -> None:
    """papermill takes `sys.exit(0)` for a good end, though the cells after it did not run."""
    for cell in book.cells:
        for out in cell.get("outputs", []):
            if out.output_type == "error":
                raise NotebookError(f"{out.ename}: {out.evalue}".splitlines()[0])


def stop_all() -> None:
    """End the kernels at work, with their worker processes; each `execute` then raises."""
    for client in list(_AT_WORK):
        _kill(client)


def _kill(client: "NotebookClient") -> None:
    pid = getattr(getattr(client.km, "provisioner", None), "pid", None)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid:
            os.killpg(pid, signal.SIGKILL)
