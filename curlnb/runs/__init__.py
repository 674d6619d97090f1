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
