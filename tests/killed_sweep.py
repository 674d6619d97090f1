"""Sweeps in processes of their own, to be killed. For each line `STORE TABLE WORKERS PAUSE` a child
is forked: nothing is imported twice.

Prints the child's process id, which leads a process group of its own, and when the child has ended
its exit status.
"""

import os
import sys
import tempfile
from pathlib import Path

import pandas as pd  # noqa: F401  # imported before the forks, like torch
import toy

from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep


def main(store, table, workers, pause):
    """pause: seconds that each of 288 steps takes longer."""
    found = sweep(
        toy.regression,
        {"width": [8, 16]},
        seeds=3,
        store=Store(Path(store)),
        workers=int(workers),
        pause=float(pause),
        epochs=6,
    )
    found.drop(columns=["seconds", "pause", "identity"]).to_json(table, orient="records")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(
            f"{folder}/store", f"{folder}/table", "0", "0"
        )  # what torch imports only when it is first used
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            main(*line.split())
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
