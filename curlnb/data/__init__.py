from curlnb.extras import need

need(__name__, "PIL", "filelock", "safetensors", "tqdm")
