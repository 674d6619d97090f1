"""The worst-case limit of hard negative sampling on finite worlds, exactly.

Source: robinson2021, Section 4.1 and Appendix A.1. A world here has P points with probabilities p
and one label each, as in the paper: h(x) is the class of x. Everything is a function of the scaled
similarities u = s/t [..., P, P] of anchors (rows) and points (columns): s/t with unit vectors, as
in `losses`, or s/t^2 with the paper's sphere of radius 1/t, by which the paper's own steps can be
checked. Means of e^u are returned as logarithms, so that beta may be large; beta = math.inf is the
limit itself. Everything is differentiable in u.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelledWorld:
    """A finite world whose points have one label each. p: [P] probabilities > 0, of sum 1; labels:
    int [P], of two classes at least.
    """

    p: Tensor
    labels: Tensor

    @property
    def same(self) -> Tensor:
        """Whether h(x) = h(x'), bool [P, P]."""
        return self.labels[:, None] == self.labels

    @property
    def tau_plus(self) -> Tensor:
        """The probability of each point's class, [P]."""
        return (self.same * self.p).sum(1)

    @property
    def positives(self) -> Tensor:
        """p_x^+, the distribution of x+ given each x, [P, P]; the point itself is included."""
        return self.same * self.p / self.tau_plus[:, None]

    @property
    def negatives(self) -> Tensor:
        """p_x^-, the distribution of true negatives of each x, [P, P]."""
        return ~self.same * self.p / (1 - self.tau_plus)[:, None]


def uniform_world(classes: int, points: int) -> LabelledWorld:
    """`points` equally likely points in each of `classes` classes, ordered by class; float64."""
    count = classes * points
    return LabelledWorld(
        torch.full((count,), 1 / count, dtype=torch.float64),
        torch.arange(classes).repeat_interleave(points),
    )


def log_tilted_mean(u: Tensor, weights: Tensor, beta: float) -> Tensor:
    """log E e^u under the distribution proportional to e^{beta u} weights, over the last dimension.

    At beta = inf it is the maximum of u. u: [..., P, P]; weights: [P, P] >= 0, a row for each
    anchor. Returns [..., P]. With phi(beta) = log E_w e^{beta u} this is phi(beta + 1) - phi(beta),
    which grows with beta since phi is convex.
    """
    present = weights > 0
    if math.isinf(beta):
        return u.masked_fill(~present, -math.inf).amax(-1)
    log_weights = torch.where(present, weights, 1.0).log().masked_fill(~present, -math.inf)
    return ((1 + beta) * u + log_weights).logsumexp(-1) - (beta * u + log_weights).logsumexp(-1)


def hardest_mean(world: LabelledWorld, u: Tensor, beta: float) -> Tensor:
    """log E_{q_beta^-} e^u (robinson2021, Section 3.1), [..., P]; at beta = inf M(x).

    q_beta^- is the true, label-conditioned distribution.
    """
    return log_tilted_mean(u, world.negatives, beta)


def equation_4_mean(world: LabelledWorld, u: Tensor, beta: float) -> Tensor:
    """The mean (E_{q_beta} e^u - tau+ E_{q_beta^+} e^u) / tau- of robinson2021's Eq. 4, [..., P].

    It has no floor and is not a logarithm. Each anchor has the tau+ of its own class. beta is
    finite.
    """
    tau = world.tau_plus
    everywhere = log_tilted_mean(u, world.p.expand_as(world.same), beta).exp()
    own = log_tilted_mean(u, world.positives, beta).exp()
    return (everywhere - tau * own) / (1 - tau)


def game_loss(world: LabelledWorld, u: Tensor, log_mean: Tensor, Q: float = 1.0) -> Tensor:
    """L(f, q) = E_{x, x+} log(1 + Q E_q e^u / e^{u+}) (robinson2021, Eq. 3 and 5). Returns [...].

    log_mean: [..., P], log E_q e^u of each anchor, for instance `hardest_mean`; at beta = inf that
    makes it the supremum L*(f) over all q in Pi, families of distributions outside the anchor's
    class. Q > 0.
    """
    losses = torch.nn.functional.softplus(log_mean.unsqueeze(-1) + math.log(Q) - u)  # [..., x, x+]
    return (world.p * (world.positives * losses).sum(-1)).sum(-1)


def rate_bound(world: LabelledWorld, u: Tensor, beta: float) -> Tensor:
    """The bound E_x log(1/m(x)) / (1 + beta) on L*(f) - L(f, q_beta^-), derived here, [...].

    m(x): the mass under p_x^- of the hardest negatives of x. log(1 + Q e^v) is 1-Lipschitz in v;
    phi(beta + 1) - phi(beta), the slope of a convex phi with phi(0) = 0, is at least its mean slope
    phi(beta + 1) / (beta + 1); and phi(b) >= b M + log m. It holds for every f, Q and temperature,
    and uniformly in f, since m is at least the least p_x^-.
    """
    top = hardest_mean(world, u, math.inf).unsqueeze(-1)
    mass = (world.negatives * (u >= top)).sum(-1)
    return -(world.p * mass.log()).sum(-1) / (1 + beta)
