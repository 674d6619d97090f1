"""Your own parts, wherever a name may stand: a data set, an encoder, an augmentation, a loss.

Each is called in one place, where its result is checked: a part that does not fit is refused in one
line, before the training or in its first step. An encoder is tried on crops; it sees whole images
only after training and must accept both. A run's key holds a part's code
(`curlnb.runs.fingerprint`).
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from curlnb.data import augment
from curlnb.data.datasets import Dataset
from curlnb.models import encoders

Objective = Callable[[Tensor, Tensor], Tensor]
"""From cosine similarities pos [n] and neg [n, k] (`losses.pairwise`) to losses [n]."""

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""From images, float [n, c, h, w] in [0, 1], and a generator on their device to random views.

One of each image, in [0, 1], of any size. Their range is not looked at; they are normalised next.
"""

MakeEncoder = Callable[[int], nn.Module]
"""From a number of channels to an encoder: images [n, channels, h, w] -> features [n, d]."""


@runtime_checkable
class OwnDataset(Protocol):
    """Your own images with labels: `datasets.from_folder` and `datasets.from_arrays` make one.

    digest: of the content, for keys.
    """

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def split(self, split: str, device: torch.device) -> Dataset: ...


def make_encoder(part: str | MakeEncoder, channels: int, size: int = 32) -> tuple[nn.Module, int]:
    """An encoder and the length d of its features; a name is one of `encoders.encoder`.

    For your own encoder, d is found on two black images [2, channels, size, size] on the CPU, in
    evaluation mode. For a name it is known, so that no additional random number is drawn.
    ValueError for an encoder that gives no module or no features [n, d].
    """
    check_encoder(part)
    if not callable(part):
        return encoders.encoder(part, in_channels=channels)
    made = part(channels)
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"encoder {_name(part)}({channels}) gives a {type(made).__name__}: it must give a "
            "torch.nn.Module"
        )
    with torch.no_grad():
        seen = made.eval()(torch.zeros(2, channels, size, size))
    made.train()
    if not isinstance(seen, Tensor) or seen.dim() != 2 or len(seen) != 2:
        raise ValueError(
            f"encoder {_name(part)} gives {_shape(seen)} for 2 images: it must give features [n, "
            "d], here [2, d]"
        )
    return made, seen.shape[1]


def view(part: Augmentation, images: Tensor, generator: torch.Generator) -> Tensor:
    """One random view of each of uint8 images [n, c, h, w], normalised by `augment.normalise`.

    ValueError for an augmentation that gives no float images.
    """
    found = part(images.float().div_(255), generator)
    if (
        not isinstance(found, Tensor)
        or found.dim() != 4
        or found.shape[:2] != images.shape[:2]
        or not found.is_floating_point()
    ):
        wanted = f"a float tensor [{images.shape[0]}, {images.shape[1]}, h, w]"
        raise ValueError(
            f"augmentation {_name(part)} gives {_shape(found)}: it must give {wanted} in [0, 1]"
        )
    return augment.normalise(found)


def check_bare(loss: Any, names: Iterable[str]) -> None:
    """ValueError if your own objective comes with settings of the others, by their names."""
    for name in names:
        if (value := getattr(loss, name)) != getattr(type(loss), name):
            raise ValueError(
                f"{name} is {value!r}: an objective of your own does not take it; leave it out"
            )


def check_encoder(part: str | MakeEncoder) -> None:
    """ValueError for a network instead of a function that makes one."""
    if isinstance(part, nn.Module):
        raise ValueError(
            f"encoder is a {_name(part)}: give a function from the number of channels to a new "
            "network, since each run trains its own"
        )


def losses_of(part: Objective, pos: Tensor, neg: Tensor) -> Tensor:
    """The loss of each anchor, [n]. pos: [n]; neg: [n, k]. ValueError for another shape."""
    found = part(pos, neg)
    if not isinstance(found, Tensor) or found.shape != pos.shape:
        raise ValueError(
            f"objective {_name(part)} gives {_shape(found)}: it must give the loss of each anchor, "
            f"[{len(pos)}]"
        )
    return found


def _name(part: Any) -> str:
    return getattr(part, "__name__", type(part).__name__)


def _shape(value: Any) -> str:
    return (
        f"{value.dtype} {list(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
    )
