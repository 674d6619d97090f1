"""What all comparisons of `make bench` share: timing in turn, a row of the table, the released way
to train, and the project's own step.

"The released way" is what the code released with chuang2020 and robinson2021 does: PIL transforms,
one image at a time, in a DataLoader with two workers; float32; the two views in two forward passes.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms.functional import to_pil_image

from curlnb import losses
from curlnb.data import augment, datasets
from curlnb.experiments.images import network
from curlnb.runs import devices

BATCH = 256
Work = Callable[[], object]
Pair = Callable[[Any], Any]
Row = dict[str, Any]


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


def row(what: str, ours: float, baseline: float, unit: str) -> Row:
    """A row of the table. The ratio is above 1 where ours is better: the higher rate (a unit that
    ends in "/s"), else the lower value.
    """
    ratio = ours / baseline if unit.endswith("/s") else baseline / ours
    return {"what": what, "ours": ours, "baseline": baseline, "unit": unit, "ratio": ratio}


def compared(
    what: str,
    ours: Work,
    baseline: Work,
    device: torch.device,
    unit: str = "seconds",
    count: int = 0,
    repeats: int = 5,
) -> Row:
    """The row of two functions timed in turn. count: how many units each of them does; 0 where the
    unit is the second.
    """
    seconds = in_turn(ours, baseline, device, repeats)
    return row(what, *(count / each if count else each for each in seconds), unit)


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


def _released_pair(image: Any) -> tuple[Tensor, Tensor]:
    return RELEASED(image), RELEASED(image)


def _views(pair: Pair, images: list[Any]) -> list[Tensor]:
    pairs = [pair(image) for image in images]
    return [torch.stack(views) for views in zip(*pairs, strict=True)]


def released_loader(images: Tensor, pair: Pair = _released_pair) -> DataLoader[Any]:
    """Batches of two augmented views, which `pair` makes of a PIL image in two workers."""
    pictures: Any = [to_pil_image(image) for image in images.cpu()]
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "drop_last": True}
    collate = functools.partial(_views, pair)
    return DataLoader(pictures, BATCH, shuffle=True, collate_fn=collate, **options)


def _info_nce(first: Tensor, second: Tensor) -> Tensor:
    return losses.info_nce(*losses.pairwise(first, second)).mean()


def released_way(
    name: str,
    images: Tensor,
    pair: Pair = _released_pair,
    criterion: Callable[[Tensor, Tensor], Tensor] = _info_nce,
) -> Work:
    """A function that trains the network `name` for one epoch in the released way.

    pair: makes two views of a PIL image; criterion: the loss of two batches of embeddings.
    """
    model, optimizer = network_and_optimizer(name, images.device)
    loader = released_loader(images, pair)

    def epoch() -> None:
        for views in loader:
            loss = criterion(*(model(view.to(images.device))[1] for view in views))
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
    fused = device.type != "mps"
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6, fused=fused)


def mini_images(device: torch.device, count: int) -> Tensor:
    return datasets.load("cifar10-mini", "train", device=device).images[:count]
