"""Data: `load(name, split, device)` gives images, `load_text` sentences, as tensors; `data/README.md` tells where each set comes from.

Small sets are committed, full ones are fetched into `data/cache/` by `fetch` or `make data`, from the original source where it is
reachable, else from a mirror, and always against a digest. Missing data never becomes other data.
"""

from curlnb.data.catalogue import available, fetch, names, prepare
from curlnb.data.download import DataError
from curlnb.data.images import Dataset, digest, holdout, load, long_tail, synthetic
from curlnb.data.texts import Texts
from curlnb.data.texts import digest as text_digest
from curlnb.data.texts import holdout as text_holdout
from curlnb.data.texts import load as load_text
from curlnb.data.texts import synthetic as synthetic_text

__all__ = [
    "DataError",
    "Dataset",
    "Texts",
    "available",
    "digest",
    "fetch",
    "holdout",
    "load",
    "load_text",
    "long_tail",
    "names",
    "prepare",
    "synthetic",
    "synthetic_text",
    "text_digest",
    "text_holdout",
]
