"""How the committed graph sets were made: `python tools/build_graphs.py` writes data/graphs/MUTAG and data/graphs/PTC_MR anew.

The SHA-256 printed are those in data/graphs.json; another result means that a source has changed.
"""

from curlnb.data.download import cache_folder
from curlnb.data.graph_sources import chemlogic, grakel
from curlnb.data.graphs import content_digest, read_tu, statistics
from curlnb.runs import environment


def main() -> None:
    for name, mirror in {"MUTAG": grakel, "PTC_MR": chemlogic}.items():
        target = environment.home() / "data" / "graphs" / name
        target.mkdir(parents=True, exist_ok=True)
        for _, tables in mirror(name, cache_folder() / f".{name}.fetching"):
            for part, text in tables.items():
                (target / f"{name}_{part}.txt").write_bytes(text.replace("\r", "").encode())
        raw = read_tu(target, name)
        print(name, statistics(raw), content_digest(raw))


if __name__ == "__main__":
    main()
