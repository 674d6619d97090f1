"""Runs: experiments, their keys, the store, sweeps, training and what they were made with."""

from curlnb.extras import need

need(
    __name__,
    "notebooks",
    "cloudpickle",
    "filelock",
    "pandas",
    "safetensors",
    "threadpoolctl",
    "tqdm",
)
