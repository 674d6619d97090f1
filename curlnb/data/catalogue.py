"""The table of all data sets, `data/catalogue.json`: a row each, looked up without reading data.

A set consists of parts: the splits of images and texts, a single part "all" for graphs and word
vectors. `sha256` holds the digest of each part's content as it is loaded, whatever the file format
(`contents`). It identifies the data in the keys of runs, and `verified.read` checks it.
"""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curlnb.data.download import DataError
from curlnb.runs import environment
from curlnb.runs.files import read_json


@dataclass(frozen=True, eq=False)
class Entry:
    """A row of the catalogue.

    splits: samples by split. sha256: digests by part; empty if the content was never at hand, so
    that the digest of the first fetch counts (`verified`). reader: the function that reads the
    official files (`official_sets`). archive: the address of the whole set, archive_sha256: its
    digest; without one it is not fetched, but read if the user has it. files: official files
    without an archive, all of them needed, that the user has. mirror: whether
    `tools/data/mirrors.py` knows another source, and whether it comes "first" or "last". megabytes:
    what a fetch transfers. Images: shape [c, h, w] and classes. Texts: articles (or reviews) by
    split, vectors (the default table of word vectors), labelled. Graphs: numbers of graphs, classes
    and node labels (0 without); nodes, edges: averages a graph, undirected edges counted once, with
    the two decimals that the paper prints.
    """

    name: str
    modality: str
    origin: str
    committed: bool
    stand_in: bool = False
    splits: dict[str, int] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    reader: str = ""
    archive: str = ""
    archive_sha256: str = ""
    files: tuple[str, ...] = ()
    mirror: str = ""
    megabytes: int = 0
    shape: tuple[int, int, int] = (0, 0, 0)
    classes: tuple[str, ...] = ()
    articles: dict[str, int] = field(default_factory=dict)
    vectors: str = ""
    labelled: bool = False
    graphs: int = 0
    n_classes: int = 0
    nodes: float = 0.0
    edges: float = 0.0
    node_labels: int = 0

    @property
    def parts(self) -> list[str]:
        """What has a file of its own; `train+unlabeled` of STL-10 is read as its two parts."""
        return [split for split in self.splits if "+" not in split] or ["all"]


def names(modality: str | None = None) -> tuple[str, ...]:
    """The sets of a modality ("images", "texts", "graphs", "vectors"); default: all but vectors."""
    return tuple(
        name
        for name, entry in entries().items()
        if (entry.modality == modality if modality else entry.modality != "vectors")
    )


def find(name: str, split: str | None = None, modality: str | None = None) -> Entry:
    """The row of a set. DataError, which lists what there is, if the set or split is unknown."""
    entry = entries().get(name)
    if entry is None or modality not in (None, entry.modality):
        what = f"set of {modality}" if modality else "set"
        raise DataError(f"unknown {what} {name!r}: there are {', '.join(names(modality))}")
    if split is not None and split not in entry.splits:
        hint = "; for a validation split, divide the training data with holdout()"
        raise DataError(
            f"{name} has no split {split!r}, but {', '.join(entry.splits)}"
            + hint * str(split).startswith("val")
        )
    return entry


def entries() -> dict[str, Entry]:
    """The rows by the names of the sets."""
    return _entries(environment.home() / "data" / "catalogue.json")


@functools.cache
def _entries(path: Path) -> dict[str, Entry]:
    rows = read_json(path)
    if not rows:
        raise DataError(f"{path} is missing: set CURLNB_HOME to a checkout of this project")
    found = {}
    for name, row in rows.items():
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        found[name] = Entry(name, **fields)
    return found
