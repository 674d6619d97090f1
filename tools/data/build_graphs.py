"""How the committed graph sets were made: `python tools/data/build_graphs.py` writes
data/graphs/MUTAG and data/graphs/PTC_MR anew.

The SHA-256 printed are those in data/catalogue.json; another result means that a source has
changed.
"""

from mirrors import chemlogic_tables
from packages import pypi_members

from curlnb.data.contents import graph_digest, read_tables
from curlnb.data.download import cache_folder
from curlnb.runs import environment

GRAKEL = (
    "grakel-0.1.11-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "f05f03c1ca23919bbb1e9d9132de4e1791e004cdd284a7e98d2897ac8495f0a7",
)
PARTS = ("A", "graph_indicator", "graph_labels", "node_labels", "edge_labels")


def main() -> None:
    working = cache_folder() / ".graphs.mirror"
    members = [f"grakel/tests/data/MUTAG/MUTAG_{part}.txt" for part in PARTS]  # TU's own files
    found = pypi_members(*GRAKEL, members, working)
    mutag = {part: found[f"MUTAG_{part}.txt"].decode() for part in PARTS}
    for name, tables in {"MUTAG": mutag, "PTC_MR": chemlogic_tables("PTC_MR", working)}.items():
        target = environment.home() / "data" / "graphs" / name
        target.mkdir(parents=True, exist_ok=True)
        for part, text in tables.items():
            (target / f"{name}_{part}.txt").write_bytes(text.replace("\r", "").encode())
        print(name, graph_digest(read_tables(tables)))


if __name__ == "__main__":
    main()
