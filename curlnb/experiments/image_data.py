"""The images of an experiment: those for training, for fitting classifiers and for evaluation."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from curlnb import evaluation
from curlnb.data import augment, datasets
from curlnb.experiments.own_parts import OwnDataset
from curlnb.runs import environment
from curlnb.runs.environment import kept_in_memory


@dataclass(frozen=True)
class ImageData:
    """The images of an experiment.

    dataset: a name of `datasets.names("images")`, or your own images (`datasets.from_folder`,
    `datasets.from_arrays`). train_split: the split for training, "train", or STL-10's
    "train+unlabeled". evaluate_on: "test", or "validation" to choose settings: a fifth of the
    labelled training images, held out from everything else; training is then on the other labelled
    images, whatever `train_split` is. ValueError for another word.
    """

    dataset: str | OwnDataset = "cifar10-mini"
    train_split: str = "train"
    evaluate_on: str = "test"

    def __post_init__(self) -> None:
        if self.evaluate_on not in ("test", "validation"):
            raise ValueError(
                f"evaluate_on {self.evaluate_on!r} is unknown; use 'test' or 'validation'"
            )

    def labelled(self, device: torch.device) -> tuple[datasets.Dataset, datasets.Dataset]:
        """The labelled training images and the evaluation images, whole on `device`.

        ImageNet-100 takes 25 GB.
        """
        train = _split(self.dataset, "train", device)
        return (
            datasets.holdout(train, 0.2, seed=0)
            if self.evaluate_on == "validation"
            else (train, _split(self.dataset, "test", device))
        )

    def load(
        self, device: torch.device
    ) -> tuple[datasets.Dataset, datasets.Dataset, datasets.Dataset]:
        """The images for training, for fitting classifiers and for evaluation.

        In a dry run the last two are a few images.
        """
        fitted_on, held_out = self.labelled(device)
        if self.evaluate_on == "validation":
            return fitted_on, fitted_on, held_out
        trained_on = (
            fitted_on
            if self.train_split == "train"
            else _split(self.dataset, self.train_split, device)
        )
        return (
            (trained_on, _few(fitted_on), _few(held_out))
            if environment.dry()
            else (trained_on, fitted_on, held_out)
        )


def merged(data: datasets.Dataset, groups: int) -> Tensor:
    """The labels [n] with the classes merged into `groups` groups of neighbours of similar size.

    CIFAR-100's classes are ordered by superclass and then by name, so that 20 groups are its
    superclasses, and 5 or 10 consist of whole ones; other sets keep their order. ValueError for
    fewer than 2 groups, and for more than there are classes.
    """
    count = len(data.classes)
    if not 2 <= groups <= count:
        raise ValueError(
            f"label_groups is {groups}: {data.name} has {count} classes; use 2 to {count}"
        )
    places = torch.arange(count, device=data.labels.device)
    if data.name == "cifar100":
        places = datasets.coarse_labels(places).argsort(stable=True).argsort()
    return (places * groups // count)[data.labels]


def digest(parameters: dict[str, Any]) -> str:
    """The digest of the images that `parameters` name."""
    dataset = parameters["dataset"]
    if isinstance(dataset, OwnDataset):
        return dataset.digest
    return datasets.digest(dataset)


def features(body: nn.Module, data: datasets.Dataset) -> Tensor:
    """A network's features of whole images, which are normalised first: float32 [n, d]."""
    return evaluation.extract_features(body, data.images, transform=normalised).float()


def features_of(body: nn.Module, views: Tensor) -> Tensor:
    """A network's features of normalised views, float [n, c, h, w]: float32 [n, d]."""
    return evaluation.extract_features(body, views, transform=_channels_last).float()


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def knn(
    x: Tensor,
    labelled: datasets.Dataset,
    test_x: Tensor,
    held_out: datasets.Dataset,
    k: int = 200,
    **more: Any,
) -> float:
    """`evaluation.knn` of features x, test_x [n, d], with k at most the size of the first set."""
    return evaluation.knn(x, labelled.labels, test_x, held_out.labels, k=min(k, len(x)), **more)


def knn_and_probe(
    x: Tensor, labelled: datasets.Dataset, test_x: Tensor, held_out: datasets.Dataset
) -> dict[str, float]:
    """knn, linear and linear_top5 (the `frozen` probe) of features x, test_x [n, d], as shares."""
    probe = evaluation.linear_probe(x, labelled.labels, test_x, held_out.labels)
    return {
        "knn": knn(x, labelled, test_x, held_out),
        "linear": probe.accuracy,
        "linear_top5": probe.top5,
    }


def normalised(images: Tensor) -> Tensor:
    """uint8 images [n, c, h, w] normalised for evaluation, in channels-last layout."""
    return _channels_last(augment.normalise(images))


def first_of_each(labels: Tensor, size: int) -> Tensor:
    """Indices of the first points of every class in `labels` [n], equally many of each.

    `size` in all at most, and at least one per class.
    """
    present, count = labels.unique(return_counts=True)
    each = max(1, min(size // len(present), int(count.min())))
    return torch.cat([(labels == label).nonzero()[:each, 0] for label in present])


def _split(dataset: str | OwnDataset, split: str, device: torch.device) -> datasets.Dataset:
    return (
        dataset.split(split, device)
        if isinstance(dataset, OwnDataset)
        else _load(dataset, split, device)
    )


@kept_in_memory(4)  # decoding and verifying take half a second
def _load(name: str, split: str, device: torch.device) -> datasets.Dataset:
    return datasets.load(name, split, device=device)


def _few(data: datasets.Dataset) -> datasets.Dataset:
    """Four images of two classes, for dry runs, where a large encoder on large images is slow."""
    some = torch.cat([(data.labels == label).nonzero()[:2, 0] for label in range(2)])
    return replace(data, images=data.images[some], labels=data.labels[some])
