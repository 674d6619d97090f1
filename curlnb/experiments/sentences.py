"""Quick-thoughts with debiased and hard negatives, and SentEval's tasks.

Source: Section 5.3 and Table 2 of chuang2020 and of robinson2021. A batch is B consecutive
sentences of books. Two encoders f and g read each of them; by inner products f(x)'g(x'), the
sentences before and after a sentence are to be distinguished from the others of the batch. A
sentence's representation is f(x) and g(x) side by side.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from curlnb.choices import check_known
from curlnb.data import sentences, texts
from curlnb.data.texts import Texts
from curlnb.evaluation import sentence_tasks
from curlnb.experiments.neighbour_loss import neighbour_loss
from curlnb.models.gru import BiGRU, MeanOfVectors, PackedSentences, encode, pack
from curlnb.runs.environment import kept_in_memory, limited
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Optimisation, TrainingError, optimiser, train

OBJECTIVES = ("biased", "debiased", "hard")
METHODS = (*OBJECTIVES, "untrained", "mean")


@dataclass(frozen=True)
class NeighbourContrast:
    """Which encoders are trained, and by which loss.

    method: "biased" is quick-thoughts; "debiased" takes tau_plus, "hard" tau_plus and beta
    (`neighbour_loss`); "untrained" leaves the random encoders as they are; "mean" is the mean of a
    sentence's word vectors. tau_plus, beta, weight_clip, floor: as in `losses.contrastive_loss`.
    diagonal, sibling: as in `columns`. ValueError for an unknown method, and for settings that it
    does not take.
    """

    method: str = "biased"
    tau_plus: float = 0.0
    beta: float = 0.0
    weight_clip: str | None = "rescale"
    floor: str | float | None = "sphere"
    diagonal: str = "out"
    sibling: str = "out"

    def __post_init__(self) -> None:
        check_known("method", self.method, METHODS)
        if (self.tau_plus and self.method not in ("debiased", "hard")) or (
            self.beta and self.method != "hard"
        ):
            refused = "beta" if self.beta else "tau_plus"
            raise ValueError(
                f"method {self.method!r} takes no {refused}; 'debiased' takes tau_plus, 'hard' both"
            )


@dataclass(frozen=True)
class SentenceEncoders:
    """The sentence encoders and the text that they read.

    hidden: states of each of the two directions of each of the two encoders. word_dim: None for the
    set's own fixed word vectors, else the length of trained ones, which start from random values,
    with a table for each encoder, for the `vocabulary` most frequent words. words: the books'
    sentences are truncated to that many words; the tasks' are read whole. first: train only on that
    many sentences from the beginning of the books.
    """

    hidden: int = 64
    word_dim: int | None = None
    vocabulary: int = 50_000
    words: int = 30
    first: int | None = None


@dataclass(frozen=True)
class Tasks:
    """The evaluation.

    tasks: names of SentEval's tasks; folds, inner: as in `sentence_tasks.cross_validated`;
    evaluate_tasks: False leaves the tasks out.
    """

    tasks: tuple[str, ...] | list[str] = ("MR", "CR", "SUBJ", "TREC")
    folds: int = 10
    inner: int = 9
    evaluate_tasks: bool = True

    @property
    def evaluated(self) -> list[str]:
        return list(self.tasks) if self.evaluate_tasks else []


@experiment(
    name="sentences.quick_thoughts",
    data=lambda p: "".join(
        sentences.digest(name) for name in dict.fromkeys((p["dataset"], *p["tasks"]))
    ),
)
def quick_thoughts(
    run: Run,
    *,
    seed: int,
    dataset: str = "books-mini",
    tasks: Tasks = Tasks(),
    loss: NeighbourContrast = NeighbourContrast(),
    reading: SentenceEncoders = SentenceEncoders(),
    optimisation: Optimisation = Optimisation(epochs=1, batch=400, lr=5e-4, weight_decay=0.0),
    clip_norm: float = 5.0,
) -> dict[str, Any]:
    """Train on books, then measure next-sentence retrieval on a held-out book and SentEval's tasks.

    clip_norm: the largest norm of a gradient; longer ones are scaled down to it. Returns for each
    task its accuracy (share), <task>_dev, that of the held-out parts that chose the penalty, and
    MSRP_f1; next (share of held-out sentences whose successor has the highest score of its batch);
    for trained methods, means over the last epoch: loss, clamped (share of anchors on the floor),
    positive and negative (mean scores), norm (mean length of f(x)); diverged (1 if, with
    floor=None, the loss ceased to be finite at the step `diverged_at`; all else is then None).
    ValueError for fewer sentences than a batch.
    """
    optimisation, reading = limited(optimisation, batch=20), limited(reading, words=8, hidden=8)
    tasks, mean = limited(tasks, inner=1), loss.method == "mean"
    entry = texts.entry_of(dataset)
    word_dim = None if mean else reading.word_dim  # the mean needs the fixed vectors
    books, number = _read(dataset, "train", run.device, entry.vectors), None
    if word_dim is not None:
        number, known = sentences.most_frequent(books, reading.vocabulary)
        books = replace(
            books, tokens=number[books.tokens.long()], vocabulary=known, vectors=books.vectors[:1]
        )

    def read(name: str, split: str) -> Texts:
        """Another text, in the books' vocabulary."""
        found = _read(name, split, run.device, entry.vectors)
        return found if number is None else replace(found, tokens=number[found.tokens.long()])

    model = encoders(books, reading.hidden, word_dim, mean=mean).to(run.device)
    log: dict[str, list[float]] = {}
    if loss.method in OBJECTIVES:
        try:
            log = train_encoders(
                run, model, books, loss, reading, optimisation, clip_norm=clip_norm, seed=seed
            )
        except TrainingError as error:
            if loss.floor is not None:
                raise
            return _diverged(tasks.evaluated, str(error))
    metrics: dict[str, Any] = {
        "diverged": 0.0,
        "diverged_at": None,
        **{name: curve[-1] for name, curve in log.items()},
    }
    metrics |= {
        f"{name}_curve": [round(value, 5) for value in curve]
        for name, curve in log.items()
        if len(curve) > 1
    }
    held_out = "dev" if "dev" in entry.splits else "train"
    metrics["next"] = (
        None
        if mean
        else next_sentence(model, read(dataset, held_out), reading.words, optimisation.batch)
    )
    for task in tasks.evaluated:
        score = task_score(model, task, read, tasks.folds, tasks.inner)
        metrics |= {task: score.accuracy, f"{task}_dev": score.dev} | (
            {"MSRP_f1": score.f1} if task == "MSRP" else {}
        )
    return metrics


class TwoEncoders(nn.Module):
    """f and g, each a bidirectional GRU: m sentences -> [m, 2 dim], f(x) and g(x) side by side."""

    def __init__(self, f: BiGRU, g: BiGRU) -> None:
        super().__init__()
        self.f, self.g = f, g

    def forward(self, batch: PackedSentences) -> Tensor:
        return torch.cat([self.f(batch), self.g(batch)], 1)


class TrainedWords(BiGRU):
    """A BiGRU whose word vectors are trained, too."""

    def __init__(self, vectors: Tensor, hidden: int) -> None:
        super().__init__(vectors, hidden, dropout=0.0)
        del self.vectors
        self.vectors = nn.Parameter(vectors)

    def forward(self, batch: PackedSentences) -> Tensor:
        last = self.native(batch)  # `unrolled` has no gradient with respect to its input
        return torch.cat([last[0], last[1]], 1)[batch.place]


def encoders(
    books: Texts, hidden: int, word_dim: int | None = None, *, mean: bool = False
) -> nn.Module:
    """The network: two encoders; with `mean`, the mean of word vectors."""
    if mean:
        return MeanOfVectors(books.vectors)
    if word_dim is None:
        return TwoEncoders(BiGRU(books.vectors, hidden, 0.0), BiGRU(books.vectors, hidden, 0.0))
    tables = [torch.empty(len(books.vocabulary), word_dim).uniform_(-0.1, 0.1) for _ in range(2)]
    return TwoEncoders(*(TrainedWords(table, hidden) for table in tables))


# --- training


def batches_of(count: int, batch: int) -> int:
    """The number of batches of consecutive sentences that `count` sentences give.

    The rest at the end is dropped. ValueError if there is no batch, and for batches below 4.
    """
    if batch < 4:
        raise ValueError(
            f"a batch of {batch} consecutive sentences is too small: two neighbours and a negative "
            "need 4"
        )
    if count < batch:
        raise ValueError(
            f"the books have {count} sentences, fewer than a batch of {batch}: use a smaller batch "
            "or more books"
        )
    return count // batch


def train_encoders(
    run: Run,
    model: nn.Module,
    books: Texts,
    loss: NeighbourContrast,
    reading: SentenceEncoders,
    optimisation: Optimisation,
    *,
    clip_norm: float,
    seed: int,
) -> dict[str, list[float]]:
    """Train f and g on batches of consecutive sentences, in random order.

    Returns the log, one number per epoch. TrainingError where the loss is not finite.
    """
    assert isinstance(model, TwoEncoders)
    batch, place = optimisation.batch, torch.arange(optimisation.batch, device=run.device)
    optimizer = optimiser(model, optimisation, run.device)

    def shorten(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)

    optimizer.register_step_pre_hook(shorten)
    options = {name: value for name, value in asdict(loss).items() if name != "method"}

    def step(index: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
        samples = index * batch + place
        read = pack(books, samples, reading.words)
        f, g = model.f(read).float(), model.g(read).float()
        value, about = neighbour_loss(f @ g.T, books.labels[samples], **options)
        return value, about | {"norm": f.detach().norm(dim=1).mean()}

    samples = batches_of(
        len(books) if reading.first is None else min(reading.first, len(books)), batch
    )
    return train(
        run,
        model,
        step,
        replace(optimisation, batch=1),
        samples=samples,
        seed=seed,
        generator=torch.Generator(run.device).manual_seed(seed),
        optimizer=optimizer,
    )


def _diverged(tasks: list[str], said: str) -> dict[str, Any]:
    step = re.search(r"at step (\d+)", said)
    names = [
        "next",
        "loss",
        "clamped",
        "positive",
        "negative",
        "norm",
        *tasks,
        *(f"{task}_dev" for task in tasks),
    ]
    return {"diverged": 1.0, "diverged_at": int(step[1]) if step else None, **dict.fromkeys(names)}


# --- measures


@torch.no_grad()
def next_sentence(model: nn.Module, books: Texts, words: int, batch: int) -> float:
    """The share of a held-out book's sentences whose successor has the highest score of its batch.

    A score is f of one sentence times g of the other. words: sentences are truncated to that many.
    """
    z = encode(model, books, words=words)
    half, size = z.shape[1] // 2, min(batch, len(books))
    right = []
    for own in torch.arange(batches_of(len(books), size) * size, device=z.device).split(size):
        scores = (z[own, :half] @ z[own, half:].T).fill_diagonal_(-torch.inf)
        right.append(scores.argmax(1)[:-1] == torch.arange(1, size, device=z.device))
    return float(torch.cat(right).float().mean())


def task_score(
    model: nn.Module, task: str, read: Callable[[str, str], Texts], folds: int = 10, inner: int = 9
) -> sentence_tasks.Score:
    """The score on a task, after SentEval's protocol.

    read(task, split): its rows, in the model's vocabulary.
    """

    def features(split: str) -> tuple[Tensor, Tensor]:
        data = read(task, split)
        z = encode(model, data)  # whole sentences, however short those of training were cut
        assert data.sentiment is not None
        return sentence_tasks.pair_features(
            z[::2], z[1::2]
        ) if task == "MSRP" else z, data.sentiment

    x, y = features("train")
    if "test" not in texts.entry_of(task).splits:
        return sentence_tasks.cross_validated(x, y, count=folds, inner=inner)
    return sentence_tasks.train_test(
        x, y, *features("test"), count=folds, inner=min(folds, inner + 1)
    )


@kept_in_memory(12)
def _read(name: str, split: str, device: torch.device, vectors: str | None) -> Texts:
    return sentences.load(name, split, device, vectors=vectors)
