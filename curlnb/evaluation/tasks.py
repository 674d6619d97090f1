"""Classifiers trained for each task, and support vector machines under nested cross-validation."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from curlnb.evaluation.features import check_features
from curlnb.evaluation.probes import linear_probe


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
    """Accuracy of trained linear classifiers on average k-way tasks, and its standard error.

    This is TR of arora2019, Table 1. Each task is k classes drawn with `generator`, uniformly and
    distinct; a `linear_probe` is fitted and tested on these classes alone. The standard error is
    that of sampling tasks; it is 0 if there are at most `tasks` of them, which are then all taken,
    as for k = C. features: [n, d]; labels: [n]. Raises ValueError for a k outside 2..C, fewer than
    two tasks, or classes that differ between training and test set.
    """
    check_features(train_features, train_labels, test_features, test_labels)
    names = torch.unique(train_labels)
    if not torch.equal(names, torch.unique(test_labels)):
        raise ValueError("training and test labels must hold the same classes")
    if not 2 <= k <= len(names) or tasks < 2:
        raise ValueError(
            f"k must lie in 2..{len(names)}, the number of classes, and tasks be at least 2, got "
            f"{k} and {tasks}"
        )
    exhaustive = math.comb(len(names), k) <= tasks
    chosen: list[Sequence[int]] = (
        list(itertools.combinations(range(len(names)), k))
        if exhaustive
        else [
            torch.randperm(len(names), generator=generator, device=generator.device)[:k].tolist()
            for _ in range(tasks)
        ]
    )
    accuracy = []
    for task in chosen:
        among = names[torch.tensor(task, device=names.device)]
        train, test = torch.isin(train_labels, among), torch.isin(test_labels, among)
        accuracy.append(
            linear_probe(
                train_features[train],
                train_labels[train],
                test_features[test],
                test_labels[test],
                C=C,
            ).accuracy
        )
    return float(np.mean(accuracy)), 0.0 if exhaustive else float(
        np.std(accuracy, ddof=1) / math.sqrt(tasks)
    )


def svm_cross_validation(
    features: Tensor,
    labels: Tensor,
    *,
    generator: torch.Generator,
    outer: int = 10,
    inner: int = 5,
    Cs: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3),
) -> tuple[float, float]:
    """Nested cross-validation of a support vector machine with an RBF kernel.

    InfoGraph and robinson2021 (5.2) probe graphs so. `outer` stratified folds, shuffled with
    `generator`, give the test accuracies; within each training part `inner` folds choose C.
    features: [n, d], used as they are; labels: [n]. Returns the mean and standard deviation of the
    accuracies over the outer folds. Raises ValueError when a class has fewer samples than there are
    outer folds.
    """
    from sklearn import config_context
    from sklearn.model_selection import StratifiedKFold
    from sklearn.svm import SVC

    check_features(features, labels)
    smallest = int(torch.unique(labels, return_counts=True)[1].min())
    if smallest < outer or outer < 2:
        raise ValueError(
            f"outer must lie in 2..{smallest}, the samples of the smallest class, got {outer}"
        )
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    x, y = features.cpu().numpy(), labels.cpu().numpy()
    wide = features.cpu().double()
    # [n, n], once for all folds and C
    square = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square().numpy()

    def kernels(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gamma = 1.0 / max(x.shape[1] * float(x[train].var()), 1e-30)  # scikit-learn's gamma="scale"
        return np.exp(-gamma * square[np.ix_(train, train)]), np.exp(
            -gamma * square[np.ix_(test, train)]
        )

    def accuracies(train: np.ndarray, test: np.ndarray, choices: Sequence[float]) -> np.ndarray:
        own, across = kernels(train, test)
        # the checks would take seven eighths of the time of so many small fits
        with config_context(skip_parameter_validation=True):
            fitted = (SVC(C=C, kernel="precomputed").fit(own, y[train]) for C in choices)
            return np.array([(svm.predict(across) == y[test]).mean() for svm in fitted])

    accuracy = []
    for train, test in StratifiedKFold(outer, shuffle=True, random_state=seed).split(x, y):
        folds = StratifiedKFold(inner).split(x[train], y[train])
        chosen = np.mean(
            [accuracies(train[fit], train[held_out], Cs) for fit, held_out in folds], axis=0
        ).argmax()
        accuracy.append(accuracies(train, test, [Cs[chosen]])[0])
    return float(np.mean(accuracy)), float(np.std(accuracy))
