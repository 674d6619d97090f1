"""A sweep's runs on the workers of a Dask cluster, where a scheduler is named. See docs/cluster.md."""

import ipaddress
import json
import logging
import os
import socket
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from curlnb.runs.executors import Job, Outcome, SweepError, work

SECONDS = 30  # within which a scheduler must answer


class ClusterError(RuntimeError):
    """No scheduler, or one that went away; what its workers finished is kept."""


_CLIENTS: dict[str, Any] = {}  # kept between sweeps


def connect(address: str) -> Any:
    """A `distributed.Client` of the scheduler at `address` ("tcp://host:8786") or behind a
    scheduler file (a path that ends in .json).

    One client a process and address, as long as its scheduler lives. Raises ClusterError where
    nothing answers within SECONDS.
    """
    if address in _CLIENTS and _CLIENTS[address].status == "running":
        return _CLIENTS[address]
    try:
        import distributed
    except ModuleNotFoundError:
        raise ClusterError(
            "CURLNB_SCHEDULER needs the extra 'cluster': install dask and distributed, or unset it"
        ) from None
    logging.getLogger("distributed").setLevel(
        logging.CRITICAL
    )  # it reports a lost scheduler by pages, where we do in a line
    if address.endswith(".json"):
        until = time.monotonic() + SECONDS
        while not Path(address).exists():  # a Client would wait for ever
            if time.monotonic() > until:
                raise ClusterError(
                    f"no scheduler file at {address!r}: start one with `dask scheduler --scheduler-file`"
                )
            time.sleep(0.5)
    where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        _CLIENTS[address] = distributed.Client(**where, timeout=SECONDS, set_as_default=False)
    except TypeError as error:  # what Dask makes of tls:// without certificates
        if not address.endswith(".json") and not address.startswith("tls"):
            raise
        raise ClusterError(
            f"no certificates for the scheduler at {address!r}: see TLS in docs/cluster.md ({error})"
        ) from None
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(
            f"no Dask scheduler answers at {address!r} ({why}): start one with `dask scheduler`"
        ) from None
    return _CLIENTS[address]


def who_reaches(address: str) -> tuple[bool, str]:
    """Whether the scheduler at `address` (see `connect`) is open, and who can reach it in words.
    Nothing is sent to it.

    Open is one that other machines can reach without a certificate: every address that is neither
    tls:// nor this machine's loopback interface; and one at the loopback interface where the same
    port answers at this machine's other addresses, too. A host that has no address and a scheduler
    file that cannot be read are not open, and named.
    """
    try:
        at = (
            json.loads(Path(address).read_text())["address"]
            if address.endswith(".json")
            else address
        )
        protocol, _, place = at.rpartition("://")
        host, port = (
            urllib.parse.urlsplit(f"//{place}").hostname,
            urllib.parse.urlsplit(f"//{place}").port,
        )
        found = {
            str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return False, f"{address!r} cannot be looked up ({type(error).__name__})"
    if protocol == "tls":
        return False, f"{at}: whoever has a certificate of its CA runs code on it"
    if all(ipaddress.ip_address(each).is_loopback for each in found) and not any(
        _answers(own, port) for own in _own_addresses()
    ):
        return False, f"{at}: all users of this machine, and they alone, can run code on it"
    return (
        True,
        f"the scheduler {at} is open: whoever reaches it runs code as you; bind it to localhost or use TLS (docs/cluster.md)",
    )


def _own_addresses() -> set[str]:
    """This machine's addresses on the way to other networks. Choosing a way sends no packet."""
    found: set[str] = set()
    for family, elsewhere in (
        (socket.AF_INET, "192.0.2.1"),
        (socket.AF_INET6, "2001:db8::1"),
    ):  # addresses reserved for documentation
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                found.add(probe.getsockname()[0])
        except OSError:  # no such network
            pass
    return {each for each in found if not ipaddress.ip_address(each).is_loopback}


def _answers(host: str, port: int | None) -> bool:
    try:
        with socket.create_connection((host, port or 0), timeout=1):
            return True
    except OSError:
        return False


class Cluster:
    """The executor (`executors.Executor`) on the workers behind `client`, with the same code, data
    and store.

    A job whose worker dies, also while it only waits there, is given to another, as often as the
    scheduler's `allowed-failures` says (3 by default). A job that raises is not repeated. Where
    workers offer the resource GPU each job takes one of it, so that a GPU has one job at a time.
    Raises ClusterError when the scheduler is lost.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    def outcomes(self, jobs: Sequence[Job], *, patient: bool) -> Iterator[tuple[Job, Outcome]]:
        client, scheduler = self.client, self.client.scheduler
        lost = ClusterError(
            f"the Dask scheduler at {scheduler.address if scheduler else 'its address'} is lost"
        )
        if client.status != "running":
            raise lost
        try:
            wake = client.submit(
                int, pure=False
            )  # an adaptive cluster starts workers only where work waits
            while not (
                workers := client.scheduler_info()["workers"]
            ):  # of a queue or of an adaptive cluster, say
                time.sleep(1)
            resources = (
                {"GPU": 1}
                if any("GPU" in worker["resources"] for worker in workers.values())
                else None
            )
            del wake
            mark = uuid.uuid4().hex[:8]  # a name that failed once is not remembered as failed
            how = {"pure": False, "resources": resources}
            futures = {
                client.submit(work, job.sent(), patient, key=f"{job.key}-{mark}", **how): job
                for job in jobs
            }
        except (OSError, CancelledError):
            raise lost from None
        try:
            while futures:
                ended = [
                    future
                    for future in futures
                    if future.status in ("finished", "error", "cancelled")
                ]
                for future in ended:
                    yield futures[future], _outcome(future, futures[future], lost)
                    del futures[future]
                if client.status != "running":  # it then cancels what it waits for
                    raise lost
                if not ended:
                    time.sleep(0.1)
        finally:
            if client.status == "running":
                client.cancel(list(futures))


def _outcome(future: Any, job: Job, lost: ClusterError) -> Outcome:
    from distributed import KilledWorker

    try:
        if future.status == "error":
            error = future.exception(timeout=60)
            return (
                RuntimeError("every worker that got the run died, out of memory perhaps")
                if isinstance(error, KilledWorker)
                else error
            )
        finished = future.result(timeout=60)
    except (OSError, CancelledError):  # TimeoutError is an OSError
        raise lost from None
    if finished and not _visible(job):
        return SweepError(
            f"a worker finished the run, but not in {job.store.root}: all must share that folder"
        )
    return finished


def _visible(job: Job) -> bool:
    """Whether the finished run is in the store as seen from here; a network file system may take a
    moment to show it.
    """
    for _ in range(20):
        if job.find() is not None:
            return True
        time.sleep(0.5)
        if job.store.root.exists():
            os.listdir(job.store.root)  # has the folder looked up anew
    return False
