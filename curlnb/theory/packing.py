"""Optimal embeddings against worst-case negatives, and what they guarantee (robinson2021).

Source: Section 4.2 and Appendices A.2, A.3. Eq. 7 places a vector for each class on a sphere so
that the mean squared distance to the nearest other class is as large as possible. Tammes' problem
makes the *least* distance as large as possible. `maximise` solves both by sequential quadratic
programming from random starts; `descend` never sees either: it minimises the loss L*_inf over free
embeddings.

Unit vectors throughout: with the paper's radius 1/t, squared distances are 1/t^2 times these.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import normalize

from curlnb.theory.worst_case import LabelledWorld, hardest_mean

# Largest least angle between C points on S^2, degrees. C = 3 to 9 and 12: Schuette and van der
# Waerden 1951; 10, 11: Danzer 1986. 2, 3, 4, 6, 9 and 12 are elementary; 8 is the square antiprism,
# cos = (sqrt 8 - 1)/7; all as in Sloane's tables of packings.
TAMMES_ANGLES = {
    2: 180.0,
    3: 120.0,
    4: math.degrees(math.acos(-1 / 3)),
    5: 90.0,
    6: 90.0,
    7: 77.8695421,
    8: math.degrees(math.acos((math.sqrt(8) - 1) / 7)),
    9: math.degrees(math.acos(1 / 3)),
    10: 66.1468220,
    11: math.degrees(math.acos(1 / math.sqrt(5))),
    12: math.degrees(math.acos(1 / math.sqrt(5))),
}


def tammes_distance(classes: int) -> float:
    """The known largest least distance between that many points on S^2, for 2 to 12 of them."""
    return 2 * math.sin(math.radians(TAMMES_ANGLES[classes]) / 2)


def nearest_squared(v: Tensor) -> Tensor:
    """The squared distance to the nearest other class, min_{c' != c} ||v_c - v_c'||^2, for each c.

    v: [..., C >= 2, d] unit vectors. Returns [..., C].
    """
    own = torch.eye(v.shape[-2], dtype=torch.bool, device=v.device)
    return (2 - 2 * (v @ v.mT).masked_fill(own, -1).amax(-1)).clamp_min(0)


class Packing(NamedTuple):
    """A solution of `maximise`: vectors [C, d], and the value of the objective."""

    vectors: Tensor
    value: float


def maximise(
    rho: Tensor, d: int, *, starts: int, generator: torch.Generator, least: bool = False
) -> Packing:
    """Eq. 7, max sum_c rho(c) min_{c' != c} ||v_c - v_c'||^2 over unit vectors; or Tammes' problem.

    least: True for Tammes' max min ||v_c - v_c'||^2. rho: [C]. Sequential quadratic programming on
    v and the radii r_c <= ||v_c - v_c'||^2, which makes the minimum smooth, from `starts` random
    starts (half of them with two classes on one place: where merging pays, it is a kink that a
    random start rarely meets). Local optima abound: the solution is a lower bound.
    """
    C = len(rho)
    weights, n = rho.double().numpy(), C * d
    anchor, other = np.nonzero(~np.eye(C, dtype=bool))
    eye, each = np.eye(C), np.arange(C)
    # with `least` there is one radius, the first
    bounded = 0 * anchor if least else anchor
    cost = np.concatenate([np.zeros(n), -eye[0] if least else -weights])

    def radii(v: np.ndarray) -> np.ndarray:
        return (2 - 2 * (v @ v.T - 3 * eye).max(1)).clip(0)

    def vectors(z: np.ndarray) -> np.ndarray:
        return z[:n].reshape(C, d)

    def slack(z: np.ndarray) -> np.ndarray:
        v = vectors(z)
        return 2 - 2 * (v[anchor] * v[other]).sum(1) - z[n:][bounded]

    def products(z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The gradient by all vectors, [m, n], of the inner products of m pairs of them."""
        v = vectors(z)[:, None]
        return (eye[a, :, None] * v[b] + eye[b, :, None] * v[a]).reshape(-1, n)

    constraints = [
        {
            "type": "ineq",
            "fun": slack,
            "jac": lambda z: np.hstack([-2 * products(z, anchor, other), -eye[bounded]]),
        },
        {
            "type": "eq",
            "fun": lambda z: (vectors(z) ** 2).sum(1) - 1,
            "jac": lambda z: np.hstack([products(z, each, each), 0 * eye]),
        },
    ]
    packings = []
    for start in range(starts):
        v = normalize(torch.randn(C, d, generator=generator, dtype=torch.float64), dim=1).numpy()
        if start % 2 and C > 2 and not least:
            v[weights.argmin()] = v[weights.argsort()[1]]
        begin = np.concatenate([v.ravel(), radii(v)])
        if least:
            begin[n:] = begin[n:].min()
        found = minimize(
            lambda z: cost @ z,
            begin,
            jac=lambda z: cost,
            constraints=constraints,
            method="SLSQP",
            options={"maxiter": 400, "ftol": 1e-13},
        )
        v = vectors(found.x)
        v = v / np.linalg.norm(v, axis=1, keepdims=True)
        # feasible: measured again on the sphere
        value = float(radii(v).min() if least else weights @ radii(v))
        packings.append(Packing(torch.from_numpy(v), value))
    return max(packings, key=lambda each: np.nan_to_num(each.value, nan=-math.inf))


def worst_loss(world: LabelledWorld, f: Tensor, *, beta: float = math.inf) -> Tensor:
    """L_inf(f, q_beta^-) = -E s+ + E log E_{q_beta^-} e^s, Eq. 6 at t = 1. Returns [...].

    At beta = inf it is L*_inf(f). f: [..., P, d] unit vectors.
    """
    u = f @ f.mT
    return (world.p * (hardest_mean(world, u, beta) - (world.positives * u).sum(-1))).sum(-1)


def alignment(world: LabelledWorld, f: Tensor) -> Tensor:
    """L_align = E ||f(x) - f(x+)||^2 / 2 (Appendix A.2), [...]."""
    return 1 - (world.p * (world.positives * (f @ f.mT)).sum(-1)).sum(-1)


def descend(
    world: LabelledWorld, d: int, *, starts: int, steps: int, generator: torch.Generator
) -> Tensor:
    """Minimise L*_inf over free embeddings of the points (t = 1) by Adam, `starts` at once.

    Returns f [starts, P, d], best first. The hardest negative is a kink; Proposition 3 smooths it:
    beta grows geometrically from 3 to 30,000 while the step shrinks.
    """
    shape = (starts, len(world.p), d)
    z = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.1, betas=(0.8, 0.98))
    for step in range(steps):
        done = step / max(1, steps - 1)
        optimiser.param_groups[0]["lr"] = 0.1 * 10 ** (-4.2 * done)
        optimiser.zero_grad()
        worst_loss(world, normalize(z, dim=-1), beta=3 * 1e4**done).sum().backward()
        optimiser.step()
    f = normalize(z.detach(), dim=-1)
    return f[worst_loss(world, f).argsort()]


# Theorem 5


def medoids(world: LabelledWorld, f: Tensor) -> Tensor:
    """v_c = f(x_c), with x_c the point of least mean squared distance to its class c.

    Source: proof of Theorem 8. f: [P, d] -> [C, d].
    """
    # E ||f(x) - f(x')||^2 over x' of the class, [P]
    distance = 2 - 2 * (world.positives * (f @ f.mT)).sum(-1)
    others = world.labels != world.labels.unique()[:, None]  # [C, P]
    return f[distance.masked_fill(others, math.inf).argmin(1)]


def nearest_neighbour_error(world: LabelledWorld, f: Tensor, v: Tensor) -> float:
    """P(argmin_c ||f(x) - v_c|| is not h(x)), with ties counted as errors.

    The paper lets them be "broken arbitrarily". f: [P, d], v: [C, d] in label order.
    """
    own = (world.labels[:, None] == world.labels.unique()).double()  # [P, C]
    score = f @ v.T
    mine = (score * own).sum(1)
    return float((world.p * ((score - 10 * own).amax(1) >= mine - 1e-12)).sum())


class Bounds(NamedTuple):
    """Theorem 5's bounds on the error of the 1-NN classifier; inf where a proof gives none.

    All rest on Lemma 9, which is false where a solution of Eq. 7 has classes in one place: there
    the error can exceed them (3_hcl/4.2). They hold where f's own classes keep the distance.
    """

    printed: float  # 8 eps / (xi^2 - 4 |C| sqrt eps)^2, for either sign of the base
    proved: float  # 16 eps / (xi^2 - 4 |C| sqrt eps), where positive
    # 16 eps / (xi^2 - 2 |C| sqrt eps), from the sharper Lemma 10, for eps <= 1/4, where positive
    derived: float


def theorem_5(excess: float, xi: float, classes: float) -> Bounds:
    """Theorem 5/8's bound as printed, as its proof gives it, and with Lemma 10 sharpened, at t = 1.

    excess: eps >= 0. xi: least distance of a solution of Eq. 7 on the unit sphere, the paper's of
    radius 1/t. classes: |C|, or 1 / min rho. The sharper lemma: E X* - E X <= 2 (eps - A + sqrt A)
    with A <= eps the alignment loss, at most 2 sqrt eps for small eps.
    """
    room = xi**2 - 4 * classes * math.sqrt(excess)
    more = xi**2 - 2 * classes * math.sqrt(excess) if excess <= 1 / 4 else -1.0
    printed = 8 * excess / room**2 if room else math.inf
    proved, derived = (16 * excess / each if each > 0 else math.inf for each in (room, more))
    return Bounds(printed, proved, derived)


# Lemma 11


class Spread(NamedTuple):
    """Lemma 11 on a finite world, sphere of radius 1/t. All 0-dim.

    X = e^{f(x).f(v)}, x ~ p, v ~ q_beta^+.
    """

    variance: Tensor  # Var(X)
    within: Tensor  # E_x Var(X | x), the part that the proof bounds
    # largest ((e^a - e^b) / (a - b))^2 over pairs v, v' of an anchor: what the proof bounds by
    # e^{1/t^4}
    step: Tensor
    align: Tensor  # L_align on that sphere, E ||f(x) - f(x+)||^2 / 2


def positive_spread(world: LabelledWorld, f: Tensor, t: float, beta: float) -> Spread:
    """The quantities of robinson2021, Lemma 11, for unit vectors on the sphere of radius 1/t.

    f: [P, d] unit vectors, which are scaled.
    """
    u = f @ f.mT / t**2
    q = (beta * u + world.p.log()).masked_fill(~world.same, -math.inf).softmax(-1)
    mean, square = (q * u.exp()).sum(-1), (q * (2 * u).exp()).sum(-1)
    within = (world.p * (square - mean**2)).sum()
    variance = (world.p * square).sum() - (world.p * mean).sum() ** 2
    a, b = u.unsqueeze(-1), u.unsqueeze(-2)
    pairs = world.same.unsqueeze(-1) & world.same.unsqueeze(-2) & ((a - b).abs() > 1e-9)
    slope = (a.exp() - b.exp()) / torch.where(pairs, a - b, 1.0)
    step = torch.where(pairs, slope.square(), 0.0).max()
    return Spread(variance, within, step, alignment(world, f) / t**2)
