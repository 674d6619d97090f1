"""Contrastive learning of images: SimCLR with the objectives of the three papers (chuang2020, Section 5.1; robinson2021, Section 5.1)."""

import copy
import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from curlnb import evaluation, losses
from curlnb.data import augment, datasets, imagenet100, sampling
from curlnb.models.encoders import SimCLR, encoder, projection_head, split_batch_norm
from curlnb.runs import distributed, environment
from curlnb.runs.store import Run, experiment
from curlnb.runs.training import accelerated, train
from curlnb.theory import finite_worlds

OBJECTIVES = ("biased", "debiased", "hard", "hard_consistent", "unbiased")
POSITIVES = ("augmented", "true")
SCHEDULES = ("constant", "down", "up")
WORLD = 500  # test images in the finite world on which arora2019's losses are measured: exact, and its cost grows as the cube
SCALES = (0.3, 0.5, 0.8, 1.3, 2.0, 3.0, 5.0, 8.0)  # by which unit-norm features are multiplied there


def network(name: str, channels: int, bn_groups: int = 1) -> SimCLR:
    """Encoder and head, batch norm over `bn_groups` groups of what it is given, in the memory layout that convolutions like."""
    body, dim = encoder(name, in_channels=channels)
    model = SimCLR(body, projection_head(dim))
    if bn_groups > 1:
        split_batch_norm(model, bn_groups)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def digest(parameters: dict[str, Any]) -> str:
    """Of the data that `parameters` name."""
    return imagenet100.digest() if parameters["dataset"] == imagenet100.NAME else datasets.digest(parameters["dataset"])


@dataclass(frozen=True)
class Fitted:
    """A trained model, the data its classifiers are fitted and measured on, the generator where training left it, and the log."""

    model: SimCLR
    labelled: datasets.Dataset
    held_out: datasets.Dataset
    generator: torch.Generator
    log: dict[str, list[float]]


def fit(
    run: Run,
    *,
    seed: int,
    dataset: str = "cifar10-mini",
    train_split: str = "train",
    evaluate_on: str = "test",
    encoder: str = "cnn",
    objective: str = "biased",
    tau_plus: float = 0.0,
    beta: float = 0.0,
    schedule: str = "constant",
    negatives: int | None = None,
    views: int = 2,
    positives: str = "augmented",
    temperature: float = 0.5,
    epochs: int = 10,
    batch: int = 256,
    size: int = 32,
    lr: float = 1e-3,
    weight_decay: float = 1e-6,
    bn_groups: int | None = None,
    precision: str = "float32",
    compile: bool = False,
    monitor_every: int = 0,
    monitor_k: int | None = None,
) -> Fitted:
    """Train an encoder on a data set without its labels, save where the objective needs them.

    dataset: an image set, or "imagenet100". train_split: what is trained on ("train", or STL-10's "train+unlabeled"); evaluate_on: "test",
    or "validation", a fifth of the labelled training images held out from everything else, on which settings are chosen.
    objective: one of OBJECTIVES; tau_plus, beta: as in `losses.contrastive_loss`. schedule: one of SCHEDULES; "down" takes beta to 0 in
    equal steps over the training, "up" from 0 to beta. negatives: N, drawn from the batch's for each anchor; None for all,
    views x (batch - 1). views: M + 1. positives: "augmented" views of an image, or "true": views of other
    images of its class (labels for positives only; robinson2021, Section 6.1). size: of the random crops, in pixels; encoders are
    evaluated on whole images. bn_groups: parts of each view that batch norm takes statistics of; None: of all views together. Under
    torchrun the batch is shared by the ranks (see `distributed`).
    monitor_every: epochs between kNN measurements, 0 for none; monitor_k: of that many equal votes, None for the released code's 200
    weighted ones.
    """
    _check(objective, positives, schedule, tau_plus, beta, views)
    data, labelled, held_out = splits(dataset, train_split, evaluate_on, run.device)
    batch = min(batch, 4) if environment.dry() else batch
    groups = distributed.groups_here(bn_groups)
    model = network(encoder, data.images.shape[1], views * groups if groups else 1).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay, fused=run.device.type != "mps")
    distributed.join(run, model, optimizer, synchronise=not bn_groups)
    generator = torch.Generator(run.device).manual_seed(seed)
    index = sampling.class_index(data.labels) if positives == "true" else None
    height, width = data.images.shape[2:]
    at = 0.0  # the share of the training that is done

    def embed(images: Tensor, parameters: augment.Parameters) -> Tensor:
        return model(augment.apply(images, parameters, size=size).contiguous(memory_format=torch.channels_last))[1]

    embed = accelerated(embed, run, precision=precision, compile=compile)

    def step(samples: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mine, draws = distributed.share(samples), distributed.stream(generator)
        seen = [mine]
        for _ in range(views - 1):
            seen.append(mine if index is None else sampling.similar(index, data.labels, mine, draws))
        parameters = augment.draw(views * len(mine), height, width, draws, colour=data.images.shape[1] == 3)
        z = distributed.gather(embed(data.images.index_select(0, torch.cat(seen)), parameters), views).chunk(views)
        loss, clamped = objective_loss(
            objective,
            z,
            data.labels[samples],
            generator,
            negatives=negatives,
            temperature=temperature,
            tau_plus=tau_plus,
            beta=scheduled(beta, schedule, at),
        )
        return loss, {"clamped": clamped}

    def before_step(done: float) -> None:
        nonlocal at
        at = done

    def monitor(epoch: int) -> dict[str, float]:
        return {"knn": _knn(model.encoder, labelled, held_out, monitor_k)} if monitor_every and epoch % monitor_every == 0 else {}

    log = train(
        run,
        model,
        step,
        optimizer,
        samples=len(data.images),
        batch=batch,
        epochs=epochs,
        seed=seed,
        generator=generator,
        before_step=before_step,
        on_epoch=monitor,
    )
    return Fitted(model, labelled, held_out, generator, log)


@experiment(data=digest, extends=fit)
def simclr(run: Run, *, seed: int, released_probe: bool = False, **training: Any) -> dict[str, Any]:
    """Train as `fit` says, whose arguments `training` are, and evaluate the encoder with labels. released_probe: the released code's, too.

    Returns knn, linear (top-1 shares on the evaluation split, of features before the head), linear_top5, loss and clamped (of the last
    epoch), and knn_curve if monitored.
    """
    fitted = fit(run, seed=seed, **training)
    metrics = evaluate(fitted.model.encoder, fitted.labelled, fitted.held_out, fitted.generator, released=released_probe)
    return metrics | last(fitted.log)


@experiment(data=digest, extends=fit)
def surrogate(run: Run, *, seed: int, **training: Any) -> dict[str, Any]:
    """Train as `fit` says, then measure both sides of arora2019's Lemma 4.3 where the encoder's features are the points.

    The points are WORLD images of the evaluation split, alike many of each class, their features at each of SCALES x unit length.
    Returns tau and, for each loss kind, lists L_un_<kind>, L_un_same_<kind> (Eq. 8's first term) and L_sup_mu_<kind>, with a value a scale.
    """
    fitted = fit(run, seed=seed, **training)
    labels = fitted.held_out.labels
    points = nn.functional.normalize(features(fitted.model.encoder, fitted.held_out), dim=1)
    some = first_of_each(labels, WORLD)
    metrics: dict[str, Any] = {}
    for kind in ("hinge", "logistic"):
        worlds = [finite_worlds.empirical_pair_losses(scale * points[some].cpu(), labels[some].cpu(), kind) for scale in SCALES]
        metrics |= {
            "tau": float(worlds[0].tau),
            f"L_un_{kind}": [round(float(world.unsupervised), 6) for world in worlds],
            f"L_un_same_{kind}": [round(float(world.same_class), 6) for world in worlds],
            f"L_sup_mu_{kind}": [round(float(world.supervised()), 6) for world in worlds],
        }
    return metrics


def last(log: dict[str, list[float]]) -> dict[str, Any]:
    """What a run returns of its training's log: the last epoch's value of each scalar, and of kNN the whole curve."""
    return {f"{name}_curve" if name == "knn" else name: curve if name == "knn" else curve[-1] for name, curve in log.items()}


def scheduled(beta: float, schedule: str, done: float) -> float:
    """beta when the share `done` in [0, 1) of the training is over (robinson2021, Section 6.1 and Figure 7: annealing)."""
    return {"constant": beta, "down": beta * (1 - done), "up": beta * done}[schedule]


def objective_loss(
    objective: str,
    views: tuple[Tensor, ...],
    labels: Tensor,
    generator: torch.Generator,
    *,
    negatives: int | None,
    temperature: float,
    tau_plus: float,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Mean loss of a batch of views [B, d] each, and the share of anchors on the floor; labels [B] serve "unbiased" alone."""
    pos, neg = losses.pairwise(*views)
    same = losses.same_label_mask(labels, len(views)) if objective == "unbiased" else None
    if negatives is not None and negatives < neg.shape[1]:
        if same is None:
            neg = losses.subsample(neg, negatives, generator)
        else:
            neg, same = losses.subsample(neg, negatives, generator, same)
    if same is not None:
        return losses.unbiased(pos, neg, same, temperature=temperature).mean(), pos.new_zeros(())
    extra = losses.positives(*views) if len(views) > 2 else None
    options: dict[str, Any] = {"temperature": temperature, "tau_plus": tau_plus, "beta": beta, "extra_pos": extra}
    options["consistent"] = objective == "hard_consistent"
    loss, clamped = losses.loss_and_clamped(pos, neg, **options)
    return loss.mean(), clamped


def evaluate(
    body: nn.Module, labelled: datasets.Dataset, held_out: datasets.Dataset, generator: torch.Generator, *, released: bool = False
) -> dict[str, Any]:
    """How well a trained encoder serves: kNN, the `frozen` probe, and on demand the `released` one."""
    train_x, test_x = features(body, labelled), features(body, held_out)
    probe = evaluation.linear_probe(train_x, labelled.labels, test_x, held_out.labels)
    metrics: dict[str, Any] = {
        "knn": evaluation.knn(train_x, labelled.labels, test_x, held_out.labels, k=min(200, len(train_x))),
        "linear": probe.accuracy,
        "linear_top5": probe.top5,
    }
    if released:
        metrics["linear_released"] = evaluation.released_probe(
            split_batch_norm(copy.deepcopy(body), 1),  # the probe sees one view
            labelled.images,
            labelled.labels,
            held_out.images,
            held_out.labels,
            augment=augment.simclr,
            transform=_normalised,
            generator=generator,
            epochs=1 if environment.dry() else 100,
        ).accuracy
    return metrics


def splits(name: str, train_split: str, evaluate_on: str, device: torch.device) -> tuple[datasets.Dataset, ...]:
    """What is trained on, what the classifiers are fitted on, and what they are measured on, whole on `device` (ImageNet-100: 25 GB)."""
    labelled = _load(name, "train", device, environment.dry())
    if evaluate_on == "validation":
        fit, validation = datasets.holdout(labelled, 0.2, seed=0)
        return fit, fit, validation
    if evaluate_on != "test":
        raise ValueError(f"evaluate_on {evaluate_on!r} is unknown; use 'test' or 'validation'")
    data = labelled if train_split == "train" else _load(name, train_split, device, environment.dry())
    test = _load(name, "test", device, environment.dry())
    return (data, _few(labelled), _few(test)) if environment.dry() else (data, labelled, test)


def _few(data: datasets.Dataset) -> datasets.Dataset:
    """Four images of two classes: enough for a dry run, where a large encoder on large images takes its time."""
    some = torch.cat([(data.labels == label).nonzero()[:2, 0] for label in range(2)])
    return dataclasses.replace(data, images=data.images[some], labels=data.labels[some])


@functools.lru_cache(maxsize=3)  # decoding and verifying take half a second, and a process does many runs
def _load(name: str, split: str, device: torch.device, dry: bool) -> datasets.Dataset:
    return imagenet100.load(split, device) if name == imagenet100.NAME else datasets.load(name, split, device=device)


def features(body: nn.Module, data: datasets.Dataset) -> Tensor:
    return evaluation.features_of(body, data.images, transform=_normalised).float()


def _normalised(images: Tensor) -> Tensor:
    return augment.normalise(images).contiguous(memory_format=torch.channels_last)


def _knn(body: nn.Module, labelled: datasets.Dataset, held_out: datasets.Dataset, k: int | None) -> float:
    train_x, test_x = features(body, labelled), features(body, held_out)
    temperature = None if k else 0.5
    return evaluation.knn(train_x, labelled.labels, test_x, held_out.labels, k=min(k or 200, len(train_x)), temperature=temperature)


def first_of_each(labels: Tensor, size: int) -> Tensor:
    """Indices of the first points of every class that is there, alike many of each, `size` in all at most (one a class at least)."""
    present, count = labels.unique(return_counts=True)
    each = max(1, min(size // len(present), int(count.min())))
    return torch.cat([(labels == label).nonzero()[:each, 0] for label in present])


def _check(objective: str, positives: str, schedule: str, tau_plus: float, beta: float, views: int) -> None:
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} is unknown; use one of {', '.join(OBJECTIVES)}")
    if positives not in POSITIVES:
        raise ValueError(f"positives {positives!r} is unknown; use one of {', '.join(POSITIVES)}")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is unknown; use one of {', '.join(SCHEDULES)}")
    if objective in ("biased", "unbiased") and (tau_plus or beta):
        raise ValueError(f"objective {objective!r} takes neither tau_plus nor beta, got {tau_plus} and {beta}")
    if objective == "debiased" and beta:
        raise ValueError(f"objective 'debiased' takes no beta, got {beta}; use 'hard'")
    if views < 2:
        raise ValueError(f"views is {views}: a positive needs at least 2")
