"""How the committed graph sets were made: `python tools/build_graphs.py` writes data/graphs/MUTAG
and data/graphs/PTC_MR anew.

The SHA-256 printed are those in data/catalogue.json; another result means that a source has
changed.
"""

from collections.abc import Iterator
from pathlib import Path

from curlnb.data.download import cache_folder, pypi_members
from curlnb.data.graphs import Tables, chemlogic, content_digest, read_tu, statistics
from curlnb.runs import environment

GRAKEL = (
    "grakel-0.1.11-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "f05f03c1ca23919bbb1e9d9132de4e1791e004cdd284a7e98d2897ac8495f0a7",
)


def grakel(name: str, folder: Path) -> Iterator[tuple[str, Tables]]:
    """MUTAG from the package grakel, which has TU's own files."""
    parts = ("A", "graph_indicator", "graph_labels", "node_labels", "edge_labels")
    found = pypi_members(
        *GRAKEL, [f"grakel/tests/data/{name}/{name}_{part}.txt" for part in parts], folder
    )
    yield "all", {part: found[f"{name}_{part}.txt"].decode() for part in parts}


def main() -> None:
    for name, mirror in {"MUTAG": grakel, "PTC_MR": chemlogic}.items():
        target = environment.home() / "data" / "graphs" / name
        target.mkdir(parents=True, exist_ok=True)
        ((_, tables),) = mirror(name, cache_folder() / f".{name}.fetching")
        for part, text in tables.items():
            (target / f"{name}_{part}.txt").write_bytes(text.replace("\r", "").encode())
        raw = read_tu(target, name)
        print(name, statistics(raw), content_digest(raw))


if __name__ == "__main__":
    main()
