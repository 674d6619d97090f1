"""The vote of the nearest training samples."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from curlnb.evaluation import accuracy
from curlnb.evaluation.features import check_features


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
    """Accuracy of the vote of the k most similar training samples, by cosine similarity s.

    A vote has the weight exp(s / temperature), as in the monitor of the released DCL and HCL code
    (k = 200, temperature 0.5); with `temperature=None` all votes have equal weight. features: [n,
    d]; labels: [n]; classes: their number (default: the largest label plus 1). Equal votes count
    for their share; among training samples exactly as far away as the k-th, `torch.topk` decides
    which of them vote. Computed in the wider type of both sets, float32 at least. Raises ValueError
    when k exceeds the number of training samples: another k is another measure, so the caller has
    to choose it.
    """
    check_features(train_features, train_labels, test_features, test_labels)
    train_labels, test_labels = train_labels.long(), test_labels.long()
    n_train = len(train_features)
    if not 1 <= k <= n_train:
        raise ValueError(f"k must lie in 1..{n_train}, the number of training samples, got {k}")
    if temperature is not None and temperature <= 0:
        raise ValueError(
            f"temperature must be positive, or None for equal votes, got {temperature}"
        )
    lowest, labelled = (int(edge) for edge in torch.cat([train_labels, test_labels]).aminmax())
    if lowest < 0:
        raise ValueError(f"labels must be numbered from 0, got {lowest}")
    classes = labelled + 1 if classes is None else classes
    if classes <= labelled:
        raise ValueError(
            f"classes must be at least {labelled + 1} with the labels given, got {classes}"
        )
    # the table of votes has that many columns, and would fill the memory
    if classes > 100 * (n_train + len(test_labels)):
        raise ValueError(
            f"{classes} classes are far more than there are samples: "
            "number the classes 0, 1, ... without large gaps"
        )
    wide = torch.promote_types(train_features.dtype, test_features.dtype)
    wide = torch.promote_types(wide, torch.float32)
    train = F.normalize(train_features.to(wide))
    rows = max(1, accuracy.CHUNK // max(n_train, classes))
    counts = []
    for features, labels in zip(test_features.split(rows), test_labels.split(rows), strict=True):
        similarity = F.normalize(features.to(wide)) @ train.T
        similarity, neighbour = similarity.topk(k, dim=1)  # [rows, k]
        # relative to the nearest: a factor common to all votes, which keeps exp finite at any
        # temperature
        weight = (
            torch.ones_like(similarity)
            if temperature is None
            else ((similarity - similarity[:, :1]) / temperature).exp()
        )
        votes = weight.new_zeros(len(features), classes).scatter_add_(
            1, train_labels[neighbour], weight
        )
        counts.append(accuracy.class_ranks(votes, labels))
    above, tied = (torch.cat(parts) for parts in zip(*counts, strict=True))
    return accuracy.mean_over_places(np.eye(1, classes)[0], above, tied)
