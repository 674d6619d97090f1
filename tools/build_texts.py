"""How the committed text sets were made: `python tools/build_texts.py` writes wiki-mini, imdb-mini
and their word vectors anew.

The SHA-256 printed of each split are those in data/catalogue.json; another result means that a
source or the cleaning has changed.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch

from curlnb.data import catalogue, glove, texts
from curlnb.data.download import cache_folder
from curlnb.data.text_sources import imdb_mirror, wikipedia

REVIEWS = {"train": (750, 10), "test": (500, 1)}
"""Of each label, how many reviews imdb-mini takes, and how many sentences they must have: a
training review must hold a block of ten.
"""


def wiki_mini(folder: Path) -> None:
    """The paper's own rules (arora2019, Appendix D.1) on enwik8."""
    for split, documents in wikipedia("wiki-mini", folder):
        keep("wiki-mini", split, documents)


def imdb_mini(folder: Path) -> None:
    """The first reviews of each label that are long enough, in the order of their digests, which is
    a random one.
    """
    for split, documents in imdb_mirror(folder):
        count, least = REVIEWS[split]
        chosen: list[texts.Document] = []
        for label in (0, 1):
            chosen += [d for d in documents if d.label == label and len(d.sentences) >= least][
                :count
            ]
        keep("imdb-mini", split, sorted(chosen, key=lambda document: document.name))


def vectors(table: str, sets: Iterable[str], least: int) -> None:
    """Write those vectors of glove.6B.50d whose words occur at least `least` times in the sets, in
    GloVe's order, that of frequency.
    """
    used: Counter[str] = Counter()
    for name in sets:
        entry = texts.entry_of(name)
        for split in entry.splits:
            lines = catalogue.read(entry, split).splitlines()
            used.update(
                word for line in lines if not line.startswith("= ") for word in line.split(" ")
            )
    catalogue.fetch("glove.6B.50d")
    words, all_vectors = glove.word_vectors("glove.6B.50d")
    kept = torch.tensor(
        [
            number
            for number, word in enumerate(words)
            if number != glove.UNKNOWN and used[word] >= least
        ]
    )
    chosen = [words[number] for number in kept.tolist()]
    path, digest = catalogue.keep(catalogue.find(table), "all", (chosen, all_vectors[kept]))
    share = 100 * sum(used[word] for word in chosen) / used.total()
    print(
        f"{path.name}: {len(kept)} words, {share:.1f}% of the running words, {path.stat().st_size / 1e6:.1f} MB, sha256 {digest}"
    )


def keep(name: str, split: str, documents: list[texts.Document]) -> None:
    _, sha256 = catalogue.keep(texts.entry_of(name), split, documents)
    sentences = sum(len(document.sentences) for document in documents)
    print(f"{name} {split}: {len(documents)} documents, {sentences} sentences, sha256 {sha256}")


def main() -> None:
    wiki_mini(cache_folder() / ".wiki-mini.fetching")
    imdb_mini(cache_folder() / ".imdb.fetching")
    vectors("glove.6B.50d-mini", ("wiki-mini", "imdb-mini"), 2)


if __name__ == "__main__":
    main()
