"""Contrastive learning of images: SimCLR with the objectives of the three papers.

Source: chuang2020, Section 5.1; robinson2021, Section 5.1.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from curlnb import evaluation
from curlnb.choices import check_known
from curlnb.data import augment, datasets, sampling
from curlnb.experiments import own_parts
from curlnb.experiments.image_data import (
    ImageData,
    digest,
    features,
    first_of_each,
    knn,
    knn_and_probe,
    merged,
    normalised,
)
from curlnb.experiments.objectives import Contrast, objective_loss
from curlnb.experiments.own_parts import Augmentation, MakeEncoder
from curlnb.models.encoders import SimCLR, projection_head, split_batch_norm
from curlnb.runs import environment
from curlnb.runs.environment import limited
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Accelerated, train
from curlnb.theory import finite_worlds

POSITIVES = ("augmented", "true")
# test images that are the points of the finite world on which arora2019's losses are measured; the
# cost grows as the cube
WORLD = 500
SCALES = (0.3, 0.5, 0.8, 1.3, 2.0, 3.0, 5.0, 8.0)  # of unit-norm features there


@dataclass(frozen=True)
class Architecture:
    """The network: an encoder and the projection head.

    encoder: a name of `encoders.encoder`, or your own function (`own_parts.MakeEncoder`).
    bn_groups: number of equal parts of each view whose statistics batch norm uses in training;
    None: those of all views together.
    """

    encoder: str | MakeEncoder = "cnn"
    bn_groups: int | None = None


@dataclass(frozen=True)
class Pairing:
    """How positive pairs are made.

    views: M + 1 of each image, at least 2. positives: "augmented" views of an image, or "true":
    views of other images of its class (labels for positives only; robinson2021, Section 6.1). size:
    of the random crops, in pixels; encoders are evaluated on whole images. augmentation: "simclr",
    or your own function (`own_parts.Augmentation`), called for each view, which determines the size
    itself. ValueError for unknown words and for fewer than 2 views.
    """

    views: int = 2
    positives: str = "augmented"
    size: int = 32
    augmentation: str | Augmentation = "simclr"

    def __post_init__(self) -> None:
        if self.views < 2:
            raise ValueError(f"views is {self.views}: a positive needs at least 2")
        check_known("positives", self.positives, POSITIVES)
        if not callable(self.augmentation) and self.augmentation != "simclr":
            raise ValueError(
                f"augmentation {self.augmentation!r} is unknown; use 'simclr' or a function "
                "(images, generator) -> images"
            )


@dataclass(frozen=True)
class Monitor:
    """kNN accuracy measured during training.

    monitor_every: epochs between measurements, 0 for none; monitor_k: number of neighbours with
    equal votes, None for the released code's 200 weighted ones.
    """

    monitor_every: int = 0
    monitor_k: int | None = None


@dataclass(frozen=True)
class Training(Monitor, Accelerated, Contrast, Pairing, Architecture, ImageData):
    """All that `fit` takes: the fields of its bases, each documented there.

    ValueError for more negatives than a batch holds.
    """

    def __post_init__(self) -> None:
        for group in (ImageData, Pairing, Contrast):
            group.__post_init__(self)
        held = self.views * (self.batch - 1)
        if (self.negatives or 0) > held:
            raise ValueError(
                f"negatives is {self.negatives}: a batch of {self.batch} in {self.views} views "
                f"holds {held}"
            )


def network(
    encoder: str | MakeEncoder, channels: int, bn_groups: int = 1, size: int = 32
) -> SimCLR:
    """Encoder and head in channels-last layout, with batch norm over `bn_groups` groups.

    size: of the images on which your own encoder is tried (`own_parts.make_encoder`).
    """
    body, dim = own_parts.make_encoder(encoder, channels, size)
    model = SimCLR(body, projection_head(dim))
    if bn_groups > 1:
        split_batch_norm(model, bn_groups)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Fitted:
    """A trained model with its data, its log, and the generator in its state after training.

    labelled, held_out: the images on which classifiers are fitted and evaluated.
    """

    model: SimCLR
    labelled: datasets.Dataset
    held_out: datasets.Dataset
    generator: torch.Generator
    log: dict[str, list[float]]


def fit(run: Run, *, seed: int, training: Training = Training()) -> Fitted:
    """Train an encoder on images.

    Labels are used only where the objective or the positives need them.
    """
    training = limited(training, batch=4, negatives=6)
    images, labelled, held_out = training.load(run.device)
    channels, height, width = images.images.shape[1:]
    groups = training.views * training.bn_groups if training.bn_groups else 1
    model = network(training.encoder, channels, groups, training.size).to(run.device)
    generator = torch.Generator(run.device).manual_seed(seed)
    index = sampling.class_index(images.labels) if training.positives == "true" else None
    groups_of_labels = images.labels
    if training.label_groups is not None:
        groups_of_labels = merged(images, training.label_groups)

    def project(views: Tensor, parameters: augment.Parameters | None) -> Tensor:
        """Projections of views, or of images with the parameters that make views of them."""
        views = (
            views if parameters is None else augment.apply(views, parameters, size=training.size)
        )
        return model(views.contiguous(memory_format=torch.channels_last))[1]

    project = training.accelerate(project, run)

    def embed(seen: list[Tensor]) -> Tensor:
        """Projections of a random view of each of the samples, [views x samples, d]."""
        if callable(own := training.augmentation):
            return project(
                torch.cat(
                    [
                        own_parts.view(own, images.images.index_select(0, some), generator)
                        for some in seen
                    ]
                ),
                None,
            )
        parameters = augment.draw(
            sum(map(len, seen)), height, width, generator, colour=channels == 3
        )
        return project(images.images.index_select(0, torch.cat(seen)), parameters)

    def step(samples: Tensor, done: float) -> tuple[Tensor, dict[str, Tensor]]:
        seen = [samples]
        for _ in range(training.views - 1):
            seen.append(
                samples
                if index is None
                else sampling.positives(index, images.labels, samples, generator)
            )
        z = embed(seen).chunk(training.views)
        value, clamped = objective_loss(training, z, groups_of_labels[samples], generator, done)
        return value, {"clamped": clamped}

    def measure(epoch: int) -> dict[str, float]:
        if not training.monitor_every or epoch % training.monitor_every:
            return {}
        x, test_x = features(model.encoder, labelled), features(model.encoder, held_out)
        votes: dict[str, Any] = {
            "k": training.monitor_k or 200,
            "temperature": None if training.monitor_k else 0.5,
        }
        return {"knn": knn(x, labelled, test_x, held_out, **votes)}

    log = train(
        run,
        model,
        step,
        training,
        samples=len(images),
        seed=seed,
        generator=generator,
        on_epoch=measure,
    )
    return Fitted(model, labelled, held_out, generator, log)


@experiment(name="images.simclr", data=digest, training=fit)
def simclr(
    run: Run, *, seed: int, training: Training = Training(), released_probe: bool = False
) -> dict[str, Any]:
    """Train an encoder by `fit` and evaluate it with labels.

    released_probe: also linear_released, by the released code's probe. Returns knn, linear (top-1
    shares on the evaluation split, of features before the head), linear_top5, loss and clamped (of
    the last epoch), and knn_curve if monitored.
    """
    fitted = fit(run, seed=seed, training=training)
    metrics = evaluate(
        fitted.model.encoder,
        fitted.labelled,
        fitted.held_out,
        fitted.generator,
        released=released_probe,
    )
    return metrics | last(fitted.log)


@experiment(name="images.surrogate", data=digest, training=fit)
def surrogate(run: Run, *, seed: int, training: Training = Training()) -> dict[str, Any]:
    """Train an encoder by `fit`, then measure both sides of arora2019's Lemma 4.3 on its features.

    The points are WORLD images of the evaluation split, equally many of each class, their features
    at each of SCALES x unit length. Returns tau and, for each loss kind, lists L_un_<kind>,
    L_un_same_<kind> (Eq. 8's first term) and L_sup_mu_<kind>, with one value per scale.
    """
    fitted = fit(run, seed=seed, training=training)
    some = first_of_each(fitted.held_out.labels, WORLD)
    points = nn.functional.normalize(features(fitted.model.encoder, fitted.held_out), dim=1)[
        some
    ].cpu()
    labels = fitted.held_out.labels[some].cpu()
    metrics: dict[str, Any] = {}
    for kind in ("hinge", "logistic"):
        worlds = [
            finite_worlds.empirical_pair_losses(scale * points, labels, kind) for scale in SCALES
        ]
        metrics["tau"] = float(worlds[0].tau)
        metrics[f"L_un_{kind}"] = [round(float(world.unsupervised), 6) for world in worlds]
        metrics[f"L_un_same_{kind}"] = [round(float(world.same_class), 6) for world in worlds]
        metrics[f"L_sup_mu_{kind}"] = [round(float(world.supervised()), 6) for world in worlds]
    return metrics


def last(log: dict[str, list[float]]) -> dict[str, Any]:
    """The last epoch's value of each scalar in a training log, and the whole curve of kNN."""
    return {
        f"{name}_curve" if name == "knn" else name: curve if name == "knn" else curve[-1]
        for name, curve in log.items()
    }


def evaluate(
    body: nn.Module,
    labelled: datasets.Dataset,
    held_out: datasets.Dataset,
    generator: torch.Generator,
    *,
    released: bool = False,
) -> dict[str, Any]:
    """kNN and linear accuracy of a trained encoder (`image_data.knn_and_probe`).

    released: also linear_released, by the released code's probe.
    """
    metrics = knn_and_probe(features(body, labelled), labelled, features(body, held_out), held_out)
    if released:
        sets = (labelled.images, labelled.labels, held_out.images, held_out.labels)
        whole = split_batch_norm(copy.deepcopy(body), 1)  # the probe sees one view
        how: dict[str, Any] = {
            "augment": augment.simclr,
            "transform": normalised,
            "epochs": 1 if environment.dry() else 100,
        }
        metrics["linear_released"] = evaluation.released_probe(
            whole, *sets, **how, generator=generator
        ).accuracy
    return metrics
