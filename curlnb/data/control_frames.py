"""The DeepMind control suite as frames: tasks, rendering, random policies, the replay buffer.

Source: chuang2020, Section 5.4. dm_control is the extra `control`; it is imported when a task is
made. Frames are rendered off-screen, in software or on a GPU, by EGL, or by OSMesa where EGL does
not work; `MUJOCO_GL` overrides. Where neither works, or dm_control is missing, `Unavailable` gives
the reason in one line. An episode is a function of its seed and its actions; its frames are
reproducible only on one machine, since renderers differ in their last bits.
"""

import functools
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from curlnb.runs import environment

FRAME, CROP, STACK = 100, 84, 3  # pixels rendered, pixels after a crop, frames in an observation
STEPS = 1000  # of the simulator in an episode; a reward of at most 1 each


class Unavailable(RuntimeError):
    """The simulator is not installed or cannot draw; the message names the remedy."""


@dataclass(frozen=True)
class Task:
    """A task of the suite.

    repeat: simulator steps per action; actions: their number of components, each in [-1, 1]; lr:
    the agent's learning rate.
    """

    domain: str
    task: str
    repeat: int
    actions: int
    lr: float = 1e-3


# PlaNet's benchmark, with the action repeats and learning rates of Srinivas et al. 2020, whose
# settings the paper follows
TASKS = {
    "finger spin": Task("finger", "spin", 2, 2),
    "cartpole swingup": Task("cartpole", "swingup", 8, 1),
    "reacher easy": Task("reacher", "easy", 4, 2),
    "cheetah run": Task("cheetah", "run", 4, 6, lr=2e-4),
    "walker walk": Task("walker", "walk", 2, 6),
    "ball_in_cup catch": Task("ball_in_cup", "catch", 4, 2),
}


def task_named(name: str) -> Task:
    """The task of that name. ValueError, with the known names, for an unknown one."""
    if name not in TASKS:
        raise ValueError(f"task {name!r} is unknown; use one of {', '.join(TASKS)}")
    return TASKS[name]


# --- renderers


_PROBE = "import mujoco; context = mujoco.GLContext(8, 8); context.make_current(); context.free()"


def _backend() -> str:
    """The first renderer that works, "" if none does.

    Each is tried in a subprocess, since a failed one cannot be removed from a process.
    """
    for name in ("egl", "osmesa") if sys.platform == "linux" else ("glfw",):
        about = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
        if (
            subprocess.run(
                [sys.executable, "-c", _PROBE], env=about, capture_output=True
            ).returncode
            == 0
        ):
            return name
    return ""


@functools.cache
def _suite() -> Any:
    """dm_control.suite, once it is known to draw; else raises Unavailable."""
    if importlib.util.find_spec("dm_control") is None:
        raise Unavailable(
            "dm_control is not installed: `pip install dm-control==1.0.50 mujoco==3.17.0`, or this "
            "project's extra `control`"
        )
    if "MUJOCO_GL" not in os.environ:
        if not (found := _backend()):
            raise Unavailable(
                "no frame can be rendered: neither EGL nor OSMesa works here; install one (libegl1 "
                "and libgl1-mesa-dri, or libosmesa6)"
            )
        os.environ["MUJOCO_GL"] = found  # worker processes inherit it and need not try
    try:
        # triton before Mesa: loaded after it, their two copies of LLVM end the process
        import torch._dynamo  # noqa: F401
        from absl import logging
        from dm_control import suite

        # it warns of a deprecated attribute in the suite's own models
        logging.set_verbosity(logging.ERROR)
        suite.load("cartpole", "swingup").physics.render(8, 8)
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unavailable(
            f"no frame can be rendered with MUJOCO_GL={os.environ['MUJOCO_GL']}: {why}"
        ) from None
    return suite


def problem() -> str:
    """Why no frame can be rendered here, in one line; "" if frames can be rendered."""
    if environment.dry():
        return ""
    try:
        _suite()
    except Unavailable as error:
        return str(error)
    return ""


# --- environments


class Environment:
    """A task whose observations are frames: uint8 tensors [3, size / shrink, size / shrink].

    Frames are drawn without antialiasing, shadows and reflections, which cost half the time.
    shrink: frames of `size` pixels are averaged over squares of that width, a concession to CPUs.
    One camera is kept for all frames: `physics.render` makes a new one for each, which costs as
    much as the drawing. Unavailable where nothing can be rendered.
    """

    def __init__(self, name: str, size: int = FRAME, shrink: int = 1) -> None:
        self.task, self.size, self.shrink = task_named(name), size, shrink
        suite = _suite()
        from dm_control.mujoco import engine

        self._env = suite.load(self.task.domain, self.task.task)
        self._env.physics.model.vis.quality.offsamples = 0
        self._camera = engine.Camera(self._env.physics, height=size, width=size, camera_id=0)

    def reset(self, seed: int) -> Tensor:
        """Start the episode of `seed` and return its first frame."""
        self._env.task.random.seed(seed)
        self._observed = self._env.reset().observation
        return self.frame()

    def step(self, action: np.ndarray) -> tuple[Tensor, float, float, bool]:
        """Hold `action` [actions] for `repeat` steps.

        Returns the next frame, the summed reward, the discount (0 at a true end), and whether the
        episode is over.
        """
        reward = 0.0
        for _ in range(self.task.repeat):
            now = self._env.step(action)
            reward += float(now.reward)
            if now.last():
                break
        self._observed = now.observation
        return self.frame(), reward, float(now.discount), now.last()

    def frame(self) -> Tensor:
        """The present frame, uint8 [3, size / shrink, size / shrink]."""
        pixels = self._camera.render(render_flag_overrides={"shadow": False, "reflection": False})
        frame = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        return F.avg_pool2d(frame.float(), self.shrink).round().byte() if self.shrink > 1 else frame

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions (with orientations and heights) and velocities, as the suite has them."""
        named = {
            name: np.atleast_1d(value) for name, value in self._observed.items() if name != "touch"
        }
        return np.concatenate([v for name, v in named.items() if name != "velocity"]), named[
            "velocity"
        ]


class Synthetic(Environment):
    """Noise of the true shapes in short episodes, for dry runs: no simulator is needed."""

    def __init__(self, name: str, size: int = FRAME, shrink: int = 1) -> None:
        self.task, self.size = task_named(name), size // shrink

    def reset(self, seed: int) -> Tensor:
        self._generator, self._left = torch.Generator().manual_seed(seed), 5
        return self.frame()

    def step(self, action: np.ndarray) -> tuple[Tensor, float, float, bool]:
        self._left -= 1
        return self.frame(), float(torch.rand((), generator=self._generator)), 1.0, self._left == 0

    def frame(self) -> Tensor:
        return torch.randint(
            256, (3, self.size, self.size), generator=self._generator, dtype=torch.uint8
        )

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        return tuple(  # type: ignore[return-value]
            torch.randn(2, 3, generator=self._generator).numpy()
        )


def make(name: str, size: int = FRAME, shrink: int = 1) -> Environment:
    """The task's environment; noise of its shapes in a dry run.

    Unavailable where the simulator cannot be used.
    """
    return (Synthetic if environment.dry() else Environment)(name, size, shrink)


@dataclass(frozen=True)
class Episodes:
    """Frames and states of a random policy.

    frames: uint8 [episodes, steps, 3, size, size]; positions, velocities: float32 [episodes, steps,
    .].
    """

    frames: Tensor
    positions: Tensor
    velocities: Tensor

    def stacks(self, index: Tensor) -> Tensor:
        """Observations [n, 3 STACK, size, size]: the frames of STACK steps, oldest first.

        index: [n] in episodes x (steps - STACK + 1).
        """
        each = self.frames.shape[1] - STACK + 1
        steps = (index % each)[:, None] + torch.arange(STACK, device=index.device)
        return self.frames[(index // each)[:, None], steps].flatten(1, 2)

    def __len__(self) -> int:
        return len(self.frames) * (self.frames.shape[1] - STACK + 1)


@functools.lru_cache(maxsize=len(TASKS))  # runs of one process share them
def random_episodes(
    name: str, episodes: int, steps: int, seed: int = 0, shrink: int = 1, *, dry: bool = False
) -> Episodes:
    """The first `steps` actions of `episodes` episodes, every action uniform in [-1, 1].

    The result is a function of the arguments. dry: serves only as a cache key, so that noise is
    never mistaken for frames. ValueError where episodes are shorter than `steps` actions.
    """
    if steps * task_named(name).repeat > STEPS:
        raise ValueError(
            f"an episode of {name} has {STEPS // task_named(name).repeat} actions, not {steps}; "
            "ask for fewer steps"
        )
    world, draws = make(name, shrink=shrink), np.random.default_rng(seed)
    frames, states = [], []
    for episode in range(episodes):
        world.reset(1_000 * seed + episode)
        for _ in range(steps):
            frames.append(world.step(draws.uniform(-1, 1, world.task.actions))[0])
            states.append([torch.from_numpy(part.astype(np.float32)) for part in world.state()])
    positions, velocities = (
        torch.stack(parts).unflatten(0, (episodes, steps)) for parts in zip(*states, strict=True)
    )
    return Episodes(torch.stack(frames).unflatten(0, (episodes, steps)), positions, velocities)


# --- crops and replay


def random_crop(frames: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """A random window of each image, [n, c, h, w] -> [n, c, size, size].

    All offsets are equally likely; the code released for CURL leaves the last offset out.
    generator: on the frames' device. ValueError for frames that are not square or too small.
    """
    room = _room(frames, size)
    top, left = torch.randint(room + 1, (2, len(frames)), generator=generator, device=frames.device)
    # a view [n, c, room + 1, room + 1, size, size]
    windows = frames.unfold(2, size, 1).unfold(3, size, 1)
    return windows[torch.arange(len(frames), device=frames.device), :, top, left]


def centre_crop(frames: Tensor, size: int) -> Tensor:
    """The central window of each image, [n, c, h, w] -> [n, c, size, size]."""
    at = _room(frames, size) // 2
    return frames[..., at : at + size, at : at + size]


def _room(frames: Tensor, size: int) -> int:
    height, width = frames.shape[-2:]
    if height != width or not 0 < size <= height:
        raise ValueError(
            f"cannot crop {size} pixels from frames of {height} x {width}; they must be square and "
            "as large"
        )
    return height - size


@dataclass(frozen=True)
class Batch:
    """Transitions.

    observed, after: stacked frames [n, 3 STACK, size, size] uint8; action: [n, actions]; reward,
    discount: [n].
    """

    observed: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    after: Tensor


class Replay:
    """The last `capacity` frames with their actions, rewards and discounts, on the device.

    A frame (uint8) is kept once, and stacks are made when they are drawn: stacked pairs, as in the
    released code, would take six times the memory. ValueError for a capacity of STACK or less.
    """

    def __init__(
        self, capacity: int, actions: int, size: int = FRAME, device: torch.device | None = None
    ) -> None:
        if capacity <= STACK:
            raise ValueError(
                f"capacity {capacity} is too small: a transition needs {STACK + 1} frames"
            )
        self.frames = torch.zeros(capacity, 3, size, size, dtype=torch.uint8, device=device)
        self.action = torch.zeros(capacity, actions, device=device)
        self.reward, self.discount = torch.zeros(2, capacity, device=device)
        # frames since the episode's first
        self.age = torch.zeros(capacity, dtype=torch.long, device=device)
        # 1 where a transition starts whose frames are all there
        self.usable = torch.zeros(capacity, device=device)
        self.next = 0

    def begin(self, frame: Tensor) -> None:
        """Add the first frame of an episode."""
        self._write(frame, 0)

    def add(self, action: Tensor, reward: float, discount: float, frame: Tensor) -> None:
        """Add an action at the last frame, its reward and discount, and the next frame."""
        capacity = len(self.frames)
        last = (self.next - 1) % capacity
        age = int(self._last_age) + 1
        self.action[last], self.reward[last], self.discount[last] = (
            action.to(self.action.device),
            reward,
            discount,
        )
        self._write(frame, age)
        self.usable[last] = 1.0

    def _write(self, frame: Tensor, age: int) -> None:
        capacity, at = len(self.frames), self.next
        self.frames[at] = frame.to(self.frames.device)
        self.age[at] = self._last_age = age
        # this frame, and the older ones whose stacks reach back to what was here
        for ahead in range(STACK):
            self.usable[(at + ahead) % capacity] = 0.0
        self.next = (at + 1) % capacity

    def __len__(self) -> int:
        return int(self.usable.sum())

    def stack(self, slots: Tensor) -> Tensor:
        """Observations that end at `slots` [n]; episodes begin with copies of the first frame."""
        back = torch.arange(STACK - 1, -1, -1, device=slots.device)
        back = torch.minimum(back, self.age[slots][:, None])
        return self.frames[(slots[:, None] - back) % len(self.frames)].flatten(1, 2)

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        """`count` transitions, uniformly with replacement; nothing is read back from the device.

        generator: on that device.
        """
        slots = torch.multinomial(self.usable, count, replacement=True, generator=generator)
        after = self.stack((slots + 1) % len(self.frames))
        return Batch(
            self.stack(slots), self.action[slots], self.reward[slots], self.discount[slots], after
        )
