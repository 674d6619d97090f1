"""Every experiment runs on a GPU that nobody has (see `pretend_cuda`) and keeps to it; where there
is a real one, it runs on that, too.

`pretend_cuda` replaces parts of torch, so these tests start this file as a script, in a process of
its own, which prints what it found.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent.parent


def cases() -> dict[str, list[dict[str, Any]]]:
    """For each experiment, parameters that lead through its branches.

    One that is not named here runs with its defaults alone.

    All share one store, so that experiments on the same training find what another trained.
    """
    from curlnb.experiments import graphs, images, latent, latent_text, objectives, sentences

    takes: dict[str, dict[str, Any]] = {
        "debiased": {"tau_plus": 0.1},
        "hard": {"tau_plus": 0.1, "beta": 1.0},
        "hard_corrected": {"beta": 1.0},
    }
    image_training: list[dict[str, Any]] = [
        {"objective": name, **takes.get(name, {})} for name in objectives.OBJECTIVES
    ]
    image_training += [
        {"objective": "hard", "beta": 1.0, "tau_plus": 0.1, "schedule": name, "views": 4}
        for name in objectives.SCHEDULES[1:]
    ]
    image_training += [{"positives": name, "negatives": 3} for name in images.POSITIVES]
    image_training += [
        {"objective": "unbiased", "negatives": 3},
        {"monitor_every": 1, "monitor_k": 3},
        {"bn_groups": 2},
    ]
    image_training += [{"encoder": "resnet18"}, {"precision": "bf16"}, {"precision": "tf32"}]
    image_training += [
        {"dataset": "stl10", "train_split": "train+unlabeled"},
        {"objective": "unbiased", "label_groups": 5, "dataset": "cifar100"},
        {"dataset": "quickdraw-mini"},
    ]
    image_training += [{"evaluate_on": "validation"}]
    image_training += [
        {"objective": own_objective},
        {"encoder": own_encoder},
        {"augmentation": own_augmentation},
        {"dataset": own_images()},
    ]
    latent_training: list[dict[str, Any]] = [
        {"method": name, "tr_tasks": 2, "track": True} for name in latent.METHODS
    ]
    latent_training += [{"loss": name, "fresh": True} for name in latent.KINDS]
    of_words = [
        {"encoder": name, "method": "untrained"} for name in latent_text.ENCODERS if name != "gru"
    ]
    return {
        "images.simclr": [{}, *image_training, {"released_probe": True}],
        "images.surrogate": [{}, {"seed": 1}],
        "representations.look": [{}, {"seed": 2}],
        "images.measures": [{}, {"objective": "hard", "beta": 1.0, "tau_plus": 0.1}],
        "moco.moco_v2": [
            {},
            {"mix_hardest": 4, "mixed": 2, "mixed_with_query": 2},
            {"tau_plus": 0.1, "beta": 1.0, "bn_groups": 1, "precision": "bf16"},
            {"optimizer": "sgd", "cosine": True},
        ],
        "multiview.cmc": [
            {},
            {"bank": True, "negatives": 8, "precision": "bf16"},
            {"tau_plus": 0.01, "optimizer": "sgd", "milestones": [0.5]},
        ],
        "graphs.infograph": [
            *(
                {"batch": 8, "objective": name, "beta": beta}
                for name in graphs.OBJECTIVES
                for beta in (0.0, 1.0)
            ),
            *(
                {"batch": 8, "beta": 1.0, "tau_plus": 0.1, "weight_clip": clip}
                for clip in (None, "clamp")
            ),
            {"batch": 8, "dataset": "IMDB-BINARY", "epochs": 0},
        ],
        "latent_images.curl": [
            *latent_training,
            {"shift": 1},
            {"flip": True, "share": 0.5, "precision": "bf16"},
            {"dataset": "cifar10-mini", "encoder": "vgg16_bn"},
        ],
        "latent_text.curl": [
            *latent_training[:-1],
            *of_words,
            {"method": "quick_thoughts"},
            {"words": 5, "evaluate_on": "dev"},
            {"epochs": 0, "track": True},
        ],
        "latent_text.reviews": [
            {},
            {"method": "quick_thoughts", "evaluate_on": "validation"},
            {"train_on": "wiki-mini"},
            {"epochs": 0},
        ],
        "sentences.quick_thoughts": [
            *(
                {"method": name, "evaluate_tasks": False, **takes.get(name, {})}
                for name in sentences.METHODS
            ),
            {"method": "debiased", "tau_plus": 0.1, "floor": None, "evaluate_tasks": False},
            {
                "method": "hard",
                "beta": 1.0,
                "weight_clip": "clamp",
                "diagonal": "zero",
                "sibling": "in",
                "evaluate_tasks": False,
            },
            {"word_dim": 8, "tasks": ["TREC", "MSRP"]},
            {"tasks": ["MR"]},
        ],
        "control.representation": [
            {},
            {"positives": 2, "tau_plus": 0.1, "sphere_floor": True, "shrink": 2},
            {"epochs": 0},
        ],
        "control.curl_sac": [
            {},
            {"positives": 2, "tau_plus": 0.1, "sphere_floor": True},
            {"contrastive": False, "task": "walker walk"},
        ],
    }


def own_images() -> Any:
    import numpy as np

    from curlnb.data import datasets

    draws, labels = np.random.default_rng(0), [0, 1] * 8
    return datasets.from_arrays(
        *(
            part
            for _ in range(2)
            for part in (draws.integers(0, 256, (16, 3, 32, 32), dtype=np.uint8), labels)
        )
    )


def own_objective(pos: Any, neg: Any) -> Any:
    return (neg - pos[:, None]).exp().mean(1)


def own_encoder(channels: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def own_augmentation(images: Any, generator: Any) -> Any:
    return images + 0.1 * torch.rand(images.shape, generator=generator, device=images.device)


def problems(
    folder: Path, gpu: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Iterator[str]:
    """One line a problem, of all experiments, each inside of `gpu`."""
    from curlnb.experiments import all_experiments
    from curlnb.runs.store import Store

    known, variants, store = {e.name: e for e in all_experiments()}, cases(), Store(folder)
    yield from (f"there is no experiment {name}" for name in variants.keys() - known.keys())
    for name, experiment in known.items():
        for given in variants.get(name, [{}]):
            parameters = {key: value for key, value in given.items() if key != "seed"}
            with gpu():
                try:
                    record = store.run(experiment, parameters, given.get("seed", 0))
                    if record is None or record["device"] != "cuda":
                        yield f"{name} {given}: did not run on the GPU"
                except Exception as error:
                    yield f"{name} {given}: {type(error).__name__}: {error}"


def planted() -> dict[str, tuple[str, Callable[[Any, Any], Any]]]:
    """Planted faults: the expected message, and a line of a training step that has the fault."""
    import numpy as np

    on, mean = torch.device("cuda"), torch.Tensor.mean
    return {
        "a tensor of the CPU meets one of the GPU": (
            "add: tensors of cuda:0 and of cpu meet",
            lambda x, m: x + torch.ones(4),
        ),
        "a matrix of the CPU": (
            "tensors of cuda:0 and of cpu meet",
            lambda x, m: x @ torch.ones(4, 4),
        ),
        "labels of the GPU index a tensor of the CPU": (
            "a tensor of cpu is indexed by one of cuda:0",
            lambda x, m: torch.ones(4)[m],
        ),
        "a number of the CPU where none may be": (
            "stack: tensors of cuda:0 and of cpu meet",
            lambda x, m: torch.stack([mean(x), torch.ones(())]),
        ),
        "values of the CPU are put in": (
            "values of cpu are put into",
            lambda x, m: torch.zeros(4, device=on).__setitem__(m, torch.ones(4)[:2]),
        ),
        "a generator of the CPU": (
            "a generator of cpu draws for cuda:0",
            lambda x, m: torch.rand(4, generator=torch.Generator(), device=on),
        ),
        "a generator of the GPU": (
            "a generator of cuda:0 draws for cpu",
            lambda x, m: torch.randperm(4, generator=torch.Generator(on)),
        ),
        "numpy": ("numpy of a tensor of cuda:0", lambda x, m: x.detach().numpy()),
        "asarray": ("__array__ of a tensor of cuda:0", lambda x, m: np.asarray(x.detach())),
    }


def found_of_planted() -> dict[str, str]:
    """What is said of each planted line in a training step."""
    from pretend_cuda import pretended

    found = {}
    for name, (_, line) in planted().items():
        with pretended():
            model = torch.nn.Linear(4, 1, bias=False).to("cuda")
            mask = (torch.arange(4) < 2).to("cuda")
            optimizer = torch.optim.Adam(model.parameters(), fused=True)
            try:
                line(model.weight[0], mask)
                model(torch.ones(2, 4, device="cuda")).mean().backward()
                optimizer.step()
                found[name] = ""
            except RuntimeError as error:
                found[name] = str(error)
    return found


def found_on_a_gpu(what: str, folder: Path) -> Any:
    """What this file finds as a script in a process of its own."""
    about = {
        "CURLNB_DEVICE": "cuda",
        **({} if what == "real" else {"CUDA_VISIBLE_DEVICES": ""}),
        "CURLNB_DRY": "1",
        "OMP_NUM_THREADS": "1",
        "CURLNB_THREADS": "1",
    }
    about["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    )
    line = [sys.executable, __file__, what, str(folder)]
    done = subprocess.run(
        line, env={**os.environ, **about}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_experiment_keeps_to_the_gpu(tmp_path):
    assert found_on_a_gpu("experiments", tmp_path) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_experiment_runs_on_a_real_gpu(tmp_path):
    assert found_on_a_gpu("real", tmp_path) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_gpu_gives_the_same_bits_again(tmp_path, precision):
    from curlnb.experiments.images import simclr
    from curlnb.runs.store import Store

    given = {"dataset": "cifar10-mini", "size": 24, "epochs": 2, "precision": precision}
    first, again = (Store(tmp_path / name).run(simclr, given, 0) for name in ("one", "two"))
    assert first["device"] == "cuda"
    assert first["metrics"] == again["metrics"]


def test_each_planted_fault_is_found(tmp_path):
    found = found_on_a_gpu("planted", tmp_path)
    for name, (words, _) in planted().items():
        assert words in found[name], (name, found[name])


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    found: Any
    if what == "real":
        found = list(problems(place, contextlib.nullcontext))
    else:
        from pretend_cuda import pretended  # before curlnb

        found = list(problems(place, pretended)) if what == "experiments" else found_of_planted()
    print(json.dumps(found))
