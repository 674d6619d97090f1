"""How the committed books and tasks were made: `python -m curlnb.datasets.build_sentences` writes them and their word vectors anew.

The SHA-256 printed of each split are those in data/texts.json; another result means that a source or the cleaning has changed.
"""

from collections import Counter

import torch

from curlnb.datasets import glove, texts
from curlnb.datasets.download import cache_folder
from curlnb.datasets.sentence_sources import COMMITTED
from curlnb.datasets.sentences import VECTORS

LEAST = 3
"""How often a word must occur in all these texts together for its vector to be committed."""


def vectors() -> None:
    """Those vectors of glove.6B.50d whose words occur at least `LEAST` times, in GloVe's order, that of frequency."""
    used: Counter[str] = Counter()
    for name in COMMITTED:
        entry = texts.entry_of(name)
        for split in entry.splits:
            lines = texts.read(entry, split).splitlines()
            used.update(word for line in lines if not line.startswith("= ") for word in line.split(" "))
    glove.fetch_vectors("glove.6B.50d")
    words, table = glove.word_vectors("glove.6B.50d")
    kept = torch.tensor([number for number, word in enumerate(words) if number != glove.UNKNOWN and used[word] >= LEAST])
    chosen = [words[number] for number in kept.tolist()]
    path = glove.write_vectors(VECTORS, chosen, table[kept], "glove.6B.50d, in half precision")
    share = 100 * sum(used[word] for word in chosen) / used.total()
    known, vectors = glove.word_vectors(VECTORS)
    digest = glove.vectors_digest(torch.frombuffer(bytearray("\n".join(known).encode()), dtype=torch.uint8), vectors.half())
    print(f"{path.name}: {len(kept)} words, {share:.1f}% of the running words, {path.stat().st_size / 1e6:.1f} MB, sha256 {digest}")


def main() -> None:
    for name, source in COMMITTED.items():
        for split, documents in source(cache_folder() / ".sentences.fetching"):
            sha256, sentences = texts.write(texts.entry_of(name), split, documents)
            print(f"{name} {split}: {len(documents)} books or rows, {sentences} sentences, sha256 {sha256}")
    vectors()


if __name__ == "__main__":
    main()
