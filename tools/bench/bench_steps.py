"""What all comparisons of `make bench` share: timing in turn, a row of the table, the released way
to train, and the project's own step.

"The released way" is what the code released with chuang2020 and robinson2021 does: PIL transforms,
one image at a time, in a DataLoader with two workers; float32; the two views in two forward passes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms.functional import to_pil_image

from curlnb import losses
from curlnb.data import augment, datasets
from curlnb.experiments.images import network
from curlnb.runs import devices

BATCH = 256
Work = Callable[[], object]


def in_turn(ours: Work, baseline: Work, device: torch.device, repeats: int = 5) -> list[float]:
    """Median seconds of each after one warm-up, A B A B ..., so that a drift of the machine touches
    both alike.
    """
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for function, taken in zip((ours, baseline), seconds, strict=True):
            _finish(device)
            start = time.perf_counter()
            function()
            _finish(device)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def lower(what: str, ours: float, baseline: float, unit: str) -> dict[str, Any]:
    """A row of values of which the lower one is better; the ratio is above 1 where ours is."""
    return {
        "what": what,
        "ours": ours,
        "baseline": baseline,
        "unit": unit,
        "ratio": baseline / ours,
    }


def higher(what: str, ours: float, baseline: float, unit: str) -> dict[str, Any]:
    """A row of values of which the higher one is better."""
    return lower(what, ours, baseline, unit) | {"ratio": ours / baseline}


# --- the released way -----------------------------------------------------------------------------

RELEASED = transforms.Compose(
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


class TwoViews(Dataset[Any]):
    """Two augmented views of an image, by PIL, as in the released code; `pair` makes them."""

    def __init__(self, images: Tensor, pair: Callable[[Any], Any] | None = None) -> None:
        self.images = [to_pil_image(image) for image in images.cpu()]
        self.pair = pair or (lambda image: (RELEASED(image), RELEASED(image)))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.pair(self.images[index])


def released_loader(images: TwoViews) -> DataLoader[Any]:
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    return DataLoader(images, batch_size=BATCH, shuffle=True, drop_last=True, **workers)


def _info_nce(first: Tensor, second: Tensor) -> Tensor:
    return losses.info_nce(*losses.pairwise(first, second)).mean()


def released_way(
    name: str,
    images: Tensor,
    pair: Callable[[Any], Any] | None = None,
    criterion: Callable[[Tensor, Tensor], Tensor] = _info_nce,
) -> Work:
    """A function that trains the network `name` for one epoch in the released way.

    pair: makes two views of a PIL image; criterion: the loss of two batches of embeddings.
    """
    model, optimizer = network_and_optimizer(name, images.device)
    loader = released_loader(TwoViews(images, pair))

    def epoch() -> None:
        for views in loader:
            loss = criterion(*(model(view.to(images.device))[1] for view in views[:2]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


# --- the project's own ----------------------------------------------------------------------------


def own_way(
    name: str, images: Tensor, *, precision: str, compile: bool, size: int = 32
) -> tuple[Work, str]:
    """A function that trains the network `name` for one epoch in the project's way, and what the
    machine admitted of precision and compilation.
    """
    device = images.device
    precision, compile, _ = devices.admitted(precision, compile, device)
    model, optimizer = network_and_optimizer(name, device)
    generator = torch.Generator(device).manual_seed(0)

    def embed(batch: Tensor, parameters: augment.Parameters) -> Tensor:
        views = augment.apply(batch, parameters, size=size)
        return model(views.contiguous(memory_format=torch.channels_last))[1]

    compiled = torch.compile(embed, dynamic=False) if compile else embed

    @devices.rounding("tf32" if precision == "tf32" else "ieee")
    def epoch() -> None:
        for batch in images.split(BATCH):
            if len(batch) < BATCH:
                return
            parameters = augment.draw(2 * BATCH, *batch.shape[2:], generator)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                z = compiled(torch.cat([batch, batch]), parameters)
            optimizer.zero_grad(set_to_none=True)
            _info_nce(*z.chunk(2)).backward()
            optimizer.step()

    return epoch, f"{precision}{', compiled' if compile else ''}"


def network_and_optimizer(
    name: str, device: torch.device
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = network(name, 3).to(device)
    return model, adam(model, lr=1e-3, weight_decay=1e-6)


def adam(model: nn.Module, **options: float) -> torch.optim.Optimizer:
    fused = next(model.parameters()).device.type != "mps"
    return torch.optim.Adam(model.parameters(), fused=fused, **options)


def mini_images(device: torch.device, count: int) -> Tensor:
    return datasets.load("cifar10-mini", "train", device=device).images[:count]
