"""Trained encoders that come with the repository, so that embeddings can be explored at once."""

import hashlib
import json
from pathlib import Path
from typing import Any

from curlnb.models.encoders import SimCLR, encoder, projection_head
from curlnb.runs import environment


def folder() -> Path:
    """The folder data/encoders/: a safetensors file per encoder, and the table encoders.json."""
    return environment.checkout("models.pretrained") / "data" / "encoders"


def catalogue() -> dict[str, dict[str, Any]]:
    """How each committed encoder was trained and what it scored, by name.

    Each entry has the run's parameters, seed, identity and metrics, the commit, the machine, and
    the file's sha256. ValueError or FileNotFoundError without the repository.
    """
    path = folder() / "encoders.json"
    if not path.exists():
        raise FileNotFoundError(
            f"no committed encoders at {path}: they come with the repository, which CURLNB_HOME "
            "must name"
        )
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def pretrained(name: str) -> SimCLR:
    """A committed network, in evaluation mode on the CPU.

    Normalised images [n, 3, 32, 32] -> (features [n, 128], projections [n, 128]). name: the
    objective it was trained by, "biased", "debiased" (tau+ 0.1), "unbiased" or "hard" (beta 1, tau+
    0.1), on CIFAR-10 without its labels (`unbiased` chooses negatives by them); see `catalogue`.
    Images are normalised by `data.augment.normalise`. The weights are frozen, so that features go
    into a probe as they are: `requires_grad_()` makes them trainable. `model.encoder` gives the
    features alone. ValueError for an unknown name, or a file that is not the committed one.
    """
    # the folder `models` must be importable with torch and numpy alone
    from safetensors.torch import load

    about = catalogue()
    if name not in about:
        raise ValueError(f"no committed encoder {name!r}; there are {', '.join(about)}")
    path = folder() / f"{name}.safetensors"
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != about[name]["sha256"]:
        raise ValueError(
            f"{path} is not the committed file: restore it, for example with `git checkout`"
        )
    body, dim = encoder(about[name]["parameters"]["encoder"])
    model = SimCLR(body, projection_head(dim))
    model.load_state_dict(load(content))
    return model.eval().requires_grad_(False)
