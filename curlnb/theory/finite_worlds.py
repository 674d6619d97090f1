"""Finite worlds: the quantities in the theorems of arora2019, computed exactly.

A finite world has C latent classes and P points; a representation is a table with one row per
point. Every expectation is then a tensor contraction in float64: nothing is sampled, and all of it
can be differentiated in rho, in the class distributions and in the representation, so that `search`
can try to break an inequality by gradient ascent.

Leading batch dimensions are independent worlds: rho [..., C], D [..., C, P], f [..., P, d].
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linprog, minimize
from torch import Tensor

KINDS = ("hinge", "logistic")
TASKS = ("proportional", "uniform")


# Worlds


@dataclass(frozen=True)
class World:
    """Latent classes of arora2019, Section 2, over finitely many points.

    rho: [..., C] probability of each class; D: [..., C, P] distribution of each class over the
    points (classes may overlap). ValueError if a distribution is negative or does not sum to 1.
    """

    rho: Tensor
    D: Tensor

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if (values < 0).any() or ((values.sum(-1) - 1).abs() > 1e-5).any():
                raise ValueError(
                    f"{name} is no probability distribution: its last dimension must be >= 0 and "
                    "sum to 1"
                )


def random_world(
    generator: torch.Generator,
    classes: int,
    points: int,
    *,
    batch: tuple[int, ...] = (),
    spread: float = 2.0,
    uniform: bool = False,
) -> World:
    """A world with log-normal rho and D, in float64 on the generator's device.

    spread: standard deviation of the logits; 0 makes all classes equal, 5 or more puts each class
    almost on one point. uniform: True gives every class the same probability.
    """
    rho_logits = _normal(*batch, classes, generator=generator)
    D_logits = _normal(*batch, classes, points, generator=generator)
    rho = torch.softmax(rho_logits * (not uniform), -1)
    return World(rho, torch.softmax(spread * D_logits, -1))


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)


def finite_log(p: Tensor) -> Tensor:
    """The logarithm of probabilities; of 0 it is -1e30, which has a gradient."""
    return torch.where(p > 0, torch.where(p > 0, p, 1.0).log(), -1e30)


def tau(rho: Tensor) -> Tensor:
    """Probability that two independent classes are the same, sum_c rho_c^2. [..., C] -> [...].

    Source: arora2019, Section 4.
    """
    return rho.square().sum(-1)


def intraclass_deviation(world: World, f: Tensor) -> Tensor:
    """The spread of classes s(f) = E_{c ~ nu}[ sqrt(||Cov_{D_c} f||_2) E_{D_c} ||f|| ], [...].

    nu is proportional to rho^2 (arora2019, Eq. 9). f: [..., P, d].
    """
    mean = world.D @ f  # [..., C, d]
    second = torch.einsum("...cx,...xi,...xj->...cij", world.D, f, f)
    covariance = second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    deviation = torch.linalg.eigvalsh(covariance)[..., -1].clamp_min(0).sqrt()  # [..., C]
    norm = (world.D @ f.norm(dim=-1, keepdim=True)).squeeze(-1)  # [..., C]
    return (world.rho.square() * deviation * norm).sum(-1) / tau(world.rho)


# Losses


def loss(v: Tensor, kind: str) -> Tensor:
    """The loss of one difference of scores (k = 1): max(0, 1 - v) or log2(1 + e^-v). Elementwise.

    Both are 1 at v = 0 (arora2019, Section 2). kind: one of KINDS, else ValueError.
    """
    check_kind(kind)
    return (1 - v).clamp_min(0) if kind == "hinge" else -F.logsigmoid(v) / math.log(2)


def task_weights(rho: Tensor, tasks: str = "proportional") -> Tensor:
    """Probability of every ordered pair of distinct classes, [..., C, C] with a zero diagonal.

    "proportional": as arora2019's Definition 2.2 draws tasks, rho_c rho_c' / (1 - tau). "uniform":
    all pairs equally likely, for which Lemma 4.3 fails unless rho is uniform too. ValueError for
    another word, and for a world of one class.
    """
    classes = rho.shape[-1]
    if classes < 2:
        raise ValueError(f"a task needs 2 classes, and this world has {classes}")
    if tasks not in TASKS:
        raise ValueError(f"tasks {tasks!r} is unknown: use 'proportional' or 'uniform'")
    weights = rho.unsqueeze(-1) * rho.unsqueeze(-2)
    if tasks == "uniform":
        weights = torch.ones_like(weights)
    weights = weights * (1 - torch.eye(classes, dtype=rho.dtype, device=rho.device))
    return weights / weights.sum((-2, -1), keepdim=True)


@dataclass(frozen=True)
class PairLosses:
    """The loss of every ordered pair of classes, for two kinds of classifier.

    Each average of arora2019, Section 4, is a weighted mean of these two matrices. rho: [..., C].
    contrastive: [..., C, C], entry (c, c') is E l(f(x).(f(x+) - f(x-))) with x, x+ ~ D_c and x- ~
    D_c'. mean_classifier: [..., C, C], E l(f(x).(mu_c - mu_c')) with x ~ D_c; its diagonal is l(0)
    = 1. Jensen's inequality makes `contrastive` the larger one, entry by entry: that is the whole
    of Lemma 4.3.
    """

    rho: Tensor
    contrastive: Tensor
    mean_classifier: Tensor

    @property
    def tau(self) -> Tensor:
        return tau(self.rho)

    @property
    def unsupervised(self) -> Tensor:
        """L_un (Definition 2.3, k = 1)."""
        return torch.einsum("...c,...e,...ce->...", self.rho, self.rho, self.contrastive)

    @property
    def same_class(self) -> Tensor:
        """L_un^= (Section 4.2): the negative has the anchor's class. At least 1."""
        return (self.rho.square() * self.contrastive.diagonal(dim1=-2, dim2=-1)).sum(-1) / self.tau

    @property
    def different_class(self) -> Tensor:
        """L_un^!= (Section 4.2): the negative has another class.

        Eq. 8: L_un = tau L_un^= + (1 - tau) L_un^!=.
        """
        return (task_weights(self.rho) * self.contrastive).sum((-2, -1))

    def supervised(self, tasks: str = "proportional") -> Tensor:
        """L_sup^mu (Definitions 2.1 and 2.2): binary tasks, uniform D_T, the mean classifier."""
        return (task_weights(self.rho, tasks) * self.mean_classifier).sum((-2, -1))

    def bound(self, gen: Tensor | float = 0.0) -> Tensor:
        """The right side (L_un - tau + gen) / (1 - tau) of Lemma 4.3 and Theorem 4.1.

        gen: 0 for Lemma 4.3, Gen_M for Theorem 4.1. Written as a sum over pairs, since L_un - tau
        loses its digits to cancellation as tau tends to 1.
        """
        classes = self.rho.shape[-1]
        surplus = self.contrastive - torch.eye(
            classes, dtype=self.rho.dtype, device=self.rho.device
        )
        weights = self.rho.unsqueeze(-1) * self.rho.unsqueeze(-2)
        distinct = (weights - torch.diag_embed(self.rho.square())).sum((-2, -1))
        return ((weights * surplus).sum((-2, -1)) + gen) / distinct

    def ratio(self, tasks: str = "proportional") -> Tensor:
        """Left side of Lemma 4.3 over its right side; nan where the right side is below 1e-9."""
        bound = self.bound()
        return self.supervised(tasks) / torch.where(bound < 1e-9, math.nan, bound)


def check_kind(kind: str) -> None:
    """ValueError for a loss other than those of arora2019."""
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown: use 'hinge' or 'logistic'")


def pair_losses(world: World, f: Tensor, kind: str) -> PairLosses:
    """Both losses of every pair of classes, exactly. f: [..., P, d], one row per point.

    Memory grows as P^3. ValueError for an unknown kind.
    """
    D = world.D
    similarity = f @ f.mT  # [..., P, P]
    table = loss(similarity.unsqueeze(-1) - similarity.unsqueeze(-2), kind)  # [..., x, x+, x-]
    # the negative averaged out first: the cheapest order
    per_point = torch.einsum("...xpn,...en->...xpe", table, D)
    contrastive = torch.einsum("...xpe,...cx,...cp->...ce", per_point, D, D)
    mean_classifier = torch.einsum("...cx,...xce->...ce", D, loss(margins(world, f), kind))
    return PairLosses(world.rho, contrastive, mean_classifier)


def margins(world: World, f: Tensor) -> Tensor:
    """The mean classifier's margins f(x).(mu_c - mu_c'), [..., P, C, C]."""
    scores = f @ (world.D @ f).mT  # [..., P, C]
    return scores.unsqueeze(-1) - scores.unsqueeze(-2)


def empirical_pair_losses(
    features: Tensor, labels: Tensor, kind: str, *, rho: Tensor | None = None, chunk: int = 1 << 18
) -> PairLosses:
    """Both losses for data: every sample is a point, D_c is uniform over the samples of class c.

    features: [n, d], in whose dtype losses are computed (their sums in float64); labels: int64 [n]
    in 0..C-1, no class empty. rho: [C], by default the shares of the labels. chunk: number of table
    entries held at once. Takes sum_c n_c^2 n evaluations of the loss. ValueError for shapes that do
    not fit and for a class without samples.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"features {tuple(features.shape)} and labels {tuple(labels.shape)} do not fit: use "
            "[n, d] and [n]"
        )
    counts = torch.bincount(labels)
    if bool((counts == 0).any()):
        raise ValueError(
            f"class {int((counts == 0).nonzero()[0])} has no sample: number the classes 0 to C-1 "
            "without gaps"
        )
    n, classes = len(labels), len(counts)
    one_hot = F.one_hot(labels, classes).to(features.dtype)
    mean = one_hot.mT @ features / counts.unsqueeze(1)  # [C, d]
    rows, mean_rows = [], []
    for c in range(classes):
        anchors = features[labels == c]
        similarity = anchors @ features.mT  # [n_c, n]
        positive = similarity[:, labels == c]  # [n_c, n_c]
        total = torch.zeros(n, dtype=torch.float64, device=features.device)
        step = max(1, chunk // (n * len(anchors)))
        for start in range(0, len(anchors), step):
            v = positive[start : start + step].unsqueeze(-1) - similarity[
                start : start + step
            ].unsqueeze(-2)
            total += loss(v, kind).flatten(0, 1).sum(0, dtype=torch.float64)
        rows.append((total @ one_hot.double()) / (counts[c] ** 2 * counts))
        scores = anchors @ mean.mT  # [n_c, C]
        mean_rows.append(loss(scores[:, c : c + 1] - scores, kind).double().mean(0))
    shares = counts.double() / n if rho is None else rho.double()
    return PairLosses(shares, torch.stack(rows), torch.stack(mean_rows))


def linear_classifier_loss(world: World, f: Tensor, kind: str) -> float:
    """L_sup(f): the loss of the best linear classifier, averaged over binary tasks, for one world.

    Source: arora2019, Eq. 4 and Definition 2.2. The infimum is found by linear programming (hinge)
    or L-BFGS (logistic, to about 1e-6; it may lie at infinity).
    """
    check_kind(kind)
    points, D, weights = (
        each.cpu().double().numpy(force=True) for each in (f, world.D, task_weights(world.rho))
    )
    best = best_direction if kind == "hinge" else best_softmax
    pairs = itertools.combinations(range(len(D)), 2)
    total = sum(2 * weights[c, e] * best(points, D[[c, e]] / 2) for c, e in pairs)
    return float(total) if kind == "hinge" else float(total) / math.log(2)


def best_direction(points: np.ndarray, mass: np.ndarray) -> float:
    """inf over w of the hinge loss sum_x mass[0, x] l(w.x) + mass[1, x] l(-w.x)."""
    used = mass.ravel() > 0
    signed, cost = np.concatenate([points, -points])[used], mass.ravel()[used]
    n, d = signed.shape
    # minimise mass.slack with slack >= 0 and slack >= 1 - w.points
    bounds = [(None, None)] * d + [(0, None)] * n
    constraint = np.hstack([-signed, -np.eye(n)])
    cost = np.concatenate([np.zeros(d), cost])
    return float(linprog(cost, A_ub=constraint, b_ub=-np.ones(n), bounds=bounds).fun)


def best_softmax(points: np.ndarray, mass: np.ndarray) -> float:
    """inf over W of sum_{c, x} mass[c, x] (-log softmax(W x)_c)."""

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        logits = flat.reshape(len(mass), -1) @ points.T  # [K, P]
        top = logits.max(0)
        log_sum = top + np.log(np.exp(logits - top).sum(0))
        slope = np.exp(logits - log_sum) * mass.sum(0) - mass
        return float((mass * (log_sum - logits)).sum()), (slope @ points).ravel()

    start = mass @ points / mass.sum(1, keepdims=True)
    options = {"maxiter": 2000, "gtol": 1e-8, "ftol": 1e-14}
    found = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    return float(found.fun)


# Search


class SearchResult(NamedTuple):
    """The largest value that `search` found, and the world and representation that attain it."""

    value: float
    world: World
    f: Tensor  # [P, d]


def search(
    objective: Callable[[World, Tensor], Tensor],
    classes: int,
    points: int,
    dim: int,
    *,
    generator: torch.Generator,
    steps: int = 300,
    restarts: int = 16,
    radius: float | None = None,
    rho: Tensor | None = None,
    lr: float = 0.1,
    scale: float = 1.0,
) -> SearchResult:
    """Try to break an inequality by gradient ascent on rho, D and f, from several worlds at once.

    objective: (world, f) -> [restarts], to be maximised: left side over right side, or left side
    minus right side. radius: the R of ||f(x)|| <= R, None for no limit. rho: [C] holds it fixed,
    None searches it too. lr: Adam's first step; scale: standard deviation of the first f. Where the
    worst worlds are extreme, with classes of almost no probability, larger lr and scale reach them
    sooner. A value that is not finite never counts as the best (0/0 where both sides vanish), and
    its gradient is dropped. ValueError if the objective is finite at no step.
    """
    rho_logits = _normal(restarts, classes, generator=generator)
    D_logits = 2 * _normal(restarts, classes, points, generator=generator)
    table = scale * _normal(restarts, points, dim, generator=generator)
    parameters = [D_logits, table]
    if rho is None:
        parameters.append(rho_logits)
    else:
        rho_logits = rho.to(rho_logits).log().expand(restarts, classes)
    moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in parameters]
    for parameter in parameters:
        parameter.requires_grad_()
    highest, best = -math.inf, None
    for step in range(steps):
        world = World(torch.softmax(rho_logits, -1), torch.softmax(D_logits, -1))
        f = table
        if radius is not None:
            f = table * (radius / table.norm(dim=-1, keepdim=True)).clamp_max(1)
        value = objective(world, f)
        ranked = value.detach().nan_to_num(-math.inf, -math.inf, -math.inf)
        top = ranked.argmax()
        if ranked[top] > highest:
            highest = float(ranked[top])
            best = [each[top].detach().clone() for each in (world.rho, world.D, f)]
        total = torch.where(value.isfinite(), value, 0.0).sum()
        gradients = torch.autograd.grad(total, parameters, materialize_grads=True)
        # Adam with a learning rate falling to 0, written out: importing torch.optim costs more time
        # than a search.
        rate = lr * (1 - step / steps) / (1 - 0.9 ** (step + 1))
        for each, gradient, (first, second) in zip(parameters, gradients, moments, strict=True):
            gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.001)
            corrected = second / (1 - 0.999 ** (step + 1))
            with torch.no_grad():
                each += rate * first / (corrected.sqrt() + 1e-8)
    if best is None:
        raise ValueError(
            "the objective was not finite at any step: give one that is finite on a random world"
        )
    *best_world, best_f = best
    return SearchResult(highest, World(*best_world), best_f)
