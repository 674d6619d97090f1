"""Labelled graphs as tensors: the eight TU data sets of robinson2021 (Tables 3 and 4), and three
stand-ins. This module works without torch_geometric.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import torch
from torch import Tensor

from curlnb.data import catalogue, verified
from curlnb.data.contents import Raw, undirected
from curlnb.runs import environment

# from this largest degree on, a node without label is described by its standardised degree (the
# released code)
MOST_DEGREES = 1000


@dataclass(frozen=True, eq=False)
class Graphs:
    """A set of undirected graphs, or some of them, as one graph that is not connected.

    x: float32 [nodes, d] node features; edges: int64 [2, m], each edge in both directions; batch:
    int64 [nodes] the graph of each node, ascending; labels: int64 [graphs] in 0..classes-1. A graph
    may have no edges; it has at least one node. stand_in: True where robinson2021 does not use this
    set.
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
        """The graphs `chosen` (int64 [k], distinct), in that order, nodes and edges renumbered."""
        device = self.labels.device
        place = torch.full((len(self),), -1, device=device).scatter(
            0, chosen, torch.arange(len(chosen), device=device)
        )
        own = place[
            self.batch
        ]  # [nodes]: the new number of each node's graph, -1 where it is left out
        nodes = own.argsort(stable=True)[(own < 0).sum() :]
        number = torch.full_like(own, -1).scatter(0, nodes, torch.arange(len(nodes), device=device))
        edges = number[self.edges]
        return replace(
            self,
            x=self.x[nodes],
            edges=edges[:, edges[0] >= 0],
            batch=own[nodes],
            labels=self.labels[chosen],
        )


entry_of = partial(catalogue.find, modality="graphs")
"""The row of a graph set; DataError if the set is unknown."""


def load(name: str, device: str | torch.device = "cpu") -> Graphs:
    """A set of graphs on `device`, its content verified where its digest is known.

    Node features as in the code released with robinson2021: labels one-hot; without labels the
    degree, one-hot, or standardised where it reaches 1,000. Raises DataError for an unknown name
    and for data that is absent or damaged. Under CURLNB_DRY=1: `synthetic` data.
    """
    entry = entry_of(name)
    raw: Raw = synthetic(name) if environment.dry() else verified.read(entry, "all")
    x, edges, batch, labels = (
        tensor.to(device) for tensor in (features(raw), raw.edges, raw.batch, raw.labels)
    )
    return Graphs(name, x, edges, batch, labels, entry.n_classes, entry.origin, entry.stand_in)


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


def synthetic(name: str) -> Raw:
    """Random graphs with a set's classes, node labels and average size, for dry runs, the same
    every time. Labels go round the classes.
    """
    entry = entry_of(name)
    graphs = max(24, 10 * entry.n_classes)
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    size = torch.randint(3, 2 * int(entry.nodes) - 2, (graphs,), generator=generator)
    batch, first = torch.arange(graphs).repeat_interleave(size), size.cumsum(0) - size
    m = int(entry.edges * graphs)
    owner = torch.randint(graphs, (m,), generator=generator)
    ends = (torch.rand(2, m, generator=generator) * size[owner]).long() + first[owner]
    labels = (
        torch.randint(entry.node_labels, (len(batch),), generator=generator)
        if entry.node_labels
        else None
    )
    if labels is not None:
        labels[: entry.node_labels] = torch.arange(entry.node_labels)[: len(labels)]
    return Raw(undirected(ends, len(batch)), batch, torch.arange(graphs) % entry.n_classes, labels)


def digest(name: str) -> str:
    """What identifies a set's content, for keys, without reading it: from the committed table."""
    entry = entry_of(name)
    known = f"synthetic {name}" if environment.dry() else entry.sha256.get("all", name)
    return hashlib.sha256(known.encode()).hexdigest()
