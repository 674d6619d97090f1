"""Books to learn sentences from, and the six tasks that judge sentences (SentEval; chuang2020,
Section 5.3; robinson2021, Section 5.3).

They are text sets like the others (`texts`): a book is an article; a row of a task is a labelled
article of one sentence, or of two where sentences are compared.
"""

import torch
from torch import Tensor

from curlnb.data import catalogue, texts
from curlnb.data.glove import UNKNOWN
from curlnb.data.texts import Texts
from curlnb.runs import environment

VECTORS = texts.SENTENCE_VECTORS
TASKS = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MSRP")
"""The papers' six, in the order of their tables. A set `MR-full` is the original MR, where `MR` is
what could be had of it.
"""


def load(
    name: str, split: str, device: str | torch.device = "cpu", *, vectors: str | None = None
) -> Texts:
    """Books or a task as `texts.load` gives them; under CURLNB_DRY=1 a task has 60 rows."""
    entry = texts.entry_of(name, split)
    if environment.dry() and entry.labelled:
        return texts.synthetic(
            name, split, articles=60, each=2 if name == "MSRP" else 1, vectors=vectors
        ).to(device)
    return texts.load(name, split, device, vectors=vectors)


def digest(name: str) -> str:
    """As `texts.digest`, with the committed word vectors' own."""
    return texts.digest(name) + (
        catalogue.find(VECTORS).sha256["all"] if texts.entry_of(name).vectors == VECTORS else ""
    )


def most_frequent(books: Texts, size: int) -> tuple[Tensor, tuple[str, ...]]:
    """A vocabulary of its own: the `size` most frequent known words of `books`, after the unknown
    one.

    Returns the new number of each old one [V], int32, and the words.
    """
    count = torch.bincount(books.tokens.long(), minlength=len(books.vocabulary))
    count[UNKNOWN] = 0
    kept = count.argsort(descending=True, stable=True)[: min(size, int((count > 0).sum()))]
    number = torch.full((len(books.vocabulary),), UNKNOWN, dtype=torch.int32, device=kept.device)
    number[kept] = torch.arange(1, len(kept) + 1, dtype=torch.int32, device=kept.device)
    return number, ("?", *(books.vocabulary[old] for old in kept.tolist()))
