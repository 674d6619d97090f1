"""`make bench`: how fast, each time as a ratio of two ways measured in turn in one run on the
machine at hand.
"""

import datetime
import functools
import os
import sys

import bench_stages
import pandas as pd
import torch
from bench_steps import (
    BATCH,
    compared,
    mini_images,
    own_way,
    released_loader,
    released_way,
)
from torch.nn import functional as F

from curlnb import losses
from curlnb.data import augment
from curlnb.runs import devices, environment, provenance
from curlnb.runs.files import write_atomically


def bench(profile="quick"):
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


def comparisons(device):
    """All rows, as they are measured."""
    small, large = ("cnn", "resnet18") if device.type == "cpu" else ("resnet18", "resnet50")
    yield augmentation(device)
    yield against_released(small, device, compile=False)
    yield against_released(large, device, compile=True)
    yield from against_lightly(small, device)
    for name in (small, large):
        for compile in (False, True):
            yield accelerated_step(name, device, compile=compile)
    if small == "cnn":
        yield accelerated_step(small, device, compile=False, crop_before=32)
    yield loss_cost(device)
    yield from bench_stages.rows(device, small, large)


def augmentation(device):
    """Views a second of the batched augmentation against PIL in a DataLoader with two workers."""
    images = mini_images(device, 16 * BATCH)
    loader, generator = released_loader(images), torch.Generator(device).manual_seed(0)

    def ours():
        for batch in images.split(2 * BATCH):
            augment.simclr(batch, generator)
            augment.simclr(batch, generator)

    what = "augmentation, batched against PIL with 2 workers"
    return compared(what, ours, lambda: list(loader), device, "views/s", 2 * len(images), 3)


def against_released(name, device, *, compile, baseline="the released way", **given):
    """Views a second end to end, from uint8 images to updated weights, of our step in bf16 against
    `bench_steps.released_way`, which gets `given`.
    """
    brief = device.type == "cpu" and name != "cnn"
    images = mini_images(device, (2 if brief else 16) * BATCH)
    ours, how = own_way(name, images, precision="bf16", compile=compile)
    other = released_way(name, images, **given)
    what = f"training {name} ({how}) against {baseline}"
    return compared(what, ours, other, device, "views/s", 2 * len(images), 1 if brief else 3)


def against_lightly(name, device):
    """Against lightly's SimCLR with the same network, its transform and loss as in its
    documentation, its loader with two workers; no row where lightly is not installed.
    """
    try:
        from lightly.loss import NTXentLoss
        from lightly.transforms import SimCLRTransform
    except ImportError as error:
        print(f"lightly: not compared, {error}")
        return
    given = {"pair": SimCLRTransform(input_size=32), "criterion": NTXentLoss(temperature=0.5)}
    yield against_released(name, device, compile=False, baseline="lightly's SimCLR", **given)


def accelerated_step(name, device, *, compile, crop_before=None):
    """Views a second of our own step in bf16, compiled or not, where the machine admits it, against
    eager float32.

    The small CNN as quick's runs train it: on one thread, with crops of 24 pixels. crop_before: the
    crops of the eager float32 step where they differ.
    """
    small, crop = name == "cnn", 24 if name == "cnn" else 32
    brief = device.type == "cpu" and not small
    images = mini_images(device, BATCH * (1 if brief else 4))
    ours, how = own_way(name, images, precision="bf16", compile=compile, size=crop)
    before = crop_before or crop
    eager, _ = own_way(name, images, precision="float32", compile=False, size=before)
    what = f"training {name}, {how} against eager float32"
    if crop_before:
        what = f"training {name}, {how}, crops of {crop} against eager float32, crops of {before}"
    repeats = 2 if brief else 5
    with devices.cpu_threads(1 if small else None):
        return compared(what, ours, eager, device, "views/s", 2 * len(images), repeats)


def loss_cost(device):
    """Forward and backward of the hard-negative loss against InfoNCE at 512 anchors and 510
    negatives.
    """
    torch.manual_seed(0)
    z = F.normalize(torch.randn(2, BATCH, 128, device=device), dim=2).requires_grad_()
    what = "hard-negative loss against InfoNCE, forward and backward"
    return compared(
        what,
        lambda: losses.hard(*losses.pairwise(*z)).mean().backward(),
        lambda: losses.info_nce(*losses.pairwise(*z)).mean().backward(),
        device,
        repeats=20,
    )


if __name__ == "__main__":
    bench(*sys.argv[1:])
