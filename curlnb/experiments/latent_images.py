"""arora2019's experiments on images: CURL, its supervised twin and the untrained network.

The classes of the images are the latent classes.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curlnb import evaluation
from curlnb.data import datasets
from curlnb.experiments import own_parts
from curlnb.experiments.image_data import ImageData, digest, normalised
from curlnb.experiments.latent import LatentBlocks, LatentWorld, Measures, train_and_measure
from curlnb.experiments.own_parts import MakeEncoder, OwnDataset
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Accelerated

DIM = 100  # of the representation (arora2019, Section 8.1)


class Small(nn.Module):
    """A network for a CPU: three convolutions of stride 2 and a linear layer, 0.3 M weights.

    Images [n, channels, side, side] -> representations [n, DIM].
    """

    def __init__(
        self, channels: int, side: int, widths: tuple[int, int, int] = (16, 32, 64)
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((channels, *widths), widths, strict=False):
            layers += [
                nn.Conv2d(before, after, 3, 2, 1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
            side = (side + 1) // 2
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * side * side, DIM))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def representation_network(encoder: str | MakeEncoder, shape: torch.Size) -> nn.Module:
    """A network from images of `shape` [c, h, w] to representations of DIM numbers.

    encoder: "small", or as in `own_parts.make_encoder`, followed by a linear layer to DIM.
    """
    if encoder == "small":
        return Small(shape[0], shape[1]).to(  # type: ignore[call-overload]
            memory_format=torch.channels_last
        )
    # vgg16 ends in its 512 x 100 layer already
    body, dim = own_parts.make_encoder(encoder, shape[0], shape[1])
    return nn.Sequential(body, nn.Identity() if dim == DIM else nn.Linear(dim, DIM)).to(
        memory_format=torch.channels_last
    )  # type: ignore[call-overload]


@dataclass(frozen=True)
class ShiftAndFlip:
    """Augmentation of the training images, the same for every method.

    arora2019 mentions none. shift: each image is moved by up to that many pixels in each direction;
    flip: it is mirrored with probability 1/2.
    """

    shift: int = 0
    flip: bool = False


@experiment(name="latent_images.curl", data=digest)
def curl(
    run: Run,
    *,
    seed: int,
    dataset: str | OwnDataset = "quickdraw-mini",
    evaluate_on: str = "test",
    encoder: str | MakeEncoder = "small",
    moved: ShiftAndFlip = ShiftAndFlip(),
    blocks: LatentBlocks = LatentBlocks(),
    optimisation: Accelerated = Accelerated(epochs=20, batch=250, weight_decay=0.0),
    measures: Measures = Measures(),
) -> dict[str, Any]:
    """Train and measure by `latent.train_and_measure` on an image set.

    dataset, evaluate_on: as in `image_data.ImageData`. encoder: "small", or as in
    `own_parts.make_encoder`.
    """
    fit, held_out = ImageData(dataset, evaluate_on=evaluate_on).labelled(run.device)
    model, world = (
        representation_network(encoder, fit.images.shape[1:]),
        image_world(fit, held_out, moved),
    )
    return train_and_measure(
        run,
        world,
        model,
        DIM,
        seed=seed,
        blocks=blocks,
        optimisation=optimisation,
        measures=measures,
    )


def image_world(
    fit: datasets.Dataset, held_out: datasets.Dataset, moved: ShiftAndFlip
) -> LatentWorld:
    """Both image sets as a `LatentWorld`, normalised once, channels last, on their device.

    Training images are cut from the set padded by reflection.
    """
    shift, flip = moved.shift, moved.flip
    whole = {"train": normalised(fit.images), "test": normalised(held_out.images)}
    padded = F.pad(whole["train"], (shift,) * 4, mode="reflect") if shift else whole["train"]
    padded = padded.permute(0, 2, 3, 1).contiguous()
    height, width = fit.images.shape[2:]

    def inputs(samples: Tensor, generator: torch.Generator) -> Tensor:
        if not shift and not flip:
            return padded[samples].permute(0, 3, 1, 2)
        device = samples.device
        drawn = torch.rand(3, len(samples), generator=generator, device=device)
        y, x = (drawn[:2] * (2 * shift + 1)).long().clamp_max(2 * shift)
        column = torch.arange(width, device=device).expand(len(samples), -1)
        if flip:
            column = torch.where(drawn[2, :, None] < 0.5, column.flip(1), column)
        rows = y[:, None] + torch.arange(height, device=device)
        at = (samples[:, None, None] * padded.shape[1] + rows[:, :, None]) * padded.shape[2] + (
            x[:, None] + column
        )[:, None]
        return padded.flatten(0, 2)[at].permute(0, 3, 1, 2)  # a view in channels-last order

    def features(model: nn.Module, split: str) -> Tensor:
        return evaluation.extract_features(
            model, whole[split], transform=lambda images: images, batch=500
        ).float()

    return LatentWorld(fit.labels, held_out.labels, inputs, features)
