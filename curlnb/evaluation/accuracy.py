"""Accuracies that follow from a class's rank, over all k-way tasks, and the mean classifier."""

import numpy as np
import torch
from torch import Tensor

CHUNK = 2**24
"""Largest number of scores held at once (64 MB in float32)."""


def class_ranks(
    scores: Tensor, labels: Tensor, *, classifier: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Count the other classes that score strictly above the true one, and those that tie with it.

    scores: [n, C]; or, with a `classifier` [C, d], features [n, d] whose scores `features @
    classifier.T` are computed chunk by chunk and never held at once. labels: [n], in 0..C-1.
    Returns (above, tied), each int64 [n]: the true class holds the places above .. above + tied,
    counted from 0. Raises ValueError for shapes that do not fit, labels out of range, no samples,
    and scores that are not finite.
    """
    if not (isinstance(scores, Tensor) and isinstance(labels, Tensor)):
        raise ValueError(
            f"scores and labels must be tensors, got {type(scores).__name__} and "
            f"{type(labels).__name__}: use torch.as_tensor"
        )
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"scores must be [n, C] and labels [n] with n >= 1, got {list(scores.shape)} and "
            f"{list(labels.shape)}"
        )
    if classifier is not None and (classifier.dim() != 2 or classifier.shape[1] != scores.shape[1]):
        raise ValueError(
            f"classifier must be [C, {scores.shape[1]}] like the features, got "
            f"{list(classifier.shape)}"
        )
    classes = _classes(scores, classifier)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(
            f"labels must lie in 0..{classes - 1}, the classes scored, got {lowest}..{highest}"
        )
    above, tied, broken = [], [], []
    for rows, own_class in zip(
        scores.split(max(1, CHUNK // classes)), labels.split(max(1, CHUNK // classes)), strict=True
    ):
        # scores [rows, C]
        chunk = rows if classifier is None else rows.to(classifier.dtype) @ classifier.T
        own = chunk.gather(1, own_class[:, None])  # [rows, 1]
        above.append((chunk > own).sum(1, dtype=torch.int32))  # twice as fast as int64
        tied.append((chunk == own).sum(1, dtype=torch.int32) - 1)
        broken.append(~torch.stack(chunk.aminmax()).isfinite().all())  # both pass a NaN on
    # a NaN compares as neither above nor tied, and would pass for a beaten class
    if bool(torch.stack(broken).any()):
        raise ValueError(
            "scores hold NaN or infinity: the representation or the classifier has diverged"
        )
    return torch.cat(above).long(), torch.cat(tied).long()


def average_accuracy(
    scores: Tensor, labels: Tensor, k: int, *, classifier: Tensor | None = None
) -> float:
    """Accuracy averaged over all k-way tasks that contain the true class (arora2019, Table 1).

    The average (the paper's avg-k) is exact, without sampling. A task is the true class and k - 1
    of the other C - 1, drawn without replacement. With a classes above the true one and e tied,
    ties broken evenly, it is solved with probability

        [binom(C - a, k) - binom(C - 1 - a - e, k)] / ((e + 1) binom(C - 1, k - 1)).

    scores, labels, classifier: as for `class_ranks`; an unnormalised mean classifier is passed as
    `classifier`. k: 2..C, else ValueError; k = C is the ordinary accuracy. Returns the mean over
    the samples, which on a balanced test set is the mean over the classes too.
    """
    classes = _classes(scores, classifier)
    if not 2 <= k <= classes:
        raise ValueError(f"k must lie in 2..{classes}, the number of classes, got {k}")
    above, tied = class_ranks(scores, labels, classifier=classifier)
    # Even ties put the true class at each of the places a..a+e with probability 1/(e+1), and at
    # place i it wins if all distractors come from the C-1-i below: w_i = binom(C-1-i, k-1) /
    # binom(C-1, k-1). The sum of w_a..w_{a+e} is the formula above (hockey-stick identity); w as a
    # running product of ratios below 1 cannot overflow.
    place = np.arange(1, classes)
    win = np.cumprod(
        np.concatenate([[1.0], np.maximum(classes - k - place + 1, 0) / (classes - place)])
    )
    return mean_over_places(win, above, tied)


def top_r(scores: Tensor, labels: Tensor, r: int, *, classifier: Tensor | None = None) -> float:
    """Share of samples whose true class is among the r highest scores.

    Ties at the r-th place count for their share. scores, labels, classifier: as for `class_ranks`.
    r: 1..C, else ValueError. `top_r(..., 1)` is the ordinary accuracy.
    """
    classes = _classes(scores, classifier)
    if not 1 <= r <= classes:
        raise ValueError(f"r must lie in 1..{classes}, the number of classes, got {r}")
    return mean_over_places(
        (np.arange(classes) < r).astype(float), *class_ranks(scores, labels, classifier=classifier)
    )


def _classes(scores: Tensor, classifier: Tensor | None) -> int:
    return scores.shape[-1] if classifier is None else classifier.shape[0]


def mean_over_places(value: np.ndarray, above: Tensor, tied: Tensor) -> float:
    """Mean over the samples of the mean of value[above .. above + tied].

    value: [C], the value of each place; above, tied: int64 [n], from `class_ranks`.
    """
    total = np.concatenate([[0.0], np.cumsum(value)])
    a, e = above.cpu().numpy(), tied.cpu().numpy()
    return float(((total[a + e + 1] - total[a]) / (e + 1)).mean())


def mean_classifier(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    per_class: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The classifier whose row c is the mean feature of class c (arora2019, Definition 2.1).

    features: [n, d]; labels: [n] in 0..classes-1. With `per_class`, each mean is over that many
    samples of its class, drawn with `generator` without replacement (the paper's mu-5 is
    `per_class=5`). Returns [classes, d]; scores are plain inner products, `features @ means.T`,
    without normalisation or bias. Raises ValueError when a class has fewer samples than asked.
    """
    needed = 1 if per_class is None else per_class
    if needed < 1 or (per_class is not None and generator is None):
        raise ValueError(
            f"per_class must be at least 1 and come with a generator, got per_class={per_class}, "
            f"generator={generator}"
        )
    if not (isinstance(features, Tensor) and isinstance(labels, Tensor)):
        found = f"{type(features).__name__} and {type(labels).__name__}"
        raise ValueError(f"features and labels must be tensors, got {found}: use torch.as_tensor")
    if labels.shape != features.shape[:1] or features.dim() != 2:
        raise ValueError(
            f"features must be [n, d] and labels [n], got {list(features.shape)} and "
            f"{list(labels.shape)}"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(
            f"labels must lie in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}"
        )
    if not bool(features.isfinite().all()):
        raise ValueError("features hold NaN or infinity: the representation has diverged")
    count = torch.bincount(labels, minlength=classes)
    if int(count.min()) < needed:
        raise ValueError(
            f"class {int(count.argmin())} has {int(count.min())} samples, {needed} are needed"
        )
    if per_class is not None:
        chosen = place_in_class(labels, generator) < per_class
        features, labels, count = (
            features[chosen],
            labels[chosen],
            torch.full_like(count, per_class),
        )
    # float64 where there is one, so that the mean of equal features is that feature to the last bit
    wide = torch.float32 if features.device.type == "mps" else torch.float64
    total, rows = (
        torch.zeros(classes, features.shape[1], dtype=wide, device=features.device),
        max(1, CHUNK // features.shape[1]),
    )
    for chunk, chunk_labels in zip(features.split(rows), labels.split(rows), strict=True):
        total.index_add_(0, chunk_labels, chunk.to(wide))
    return (total / count[:, None]).to(torch.promote_types(features.dtype, torch.float32))


def place_in_class(labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Each sample's place 0, 1, ... among the samples of its class. Returns int64 [n].

    labels: [n]. Places follow the order given, or a random one drawn with the generator.
    """
    n = len(labels)
    order = (
        torch.arange(n)
        if generator is None
        else torch.randperm(n, generator=generator, device=generator.device)
    )
    order = order.to(labels.device)
    order = order[labels[order].argsort(stable=True)]  # by class, the random order kept within
    count = torch.bincount(labels)
    first = count.cumsum(0) - count
    place = torch.arange(n, device=labels.device) - first[labels[order]]
    return torch.empty_like(place).index_copy_(0, order, place)
