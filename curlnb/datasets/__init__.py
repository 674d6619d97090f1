"""Data: `load(name, split, device)` gives a `Dataset` of tensors; `data/README.md` tells where each set comes from and under what terms.

Small sets are committed, full ones are fetched into `data/cache/` by `fetch` or `make data`, from the original source where it is
reachable, else from a mirror, and always against a digest. Missing data never becomes other data.
"""

from curlnb.datasets.download import DataError
from curlnb.datasets.images import Dataset, available, digest, fetch, holdout, load, names, prepare, synthetic

__all__ = ["DataError", "Dataset", "available", "digest", "fetch", "holdout", "load", "names", "prepare", "synthetic"]
