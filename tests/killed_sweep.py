"""A sweep in a process of its own, to be killed: `python killed_sweep.py STORE TABLE`."""

import sys
from pathlib import Path

import toy

from curlnb.store import Store
from curlnb.sweep import sweep

if __name__ == "__main__":
    table = sweep(toy.regression, {"width": [8, 16]}, seeds=3, store=Store(Path(sys.argv[1])), workers=2, pause=0.02, epochs=6)
    table.drop(columns=["seconds"]).to_json(sys.argv[2], orient="records")
