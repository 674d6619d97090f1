"""How good a representation is: mean classifier, k-nearest neighbours, linear probes, k-way tasks, SVM.

Everything takes features (or scores) and labels as tensors and works where they are, in chunks, so that 3,029 classes and 120,000
samples need a few hundred MB. Only the two linear solvers of scikit-learn go through the CPU where there is no CUDA device.

Every accuracy here is a share in [0, 1] in which a tie counts for its share: a sample whose true class ties with one other for the
first place is half right. So a constant representation scores exactly at chance, whichever class a computer would happen to name.
"""

import copy
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# scikit-learn is imported where it is used: it takes seconds, and most of this module does without.

_CHUNK = 2**24
"""Largest number of scores held at once (64 MB in float32)."""


# Ranks, and the two accuracies that are functions of the rank


def ranks(scores: Tensor, labels: Tensor, *, classifier: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Counts the other classes that score strictly above the true one, and those that tie with it.

    scores: [n, C]; or, with a `classifier` [C, d], features [n, d] whose scores `features @ classifier.T` are made chunk by chunk and
    never held at once. labels: [n], in 0..C-1. Returns (above, tied), each int64 [n]: the true class holds the places above .. above +
    tied, counted from 0. Raises ValueError for shapes that do not fit, labels out of range, no samples, and scores that are NaN.
    """
    if scores.dim() != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise ValueError(f"scores must be [n, C] and labels [n] with n >= 1, got {list(scores.shape)} and {list(labels.shape)}")
    if classifier is not None and (classifier.dim() != 2 or classifier.shape[1] != scores.shape[1]):
        raise ValueError(f"classifier must be [C, {scores.shape[1]}] like the features, got {list(classifier.shape)}")
    classes = _classes(scores, classifier)
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}, the classes scored, got {lowest}..{highest}")
    above, tied, broken = [], [], []
    for rows, own_class in zip(scores.split(max(1, _CHUNK // classes)), labels.split(max(1, _CHUNK // classes)), strict=True):
        chunk = rows if classifier is None else rows.to(classifier.dtype) @ classifier.T  # [rows, C]
        own = chunk.gather(1, own_class[:, None])  # [rows, 1]
        above.append((chunk > own).sum(1, dtype=torch.int32))  # twice as fast as int64
        tied.append((chunk == own).sum(1, dtype=torch.int32) - 1)
        broken.append(chunk.max().isnan())  # max hands a NaN on
    if bool(torch.stack(broken).any()):  # a NaN compares as neither above nor tied, and would pass for a beaten class
        raise ValueError("scores hold NaN: the representation or the classifier has diverged")
    return torch.cat(above).long(), torch.cat(tied).long()


def average_accuracy(scores: Tensor, labels: Tensor, k: int, *, classifier: Tensor | None = None) -> float:
    """Accuracy averaged over all k-way tasks that contain the true class, exactly and not by sampling (avg-k of arora2019, Table 1).

    A task is the true class and k - 1 of the other C - 1, drawn without replacement. With a classes above the true one and e tied,
    ties broken evenly, it is solved with probability

        [binom(C - a, k) - binom(C - 1 - a - e, k)] / ((e + 1) binom(C - 1, k - 1)).

    scores, labels, classifier: as for `ranks`; an unnormalised mean classifier is passed as `classifier`. k: 2..C; k = C is the
    ordinary accuracy. Returns the mean over the samples, which on a balanced test set is the mean over the classes too.
    """
    classes = _classes(scores, classifier)
    if not 2 <= k <= classes:
        raise ValueError(f"k must lie in 2..{classes}, the number of classes, got {k}")
    above, tied = ranks(scores, labels, classifier=classifier)
    # Even ties put the true class at each of the places a..a+e with probability 1/(e+1), and at place i it wins if all distractors
    # come from the C-1-i below: w_i = binom(C-1-i, k-1) / binom(C-1, k-1). The sum of w_a..w_{a+e} is the formula above (hockey-stick
    # identity); w as a running product of ratios below 1 cannot overflow.
    place = np.arange(1, classes)
    win = np.cumprod(np.concatenate([[1.0], np.maximum(classes - k - place + 1, 0) / (classes - place)]))
    return _mean_over_places(win, above, tied)


def top_r(scores: Tensor, labels: Tensor, r: int, *, classifier: Tensor | None = None) -> float:
    """Share of samples whose true class is among the r highest scores, ties at the r-th place counting for their share.

    scores, labels, classifier: as for `ranks`. r: 1..C. `top_r(..., 1)` is the ordinary accuracy.
    """
    classes = _classes(scores, classifier)
    if not 1 <= r <= classes:
        raise ValueError(f"r must lie in 1..{classes}, the number of classes, got {r}")
    return _mean_over_places((np.arange(classes) < r).astype(float), *ranks(scores, labels, classifier=classifier))


def _classes(scores: Tensor, classifier: Tensor | None) -> int:
    return scores.shape[-1] if classifier is None else classifier.shape[0]


def _mean_over_places(value: np.ndarray, above: Tensor, tied: Tensor) -> float:
    """Mean over the samples of the mean of value[above .. above + tied]; value: [C], what each place is worth."""
    total = np.concatenate([[0.0], np.cumsum(value)])
    a, e = above.cpu().numpy(), tied.cpu().numpy()
    return float(((total[a + e + 1] - total[a]) / (e + 1)).mean())


# Classifiers that need no training


def mean_classifier(
    features: Tensor, labels: Tensor, classes: int, *, per_class: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """The classifier whose row c is the mean feature of class c (arora2019, Definition 2.1: mu; with `per_class=5`, its mu-5).

    features: [n, d]; labels: [n] in 0..classes-1. With `per_class`, each mean is over so many samples of its class, drawn with
    `generator` without replacement. Returns [classes, d]; scores are plain inner products, `features @ means.T`, without
    normalisation or bias. Raises ValueError when a class has fewer samples than asked.
    """
    needed = 1 if per_class is None else per_class
    if needed < 1 or (per_class is not None and generator is None):
        raise ValueError(f"per_class must be at least 1 and come with a generator, got per_class={per_class}, generator={generator}")
    if labels.shape != features.shape[:1] or features.dim() != 2:
        raise ValueError(f"features must be [n, d] and labels [n], got {list(features.shape)} and {list(labels.shape)}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}")
    count = torch.bincount(labels, minlength=classes)
    if int(count.min()) < needed:
        raise ValueError(f"class {int(count.argmin())} has {int(count.min())} samples, {needed} are needed")
    if per_class is not None:
        chosen = place_in_class(labels, generator) < per_class
        features, labels, count = features[chosen], labels[chosen], torch.full_like(count, per_class)
    # float64 where there is one, so that the mean of equal features is that feature to the last bit
    wide = torch.float32 if features.device.type == "mps" else torch.float64
    total, rows = torch.zeros(classes, features.shape[1], dtype=wide, device=features.device), max(1, _CHUNK // features.shape[1])
    for chunk, chunk_labels in zip(features.split(rows), labels.split(rows), strict=True):
        total.index_add_(0, chunk_labels, chunk.to(wide))
    return (total / count[:, None]).to(torch.promote_types(features.dtype, torch.float32))


def place_in_class(labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Each sample's place among those of its class, 0, 1, ...: in the order given, or shuffled with the generator. Returns [n]."""
    n = len(labels)
    order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator, device=generator.device)
    order = order.to(labels.device)
    order = order[labels[order].argsort(stable=True)]  # by class, the random order kept within
    count = torch.bincount(labels)
    first = count.cumsum(0) - count
    place = torch.arange(n, device=labels.device) - first[labels[order]]
    return torch.empty_like(place).index_copy_(0, order, place)


def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    k: int = 200,
    temperature: float | None = 0.5,
    classes: int | None = None,
) -> float:
    """Accuracy of the k most similar training samples' vote, in cosine similarity s.

    A vote weighs exp(s / temperature), as in the monitor of the released DCL and HCL code (k = 200, temperature 0.5); with
    `temperature=None` every vote weighs the same. features: [n, d]; labels: [n]; classes: their number (default: as labelled).
    Equal votes count for their share; which of several training samples exactly as far away as the k-th may vote, `torch.topk` says.
    Raises ValueError when k exceeds the number of training samples: another k is another measure, which the caller has to choose.
    """
    n_train = len(train_features)
    if not 1 <= k <= n_train:
        raise ValueError(f"k must lie in 1..{n_train}, the number of training samples, got {k}")
    if temperature is not None and temperature <= 0:
        raise ValueError(f"temperature must be positive, or None for equal votes, got {temperature}")
    _check_features(train_features, train_labels, test_features, test_labels)
    train = _unit(train_features)
    labelled = int(torch.maximum(train_labels.max(), test_labels.max())) + 1
    classes = labelled if classes is None else classes
    if classes < labelled:
        raise ValueError(f"classes must be at least {labelled} with the labels given, got {classes}")
    rows = max(1, _CHUNK // max(n_train, classes))
    counts = []
    for features, labels in zip(test_features.split(rows), test_labels.split(rows), strict=True):
        similarity, neighbour = (_unit(features) @ train.T).topk(k, dim=1)  # [rows, k]
        # relative to the nearest: a factor common to all votes, which keeps exp finite at any temperature
        weight = torch.ones_like(similarity) if temperature is None else ((similarity - similarity[:, :1]) / temperature).exp()
        votes = weight.new_zeros(len(features), classes).scatter_add_(1, train_labels[neighbour], weight)
        counts.append(ranks(votes, labels))
    above, tied = (torch.cat(parts) for parts in zip(*counts, strict=True))
    return _mean_over_places(np.eye(1, classes)[0], above, tied)


def _unit(features: Tensor) -> Tensor:
    return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)


def _check_features(*sets: Tensor) -> None:
    """Checks training features and labels, test features and labels, in this order."""
    (n, *d), labels, (n_test, *d_test), test_labels = (list(t.shape) for t in sets)
    if len(d) != 1 or d != d_test or labels != [n] or test_labels != [n_test] or 0 in (n, n_test):
        raise ValueError(f"features must be [n, d] and labels [n], n >= 1 and d the same in both sets, got {[list(t.shape) for t in sets]}")
    if not bool(sets[0].isfinite().all() & sets[2].isfinite().all()):
        raise ValueError("features hold NaN or infinity: the representation has diverged")


# Linear probes


@dataclass(frozen=True)
class ProbeResult:
    """What a linear probe found. accuracy, top5: shares of the test set (top5 with fewer than five classes is 1).

    protocol: "frozen" or "released"; iterations: of the solver, or optimiser steps; C: inverse strength of the L2 penalty ("frozen");
    drift: how far the released protocol moved the batch norms' running means, in root mean square over channels, in units of
    their running standard deviations before; seconds: wall time, left out when two results are compared.
    """

    protocol: str
    accuracy: float
    top5: float
    iterations: int
    C: float | None = None
    drift: float | None = None
    seconds: float = field(default=0.0, compare=False)


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    C: float | str = 1.0,
) -> ProbeResult:
    """The `frozen` protocol: multinomial logistic regression on features of an encoder in evaluation mode, fitted to convergence.

    Features are standardised with the training set's mean and standard deviation; the loss is scikit-learn's
    C sum_i cross-entropy_i + |W|^2 / 2. C = 1 is fixed in advance and the same for every method compared; `C="cv"` chooses it from
    1e-4..1e2 by cross-validation within the training set (5 folds, stratified; the smallest of equals). The test set chooses
    nothing. For the probe of the released code, which needs images, see `released_probe`.

    features: [n, d]; labels: [n], any integers. float64, on the features' own CUDA device through scikit-learn's array API, otherwise
    on the CPU; the fit holds a few n x classes matrices. Raises ValueError for fewer than two classes or a test class not trained on.
    """
    start = time.perf_counter()
    _check_features(train_features, train_labels, test_features, test_labels)
    if not train_features.is_cuda:
        train_features, train_labels, test_features, test_labels = (
            t.cpu() for t in (train_features, train_labels, test_features, test_labels)
        )
    names, y = torch.unique(train_labels, return_inverse=True)
    y_test = torch.searchsorted(names, test_labels).clamp(max=len(names) - 1)
    if len(names) < 2:
        raise ValueError(f"a linear probe needs at least 2 classes, the training labels hold only {names.tolist()}")
    if not torch.equal(names[y_test], test_labels):
        unknown = int(test_labels[names[y_test] != test_labels][0])
        raise ValueError(f"class {unknown} is among the test labels, but not among the training labels")
    if C == "cv":
        C = _cross_validated_C(train_features, y)
    if isinstance(C, str) or C <= 0:
        raise ValueError(f'C must be a positive number or "cv", got {C!r}')
    classifier, iterations = _logistic(train_features, y, C)
    test = _with_one(test_features).to(classifier)
    y_test = y_test.to(classifier.device)
    return ProbeResult(
        protocol="frozen",
        accuracy=top_r(test, y_test, 1, classifier=classifier),
        top5=top_r(test, y_test, min(5, len(names)), classifier=classifier),
        iterations=iterations,
        C=C,
        seconds=time.perf_counter() - start,
    )


def linear_classifier(train_features: Tensor, train_labels: Tensor, *, C: float = 1.0) -> Tensor:
    """The `frozen` protocol's classifier itself (see `linear_probe`): [K, d + 1] in float64, on raw features, the bias as last column.

    Scores are `features_with_a_one @ classifier.T`; `average_accuracy` and `top_r` take them. labels: [n] in 0..K-1, all of them present.
    """
    if len(torch.unique(train_labels)) != int(train_labels.max()) + 1:
        raise ValueError(f"training labels must hold every class in 0..{int(train_labels.max())}")
    weight, _ = _logistic(train_features, train_labels, C)
    return weight.to(train_features.device)


def _cross_validated_C(features: Tensor, y: Tensor) -> float:
    folds, grid = 5, [10.0**power for power in range(-4, 3)]
    if int(torch.bincount(y).min()) < folds:
        raise ValueError(f'C="cv" needs at least {folds} training samples of every class, the smallest has {int(torch.bincount(y).min())}')
    fold = place_in_class(y) % folds
    accuracy = torch.zeros(len(grid))
    for held_out, (i, C) in itertools.product(range(folds), enumerate(grid)):
        rest, held = fold != held_out, fold == held_out
        classifier, _ = _logistic(features[rest], y[rest], C)
        accuracy[i] += top_r(_with_one(features[held]).to(classifier), y[held].to(classifier.device), 1, classifier=classifier)
    return grid[int(accuracy.argmax())]


def _with_one(features: Tensor) -> Tensor:
    return F.pad(features, (0, 1), value=1.0)


def _logistic(features: Tensor, y: Tensor, C: float, *, array_api: bool | None = None) -> tuple[Tensor, int]:
    """Fits the probe to y in 0..K-1. Returns its weights on raw features with the bias as last column, float64 [K, d + 1], and the
    solver's iterations. array_api: hand scikit-learn the tensors themselves (default: where they are on a CUDA device).
    """
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=C, max_iter=1000)
    if array_api is None:
        array_api = features.is_cuda and model.__sklearn_tags__().array_api_support  # scikit-learn 1.9 and later
    if not array_api:
        features, y = features.cpu(), y.cpu()
    x = features.double()
    std, mean = torch.std_mean(x, dim=0, correction=0)
    std = torch.where(std > 1e-6 * x.abs().amax(0), std, 1.0)  # where a feature varies by no more than rounding, leave it small
    x = (x - mean) / std
    if array_api:
        # scikit-learn asks for this variable. It is set for the fit alone: scipy, seeing it at import, would change everywhere.
        with patch.dict(os.environ, SCIPY_ARRAY_API="1"), config_context(array_api_dispatch=True):
            model.fit(x, y)
    else:
        model.fit(x.numpy(), y.numpy())
    weight, bias = torch.as_tensor(model.coef_), torch.as_tensor(model.intercept_)
    if len(weight) == 1:  # two classes: one row, the second class's score relative to the first
        weight, bias = torch.cat([torch.zeros_like(weight), weight]), torch.cat([torch.zeros_like(bias), bias])
    weight = weight / std
    return torch.cat([weight, (bias - weight @ mean)[:, None]], dim=1), int(model.n_iter_[0])


def features_of(encoder: nn.Module, images: Tensor, *, transform: Callable[[Tensor], Tensor], batch: int = 1000) -> Tensor:
    """The encoder's features of images, in evaluation mode and without gradient; its training flags are restored afterwards.

    images: [n, c, h, w]; transform: takes a batch of them to what the encoder takes (normalisation, no augmentation). Returns [n, d].
    """
    flags = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        with torch.no_grad():
            return torch.cat([encoder(transform(images[i : i + batch])).flatten(1) for i in range(0, len(images), batch)])
    finally:
        for module, flag in flags:
            module.training = flag


def released_probe(
    encoder: nn.Module,
    train_images: Tensor,
    train_labels: Tensor,
    test_images: Tensor,
    test_labels: Tensor,
    *,
    augment: Callable[[Tensor, torch.Generator], Tensor],
    transform: Callable[[Tensor], Tensor],
    generator: torch.Generator,
    epochs: int = 100,
    batch: int = 512,
    lr: float = 1e-3,
    weight_decay: float = 1e-6,
) -> ProbeResult:
    """The `released` protocol: the linear evaluation of the released DCL and HCL code, whose published numbers it belongs to.

    A linear layer on the encoder's raw features is trained by Adam on augmented images while the encoder stands in training mode: its
    weights stay, but its batch norms use each batch's statistics and their running statistics drift towards the augmented training
    images. The test pass is in evaluation mode, with the drifted statistics. The last epoch is reported, never the best. It works
    on a copy: the encoder given is left as it was.

    images: [n, c, h, w]; labels: [n] in 0..C-1; augment(images, generator): the training augmentation, to what the encoder takes;
    transform: the same for test images, without augmentation; lr, weight_decay: Adam's (weight decay coupled, on the layer alone).
    """
    if epochs < 1 or batch < 1 or len(train_images) == 0:
        raise ValueError(f"epochs, batch and training images must be at least 1, got {epochs}, {batch}, {len(train_images)}")
    start = time.perf_counter()
    given, encoder = encoder, copy.deepcopy(encoder)
    classes, device = int(train_labels.max()) + 1, train_images.device
    d = features_of(encoder, train_images[:1], transform=transform).shape[1]
    # torch's own start for a linear layer, drawn from the generator given
    initial = (2 * torch.rand(classes, d + 1, generator=generator, device=generator.device) - 1) / math.sqrt(d)
    weight, bias = initial[:, :d].to(device).clone().requires_grad_(), initial[:, d].to(device).clone().requires_grad_()
    optimiser = torch.optim.Adam([weight, bias], lr=lr, weight_decay=weight_decay)
    encoder.train()
    for _ in range(epochs):
        order = torch.randperm(len(train_images), generator=generator, device=generator.device).to(device)
        for rows in order.split(batch):
            with torch.no_grad():
                features = encoder(augment(train_images[rows], generator)).flatten(1)
            loss = F.cross_entropy(F.linear(features, weight, bias), train_labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    scores = F.linear(features_of(encoder, test_images, transform=transform, batch=batch), weight, bias).detach()
    before, after = dict(given.named_buffers()), dict(encoder.named_buffers())
    norms = [name.removesuffix("running_mean") for name in before if name.endswith("running_mean")]
    drift = [(after[norm + "running_mean"] - before[norm + "running_mean"]) ** 2 / (before[norm + "running_var"] + 1e-5) for norm in norms]
    return ProbeResult(
        protocol="released",
        accuracy=top_r(scores, test_labels, 1),
        top5=top_r(scores, test_labels, min(5, classes)),
        iterations=epochs * math.ceil(len(train_images) / batch),
        drift=float(torch.cat(drift).mean().sqrt()) if drift else 0.0,
        seconds=time.perf_counter() - start,
    )


# Classifiers trained a task, and support vector machines


def tr_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int,
    *,
    generator: torch.Generator,
    tasks: int = 100,
    C: float = 1.0,
) -> tuple[float, float]:
    """Accuracy of a trained linear classifier on average k-way tasks (TR of arora2019, Table 1), and its standard error.

    Each task is k classes drawn with `generator`, uniformly and distinct, with a `linear_probe` of its own, fitted and tested on these
    classes alone. The standard error is that of sampling tasks; it is 0 where there are no more than `tasks` of them and
    all are taken, k = C among them. features: [n, d]; labels: [n]. Raises ValueError for a k outside 2..C, fewer than two tasks, or
    classes that differ between training and test set.
    """
    names = torch.unique(train_labels)
    if not torch.equal(names, torch.unique(test_labels)):
        raise ValueError("training and test labels must hold the same classes")
    if not 2 <= k <= len(names) or tasks < 2:
        raise ValueError(f"k must lie in 2..{len(names)}, the number of classes, and tasks be at least 2, got {k} and {tasks}")
    exhaustive = math.comb(len(names), k) <= tasks
    chosen: list[Sequence[int]] = (
        list(itertools.combinations(range(len(names)), k))
        if exhaustive
        else [torch.randperm(len(names), generator=generator, device=generator.device)[:k].tolist() for _ in range(tasks)]
    )
    accuracy = []
    for task in chosen:
        among = names[torch.tensor(task, device=names.device)]
        train, test = torch.isin(train_labels, among), torch.isin(test_labels, among)
        accuracy.append(linear_probe(train_features[train], train_labels[train], test_features[test], test_labels[test], C=C).accuracy)
    return float(np.mean(accuracy)), 0.0 if exhaustive else float(np.std(accuracy, ddof=1) / math.sqrt(tasks))


def svm_cross_validation(
    features: Tensor,
    labels: Tensor,
    *,
    generator: torch.Generator,
    outer: int = 10,
    inner: int = 5,
    Cs: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3),
) -> tuple[float, float]:
    """Nested cross-validation of a support vector machine with an RBF kernel, as InfoGraph and robinson2021 (5.2) probe graphs.

    `outer` stratified folds, shuffled with `generator`, give the test accuracies; within each training part `inner` folds choose C.
    features: [n, d], used as they are; labels: [n]. Returns the accuracies' mean and standard deviation over the outer folds. Raises
    ValueError when a class has fewer samples than there are outer folds.
    """
    from sklearn import config_context
    from sklearn.model_selection import StratifiedKFold
    from sklearn.svm import SVC

    smallest = int(torch.unique(labels, return_counts=True)[1].min())
    if smallest < outer or outer < 2:
        raise ValueError(f"outer must lie in 2..{smallest}, the samples of the smallest class, got {outer}")
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    x, y = features.cpu().numpy(), labels.cpu().numpy()
    wide = features.cpu().double()
    square = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square().numpy()  # [n, n], once for all folds and C

    def kernels(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gamma = 1.0 / max(x.shape[1] * float(x[train].var()), 1e-30)  # scikit-learn's gamma="scale"
        return np.exp(-gamma * square[np.ix_(train, train)]), np.exp(-gamma * square[np.ix_(test, train)])

    def accuracies(train: np.ndarray, test: np.ndarray, choices: Sequence[float]) -> np.ndarray:
        own, across = kernels(train, test)
        with config_context(skip_parameter_validation=True):  # an eighth of the time: these are small problems, and many
            fitted = (SVC(C=C, kernel="precomputed").fit(own, y[train]) for C in choices)
            return np.array([(svm.predict(across) == y[test]).mean() for svm in fitted])

    accuracy = []
    for train, test in StratifiedKFold(outer, shuffle=True, random_state=seed).split(x, y):
        folds = StratifiedKFold(inner).split(x[train], y[train])
        chosen = np.mean([accuracies(train[fit], train[held_out], Cs) for fit, held_out in folds], axis=0).argmax()
        accuracy.append(accuracies(train, test, [Cs[chosen]])[0])
    return float(np.mean(accuracy)), float(np.std(accuracy))
