"""Memory and time of a loss and its gradient, as ratios to cross-entropy on the logits, in one run:
`python tools/bench/bench_losses.py [--device cuda] [B ...]`.

Each row is a process of its own, so that its peak is its own: how much the resident memory rises
above what was there before the loss (on a GPU, what torch allocates), also in similarity matrices
of 4 (2B)^2 bytes. The embeddings are random unit vectors, 2 x [B, 128]. Seconds are the least of
three after a first call, of one at B > 8,192, where only tiles are tried.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from curlnb.losses import HardNegative, InfoNCE

TILE = 512


def cross_entropy(z1: Tensor, z2: Tensor) -> Tensor:
    z = torch.cat([z1, z2])
    partner = torch.arange(len(z), device=z.device).roll(len(z1))
    return F.cross_entropy((z @ z.T / 0.5).fill_diagonal_(-torch.inf), partner)


def lightly(z1: Tensor, z2: Tensor) -> Tensor:
    from lightly.loss import NTXentLoss

    return NTXentLoss()(z1, z2)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy on logits": cross_entropy,
    "lightly NTXentLoss": lightly,
    "InfoNCE": InfoNCE(),
    "HardNegative": HardNegative(),
    f"InfoNCE, tile={TILE}": InfoNCE(tile=TILE),
    f"HardNegative, tile={TILE}": HardNegative(tile=TILE),
}


def measure(name: str, batch: int, device: str) -> tuple[float, float]:
    """Bytes at the peak, and seconds, of a forward and backward pass."""
    torch.manual_seed(0)
    z = F.normalize(torch.randn(2, batch, 128, device=device), dim=2).requires_grad_()
    loss, seconds = LOSSES[name], []
    loss(*z[:, :4]).backward()  # what the first call imports and compiles
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident_peak()
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(4 if batch <= 8192 else 1):
        start = time.perf_counter()
        loss(*z).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = resident_peak()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else peak
    return peak - before, min(seconds[1:] or seconds)


def resident_peak() -> int:
    """Bytes. On Linux of this program alone: `resource` counts what it was started from, too."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(name: str, batch: int, device: str) -> tuple[float, float]:
    """`measure` in a process of its own."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # freed memory is given back
    words = [sys.executable, __file__, str(batch), "--device", device, "--one", name]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True)
    memory, seconds = json.loads(done.stdout)
    return memory, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("batches", nargs="*", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", help="measure this loss alone, and print bytes and seconds")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.batches[0], given.device)))
        return
    print("| B | loss | MB | matrices | time, s | memory, ratio | time, ratio |")
    print("|---|---|---|---|---|---|---|")
    for batch in given.batches:
        first = None
        for name in LOSSES:
            if batch > 8192 and "tile" not in name:
                continue
            memory, seconds = measured(name, batch, given.device)
            first = first or (memory, seconds)
            ratios = f"{memory / first[0]:.2f} | {seconds / first[1]:.2f}"
            matrices = memory / (4 * (2 * batch) ** 2)
            cells = f"{memory / 1e6:.0f} | {matrices:.2f} | {seconds:.3g} | {ratios}"
            print(f"| {batch:,} | {name} | {cells} |")


if __name__ == "__main__":
    main()
