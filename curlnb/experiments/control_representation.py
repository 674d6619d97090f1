"""Control from pixels: what contrastive features know of the simulator's state.

The encoder is that of the agent of chuang2020, Section 5.4, trained without rewards.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from curlnb.data import control_frames
from curlnb.data.control_frames import STACK
from curlnb.experiments.control import HELD_OUT, CropContrast, FrameEncoder, simulator
from curlnb.models.encoders import momentum_update
from curlnb.models.sac import PixelEncoder, bilinear_loss, initialise
from curlnb.runs import environment
from curlnb.runs.environment import limited
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run
from curlnb.runs.training import Optimisation, train

PENALTIES = torch.logspace(-5, 2, 15, dtype=torch.float64)  # of the regression, per sample


@dataclass(frozen=True)
class Rollouts:
    """The first steps of episodes under a random policy, the same for every seed.

    episodes: for training; held_out: for evaluation; steps: actions in each.
    """

    episodes: int = 100
    steps: int = 10
    held_out: int = 50


class _WithMomentum(nn.Module):
    """Encoder, momentum copy and bilinear form in one module, for checkpoints."""

    def __init__(self, encoder: PixelEncoder, features: int) -> None:
        super().__init__()
        initialise(encoder)
        self.encoder, self.momentum = encoder, copy.deepcopy(encoder).requires_grad_(False)
        self.bilinear = nn.Parameter(torch.rand(features, features))


@experiment(name="control.representation", data=simulator)
def representation(
    run: Run,
    *,
    seed: int,
    task: str = "cartpole swingup",
    loss: CropContrast = CropContrast(),
    frames: Rollouts = Rollouts(),
    reader: FrameEncoder = FrameEncoder(),
    optimisation: Optimisation = Optimisation(epochs=5, batch=64, weight_decay=0.0),
    encoder_rate: float = 0.05,
) -> dict[str, Any]:
    """Train the agent's encoder by the contrastive loss alone, then predict the state linearly.

    Training uses frames of a random policy; the seed draws initial weights, batches and crops.
    epochs = 0 leaves the encoder untrained. encoder_rate: of the momentum copy. The predictor is
    ridge regression with its penalty chosen on the training episodes; it takes centre crops.
    Returns r2, r2_positions, r2_velocities: the share of the variance of the held-out states that
    is explained, coordinates scaled to variance 1 (see `explained_variance`); if trained, loss and
    clamped of the last epoch.
    """
    frames, optimisation = (
        limited(frames, episodes=3, steps=6, held_out=2),
        limited(optimisation, batch=4),
    )
    data, test = (
        control_frames.random_episodes(
            task, count, frames.steps, first, reader.shrink, dry=environment.dry()
        )
        for count, first in ((frames.episodes, 0), (frames.held_out, HELD_OUT))
    )
    size, trunk = reader.size, reader.convolutions()
    model = _WithMomentum(PixelEncoder(trunk, trunk.width, reader.features), reader.features).to(
        run.device
    )
    generator = torch.Generator(run.device).manual_seed(seed)
    seen_in_training = replace(data, frames=data.frames.to(run.device))

    def step(index: Tensor, _: float) -> tuple[Tensor, dict[str, Tensor]]:
        observed = seen_in_training.stacks(index)
        query, *keys = (
            control_frames.random_crop(observed, size, generator) for _ in range(1 + loss.positives)
        )
        momentum_update(model.momentum, model.encoder, encoder_rate)
        with torch.no_grad():
            seen = torch.stack([model.momentum(key) for key in keys])
        value, clamped = bilinear_loss(
            model.encoder(query), seen, model.bilinear, tau_plus=loss.tau_plus, floor=loss.floor
        )
        return value, {"clamped": clamped}

    log = train(run, model, step, optimisation, samples=len(data), seed=seed, generator=generator)
    seen, seen_test = (
        frame_features(model.encoder, part, size, run.device) for part in (data, test)
    )
    metrics: dict[str, Any] = {}
    for name, kinds in (
        ("r2", ("positions", "velocities")),
        ("r2_positions", ("positions",)),
        ("r2_velocities", ("velocities",)),
    ):
        # states at the last frame of every stack, [observations, .]
        known, wanted = (
            torch.cat([getattr(part, kind)[:, STACK - 1 :].flatten(0, 1) for kind in kinds], 1)
            for part in (data, test)
        )
        metrics[name] = explained_variance(seen, known, seen_test, wanted)
    return metrics | {name: curve[-1] for name, curve in log.items()}


@torch.no_grad()
def frame_features(
    encoder: nn.Module,
    part: control_frames.Episodes,
    size: int,
    device: torch.device,
    batch: int = 200,
) -> Tensor:
    """Features [observations, features] of all observations, centre-cropped, on the CPU.

    size: of the crops, in pixels.
    """
    encoder.eval()
    pieces = torch.arange(len(part)).split(batch)
    return torch.cat(
        [
            encoder(control_frames.centre_crop(part.stacks(piece).to(device), size)).cpu()
            for piece in pieces
        ]
    )


def explained_variance(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, folds: int = 5
) -> float:
    """The share of the variance of test_y that a ridge regression explains (R^2); at most 1.

    train_x: [n, d]; train_y: [n, s]; test_x: [m, d]; test_y: [m, s]. Coordinates of y are divided
    by their standard deviations on the test set, x by those on the training set; predicting the
    test set's mean gives 0. Coordinates that hardly move there (standard deviation below 1e-4) are
    left out. The penalty is chosen on `folds` consecutive parts of the training set, so that frames
    of an episode, which resemble each other, are left out together.
    """
    scale = test_y.double().std(0, correction=0)
    moves = scale > 1e-4
    y, wanted = (part.double()[:, moves] / scale[moves] for part in (train_y, test_y))
    spread = train_x.double().std(0, correction=0).clamp_min(1e-8)
    x, test = (part.double() / spread for part in (train_x, test_x))
    errors = torch.zeros(len(PENALTIES), dtype=torch.float64)
    for held in torch.arange(len(x)).tensor_split(folds):
        kept = torch.ones(len(x), dtype=torch.bool)
        kept[held] = False
        errors += (_ridge(x[kept], y[kept], x[held]) - y[held]).square().sum((1, 2))
    fitted = _ridge(x, y, test)[errors.argmin()]
    return float(1 - (wanted - fitted).square().mean() / (wanted - wanted.mean(0)).square().mean())


def _ridge(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """Predictions of ridge regressions with an intercept, one per penalty: [penalties, m, s].

    x: [n, d], y: [n, s], at: [m, d]. Penalties are per sample.
    """
    u, s, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    shrunk = s / (s.square() + len(x) * PENALTIES[:, None])  # [penalties, r]
    return y.mean(0) + (at - x.mean(0)) @ v.T @ (shrunk[:, :, None] * (u.T @ (y - y.mean(0))))
