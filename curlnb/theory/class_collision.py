"""Class collision: the cost of negatives from the anchor's own class (arora2019, Section 4.2).

Lemma A.1 (Appendix A.1) bounds that cost by the spread of each class. Its proof gives one constant;
`collision_constant` also has the smallest one.
"""

import math

import torch
from torch import Tensor

from curlnb.theory.finite_worlds import World, check_kind, intraclass_deviation, loss, tau
from curlnb.theory.vector_losses import check_negatives


def collision_losses(D: Tensor, f: Tensor, kind: str, t: int = 1) -> Tensor:
    """L_un,c^=(f) of every class, exactly: x, x+ and all t negatives are drawn from D_c.

    Source: arora2019, Lemma A.1. D: [..., C, P]; f: [..., P, d]; kind: "hinge" or "logistic",
    t-way. Returns [..., C]. At least l(0) = 1, or log2(1 + t), by Jensen's inequality. Takes P^(t +
    2) evaluations of the loss. ValueError for t < 1 and an unknown kind.
    """
    check_negatives(t)
    similarity = f @ f.mT  # [..., x, P]
    # of every tuple of negatives: what the loss depends on, and how probable the tuple is
    strongest, chance = similarity, D
    joined = torch.maximum if kind == "hinge" else torch.logaddexp
    for _ in range(t - 1):  # they become [..., x, tuples] and [..., C, tuples]
        strongest = joined(strongest.unsqueeze(-1), similarity.unsqueeze(-2)).flatten(-2)
        chance = (chance.unsqueeze(-1) * D.unsqueeze(-2)).flatten(-2)
    table = loss(similarity.unsqueeze(-1) - strongest.unsqueeze(-2), kind)  # [..., x, x+, tuples]
    per_pair = torch.einsum("...xpm,...cm->...cxp", table, chance)
    return torch.einsum("...cxp,...cx,...cp->...c", per_pair, D, D)


def class_deviations(D: Tensor, f: Tensor) -> Tensor:
    """The right side of Lemma A.1 without its constant, sqrt(||Cov_{D_c} f||_2) E_{D_c} ||f||.

    D: [..., C, P]; f: [..., P, d]. Returns [..., C], one number per class; s(f) is their mean under
    nu.
    """
    alone = World(torch.ones_like(D[..., :1]), D.unsqueeze(-2))  # each class is a world
    return intraclass_deviation(alone, f.unsqueeze(-3))


def collision_constant(kind: str, t: int = 1, *, sharp: bool = False) -> float:
    """The constant c' of Lemma A.1, L_un,c^= - l(0) <= c' t sqrt(||Cov||_2) E||f||.

    With t = 1 it is also that of Lemma 4.4 and Theorem 4.5. sharp=False: sqrt(2) for the hinge loss
    and sqrt(2)/ln 2 for the logistic one, as the paper's proof gives it for every t. sharp=True:
    1/sqrt(2 t + 1) and 1/(ln 2 sqrt(2 t + 1)), derived here, which no smaller number can replace.
    Given the anchor, its similarities Y_0 (to x+), Y_1, ..., Y_t are independent and identically
    distributed, and the cost is at most E max_i Y_i - E Y_0, which for n = t + 1 variables is at
    most (n - 1)/sqrt(2 n - 1) standard deviations (Hartley and David 1954; Gumbel 1954). ValueError
    for an unknown kind.
    """
    check_kind(kind)
    constant = 1 / math.sqrt(2 * t + 1) if sharp else math.sqrt(2)
    return constant if kind == "hinge" else constant / math.log(2)


def collision_ratio(world: World, f: Tensor, kind: str, t: int = 1) -> Tensor:
    """The least c' that Lemma A.1, averaged over nu, allows for this f: its left side over t s(f).

    Returns [...]; nan where s(f) is below 1e-9.
    """
    nu = world.rho.square() / tau(world.rho).unsqueeze(-1)
    least = 1.0 if kind == "hinge" else math.log2(1 + t)
    cost = (nu * collision_losses(world.D, f, kind, t)).sum(-1) - least
    deviation = intraclass_deviation(world, f)
    return cost / (t * torch.where(deviation < 1e-9, math.nan, deviation))


def deviation_weight(rho: Tensor, constant: float | Tensor) -> Tensor:
    """c' tau / (1 - tau), the weight beta of s(f) in Theorem 4.5. rho: [..., C] -> [...].

    Without Gen_M the theorem's right side is L_un^!=(f) + beta s(f), for any f against the
    minimiser of L_un.
    """
    return constant * tau(rho) / (1 - tau(rho))
