"""How the committed text sets were made: `python tools/data/build_texts.py` writes wiki-mini,
imdb-mini and their word vectors anew.

The SHA-256 printed of each split are those in data/catalogue.json; another result means that a
source or the cleaning has changed.
"""

from collections import Counter
from collections.abc import Iterable

import torch
from mirrors import imdb, wikipedia

from curlnb.data import catalogue, glove, official_texts, texts, verified
from curlnb.data.download import cache_folder

REVIEWS = {"train": (750, 10), "test": (500, 1)}
"""Of each label, how many reviews imdb-mini takes, and how many sentences they must have: a
training review must hold a block of ten.
"""


def imdb_mini() -> None:
    """The first reviews of each label that are long enough, in the order of their digests, which is
    a random one.
    """
    for split, text in imdb(cache_folder() / ".imdb.mirror"):
        count, least = REVIEWS[split]
        left = {"0": count, "1": count}
        chosen = []
        for document in text.removeprefix("= ").split("\n= "):
            title, *sentences = document.rstrip("\n").split("\n")
            label = title[-1]
            if len(sentences) >= least and left[label]:
                left[label] -= 1
                chosen.append("\n".join([f"= {title}", *sentences]) + "\n")
        keep("imdb-mini", split, "".join(chosen))


def vectors(table: str, sets: Iterable[str], least: int) -> None:
    """Write those vectors of glove.6B.50d whose words occur at least `least` times in the sets, in
    GloVe's order, that of frequency.
    """
    used: Counter[str] = Counter()
    for name in sets:
        entry = texts.entry_of(name)
        for split in entry.splits:
            lines = verified.read(entry, split).splitlines()
            used.update(
                word for line in lines if not line.startswith("= ") for word in line.split(" ")
            )
    verified.fetch("glove.6B.50d")
    words, values = glove.word_vectors("glove.6B.50d")
    kept = [
        number
        for number, word in enumerate(words)
        if number != glove.UNKNOWN and used[word] >= least
    ]
    chosen = [words[number] for number in kept]
    content = official_texts.vectors(chosen, values[torch.tensor(kept)])
    digest = verified.keep(catalogue.find(table), "all", content)
    share = 100 * sum(used[word] for word in chosen) / used.total()
    print(f"{table}: {len(kept)} words, {share:.1f}% of the running words, sha256 {digest}")


def keep(name: str, split: str, text: str) -> None:
    sha256 = verified.keep(texts.entry_of(name), split, text)
    documents = text.count("\n= ") + 1
    sentences = len(text.splitlines()) - documents
    print(f"{name} {split}: {documents} documents, {sentences} sentences, sha256 {sha256}")


def main() -> None:
    for split, text in wikipedia("wiki-mini", cache_folder() / ".wiki-mini.mirror"):
        keep("wiki-mini", split, text)
    imdb_mini()
    vectors("glove.6B.50d-mini", ("wiki-mini", "imdb-mini"), 2)


if __name__ == "__main__":
    main()
