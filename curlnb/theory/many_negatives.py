"""Many negatives and blocks on finite worlds: the quantities of arora2019, Section 6 and Appendices
B and C, computed exactly.

With k negatives an expectation runs over k + 1 classes and k + 2 points. Enumerating them takes
C^(k+1) P^(k+2) terms; here the k negatives, independent given the anchor, are integrated out at
once (`expected_loss`), so that k = 50 costs no more than k = 2, and the set of classes that they
cover is built up one draw after another (`task_distribution`), in 2^C states.

Leading batch dimensions are worlds of their own, as in `theory`: rho [..., C], D [..., C, P], f
[..., P, d]. All of it is differentiable.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from curlnb.theory.class_collision import collision_constant
from curlnb.theory.finite_worlds import (
    World,
    check_kind,
    check_representation,
    intraclass_deviation,
)

_STEP, _TAIL, _FEW_OUTCOMES, _MOST_BLOCKS, _MOST_CLASSES = 0.3, 34.0, 100, 5000, 12


# Losses of several differences of scores


def vector_loss(z: Tensor, kind: str) -> Tensor:
    """The loss of several differences of scores, v = -z (arora2019, Section 2): max(0, 1 + max_i
    z_i) or log2(1 + sum_i e^z_i).

    z: [..., n], score of a wrong class (or a negative) minus score of the right one; -inf where
    absent. Returns [...]; 0 if all are absent.
    """
    check_kind(kind)
    if kind == "hinge":
        return (1 + z.amax(-1)).clamp_min(0)
    return torch.cat([torch.zeros_like(z[..., :1]), z], -1).logsumexp(-1) / math.log(2)


def expected_loss(z: Tensor, p: Tensor, k: int, kind: str) -> Tensor:
    """E l(-z_1, ..., -z_k) over k independent draws from a finite distribution, for any k at the
    price of one.

    z: [..., n] values; p: [..., n] their probabilities. What p lacks to 1 is the chance that a draw
    is absent; with all k absent the loss is 0. The shapes are broadcast. Returns [...].
    Hinge: the largest of k draws has distribution function F^k. Logistic: where the k draws have
    few outcomes, a sum over them; else ln(1 + a) is the integral of (1 - e^(-at)) e^-t dt/t, in
    which the draws factorise; in ln t the trapezoidal rule with step 0.3 is exact to about 1e-14.
    """
    check_kind(kind)
    _positive(k)
    if k == 1:
        return (p * vector_loss(z.unsqueeze(-1), kind)).sum(-1)
    if kind == "hinge":
        z, p = torch.broadcast_tensors(z, p)
        z, order = z.sort(-1)
        p = p.gather(-1, order)
        distribution = (1 - p.sum(-1, keepdim=True)).clamp_min(0) + p.cumsum(-1)
        weights = distribution**k - (distribution - p).clamp_min(0) ** k
        return (weights * (1 + z).clamp_min(0)).sum(-1)
    if math.comb(z.shape[-1] + k, k) <= _FEW_OUTCOMES:
        return _summed_logistic(z, p, k)
    lowest = -_TAIL - math.log(k) - max(0.0, float(z.detach().max()))
    u = torch.arange(lowest, math.log(_TAIL) + _STEP, _STEP, dtype=z.dtype, device=z.device)  # ln t
    # [..., nodes, n], beyond e^6 it is 1
    absorbed = -torch.expm1(-(u.unsqueeze(-1) + z.unsqueeze(-2)).clamp_max(6).exp())
    missing = (p.unsqueeze(-2) * absorbed).sum(-1)  # 1 - E e^(-at), [..., nodes]
    return ((1 - (1 - missing) ** k) * torch.exp(-u.exp())).sum(-1) * (_STEP / math.log(2))


def _summed_logistic(z: Tensor, p: Tensor, k: int) -> Tensor:
    """E log2(1 + sum_i e^z_i) as a sum over the multisets of k draws, absent ones among them. z, p:
    as in `expected_loss`.
    """
    counts = _multisets(z.shape[-1] + 1, k).to(z)  # [m, n + 1], the last for absent draws
    ways = torch.exp(math.lgamma(k + 1) - torch.lgamma(counts + 1).sum(-1))
    chances = torch.cat([p, (1 - p.sum(-1, keepdim=True)).clamp_min(0)], -1)
    # [..., m], log 0 where a value was not drawn
    losses = vector_loss(z.unsqueeze(-2) + counts[:, :-1].log(), "logistic")
    return (ways * (chances.unsqueeze(-2) ** counts).prod(-1) * losses).sum(-1)


# Collisions and tasks


class Collisions(NamedTuple):
    """Chances of class collision among c+, c-_1, ..., c-_k, all independent of distribution rho;
    each [...].
    """

    none: Tensor  # I+ is empty: 1 - tau_k
    partial: Tensor  # |I+| < k: 1 - tau'
    tau: Tensor  # tau_1
    rho: Tensor
    k: int

    @property
    def distinct(self) -> Tensor:
        """All k + 1 classes differ, the p of the remark in Section 6.1: (k + 1)! e_{k+1}(rho), e an
        elementary symmetric sum.
        """
        # m! e_m of the classes so far
        symmetric = [torch.ones_like(self.tau)] + [
            torch.zeros_like(self.tau) for _ in range(self.k + 1)
        ]
        for r in self.rho.unbind(-1):
            symmetric = [symmetric[0]] + [
                symmetric[m] + m * r * symmetric[m - 1] for m in range(1, self.k + 2)
            ]
        return symmetric[-1]

    @property
    def tau_k(self) -> Tensor:
        return 1 - self.none

    @property
    def tau_all(self) -> Tensor:
        """tau', the chance that every negative is of the anchor's class."""
        return 1 - self.partial

    @property
    def alpha(self) -> Tensor:
        return self.partial / self.none

    @property
    def beta(self) -> Tensor:
        return self.k * self.tau / self.none

    @property
    def eta(self) -> Tensor:
        return 1 / self.none


def collisions(rho: Tensor, k: int) -> Collisions:
    """tau_k, tau' and p in closed form, and with them alpha, beta, eta of arora2019, Theorem B.1
    and Lemma B.2. rho: [..., C].

    1 - tau_k = sum_c rho_c (1 - rho_c)^k, 1 - tau' = sum_c rho_c (1 - rho_c^k); for p see
    `Collisions.distinct`.
    """
    _positive(k)
    none, partial = (rho * (1 - rho) ** k).sum(-1), (rho * (1 - rho**k)).sum(-1)
    return Collisions(none, partial, rho.square().sum(-1), rho, k)


@dataclass(frozen=True)
class TaskDistribution:
    """Sets Q of the distinct classes among c+, c-_1, ..., c-_k (arora2019, Section 6.1), one for
    each of the 2^C subsets of classes.

    members: bool [2^C, C]. joint: [..., 2^C, C], the chance of Q = T, c+ = c and the condition (I+
    empty, or |I+| < k).
    """

    members: Tensor
    joint: Tensor

    @property
    def size(self) -> Tensor:
        """|T|, [2^C]."""
        return self.members.sum(-1)

    @property
    def probability(self) -> Tensor:
        """The distribution over tasks, script D (or D'), [..., 2^C]."""
        return self.joint.sum(-1) / self.joint.sum((-2, -1)).unsqueeze(-1)

    @property
    def anchor(self) -> Tensor:
        """rho+(T) (or rho'+(T)): the distribution of c+ given T and the condition, [..., 2^C, C];
        nan for a T that cannot occur.
        """
        return self.joint / self.joint.sum(-1, keepdim=True)

    def uniform(self) -> Tensor:
        """Uniform D_T, [2^C, C]; 0 for the empty set."""
        return self.members.to(self.joint) / self.size.clamp_min(1).unsqueeze(-1)

    def mean(self, losses: Tensor, D_T: Tensor | None = None) -> Tensor:
        """Script L_sup of Section 6.1: E_T sum_c D_T(c) losses(T, c). losses: [..., 2^C, C] from
        `task_losses`. D_T: by default uniform.
        """
        return (self.probability * _average(losses, self.uniform() if D_T is None else D_T)).sum(-1)

    def distinct(self, losses: Tensor, D_T: Tensor | None = None, *, k: int) -> Tensor:
        """L_sup of Definition 2.2: the mean over tasks of k + 1 distinct classes."""
        weights = self.joint.sum(-1) * (self.size == k + 1)
        return (weights * _average(losses, self.uniform() if D_T is None else D_T)).sum(
            -1
        ) / weights.sum(-1)

    def lowered(self, losses: Tensor, D_T: Tensor | None = None) -> Tensor:
        """E_T[rho+_min(T) / p_max(T) sum_c D_T(c) losses(T, c)]: the left side of Theorem B.1.
        Uniform D_T makes it largest.
        """
        D_T = self.uniform() if D_T is None else D_T
        # without the empty set
        least = torch.where(self.members, self.joint, math.inf).amin(-1)[..., 1:]
        return (least / D_T.amax(-1)[..., 1:] * _average(losses, D_T)[..., 1:]).sum(
            -1
        ) / self.joint.sum((-2, -1))

    def raised(self, losses: Tensor, D_T: Tensor | None = None) -> Tensor:
        """E_T[rho'+_max(T) / p_min(T) sum_c D_T(c) losses(T, c)]: the right side of Eq. 37,
        gamma(f) aside.
        """
        D_T = self.uniform() if D_T is None else D_T
        smallest = torch.where(self.members, D_T, math.inf).amin(-1)
        return (self.joint.amax(-1) / smallest * _average(losses, D_T)).sum(-1) / self.joint.sum(
            (-2, -1)
        )


def task_distribution(rho: Tensor, k: int, *, partial: bool = False) -> TaskDistribution:
    """The distribution over tasks of arora2019, Section 6.1 (I+ empty), or D' of Appendix B.2
    (partial: |I+| < k). rho: [..., C], C <= 12.

    The chance that k draws cover exactly the set S comes from adding a draw at a time: no signs
    alternate, so no digits cancel.
    """
    _positive(k)
    classes = rho.shape[-1]
    if not 2 <= classes <= _MOST_CLASSES:
        raise ValueError(
            f"this world has {classes} classes: tasks are enumerated over 2 to {_MOST_CLASSES} "
            "classes, 2^C sets"
        )
    sets = torch.arange(2**classes, device=rho.device)
    single = 2 ** torch.arange(classes, device=rho.device)
    members = sets.unsqueeze(-1) & single > 0
    grown = (sets.unsqueeze(-1) | single).flatten()  # [2^C C]: the set after one more draw
    cover = torch.zeros(*rho.shape[:-1], len(sets), dtype=rho.dtype, device=rho.device)
    cover[..., 0] = 1
    for _ in range(k):
        drawn = (cover.unsqueeze(-1) * rho.unsqueeze(-2)).flatten(-2)
        cover = torch.zeros_like(cover).index_add(-1, grown, drawn)
    # [..., 2^C, C], the chance that the negatives cover T without c
    others = cover[..., sets.unsqueeze(-1) & ~single]
    joint = others + cover.unsqueeze(-1) if partial else others
    proper = members & (members.sum(-1, keepdim=True) >= 2)
    return TaskDistribution(members, rho.unsqueeze(-2) * joint * proper)


def task_losses(world: World, f: Tensor, kind: str, margin: float | Tensor = 1.0) -> Tensor:
    """E_{x ~ D_c} l({f(x).(mu_c - mu_c') / margin}_{c' in T, c' != c}), [..., 2^C, C]: the mean
    classifier's loss on class c of task T.

    margin: the gamma of l_gamma (Appendix B.2), a number or [...]. 0 where c is not in T, and where
    T is a single class.
    """
    classes = world.rho.shape[-1]
    scores = f @ (world.D @ f).mT  # [..., P, C]
    z = scores.unsqueeze(-2) - scores.unsqueeze(-1)  # [..., P, c, c']
    if isinstance(margin, Tensor):
        margin = margin[..., None, None, None]
    members = (
        torch.arange(2**classes, device=f.device).unsqueeze(-1)
        & 2 ** torch.arange(classes, device=f.device)
        > 0
    )
    # [2^C, c, c']
    rivals = (
        members.unsqueeze(-1)
        & members.unsqueeze(-2)
        & ~torch.eye(classes, dtype=torch.bool, device=f.device)
    )
    # [..., 2^C, P, c]
    values = vector_loss(
        torch.where(rivals.unsqueeze(1), (z / margin).unsqueeze(-4), -math.inf), kind
    )
    return torch.einsum("...txc,...cx->...tc", values, world.D)


# Contrastive losses


def unsupervised(world: World, f: Tensor, kind: str, k: int) -> Tensor:
    """L_un with k negatives (arora2019, Definition 2.3), [...]."""
    marginal = (world.rho.unsqueeze(-2) @ world.D).squeeze(-2)  # [..., P]
    # [..., x, x+]
    inner = expected_loss(_contrasts(world, f), marginal[..., None, None, :], k, kind)
    return torch.einsum("...c,...cx,...cp,...xp->...", world.rho, world.D, world.D, inner)


def different_class(world: World, f: Tensor, kind: str, k: int) -> Tensor:
    """L_un^!= of Appendix B.1: negatives of the anchor's class are removed, given that some remain,
    [...].
    """
    weighted = world.rho.unsqueeze(-1) * world.D
    # [..., C, P], rho_c' D_c' summed over c' != c
    others = weighted.sum(-2, keepdim=True) - weighted
    return _by_anchor(world, f, kind, k, others.clamp_min(0)) / collisions(world.rho, k).partial


def same_class(world: World, f: Tensor, kind: str, k: int) -> Tensor:
    """tau_k E[l({..}_{i in I+}) | I+ not empty]: the loss of the collided negatives alone (second
    term of Eq. 31), [...].
    """
    return _by_anchor(world, f, kind, k, world.rho.unsqueeze(-1) * world.D)


def collision_floor(rho: Tensor, kind: str, k: int) -> Tensor:
    """tau_k E[l_{|I+|}(0) | I+ not empty] (Eq. 26): what L_un cannot fall below, since collided
    negatives look like positives.

    Hinge: tau_k. Logistic: E log2(1 + |I+|). rho: [..., C]. Returns [...].
    """
    per_class = expected_loss(torch.zeros_like(rho).unsqueeze(-1), rho.unsqueeze(-1), k, kind)
    return (rho * per_class).sum(-1)


@dataclass(frozen=True, eq=False)
class Sides:
    """Theorem B.1 for one representation without Gen_M: left <= middle <= right, each [...],
    computed when it is asked for.

    For f_hat, the minimiser of L_un over a class F: left(f_hat) <= middle(f_hat) <= middle(f) <=
    right(f) for every f in F.
    """

    world: World
    f: Tensor
    kind: str
    k: int
    D_T: Tensor | None
    constant: float  # c'

    @functools.cached_property
    def left(self) -> Tensor:
        """E_T[rho+_min / p_max L_sup^mu(T, f)]."""
        return task_distribution(self.world.rho, self.k).lowered(
            task_losses(self.world, self.f, self.kind), self.D_T
        )

    @functools.cached_property
    def middle(self) -> Tensor:
        """(L_un - tau_k E l_{|I+|}(0)) / (1 - tau_k), Eq. 26."""
        floor = collision_floor(self.world.rho, self.kind, self.k)
        return (unsupervised(self.world, self.f, self.kind, self.k) - floor) / collisions(
            self.world.rho, self.k
        ).none

    @functools.cached_property
    def right(self) -> Tensor:
        """alpha L_un^!= + c' beta s(f)."""
        chances, deviation = (
            collisions(self.world.rho, self.k),
            self.constant * intraclass_deviation(self.world, self.f),
        )
        return (
            chances.alpha * different_class(self.world, self.f, self.kind, self.k)
            + chances.beta * deviation
        )


def theorem_b1(
    world: World,
    f: Tensor,
    kind: str,
    k: int,
    *,
    D_T: Tensor | None = None,
    constant: float | None = None,
) -> Sides:
    """The sides of arora2019, Theorem B.1, and Eq. 26 between them.

    D_T: [2^C, C] distribution within each task, by default uniform, for which the left side is
    largest. constant: c'; by default sqrt 2 for the hinge and sqrt 2 / ln 2 for the logistic loss,
    as the proof of Lemma A.1 yields.
    """
    check_kind(kind)
    _positive(k)
    check_representation(world, f)
    return Sides(world, f, kind, k, D_T, collision_constant(kind) if constant is None else constant)


# Blocks


def expected_block_loss(world: World, f: Tensor, kind: str, b: int, k: int = 1) -> Tensor:
    """L_un^block of arora2019, Eq. 12: the positive and each of k negatives is the mean of b draws
    from one class, [...].

    b: samples averaged; the anchor is not counted (an experiment's "blocks of size 2" are b = 1).
    Enumerates the binom(P + b - 1, b) multisets of points; ValueError beyond 5000 of them.
    """
    counts = _multisets(world.D.shape[-1], b).to(world.D)  # [n, P]
    ways = torch.exp(math.lgamma(b + 1) - torch.lgamma(counts + 1).sum(-1))
    chance = ways * (world.D.unsqueeze(-2) ** counts).prod(-1)  # [..., C, n]
    scores = (f @ f.mT) @ (counts / b).mT  # [..., x, n]
    z = scores.unsqueeze(-2) - scores.unsqueeze(-1)  # [..., x, n+, n-]
    negative = (world.rho.unsqueeze(-2) @ chance).squeeze(-2)[..., None, None, :]
    inner = expected_loss(z, negative, k, kind)  # [..., x, n+]
    return torch.einsum("...c,...cx,...cn,...xn->...", world.rho, world.D, chance, inner)


# Parts


def _contrasts(world: World, f: Tensor) -> Tensor:
    check_representation(world, f)
    similarity = f @ f.mT
    return similarity.unsqueeze(-2) - similarity.unsqueeze(-1)  # [..., x, x+, x-]


def _by_anchor(world: World, f: Tensor, kind: str, k: int, negatives: Tensor) -> Tensor:
    """E over c+, x, x+ and k negatives whose distribution, [..., C, P] with the rest absent,
    depends on the class c+.
    """
    # [..., c, x, x+]
    inner = expected_loss(
        _contrasts(world, f).unsqueeze(-4), negatives[..., :, None, None, :], k, kind
    )
    return torch.einsum("...c,...cx,...cp,...cxp->...", world.rho, world.D, world.D, inner)


def _average(losses: Tensor, D_T: Tensor) -> Tensor:
    return (D_T * losses).sum(-1)


def _multisets(points: int, size: int) -> Tensor:
    """Every way to draw `size` points with repetition and without order, as counts [n, points]."""
    if size < 1 or math.comb(points + size - 1, size) > _MOST_BLOCKS:
        raise ValueError(
            f"b = {size} on {points} points: use b >= 1 with at most {_MOST_BLOCKS} multisets, "
            "binom(P + b - 1, b)"
        )
    chosen = torch.tensor(list(combinations_with_replacement(range(points), size)))
    return torch.zeros(len(chosen), points).scatter_add(1, chosen, torch.ones(chosen.shape))


def _positive(k: int) -> None:
    if k < 1:
        raise ValueError(f"k is {k}: use at least one negative")
