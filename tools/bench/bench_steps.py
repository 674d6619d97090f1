"""What all comparisons of `make bench` share: timing in turn, a row of the table, the released way
to train, and the project's own step.

"The released way" is what the code released with chuang2020 and robinson2021 does: PIL transforms,
one image at a time, in a DataLoader with two workers; float32; the two views in two forward passes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from curlnb import losses
from curlnb.data import augment, datasets
from curlnb.experiments.images import network
from curlnb.runs import devices

BATCH = 256


def in_turn(
    ours: Callable[[], object],
    baseline: Callable[[], object],
    device: torch.device,
    *,
    repeats: int = 5,
) -> tuple[float, float]:
    """Median seconds of each, after one warm-up, A B A B ..., so that a drift of the machine
    touches both alike.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for function, kept in zip((ours, baseline), seconds, strict=True):
            _finish(device)
            start = time.perf_counter()
            function()
            _finish(device)
            if repeat:
                kept.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def row(
    what: str, ours: float, baseline: float, unit: str, *, faster_is: str = "higher"
) -> dict[str, Any]:
    ratio = ours / baseline if faster_is == "higher" else baseline / ours
    return {"what": what, "ours": ours, "baseline": baseline, "unit": unit, "ratio": ratio}


# --- the released way -----------------------------------------------------------------------------


class TwoViews(Dataset[Any]):
    """Two augmented views of an image, by PIL, as in the released code."""

    def __init__(self, images: Tensor) -> None:
        self.images = [
            Image.fromarray(np.asarray(image.permute(1, 2, 0))) for image in images.cpu()
        ]
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(32),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                transforms.RandomApply([transforms.GaussianBlur(3, (0.1, 2.0))], p=0.5),
                transforms.ToTensor(),
                transforms.Normalize(augment.CIFAR10_MEAN, augment.CIFAR10_STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.images[index]), self.transform(self.images[index])


def released_loader(images: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(
        images,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )


def released_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    device: torch.device,
) -> None:
    for first, second in loader:
        z1, z2 = model(first.to(device))[1], model(second.to(device))[1]
        loss = losses.info_nce(*losses.pairwise(z1, z2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def own_epoch(
    model: nn.Module,
    embed: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    generator: torch.Generator,
) -> None:
    for batch in images.split(BATCH):
        if len(batch) == BATCH:
            own_step(embed, optimizer, batch, generator)


def own_step(
    embed: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    generator: torch.Generator,
) -> None:
    parameters = augment.draw(2 * len(batch), batch.shape[2], batch.shape[3], generator)
    loss = losses.info_nce(
        *losses.pairwise(*embed(torch.cat([batch, batch]), parameters).chunk(2))
    ).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def own_embed(
    model: nn.Module, device: torch.device, *, precision: str, compile: bool, size: int = 32
) -> tuple[Callable[..., Tensor], str]:
    """The project's own step up to the embeddings; also what the machine admitted of what was
    asked.
    """

    def embed(images: Tensor, parameters: augment.Parameters) -> Tensor:
        return model(
            augment.apply(images, parameters, size=size).contiguous(
                memory_format=torch.channels_last
            )
        )[1]

    precision, compile, _ = devices.admitted(precision, compile, device)
    compiled = torch.compile(embed, dynamic=False) if compile else embed

    def cast(*arguments: Any) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            return compiled(*arguments)

    return cast, f"{precision}{', compiled' if compile else ''}"


def network_and_optimizer(
    name: str, device: torch.device
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = network(name, 3).to(device)
    return model, torch.optim.Adam(
        model.parameters(), lr=1e-3, weight_decay=1e-6, fused=device.type != "mps"
    )


def mini_images(device: torch.device, count: int) -> Tensor:
    return datasets.load("cifar10-mini", "train", device=device).images[:count]
