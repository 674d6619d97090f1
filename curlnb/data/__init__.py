from curlnb.extras import need

need(__name__, "notebooks", "PIL", "filelock", "safetensors", "tqdm")
