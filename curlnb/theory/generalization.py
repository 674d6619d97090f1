"""From sample losses to population losses: Gen_M of arora2019, and Section 6 of chuang2020.

arora2019: Lemma A.2. chuang2020: Lemma 4, exactly on finite worlds. Worlds and representations are
those of `finite_worlds`: rho [..., C], D [..., C, P], f [..., P, d] of any length, float64; leading
dimensions are independent worlds. A similarity is f(x).f(x') itself: unit vectors at temperature t
are rows of length 1/sqrt(t). Natural logarithms. Eq. 16 of chuang2020's arXiv source is 7 in print.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from curlnb.theory.finite_worlds import World, check_kind, finite_log

# arora2019, Lemma A.2


def loss_constants(kind: str, radius: float, k: int = 1) -> tuple[float, float]:
    """(eta, B) of arora2019, Lemma A.2: the loss's Lipschitz constant and its largest value.

    The norm is Euclidean, and differences of scores lie in [-2 R^2, 2 R^2], with R = radius. Hinge:
    eta = 1, B = 1 + 2 R^2. Logistic: eta = 1/ln 2 (the paper says 1, which holds for the natural
    logarithm), B = log2(1 + k e^{2 R^2}). ValueError for an unknown kind.
    """
    check_kind(kind)
    if kind == "hinge":
        return 1.0, 1 + 2 * radius**2
    return 1 / math.log(2), float(np.logaddexp(0, math.log(k) + 2 * radius**2)) / math.log(2)


class GeneralizationBound(NamedTuple):
    """The three terms of Gen_M; `total` is their sum."""

    complexity: float
    deviation: float
    hoeffding: float

    @property
    def total(self) -> float:
        return sum(self)


def generalization_bound(
    rademacher: float, samples: int, radius: float, kind: str, *, delta: float = 0.05, k: int = 1
) -> GeneralizationBound:
    """Gen_M of arora2019, Lemma A.2 (k = 1: Lemma 4.2), with the constants that its proof yields.

    L_un(f_hat) <= L_un(f) + complexity + deviation + hoeffding for all f, with probability at least
    1 - delta, where
    - complexity = 2 sqrt(2) sqrt(6 k) eta R R_S(F) / M: the 2 is Eq. 17's, sqrt(2) Theorem A.3's
      (vector contraction), sqrt(6 k) R the bound on the Jacobian of the scores, eta the Lipschitz
      constant of the loss (`loss_constants`);
    - deviation = 3 B sqrt(log(4/delta) / 2M): Eq. 17 at confidence delta/2, rescaled from [0, 1] to
      [0, B];
    - hoeffding = B sqrt(log(2/delta) / 2M): for the best f, at confidence delta/2 (the paper prints
      3 B, which is more than needed).

    rademacher: R_S(F) over the (k + 2) M points of S and all d coordinates, as a sum (Eq. 16).
    samples: M. radius: R. delta in (0, 1).
    """
    eta, largest = loss_constants(kind, radius, k)
    complexity = 2 * math.sqrt(2) * math.sqrt(6 * k) * eta * radius * rademacher / samples
    deviation, hoeffding = (math.sqrt(math.log(n / delta) / (2 * samples)) for n in (4, 2))
    return GeneralizationBound(complexity, 3 * largest * deviation, largest * hoeffding)


# chuang2020, Lemma 4


def negative_mean(
    world: World, f: Tensor, *, tau_plus: float | None = None, floor: float = 0.0
) -> Tensor:
    """log of the mean of e^{f(x).f(x')} over the negatives x' of an anchor x of class c.

    Returns [..., P, C]. tau_plus=None: over p_x^-, the other classes in proportion to rho. A number
    in [0, 1): the limit of Eq. 16 with this prior for every class, max{(E_p - tau+ E_{p+}) / tau-,
    floor}: the true mean where each rho_c is tau_plus, and the marginal's mean, with all its bias,
    at 0.
    """
    # [..., x, c]: log E over D_c
    by_class = torch.logsumexp((f @ f.mT).unsqueeze(-2) + finite_log(world.D).unsqueeze(-3), -1)
    log_rho = world.rho.clamp_min(1e-300).log()
    if tau_plus is None:
        own = torch.eye(world.rho.shape[-1], dtype=torch.bool, device=f.device)
        others = log_rho.unsqueeze(-2).masked_fill(own, -math.inf)  # [..., c, c']
        shares = others.log_softmax(-1).unsqueeze(-3)
        return torch.logsumexp(by_class.unsqueeze(-2) + shares, -1)
    marginal = torch.logsumexp(by_class + log_rho.unsqueeze(-2), -1, keepdim=True)
    mean = (marginal.exp() - tau_plus * by_class.exp()) / (1 - tau_plus)
    return mean.clamp_min(max(floor, 1e-300)).log()


def debiased_loss(
    world: World, f: Tensor, N: float, *, tau_plus: float | None = None, floor: float = 0.0
) -> Tensor:
    """The debiased loss of infinitely many samples, E log(1 + N g(x) e^{-f(x).f(x+)}), [...].

    g is that of `negative_mean`. With tau_plus=None it is Lemma 4's right side, and Lemma 2's limit
    of the unbiased loss. N > 0: the weight of the negatives.
    """
    g = negative_mean(world, f, tau_plus=tau_plus, floor=floor)  # [..., x, c]
    exponent = math.log(N) + g.mT.unsqueeze(-1) - (f @ f.mT).unsqueeze(-3)  # [..., c, x, x+]
    table = torch.logaddexp(exponent, torch.zeros_like(exponent))  # softplus would round above 20
    return torch.einsum("...c,...cx,...cp,...cxp->...", world.rho, world.D, world.D, table)


def mean_classifier_loss(world: World, f: Tensor, K: int) -> Tensor:
    """L_Sup^mu: softmax cross-entropy of the mean classifier over all tasks of K classes. -> [...].

    Tasks are equally likely, and so are the classes within a task. K in 2..C.
    """
    classes = range(world.D.shape[-2])
    tasks = torch.tensor([*itertools.combinations(classes, K)])
    scores = (f @ (world.D @ f).mT)[..., tasks]  # [..., x, task, K]
    losses = scores.logsumexp(-1, keepdim=True) - scores
    return (world.D.mT[..., tasks] * losses).sum((-3, -2, -1)) / tasks.numel()


def geometric(classes: int, ratio: float) -> Tensor:
    """Class probabilities [C] in geometric progression, the first `ratio` times the last.

    `datasets.long_tail` makes such sets.
    """
    shares = ratio ** (-torch.arange(classes, dtype=torch.float64) / (classes - 1))
    return shares / shares.sum()


def simplex(classes: int, similarity: float) -> tuple[World, Tensor]:
    """The collapsed world: one point per class, equally likely, mapped to a regular simplex.

    f are its C corners, with f(x).f(x) = similarity. Both of Jensen's inequalities are equalities
    here, and Lemma 4 is one at N = K - 1. Returns the world and f [C, C].
    """
    eye = torch.eye(classes, dtype=torch.float64)
    f = (eye - 1 / classes) * math.sqrt(similarity * classes / (classes - 1))
    return World(torch.full((classes,), 1 / classes, dtype=torch.float64), eye), f
