"""arora2019's experiments on images: CURL, its supervised twin and the untrained network on latent classes of pictures."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curlnb import evaluation
from curlnb.data import augment, datasets
from curlnb.experiments.latent import World, learn
from curlnb.models.encoders import encoder as build
from curlnb.runs import environment
from curlnb.runs.store import Run, experiment

DIM = 100  # of the representation (arora2019, Section 8.1)


class Small(nn.Module):
    """A network for a CPU: three convolutions of stride 2 and a linear layer to a representation of DIM numbers, about 0.3 M weights."""

    def __init__(self, channels: int, side: int, widths: tuple[int, int, int] = (16, 32, 64)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((channels, *widths), widths, strict=False):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            side = (side + 1) // 2
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * side * side, DIM))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def network(name: str, shape: torch.Size) -> nn.Module:
    """Images of `shape` [c, h, w] -> DIM numbers. name: "small", or one of `encoders.encoder`, followed by a linear layer to DIM."""
    if name == "small":
        return Small(shape[0], shape[1]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    body, dim = build(name, in_channels=shape[0])  # vgg16 ends in its 512 x 100 layer already
    return nn.Sequential(body, nn.Identity() if dim == DIM else nn.Linear(dim, DIM)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@experiment(data=lambda parameters: datasets.digest(parameters["dataset"]))
def curl(
    run: Run,
    *,
    seed: int,
    dataset: str = "quickdraw-mini",
    evaluate_on: str = "test",
    encoder: str = "small",
    shift: int = 0,
    flip: bool = False,
    method: str = "curl",
    loss: str = "logistic",
    negatives: int = 4,
    block: int = 1,
    fresh: bool = False,
    batch: int = 250,
    epochs: int = 20,
    share: float = 1.0,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    tr_tasks: int = 0,
    track: bool = False,
    precision: str = "float32",
    compile: bool = False,
) -> dict[str, Any]:
    """Train and measure as `latent.learn` says, on an image set.

    evaluate_on: "test", or "validation", a fifth of the training images held out from everything else, on which settings are chosen.
    encoder: "small" or one of `encoders.encoder`. shift, flip: every training image is moved by up to so many pixels in each direction and
    mirrored with probability 1/2, for each method alike (arora2019 mentions no augmentation).
    """
    fit, held_out = _data(dataset, evaluate_on, run.device)
    model = network(encoder, fit.images.shape[1:])
    world = image_world(fit, held_out, shift=shift, flip=flip)
    options: dict[str, Any] = {"method": method, "loss": loss, "negatives": negatives, "block": block, "fresh": fresh, "share": share}
    options |= {"batch": batch, "epochs": epochs, "lr": lr, "weight_decay": weight_decay, "tr_tasks": tr_tasks, "track": track}
    return learn(run, world, model, DIM, seed=seed, precision=precision, compile=compile, **options)


def image_world(fit: datasets.Dataset, held_out: datasets.Dataset, *, shift: int, flip: bool) -> World:
    """Both sets normalised once, channels last, on their device; training batches are cut from the set padded by its own reflection."""
    whole = {"train": _normalised(fit.images), "test": _normalised(held_out.images)}
    padded = (
        F.pad(whole["train"], (shift,) * 4, mode="reflect").permute(0, 2, 3, 1).contiguous()
        if shift
        else whole["train"].permute(0, 2, 3, 1)
    )
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
        at = (samples[:, None, None] * padded.shape[1] + rows[:, :, None]) * padded.shape[2] + (x[:, None] + column)[:, None]
        return padded.flatten(0, 2)[at].permute(0, 3, 1, 2)  # a view in channels-last order

    def features(model: nn.Module, split: str) -> Tensor:
        return evaluation.features_of(model, whole[split], transform=lambda images: images, batch=500).float()

    return World(fit.labels, held_out.labels, inputs, features)


def _normalised(images: Tensor) -> Tensor:
    return augment.normalise(images).contiguous(memory_format=torch.channels_last)


def _data(name: str, evaluate_on: str, device: torch.device) -> tuple[datasets.Dataset, datasets.Dataset]:
    """What is trained on and what is measured on."""
    labelled = _load(name, "train", device, environment.dry())
    if evaluate_on == "validation":
        return datasets.holdout(labelled, 0.2, seed=0)
    if evaluate_on != "test":
        raise ValueError(f"evaluate_on {evaluate_on!r} is unknown; use 'test' or 'validation'")
    return labelled, _load(name, "test", device, environment.dry())


@functools.lru_cache(maxsize=4)  # decoding and verifying take half a second, and a process does many runs
def _load(name: str, split: str, device: torch.device, dry: bool) -> datasets.Dataset:
    return datasets.load(name, split, device=device)
