"""Many negatives and blocks on finite worlds (arora2019, Section 6, Appendices B and C), exactly.

With k negatives an expectation runs over k + 1 classes and k + 2 points. Enumerating them takes
C^(k+1) P^(k+2) terms. Here the k negatives, independent given the anchor, are integrated out at
once (`vector_losses.expected_loss`), so that k = 50 costs no more than k = 2, and the set of
classes that they cover is built up one draw after another (`task_distribution`), in 2^C states.

Leading batch dimensions are independent worlds, as in `finite_worlds`: rho [..., C], D [..., C, P],
f [..., P, d]. Everything is differentiable.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from curlnb.theory.class_collision import collision_constant
from curlnb.theory.finite_worlds import World, intraclass_deviation, margins
from curlnb.theory.vector_losses import check_negatives, expected_loss, multisets, vector_loss

# Collisions and tasks


class Collisions(NamedTuple):
    """Chances of class collision among draws c+, c-_1, ..., c-_k from rho; each [...]."""

    none: Tensor  # I+ is empty: 1 - tau_k
    partial: Tensor  # |I+| < k: 1 - tau'
    tau: Tensor  # tau_1
    rho: Tensor
    k: int

    @property
    def distinct(self) -> Tensor:
        """The chance that all k + 1 classes differ: (k + 1)! e_{k+1}(rho).

        e is an elementary symmetric sum; this is the p of the remark in Section 6.1.
        """
        one, sizes = torch.ones_like(self.tau), range(1, self.k + 2)
        symmetric = [one, *(torch.zeros_like(one) for _ in sizes)]  # m! e_m of the classes so far
        for r in self.rho.unbind(-1):
            symmetric = [one, *(symmetric[m] + m * r * symmetric[m - 1] for m in sizes)]
        return symmetric[-1]

    @property
    def alpha(self) -> Tensor:
        return self.partial / self.none

    @property
    def beta(self) -> Tensor:
        return self.k * self.tau / self.none


def collisions(rho: Tensor, k: int) -> Collisions:
    """The chances tau_k, tau' and p in closed form, with alpha and beta. rho: [..., C].

    Source: arora2019, Theorem B.1 and Lemma B.2. 1 - tau_k = sum_c rho_c (1 - rho_c)^k, 1 - tau' =
    sum_c rho_c (1 - rho_c^k); for p see `Collisions.distinct`. k >= 1.
    """
    none, partial = (rho * (1 - rho) ** k).sum(-1), (rho * (1 - rho**k)).sum(-1)
    return Collisions(none, partial, rho.square().sum(-1), rho, k)


@dataclass(frozen=True)
class TaskDistribution:
    """The distribution of Q, the set of distinct classes among c+, c-_1, ..., c-_k.

    Source: arora2019, Section 6.1. Each of the 2^C subsets of classes is a task T. members: bool
    [2^C, C]. joint: [..., 2^C, C], the chance of Q = T, c+ = c and the condition (I+ empty, or |I+|
    < k).
    """

    members: Tensor
    joint: Tensor

    @property
    def size(self) -> Tensor:
        """|T|, [2^C]."""
        return self.members.sum(-1)

    def mean(self, losses: Tensor) -> Tensor:
        """Script L_sup of Section 6.1, E_T[mean of losses(T, c) over the c in T], [...].

        losses: [..., 2^C, C] from `task_losses`.
        """
        return self._average(self.joint.sum(-1), losses)

    def distinct(self, losses: Tensor, *, k: int) -> Tensor:
        """L_sup of Definition 2.2: the mean over tasks of k + 1 distinct classes."""
        return self._average(self.joint.sum(-1) * (self.size == k + 1), losses)

    def lowered(self, losses: Tensor) -> Tensor:
        """The left side of Theorem B.1, E_T[rho+_min(T) / p_max(T) sum_c D_T(c) losses(T, c)].

        D_T is uniform over T, which makes it largest: D_T(c) / p_max is at most 1, and here 1.
        Returns [...].
        """
        least = torch.where(self.members, self.joint, math.inf).amin(-1)[..., 1:]
        terms = least * losses.sum(-1)[..., 1:]  # without the empty set
        return terms.sum(-1) / self.joint.sum((-2, -1))

    def raised(self, losses: Tensor) -> Tensor:
        """The right side of Eq. 37 without gamma(f), with uniform D_T, [...].

        It is E_T[rho'+_max(T) / p_min(T) sum_c D_T(c) losses(T, c)].
        """
        return (self.joint.amax(-1) * losses.sum(-1)).sum(-1) / self.joint.sum((-2, -1))

    def _average(self, weights: Tensor, losses: Tensor) -> Tensor:
        means = losses.sum(-1) / self.size.clamp_min(1)
        return (weights * means).sum(-1) / weights.sum(-1)


def task_distribution(rho: Tensor, k: int, *, partial: bool = False) -> TaskDistribution:
    """The distribution over tasks given I+ empty, or with `partial` given |I+| < k. rho: [..., C].

    Source: arora2019, Section 6.1, and Appendix B.2 (there D'). The chance that k draws cover
    exactly the set S comes from adding one draw at a time: no signs alternate, so no digits cancel.
    Time and memory grow as C 2^C. k >= 1.
    """
    sets, single = _sets(rho)
    members = sets & single > 0
    grown = (sets | single).flatten()  # [2^C C]: the set after one more draw
    cover = rho.new_zeros(*rho.shape[:-1], len(sets))
    cover[..., 0] = 1
    for _ in range(k):
        drawn = (cover.unsqueeze(-1) * rho.unsqueeze(-2)).flatten(-2)
        cover = torch.zeros_like(cover).index_add(-1, grown, drawn)
    others = cover[..., sets & ~single]  # the chance that negatives cover T without c
    joint = others + cover.unsqueeze(-1) if partial else others
    proper = members & (members.sum(-1, keepdim=True) >= 2)
    return TaskDistribution(members, rho.unsqueeze(-2) * joint * proper)


def _sets(rho: Tensor) -> tuple[Tensor, Tensor]:
    """All sets of classes, [2^C, 1], and the set of each class alone, [C], a bit for each class."""
    classes = rho.shape[-1]
    sets = torch.arange(2**classes, device=rho.device).unsqueeze(-1)
    return sets, 2 ** torch.arange(classes, device=rho.device)


def task_losses(world: World, f: Tensor, kind: str, margin: float | Tensor = 1.0) -> Tensor:
    """The mean classifier's loss on class c of task T, [..., 2^C, C].

    It is E_{x ~ D_c} l({f(x).(mu_c - mu_c') / margin}_{c' in T, c' != c}). margin: the gamma of
    l_gamma (Appendix B.2), a number or [...]. 0 where c is not in T, and where T is a single class.
    """
    if isinstance(margin, Tensor):
        margin = margin[..., None, None, None]
    z = -margins(world, f) / margin  # [..., P, c, c']
    sets, single = _sets(world.rho)
    members = sets & single > 0
    same = torch.eye(len(single), dtype=torch.bool, device=f.device)
    rivals = members.unsqueeze(-1) & members.unsqueeze(-2) & ~same  # [2^C, c, c']
    z = torch.where(rivals.unsqueeze(1), z.unsqueeze(-4), -math.inf)
    return torch.einsum("...txc,...cx->...tc", vector_loss(z, kind), world.D)


# Contrastive losses


def unsupervised(world: World, f: Tensor, kind: str, k: int) -> Tensor:
    """L_un with k negatives (arora2019, Definition 2.3), [...]."""
    negatives = (world.rho.unsqueeze(-2) @ world.D).unsqueeze(-2)  # [..., 1, 1, P], the marginal
    inner = expected_loss(_contrasts(world, f), negatives, k, kind)  # [..., x, x+]
    return torch.einsum("...c,...cx,...cp,...xp->...", world.rho, world.D, world.D, inner)


def different_class(world: World, f: Tensor, kind: str, k: int) -> Tensor:
    """L_un^!= of Appendix B.1, [...]: negatives of the anchor's class are left out.

    The mean is conditional on some being left.
    """
    weighted = world.rho.unsqueeze(-1) * world.D
    others = weighted.sum(-2, keepdim=True) - weighted  # [..., C, P], summed over c' != c
    # what a class's row lacks to 1 is the chance that a negative is absent
    negatives = others.clamp_min(0)[..., None, None, :]
    inner = expected_loss(_contrasts(world, f).unsqueeze(-4), negatives, k, kind)  # [..., c, x, x+]
    mean = torch.einsum("...c,...cx,...cp,...cxp->...", world.rho, world.D, world.D, inner)
    return mean / collisions(world.rho, k).partial


def collision_floor(rho: Tensor, kind: str, k: int) -> Tensor:
    """What L_un cannot fall below, since collided negatives look like positives (Eq. 26). -> [...].

    tau_k E[l_{|I+|}(0) | I+ not empty]. Hinge: tau_k. Logistic: E log2(1 + |I+|). rho: [..., C].
    """
    per_class = expected_loss(torch.zeros_like(rho).unsqueeze(-1), rho.unsqueeze(-1), k, kind)
    return (rho * per_class).sum(-1)


@dataclass(frozen=True, eq=False)
class Sides:
    """The sides of Theorem B.1 for one representation without Gen_M: left <= middle <= right.

    Each is [...] and computed when asked for. For f_hat, the minimiser of L_un over a class F:
    left(f_hat) <= middle(f_hat) <= middle(f) <= right(f) for every f in F.
    """

    world: World
    f: Tensor
    kind: str
    k: int
    constant: float  # c'

    @property
    def left(self) -> Tensor:
        """E_T[rho+_min / p_max L_sup^mu(T, f)]."""
        losses = task_losses(self.world, self.f, self.kind)
        return task_distribution(self.world.rho, self.k).lowered(losses)

    @property
    def middle(self) -> Tensor:
        """(L_un - tau_k E l_{|I+|}(0)) / (1 - tau_k), Eq. 26."""
        floor = collision_floor(self.world.rho, self.kind, self.k)
        surplus = unsupervised(self.world, self.f, self.kind, self.k) - floor
        return surplus / collisions(self.world.rho, self.k).none

    @property
    def right(self) -> Tensor:
        """alpha L_un^!= + c' beta s(f)."""
        chances = collisions(self.world.rho, self.k)
        deviation = self.constant * intraclass_deviation(self.world, self.f)
        different = different_class(self.world, self.f, self.kind, self.k)
        return chances.alpha * different + chances.beta * deviation


def theorem_b1(
    world: World, f: Tensor, kind: str, k: int, *, constant: float | None = None
) -> Sides:
    """The sides of arora2019, Theorem B.1, and Eq. 26 between them.

    constant: c'; by default sqrt 2 for the hinge and sqrt 2 / ln 2 for the logistic loss, as the
    proof of Lemma A.1 yields. ValueError for k < 1 or an unknown kind (with `constant` given, when
    a side is computed).
    """
    check_negatives(k)
    return Sides(world, f, kind, k, collision_constant(kind) if constant is None else constant)


# Blocks


def expected_block_loss(world: World, f: Tensor, kind: str, b: int, k: int = 1) -> Tensor:
    """L_un^block of arora2019, Eq. 12: positives and negatives are means of b draws from a class.

    Returns [...]. b: samples averaged; the anchor is not counted (an experiment's "blocks of size
    2" are b = 1). Enumerates the binom(P + b - 1, b) multisets of points; ValueError beyond 5000 of
    them.
    """
    counts, chance = multisets(world.D, b)  # [n, P], [..., C, n]
    scores = (f @ f.mT) @ (counts / b).mT  # [..., x, n]
    z = scores.unsqueeze(-2) - scores.unsqueeze(-1)  # [..., x, n+, n-]
    negative = (world.rho.unsqueeze(-2) @ chance).unsqueeze(-2)  # [..., 1, 1, n-]
    inner = expected_loss(z, negative, k, kind)  # [..., x, n+]
    return torch.einsum("...c,...cx,...cn,...xn->...", world.rho, world.D, chance, inner)


# Parts


def _contrasts(world: World, f: Tensor) -> Tensor:
    similarity = f @ f.mT
    return similarity.unsqueeze(-2) - similarity.unsqueeze(-1)  # [..., x, x+, x-]
