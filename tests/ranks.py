"""What one rank does in tests/test_distributed.py: `torchrun ... ranks.py STEP OUT` and `torchrun
... ranks.py RUN STORE EPOCHS SPLIT`.
"""

import functools
import itertools
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from direct import Noise
from torch import Tensor, nn

from curlnb.experiments import images
from curlnb.models.encoders import split_batch_norm
from curlnb.runs import distributed
from curlnb.runs.store import Run, Store

OBJECTIVES = {
    "biased": {"objective": "biased", "tau_plus": 0.0, "beta": 0.0, "negatives": None},
    "few negatives": {"objective": "biased", "tau_plus": 0.0, "beta": 0.0, "negatives": 5},
    "on the floor": {"objective": "debiased", "tau_plus": 0.3, "beta": 0.0, "negatives": None},
    "hard": {"objective": "hard", "tau_plus": 0.1, "beta": 1.0, "negatives": None},
    "unbiased": {"objective": "unbiased", "tau_plus": 0.0, "beta": 0.0, "negatives": None},
}
BATCH, VIEWS = 8, 2


def small_model() -> nn.Module:
    """Like the project's own networks it has no bias before a batch norm, where its gradient would
    be nothing but rounding.
    """
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(3, 8, 3), nn.Linear(32, 16)
    convolution.bias = linear.bias = None
    body = nn.Sequential(
        convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), linear
    )
    return nn.Sequential(body, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))


def step(name: str, bn_groups: int | None, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """One optimiser step on fixed images: loss, share on the floor, every gradient, and running
    statistics afterwards.
    """
    g = torch.Generator().manual_seed(1)
    x, labels = torch.randn(VIEWS, BATCH, 3, 6, 6, generator=g), torch.arange(BATCH) % 3
    if name == "on the floor":
        x[:, BATCH // 2 :] *= 0.1
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if bn_groups:
        split_batch_norm(model, VIEWS * distributed.groups_here(bn_groups))
    distributed.join(Run(Path()), model, optimizer, synchronise=not bn_groups)
    mine = distributed.share(torch.arange(BATCH))
    z = F.normalize(model(x[:, mine].flatten(0, 1)), dim=1)
    views = distributed.gather(z, VIEWS).chunk(VIEWS)
    loss, clamped = images.objective_loss(images.Contrast(**OBJECTIVES[name]), views, labels, g)
    loss.backward()
    optimizer.step()
    found = {
        "loss": loss.detach(),
        "clamped": clamped,
        "negatives": torch.tensor(float(VIEWS * (len(views[0]) - 1))),
    }
    found |= {f"gradient {key}": p.grad for key, p in model.named_parameters()}
    return found | {f"after {key}": value for key, value in model.state_dict().items()}


def steps() -> dict[str, Tensor]:
    cases = {
        f"{name}, {bn_groups} groups": step(name, bn_groups)
        for name in OBJECTIVES
        for bn_groups in (None, 2)
    }
    return {
        f"{case}: {key}": value for case, found in cases.items() for key, value in found.items()
    }


def streams() -> Tensor:
    """What each rank draws in two steps, [ranks, 2 steps, 3]."""
    torch.manual_seed(0)
    own = torch.stack(
        [torch.rand(3, generator=distributed.stream(torch.Generator())) for _ in range(2)]
    )
    parts = [torch.empty_like(own) for _ in range(distributed.ranks())]
    torch.distributed.all_gather(parts, own)
    return torch.stack(parts)


def a_run(store: Path, epochs: int, bn_groups: int | None, stop: bool = False) -> None:
    """A SimCLR run on random images; with `stop`, killed after its third checkpoint."""
    if stop:
        save = Run.save_checkpoint

        def save_and_die(self: Run, *arguments: object) -> None:
            save(self, *arguments)
            self.notes["saves"] = self.notes.get("saves", 0) + 1
            if self.notes["saves"] == 3:
                raise SystemExit(1)

        Run.save_checkpoint = save_and_die
        time.monotonic = functools.partial(
            next, itertools.count(0.0, 100.0)
        )  # a clock by which every step is due for a checkpoint
    parameters = {
        "dataset": Noise(),
        "batch": 16,
        "epochs": epochs,
        "size": 16,
        "bn_groups": bn_groups,
        "objective": "hard",
        "tau_plus": 0.1,
        "beta": 1.0,
    }
    distributed.run(Store(store), images.simclr, parameters, 3)


if __name__ == "__main__":
    with distributed.group():
        if sys.argv[1] == "step":
            found, drawn = steps(), streams()
            torch.save((found, drawn), f"{sys.argv[2]}.{distributed.rank()}")
        else:
            a_run(Path(sys.argv[2]), 3, int(sys.argv[3]) or None, stop=sys.argv[1] == "stop")
