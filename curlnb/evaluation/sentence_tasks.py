"""Small classification tasks on fixed sentence vectors, after SentEval (Conneau and Kiela 2018).

Logistic regression with an L2 penalty on the frozen features, its strength chosen on held-out parts
of the training data: nested cross-validation where a task has no test set, else cross-validation on
its training set. Features are used as they are. All fits of a task, over folds and penalties, are
solved side by side as columns of one matrix, so that a step is two matrix products, on any device.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from curlnb.evaluation.accuracy import place_in_class
from curlnb.evaluation.features import check_features

STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The inverse penalties C that are tried: SentEval's where a task has no test set. Where it has
one, SentEval tries 0.5 to 32; skip-thoughts' scripts, which quick-thoughts' code calls, 1 to 256.
"""


class Score(NamedTuple):
    """The result of a task.

    accuracy: share of correct answers, on test folds or the test set; dev: on the held-out parts
    that chose C; f1: of class 1, for two classes.
    """

    accuracy: float
    dev: float
    f1: float


def logistic(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    C: Tensor,
    *,
    classes: int,
    tolerance: float = 1e-5,
    steps: int = 500,
) -> Tensor:
    """m logistic regressions on the same n samples at once. Returns weights [rows, d + 1, m].

    Each minimises C sum_i weight_i cross-entropy_i + |W|^2 / 2, as scikit-learn does. x: [n, d]
    features; y: int64 [n] in 0..classes-1; weight: [n, m], 0 where a fit leaves a sample out, else
    1; C: [m]. The intercept is the last of the d + 1 and is not penalised. Two classes have one row
    of weights, more classes one row each. Stops when no gradient exceeds `tolerance` x C x n, or
    after `steps`.

    Accelerated gradient steps, restarted when they overshoot, in the metric of Boehning's bound:
    the Hessian is at most C q X'X + penalty, q = 1/4 for two classes and 1/2 for more, whichever
    samples are left out. So one factor per value of C serves all its fits, and no step is too long.
    """
    n, d = x.shape
    binary = classes == 2
    one = torch.cat([x, x.new_ones(n, 1)], 1)
    penalty = x.new_ones(d + 1)
    # keeps the factor safe; the gradient has no such term, so the minimum is scikit-learn's
    penalty[d] = 1e-6 * n
    values, group = torch.unique(C, return_inverse=True)
    bound = values[:, None, None] * (0.25 if binary else 0.5) * (one.T @ one) + torch.diag(penalty)
    inverse = torch.linalg.inv(bound)  # [values, d + 1, d + 1]
    alike = [(group == value).nonzero()[:, 0] for value in range(len(values))]
    rows, m = 1 if binary else classes, len(C)
    # [rows, n]
    target = (y[None] == torch.arange(1 if binary else 0, classes, device=y.device)[:, None]).to(
        x.dtype
    )
    w = x.new_zeros(rows, d + 1, m)
    ahead, momentum, shrink = w, x.new_ones(m), torch.cat([x.new_ones(d), x.new_zeros(1)])[:, None]
    for step in range(steps):
        scores = (one @ ahead.transpose(0, 1).reshape(d + 1, -1)).reshape(n, rows, m)
        share = scores.sigmoid() if binary else scores.softmax(1)
        wrong = (share - target.T[:, :, None]) * weight[:, None]  # [n, rows, m]
        gradient = (
            C * (one.T @ wrong.reshape(n, -1)).reshape(d + 1, rows, m).transpose(0, 1)
            + shrink * ahead
        )
        if step % 10 == 9 and bool((gradient.abs().amax((0, 1)) <= tolerance * C * n).all()):
            break
        after = ahead.clone()
        for factor, fits in zip(inverse, alike, strict=True):
            after[:, :, fits] -= factor @ gradient[:, :, fits]
        over = ((after - w) * (ahead - after)).sum((0, 1)) > 0  # the momentum points uphill
        momentum = torch.where(over, 1.0, momentum)
        following = (1 + (1 + 4 * momentum**2).sqrt()) / 2
        ahead = after + torch.where(over, 0.0, (momentum - 1) / following) * (after - w)
        w, momentum = after, following
    return w


def predictions(w: Tensor, x: Tensor) -> Tensor:
    """The classes that m classifiers w [rows, d + 1, m] predict for x [n, d]; int64 [n, m]."""
    scores = torch.einsum("nd,rdm->nrm", x, w[:, :-1]) + w[:, -1]
    return (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(1)


def folds(y: Tensor, count: int, seed: int = 1111) -> Tensor:
    """Each sample's fold [n] in 0..count-1, stratified by class and shuffled.

    y: int64 [n]. ValueError where a class has fewer than `count` samples.
    """
    smallest = int(torch.bincount(y).min())
    if not 2 <= count <= smallest:
        raise ValueError(
            f"{count} folds need {count} samples of every class, the smallest has {smallest}"
        )
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).to(y.device)
    fold = torch.empty_like(y)
    fold[order] = place_in_class(y[order]) % count
    return fold


def cross_validated(
    x: Tensor, y: Tensor, *, count: int = 10, inner: int = 9, strengths: Sequence[float] = STRENGTHS
) -> Score:
    """Nested cross-validation (MR, CR, SUBJ, MPQA): each of `count` folds is the test set once.

    C is chosen on `inner` of the other count - 1 folds, each held out once; SentEval splits what is
    left into `count` new folds. x: [n, d]; y: int64 [n]. Every fold chooses its own C; the smallest
    of equals. ValueError for `inner` outside 1..count-1.
    """
    check_features(x, y)
    if not 1 <= inner < count:
        raise ValueError(f"inner must lie in 1..{count - 1}, the folds that are left, got {inner}")
    fold, classes = folds(y, count), int(y.max()) + 1
    C = torch.tensor(strengths, dtype=x.dtype, device=x.device)
    pairs = {(a, (a + 1 + i) % count) for a in range(count) for i in range(inner)}
    # leaving out a and b is the same fit for either as the test fold
    apart = sorted({tuple(sorted(pair)) for pair in pairs})
    kept = torch.stack([(fold != a) & (fold != b) for a, b in apart], 1).to(x.dtype)  # [n, fits]
    w = logistic(x, y, kept.repeat_interleave(len(C), 1), C.repeat(len(apart)), classes=classes)
    right = (predictions(w, x) == y[:, None]).unflatten(1, (len(apart), len(C)))
    held = torch.zeros(count, len(C), device=x.device)
    for a, b in pairs:
        held[a] += right[fold == b, apart.index((min(a, b), max(a, b)))].float().mean(0) / inner
    chosen = held.argmax(1)  # [count]
    final = logistic(
        x,
        y,
        torch.stack([fold != a for a in range(count)], 1).to(x.dtype),
        C[chosen],
        classes=classes,
    )
    named = predictions(final, x).gather(1, fold[:, None])[:, 0]
    return Score(
        float((named == y).double().mean()), float(held.amax(1).double().mean()), f1(named, y)
    )


def train_test(
    x: Tensor,
    y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    count: int = 10,
    inner: int = 10,
    strengths: Sequence[float] = STRENGTHS,
) -> Score:
    """A task with a test set (TREC, MSRP): choose C by cross-validation, fit on all training data.

    x: [n, d]; y: int64 [n]; C is chosen on `inner` of `count` folds, ValueError if that is none or
    more than there are.
    """
    check_features(x, y, test_x, test_y)
    _check_inner(inner, count)
    fold, classes = folds(y, count), int(y.max()) + 1
    C = torch.tensor(strengths, dtype=x.dtype, device=x.device)
    kept = torch.stack([fold != a for a in range(inner)], 1).to(x.dtype)
    w = logistic(x, y, kept.repeat_interleave(len(C), 1), C.repeat(inner), classes=classes)
    right = (predictions(w, x) == y[:, None]).unflatten(1, (inner, len(C)))
    held = torch.stack([right[fold == a, a].float().mean(0) for a in range(inner)]).mean(0)
    best = held.argmax()
    final = logistic(x, y, x.new_ones(len(x), 1), C[best : best + 1], classes=classes)
    named = predictions(final, test_x)[:, 0]
    return Score(float((named == test_y).double().mean()), float(held[best]), f1(named, test_y))


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """Features of sentence pairs [n, 2 d]: |u - v| and u * v side by side, of u, v [n, d]."""
    return torch.cat([(u - v).abs(), u * v], 1)


def _check_inner(inner: int, count: int) -> None:
    if not 1 <= inner <= count:
        raise ValueError(f"inner must lie in 1..{count}, the number of folds, got {inner}")


def f1(named: Tensor, y: Tensor) -> float:
    """The harmonic mean of precision and recall of class 1. named, y: int64 [n].

    0 where class 1 is neither predicted nor present.
    """
    hits, total = float(((named == 1) & (y == 1)).sum()), float((named == 1).sum() + (y == 1).sum())
    return 2 * hits / total if total else 0.0
