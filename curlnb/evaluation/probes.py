"""Linear probes: the `frozen` protocol, fitted to convergence, and the released code's protocol."""

import copy
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curlnb.evaluation.accuracy import place_in_class, top_r
from curlnb.evaluation.features import check_features, extract_features

# scikit-learn is imported where it is used: the import takes seconds, and most of the evaluation
# does not need it.


@dataclass(frozen=True)
class ProbeResult:
    """The result of a linear probe.

    accuracy, top5: shares of the test set (top5 with fewer than five classes is 1). protocol:
    "frozen" or "released"; iterations: of the solver, or optimiser steps; C: inverse strength of
    the L2 penalty ("frozen"); drift: how far the released protocol moved the batch norms' running
    means, in root mean square over channels, in units of their running standard deviations before;
    seconds: wall time, left out when two results are compared.
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
    """The `frozen` protocol: logistic regression on fixed features, fitted to convergence.

    Features of an encoder in evaluation mode are standardised with the training set's mean and
    standard deviation; the loss is scikit-learn's C sum_i cross-entropy_i + |W|^2 / 2. C = 1 is
    fixed in advance and the same for every method compared; `C="cv"` chooses it from 1e-4..1e2 by
    cross-validation within the training set (5 folds, stratified; the smallest of equals). The test
    set chooses nothing. For the probe of the released code, which needs images, see
    `released_probe`.

    features: [n, d], without a gradient; labels: [n], any integers. Fitted in float64, on the
    features' CUDA device by scikit-learn's array API, else on the CPU; the fit holds a few n x
    classes matrices. Raises ValueError for fewer than two classes, a test class that is not in the
    training set, or a C that is neither positive nor "cv".
    """
    start = time.perf_counter()
    check_features(train_features, train_labels, test_features, test_labels)
    if not train_features.is_cuda:
        train_features, train_labels, test_features, test_labels = (
            t.cpu() for t in (train_features, train_labels, test_features, test_labels)
        )
    names, y = torch.unique(train_labels, return_inverse=True)
    y_test = torch.searchsorted(names, test_labels).clamp(max=len(names) - 1)
    if len(names) < 2:
        raise ValueError(
            "a linear probe needs at least 2 classes, the training labels hold only "
            f"{names.tolist()}"
        )
    if not torch.equal(names[y_test], test_labels):
        unknown = int(test_labels[names[y_test] != test_labels][0])
        raise ValueError(
            f"class {unknown} is among the test labels, but not among the training labels"
        )
    if C == "cv":
        C = _cross_validated_C(train_features, y)
    if isinstance(C, str) or not 0 < C < math.inf:
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
    """The classifier of the `frozen` protocol (`linear_probe`) on raw features, float64 [K, d + 1].

    The last column is the bias: scores are `features_with_a_one @ classifier.T`; `average_accuracy`
    and `top_r` take them. labels: [n] in 0..K-1, all of them present, else ValueError.
    """
    check_features(train_features, train_labels)
    if len(torch.unique(train_labels)) != int(train_labels.max()) + 1:
        raise ValueError(f"training labels must hold every class in 0..{int(train_labels.max())}")
    weight, _ = _logistic(train_features, train_labels, C)
    return weight.to(train_features.device)


@contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and restore it afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _cross_validated_C(features: Tensor, y: Tensor) -> float:
    folds, grid = 5, [10.0**power for power in range(-4, 3)]
    if int(torch.bincount(y).min()) < folds:
        raise ValueError(
            f'C="cv" needs at least {folds} training samples of every class, the smallest has '
            f"{int(torch.bincount(y).min())}"
        )
    fold = place_in_class(y) % folds
    accuracy = torch.zeros(len(grid))
    for held_out, (i, C) in itertools.product(range(folds), enumerate(grid)):
        rest, held = fold != held_out, fold == held_out
        classifier, _ = _logistic(features[rest], y[rest], C)
        accuracy[i] += top_r(
            _with_one(features[held]).to(classifier),
            y[held].to(classifier.device),
            1,
            classifier=classifier,
        )
    return grid[int(accuracy.argmax())]


def _with_one(features: Tensor) -> Tensor:
    return F.pad(features, (0, 1), value=1.0)


def _logistic(
    features: Tensor, y: Tensor, C: float, *, array_api: bool | None = None
) -> tuple[Tensor, int]:
    """Fit the probe to y in 0..K-1. Returns weights on raw features and the solver's iterations.

    The weights are float64 [K, d + 1], the bias as last column. array_api: pass the tensors
    themselves to scikit-learn (default: if they are on a CUDA device).
    """
    from sklearn import config_context
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=C, max_iter=1000)
    if array_api is None:
        # scikit-learn 1.9 and later
        array_api = features.is_cuda and model.__sklearn_tags__().array_api_support
    if not array_api:
        features, y = features.cpu(), y.cpu()
    x = features.double()
    std, mean = torch.std_mean(x, dim=0, correction=0)
    # where a feature varies by no more than rounding, leave it small
    std = torch.where(std > 1e-6 * x.abs().amax(0), std, 1.0)
    x = (x - mean) / std
    if array_api:
        # scikit-learn asks for this variable. It is set for the fit alone: scipy, seeing it at
        # import, would behave differently everywhere.
        with _environment_variable("SCIPY_ARRAY_API", "1"), config_context(array_api_dispatch=True):
            model.fit(x, y)
    else:
        model.fit(x.numpy(), y.numpy())
    weight, bias = torch.as_tensor(model.coef_), torch.as_tensor(model.intercept_)
    if len(weight) == 1:  # two classes: one row, the second class's score relative to the first
        weight, bias = (
            torch.cat([torch.zeros_like(weight), weight]),
            torch.cat([torch.zeros_like(bias), bias]),
        )
    weight = weight / std
    return torch.cat([weight, (bias - weight @ mean)[:, None]], dim=1), int(model.n_iter_[0])


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
    """The `released` protocol: the linear evaluation of the released DCL and HCL code.

    Their published numbers come from it. A linear layer on the encoder's raw features is trained by
    Adam on augmented images while the encoder is in training mode: its weights stay, but its batch
    norms use each batch's statistics and their running statistics drift towards the augmented
    training images. The test pass is in evaluation mode, with the drifted statistics. The last
    epoch is reported, never the best. The probe works on a copy of the encoder.

    images: [n, c, h, w]; labels: [n] in 0..C-1; augment(images, generator): the training
    augmentation, to the encoder's input; transform: the same for test images, without augmentation;
    lr, weight_decay: Adam's (weight decay coupled, on the layer alone). ValueError without images,
    epochs or batch.
    """
    if epochs < 1 or batch < 1 or len(train_images) == 0:
        raise ValueError(
            f"epochs, batch and training images must be at least 1, got {epochs}, {batch}, "
            f"{len(train_images)}"
        )
    start = time.perf_counter()
    given, encoder = encoder, copy.deepcopy(encoder)
    classes, device = int(train_labels.max()) + 1, train_images.device
    d = extract_features(encoder, train_images[:1], transform=transform).shape[1]
    # torch's own start for a linear layer, drawn from the generator given
    initial = (
        2 * torch.rand(classes, d + 1, generator=generator, device=generator.device) - 1
    ) / math.sqrt(d)
    weight, bias = (
        initial[:, :d].to(device).clone().requires_grad_(),
        initial[:, d].to(device).clone().requires_grad_(),
    )
    optimiser = torch.optim.Adam([weight, bias], lr=lr, weight_decay=weight_decay)
    encoder.train()
    for _ in range(epochs):
        order = torch.randperm(len(train_images), generator=generator, device=generator.device).to(
            device
        )
        for rows in order.split(batch):
            with torch.no_grad():
                features = encoder(augment(train_images[rows], generator)).flatten(1)
            loss = F.cross_entropy(F.linear(features, weight, bias), train_labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    scores = F.linear(
        extract_features(encoder, test_images, transform=transform, batch=batch), weight, bias
    ).detach()
    before, after = dict(given.named_buffers()), dict(encoder.named_buffers())
    norms = [name.removesuffix("running_mean") for name in before if name.endswith("running_mean")]
    drift = [
        (after[norm + "running_mean"] - before[norm + "running_mean"]) ** 2
        / (before[norm + "running_var"] + 1e-5)
        for norm in norms
    ]
    return ProbeResult(
        protocol="released",
        accuracy=top_r(scores, test_labels, 1),
        top5=top_r(scores, test_labels, min(5, classes)),
        iterations=epochs * math.ceil(len(train_images) / batch),
        drift=float(torch.cat(drift).mean().sqrt()) if drift else 0.0,
        seconds=time.perf_counter() - start,
    )
