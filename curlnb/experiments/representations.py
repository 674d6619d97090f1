"""Pictures and measures of a trained encoder's embeddings.

Source: chuang2020, Figure 5; robinson2021, Figures 5, 8 to 10 and 12. The training is
`images.fit`'s; the results are small enough to be committed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from curlnb import evaluation
from curlnb.data import augment
from curlnb.experiments import image_data, images, own_parts
from curlnb.experiments.images import Training
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run

BINS = 50  # of the histograms, over [-1, 1]
NEIGHBOURS = 10  # that vote in the picture and among the same points' features
BETAS = (0.0, 0.5, 1.0, 2.0, 6.0)  # at which the weights' share on false negatives is measured
PAIRED = 2000  # images of which two views are taken, and whose neighbours are looked up
SCALE = 1000  # pictures are kept as whole thousandths of their half width


@dataclass(frozen=True)
class Pictures:
    """Which points the pictures of a representation show.

    points: images in the t-SNE picture, the first of each class, equally many of each; perplexity:
    t-SNE's. drawn: images in the batch from which robinson2021's Figure 12 takes its negatives;
    anchors: how many of them are kept as examples, one per class; shown: negatives of each.
    """

    points: int = 500
    perplexity: float = 30.0
    drawn: int = 128
    anchors: int = 4
    shown: int = 10


@experiment(name="representations.look", data=image_data.digest, training=images.fit)
def visualise(
    run: Run, *, seed: int, training: Training = Training(), pictures: Pictures = Pictures()
) -> dict[str, Any]:
    """Train an encoder by `images.fit`, then measure and picture the evaluation split's embeddings.

    There are two embeddings, as the papers use the word for both: the *features*, before the head,
    which classifiers read, and the *projections*, after it, on which the loss acts. Returns knn,
    linear (as `images.evaluate`), loss and clamped of the last epoch, the measures of
    `neighbourhood` and `similarity_histograms`, and picture_* (see `picture`, `hardest_negatives`),
    which are for the eye: they differ from machine to machine.
    """
    fitted = images.fit(run, seed=seed, training=training)
    model, held_out, labelled = fitted.model, fitted.held_out, fitted.labelled
    labels = held_out.labels
    features, projections = (
        image_data.features(body, held_out) for body in (model.encoder, Projections(model))
    )
    some = image_data.first_of_each(labels, pictures.points)
    few, few_labels = features[some].cpu(), labels[some].cpu()  # where t-SNE is computed
    flat = picture(few, perplexity=pictures.perplexity, seed=seed)
    metrics: dict[str, Any] = image_data.knn_and_probe(
        image_data.features(model.encoder, labelled), labelled, features, held_out
    )
    del metrics["linear_top5"]
    for name, measured in (
        ("features", neighbourhood(few, few_labels) | similarity_histograms(features, labels)),
        ("projections", similarity_histograms(projections, labels)),
        ("picture", neighbourhood(flat, few_labels, cosine=False)),
    ):
        metrics |= {f"{name}_{key}": value for key, value in measured.items()}
    metrics |= hardest_negatives(projections, labels, pictures, training.temperature)
    metrics |= {"picture_points": some.tolist(), "picture_tsne": flat.round().int().tolist()}
    return metrics | images.last(fitted.log)


@experiment(name="images.measures", data=image_data.digest, training=images.fit)
def measures(run: Run, *, seed: int, training: Training = Training()) -> dict[str, Any]:
    """Train an encoder by `images.fit`, then measure the evaluation split's embeddings.

    These are the features (which classifiers read) and the projections (on which the loss acts).
    Returns knn, linear, linear_top5; mu_avg2 and mu_top1 of the mean classifier of the labelled
    images; of both embeddings <name>_uniformity, <name>_effective_rank, <name>_alignment,
    <name>_overlap, <name>_auc, <name>_mean_same, <name>_mean_different and <name>_knn10 (see
    `geometry`, `similarity_histograms`, `neighbourhood`); false_hardest, false_uniform,
    false_weight (see `hardest_negatives`); loss and clamped of the last epoch.
    """
    fitted = images.fit(run, seed=seed, training=training)
    model, held_out, labelled = fitted.model, fitted.held_out, fitted.labelled
    labels, classes = held_out.labels, int(labelled.labels.max()) + 1
    x, test_x = (image_data.features(model.encoder, data) for data in (labelled, held_out))
    projected = image_data.features(Projections(model), held_out)
    metrics: dict[str, Any] = image_data.knn_and_probe(x, labelled, test_x, held_out)
    means = evaluation.mean_classifier(x, labelled.labels, classes)
    metrics["mu_avg2"] = evaluation.average_accuracy(test_x, labels, 2, classifier=means)
    metrics["mu_top1"] = evaluation.top_r(test_x, labels, 1, classifier=means)
    some = image_data.first_of_each(labels, PAIRED)
    views = [view_of(held_out.images[some], training, part) for part in range(2)]
    for name, body, whole in (
        ("features", model.encoder, test_x),
        ("projections", Projections(model), projected),
    ):
        pair = [image_data.features_of(body, view) for view in views]
        measured = geometry(whole, *pair) | similarity_histograms(whole, labels)
        measured["knn10"] = neighbourhood(whole[some], labels[some])["knn10"]
        del measured["same"], measured["different"]
        metrics |= {f"{name}_{key}": value for key, value in measured.items()}
    false = hardest_negatives(projected, labels, Pictures(), training.temperature)
    metrics |= {key: value for key, value in false.items() if key.startswith("false_")}
    return metrics | images.last(fitted.log)


@experiment(name="images.neighbours", data=image_data.digest, training=images.fit)
def neighbours(
    run: Run, *, seed: int, training: Training = Training(), points: int = 500
) -> dict[str, Any]:
    """Train an encoder by `images.fit`, then list which images its features place near each other.

    points: images of the evaluation split, the first of each class, equally many of each. Returns
    nearest, for each of them its NEIGHBOURS nearest others by their places among the points (see
    `nearest`), by which two networks can be compared; knn10, the accuracy of their vote; loss and
    clamped of the last epoch. Source: chuang2020, Section 5.1, on Figure 5: "closer to that of the
    ideal, unbiased loss".
    """
    fitted = images.fit(run, seed=seed, training=training)
    labels = fitted.held_out.labels
    some = image_data.first_of_each(labels, points)
    features = image_data.features(fitted.model.encoder, fitted.held_out)[some]
    metrics: dict[str, Any] = {"nearest": nearest(features).tolist()}
    metrics["knn10"] = neighbourhood(features, labels[some])["knn10"]
    return metrics | images.last(fitted.log)


def nearest(embedding: Tensor) -> Tensor:
    """The NEIGHBOURS nearest other points of each of n points [n, d] by cosine similarity, the
    nearest first: [n, NEIGHBOURS], or [n, n - 1] of fewer points.
    """
    unit = nn.functional.normalize(embedding.double(), dim=1)
    similarity = (unit @ unit.T).fill_diagonal_(-torch.inf)
    return similarity.topk(min(NEIGHBOURS, len(unit) - 1)).indices


def view_of(pictures: Tensor, training: Training, part: int) -> Tensor:
    """A random view of each of uint8 images [n, c, h, w], as in training, the same for every run.

    Returns float [n, c, size, size], normalised. part: which of the views of a pair.
    """
    generator = torch.Generator(pictures.device).manual_seed(part)
    if callable(training.augmentation):
        return own_parts.view(training.augmentation, pictures, generator)
    channels, height, width = pictures.shape[1:]
    drawn = augment.draw(len(pictures), height, width, generator, colour=channels == 3)
    return augment.apply(pictures, drawn, size=training.size)


def geometry(embedding: Tensor, one: Tensor, other: Tensor) -> dict[str, float]:
    """Uniformity, alignment and effective rank of points [n, d] on the sphere.

    one, other: [m, d], two views of some of them. uniformity: log E e^{-2 |x - y|^2} over pairs of
    points, and alignment: E |x - x'|^2 over pairs of views (Wang and Isola 2020); effective_rank: e
    to the entropy of the singular values of the centred points, as shares of their sum (Roy and
    Vetterli 2007), in 1..d.
    """
    unit, a, b = (nn.functional.normalize(each.double(), dim=1) for each in (embedding, one, other))
    n = len(unit)
    total = sum((4 * rows @ unit.T - 4).exp().sum() for rows in unit.split(1000))
    singular = torch.linalg.svdvals(unit - unit.mean(0))
    shares = singular / singular.sum()
    return {
        "uniformity": round(float(((total - n) / (n * (n - 1))).log()), 4),
        "alignment": round(float((a - b).square().sum(1).mean()), 4),
        "effective_rank": round(float(torch.special.entr(shares).sum().exp()), 2),
    }


def picture(features: Tensor, *, perplexity: float, seed: int) -> Tensor:
    """t-SNE of features [n, d] by cosine similarity: [n, 2], centred, with half width `SCALE`.

    It is scikit-learn's, started from the features' PCA.
    """
    from sklearn.manifold import TSNE

    # on the sphere, Euclid's distance orders as the cosine does
    x = nn.functional.normalize(features, dim=1).double().cpu().numpy()
    steps, start = (1000, "pca") if len(x) >= 50 else (250, "random")
    tsne = TSNE(
        perplexity=min(perplexity, (len(x) - 1) / 3), init=start, random_state=seed, max_iter=steps
    )
    flat = torch.from_numpy(np.asarray(tsne.fit_transform(x), dtype=np.float64))
    flat = flat - flat.mean(0)
    return flat * (SCALE / flat.abs().max())


def neighbourhood(embedding: Tensor, labels: Tensor, *, cosine: bool = True) -> dict[str, float]:
    """How well classes keep together among points [n, d], by cosine or Euclidean distance.

    knn10: the accuracy of the vote of the NEIGHBOURS nearest other points, equal votes counting for
    their share; silhouette: its mean over the points, in [-1, 1]; overlap: of distances within and
    between classes (see `overlap`).
    """
    wide = embedding.double()
    wide = nn.functional.normalize(wide, dim=1) if cosine else wide
    distance = 1 - wide @ wide.T if cosine else torch.cdist(wide, wide)
    n = len(wide)
    nearest = (
        distance.clone()
        .fill_diagonal_(torch.inf)
        .topk(min(NEIGHBOURS, n - 1), largest=False)
        .indices
    )
    votes = nn.functional.one_hot(labels[nearest]).sum(1)  # [n, classes]
    classes = nn.functional.one_hot(labels).double()  # [n, classes]
    sums, count = distance.fill_diagonal_(0) @ classes, classes.sum(0)
    own = sums.gather(1, labels[:, None])[:, 0] / (count[labels] - 1).clamp_min(1)
    other = (sums / count).masked_fill(classes.bool(), torch.inf).amin(1)
    widths = torch.where(
        count[labels] > 1, (other - own) / torch.maximum(own, other).clamp_min(1e-12), 0.0
    )
    above = torch.triu(torch.ones(n, n, dtype=torch.bool, device=distance.device), 1)
    same = labels[:, None] == labels
    top = float(distance.max())
    bins = [torch.histc(distance[above & of].float(), BINS, 0.0, top) for of in (same, ~same)]
    return {
        "knn10": evaluation.top_r(votes.double(), labels, 1),
        "silhouette": round(float(widths.mean()), 4),
        "overlap": round(overlap(*bins), 4),
    }


def similarity_histograms(embedding: Tensor, labels: Tensor) -> dict[str, Any]:
    """Cosine similarity of all pairs of points [n, d], by whether their labels agree.

    Source: robinson2021, Figures 5 and 8 to 10. same, different: shares of the pairs in each of
    BINS bins over [-1, 1]; overlap: of the two, on bins of a tenth of that width; auc: the chance
    that a pair from one class is more similar than a pair from two; mean_same, mean_different.
    """
    unit = nn.functional.normalize(embedding.float(), dim=1)
    cosine = (unit @ unit.T).clamp(-1, 1)
    above = torch.triu(torch.ones_like(cosine, dtype=torch.bool), 1)
    agree = labels[:, None] == labels
    of_same, of_different = cosine[above & agree], cosine[above & ~agree]
    fine = [
        torch.histc(values, 100 * BINS, -1.0, 1.0).double() for values in (of_same, of_different)
    ]
    medium = [counts.view(10 * BINS, -1).sum(1) for counts in fine]
    coarse = [counts.view(BINS, -1).sum(1) / counts.sum() for counts in fine]
    same, different = (counts / counts.sum() for counts in fine)
    return {
        "same": [round(share, 4) for share in coarse[0].tolist()],
        "different": [round(share, 4) for share in coarse[1].tolist()],
        "overlap": round(overlap(*medium), 4),
        "auc": round(float((same * (different.cumsum(0) - different / 2)).sum()), 4),
        "mean_same": round(float(of_same.double().mean()), 4),
        "mean_different": round(float(of_different.double().mean()), 4),
    }


def overlap(one: Tensor, other: Tensor) -> float:
    """The overlap of two histograms over the same bins, [bins] each: 1 if equal, 0 if disjoint."""
    return float(torch.minimum(one / one.sum(), other / other.sum()).sum())


def hardest_negatives(
    embedding: Tensor, labels: Tensor, pictures: Pictures, temperature: float
) -> dict[str, Any]:
    """Hard negatives in batches of `pictures.drawn` points of embedding [n, d], and the false ones.

    Source: robinson2021, Figure 12. Batches are drawn without replacement, the same for every
    encoder; every point of a batch is an anchor, the others its negatives. false_hardest: the share
    of the anchor's class among its `shown` most similar negatives; false_uniform: among all;
    false_weight: for each of BETAS, the mean share of the weights e^{beta s/t} that lies on the
    anchor's class. picture_anchors: [anchors], of the first batch, classes in order;
    picture_hardest, picture_random: [anchors][shown] indices.
    """
    unit = nn.functional.normalize(embedding.float(), dim=1).cpu()
    labels = labels.cpu()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(unit), generator=generator)
    drawn = min(pictures.drawn, len(unit))
    shown = min(pictures.shown, drawn - 1)
    found: list[Tensor] = []
    examples: dict[str, Any] = {}
    for batch in order[: len(order) // drawn * drawn].split(drawn):
        cosine = (unit[batch] @ unit[batch].T).fill_diagonal_(-torch.inf)
        top = cosine.topk(shown, 1).indices  # [drawn, shown]
        false = (labels[batch][:, None] == labels[batch]).float().fill_diagonal_(0)
        weight = torch.stack(
            [
                ((beta / temperature * cosine).fill_diagonal_(-torch.inf))
                .softmax(1)
                .mul(false)
                .sum(1)
                for beta in BETAS
            ]
        )
        # [2 + betas, drawn]
        found.append(
            torch.stack([false.gather(1, top).mean(1), false.sum(1) / (drawn - 1), *weight])
        )
        if not examples:
            own = labels[batch]
            chosen = [int((own == label).nonzero()[0]) for label in own.unique().tolist()][
                : pictures.anchors
            ]
            others = [torch.randperm(drawn - 1, generator=generator)[:shown] for _ in chosen]
            examples = {
                "picture_anchors": batch[chosen].tolist(),
                "picture_hardest": batch[top[chosen]].tolist(),
                "picture_random": [
                    batch[other + (other >= at)].tolist()
                    for at, other in zip(chosen, others, strict=True)
                ],
            }
    shares = [round(share, 4) for share in torch.cat(found, 1).mean(1).tolist()]
    return {
        "false_hardest": shares[0],
        "false_uniform": shares[1],
        "false_weight": shares[2:],
        **examples,
    }


class Projections(nn.Module):
    """The projections of a `SimCLR` model, without its features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[1]
