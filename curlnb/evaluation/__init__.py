"""Measures of a representation: mean classifier, neighbours, linear probes, k-way tasks, SVM.

Everything takes features (or scores) and labels as tensors and works on their device, in chunks, so
that 3,029 classes and 120,000 samples need a few hundred MB. Logistic regression (scikit-learn's)
runs on the CPU unless the features are on a CUDA device; the support vector machine always does,
with a matrix of all pairs of samples.

Every accuracy is a share in [0, 1]. In those of scores (mean classifier, AVG-k, TOP-r) a tie counts
for its share: a sample whose true class ties with one other for the first place is half right, and
a constant representation scores exactly at chance. Neighbours, probes and the SVM name one class.
"""

from curlnb.evaluation.accuracy import (
    average_accuracy,
    class_ranks,
    mean_classifier,
    place_in_class,
    top_r,
)
from curlnb.evaluation.features import extract_features
from curlnb.evaluation.neighbours import knn
from curlnb.evaluation.probes import ProbeResult, linear_classifier, linear_probe, released_probe
from curlnb.evaluation.tasks import svm_cross_validation, tr_accuracy

__all__ = [
    "ProbeResult",
    "average_accuracy",
    "class_ranks",
    "extract_features",
    "knn",
    "linear_classifier",
    "linear_probe",
    "mean_classifier",
    "place_in_class",
    "released_probe",
    "svm_cross_validation",
    "top_r",
    "tr_accuracy",
]
