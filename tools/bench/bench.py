"""`make bench`: how fast, each time as a ratio of two ways measured in turn in one run on the
machine at hand.
"""

import datetime
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bench_control
import bench_graphs
import bench_stages
import bench_text
import pandas as pd
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
from torch import Tensor
from torch.nn import functional as F

from curlnb import evaluation, losses
from curlnb.companion.statistics import t_interval
from curlnb.data import augment
from curlnb.experiments.images import simclr
from curlnb.runs import devices, environment, provenance
from curlnb.runs.files import write_atomically
from curlnb.runs.store import Store, default_store
from curlnb.runs.sweep import sweep


def bench(profile: str = "quick") -> pd.DataFrame:
    """Measure, print and write results/<profile>/bench.csv: one row a comparison, with both rates
    and their ratio.
    """
    device = devices.default_device()
    rows: list[dict[str, Any]] = []
    small, large = ("cnn", "resnet18") if device.type == "cpu" else ("resnet18", "resnet50")
    comparisons: list[Callable[[], dict[str, Any]]] = [
        lambda: augmentation(device),
        lambda: step_against_released(small, device, compile=False),
        lambda: step_against_released(large, device, compile=True),
        lambda: accelerated_step(small, device, compile=False),
        lambda: accelerated_step(small, device, compile=True),
        *(
            [lambda: accelerated_step(small, device, compile=False, crop_before=32)]
            if small == "cnn"
            else []
        ),
        lambda: accelerated_step(large, device, compile=False),
        lambda: accelerated_step(large, device, compile=True),
        lambda: compiled_run(device),
        lambda: knn_chunked(device),
        lambda: exact_average(device),
        lambda: loss_cost(device),
        lambda: loss_compiled(device),
        lambda: bench_text.sentences_against_padded(device),
        lambda: bench_text.sentences_against_loader(device),
        lambda: bench_graphs.infograph_loss(device),
    ]
    measured = (compare() for compare in comparisons)
    for r in itertools.chain(
        measured, bench_control.frames(device), bench_stages.rows(device, small, large)
    ):
        rows.append(r)
        _keep(rows, profile)  # ten minutes' work, should a later row fail
        print(
            f"{r['what']:62} {r['ours']:>10.4g} against {r['baseline']:>9.4g} {r['unit']:8} ratio {r['ratio']:.2f}",
            flush=True,
        )
    print(f"written to {environment.results_root() / profile / 'bench.csv'}")
    precision_check(profile)
    return _keep(rows, profile)


def _keep(rows: list[dict[str, Any]], profile: str) -> pd.DataFrame:
    about = provenance.machine() | {
        "cores": os.cpu_count(),
        "date": f"{datetime.date.today()}",
        "commit": provenance.commit(),
    }
    table = pd.DataFrame(rows).assign(
        **{k: about[k] for k in ("cpu", "gpu", "torch", "cores", "date", "commit")}
    )
    path = environment.results_root() / profile / "bench.csv"
    write_atomically(path, lambda p: table.to_csv(p, index=False, float_format="%.4g"))
    return table


def precision_check(profile: str) -> pd.DataFrame | None:
    """Whether bf16, and at quick crops of 24 pixels, may stand in a profile: the same seeds both
    ways, judged on the validation split.

    At quick the runs are quick's; at gpu a ResNet-18 on full CIFAR-10 for ten epochs, bf16
    compiled. Writes bench_precision.csv: for each metric and each way that it replaces the mean
    difference over five paired seeds in points, its 95% interval, the ratio of seconds, and whether
    the interval excludes a loss of a point. None where this machine has no fast bf16, since nothing
    would be compared.
    """
    device = devices.default_device()
    if not devices.fast_bf16(device.type):
        print(f"precision: no fast bfloat16 on this {device.type}, nothing to compare")
        return None
    small = profile == "quick"
    fixed: dict[str, Any] = (
        {"epochs": 6} if small else {"dataset": "cifar10", "encoder": "resnet18", "epochs": 10}
    )
    size = 24 if small else 32
    arms: list[dict[str, Any]] = [
        {"precision": "bf16", "size": size, "compile": not small},
        {"precision": "float32", "size": size},
    ]
    arms += [{"precision": "float32", "size": 32}] if small else []
    runs = sweep(
        simclr, arms, seeds=5, store=default_store(profile), evaluate_on="validation", **fixed
    )
    fast, *others = (
        runs[(runs["precision"] == arm["precision"]) & (runs["size"] == arm["size"])].set_index(
            "seed"
        )
        for arm in arms
    )
    rows = []
    for arm, slow in zip(arms[1:], others, strict=True):
        ratio = float((slow["seconds"] / fast["seconds"]).median())
        for metric in ("knn", "linear"):
            mean, low, high = t_interval((100 * (fast[metric] - slow[metric])).to_numpy())
            way = {
                "ours": f"bf16, crops of {size}",
                "against": f"{arm['precision']}, crops of {arm['size']}",
                "metric": metric,
            }
            rows.append(
                way
                | {
                    "difference": mean,
                    "low": low,
                    "high": high,
                    "seeds": 5,
                    "time ratio": ratio,
                    "no loss": low > -1,
                }
            )
    table = pd.DataFrame(rows).assign(
        **fixed,
        split="validation",
        unit="points",
        machine=provenance.machine()["gpu" if device.type == "cuda" else "cpu"],
    )
    print(table.to_string(index=False))
    write_atomically(
        environment.results_root() / profile / "bench_precision.csv",
        lambda p: table.to_csv(p, index=False, float_format="%.4g"),
    )
    return table


# --- the comparisons ------------------------------------------------------------------------------


def augmentation(device: torch.device) -> dict[str, Any]:
    """Views a second of the batched augmentation against PIL in a DataLoader with two workers."""
    images = mini_images(device, 4096)
    loader, generator = released_loader(TwoViews(images)), torch.Generator(device).manual_seed(0)

    def ours() -> None:
        for batch in images.split(2 * BATCH):
            augment.simclr(batch, generator)
            augment.simclr(batch, generator)

    a, b = in_turn(ours, lambda: [None for _ in loader], device, repeats=3)
    return row(
        "augmentation, batched against PIL with 2 workers",
        2 * len(images) / a,
        2 * len(images) / b,
        "views/s",
    )


def step_against_released(name: str, device: torch.device, *, compile: bool) -> dict[str, Any]:
    """Views a second end to end, from uint8 images to updated weights, of our step in bf16 against
    the released way.
    """
    steps = {"cnn": 16, "resnet18": 2}.get(name, 16) if device.type == "cpu" else 64
    images = mini_images(device, steps * BATCH)
    model, optimizer = network_and_optimizer(name, device)
    released, its_optimizer = network_and_optimizer(name, device)
    embed, how = own_embed(model, device, precision="bf16", compile=compile)
    loader, generator = released_loader(TwoViews(images)), torch.Generator(device).manual_seed(0)
    a, b = in_turn(
        lambda: own_epoch(model, embed, optimizer, images, generator),
        lambda: released_epoch(released, its_optimizer, loader, device),
        device,
        repeats=3 if name == "cnn" or device.type != "cpu" else 1,
    )
    views = 2 * (len(images) // BATCH) * BATCH
    return row(f"training {name} ({how}) against the released way", views / a, views / b, "views/s")


def accelerated_step(
    name: str, device: torch.device, *, compile: bool, crop_before: int | None = None
) -> dict[str, Any]:
    """Views a second of our own step in bf16, compiled or not, where the machine admits it, against
    eager float32.

    The small CNN as quick's runs train it: on one thread, with crops of 24 pixels. crop_before: the
    crops of the eager float32 step where they differ (`precision_check` asks what the smaller ones
    cost).
    """
    small, crop = name == "cnn", 24 if name == "cnn" else 32
    with devices.cpu_threads(1 if small else None):
        images = mini_images(device, BATCH * (4 if small or device.type != "cpu" else 1))
        (model, optimizer), (plain, its_optimizer) = (
            network_and_optimizer(name, device),
            network_and_optimizer(name, device),
        )
        generator = torch.Generator(device).manual_seed(0)
        fast, how = own_embed(model, device, precision="bf16", compile=compile, size=crop)
        eager, _ = own_embed(
            plain, device, precision="float32", compile=False, size=crop_before or crop
        )
        a, b = in_turn(
            lambda: own_epoch(model, fast, optimizer, images, generator),
            lambda: own_epoch(plain, eager, its_optimizer, images, generator),
            device,
            repeats=5 if small or device.type != "cpu" else 2,
        )
    crops = (
        f", crops of {crop} against eager float32, crops of {crop_before}"
        if crop_before
        else " against eager float32"
    )
    return row(
        f"training {name}, {how}{crops}", 2 * len(images) / a, 2 * len(images) / b, "views/s"
    )


def compiled_run(device: torch.device) -> dict[str, Any]:
    """Seconds of a whole run, evaluation included, with compilation from an empty cache counted,
    against eager; both bf16.
    """
    small = device.type == "cpu"
    about: dict[str, Any] = {"precision": "bf16"} | (
        {"size": 24, "epochs": 6} if small else {"encoder": "resnet18", "epochs": 10}
    )
    seconds: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor"),
    ):
        for compile in (True, False):
            record = Store(Path(folder)).run(simclr, about | {"compile": compile}, 0)
            assert record is not None  # nobody else computes in this folder
            seconds.append(record["seconds"])
    what = "the quick cnn" if small else "a resnet18, ten epochs,"
    return row(
        f"whole run of {what} compiled from cold against eager",
        seconds[0],
        seconds[1],
        "seconds",
        faster_is="lower",
    )


def knn_chunked(device: torch.device) -> dict[str, Any]:
    """Test samples a second of the batched kNN against the same a sample at a time."""
    generator = torch.Generator(device).manual_seed(0)
    train, test = (
        F.normalize(torch.randn(n, 128, generator=generator, device=device), dim=1)
        for n in (10_000, 2_000)
    )
    labels, wanted = (
        torch.randint(10, (n,), generator=generator, device=device) for n in (10_000, 2_000)
    )
    some = 200

    def one_by_one() -> None:
        for x in test[:some]:
            similarity, near = (train @ x).topk(200)
            torch.zeros(10, device=device).index_add_(
                0, labels[near], (similarity / 0.5).exp()
            ).argmax()

    a, b = in_turn(lambda: evaluation.knn(train, labels, test, wanted), one_by_one, device)
    return row(
        "kNN evaluation, chunked against a sample at a time", len(test) / a, some / b, "images/s"
    )


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

    a, b = in_turn(
        lambda: evaluation.average_accuracy(scores, labels, 2), sampled, device, repeats=3
    )
    return row(
        "average 2-way accuracy of 3,029 classes, exact against sampled",
        a,
        b,
        "seconds",
        faster_is="lower",
    )


def loss_cost(device: torch.device) -> dict[str, Any]:
    """Forward and backward of the hard-negative loss against InfoNCE at 512 anchors and 510
    negatives.
    """
    z = _projections(device)

    def time_of(loss: Callable[..., Tensor]) -> Callable[[], None]:
        return lambda: loss(*losses.pairwise(*z)).mean().backward()

    a, b = in_turn(time_of(losses.hard), time_of(losses.info_nce), device, repeats=20)
    return row(
        "hard-negative loss against InfoNCE, forward and backward",
        a,
        b,
        "seconds",
        faster_is="lower",
    )


def loss_compiled(device: torch.device) -> dict[str, Any]:
    """The debiased loss compiled against eager: what a step would gain if the compiled part took
    the loss in. On one thread on a CPU.
    """
    z = _projections(device)

    def loss(z: Tensor) -> Tensor:
        return losses.debiased(*losses.pairwise(*z), tau_plus=0.1).mean()

    compiled = (
        torch.compile(loss, dynamic=False) if devices.admitted("float32", True, device)[1] else loss
    )
    with devices.cpu_threads(1 if device.type == "cpu" else None):
        a, b = in_turn(
            lambda: compiled(z).backward(), lambda: loss(z).backward(), device, repeats=20
        )
    return row(
        "debiased loss, compiled against eager, forward and backward",
        1e3 * a,
        1e3 * b,
        "ms",
        faster_is="lower",
    )


def _projections(device: torch.device) -> Tensor:
    """Two views' projections [2, BATCH, 128], of unit length, that want gradients."""
    generator = torch.Generator(device).manual_seed(0)
    return F.normalize(
        torch.randn(2, BATCH, 128, generator=generator, device=device), dim=2
    ).requires_grad_()


if __name__ == "__main__":
    bench(*sys.argv[1:])
