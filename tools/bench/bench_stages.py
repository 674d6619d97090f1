"""Rows of `make bench` that set each stage of a step beside what the machine can do at most.

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

import torch
from bench_steps import (
    BATCH,
    in_turn,
    mini_images,
    network_and_optimizer,
    own_way,
    released_way,
    row,
)
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from curlnb import losses
from curlnb.data import augment
from curlnb.experiments.images import network
from curlnb.runs import devices, environment


def rows(device, small, large):
    """The machine's ceilings, then the stages of a step: the small network eager, the large one
    compiled.
    """
    rate, ceilings = ceiling(device)
    yield from ceilings
    yield from stages(small, device, rate, compile=False)
    yield from stages(large, device, rate, compile=True)


def ceiling(device):
    """(operations a second by precision, rows of the machine's rates), the best of two sizes and
    of several repeats.
    """
    cpu = device.type == "cpu"
    rate = {}
    for precision, dtype in (("bf16", torch.bfloat16), ("float32", torch.float32)):
        of_sizes = []
        for n in (512, 1024) if cpu else (4096, 8192):
            a, b, out = (torch.ones(n, n, dtype=dtype, device=device) for _ in range(3))
            product = functools.partial(torch.mm, a, b, out=out)
            of_sizes.append(2 * n**3 / _seconds(product, device))
        rate[precision] = max(of_sizes)
    sizes = (2**26, 2**16) if cpu else (2**30, 2**23)
    moved = [2 * size / _copying(size, device) / 1e9 for size in sizes]
    giga = [each / 1e9 for each in rate.values()]
    return rate, [
        row("ceiling: matrix product, bf16 against float32", *giga, "GFLOP/s"),
        row("ceiling: copy, in memory against in the cache", *moved, "GB/s"),
    ]


def _copying(size, device):
    """Seconds of a copy of `size` bytes, which moves twice as many."""
    a, b = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return _seconds(lambda: b.copy_(a), device)


def _seconds(function, device):
    """The least time of seven: what the machine can do, not what else was going on."""
    return min(in_turn([function], device, 1)[0] for _ in range(7))


def stages(name, device, rate, *, compile):
    """Milliseconds of each stage of a step beside the least possible at the ceiling; the ratio is
    the share of the ceiling.
    """
    precision, compile, _ = devices.admitted("bf16", compile, device)
    for stage, run, operations, moved in _stages(name, device, precision, compile):
        least = max(operations / rate[precision], _copying(int(moved / 2), device))
        taken = _seconds(run, device)
        yield row(f"share of the ceiling, {name}: {stage}", 1e3 * taken, 1e3 * least, "ms")


def _stages(name, device, precision, compile):
    """A step of BATCH images taken apart: for each stage its name, what to time, its operations and
    its bytes. A stage that needs another's result is timed with it, and the difference is not
    taken.
    """
    images = torch.cat([mini_images(device, BATCH)] * 2)
    parameters = augment.draw(2 * BATCH, 32, 32, torch.Generator(device).manual_seed(0))
    model, optimizer = network_and_optimizer(name, device)
    forward = torch.compile(model, dynamic=False) if compile else model
    enlarge = torch.compile(augment.apply, dynamic=False) if compile else augment.apply
    views = augment.apply(images, parameters).contiguous(memory_format=torch.channels_last)

    def embed():
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            return forward(views)[1]

    def loss():
        return losses.info_nce(*losses.pairwise(*z.chunk(2))).mean()

    weights = 4.0 * sum(p.numel() for p in model.parameters())
    enlarged = _operations(lambda: augment.apply(images, parameters))
    both = _operations(lambda: model(views)[1].sum().backward())
    z = embed().detach().float().requires_grad_()
    compared = _operations(lambda: loss().backward())
    moved = _bytes(views, z)
    yield "augmentation", lambda: enlarge(images, parameters), enlarged, _bytes(images, views)
    yield "forward and backward", lambda: embed().sum().backward(), both, moved + 3 * weights
    yield "loss, forward and backward", lambda: loss().backward(), compared, 2 * _bytes(z)
    # Adam reads weight, gradient and two moments, and writes all but the gradient.
    yield "optimiser", optimizer.step, 0.0, 7 * weights


def _operations(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return float(counter.get_total_flops())


def _bytes(*tensors):
    return float(sum(t.numel() * t.element_size() for t in tensors))


def peak(function, device):
    """Bytes that torch allocates at most while the function runs, beyond what it held before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return float(torch.cuda.max_memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    changes = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return float(max(itertools.accumulate(event.nbytes() for event in changes)))


def epoch_seconds(name, ways, device, *, epoch, images, repeats=3):
    """Seconds that `epoch` images take in each way of training, from uint8 to updated weights, with
    all the machine's threads.

    ways: None for the released way, else size, precision and compile of our step. Each way trains
    on `images` of them (a multiple of BATCH), in turn with the others; the median of `repeats`,
    after one that warms up, is scaled up. Where only committed runs are shown (CURLNB_REFERENCE=1,
    as in the tests) a single batch shows that it works, since nobody reads its time.
    """
    if environment.reference_only():
        images, repeats = min(images, BATCH), 1
    data = mini_images(device, images)
    train = [
        released_way(name, data) if given is None else own_way(name, data, **given)[0]
        for given in ways.values()
    ]
    with devices.cpu_threads(os.cpu_count()):
        seconds = in_turn(train, device, repeats)
    return {way: epoch / images * taken for way, taken in zip(ways, seconds, strict=True)}


@functools.cache
def operations_a_view(name):
    """Operations of one 32 x 32 view through encoder and head, forward and backward, counted on no
    device.
    """
    with torch.device("meta"):
        model = network(name, 3).train()
        views = torch.empty(2, 3, 32, 32)
    return _operations(lambda: model(views)[1].sum().backward()) / 2
