"""Soft actor-critic on pixels with a contrastive loss: the agent of chuang2020, Section 5.4.

It follows Srinivas et al. 2020. One convolutional encoder serves two critics, the actor (whose
gradient does not reach the convolutions) and the contrastive loss. Queries come from it, keys from
its momentum copy, and the similarity is bilinear, s = q^T W k, on features that are not normalised.

    critics     y = r + d gamma (min_j Q'_j(x', a') - alpha log pi(a'|x')),   a' ~ pi(.|x')
    actor       alpha log pi(a|x) - min_j Q_j(x, a),                            a  ~ pi(.|x)
    alpha       -alpha (log pi(a|x) + H),  H = -dim(a)
    contrast    `bilinear_loss`, on random crops of the same observations
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curlnb import losses
from curlnb.data.control_frames import Batch
from curlnb.models.encoders import momentum_update

LOG_STD = (-10.0, 2.0)
# Srinivas et al. 2020:
ALPHA, ALPHA_LR = 0.1, 1e-4  # the entropy's weight at first, and its learning rate
GAMMA = 0.99  # the discount
ENCODER_RATE, CRITIC_RATE = 0.05, 0.01  # of the momentum copies
ACTOR_EVERY = 2  # updates of the critics per update of the rest


def pixels(frames: Tensor) -> Tensor:
    """uint8 frames [n, c, size, size] -> float32 in [0, 1], channels last, for `Convolutions`."""
    return (frames.float() / 255).contiguous(memory_format=torch.channels_last)


class Convolutions(nn.Module):
    """3 x 3 convolutions, the first of stride 2: frames [n, channels, size, size] -> [n, width].

    Frames are uint8 or already `pixels`.
    """

    def __init__(self, channels: int, size: int, filters: int = 32, layers: int = 4) -> None:
        super().__init__()
        widths = [channels] + [filters] * layers
        stages: list[nn.Module] = []
        for index in range(layers):
            stages += [
                nn.Conv2d(widths[index], widths[index + 1], 3, stride=2 if index == 0 else 1),
                nn.ReLU(),
            ]
        self.stages = nn.Sequential(*stages)
        with torch.no_grad():
            self.width = self(torch.zeros(1, channels, size, size, dtype=torch.uint8)).shape[1]

    def forward(self, frames: Tensor) -> Tensor:
        return self.stages(frames if frames.is_floating_point() else pixels(frames)).flatten(1)


def readout(width: int, features: int) -> nn.Sequential:
    """A linear layer and a layer norm, [n, width] -> [n, features]."""
    return nn.Sequential(nn.Linear(width, features), nn.LayerNorm(features))


class PixelEncoder(nn.Module):
    """Trunk and readout, without a tanh after the layer norm, as in the released code."""

    def __init__(self, trunk: nn.Module, width: int, features: int = 50) -> None:
        super().__init__()
        self.trunk, self.readout = trunk, readout(width, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.trunk(x))


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def initialise(module: nn.Module) -> None:
    """Orthogonal weights and no biases; in convolutions at the central tap alone."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            height, width = layer.kernel_size
            nn.init.orthogonal_(
                layer.weight.data[:, :, height // 2, width // 2], nn.init.calculate_gain("relu")
            )


def bilinear_loss(
    query: Tensor,
    keys: Tensor,
    bilinear: Tensor,
    *,
    tau_plus: float = 0.0,
    floor: float | str = 0.0,
) -> tuple[Tensor, Tensor]:
    """The contrastive loss of a batch and the share of anchors on the floor, both 0-dim.

    Source: chuang2020, Eq. 16 and 21, at t = 1. query: [n, d]; keys: [M, n, d], M positives of each
    query; bilinear: W [d, d]. The negatives of a query are the others' first keys, so that N = n -
    1 for every M. tau_plus = 0 is CURL's cross-entropy. ValueError for shapes that do not fit.

    floor: of the negatives' mean. Scores have neither bound nor origin: adding a constant to all
    scores of an anchor changes nothing in CURL's loss, and 0, the infimum of e^s, is the only floor
    that keeps it so. With it, an anchor whose estimate is not positive has loss 0 and no gradient;
    that happens once e^{s+} exceeds the mean of e^{s-} by 1 / tau+. "sphere" is e^{-1}, the bound
    of unit vectors.
    """
    if keys.dim() != 3 or keys.shape[1:] != query.shape:
        raise ValueError(
            f"need query [n, d] and keys [M, n, d], not {tuple(query.shape)} and "
            f"{tuple(keys.shape)}"
        )
    n = len(query)
    projected = query @ bilinear  # [n, d]
    own = torch.einsum("nd,mnd->nm", projected, keys)
    options: dict[str, Any] = {
        "temperature": 1.0,
        "tau_plus": tau_plus,
        "floor": floor,
        "n_eff": n - 1,
    }
    others = ~torch.eye(n, dtype=torch.bool, device=query.device)
    extra = own if len(keys) > 1 else None
    loss, clamped = losses.loss_and_clamped(
        own[:, 0], projected @ keys[0].T, extra_pos=extra, mask=others, **options
    )
    return loss.mean(), clamped


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(mean + noise e^log_std) [n, actions] and log pi(a) [n].

    The tanh's Jacobian is in a form that does not underflow.
    """
    u = mean + noise * log_std.exp()
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return u.tanh(), (log_normal - 2 * (math.log(2) - u - F.softplus(-2 * u))).sum(1)


def bellman_target(
    reward: Tensor, discount: Tensor, q: Tensor, log_pi: Tensor, alpha: Tensor, gamma: float
) -> Tensor:
    """The critics' target, [n]. q: [2, n], of the target critics at the next state."""
    return reward + gamma * discount * (q.amin(0) - alpha * log_pi)


class Agent(nn.Module):
    """All networks of the agent.

    trunk: observations -> [n, width]; `Convolutions` for pixels, any module for states.
    """

    def __init__(
        self, trunk: nn.Module, width: int, actions: int, *, features: int = 50, hidden: int = 1024
    ) -> None:
        super().__init__()
        self.encoder = PixelEncoder(trunk, width, features)
        self.actor_readout, self.actor = (
            readout(width, features),
            _mlp(features, hidden, 2 * actions),
        )
        self.critics = nn.ModuleList(_mlp(features + actions, hidden, 1) for _ in range(2))
        initialise(self)
        self.momentum_encoder, self.target_critics = (
            copy.deepcopy(self.encoder),
            copy.deepcopy(self.critics),
        )
        for parameter in (*self.momentum_encoder.parameters(), *self.target_critics.parameters()):
            parameter.requires_grad_(False)
        self.bilinear = nn.Parameter(torch.rand(features, features))
        self.log_alpha = nn.Parameter(torch.tensor(math.log(ALPHA)))
        self.actions = actions

    def policy(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation [n, actions] of the policy before the tanh.

        No gradient reaches the trunk.
        """
        with torch.no_grad():
            seen = self.encoder.trunk(observed)
        return self.policy_on(seen)

    def policy_on(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The same from the trunk's output [n, width]."""
        mean, spread = self.actor(self.actor_readout(seen)).chunk(2, 1)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (spread.tanh() + 1)

    @torch.no_grad()
    def act(self, observed: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Actions [n, actions] in [-1, 1]: drawn with the generator, or the policy's mean."""
        mean, log_std = self.policy(observed)
        return mean.tanh() if generator is None else self.draw(mean, log_std, generator)[0]

    def draw(
        self, mean: Tensor, log_std: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        return squashed_gaussian(
            mean, log_std, torch.randn(mean.shape, generator=generator, device=mean.device)
        )

    def values(self, features: Tensor, action: Tensor, *, of_target: bool = False) -> Tensor:
        """Both critics' values [2, n]."""
        together = torch.cat([features, action], 1)
        return torch.stack(
            [
                critic(together)[:, 0]
                for critic in (self.target_critics if of_target else self.critics)
            ]
        )


class Learner:
    """The updates of an agent.

    A batch's observations come cropped; the actor and the targets learn at every second step, as in
    the released code. That code steps the encoder twice in each contrastive update, since two of
    its optimisers hold it; here it is stepped once.
    """

    def __init__(self, agent: Agent, *, lr: float = 1e-3) -> None:
        self.agent, self.steps = agent, 0
        fused = next(agent.parameters()).device.type != "mps"

        def adam(
            parameters: list[nn.Parameter], rate: float, beta: float = 0.9
        ) -> torch.optim.Adam:
            return torch.optim.Adam(parameters, lr=rate, betas=(beta, 0.999), fused=fused)

        encoder = list(agent.encoder.parameters())
        self.optimizers = {
            "critic": adam([*encoder, *agent.critics.parameters()], lr),
            "actor": adam([*agent.actor_readout.parameters(), *agent.actor.parameters()], lr),
            "alpha": adam([agent.log_alpha], ALPHA_LR, 0.5),
            "contrast": adam([*encoder, agent.bilinear], lr),
        }

    def update(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """One step of the critics, at every second call also of the other parts.

        These are the actor, the temperature and the momentum copies. Returns losses, on the device.
        """
        agent = self.agent
        alpha = agent.log_alpha.exp().detach()
        with torch.no_grad():
            action, log_pi = agent.draw(*agent.policy(batch.after), generator)
            future = agent.values(agent.momentum_encoder(batch.after), action, of_target=True)
            wanted = bellman_target(batch.reward, batch.discount, future, log_pi, alpha, GAMMA)
        critic = (
            (agent.values(agent.encoder(batch.observed), batch.action) - wanted)
            .square()
            .mean(1)
            .sum()
        )
        self._step("critic", critic)
        metrics = {"critic": critic.detach()}
        if self.steps % ACTOR_EVERY == 0:
            with torch.no_grad():
                seen = agent.encoder.trunk(batch.observed)
                features = agent.encoder.readout(seen)
            action, log_pi = agent.draw(*agent.policy_on(seen), generator)
            self._step("actor", (alpha * log_pi - agent.values(features, action).amin(0)).mean())
            entropy = -log_pi.detach().mean()
            self._step("alpha", agent.log_alpha.exp() * (entropy + agent.actions))
            metrics["entropy"] = entropy
            momentum_update(agent.momentum_encoder, agent.encoder, ENCODER_RATE)
            momentum_update(agent.target_critics, agent.critics, CRITIC_RATE)
        self.steps += 1
        return metrics

    def contrast(
        self, query: Tensor, keys: Tensor, *, tau_plus: float, floor: float | str = 0.0
    ) -> dict[str, Tensor]:
        """One step on the contrastive loss.

        query: [n, ...] crops of observations; keys: [M, n, ...] other crops of the same.
        """
        with torch.no_grad():
            seen = self.agent.momentum_encoder(keys.flatten(0, 1)).unflatten(0, keys.shape[:2])
        loss, clamped = bilinear_loss(
            self.agent.encoder(query), seen, self.agent.bilinear, tau_plus=tau_plus, floor=floor
        )
        self._step("contrast", loss)
        return {"contrast": loss.detach(), "clamped": clamped}

    def _step(self, name: str, loss: Tensor) -> None:
        """A step of one optimiser, with gradients for its parameters only."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward(
            inputs=[parameter for group in optimizer.param_groups for parameter in group["params"]]
        )
        optimizer.step()
