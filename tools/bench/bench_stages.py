"""More rows for `make bench`: against lightly's SimCLR, and each stage of a step beside what the
machine can do at most.

The ceiling is measured, not read off a data sheet: the best rate of a matrix product in the
precision used, and the best time of a copy that moves as many bytes. A stage of F operations that
must move M bytes takes at least max(F / rate, copy(M)); that over its measured time is its share of
the ceiling. Operations are counted by torch (matrix products and convolutions alone); bytes are the
least a stage must move, inputs read once and outputs written once, so that a stage which keeps all
else in the cache could reach a share of 1.
"""

import functools
import itertools
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from bench_steps import (
    BATCH,
    TwoViews,
    in_turn,
    mini_images,
    network_and_optimizer,
    own_embed,
    own_epoch,
    released_epoch,
    released_loader,
    row,
)
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from curlnb import losses
from curlnb.data import augment
from curlnb.experiments.images import network
from curlnb.runs import devices, environment

Stage = tuple[str, Callable[[], object], float, float]  # name, what to time, operations, bytes


def rows(device: torch.device, small: str, large: str) -> Iterator[dict[str, Any]]:
    """All comparisons of this module as `row` makes them, as they are measured: the small network
    eager, the large one compiled.
    """
    names = {small: False, large: True}
    for name, compile in names.items():
        yield from against_lightly(name, device, compile=compile)
    rate, ceilings = ceiling(device)
    yield from ceilings
    for name, compile in names.items():
        yield from stages(name, device, rate, compile=compile)
        yield peak_memory(name, device)


# --- lightly --------------------------------------------------------------------------------------


def against_lightly(name: str, device: torch.device, *, compile: bool) -> Iterator[dict[str, Any]]:
    """Views a second, end to end, of our step in bf16 against lightly's SimCLR with the same
    network; none where it is missing.

    lightly's transform, loss and loop are those of its documentation; its loader has two workers,
    as the released code's.
    """
    try:
        from lightly.loss import NTXentLoss
        from lightly.transforms import SimCLRTransform
    except ImportError as error:
        print(f"lightly: not compared, {error}")
        return
    count = BATCH * (
        2 if device.type == "cpu" and name != "cnn" else 16 if device.type == "cpu" else 64
    )
    images = mini_images(device, count)
    (model, optimizer), (its_model, its_optimizer) = (
        network_and_optimizer(name, device),
        network_and_optimizer(name, device),
    )
    embed, how = own_embed(model, device, precision="bf16", compile=compile)
    generator = torch.Generator(device).manual_seed(0)
    viewed, criterion = _Viewed(images), NTXentLoss(temperature=0.5)
    viewed.transform = SimCLRTransform(input_size=32)
    loader = released_loader(viewed)

    def lightly_epoch() -> None:
        for first, second in loader:
            loss = criterion(its_model(first.to(device))[1], its_model(second.to(device))[1])
            loss.backward()
            its_optimizer.step()
            its_optimizer.zero_grad()

    a, b = in_turn(
        lambda: own_epoch(model, embed, optimizer, images, generator),
        lightly_epoch,
        device,
        repeats=3 if name == "cnn" else 1,
    )
    yield row(
        f"training {name} ({how}) against lightly's SimCLR", 2 * count / a, 2 * count / b, "views/s"
    )


class _Viewed(TwoViews):
    """Two views of an image by lightly's transform, which returns them as a list."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        first, second = self.transform(self.images[index])
        return first, second


# --- the ceiling, and each stage's share of it ----------------------------------------------------


def ceiling(device: torch.device) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """(operations a second by precision, rows of the machine's rates), the best of several sizes
    and repeats.
    """
    sizes, large = ((512, 1024), 2**26) if device.type == "cpu" else ((4096, 8192), 2**30)
    rate: dict[str, float] = {}
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        rate[precision] = max(
            2 * n**3 / _seconds(_product(n, dtype, device), device) for n in sizes
        )
    small = 2**16 if device.type == "cpu" else 2**23
    bandwidth, cached = (
        2 * size / _seconds(_copy(size, device), device) for size in (large, small)
    )
    return (
        rate,
        [
            row(
                "ceiling: matrix product, bf16 against float32",
                rate["bf16"] / 1e9,
                rate["float32"] / 1e9,
                "GFLOP/s",
            ),
            row(
                "ceiling: copy, in memory against in the cache",
                bandwidth / 1e9,
                cached / 1e9,
                "GB/s",
            ),
        ],
    )


def _product(n: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    a, b, out = (torch.ones(n, n, dtype=dtype, device=device) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _copy(size: int, device: torch.device) -> Callable[[], object]:
    a, b = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return lambda: b.copy_(a)


def _seconds(function: Callable[[], object], device: torch.device, *, repeats: int = 7) -> float:
    """The least time of several: what the machine can do, not what else was going on."""
    return min(in_turn(function, lambda: None, device, repeats=1)[0] for _ in range(repeats))


def stages(
    name: str, device: torch.device, rate: dict[str, float], *, compile: bool
) -> Iterator[dict[str, Any]]:
    """Milliseconds of each stage of a step beside the least possible at the ceiling; the ratio is
    the share of the ceiling.
    """
    precision, compile, _ = devices.admitted("bf16", compile, device)
    for stage, run, operations, moved in _stages(name, device, precision, compile):
        least = max(operations / rate[precision], _seconds(_copy(int(moved / 2), device), device))
        yield row(
            f"share of the ceiling, {name}: {stage}",
            1e3 * _seconds(run, device),
            1e3 * least,
            "ms",
            faster_is="lower",
        )


def _stages(name: str, device: torch.device, precision: str, compile: bool) -> Iterator[Stage]:
    """A step of BATCH images taken apart. A stage that needs another's result is timed with it, and
    the difference is not taken.
    """
    images = torch.cat([mini_images(device, BATCH)] * 2)
    generator = torch.Generator(device).manual_seed(0)
    parameters = augment.draw(2 * BATCH, 32, 32, generator)
    model, optimizer = network_and_optimizer(name, device)
    forward = torch.compile(model, dynamic=False) if compile else model
    enlarge = torch.compile(augment.apply, dynamic=False) if compile else augment.apply
    views = augment.apply(images, parameters).contiguous(memory_format=torch.channels_last)

    def embed() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            return forward(views)[1]

    def loss_of(z: Tensor) -> Tensor:
        return losses.info_nce(*losses.pairwise(*z.chunk(2))).mean()

    weights = 4.0 * sum(p.numel() for p in model.parameters())
    once, both = (
        _operations(lambda: model(views)[1]),
        _operations(lambda: model(views)[1].sum().backward()),
    )
    z = embed().detach().float().requires_grad_()
    compare, learn = _operations(lambda: loss_of(z)), _operations(lambda: loss_of(z).backward())
    yield (
        "augmentation",
        lambda: enlarge(images, parameters),
        _operations(lambda: augment.apply(images, parameters)),
        _bytes(images, views),
    )
    yield "forward", embed, once, _bytes(views, z) + weights
    yield (
        "forward and backward",
        lambda: embed().sum().backward(),
        both,
        _bytes(views, z) + 3 * weights,
    )
    yield (
        "loss, forward and backward",
        lambda: loss_of(z).backward(),
        max(compare, learn),
        2 * _bytes(z),
    )
    yield (
        "optimiser",
        optimizer.step,
        0.0,
        7 * weights,
    )  # Adam reads weight, gradient and two moments, and writes all but the gradient


def _operations(function: Callable[[], object]) -> float:
    counter = FlopCounterMode(display=False)
    with counter:
        function()
    return float(counter.get_total_flops())


def _bytes(*tensors: Tensor) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))


# --- memory ---------------------------------------------------------------------------------------


def peak_memory(name: str, device: torch.device) -> dict[str, Any]:
    """MB that tensors hold at the peak of two steps, weights and moments included: eager, as
    admitted (bf16) against float32.
    """
    precision, _, _ = devices.admitted("bf16", False, device)
    ours, baseline = (_peak(name, device, each) / 1e6 for each in (precision, "float32"))
    return row(
        f"memory at the peak of a step, {name}, eager, {precision} against float32",
        ours,
        baseline,
        "MB",
        faster_is="lower",
    )


def _peak(name: str, device: torch.device, precision: str) -> float:
    images = mini_images(device, 2 * BATCH)

    def train() -> None:
        model, optimizer = network_and_optimizer(name, device)
        embed, _ = own_embed(model, device, precision=precision, compile=False)
        own_epoch(model, embed, optimizer, images, torch.Generator(device).manual_seed(0))

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train()
        return float(torch.cuda.max_memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train()
    events = (
        event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    )
    return float(
        max(
            itertools.accumulate(
                event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())
            )
        )
    )


# --- seconds an epoch -----------------------------------------------------------------------------


def epoch_seconds(
    name: str,
    ways: Mapping[str, Mapping[str, Any] | None],
    device: torch.device,
    *,
    epoch: int,
    images: int,
    repeats: int = 3,
) -> dict[str, float]:
    """Seconds that `epoch` images take in each way of training, from uint8 to updated weights, with
    all the machine's threads.

    ways: None for the released way, else size, precision and compile of our step. Each way trains
    on `images` of them (a multiple of BATCH), in turn with the others; the median of `repeats` is
    scaled up. Where only committed runs are shown (CURLNB_REFERENCE=1, as in the tests) a single
    batch shows that it works, since nobody reads its time.
    """
    if environment.reference_only():
        images, repeats = min(images, BATCH), 1
    data, generator = mini_images(device, images), torch.Generator(device).manual_seed(0)
    train = {way: _way(name, given, device, data, generator) for way, given in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with devices.cpu_threads(os.cpu_count()):
        for _ in range(repeats):
            for way, run in train.items():
                seconds[way].append(in_turn(run, lambda: None, device, repeats=1)[0])
    return {way: epoch / images * statistics.median(taken) for way, taken in seconds.items()}


def _way(
    name: str,
    given: Mapping[str, Any] | None,
    device: torch.device,
    data: Tensor,
    generator: torch.Generator,
) -> Callable[[], object]:
    model, optimizer = network_and_optimizer(name, device)
    if given is None:
        loader = released_loader(TwoViews(data))
        return lambda: released_epoch(model, optimizer, loader, device)
    embed, _ = own_embed(model, device, **given)
    return lambda: own_epoch(model, embed, optimizer, data, generator)


# --- what the paper profile costs -----------------------------------------------------------------


@functools.cache
def operations_a_view(name: str) -> float:
    """Operations of one 32 x 32 view through encoder and head, forward and backward, counted on no
    device.
    """
    with torch.device("meta"):
        model: nn.Module = network(name, 3).train()
        views = torch.empty(2, 3, 32, 32)
    return _operations(lambda: model(views)[1].sum().backward()) / 2
