"""Calls on the workers of a Dask cluster: what `sweep` uses where a scheduler is named. See docs/cluster.md."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

SECONDS = 30  # within which a scheduler must answer


class ClusterError(RuntimeError):
    """No scheduler, or one that went away; what its workers finished is kept."""


_CLIENTS: dict[str, Any] = {}  # kept between sweeps


def connect(address: str) -> Any:
    """A `distributed.Client` of the scheduler at `address` ("tcp://host:8786") or behind a scheduler file (a path that ends in .json).

    One client a process and address, as long as its scheduler lives. Raises ClusterError where nothing answers within SECONDS.
    """
    if address in _CLIENTS and _CLIENTS[address].status == "running":
        return _CLIENTS[address]
    try:
        import distributed
    except ModuleNotFoundError:
        raise ClusterError("CURLNB_SCHEDULER needs the extra 'cluster': install dask and distributed, or unset it") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it reports a lost scheduler by pages, where we do in a line
    if address.endswith(".json"):
        until = time.monotonic() + SECONDS
        while not Path(address).exists():  # a Client would wait for ever
            if time.monotonic() > until:
                raise ClusterError(f"no scheduler file at {address!r}: start one with `dask scheduler --scheduler-file`")
            time.sleep(0.5)
    where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        _CLIENTS[address] = distributed.Client(**where, timeout=SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(f"no Dask scheduler answers at {address!r} ({why}): start one with `dask scheduler`") from None
    return _CLIENTS[address]


def outcomes(client: Any, function: Callable[..., Any], calls: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Any] | None]:
    """Call function(*arguments) on the workers for each named call; yield (name, result or exception) as they end, None while waiting.

    A call whose worker dies, also while it only waits there, is given to another, as often as the scheduler's `allowed-failures` says (3
    by default). A call that raises is not repeated. Where workers offer the resource GPU each call takes one of it, so that a GPU has one
    call at a time. None comes about once a second. Raises ClusterError when the scheduler is lost.
    """
    lost = ClusterError(f"the Dask scheduler at {client.scheduler.address if client.scheduler else 'its address'} is lost")
    if client.status != "running":
        raise lost
    try:
        wake = client.submit(int, pure=False)  # an adaptive cluster starts workers only where work waits
        while not (workers := client.scheduler_info()["workers"]):  # of a queue or of an adaptive cluster, say
            yield None
            time.sleep(1)
        resources = {"GPU": 1} if any("GPU" in worker["resources"] for worker in workers.values()) else None
        del wake
        mark = uuid.uuid4().hex[:8]  # a name that failed once is not remembered as failed
        futures = {
            client.submit(function, *arguments, key=f"{name}-{mark}", pure=False, resources=resources): name
            for name, arguments in calls.items()
        }
    except (OSError, CancelledError):
        raise lost from None
    try:
        told = time.monotonic()
        while futures:
            ended = [future for future in futures if future.status in ("finished", "error", "cancelled")]
            for future in ended:
                yield futures[future], _outcome(future, lost)
                del futures[future]
            if client.status != "running":  # it then cancels what it waits for
                raise lost
            if not ended:
                time.sleep(0.1)
            if time.monotonic() - told > 1:
                told = time.monotonic()
                yield None
    finally:
        if client.status == "running":
            client.cancel(list(futures))


def _outcome(future: Any, lost: ClusterError) -> Any:
    from distributed import KilledWorker

    try:
        if future.status != "error":
            return future.result(timeout=60)
        error = future.exception(timeout=60)
    except (OSError, CancelledError):  # TimeoutError is an OSError
        raise lost from None
    if isinstance(error, KilledWorker):
        return RuntimeError("every worker that was given it died, out of memory perhaps")
    return error
