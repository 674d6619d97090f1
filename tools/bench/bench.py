"""`make bench`: how fast, each time as a ratio of two ways measured in turn in one run on the
machine at hand.
"""

import datetime
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bench_graphs
import bench_stages
import bench_text
import pandas as pd
import torch
from bench_steps import (
    BATCH,
    TwoViews,
    Work,
    higher,
    in_turn,
    lower,
    mini_images,
    own_way,
    released_loader,
    released_way,
)
from torch import Tensor
from torch.nn import functional as F

from curlnb import evaluation, losses
from curlnb.data import augment, control_frames
from curlnb.experiments.images import simclr
from curlnb.runs import devices, environment, provenance
from curlnb.runs.files import write_atomically
from curlnb.runs.store import Store


def bench(profile: str = "quick") -> None:
    """Measure, print and write results/<profile>/bench.csv: one row a comparison, with both values
    and their ratio. The file is written after each row: a later one may fail.
    """
    machine = provenance.machine()
    about = {name: machine[name] for name in ("cpu", "gpu", "torch")} | {
        "cores": os.cpu_count(),
        "date": f"{datetime.date.today()}",
        "commit": provenance.commit(),
    }
    rows, path = [], environment.results_root() / profile / "bench.csv"
    for row in comparisons(devices.default_device()):
        rows.append(row)
        table = pd.DataFrame(rows).assign(**about)
        write_atomically(path, functools.partial(table.to_csv, index=False, float_format="%.4g"))
        values = f"{row['ours']:>10.4g} against {row['baseline']:>9.4g} {row['unit']:8}"
        print(f"{row['what']:62} {values} ratio {row['ratio']:.2f}", flush=True)
    print(f"written to {path}")


def comparisons(device: torch.device) -> Iterator[dict[str, Any]]:
    """All rows, as they are measured."""
    small, large = ("cnn", "resnet18") if device.type == "cpu" else ("resnet18", "resnet50")
    yield augmentation(device)
    yield step_against_released(small, device, compile=False)
    yield step_against_released(large, device, compile=True)
    for name in (small, large):
        for compile in (False, True):
            yield accelerated_step(name, device, compile=compile)
    if small == "cnn":
        yield accelerated_step(small, device, compile=False, crop_before=32)
    yield compiled_run(device)
    yield knn_chunked(device)
    yield exact_average(device)
    yield loss_cost(device)
    yield loss_compiled(device)
    yield from bench_text.rows(device)
    yield bench_graphs.infograph_loss(device)
    yield from frames(device)
    yield from against_lightly(small, device, compile=False)
    yield from against_lightly(large, device, compile=True)
    yield from bench_stages.rows(device, small, large)


# --- training -------------------------------------------------------------------------------------


def augmentation(device: torch.device) -> dict[str, Any]:
    """Views a second of the batched augmentation against PIL in a DataLoader with two workers."""
    images = mini_images(device, 4096)
    loader, generator = released_loader(TwoViews(images)), torch.Generator(device).manual_seed(0)

    def ours() -> None:
        for batch in images.split(2 * BATCH):
            augment.simclr(batch, generator)
            augment.simclr(batch, generator)

    seconds = in_turn(ours, lambda: [None for _ in loader], device, repeats=3)
    rates = (2 * len(images) / each for each in seconds)
    return higher("augmentation, batched against PIL with 2 workers", *rates, "views/s")


def _against(
    name: str, images: Tensor, other: Work, baseline: str, *, compile: bool, repeats: int
) -> dict[str, Any]:
    """Views a second end to end, from uint8 images to updated weights, of our step in bf16."""
    ours, how = own_way(name, images, precision="bf16", compile=compile)
    seconds = in_turn(ours, other, images.device, repeats)
    rates = (2 * len(images) / each for each in seconds)
    return higher(f"training {name} ({how}) against {baseline}", *rates, "views/s")


def step_against_released(name: str, device: torch.device, *, compile: bool) -> dict[str, Any]:
    """Our step against the released way, from uint8 images to updated weights."""
    cpu = device.type == "cpu"
    steps = (2 if name == "resnet18" else 16) if cpu else 31  # of the 8,000 images
    images = mini_images(device, steps * BATCH)
    repeats = 1 if cpu and name == "resnet18" else 3
    other = released_way(name, images)
    return _against(name, images, other, "the released way", compile=compile, repeats=repeats)


def against_lightly(name: str, device: torch.device, *, compile: bool) -> Iterator[dict[str, Any]]:
    """Our step against lightly's SimCLR with the same network, its transform and loss as in its
    documentation, its loader with two workers; no row where lightly is not installed.
    """
    try:
        from lightly.loss import NTXentLoss
        from lightly.transforms import SimCLRTransform
    except ImportError as error:
        print(f"lightly: not compared, {error}")
        return
    steps = (16 if name == "cnn" else 2) if device.type == "cpu" else 31
    images = mini_images(device, steps * BATCH)
    other = released_way(name, images, SimCLRTransform(input_size=32), NTXentLoss(temperature=0.5))
    repeats = 3 if name == "cnn" else 1
    yield _against(name, images, other, "lightly's SimCLR", compile=compile, repeats=repeats)


def accelerated_step(
    name: str, device: torch.device, *, compile: bool, crop_before: int | None = None
) -> dict[str, Any]:
    """Views a second of our own step in bf16, compiled or not, where the machine admits it, against
    eager float32.

    The small CNN as quick's runs train it: on one thread, with crops of 24 pixels. crop_before: the
    crops of the eager float32 step where they differ.
    """
    small, crop = name == "cnn", 24 if name == "cnn" else 32
    brief = device.type == "cpu" and not small
    with devices.cpu_threads(1 if small else None):
        images = mini_images(device, BATCH * (1 if brief else 4))
        fast, how = own_way(name, images, precision="bf16", compile=compile, size=crop)
        eager, _ = own_way(
            name, images, precision="float32", compile=False, size=crop_before or crop
        )
        seconds = in_turn(fast, eager, device, repeats=2 if brief else 5)
    of = f", crops of {crop}" if crop_before else ""
    before = f", crops of {crop_before}" if crop_before else ""
    what = f"training {name}, {how}{of} against eager float32{before}"
    return higher(what, *(2 * len(images) / each for each in seconds), "views/s")


def compiled_run(device: torch.device) -> dict[str, Any]:
    """Seconds of a whole run, evaluation included, with compilation from an empty cache counted,
    against eager; both bf16.
    """
    small = device.type == "cpu"
    given = {"size": 24, "epochs": 6} if small else {"encoder": "resnet18", "epochs": 10}
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        with patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor"):
            for compile in (True, False):
                about = {"precision": "bf16", "compile": compile, **given}
                record = store.run(simclr, about, 0)
                assert record is not None  # nobody else computes in this folder
                seconds.append(record["seconds"])
    name = "the quick cnn" if small else "a resnet18, ten epochs,"
    return lower(f"whole run of {name} compiled from cold against eager", *seconds, "seconds")


# --- evaluation, losses, frames -------------------------------------------------------------------


def knn_chunked(device: torch.device) -> dict[str, Any]:
    """Test samples a second of the batched kNN against the same a sample at a time."""
    generator = torch.Generator(device).manual_seed(0)
    draws: dict[str, Any] = {"generator": generator, "device": device}
    train, test = (F.normalize(torch.randn(n, 128, **draws), dim=1) for n in (10_000, 2_000))
    labels, wanted = (torch.randint(10, (n,), **draws) for n in (10_000, 2_000))
    some = 200

    def one_by_one() -> None:
        for x in test[:some]:
            similarity, near = (train @ x).topk(200)
            votes = torch.zeros(10, device=device)
            votes.index_add_(0, labels[near], (similarity / 0.5).exp()).argmax()

    ours, single = in_turn(lambda: evaluation.knn(train, labels, test, wanted), one_by_one, device)
    what = "kNN evaluation, chunked against a sample at a time"
    return higher(what, len(test) / ours, some / single, "images/s")


def exact_average(device: torch.device) -> dict[str, Any]:
    """Seconds of the exact average 2-way accuracy (3,029 classes) against 1,000 sampled tasks,
    whose error is about a point.
    """
    generator = torch.Generator(device).manual_seed(0)
    scores = torch.randn(3_029 * 2, 3_029, generator=generator, device=device)
    labels = torch.arange(3_029, device=device).repeat(2)

    def sampled() -> None:
        for _ in range(1_000):
            pair = torch.randperm(3_029, generator=generator, device=device)[:2]
            rows = torch.isin(labels, pair)
            (scores[rows][:, pair].argmax(1) == (labels[rows] == pair[1]).long()).float().mean()

    seconds = in_turn(
        lambda: evaluation.average_accuracy(scores, labels, 2), sampled, device, repeats=3
    )
    what = "average 2-way accuracy of 3,029 classes, exact against sampled"
    return lower(what, *seconds, "seconds")


def _projections(device: torch.device) -> Tensor:
    """Two views' projections [2, BATCH, 128], of unit length, that want gradients."""
    generator = torch.Generator(device).manual_seed(0)
    z = torch.randn(2, BATCH, 128, generator=generator, device=device)
    return F.normalize(z, dim=2).requires_grad_()


def loss_cost(device: torch.device) -> dict[str, Any]:
    """Forward and backward of the hard-negative loss against InfoNCE at 512 anchors and 510
    negatives.
    """
    z = _projections(device)
    hard, plain = (
        lambda loss=loss: loss(*losses.pairwise(*z)).mean().backward()  # type: ignore[misc]
        for loss in (losses.hard, losses.info_nce)
    )
    seconds = in_turn(hard, plain, device, repeats=20)
    return lower("hard-negative loss against InfoNCE, forward and backward", *seconds, "seconds")


def loss_compiled(device: torch.device) -> dict[str, Any]:
    """The debiased loss compiled against eager: what a step would gain if the compiled part took
    the loss in. On one thread on a CPU.
    """
    z = _projections(device)

    def loss(z: Tensor) -> Tensor:
        return losses.debiased(*losses.pairwise(*z), tau_plus=0.1).mean()

    admitted = devices.admitted("float32", True, device)[1]
    compiled = torch.compile(loss, dynamic=False) if admitted else loss
    with devices.cpu_threads(1 if device.type == "cpu" else None):
        seconds = in_turn(
            lambda: compiled(z).backward(), lambda: loss(z).backward(), device, repeats=20
        )
    what = "debiased loss, compiled against eager, forward and backward"
    return lower(what, *(1e3 * each for each in seconds), "ms")


def frames(device: torch.device) -> Iterator[dict[str, Any]]:
    """84 x 84 frames of cheetah run a second, one camera kept, without antialiasing and shadows,
    against dm_control's own call; no row where nothing can be rendered.
    """
    if why := control_frames.problem():
        print(f"frames: {why}")
        return
    size, many = control_frames.CROP, 200
    ours = control_frames.Environment("cheetah run", size)
    plain = control_frames._suite().load("cheetah", "run").physics
    ours.reset(0)
    fast, usual = in_turn(
        lambda: [ours.frame() for _ in range(many)],
        lambda: [plain.render(size, size, camera_id=0) for _ in range(many // 4)],
        device,
        repeats=3,
    )
    what = f"frames of {size} pixels, fast, against dm_control's own call"
    yield higher(what, many / fast, many / 4 / usual, "frames/s")


if __name__ == "__main__":
    bench(*sys.argv[1:])
