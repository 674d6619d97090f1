"""What computes the runs of a sweep: this process, local processes, or any other executor of the
`concurrent.futures` kind, such as Dask's `client.get_executor()`. See docs/cluster.md.
"""

import os
import platform
import sys
import threading
import uuid
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process

import cloudpickle

from curlnb.runs import environment
from curlnb.runs.experiment import Asked, as_json
from curlnb.runs.store import Record, Store

PRELOADED = ["torch", "torch._dynamo", "pandas"]
"""What every worker needs and takes long to import: an optimiser imports torch._dynamo, which takes
five seconds.
"""


class SweepError(RuntimeError):
    """Runs that failed; the others of their sweep are finished and kept."""


class OtherCodeError(SweepError):
    """A worker whose code, data or numerics are not those of the process that asks."""


@dataclass(frozen=True, eq=False)
class Job(Asked):
    """One run that a sweep asks for, and the store that keeps it."""

    store: Store

    def sent(self) -> bytes:
        """The job for another process, and its key here. What a notebook or a script defines
        travels by value; this project's settings travel along. No two are equal: Dask computes
        equal tasks once.
        """
        job = replace(self, store=Store(self.store.root))
        return cloudpickle.dumps((job, self.key, environment.given(), uuid.uuid4()))

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
        context.set_forkserver_preload(PRELOADED)
        _POOLS[count] = ProcessPoolExecutor(count, context, _prepare, (dict(os.environ),))
    return _POOLS[count]


# --- on the other side ----------------------------------------------------------------------------

# a run sets its process's seed and threads, and a Dask worker may have several threads
_ONE_AT_A_TIME = threading.Lock()


def work(sent: bytes, wait: bool, same_machine: bool) -> Record | None:
    """The record of one run (`Job.sent`), computed in this process; None where another process is
    at work on it and this one is not to wait.

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
        if same_machine:
            for name in environment.given().keys() - settings:
                del os.environ[name]
        os.environ.update(settings)
        if job.key != key:
            raise OtherCodeError(
                f"the worker on {platform.node()} has other code, data or numerics for "
                f"{job.experiment.name}: give it the same checkout, or restart the kernel"
            )
        return job.store.run(job, wait=wait)


def _prepare(environ: dict[str, str]) -> None:
    """Initialise a worker process, with the environment of the process that started its pool.

    A watcher thread ends the worker soon after that process dies, so that no orphan keeps
    computing.
    """
    os.environ.clear()
    os.environ.update(environ)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
