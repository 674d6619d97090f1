"""What all comparisons of `make bench` share: timing in turn, a row of the table, the released way
to train, and the project's own step.

"The released way" is what the code released with chuang2020 and robinson2021 does: PIL transforms,
one image at a time, in a DataLoader with two workers; float32; the two views in two forward passes.
"""

import functools
import statistics
import time

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms.functional import to_pil_image

from curlnb import losses
from curlnb.data import augment, datasets
from curlnb.experiments.images import network
from curlnb.runs import devices

BATCH = 256


def in_turn(functions, device, repeats=5):
    """Median seconds of each after one warm-up, A B A B ..., so that a drift of the machine touches
    all alike.
    """
    finish = getattr(torch, device.type).synchronize
    seconds = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, taken in zip(functions, seconds, strict=True):
            finish()
            start = time.perf_counter()
            function()
            finish()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]


def row(what, ours, baseline, unit):
    """A row of the table. The ratio is above 1 where ours is better: the higher rate (a unit that
    ends in "/s"), else the lower value.
    """
    ratio = ours / baseline if unit.endswith("/s") else baseline / ours
    return {"what": what, "ours": ours, "baseline": baseline, "unit": unit, "ratio": ratio}


def compared(what, ours, baseline, device, unit="seconds", count=0, repeats=5):
    """The row of two functions timed in turn. count: how many units each of them does; 0 where the
    unit is the second.
    """
    seconds = in_turn([ours, baseline], device, repeats)
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


def _released_pair(image):
    return RELEASED(image), RELEASED(image)


def _views(pair, images):
    pairs = [pair(image) for image in images]
    return [torch.stack(views) for views in zip(*pairs, strict=True)]


def released_loader(images, pair=_released_pair):
    """Batches of two augmented views, which `pair` makes of a PIL image in two workers."""
    pictures = [to_pil_image(image) for image in images.cpu()]
    options = {"num_workers": 2, "persistent_workers": True, "drop_last": True}
    collate = functools.partial(_views, pair)
    return DataLoader(pictures, BATCH, shuffle=True, collate_fn=collate, **options)


def _info_nce(first, second):
    return losses.info_nce(*losses.pairwise(first, second)).mean()


def released_way(name, images, pair=_released_pair, criterion=_info_nce):
    """A function that trains the network `name` for one epoch in the released way.

    pair: makes two views of a PIL image; criterion: the loss of two batches of embeddings.
    """
    model, optimizer = network_and_optimizer(name, images.device)
    loader = released_loader(images, pair)

    def epoch():
        for views in loader:
            loss = criterion(*(model(view.to(images.device))[1] for view in views))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


# --- the project's own ----------------------------------------------------------------------------


def own_way(name, images, *, precision, compile, size=32):
    """A function that trains the network `name` for one epoch in the project's way, and what the
    machine admitted of precision and compilation.
    """
    device = images.device
    precision, compile, _ = devices.admitted(precision, compile, device)
    model, optimizer = network_and_optimizer(name, device)
    generator = torch.Generator(device).manual_seed(0)

    def embed(batch, parameters):
        views = augment.apply(batch, parameters, size=size)
        return model(views.contiguous(memory_format=torch.channels_last))[1]

    compiled = torch.compile(embed, dynamic=False) if compile else embed

    @devices.rounding("tf32" if precision == "tf32" else "ieee")
    def epoch():
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


def network_and_optimizer(name, device):
    torch.manual_seed(0)
    model = network(name, 3).to(device)
    fused = device.type != "mps"
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6, fused=fused)


def mini_images(device, count):
    return datasets.load("cifar10-mini", "train", device=device).images[:count]
