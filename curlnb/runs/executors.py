"""What computes the runs of a sweep: this process, local processes, or any other executor of the
`concurrent.futures` kind, such as Dask's `client.get_executor()`. See docs/cluster.md.
"""

import contextlib
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process

import cloudpickle

from curlnb import extras
from curlnb.runs.devices import keep_memory
from curlnb.runs.experiment import Asked, as_json
from curlnb.runs.store import Record, Store

PRELOADED = ("torch", "torch._dynamo", "pandas")
"""What every worker needs and takes long to import: an optimiser imports torch._dynamo, which takes
five seconds.
"""
SECONDS = 10.0  # that a network file system may take to show a file


class SweepError(RuntimeError):
    """Runs that failed; the others of their sweep are finished and kept."""


class OtherCodeError(SweepError):
    """A worker whose code, data or numerics are not those of the process that asks."""


@dataclass(frozen=True, eq=False)
class Job(Asked):
    """One run that a sweep asks for, and the store that keeps it."""

    store: Store

    def find(self) -> Record | None:
        return self.store.found(self)

    def run(self, wait: bool) -> bool:
        """Compute the run; False where another process is at work on it and this one is not to
        wait.
        """
        return self.store.run(self, wait=wait) is not None

    def sent(self) -> bytes:
        """The job for another process, and its key here. What a notebook or a script defines
        travels by value; this project's settings travel along. No two are equal: Dask computes
        equal tasks once.
        """
        settings = {name: value for name, value in os.environ.items() if name.startswith("CURLNB_")}
        job = replace(self, store=Store(self.store.root))
        return cloudpickle.dumps((job, self.key, settings, uuid.uuid4()))

    def __str__(self) -> str:
        named = as_json(self.parameters | {"seed": self.seed}, digests=False)
        asked = (f"{k}={v!r}" for k, v in named.items() if v is not None)
        return f"{self.experiment.name}({', '.join(asked)})"


_POOLS: dict[int, ProcessPoolExecutor] = {}


def local_processes(count: int, anew: bool = False) -> ProcessPoolExecutor:
    """`count` local processes. They are kept between sweeps, since importing torch and tracing a
    model take seconds; anew: start others in their place.

    On Linux they are forks of a process that has imported torch and no code that a reader may be
    changing; it never computes, so it has no threads and no GPU that a fork would break.
    """
    if anew or count not in _POOLS:
        for pool in _POOLS.values():
            pool.shutdown()
        _POOLS.clear()
        context = get_context("forkserver" if sys.platform == "linux" else "spawn")
        context.set_forkserver_preload(list(PRELOADED))
        _POOLS[count] = ProcessPoolExecutor(count, context, _prepare, (dict(os.environ),))
    return _POOLS[count]


@contextlib.contextmanager
def scheduled(address: str) -> Iterator[Executor]:
    """The executor of the Dask scheduler at `address` ("tcp://host:8786") or behind a scheduler
    file (a path that ends in .json). SweepError where none answers within 30 seconds.
    """
    extras.need("CURLNB_SCHEDULER", "cluster", "distributed")
    from distributed import Client

    where = {"scheduler_file" if address.endswith(".json") else "address": address}
    try:
        if address.endswith(".json"):
            open(address).close()  # a client would wait for the file for ever
        client = Client(**where, timeout=30, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:  # TypeError: tls:// without certificates
        raise SweepError(
            f"no Dask scheduler answers at {address!r} ({error or type(error).__name__}): start "
            "one with `dask scheduler`, or unset CURLNB_SCHEDULER"
        ) from None
    with client:
        yield client.get_executor()


# --- on the other side ----------------------------------------------------------------------------

# a run sets its process's seed and threads, and a Dask worker may have several threads
_ONE_AT_A_TIME = threading.Lock()


def work(sent: bytes, wait: bool, same_machine: bool) -> bool:
    """Do one run (`Job.sent`) in this process; False where another process is at work on it and
    this one is not to wait.

    same_machine: whether the settings that came along are all there are; a worker elsewhere keeps
    its own beside them.
    """
    with _ONE_AT_A_TIME:
        try:
            job, key, settings, _ = cloudpickle.loads(sent)
        except (ImportError, AttributeError) as error:  # of a module that is new, or was edited
            raise OtherCodeError(
                f"the worker on {platform.node()} lacks what the run needs ({error}): "
                "install it there, or restart the kernel"
            ) from None
        for name in [name for name in os.environ if name.startswith("CURLNB_")]:
            if same_machine and name not in settings:
                del os.environ[name]
        os.environ.update(settings)
        if job.key != key:
            raise OtherCodeError(
                f"the worker on {platform.node()} has other code, data or numerics for "
                f"{job.experiment.name}: give it the same checkout, or restart the kernel"
            )
        return job.run(wait)


def shown(job: Job) -> Record | None:
    """The record of a run that a worker has finished; None where it is not to be seen here."""
    until = time.monotonic() + SECONDS
    while (record := job.find()) is None and time.monotonic() < until:
        time.sleep(0.5)
    return record


def _prepare(environ: dict[str, str]) -> None:
    """Initialise a worker process, with the environment of the process that started its pool.

    A watcher thread ends the worker soon after that process dies, so that no orphan keeps
    computing.
    """
    os.environ.clear()
    os.environ.update(environ)
    keep_memory()
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
