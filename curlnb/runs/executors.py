"""Where a sweep's runs are computed: in this process, in local processes, or on a Dask cluster
(`cluster`). One interface for all.

The local processes are a plain pool, not a local Dask cluster, which would need a scheduler, ports
and an extra package, and does not end with its parent.
"""

import os
import platform
import signal
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import cloudpickle

from curlnb.runs.devices import keep_memory
from curlnb.runs.experiment import Experiment
from curlnb.runs.store import Record, Store

RETRIES = 2  # of the runs at hand when a worker process dies, by the out-of-memory killer say

PRELOADED = ("torch", "torch._dynamo", "pandas")
"""What every worker needs and takes long to import: an optimiser imports torch._dynamo, which takes
five seconds.
"""

WHY_DEAD = (
    "a worker process was killed{}, out of memory perhaps, or by a script that calls sweep outside `if __name__ == '__main__':`; "
    "try CURLNB_WORKERS=1, or 0 for this process alone"
)
ILLEGAL = (
    "a worker process was killed by SIGILL: torch took an instruction that this machine announces and does not have; "
    "try ONEDNN_MAX_CPU_ISA=AVX2, or CURLNB_WORKERS=0 to see where"
)


class SweepError(RuntimeError):
    """Runs that failed; the others of their sweep are finished and kept."""


@dataclass(frozen=True)
class Job:
    """One run that a sweep asks for. key: its name in the store, as the process that asks computes
    it.
    """

    experiment: Experiment
    store: Store
    parameters: dict[str, Any]
    seed: int
    key: str

    def find(self) -> Record | None:
        return self.store.find(self.experiment, self.parameters, self.seed)

    def sent(self) -> bytes:
        """The job for another process. What a notebook or a script defines travels by value;
        settings of this project travel along.
        """
        settings = {name: value for name, value in os.environ.items() if name.startswith("CURLNB_")}
        return cloudpickle.dumps(
            (self.experiment, self.store.root, self.parameters, self.seed, self.key, settings)
        )

    def __str__(self) -> str:
        asked = {k: v for k, v in self.parameters.items() if v is not None}
        return f"{self.experiment.name}({', '.join(f'{k}={v!r}' for k, v in asked.items())}, seed={self.seed})"


Outcome = bool | Exception
"""True: the run is finished. False: another process is at work on it. An exception: it failed."""


class Executor(Protocol):
    """Computes jobs and yields each with its outcome, in the order in which they end.

    patient: whether a run on which another process is at work is waited for, or told with False at
    once.
    """

    def outcomes(self, jobs: Sequence[Job], *, patient: bool) -> Iterator[tuple[Job, Outcome]]: ...


class Here:
    """This process."""

    def outcomes(self, jobs: Sequence[Job], *, patient: bool) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            try:
                yield (
                    job,
                    job.store.run(job.experiment, job.parameters, job.seed, wait=patient)
                    is not None,
                )
            except Exception as error:
                yield job, error


class Processes:
    """`count` local processes, kept between sweeps: importing torch and tracing a model take
    seconds.
    """

    _pools: dict[int, ProcessPoolExecutor] = {}  # noqa: RUF012  # one pool a process, whoever asks

    def __init__(self, count: int) -> None:
        self.count = count

    def pool(self) -> ProcessPoolExecutor:
        if self.count not in self._pools:
            for other in self._pools.values():
                other.shutdown()
            self._pools.clear()
            self._pools[self.count] = ProcessPoolExecutor(
                self.count, _context(), initializer=_prepare, initargs=(dict(os.environ),)
            )
        return self._pools[self.count]

    def outcomes(self, jobs: Sequence[Job], *, patient: bool) -> Iterator[tuple[Job, Outcome]]:
        waiting, deaths = deque(jobs), 0
        started: set[BaseProcess] = set()
        busy: dict[Future[bool], Job] = {}
        while waiting or busy:
            dead = False
            while waiting and len(busy) < self.count:
                try:
                    busy[self.pool().submit(work, waiting[0].sent(), patient, True)] = waiting[0]
                    waiting.popleft()
                    started.update(active_children())
                except (
                    BrokenProcessPool,
                    EOFError,
                    ConnectionError,
                ):  # a worker died between runs, or the process that forks them
                    dead = True
                    break
            done, _ = wait(busy, timeout=0 if dead else None, return_when=FIRST_COMPLETED)
            for future in done:
                job = busy.pop(future)
                try:
                    yield job, future.result()
                except BrokenProcessPool:
                    dead = True
                    waiting.append(job)
                except Exception as error:
                    yield job, error
            if dead:
                deaths += 1
                waiting.extend(busy.values())
                busy.clear()
                self._pools.clear()
                if deaths > RETRIES:
                    why = _why_dead(started)
                    yield from ((job, SweepError(why)) for job in waiting)
                    return


def _context() -> BaseContext:
    """How worker processes start: on Linux as forks of one that has imported torch, and no code
    that a reader may be changing.

    That process never computes, so it has no threads of torch's and no GPU that a fork would break.
    Elsewhere each starts from nothing.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _why_dead(processes: Collection[BaseProcess]) -> str:
    """Why workers died, with the signals of which they did. The pool itself ends those that are
    left by SIGTERM.
    """
    for process in processes:
        process.join(1)
    codes = {process.exitcode for process in processes}
    signals = {signal.Signals(-code).name for code in codes if code is not None and code < 0} - {
        "SIGTERM"
    }
    return (
        ILLEGAL
        if "SIGILL" in signals
        else WHY_DEAD.format("".join(f" by {name}" for name in sorted(signals)))
    )


# --- on the other side ----------------------------------------------------------------------------

_ONE_AT_A_TIME = (
    threading.Lock()
)  # a run sets its process's seed and threads, and a Dask worker may have several threads


def work(sent: bytes, patient: bool, same_machine: bool = False) -> bool:
    """Do one run (`Job.sent`) in this process; False when another process is at it and this one is
    not `patient`.

    same_machine: whether the settings that came along are all there are; a worker elsewhere keeps
    its own beside them.
    """
    with _ONE_AT_A_TIME:
        experiment, root, parameters, seed, key, settings = cloudpickle.loads(sent)
        if same_machine:
            for name in [
                name for name in os.environ if name.startswith("CURLNB_") and name not in settings
            ]:
                del os.environ[name]
        os.environ.update(settings)
        if experiment.key(parameters, seed) != key:
            raise SweepError(
                f"the worker on {platform.node()} has other code, data or numerics for {experiment.name}: give it the same checkout"
            )
        return Store(root).run(experiment, parameters, seed, wait=patient) is not None


def _prepare(environ: dict[str, str]) -> None:
    """Initialise a worker process, which has the environment of its pool's start and not of the
    process that it was forked from.

    A watcher thread ends it when its parent dies, so that no orphan keeps computing.
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
