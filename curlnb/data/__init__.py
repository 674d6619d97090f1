"""Data sets, read from official files and held to digests; augmentation and sampling."""

from curlnb.extras import need

need(__name__, "notebooks", "PIL", "filelock", "safetensors", "tqdm")
