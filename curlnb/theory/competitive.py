"""What contrastive learning guarantees against the best representation of a class of functions.

Lemma 5.1 (arora2019, Section 5.2 and Appendix A.2) trades the contrastive loss L_un^!= for the mean
classifier's loss with a larger margin gamma, if classes are sub-Gaussian. Worlds and
representations are those of `finite_worlds`: rho [..., C], D [..., C, P], f [..., P, d]; float64,
and everything is differentiable.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from curlnb.theory.finite_worlds import World, finite_log, margins, task_weights

_ANGLES, _RATES, _ROUNDS = 24, 24, 12


def sub_gaussian(D: Tensor, f: Tensor) -> Tensor:
    """The variance proxy sigma^2 of every class. Returns [..., C].

    It is the smallest number with E e^{v.(f(x) - mu_c)} <= e^{sigma^2 |v|^2 / 2} for all vectors v,
    x ~ D_c, that is the supremum over v of 2 log E e^{v.(f(x) - mu_c)} / |v|^2 (arora2019, footnote
    8). D: [..., C, P]; f: [..., P, d] with d = 1 or 2. It lies between the largest eigenvalue of
    the covariance (the limit |v| -> 0) and a quarter of the squared diameter (Hoeffding), and is
    found on a grid of directions and of lengths |v|, refined around its best node to about 1e-8.
    ValueError for d > 2, where a grid of directions is no longer small.
    """
    d = f.shape[-1]
    if d > 2:
        raise ValueError(
            f"f has d = {d} dimensions: directions are searched for d = 1 and 2; project f first"
        )
    f = pad(f, (0, 2 - d))  # a line is one in the plane
    centred = f.unsqueeze(-3) - (D @ f).unsqueeze(-2)  # [..., C, P, 2]
    log_D = finite_log(D)

    def vectors(angle: Tensor, rate: Tensor) -> Tensor:
        direction = torch.stack([angle.cos(), angle.sin()], -1)
        return (rate.exp() / extent.unsqueeze(-1)).unsqueeze(-1) * direction

    def exponent(v: Tensor) -> Tensor:
        """2 log E e^{v.(f - mu)} / |v|^2; v [..., C, n, 2] -> [..., C, n]."""
        return 2 * (log_D.unsqueeze(-2) + v @ centred.mT).logsumexp(-1) / v.square().sum(-1)

    with torch.no_grad():
        extent = torch.where(D > 0, centred.norm(dim=-1), 0.0).amax(-1).clamp_min(1e-9)  # [..., C]
        turn, low, high = 2 * math.pi / _ANGLES, math.log(1e-2), math.log(150.0)
        step = (high - low) / (_RATES - 1)
        angles = turn * torch.arange(_ANGLES).to(f)
        rates = low + step * torch.arange(_RATES).to(f)
        nodes = torch.cartesian_prod(angles, rates)
        angle, rate = (axis.expand(*extent.shape, -1) for axis in nodes.unbind(1))
        offsets = torch.linspace(-1, 1, 5).to(f)
        turns, scales = torch.cartesian_prod(offsets, offsets).unbind(1)
        for _ in range(_ROUNDS):
            best = exponent(vectors(angle, rate)).argmax(-1, keepdim=True)
            chosen_angle, chosen_rate = angle.gather(-1, best), rate.gather(-1, best)
            angle, rate = chosen_angle + turn * turns, chosen_rate + step * scales
            turn, step = turn / 2, step / 2
        v = vectors(chosen_angle, chosen_rate)
    # The envelope theorem: at the best v, the gradient through v vanishes.
    covariance = torch.einsum("...cx,...cxi,...cxj->...cij", D, centred, centred)
    return torch.maximum(exponent(v).squeeze(-1), torch.linalg.eigvalsh(covariance)[..., -1])


class Concentration(NamedTuple):
    """R = max ||f(x)|| and sigma, the largest over classes; each [...]."""

    radius: Tensor
    sigma: Tensor


def concentration(world: World, f: Tensor) -> Concentration:
    """The two constants that Lemma 5.1 asks of f. Points that no class draws do not count."""
    drawn = (world.D > 0).any(-2)
    radius = torch.where(drawn, f.norm(dim=-1), 0.0).amax(-1)
    return Concentration(radius, sub_gaussian(world.D, f).amax(-1).clamp_min(0).sqrt())


def margin(
    c: Concentration, epsilon: float | Tensor, *, constant: float = 1.0, sharp: bool = False
) -> Tensor:
    """The margin gamma of Lemma 5.1. epsilon > 0, a number or [...]. Returns [...].

    sharp=False: 1 + 2 R sigma sqrt(2 log R + log(3/epsilon)), as the paper's proof has it, without
    the 2 log R for R < 1 (footnote 9). sharp=True: 1 + a, derived here, with a the root of sqrt(pi)
    R sigma erfc(a / (2 R sigma)) = epsilon, 0 where there is none. Since (1 + mu + z)_+ <= (1 + a +
    mu)_+ + (z - a)_+, only E (z - a)_+ <= epsilon is needed, and for a sub-Gaussian z with variance
    proxy 2 R^2 sigma^2 that mean is at most the integral of exp(-t^2 / (4 R^2 sigma^2)) over t > a.
    No condition on R, and no bound on z. constant: multiplies gamma - 1, to see how much of it is
    needed.
    """
    epsilon = torch.as_tensor(epsilon, dtype=c.radius.dtype, device=c.radius.device)
    spread = c.radius * c.sigma
    if sharp:
        tail = (epsilon / (math.sqrt(math.pi) * spread.clamp_min(1e-300))).clamp_max(1)
        root = -math.sqrt(2) * torch.special.ndtri(tail / 2)  # 2 erfc^{-1}(tail)
        return 1 + constant * spread * torch.where(tail < 1, root, 0.0)
    logarithms = 2 * c.radius.clamp_min(1).log() + (3 / epsilon).log()
    return 1 + constant * 2 * spread * logarithms.clamp_min(0).sqrt()


def mean_margins(world: World, f: Tensor) -> tuple[Tensor, Tensor]:
    """The mean classifier's margins f(x).(mu_c - mu_c') and their probabilities; each [..., P C C].

    The probability is rho_c rho_c' D_c(x) / (1 - tau), for all x and ordered pairs of classes: the
    distribution of the margin over tasks (Definition 2.2, uniform D_T) and their points.
    """
    chances = task_weights(world.rho).unsqueeze(-3) * world.D.mT.unsqueeze(-1)  # [..., x, c, c']
    return margins(world, f).flatten(-3), chances.flatten(-3)


def margin_loss(world: World, f: Tensor, gamma: float | Tensor) -> Tensor:
    """gamma L_{gamma,sup}^mu(f) = E (gamma - f(x).(mu_c - mu_c'))_+ (arora2019, Section 5.2).

    gamma: a number or [...]. Returns [...]. With gamma = 1 it is L_sup^mu with the hinge loss.
    """
    values, chances = mean_margins(world, f)
    gamma = torch.as_tensor(gamma, dtype=f.dtype, device=f.device)
    return (chances * (gamma.unsqueeze(-1) - values).clamp_min(0)).sum(-1)


def needed_margin(world: World, f: Tensor, target: Tensor) -> Tensor:
    """The smallest gamma with gamma L_{gamma,sup}^mu(f) >= target. target: [...]. Returns [...].

    With the target L_un^!= - epsilon it is the least gamma for which Lemma 5.1 holds. Where target
    <= 0 every gamma will do, and the smallest margin of a point is returned.
    """
    values, chances = mean_margins(world, f)
    values, order = values.sort(-1)
    chances = chances.gather(-1, order)
    below = chances.cumsum(-1)
    # The function is the largest of its lines: gamma is the least at which a line meets target.
    lines = target.clamp_min(0).unsqueeze(-1) + (chances * values).cumsum(-1)
    lines = torch.where(below > 0, lines / torch.where(below > 0, below, 1.0), math.inf)
    gamma = lines.amin(-1)
    return torch.where(target > 0, gamma, gamma.detach())


def lemma_bound(
    world: World, f: Tensor, epsilon: float | Tensor, *, constant: float = 1.0
) -> Tensor:
    """The right side of Lemma 5.1 (hinge loss), gamma L_{gamma,sup}^mu(f) + epsilon. Returns [...].

    gamma is that of `margin`.
    """
    gamma = margin(concentration(world, f), epsilon, constant=constant)
    return margin_loss(world, f, gamma) + epsilon


def needed_share(
    world: World, f: Tensor, different_class: Tensor, epsilon: float, *, sharp: bool = False
) -> Tensor:
    """The part of the proved gamma that Lemma 5.1 needs for this f, (gamma* - 1)/(gamma - 1).

    Returns [...]. Above 1 the lemma would be violated. different_class: L_un^!=(f) with the hinge
    loss (`finite_worlds.pair_losses`). nan where the proved gamma is 1.
    """
    proved = margin(concentration(world, f), epsilon, sharp=sharp) - 1
    needed = needed_margin(world, f, different_class - epsilon) - 1
    return needed / torch.where(proved < 1e-9, math.nan, proved)


def guarantee(world: World, f: Tensor, price: Tensor | float, *, epsilons: Tensor) -> Tensor:
    """Corollary 5.1.1 without Gen_M, at the best of `epsilons` [n]. Returns [...].

    It is the minimum over epsilon of gamma L_{gamma,sup}^mu(f) + epsilon, plus price = beta s(f).
    """
    c = concentration(world, f)
    sides = [margin_loss(world, f, margin(c, each)) + each for each in epsilons]
    return torch.stack(sides).amin(0) + price
