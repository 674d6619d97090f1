"""CURL, its supervised twin and the untrained network on data with latent classes.

Source: arora2019, Section 8. `train_and_measure` takes a `LatentWorld` and a model, for images and
text alike; `latent_images.curl` and `latent_text.curl` are the experiments. Similar points are
drawn from one class, negatives at random; CURL uses the classes for nothing else.

Blocks: b counts the positives that are averaged, as in Eq. 12. The paper's "blocks of size 2" are
pairs, b = 1 here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curlnb import evaluation, losses
from curlnb.choices import check_known
from curlnb.data import sampling
from curlnb.experiments.latent_losses import (
    average_task_loss,
    best_scale_loss,
    mean_loss,
    sampled_similarities,
)
from curlnb.runs import environment
from curlnb.runs.store import Run
from curlnb.runs.training import Accelerated, train

METHODS = ("curl", "supervised", "untrained")
KINDS = ("logistic", "hinge")
# share of the labels that `few_` metrics use (arora2019, Section 8.1: 50 of 500 labels per class)
FEW = 0.1

BlockObjective = Callable[[Tensor, torch.Generator], Tensor]
"""From embedded blocks [blocks, size, d], size = b + 1 points of one class each, to a mean loss."""


@dataclass(frozen=True)
class Blocks:
    """What is trained, and by which loss.

    method: "curl" (arora2019, Eq. 5, Eq. 12), "supervised" (cross-entropy of a linear layer on the
    representation) or "untrained"; some experiments have one more. loss: of KINDS. negatives: k;
    block: b, the positives averaged; both at least 1. ValueError for an unknown loss.
    """

    method: str = "curl"
    loss: str = "logistic"
    negatives: int = 4
    block: int = 1

    def __post_init__(self) -> None:
        check_known("loss", self.loss, KINDS)


@dataclass(frozen=True)
class LatentBlocks(Blocks):
    """Blocks drawn from latent classes.

    fresh: whether negative blocks are newly drawn; else they are the batch's other blocks
    (arora2019, footnote 7). share: the part of each class's training points, in (0, 1], used in
    training; the supervised twin uses only their labels.
    """

    fresh: bool = False
    share: float = 1.0


@dataclass(frozen=True)
class Measures:
    """What is measured in addition to the losses.

    tr_tasks: tasks sampled for trained classifiers, 0 for none. track: whether both losses are
    measured at every epoch.
    """

    tr_tasks: int = 0
    track: bool = False


class LatentWorld(NamedTuple):
    """Data with latent classes of any kind: the interface from the data to `train_and_measure`.

    labels: int64 [n] in 0..C-1 of the training points, on the run's device; test_labels: [n_test]
    of the evaluation points. inputs(samples [m], generator) -> the model's input for m points, with
    random augmentation where there is any; in training only. features(model, split) -> [n, d]
    float32 of all training points ("train") or evaluation points ("test"), in evaluation mode,
    without gradient. ways, top: the k of avg-k and the r of top-r that are measured.
    """

    labels: Tensor
    test_labels: Tensor
    inputs: Callable[[Tensor, torch.Generator], Any]
    features: Callable[[nn.Module, str], Tensor]
    ways: tuple[int, ...] = (2, 5)
    top: tuple[int, ...] = (1, 5)


class WithHead(nn.Module):
    """A representation and, if it is trained with labels, a linear layer on it."""

    def __init__(self, representation: nn.Module, dim: int, classes: int | None) -> None:
        super().__init__()
        self.representation = representation
        self.head = None if classes is None else nn.Linear(dim, classes)


def train_and_measure(
    run: Run,
    world: LatentWorld,
    model: nn.Module,
    dim: int,
    *,
    seed: int,
    blocks: LatentBlocks,
    optimisation: Accelerated,
    measures: Measures,
    objective: BlockObjective | None = None,
) -> dict[str, Any]:
    """Train `model` (inputs -> [m, dim]) and measure it by the mean classifier on average tasks.

    objective: for method "curl" only, another loss of the blocks instead of CURL's, for example
    quick-thoughts. batch: points embedded in a step, fresh negatives not counted; with (b + 1)
    points per block, a step has batch // (b + 1) blocks and every point is an anchor once. epochs:
    one embeds as many points as the whole training set has, so that data and updates are the same
    for every b, k, method and share. Returns the metrics of `measure`; train_loss, the last epoch's
    mean; with track, the lists track_un and track_sup, untrained network first. ValueError for an
    unknown method, a batch below two blocks, or classes smaller than a block.
    """
    if environment.dry():  # synthetic sets have few points per class
        block = min(blocks.block, int(torch.bincount(world.labels).min()) - 1)
        blocks, optimisation = (
            replace(blocks, block=block, share=1.0),
            replace(optimisation, batch=2 * (block + 1)),
        )
        measures = replace(measures, tr_tasks=min(measures.tr_tasks, 2))
    _check(blocks, world.labels, optimisation.batch)
    classes, supervised = int(world.labels.max()) + 1, blocks.method == "supervised"
    trained = WithHead(model, dim, classes if supervised else None).to(run.device)
    generator = torch.Generator(run.device).manual_seed(seed)
    seen = sampling.subset(world.labels, blocks.share, seed)
    metrics: dict[str, Any] = {}

    def tracked() -> dict[str, float]:
        x, g = (
            world.features(trained.representation, "test"),
            torch.Generator(run.device).manual_seed(0),
        )
        means = evaluation.mean_classifier(x, world.test_labels, classes)
        un = mean_loss(
            sampled_similarities(x, world.test_labels, negatives=1, generator=g), blocks.loss
        )
        return {
            "track_un": un,
            "track_sup": average_task_loss(x, world.test_labels, means, blocks.loss),
        }

    untrained = tracked() if measures.track else {}
    if blocks.method != "untrained":
        embed = optimisation.accelerate(trained.representation, run)
        index = sampling.class_index(world.labels[seen])
        largest, size, k = (
            int(index.size.max()),
            1 if supervised else blocks.block + 1,
            blocks.negatives,
        )

        def supervised_step(samples: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
            chosen = seen[samples % len(seen)]
            assert trained.head is not None
            scores = trained.head(embed(world.inputs(chosen, generator)).float())
            return F.cross_entropy(scores, world.labels[chosen]), {}

        def contrastive_step(samples: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
            count = len(samples) * (1 + k * blocks.fresh)
            chosen = seen[sampling.blocks(index, count, size, generator, largest=largest)]
            z = embed(world.inputs(chosen.flatten(), generator)).float().unflatten(0, (count, size))
            if blocks.fresh:
                positives, unlike = (
                    z[: len(samples)],
                    z[len(samples) :].unflatten(0, (len(samples), k)),
                )
                return fresh_block_loss(positives, unlike, blocks.loss), {}
            return (
                curl_block_loss(z, k, generator, blocks.loss)
                if objective is None
                else objective(z, generator)
            ), {}

        log = train(
            run,
            trained,
            supervised_step if supervised else contrastive_step,
            replace(optimisation, batch=optimisation.batch // size),
            samples=len(world.labels) // size,
            seed=seed,
            generator=generator,
            on_epoch=(lambda _: tracked()) if measures.track else None,
        )
        metrics = {name: [value, *log.get(name, [])] for name, value in untrained.items()}
        if log:
            metrics["train_loss"] = log["loss"][-1]
    few = sampling.subset(world.labels, FEW, seed)
    return metrics | measure(
        trained, world, few, seed=seed, negatives=blocks.negatives, tr_tasks=measures.tr_tasks
    )


def curl_block_loss(
    z: Tensor, k: int, generator: torch.Generator, kind: str = "logistic"
) -> Tensor:
    """CURL's loss with the batch's own blocks as negatives, 0-dim. z: [blocks, b + 1, d].

    Source: arora2019, Eq. 12 and footnote 7. Every point is an anchor once: its positives are the b
    others of its block, its k negative blocks the points at those same b places of other blocks, so
    that all blocks are means of b.
    """
    count, size, _ = z.shape
    means = leave_one_out(z)  # [blocks, b + 1, d]
    partner = sampling.other_blocks(count, size, k, generator)  # [blocks, b + 1, k]
    negative = means[partner, torch.arange(size, device=z.device)[:, None]]  # [blocks, b + 1, k, d]
    return losses.curl_loss(
        z.flatten(0, 1), means.flatten(0, 1), negative.flatten(0, 1), kind
    ).mean()


def fresh_block_loss(z: Tensor, negative: Tensor, kind: str = "logistic") -> Tensor:
    """CURL's loss with negative blocks drawn for each block, 0-dim.

    z: [blocks, b + 1, d]; negative: [blocks, k, b + 1, d].
    """
    # [blocks, b + 1, k, d]
    unlike = leave_one_out(negative.flatten(0, 1)).unflatten(0, negative.shape[:2]).transpose(1, 2)
    return losses.curl_loss(
        z.flatten(0, 1), leave_one_out(z).flatten(0, 1), unlike.flatten(0, 1), kind
    ).mean()


def leave_one_out(z: Tensor) -> Tensor:
    """Means of a block's other points: [blocks, size >= 2, d] -> the same shape."""
    return (z.sum(1, keepdim=True) - z) / (z.shape[1] - 1)


def measure(
    trained: WithHead, world: LatentWorld, few: Tensor, *, seed: int, negatives: int, tr_tasks: int
) -> dict[str, Any]:
    """All accuracies and losses of a representation.

    Shares in [0, 1]; r and k beyond the number of classes are left out. mu_avg<k>, mu_top<r>: mean
    classifier of all training labels; mu5_: of 5 labels per class, averaged over 5 draws; few_: of
    the points `few`; head_: the supervised twin's own layer; tr_: classifiers trained on the
    features, tr_avg<k>_se their sampling error (arora2019, Table 1). un_<kind>_<split>: L_un with k
    = 1 (Definition 2.3); unk_...: with the k of training; scaled_<kind>_train: un_ at the best
    scale of f; sup_<kind>_<split>: the average binary loss of the mean classifier of that split's
    own points, which un_ bounds (Lemma 4.3); tau_<split>: the chance that two points have the same
    class, for the bound.
    """
    x, y = world.features(trained.representation, "train"), world.labels
    test_x, test_y = world.features(trained.representation, "test"), world.test_labels
    classes, generator = int(y.max()) + 1, torch.Generator(x.device).manual_seed(seed)
    ways, top = [k for k in world.ways if k <= classes], [r for r in world.top if r < classes]

    def accuracies(classifier: Tensor, points: Tensor = test_x) -> dict[str, float]:
        scores = points.to(classifier.dtype) @ classifier.T
        shares = {f"avg{k}": evaluation.average_accuracy(scores, test_y, k) for k in ways}
        return shares | {f"top{r}": evaluation.top_r(scores, test_y, r) for r in top}

    def means_of(points: Tensor, labels: Tensor, **few: Any) -> dict[str, float]:
        return accuracies(evaluation.mean_classifier(points, labels, classes, **few))

    draws = [
        means_of(x, y, per_class=min(5, len(y) // classes), generator=generator) for _ in range(5)
    ]
    five = {name: math.fsum(draw[name] for draw in draws) / len(draws) for name in draws[0]}
    each = {"mu": means_of(x, y), "few": means_of(x[few], y[few]), "mu5": five}
    if trained.head is not None:
        head = torch.cat([trained.head.weight, trained.head.bias[:, None]], 1).detach()
        each["head"] = accuracies(head, F.pad(test_x, (0, 1), value=1.0))
    if tr_tasks:
        each["tr"] = accuracies(
            evaluation.linear_classifier(x, y), F.pad(test_x, (0, 1), value=1.0)
        )
        for k in (k for k in ways if k < classes):
            mean, error = evaluation.tr_accuracy(
                x, y, test_x, test_y, k, generator=generator, tasks=tr_tasks
            )
            each["tr"] |= {f"avg{k}": mean, f"avg{k}_se": error}
    metrics: dict[str, Any] = {
        f"{kind}_{name}": value for kind, values in each.items() for name, value in values.items()
    }
    for split, points, labels in (("train", x, y), ("test", test_x, test_y)):
        means = evaluation.mean_classifier(points, labels, classes)
        metrics[f"tau_{split}"] = float((torch.bincount(labels) / len(labels)).square().sum())
        un, unk = (
            sampled_similarities(points, labels, negatives=k, generator=generator)
            for k in (1, negatives)
        )
        for kind in KINDS:
            metrics |= {
                f"un_{kind}_{split}": mean_loss(un, kind),
                f"unk_{kind}_{split}": mean_loss(unk, kind),
            }
            if split == "train":
                metrics[f"scaled_{kind}_{split}"] = best_scale_loss(
                    points, labels, kind=kind, seed=seed
                )
            metrics[f"sup_{kind}_{split}"] = average_task_loss(points, labels, means, kind)
    return metrics


def _check(blocks: LatentBlocks, labels: Tensor, batch: int) -> None:
    check_known("method", blocks.method, METHODS)
    size = blocks.block + 1
    if batch < 2 * size:
        raise ValueError(
            f"a batch of {batch} holds less than two blocks of {size} points; use a larger batch"
        )
    least = int(torch.bincount(labels[sampling.subset(labels, blocks.share, 0)]).min())
    if blocks.method == "curl" and least < size:
        raise ValueError(
            f"a class has {least} training samples, a block needs {size}: use a smaller block or a "
            "larger share"
        )
