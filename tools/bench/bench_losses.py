"""Memory and time of a loss and its gradient, as ratios to cross-entropy on the logits, in one run:
`python tools/bench/bench_losses.py [B ...]`.

Memory is what torch allocates at the peak, also in similarity matrices of 4 (2B)^2 bytes. The
embeddings are random unit vectors, 2 x [B, 128]. Where B > 8,192 only tiles are tried.
"""

import sys

import torch
import torch.nn.functional as F
from bench_stages import peak
from bench_steps import in_turn

from curlnb.losses import HardNegative, InfoNCE
from curlnb.runs import devices

TILE = 512


def cross_entropy(z1, z2):
    z = torch.cat([z1, z2])
    partner = torch.arange(len(z), device=z.device).roll(len(z1))
    return F.cross_entropy((z @ z.T / 0.5).fill_diagonal_(-torch.inf), partner)


def lightly(z1, z2):
    from lightly.loss import NTXentLoss

    return NTXentLoss()(z1, z2)


LOSSES = {
    "cross-entropy on logits": cross_entropy,
    "lightly NTXentLoss": lightly,
    "InfoNCE": InfoNCE(),
    "HardNegative": HardNegative(),
    f"InfoNCE, tile={TILE}": InfoNCE(tile=TILE),
    f"HardNegative, tile={TILE}": HardNegative(tile=TILE),
}


def both_passes(name, batch, device):
    """A forward and backward pass, which has been tried: the first one imports and keeps things."""
    torch.manual_seed(0)
    z = F.normalize(torch.randn(2, batch, 128, device=device), dim=2).requires_grad_()

    def run():
        z.grad = None
        LOSSES[name](*z).backward()

    LOSSES[name](*z[:, :4]).backward()
    return run


def main(batches):
    device = devices.default_device()
    print("| B | loss | MB | matrices | time, s | memory, ratio | time, ratio |")
    print("|---|---|---|---|---|---|---|")
    for batch in map(int, batches or (1024, 4096, 16384)):
        first = None
        for name in LOSSES:
            if batch > 8192 and "tile" not in name:
                continue
            run = both_passes(name, batch, device)
            (seconds,) = in_turn([run], device, 3 if batch <= 8192 else 1)
            memory = peak(run, device)
            first = first or (memory, seconds)
            ratios = f"{memory / first[0]:.2f} | {seconds / first[1]:.2f}"
            matrices = memory / (4 * (2 * batch) ** 2)
            cells = f"{memory / 1e6:.0f} | {matrices:.2f} | {seconds:.3g} | {ratios}"
            print(f"| {batch:,} | {name} | {cells} |")


if __name__ == "__main__":
    main(sys.argv[1:])
