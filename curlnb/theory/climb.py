"""Try to break an inequality with more and more effort: one search, one rule for when to stop."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from curlnb.theory.finite_worlds import World, search

GAIN, FEWEST = 0.001, 3


class Climb(NamedTuple):
    """What `climb` found."""

    value: float  # the largest of all ascents
    world: World
    f: Tensor  # [P, d]
    curve: dict[int, float]  # the largest value so far by the steps of an ascent
    cases: int  # ascents made, over all budgets: what the ledger counts

    @property
    def settled(self) -> bool:
        """Whether the last budget gained less than GAIN on what was found before."""
        values = [*self.curve.values()]
        return len(values) >= FEWEST and values[-1] - values[-2] < GAIN


def climb(
    objective: Callable[[World, Tensor], Tensor],
    shape: tuple[int, int, int],
    budgets: Sequence[int],
    *,
    restarts: int,
    seed: int,
    **options: Any,
) -> Climb:
    """Gradient ascent on a world and its representation, from `restarts` random worlds, with one
    budget of steps after the other until a larger one gains nothing.

    objective: (world, f) -> [restarts], to be made large. shape: classes, points and dimensions.
    budgets: steps of each ascent, ascending. The search stops after at least three of them, at the
    first that gains less than 0.001. Every budget starts from the same worlds. options: as
    `finite_worlds.search` takes them.
    """
    if not budgets:
        raise ValueError("no budget is given: name the steps of at least one ascent")
    found, curve = [], {}
    for steps in budgets:
        generator = torch.Generator().manual_seed(seed)
        ascents = search(
            objective, *shape, generator=generator, restarts=restarts, steps=steps, **options
        )
        found.append(ascents)
        best = max(found, key=lambda each: each.value)
        curve[steps] = best.value
        climbed = Climb(*best, curve, restarts * len(curve))
        if climbed.settled:
            break
    return climbed


def three_classes(generator: torch.Generator) -> tuple[World, Tensor]:
    """A world to look at, the same on every page: three unequally likely classes of four points in
    the plane, each with a tenth of its mass spread over all points. Returns it and f [12, 2], the
    points themselves.
    """
    centres = torch.tensor([[1.3, 0.2], [-0.5, 1.1], [-0.7, -1.0]], dtype=torch.float64)
    noise = torch.randn(12, 2, generator=generator).double()
    own = torch.eye(3, dtype=torch.float64).repeat_interleave(4, 1) / 4
    rho = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    return World(rho, 0.9 * own + 0.1 / 12), centres.repeat_interleave(4, 0) + 0.45 * noise
