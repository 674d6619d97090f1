"""The losses of images, by name: `OBJECTIVES`. A new one is a function and a line in that table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from curlnb import losses
from curlnb.choices import Choices, check_known
from curlnb.experiments import own_parts
from curlnb.experiments.own_parts import Objective

SCHEDULES = ("constant", "down", "up")


@dataclass(frozen=True)
class Contrast:
    """The loss of a batch.

    objective: a name of `OBJECTIVES`, or a function (`own_parts.Objective`), which divides by a
    temperature itself and allows only `negatives` of the settings below. tau_plus in [0, 1), beta
    >= 0, temperature > 0: as in `losses.contrastive_loss`. schedule: one of SCHEDULES; "down" takes
    beta to 0 in equal steps over the training, "up" from 0 to beta. negatives: N, drawn from the
    batch's for each anchor; None for all, views x (batch - 1). label_groups: the number of groups
    into which an objective that takes labels merges the classes (`image_data.merged`); None: the
    classes themselves. ValueError for settings that do not fit.
    """

    objective: str | Objective = "biased"
    tau_plus: float = 0.0
    beta: float = 0.0
    schedule: str = "constant"
    negatives: int | None = None
    temperature: float = 0.5
    label_groups: int | None = None

    def __post_init__(self) -> None:
        check_contrast(self)


class Similarities(NamedTuple):
    """The similarities of a batch, as a loss takes them.

    pos [n] and neg [n, k]; same [n, k] bool, whether a negative has its anchor's class, for
    objectives that take labels; extra_pos [n, m] where there are more than two views; beta, its
    present value.
    """

    pos: Tensor
    neg: Tensor
    same: Tensor | None
    extra_pos: Tensor | None
    beta: float


Loss = Callable[[Contrast, Similarities], tuple[Tensor, Tensor]]
"""Gives the loss of each anchor [n], and the share of anchors on the floor, 0-dim."""


class Named(NamedTuple):
    """An objective: its loss, which of tau_plus and beta it takes, and whether it takes labels."""

    loss: Loss
    takes: tuple[str, ...] = ()
    labels: bool = False


def _estimated(loss: Contrast, seen: Similarities) -> tuple[Tensor, Tensor]:
    """The estimators of chuang2020 and robinson2021; the biased loss without tau_plus and beta."""
    return losses.loss_and_clamped(
        seen.pos,
        seen.neg,
        temperature=loss.temperature,
        tau_plus=loss.tau_plus,
        beta=seen.beta,
        extra_pos=seen.extra_pos,
    )


def _corrected(loss: Contrast, seen: Similarities) -> tuple[Tensor, Tensor]:
    return losses.loss_and_clamped(
        seen.pos,
        seen.neg,
        temperature=loss.temperature,
        tau_plus=loss.tau_plus,
        beta=seen.beta,
        extra_pos=seen.extra_pos,
        corrected=True,
    )


def _unbiased(loss: Contrast, seen: Similarities) -> tuple[Tensor, Tensor]:
    each = losses.unbiased(
        seen.pos,
        seen.neg,
        seen.same,  # type: ignore[arg-type]
        temperature=loss.temperature,
    )
    return each, seen.pos.new_zeros(())


def _without_false(loss: Contrast, seen: Similarities) -> tuple[Tensor, Tensor]:
    """The estimator although no negative is false: they are masked by their labels."""
    assert seen.same is not None
    return losses.loss_and_clamped(
        seen.pos,
        seen.neg,
        mask=~seen.same,
        temperature=loss.temperature,
        tau_plus=loss.tau_plus,
        beta=seen.beta,
    )


OBJECTIVES = Choices(
    "objective",
    {
        "biased": Named(_estimated),
        "debiased": Named(_estimated, ("tau_plus",)),
        "hard": Named(_estimated, ("tau_plus", "beta")),
        "hard_corrected": Named(_corrected, ("tau_plus", "beta")),
        "unbiased": Named(_unbiased, labels=True),
        "debiased_without_false": Named(_without_false, ("tau_plus", "beta"), labels=True),
    },
)


def check_contrast(loss: Contrast) -> None:
    """ValueError for an unknown name, and for settings that an objective does not take."""
    check_known("schedule", loss.schedule, SCHEDULES)
    if callable(loss.objective):
        refused = ("tau_plus", "beta", "schedule", "temperature", "label_groups")
        own_parts.check_bare(loss, refused)
        return
    named = OBJECTIVES[loss.objective]
    for name in ("tau_plus", "beta"):
        if getattr(loss, name) and name not in named.takes:
            takes = " and ".join(named.takes) or "neither tau_plus nor beta"
            raise ValueError(
                f"{name} is {getattr(loss, name)}: objective {loss.objective!r} takes {takes}"
            )
    if loss.label_groups is not None and not named.labels:
        raise ValueError(
            f"label_groups is {loss.label_groups}: objective {loss.objective!r} takes no labels"
        )


def scheduled(beta: float, schedule: str, done: float) -> float:
    """beta when the share `done` in [0, 1) of the training is over.

    robinson2021, Section 6.1 and Figure 7: annealing.
    """
    return {"constant": beta, "down": beta * (1 - done), "up": beta * done}[schedule]


def objective_loss(
    loss: Contrast,
    views: tuple[Tensor, ...],
    labels: Tensor,
    generator: torch.Generator,
    done: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mean loss of a batch of views [B, d] each, and the share of anchors on the floor; both 0-dim.

    labels: [B], for objectives that take labels; generator: draws the negatives if not all are
    used; done: the share of the training that is over.
    """
    named = None if callable(loss.objective) else OBJECTIVES[loss.objective]
    pos, neg = losses.pairwise(*views)
    same = losses.same_label_mask(labels, len(views)) if named and named.labels else None
    if loss.negatives not in (None, neg.shape[1]):
        if same is None:
            neg = losses.subsample(neg, loss.negatives, generator)
        else:
            neg, same = losses.subsample(neg, loss.negatives, generator, same)
    if named is None:
        each, clamped = (
            own_parts.losses_of(loss.objective, pos, neg),  # type: ignore[arg-type]
            pos.new_zeros(()),
        )
    else:
        extra = losses.positives(*views) if len(views) > 2 and named.takes else None
        beta = scheduled(loss.beta, loss.schedule, done)
        each, clamped = named.loss(loss, Similarities(pos, neg, same, extra, beta))
    return each.mean(), clamped
