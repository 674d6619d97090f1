"""The row of `make bench` about control: rendered frames a second on one core."""

from typing import Any

import torch
from bench_steps import in_turn, row

from curlnb.data import control_frames

FRAMES = 200


def frames(device: torch.device) -> list[dict[str, Any]]:
    """84 x 84 frames of cheetah run a second, one camera kept, without antialiasing and shadows,
    against dm_control's own call.

    No row where nothing can be rendered; a line says why.
    """
    if why := control_frames.problem():
        print(f"frames: {why}")
        return []
    ours, plain = (
        control_frames.Environment("cheetah run", control_frames.CROP),
        control_frames._suite().load("cheetah", "run").physics,
    )
    ours.reset(0)

    def fast() -> None:
        for _ in range(FRAMES):
            ours.frame()

    def usual() -> None:
        for _ in range(FRAMES // 4):
            plain.render(control_frames.CROP, control_frames.CROP, camera_id=0)

    a, b = in_turn(fast, usual, device, repeats=3)
    what = f"frames of {control_frames.CROP} pixels, fast, against dm_control's own call"
    return [row(what, FRAMES / a, FRAMES / 4 / b, "frames/s")]
