from curlnb.extras import need

need(__name__, "cloudpickle", "filelock", "pandas", "safetensors", "threadpoolctl", "tqdm")
