"""A sweep in a process of its own, to be killed: `python killed_sweep.py STORE TABLE WORKERS`."""

import sys
from pathlib import Path

import toy

from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep

if __name__ == "__main__":
    store, workers = Store(Path(sys.argv[1])), int(sys.argv[3])
    table = sweep(toy.regression, {"width": [8, 16]}, seeds=3, store=store, workers=workers, pause=0.05, epochs=10)
    table.drop(columns=["seconds"]).to_json(sys.argv[2], orient="records")
