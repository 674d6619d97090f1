"""Control: the contrastive loss, the replay buffer and crops, soft actor-critic, learning."""

import json
import math
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from formulas import generator, refused
from torch import nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from curlnb.companion import notebook
from curlnb.data import control_frames
from curlnb.experiments import control as experiments
from curlnb.experiments.control_representation import explained_variance
from curlnb.models import sac
from curlnb.runs import environment
from curlnb.runs.store import Run


@pytest.fixture(autouse=True)
def seeded():
    """Random cases, but the same ones every time."""
    torch.manual_seed(0)


# --- the contrastive loss


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    ("tau", "floor", "named"), [(0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (0.3, math.exp(-1), "sphere")]
)
def test_contrast_equals_a_loop_in_float64(views, tau, floor, named):
    """chuang2020, Eq. 16, anchor by anchor."""
    query, keys, bilinear = (
        torch.randn(shape, dtype=torch.float64) for shape in ((9, 4), (views, 9, 4), (4, 4))
    )
    total = floored = 0
    for i in range(9):
        h = [[math.exp(float(query[i] @ bilinear @ key)) for key in view] for view in keys]
        u, v = h[0][:i] + h[0][i + 1 :], [view[i] for view in h]
        g = (sum(u) / 8 - tau * sum(v) / views) / (1 - tau)
        floored += tau > 0 and g <= floor
        total -= math.log(v[0] / (v[0] + 8 * (max(g, floor) if tau else g)))
    loss, clamped = sac.bilinear_loss(query, keys, bilinear, tau_plus=tau, floor=named)
    assert loss.item() == pytest.approx(total / 9, rel=1e-10)
    assert clamped.item() == pytest.approx(floored / 9)


# --- crops and replay


def test_crops_are_windows_of_their_own_images_and_reach_every_offset():
    images = torch.arange(5 * 5, dtype=torch.uint8).reshape(1, 1, 5, 5).repeat(400, 2, 1, 1)
    crops = control_frames.random_crop(images, 3, generator())
    assert crops.shape == (400, 2, 3, 3)
    assert crops.dtype == torch.uint8
    corners = crops[:, 0, 0, 0].long()
    window = torch.arange(3)[:, None] * 5 + torch.arange(3)
    assert torch.equal(crops[:, 1].long(), corners[:, None, None] + window)
    assert set(corners.tolist()) == {5 * row + column for row in range(3) for column in range(3)}
    assert torch.equal(crops, control_frames.random_crop(images, 3, generator()))
    assert torch.equal(control_frames.centre_crop(images, 3)[0, 0], images[0, 0, 1:4, 1:4])


def test_replay_returns_what_was_seen_and_done_also_after_it_has_wrapped():
    """Frames carry a number.

    A drawn transition must be one that happened, with its own episode's frames.
    """
    replay, happened, number = control_frames.Replay(13, 1, size=1), {}, 0

    def frame(number):
        return torch.full((3, 1, 1), number, dtype=torch.uint8)

    for length in (2, 5, 9, 4):
        seen = [number] * 3
        replay.begin(frame(number))
        for _ in range(length):
            number += 1
            replay.add(torch.tensor([float(number)]), number / 2, 1.0, frame(number))
            happened[number] = (seen[-3:], [*seen[-2:], number])
            seen.append(number)
        number += 1
    batch = replay.sample(300, generator())
    assert batch.observed.dtype == torch.uint8
    for row, action in enumerate(batch.action[:, 0].int().tolist()):
        stacks = (batch.observed[row, ::3, 0, 0].tolist(), batch.after[row, ::3, 0, 0].tolist())
        assert stacks == happened[action]
        assert batch.reward[row] == action / 2
    usable = replay.action[replay.usable > 0, 0]
    assert batch.action.unique().tolist() == sorted(usable.tolist())
    assert len(replay) == len(usable) == 9


# --- soft actor-critic


def test_squashed_actions_have_the_density_that_torch_gives_them():
    mean, log_std = (
        torch.randn(6, 2, dtype=torch.float64),
        torch.randn(6, 2, dtype=torch.float64).clamp(-1, 0.5),
    )
    noise = torch.randn(6, 2, dtype=torch.float64)
    action, log_pi = sac.squashed_gaussian(mean, log_std, noise)
    law = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    assert torch.allclose(log_pi, law.log_prob(action).sum(1), atol=1e-8)
    far, log_far = sac.squashed_gaussian(
        torch.full((1, 1), 40.0), torch.zeros(1, 1), torch.zeros(1, 1)
    )
    assert far == 1
    assert log_far.isfinite()


def test_the_target_is_the_soft_bellman_equation():
    q, log_pi = torch.tensor([[3.0, 1.0], [2.0, 5.0]]), torch.tensor([-1.0, 0.5])
    y = sac.bellman_target(
        torch.tensor([0.5, 1.0]), torch.tensor([1.0, 0.0]), q, log_pi, torch.tensor(0.1), 0.9
    )
    assert y.tolist() == pytest.approx([0.5 + 0.9 * (2.0 + 0.1), 1.0])


def an_agent():
    return sac.Agent(nn.Identity(), 3, 2, features=8, hidden=16)


def test_temperature_moves_towards_the_target_entropy():
    """alpha falls where the policy's entropy is above -dim(a), and rises where it is below."""
    (before, after), action = torch.randn(2, 16, 3), torch.randn(16, 2).tanh()
    batch = control_frames.Batch(before, action, torch.randn(16), torch.ones(16), after)
    for bias, rises in ((0.5, False), (-20.0, True)):
        agent = an_agent()
        nn.init.zeros_(agent.actor[-1].weight)
        agent.actor[-1].bias.data = torch.tensor([0.0, 0.0, bias, bias])
        start = agent.log_alpha.item()
        told = sac.Learner(agent).update(batch, generator())
        assert (told["entropy"] < -agent.actions) == rises
        assert (agent.log_alpha.item() > start) == rises


def test_the_actor_leaves_the_encoder_alone():
    agent = an_agent()
    agent.encoder.trunk = nn.Linear(3, 3)
    mean, log_std = agent.policy(torch.randn(4, 3))
    (mean.sum() + log_std.sum()).backward()
    assert agent.encoder.trunk.weight.grad is None
    assert agent.actor_readout[0].weight.grad is not None


class Dot(control_frames.Environment):
    """A bright square on a line, to be pushed to the middle and held there.

    Seen as frames of 25 pixels, 20 actions an episode.
    """

    def __init__(self):
        self.task = SimpleNamespace(repeat=50, actions=1, lr=1e-3)

    def reset(self, seed):
        self.at, self.left = float(np.random.default_rng(seed).uniform(-1, 1)), 20
        return self.frame()

    def step(self, action):
        self.at, self.left = float(np.clip(self.at + 0.4 * action[0], -1, 1)), self.left - 1
        return self.frame(), 50 * (1 - abs(self.at)), 1.0, self.left == 0

    def frame(self):
        frame, column = torch.zeros(3, 25, 25, dtype=torch.uint8), round(11 + 9 * self.at)
        frame[:, 10:14, column : column + 3] = 255
        return frame


def trained(folder, **parameters):
    torch.manual_seed(0)  # as the store does
    given = dict(tau_plus=0.1, positives=2, shrink=4, layers=2) | parameters
    run = Run(folder, device=torch.device("cpu"))
    return experiments.curl_sac.call(run, experiments.curl_sac.parameters(given), 0)


def test_the_agent_learns_from_pixels(monkeypatch, tmp_path):
    """The whole agent, on a small task of ours; learning cartpole itself takes minutes."""
    monkeypatch.setattr(control_frames, "make", lambda name, shrink: Dot())
    length = dict(environment_steps=25_000, evaluate_every=25_000, episodes=5, initial=100)
    found = trained(tmp_path, batch=32, filters=8, hidden=64, features=16, **length)
    assert found["steps_curve"] == [0, 25_000]
    assert len(found["training_curve"]) == 25
    assert found["score"] > 0.8 > found["random"] + 0.15


class Stopped(Exception):
    """The process was killed here."""


def test_a_killed_agent_goes_on_to_the_same_bits(monkeypatch, tmp_path):
    """Killed twice in the middle of an episode; the run resumes from the end of the one before."""
    steps_left = [10**9]

    class Killed(Dot):
        def step(self, action):
            steps_left[0] -= 1
            if steps_left[0] < 0:
                raise Stopped
            return super().step(action)

    monkeypatch.setattr(control_frames, "make", lambda name, shrink: Killed())
    monkeypatch.setattr(experiments, "CHECKPOINT_SECONDS", 0.0)
    length = dict(environment_steps=4_000, evaluate_every=2_000, episodes=1, initial=25)
    size = dict(batch=4, capacity=50, filters=4, hidden=16, features=8)
    whole = trained(tmp_path / "whole", **length, **size)
    acted = 10**9 - steps_left[0]
    for stop in (70, 50):  # in the second episode, before it learns, and in the third
        steps_left[0] = stop
        with pytest.raises(Stopped):
            trained(tmp_path / "killed", **length, **size)
    steps_left[0] = 10**9
    assert trained(tmp_path / "killed", **length, **size) == whole
    assert 10**9 - steps_left[0] < acted // 2  # and it did not begin again


# --- readout


def test_the_share_explained_is_one_for_linear_targets_and_none_for_noise():
    x, noise, weights = torch.randn(600, 5), torch.randn(600, 3), torch.randn(5, 3)
    y = torch.cat([x @ weights, torch.ones(600, 1)], 1)  # the last coordinate is still
    assert explained_variance(x[:400], y[:400], x[400:], y[400:]) > 0.999
    assert abs(explained_variance(x[:400], noise[:400], x[400:], noise[400:])) < 0.1
    few = torch.randn(440, 30)  # noise that forty samples could fit: what is held out forbids it
    assert explained_variance(few[:40], noise[:40], few[40:], noise[40:440]) > -0.3


# --- what is not there


def test_a_simulator_that_is_missing_or_cannot_draw_is_named_in_one_line(monkeypatch):
    def load(*_):
        raise RuntimeError("no display\nin many words")

    def named(simulator):
        monkeypatch.setitem(sys.modules, "dm_control", simulator)
        control_frames._suite.cache_clear()
        return control_frames.problem()

    pytest.importorskip("absl")
    there = SimpleNamespace(__spec__="there", suite=SimpleNamespace(load=load))
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert named(there) == "no frame can be rendered with MUJOCO_GL=egl: no display"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(control_frames, "_backend", lambda: "")
    assert named(there).startswith("no frame can be rendered: neither EGL nor OSMesa works here")
    assert named(None).startswith("dm_control is not installed: `pip install")
    with pytest.raises(control_frames.Unavailable, match="dm_control is not installed"):
        control_frames.make("finger spin")


def test_without_a_renderer_the_notebook_says_not_run(monkeypatch, tmp_path, capsys):
    page = environment.home() / "notebooks" / "2_dcl" / "5.4_table3_control.ipynb"
    cells = json.loads(page.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.setattr(control_frames, "problem", lambda: "no screen at all")
    monkeypatch.setenv("CURLNB_DRY", "1")
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    monkeypatch.setattr(notebook, "save_figure", lambda *_, **__: None)  # half of the time
    exec("\n".join(code), {})
    plt.close("all")
    assert capsys.readouterr().out.startswith("no screen at all\n")
    (file,) = tmp_path.rglob("claims.csv")
    assert "not run" in file.read_text()


def test_an_unknown_task_is_named():
    with refused("task 'cartpole' is unknown; use one of finger spin, cartpole swingup"):
        control_frames.make("cartpole")
    with refused("an episode of cartpole swingup has 125 actions, not 126"):
        control_frames.random_episodes("cartpole swingup", 1, 126)


def test_frames_and_states_are_functions_of_the_seed():
    control_frames._suite.cache_clear()
    if why := control_frames.problem():
        pytest.skip(why)
    first = control_frames.random_episodes("cartpole swingup", 2, 4, 0, 2)
    control_frames.random_episodes.cache_clear()
    again = control_frames.random_episodes("cartpole swingup", 2, 4, 0, 2)
    assert first.frames.shape == (2, 4, 3, 50, 50)
    assert torch.equal(first.frames, again.frames)
    assert torch.equal(first.positions, again.positions)
    assert not torch.equal(first.positions[0], first.positions[1])
    assert len(first) == 4
    assert torch.equal(first.stacks(torch.tensor([3]))[0], first.frames[1, 1:4].flatten(0, 1))
    whole = control_frames.make("cartpole swingup")
    whole.reset(0)
    assert whole.frame().float().mean() == pytest.approx(first.frames[0, 0].float().mean(), abs=5)
