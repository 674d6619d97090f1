from curlnb.extras import need

need(
    __name__, "cloudpickle", "filelock", "pandas", "psutil", "safetensors", "threadpoolctl", "tqdm"
)
