"""How the committed books and tasks were made: `python tools/build_sentences.py` writes them and their word vectors anew.

The SHA-256 printed of each split are those in data/texts.json; another result means that a source or the cleaning has changed.
"""

from build_texts import keep, vectors

from curlnb.data.download import cache_folder
from curlnb.data.sentence_sources import COMMITTED
from curlnb.data.sentences import VECTORS

LEAST = 3
"""How often a word must occur in all these texts together for its vector to be committed."""


def main() -> None:
    for name, source in COMMITTED.items():
        for split, documents in source(cache_folder() / ".sentences.fetching"):
            keep(name, split, documents)
    vectors(VECTORS, COMMITTED, LEAST)


if __name__ == "__main__":
    main()
