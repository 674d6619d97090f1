"""Control from pixels: the agent with a contrastive loss (chuang2020, Section 5.4, Table 3)."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from curlnb.data import control_frames
from curlnb.data.control_frames import CROP, STACK
from curlnb.models.sac import (
    Agent,
    Convolutions,
    Learner,
    pixels,
)
from curlnb.runs import environment
from curlnb.runs.environment import limited
from curlnb.runs.experiment import experiment
from curlnb.runs.store import Run

CHANNELS = 3 * STACK
MOST = 1000.0  # the largest return there can be: 1,000 steps with a reward of at most 1
EVALUATION, HELD_OUT = 1_000_000, 500_000  # seeds of episodes from here on are not trained on
CHECKPOINT_SECONDS = 60.0  # between checkpoints of an agent, which hold its replay buffer


def simulator(parameters: dict[str, Any]) -> str:
    """Serves as the digest of the data: the simulator's versions.

    Frames are a function of these, the task and seeds.
    """
    return "noise" if environment.dry() else "dm-control 1.0.50, mujoco 3.17.0"


@dataclass(frozen=True)
class CropContrast:
    """The contrastive loss of crops.

    tau_plus in [0, 1), positives (M, at least 1): as in `sac.bilinear_loss`; sphere_floor: its
    floor is "sphere", else 0. ValueError for positives below 1.
    """

    tau_plus: float = 0.0
    positives: int = 1
    sphere_floor: bool = False

    def __post_init__(self) -> None:
        if self.positives < 1:
            raise ValueError(f"positives is {self.positives}: a query needs at least 1")

    @property
    def floor(self) -> float | str:
        return "sphere" if self.sphere_floor else 0.0


@dataclass(frozen=True)
class FrameEncoder:
    """The encoder of frames.

    filters: of each of `layers` convolutions; features: length of the output; shrink: of the frames
    (`control_frames.Environment`).
    """

    filters: int = 32
    layers: int = 4
    shrink: int = 1
    features: int = 50

    @property
    def size(self) -> int:
        """Width of the crops, in pixels."""
        return CROP // self.shrink

    def convolutions(self) -> Convolutions:
        return Convolutions(CHANNELS, self.size, self.filters, self.layers)


@dataclass(frozen=True)
class AgentTraining:
    """How long the agent acts, learns and is evaluated.

    environment_steps: of the simulator (actions times the task's repeat); evaluate_every: simulator
    steps between evaluations, at ends of episodes; episodes: in an evaluation, by the policy's
    mean; initial: random actions before learning begins; batch: transitions per update; capacity:
    frames in the replay buffer.
    """

    environment_steps: int = 100_000
    evaluate_every: int = 10_000
    episodes: int = 10
    initial: int = 1000
    batch: int = 512
    capacity: int = 100_000


@experiment(name="control.curl_sac", data=simulator)
def curl_sac(
    run: Run,
    *,
    seed: int,
    task: str = "cartpole swingup",
    loss: CropContrast = CropContrast(),
    contrastive: bool = True,
    practice: AgentTraining = AgentTraining(),
    reader: FrameEncoder = FrameEncoder(),
    hidden: int = 1024,
) -> dict[str, Any]:
    """Train the agent on a task, from pixels.

    contrastive=False leaves the contrastive loss out. hidden: of the actor and the critics. The
    learning rate is the task's (`control_frames.TASKS`). A killed run resumes from the end of an
    episode. Returns, as shares of the largest possible return 1,000: score (of the last
    evaluation), score_curve, training_curve (one value per episode, of the policy's random actions)
    and random (a random policy's, on the evaluation's episodes); steps_curve, the simulator steps
    of score_curve; clamped, the mean share of anchors on the floor over the last tenth of the
    updates.
    """
    few = 12 * control_frames.task_named(task).repeat
    practice = limited(
        practice, environment_steps=few, evaluate_every=1, episodes=1, initial=6, batch=4
    )
    world, size, trunk = (
        control_frames.make(task, shrink=reader.shrink),
        reader.size,
        reader.convolutions(),
    )
    repeat, actions = world.task.repeat, world.task.actions
    agent = Agent(trunk, trunk.width, actions, hidden=hidden, features=reader.features).to(
        run.device
    )
    learner = Learner(agent, lr=world.task.lr)
    total = practice.environment_steps // repeat
    frames = total + total * repeat // control_frames.STEPS + 2  # as many as there can be
    replay = control_frames.Replay(
        min(practice.capacity, frames), actions, control_frames.FRAME // reader.shrink, run.device
    )
    generator = torch.Generator(run.device).manual_seed(seed)
    draws = np.random.default_rng(seed)

    def measure(policy: Any) -> float:
        returns = [
            play(world, policy, EVALUATION + 1_000 * seed + number)
            for number in range(practice.episodes)
        ]
        return sum(returns) / len(returns) / MOST

    def mean_policy(observed: Tensor) -> np.ndarray:
        return agent.act(control_frames.centre_crop(observed.to(run.device), size))[0].cpu().numpy()

    resumed = run.load_checkpoint()
    if resumed:
        clamped = _restore(*resumed, learner, replay, generator, draws)
        so_far = _SoFar(**resumed[1]["so_far"])
    else:
        clamped, random_score = [], measure(lambda _: draws.uniform(-1, 1, actions))
        so_far = _SoFar(random_score, [measure(mean_policy)], [0])
    saved = time.monotonic()
    while so_far.done < total:
        frame, over, total_reward = world.reset(1_000 * seed + so_far.episode), False, 0.0
        replay.begin(frame)
        stack = [frame] * STACK
        while not over and so_far.done < total:
            if so_far.done < practice.initial:
                action = draws.uniform(-1, 1, actions)
            else:
                told = _learn(
                    learner,
                    replay.sample(practice.batch, generator),
                    size,
                    generator,
                    loss if contrastive else None,
                )
                clamped.append(told.get("clamped", torch.zeros((), device=run.device)))
                seen = control_frames.centre_crop(torch.cat(stack)[None].to(run.device), size)
                action = agent.act(seen, generator)[0].cpu().numpy()
            frame, reward, discount, over = world.step(action)
            replay.add(torch.as_tensor(action, dtype=torch.float32), reward, discount, frame)
            stack = [*stack[1:], frame]
            total_reward, so_far.done = total_reward + reward, so_far.done + 1
            run.progress(so_far.done / total, 1.0)
        if over:
            so_far.returns.append(total_reward / MOST)
        so_far.episode += 1
        if so_far.done >= total or repeat * so_far.done >= so_far.at[-1] + practice.evaluate_every:
            so_far.scores.append(measure(mean_policy))
            so_far.at.append(repeat * so_far.done)
        if so_far.done < total and time.monotonic() - saved > CHECKPOINT_SECONDS:
            run.save_checkpoint(*_state(so_far, clamped, learner, replay, generator, draws))
            saved = time.monotonic()
    last = clamped[-max(1, len(clamped) // 10) :]
    return {
        "score": so_far.scores[-1],
        "random": so_far.random,
        "score_curve": so_far.scores,
        "steps_curve": so_far.at,
        "training_curve": so_far.returns,
        "clamped": float(torch.stack(last).mean()) if last else 0.0,
    }


@dataclass
class _SoFar:
    """The progress of an agent's training at the end of an episode.

    scores, and the simulator steps `at` each of them; returns, actions and episodes.
    """

    random: float
    scores: list[float]
    at: list[int]
    returns: list[float] = field(default_factory=list)
    done: int = 0
    episode: int = 0


REPLAYED = ("frames", "action", "reward", "discount", "age", "usable")  # a buffer's tensors


def _state(
    so_far: _SoFar,
    clamped: list[Tensor],
    learner: Learner,
    replay: control_frames.Replay,
    generator: torch.Generator,
    draws: Any,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that determines the rest of a training, between two episodes, as tensors and JSON.

    An episode follows from its seed.
    """
    tensors = {f"agent/{name}": tensor for name, tensor in learner.agent.state_dict().items()}
    for name, optimizer in learner.optimizers.items():
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{name}/{index}/{key}": value for key, value in values.items()}
    tensors |= {f"replay/{name}": getattr(replay, name) for name in REPLAYED}
    tensors |= {
        "generator": generator.get_state(),
        "clamped": torch.stack(clamped) if clamped else torch.zeros(0),
    }
    return tensors, {
        "so_far": asdict(so_far),
        "next": replay.next,
        "steps": learner.steps,
        "draws": draws.bit_generator.state,
    }


def _restore(
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    learner: Learner,
    replay: control_frames.Replay,
    generator: torch.Generator,
    draws: Any,
) -> list[Tensor]:
    """Restore what `_state` saved. Returns the shares on the floor so far."""
    learner.agent.load_state_dict(
        {name.removeprefix("agent/"): t for name, t in tensors.items() if name.startswith("agent/")}
    )
    for name, optimizer in learner.optimizers.items():
        found: dict[int, dict[str, Tensor]] = {}
        for path, tensor in tensors.items():
            if path.startswith(f"optimizer/{name}/"):
                index, key = path.split("/")[2:]
                found.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict(
            {"state": found, "param_groups": optimizer.state_dict()["param_groups"]}
        )
    for name in REPLAYED:
        getattr(replay, name).copy_(tensors[f"replay/{name}"])
    replay.next, learner.steps = state["next"], state["steps"]
    generator.set_state(tensors["generator"].cpu())
    draws.bit_generator.state = state["draws"]
    return list(tensors["clamped"])


def _learn(
    learner: Learner,
    batch: control_frames.Batch,
    size: int,
    generator: torch.Generator,
    loss: CropContrast | None,
) -> dict[str, Tensor]:
    """One update of all parts.

    The query of the contrastive loss is the critics' crop, its keys are others.
    """

    def crop(frames: Tensor) -> Tensor:
        return pixels(control_frames.random_crop(frames, size, generator))

    cropped = control_frames.Batch(
        crop(batch.observed), batch.action, batch.reward, batch.discount, crop(batch.after)
    )
    told = learner.update(cropped, generator)
    if loss is not None:
        keys = torch.stack([crop(batch.observed) for _ in range(loss.positives)])
        told |= learner.contrast(cropped.observed, keys, tau_plus=loss.tau_plus, floor=loss.floor)
    return told


def play(world: control_frames.Environment, policy: Any, seed: int) -> float:
    """The return of one episode.

    policy: stacked frames [1, 3 STACK, FRAME, FRAME] -> action.
    """
    frame, over, total = world.reset(seed), False, 0.0
    stack = [frame] * STACK
    while not over:
        frame, reward, _, over = world.step(policy(torch.cat(stack)[None]))
        stack, total = [*stack[1:], frame], total + reward
    return total
