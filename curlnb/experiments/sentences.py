"""Quick-thoughts with debiased and hard negatives, and SentEval's tasks (chuang2020, Section 5.3; robinson2021, Section 5.3; Table 2 of
both).

A batch is B consecutive sentences of books. Two encoders f and g read each of them; a sentence is to tell, by inner products f(x)'g(x'),
the sentences before and after it from the others of the batch. A sentence's representation is f(x) and g(x) side by side.
"""

import functools
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from curlnb import losses
from curlnb.data import sentences, texts
from curlnb.data.texts import Texts
from curlnb.evaluation import sentence_tasks
from curlnb.models.gru import Batch, BiGRU, MeanOfVectors, encode, pack
from curlnb.runs import environment
from curlnb.runs.store import Run, experiment
from curlnb.runs.training import TrainingError, train

OBJECTIVES = ("biased", "debiased", "hard")
METHODS = (*OBJECTIVES, "untrained", "mean")


@experiment(data=lambda p: "".join(sentences.digest(name) for name in dict.fromkeys((p["dataset"], *p["tasks"]))))
def quick_thoughts(
    run: Run,
    *,
    seed: int,
    dataset: str = "books-mini",
    tasks: tuple[str, ...] | list[str] = ("MR", "CR", "SUBJ", "TREC"),
    method: str = "biased",
    tau_plus: float = 0.0,
    beta: float = 0.0,
    weight_clip: str | None = "rescale",
    floor: str | float | None = "sphere",
    diagonal: str = "out",
    sibling: str = "out",
    hidden: int = 64,
    word_dim: int | None = None,
    vocabulary: int = 50_000,
    words: int = 30,
    first: int | None = None,
    batch: int = 400,
    epochs: int = 1,
    lr: float = 5e-4,
    clip_norm: float = 5.0,
    folds: int = 10,
    inner: int = 9,
    evaluate_tasks: bool = True,
) -> dict[str, Any]:
    """Train on the books' training split, then measure next-sentence retrieval on its held-out book and the tasks by SentEval's protocol.

    method: "biased" is quick-thoughts; "debiased" takes tau_plus, "hard" tau_plus and beta (`objective`); "untrained" leaves the random
    encoders as they are; "mean" is the mean of a sentence's word vectors. weight_clip, floor: as `losses.contrastive_loss`. diagonal,
    sibling: as `columns`. hidden: states of each of the two directions of each of the two encoders. word_dim: None for the set's own
    fixed word vectors, else trained ones of that size, from random values, a table for each encoder, for the `vocabulary` most frequent
    words. words: the books' sentences are cut behind so many; the tasks' are read whole. first: train on the books' first so many
    sentences only. epochs: passes over the books. clip_norm: gradients longer than that are shortened. inner: as
    `senteval.cross_validated`.

    Returns for each task its accuracy (share), <task>_dev, that of the held-out parts that chose the penalty, and MSRP_f1; next (share of
    held-out sentences whose successor has the highest score of its batch); for trained methods by the end of training loss, clamped (share
    of anchors on the floor), positive and negative (mean scores), norm (mean length of f(x)); diverged (1 where the loss ceased to be
    finite at the step `diverged_at`, and everything else is None). ValueError for an unknown method, and for fewer sentences than a batch.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is unknown; use one of {', '.join(METHODS)}")
    if (tau_plus and method not in ("debiased", "hard")) or (beta and method != "hard"):
        raise ValueError(f"method {method!r} takes no {'beta' if beta else 'tau_plus'}; 'debiased' takes tau_plus, 'hard' both")
    if environment.dry():
        batch, words, hidden, inner = min(batch, 20), min(words, 8), min(hidden, 8), 1
    word_dim = None if method == "mean" else word_dim  # which takes the vectors that there are
    books, number = _books(dataset, "train", run.device, word_dim, vocabulary, environment.dry())
    model = encoders(books, hidden, word_dim, mean=method == "mean").to(run.device)
    log: dict[str, list[float]] = {}
    if method in OBJECTIVES:
        options = {"tau_plus": tau_plus, "beta": beta, "weight_clip": weight_clip, "floor": floor, "diagonal": diagonal, "sibling": sibling}
        try:
            log = learn(
                run, model, books, options, seed=seed, words=words, first=first, batch=batch, epochs=epochs, lr=lr, clip_norm=clip_norm
            )
        except TrainingError as error:
            if floor is not None:
                raise
            return _diverged(tasks if evaluate_tasks else (), str(error))
    metrics: dict[str, Any] = {"diverged": 0.0, "diverged_at": None, **{name: curve[-1] for name, curve in log.items()}}
    metrics |= {f"{name}_curve": [round(value, 5) for value in curve] for name, curve in log.items() if len(curve) > 1}
    metrics["next"] = (
        None if method == "mean" else next_sentence(model, _held_out(dataset, run.device, number, environment.dry()), words, batch)
    )
    for task in tasks if evaluate_tasks else ():
        score = judge(model, task, books, number, run.device, folds, inner)
        metrics |= {task: score.accuracy, f"{task}_dev": score.dev} | ({"MSRP_f1": score.f1} if task == "MSRP" else {})
    return metrics


class TwoEncoders(nn.Module):
    """f and g, each a bidirectional GRU: Batch -> [m, 2 dim], f(x) and g(x) side by side."""

    def __init__(self, f: BiGRU, g: BiGRU) -> None:
        super().__init__()
        self.f, self.g = f, g

    def forward(self, batch: Batch) -> Tensor:
        return torch.cat([self.f(batch), self.g(batch)], 1)


class TrainedWords(BiGRU):
    """A BiGRU whose word vectors are trained too."""

    def __init__(self, vectors: Tensor, hidden: int) -> None:
        super().__init__(vectors, hidden, dropout=0.0)
        del self.vectors
        self.vectors = nn.Parameter(vectors)

    def forward(self, batch: Batch) -> Tensor:
        last = self.native(batch)  # `unrolled` has no gradient with respect to its input
        return torch.cat([last[0], last[1]], 1)[batch.place]


def encoders(books: Texts, hidden: int, word_dim: int | None = None, *, mean: bool = False) -> nn.Module:
    """The network: two encoders; with `mean`, the mean of word vectors."""
    if mean:
        return MeanOfVectors(books.vectors)
    if word_dim is None:
        return TwoEncoders(BiGRU(books.vectors, hidden, 0.0), BiGRU(books.vectors, hidden, 0.0))
    tables = [torch.empty(len(books.vocabulary), word_dim).uniform_(-0.1, 0.1) for _ in range(2)]
    return TwoEncoders(*(TrainedWords(table, hidden) for table in tables))


# --- the objective


def columns(own: Tensor, diagonal: str = "out", sibling: str = "out") -> tuple[Tensor, Tensor, Tensor]:
    """Who is whose neighbour among B consecutive sentences, and who is a negative.

    own: [B], the book of each sentence; neighbours are of one book. diagonal: "out", a sentence is not its own negative, or "zero", as in
    the released code, whose self-scores of 0 stay in the softmax. sibling: whether one neighbour counts among the negatives of the
    other; "in" is quick-thoughts' softmax over all other sentences. Returns there [2, B] bool, whether a sentence has a predecessor and a
    successor; near [2, B], their places (any where there is none); negative [2, B, B] bool. ValueError for another word.
    """
    if diagonal not in ("out", "zero") or sibling not in ("out", "in"):
        raise ValueError(f"diagonal must be 'out' or 'zero' and sibling 'out' or 'in', not {diagonal!r} and {sibling!r}")
    size = len(own)
    place = torch.arange(size, device=own.device)
    same = own[1:] == own[:-1]
    edge = same.new_zeros(1)
    there = torch.stack([torch.cat([edge, same]), torch.cat([same, edge])])
    near = torch.stack([(place - 1).clamp_min(0), (place + 1).clamp_max(size - 1)])
    positive = (place == near[:, :, None]) & there[:, :, None]  # [2, B, B]
    negative = ~(positive if sibling == "in" else positive.any(0).expand_as(positive))
    if diagonal == "out":
        negative = negative & ~torch.eye(size, dtype=torch.bool, device=own.device)
    return there, near, negative


def objective(
    scores: Tensor,
    own: Tensor,
    *,
    tau_plus: float = 0.0,
    beta: float = 0.0,
    weight_clip: str | None = "rescale",
    floor: str | float | None = "sphere",
    diagonal: str = "out",
    sibling: str = "out",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Quick-thoughts' loss with g of chuang2020, Eq. 16, or robinson2021, Eq. 4, M = 2, and what is worth logging. All 0-dim.

    scores: [B, B], f of the row's sentence with g of the column's; own: [B] books. An anchor's loss is the mean of
    -log e^{s_j} / (e^{s_j} + N g) over its one or two neighbours j, g being of both; N is the number of negatives of an anchor with two.
    With tau_plus = beta = 0, diagonal "zero" and sibling "in" this is the released code: cross-entropy with targets 1/2, 1/2. Temperature
    1; scores are not normalised.
    """
    there, near, negative = columns(own, diagonal, sibling)
    if diagonal == "zero":
        scores = scores * (1 - torch.eye(len(scores), dtype=scores.dtype, device=scores.device))
    pos = torch.stack([scores.gather(1, column[:, None])[:, 0] for column in near])  # [2, B]
    both = torch.where(there, pos, pos.flip(0)).T  # an anchor with one neighbour has it twice, which is M = 1
    options: dict[str, Any] = {"temperature": 1.0, "tau_plus": tau_plus, "beta": beta, "extra_pos": both, "floor": floor}
    options["weight_clip"] = weight_clip if beta > 0 else None
    n = float(len(own) - 1 - (diagonal == "out") - (sibling == "out"))
    weight = there / there.sum(0).clamp_min(1)
    total, clamped = scores.new_zeros(()), scores.new_zeros(())
    for column in range(2):
        each, floored = losses.loss_and_clamped(pos[column], scores, mask=negative[column], n_eff=n, **options)
        total = total + torch.where(there[column], each * weight[column], 0.0).sum()
        clamped = clamped + floored / 2
    anchors = there.any(0).sum().clamp_min(1)
    with torch.no_grad():
        wide = negative[0].to(scores.dtype)
        about = {"clamped": clamped, "positive": pos[there].mean(), "negative": (scores * wide).sum() / wide.sum()}
    return total / anchors, about


# --- training


def blocks(count: int, batch: int) -> int:
    """How many batches of consecutive sentences `count` sentences give, what is left over at the end dropped. ValueError if none."""
    if batch < 4:
        raise ValueError(f"a batch of {batch} consecutive sentences is too small: two neighbours and a negative need 4")
    if count < batch:
        raise ValueError(f"the books have {count} sentences, fewer than a batch of {batch}: use a smaller batch or more books")
    return count // batch


def learn(
    run: Run,
    model: nn.Module,
    books: Texts,
    options: dict[str, Any],
    *,
    seed: int,
    words: int,
    first: int | None,
    batch: int,
    epochs: int,
    lr: float,
    clip_norm: float,
) -> dict[str, list[float]]:
    """Train f and g on batches of consecutive sentences, in random order. options: of `objective`. Returns the log, a number an epoch.

    TrainingError where the loss is not finite.
    """
    assert isinstance(model, TwoEncoders)
    count, place = blocks(len(books) if first is None else min(first, len(books)), batch), torch.arange(batch, device=run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=run.device.type != "mps")

    def shorten(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)

    optimizer.register_step_pre_hook(shorten)

    def step(index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        samples = index * batch + place
        read = pack(books, samples, words)
        f, g = model.f(read).float(), model.g(read).float()
        loss, about = objective(f @ g.T, books.labels[samples], **options)
        return loss, about | {"norm": f.detach().norm(dim=1).mean()}

    return train(
        run,
        model,
        step,
        optimizer,
        samples=count,
        batch=1,
        epochs=epochs,
        seed=seed,
        generator=torch.Generator(run.device).manual_seed(seed),
    )


def _diverged(tasks: tuple[str, ...] | list[str], said: str) -> dict[str, Any]:
    step = re.search(r"at step (\d+)", said)
    names = ["next", "loss", "clamped", "positive", "negative", "norm", *tasks, *(f"{task}_dev" for task in tasks)]
    return {"diverged": 1.0, "diverged_at": int(step[1]) if step else None, **dict.fromkeys(names)}


# --- measures


@torch.no_grad()
def next_sentence(model: nn.Module, books: Texts, words: int, batch: int) -> float:
    """Share of a held-out book's sentences whose successor scores highest (f of one, g of the other) among all others of their batch."""
    z = encode(model, books, words=words)
    half, size = z.shape[1] // 2, min(batch, len(books))
    right = []
    for own in torch.arange(blocks(len(books), size) * size, device=z.device).split(size):
        scores = (z[own, :half] @ z[own, half:].T).fill_diagonal_(-torch.inf)
        right.append(scores.argmax(1)[:-1] == torch.arange(1, size, device=z.device))
    return float(torch.cat(right).float().mean())


def judge(
    model: nn.Module,
    task: str,
    books: Texts,
    number: Tensor | None,
    device: torch.device,
    folds: int = 10,
    inner: int = 9,
) -> sentence_tasks.Score:
    """A task by SentEval's protocol. number: the vocabulary of `sentences.most_frequent`, if the books have one of their own."""

    def features(split: str) -> tuple[Tensor, Tensor]:
        data = _renumbered(_read(task, split, device, texts.entry_of(books.name).vectors, environment.dry()), number)
        z = encode(model, data)  # whole sentences, however short those of training were cut
        assert data.sentiment is not None
        return sentence_tasks.pair_features(z[::2], z[1::2]) if task == "MSRP" else z, data.sentiment

    x, y = features("train")
    if "test" not in texts.entry_of(task).splits:
        return sentence_tasks.cross_validated(x, y, count=folds, inner=inner)
    return sentence_tasks.train_test(x, y, *features("test"), count=folds, inner=min(folds, inner + 1))


def _books(name: str, split: str, device: torch.device, word_dim: int | None, vocabulary: int, dry: bool) -> tuple[Texts, Tensor | None]:
    books = _read(name, split, device, None, dry)
    if word_dim is None:
        return books, None
    number, known = sentences.most_frequent(books, vocabulary)
    return replace(_renumbered(books, number), vocabulary=known, vectors=books.vectors[:1]), number


def _held_out(name: str, device: torch.device, number: Tensor | None, dry: bool) -> Texts:
    split = "dev" if "dev" in texts.entry_of(name).splits else "train"
    return _renumbered(_read(name, split, device, None, dry), number)


def _renumbered(found: Texts, number: Tensor | None) -> Texts:
    return found if number is None else replace(found, tokens=number[found.tokens.long()])


@functools.lru_cache(maxsize=12)  # a process does many runs on the same few sets
def _read(name: str, split: str, device: torch.device, vectors: str | None, dry: bool) -> Texts:
    return sentences.load(name, split, device, vectors=vectors)
