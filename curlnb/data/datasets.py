"""Data: `load(name, split, device)` gives images, `load_text` sentences, `graphs.load` graphs.

`data/README.md` says where each set comes from. Small sets are committed. `fetch` and `make data`
bring full ones into `data/cache/`: from their original address, from a mirror, or from official
files that you have (`make data FROM=folder`); they are verified whenever they are read. Missing
data never becomes other data. `from_folder` and `from_arrays` make a data set of your own.
"""

from curlnb.data import graphs
from curlnb.data.catalogue import names
from curlnb.data.download import DataError
from curlnb.data.images import (
    Dataset,
    OwnImages,
    coarse_labels,
    digest,
    holdout,
    load,
    long_tail,
    synthetic,
)
from curlnb.data.own_images import from_arrays, from_folder
from curlnb.data.texts import Texts
from curlnb.data.texts import digest as text_digest
from curlnb.data.texts import holdout as text_holdout
from curlnb.data.texts import load as load_text
from curlnb.data.texts import synthetic as synthetic_text
from curlnb.data.verified import available, fetch, prepare

__all__ = [
    "DataError",
    "Dataset",
    "OwnImages",
    "Texts",
    "available",
    "coarse_labels",
    "digest",
    "fetch",
    "from_arrays",
    "from_folder",
    "graphs",
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
