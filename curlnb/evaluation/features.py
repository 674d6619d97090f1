"""Features of images by an encoder, and the check that features and labels fit."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def extract_features(
    encoder: nn.Module, images: Tensor, *, transform: Callable[[Tensor], Tensor], batch: int = 1000
) -> Tensor:
    """The encoder's features of images, in evaluation mode and without gradient. Returns [n, d].

    images: [n, c, h, w]; transform: from a batch of them to the encoder's input (normalisation, no
    augmentation). The encoder's training flags are restored afterwards.
    """
    flags = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        with torch.no_grad():
            return torch.cat(
                [
                    encoder(transform(images[i : i + batch])).flatten(1)
                    for i in range(0, len(images), batch)
                ]
            )
    finally:
        for module, flag in flags:
            module.training = flag


def check_features(*sets: Tensor) -> None:
    """ValueError unless features [n, d] and labels [n] are finite tensors of shapes that fit.

    sets: training features and labels, then test features and labels where there are some.
    """
    if not all(isinstance(each, Tensor) for each in sets):
        raise ValueError("features and labels must be tensors: use torch.as_tensor")
    (n, *d), labels, (n_test, *d_test), test_labels = (list(t.shape) for t in (*sets, *sets)[:4])
    if len(d) != 1 or d != d_test or labels != [n] or test_labels != [n_test] or 0 in (n, n_test):
        raise ValueError(
            "features must be [n, d] and labels [n], n >= 1 and d the same in both sets, "
            f"got {[list(t.shape) for t in sets]}"
        )
    if not all(bool(features.isfinite().all()) for features in sets[::2]):
        raise ValueError("features hold NaN or infinity: the representation has diverged")
