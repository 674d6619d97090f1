"""From sample losses to population losses: Gen_M of arora2019, and Section 6 of chuang2020.

arora2019: Lemma A.2. chuang2020: Lemma 4, exactly on finite worlds, and the terms of Theorem 5.
Worlds and representations are those of `finite_worlds`: rho [..., C], D [..., C, P], f [..., P, d]
of any length, float64; leading dimensions are independent worlds. A similarity is f(x).f(x')
itself: unit vectors at temperature t are rows of length 1/sqrt(t). Natural logarithms. Equations of
chuang2020 bear their numbers in the arXiv source: 16, 21, 24, 25, 26 and 28 are 7, 8, 10, 11, 12
and 13 in print.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from curlnb.losses import debiased
from curlnb.theory.finite_worlds import World, best_softmax, check_kind, check_representation

_NEVER = -1e30  # the logarithm of 0, as a number that has a gradient


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
    samples: M. radius: R. delta in (0, 1), else ValueError.
    """
    eta, largest = loss_constants(kind, radius, k)
    complexity = 2 * math.sqrt(2) * math.sqrt(6 * k) * eta * radius * rademacher / samples
    return GeneralizationBound(complexity, *(largest * each for each in _tails(samples, delta)))


def _tails(samples: int, delta: float) -> tuple[float, float]:
    """3 sqrt(log(4/delta) / 2M) and sqrt(log(2/delta) / 2M)."""
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: it must lie between 0 and 1")
    deviation, hoeffding = (math.sqrt(math.log(n / delta) / (2 * samples)) for n in (4, 2))
    return 3 * deviation, hoeffding


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
    check_representation(world, f)
    log_D = torch.where(world.D > 0, torch.where(world.D > 0, world.D, 1.0).log(), _NEVER)
    # [..., x, c]: log E over D_c
    by_class = torch.logsumexp((f @ f.mT).unsqueeze(-2) + log_D.unsqueeze(-3), -1)
    log_rho = world.rho.clamp_min(1e-300).log()
    if tau_plus is None:
        classes = world.rho.shape[-1]
        own = torch.eye(classes, dtype=torch.bool, device=f.device)
        # [..., c, c']
        others = torch.where(own, _NEVER, log_rho.unsqueeze(-2).expand(*world.rho.shape, classes))
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


def _tasks(classes: int, K: int) -> Tensor:
    if not 2 <= K <= classes:
        raise ValueError(f"K is {K}: a task has from 2 to all {classes} classes")
    return torch.tensor(list(itertools.combinations(range(classes), K)))


def mean_classifier_loss(world: World, f: Tensor, K: int) -> Tensor:
    """L_Sup^mu: softmax cross-entropy of the mean classifier over all tasks of K classes. -> [...].

    Tasks are equally likely, and so are the classes within a task. ValueError for K outside
    2..C.
    """
    check_representation(world, f)
    tasks = _tasks(world.D.shape[-2], K).to(f.device)
    scores = (f @ (world.D @ f).mT)[..., tasks]  # [..., x, task, K]
    losses = scores.logsumexp(-1, keepdim=True) - scores
    return (world.D.mT[..., tasks] * losses).sum((-3, -2, -1)) / tasks.numel()


def softmax_classifier_loss(world: World, f: Tensor, K: int) -> float:
    """L_Sup (Eq. 24 and 25): the softmax cross-entropy of the best W of each task, for one world.

    L-BFGS finds W and stays above the infimum by about 1e-6. Errors as `mean_classifier_loss`.
    """
    check_representation(world, f)
    points, D = f.detach().cpu().double().numpy(), world.D.detach().cpu().double().numpy()
    tasks = _tasks(len(D), K).numpy()
    return float(np.mean([best_softmax(points, D[task] / K) for task in tasks]))


def lemma4_factor(rho: Tensor, N: float, K: int) -> float:
    """The factor r in L_Sup^mu <= r L~_Debiased^N for all D and f, derived here.

    Lemma 4 is the case r = 1: equal rho and N >= K - 1. rho: [C]. With A the mean over p_x^- of
    e^{f(x).(mu_c' - mu_c)}, Jensen gives L~ >= sum_c rho_c E log(1 + N A). The mean classifier's
    loss is at most the mean over c of E log(1 + (K - 1) A'), with A' the same mean over equally
    likely classes. Now A' <= k_c A for k_c = max_{c' != c} (1 - rho_c) / ((C - 1) rho_c'), log(1 +
    a s) <= max(1, a) log(1 + s), and 1/C = rho_c / (C rho_c). Hence r = max_c max{1, k_c (K - 1)/N}
    / (C rho_c).
    """
    classes = len(rho)
    own = torch.eye(classes, dtype=torch.bool, device=rho.device)
    least = torch.where(own, math.inf, rho).amin(-1)  # [C], of the other classes
    k = (1 - rho) / ((classes - 1) * least)
    return float(((k * (K - 1) / N).clamp_min(1) / (classes * rho)).max())


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


# chuang2020, Theorem 5


class Terms(NamedTuple):
    """What Theorem 5 adds to the empirical debiased loss, in nats.

    negatives, positives: for too few negatives and positives; complexity, deviation: for too few
    data.
    """

    negatives: float
    positives: float
    complexity: float
    deviation: float

    @property
    def total(self) -> float:
        return sum(self)


def printed_B(N: int, tau_plus: float) -> float:
    """B = log N (1/tau- + tau+) of Theorem 5: 0 at N = 1."""
    return math.log(N) * (1 / (1 - tau_plus) + tau_plus)


def printed_terms(
    N: int, M: int, T: int, tau_plus: float, rademacher: float, *, delta: float = 0.05
) -> Terms:
    """The four quantities inside the O() of Theorem 5, without their factors.

    The paper does not state the factors, so the sum bounds nothing. lambda = sqrt((M/N + 1)/tau-^2
    + tau+^2 (N/M + 1)) is sqrt((N + M) (1/(N tau-^2) + tau+^2/M)). rademacher: R_S(F), over the (N
    + M + 2) T points and all coordinates, as a sum (Eq. 26).
    """
    deviation = printed_B(N, tau_plus) * math.sqrt(math.log(1 / delta) / T)
    lambda_ = math.sqrt((M / N + 1) / (1 - tau_plus) ** 2 + tau_plus**2 * (N / M + 1))
    complexity = lambda_ * rademacher / T
    negatives = 1 / ((1 - tau_plus) * math.sqrt(N))
    positives = tau_plus / ((1 - tau_plus) * math.sqrt(M))
    return Terms(negatives, positives, complexity, deviation)


def loss_range(N: int, tau_plus: float, temperature: float) -> tuple[float, float]:
    """The smallest and largest loss of one sample (Eq. 16 and 21, unit vectors), both attained.

    B should be their difference. The smallest has s+ = 1 and g on its floor; the largest s+ = -1, s
    = 1 for all unlabelled samples and -1 for all v.
    """
    high = (math.exp(2 / temperature) - tau_plus) / (1 - tau_plus)
    return math.log1p(N * math.exp(-2 / temperature)), math.log1p(N * high)


def lipschitz(N: int, M: int, tau_plus: float, temperature: float) -> float:
    """A Lipschitz constant of one sample's loss in all N + M + 2 embeddings jointly, derived here.

    The norm is Euclidean, on the unit ball. With D = e^{s+/t} + N g >= (N + 1) e^{-1/t}, the
    derivatives in s+, s_i and s_j, times t, are w = N g/D <= 1, a_i = e^{s_i/t}/(tau- D) and b_j =
    tau+ N e^{s_j/t}/(tau- M D), the last two 0 on the floor. So sum b <= beta = (tau+/tau-)
    e^{2/t}, sum a = w + sum b, each a_i <= alpha = e^{2/t}/(tau- (N + 1)), each b_j <= beta/M. The
    anchor's own gradient is at most the sum of their sizes, 2 + 2 beta; the others' together at
    most the root of their squares, 1 + (1 + beta) min(alpha, 1 + beta) + beta^2/M.
    """
    beta = tau_plus / (1 - tau_plus) * math.exp(2 / temperature)
    alpha = min(math.exp(2 / temperature) / ((1 - tau_plus) * (N + 1)), 1 + beta)
    return math.sqrt((2 + 2 * beta) ** 2 + 1 + (1 + beta) * alpha + beta**2 / M) / temperature


def derived_terms(
    N: int,
    M: int,
    T: int,
    tau_plus: float,
    temperature: float,
    rademacher: float,
    *,
    delta: float = 0.05,
) -> Terms:
    """Theorem 5 with constants, derived here: L_Sup(f^) <= L_Debiased^{N,M}(f) + the total.

    For all f, with probability 1 - delta; for equal classes, N >= K - 1, unit vectors and
    temperature t. The proof: Lemma 4; Theorem 3 with `debiasing.theorem3_bound`'s constant (e^{2/t}
    - 1)/2; then as in arora2019, Lemma A.2 (`generalization_bound`): 2 sqrt(2) L R_S/T by vector
    contraction, L of `lipschitz`, and (3 sqrt(log(4/delta)/2T) + sqrt(log(2/delta)/2T)) times the
    range of the loss. ValueError for delta outside (0, 1).
    """
    factor = math.expm1(2 / temperature) / (2 * (1 - tau_plus))
    low, high = loss_range(N, tau_plus, temperature)
    deviation = (high - low) * sum(_tails(T, delta))
    complexity = 2 * math.sqrt(2) * lipschitz(N, M, tau_plus, temperature) * rademacher / T
    return Terms(factor / math.sqrt(N), factor * tau_plus / math.sqrt(M), complexity, deviation)


def linear_rademacher(N: int, M: int, T: int, dim: int) -> float:
    """The bound sqrt(d (N + M + 2) T) on R_S(F) for linear maps into R^dim (Jensen).

    F are those of Frobenius norm at most 1, on inputs in the unit ball.
    """
    return math.sqrt(dim * (N + M + 2) * T)


def tuple_loss(
    x: Tensor, positive: Tensor, u: Tensor, v: Tensor, *, tau_plus: float, temperature: float
) -> Tensor:
    """The loss of one sample of Theorem 5's S (Eq. 16 and 21), from its embedded points.

    x, positive: [n, d]; u: [n, N, d]; v: [n, M, d]; unit vectors. Returns [n].
    """
    s_pos = (x * positive).sum(-1)
    s_u, s_v = ((x.unsqueeze(-2) * other).sum(-1) for other in (u, v))
    return debiased(s_pos, s_u, extra_pos=s_v, tau_plus=tau_plus, temperature=temperature)
