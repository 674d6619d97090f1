"""arora2019's experiments on sentences: CURL, its supervised twin, quick-thoughts and baselines.

In `curl` articles are the latent classes, as in the paper (Table 1, Figure 2b, Table 2). In
`reviews` a block consists of consecutive sentences of one review, and a linear classifier separates
good reviews from bad ones (Table 2, IMDb).
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from curlnb import evaluation
from curlnb.choices import check_known
from curlnb.data import datasets
from curlnb.data.glove import UNKNOWN
from curlnb.data.texts import entry_of
from curlnb.experiments.latent import (
    Blocks,
    LatentBlocks,
    LatentWorld,
    Measures,
    curl_block_loss,
    train_and_measure,
)
from curlnb.models.gru import BiGRU, MeanOfVectors, PackedSentences, encode, pack
from curlnb.runs import environment
from curlnb.runs.environment import kept_in_memory, limited
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Accelerated, Optimisation, train

ENCODERS = ("gru", "mean", "mean_centred")
METHODS = ("curl", "supervised", "untrained", "quick_thoughts")


@dataclass(frozen=True)
class SentenceEncoder:
    """How a sentence is represented.

    encoder: "gru", a bidirectional GRU of `hidden` states per direction with dropout of the share
    `dropout` in training; or the mean of a sentence's word vectors (for method "untrained" only),
    "mean" as they are, "mean_centred" after subtracting the mean over all training words, without
    which every inner product is dominated by what all English sentences have in common. words:
    sentences are truncated to that many words, in training and in evaluation; None: not at all.
    ValueError for an unknown encoder.
    """

    encoder: str = "gru"
    hidden: int = 150
    dropout: float = 0.3
    words: int | None = None

    def __post_init__(self) -> None:
        check_known("encoder", self.encoder, ENCODERS)


@experiment(
    name="latent_text.curl", data=lambda parameters: datasets.text_digest(parameters["dataset"])
)
def curl(
    run: Run,
    *,
    seed: int,
    dataset: str = "wiki-mini",
    evaluate_on: str = "test",
    reader: SentenceEncoder = SentenceEncoder(),
    blocks: LatentBlocks = LatentBlocks(negatives=8, block=9),
    optimisation: Optimisation = Optimisation(epochs=12, batch=640, weight_decay=0.0),
    measures: Measures = Measures(),
) -> dict[str, Any]:
    """Train and measure by `latent.train_and_measure` on the sentences of articles.

    evaluate_on: "test", or "dev", the tenth on which settings are chosen. method: one of METHODS;
    for "quick_thoughts" see `quick_thoughts_loss`, block and batch are as for "curl".
    """
    _check(reader, blocks.method)
    fit, held_out = _texts(dataset, "train", run.device), _texts(dataset, evaluate_on, run.device)
    (model, dim), world = _model(reader, fit), text_world(fit, held_out, reader.words)
    how: dict[str, Any] = {
        "seed": seed,
        "optimisation": Accelerated(**asdict(optimisation)),
        "measures": measures,
    }
    if blocks.method == "quick_thoughts":
        return train_and_measure(
            run,
            world,
            model,
            dim,
            blocks=replace(blocks, method="curl"),
            objective=quick_thoughts_loss,
            **how,
        )
    return train_and_measure(run, world, model, dim, blocks=blocks, **how)


@experiment(
    name="latent_text.reviews",
    data=lambda parameters: "".join(
        datasets.text_digest(parameters[name])
        for name in ("dataset", "train_on")
        if parameters[name]
    ),
)
def reviews(
    run: Run,
    *,
    seed: int,
    dataset: str = "imdb-mini",
    train_on: str | None = None,
    evaluate_on: str = "test",
    reader: SentenceEncoder = SentenceEncoder(),
    blocks: Blocks = Blocks(negatives=8, block=9),
    optimisation: Optimisation = Optimisation(epochs=4, batch=640, weight_decay=0.0),
) -> dict[str, Any]:
    """Train on blocks of a review's sentences, without labels, and classify reviews.

    Source: arora2019, Table 2. train_on: the set whose training split gives the sentences, by
    default `dataset`, and whose table of word vectors is used for both; the labels of `dataset`
    serve only the classifier. evaluate_on: "test", or "validation", a fifth of the training reviews
    held out from everything else. method: "curl", "quick_thoughts" or "untrained"; block, batch and
    epochs as in `curl`, so that updates and sentences are the same for each block size; blocks need
    reviews of their length, so in a set with shorter ones larger blocks come from fewer reviews. A
    review is represented by the mean of its sentences' representations (the paper does not specify
    it). Returns accuracy (linear probe), mu_accuracy (mean classifier) and train_loss, of the last
    epoch. ValueError for method "supervised".
    """
    _check(reader, blocks.method)
    if blocks.method == "supervised":
        raise ValueError(
            "reviews knows no method 'supervised'; use 'curl', 'quick_thoughts' or 'untrained'"
        )
    vectors = entry_of(train_on or dataset).vectors  # one table for all texts
    labelled = _texts(dataset, "train", run.device, vectors)
    if evaluate_on == "validation":
        labelled, held_out = datasets.text_holdout(labelled, 0.2, seed=0)
    else:
        held_out = _texts(dataset, evaluate_on, run.device, vectors)
    fit = _texts(train_on, "train", run.device, vectors) if train_on else labelled
    model = _model(reader, fit)[0].to(run.device)
    metrics: dict[str, Any] = {}
    if blocks.method != "untrained":
        metrics = _train_on_blocks(run, model, fit, reader.words, blocks, optimisation, seed)
    train_x, test_x = (  # [reviews, d]
        evaluation.mean_classifier(
            encode(model, texts, words=reader.words), texts.labels, len(texts.classes)
        )
        for texts in (labelled, held_out)
    )
    y, test_y = _sentiment(labelled), _sentiment(held_out)
    metrics["mu_accuracy"] = evaluation.top_r(
        test_x @ evaluation.mean_classifier(train_x, y, 2).T, test_y, 1
    )
    metrics["accuracy"] = evaluation.linear_probe(train_x, y, test_x, test_y).accuracy
    return metrics


def quick_thoughts_loss(z: Tensor, generator: Generator | None = None) -> Tensor:
    """Quick-thoughts on blocks z [blocks, size, d], 0-dim.

    Logeswaran and Lee 2018, as arora2019's Table 2 uses it: every ordered pair of a block's points
    is a similar pair, which a softmax of inner products contrasts with all sentences of the batch's
    other blocks. One network serves as both of theirs, f and g; nothing is drawn from the
    generator.
    """
    blocks, size, _ = z.shape
    flat = z.flatten(0, 1)
    scores = flat @ flat.T  # [n, n]
    own = torch.arange(blocks, device=z.device).repeat_interleave(size)
    same = own[:, None] == own
    others = scores.masked_fill(same, -torch.inf).logsumexp(1, keepdim=True)  # [n, 1]
    loss = torch.logaddexp(scores, others) - scores
    pairs = same & ~torch.eye(len(flat), dtype=torch.bool, device=z.device)
    return torch.where(pairs, loss, 0.0).sum() / pairs.sum()


def consecutive(texts: datasets.Texts, size: int) -> Tensor:
    """The indices at which a block of `size` consecutive sentences of one text can begin.

    ValueError if there are none.
    """
    last = torch.arange(len(texts), device=texts.labels.device)[size - 1 :]
    starts = last[texts.labels[last] == texts.labels[last - size + 1]] - size + 1
    if not len(starts):
        raise ValueError(f"no text of {texts.name} has {size} sentences: use smaller blocks")
    return starts


def _sentiment(texts: datasets.Texts) -> Tensor:
    if texts.sentiment is None:
        raise ValueError(
            f"{texts.name} has no labelled reviews; it can be train_on only, with a dataset "
            "like 'imdb'"
        )
    return texts.sentiment


def text_world(fit: datasets.Texts, held_out: datasets.Texts, words: int | None) -> LatentWorld:
    """Articles as latent classes."""
    if fit.classes != held_out.classes and not environment.dry():
        raise ValueError(
            f"{fit.name} ({fit.split}) and {held_out.name} ({held_out.split}) do not hold the same "
            "articles"
        )
    texts = {"train": fit, "test": held_out}

    def inputs(samples: Tensor, generator: Generator) -> PackedSentences:
        return pack(fit, samples, words)

    def features(model: nn.Module, split: str) -> Tensor:
        return encode(model, texts[split], words=words)

    return LatentWorld(fit.labels, held_out.labels, inputs, features, ways=(2, 10), top=(1, 10))


def _train_on_blocks(
    run: Run,
    model: nn.Module,
    fit: datasets.Texts,
    words: int | None,
    blocks: Blocks,
    optimisation: Optimisation,
    seed: int,
) -> dict[str, Any]:
    size, generator = blocks.block + 1, torch.Generator(run.device).manual_seed(seed)
    starts, steps = consecutive(fit, size), torch.arange(size, device=run.device)
    optimisation = limited(optimisation, batch=2 * size)

    def step(samples: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
        begin = starts[
            torch.randint(len(starts), (len(samples),), generator=generator, device=run.device)
        ]
        z = (
            model(pack(fit, (begin[:, None] + steps).flatten(), words))
            .float()
            .unflatten(0, (len(samples), size))
        )
        quick_thoughts = blocks.method == "quick_thoughts"
        return (
            quick_thoughts_loss(z)
            if quick_thoughts
            else curl_block_loss(z, blocks.negatives, generator, blocks.loss)
        ), {}

    blockwise = replace(optimisation, batch=optimisation.batch // size)
    log = train(
        run, model, step, blockwise, samples=len(fit) // size, seed=seed, generator=generator
    )
    return {"train_loss": log["loss"][-1]} if log else {}


@kept_in_memory(4)  # reading and numbering words takes a second
def _texts(
    name: str, split: str, device: torch.device, vectors: str | None = None
) -> datasets.Texts:
    return datasets.load_text(name, split, device, vectors=vectors)


def _model(reader: SentenceEncoder, texts: datasets.Texts) -> tuple[nn.Module, int]:
    if reader.encoder != "gru":
        vectors = texts.vectors
        if reader.encoder == "mean_centred":
            vectors = vectors - vectors[texts.tokens[texts.tokens != UNKNOWN]].mean(0)
            vectors[UNKNOWN] = 0
        return MeanOfVectors(vectors), vectors.shape[1]
    model = BiGRU(texts.vectors, reader.hidden, reader.dropout)
    return model, model.dim


def _check(reader: SentenceEncoder, method: str) -> None:
    check_known("method", method, METHODS)
    if reader.encoder != "gru" and method != "untrained":
        raise ValueError(
            f"the mean of word vectors has nothing to train: use method 'untrained', not {method!r}"
        )
