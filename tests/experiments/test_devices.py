"""Every experiment runs on a GPU that nobody has (see `pretend_cuda`) and keeps to it; where there
is a real one, it runs on that, too.

`pretend_cuda` replaces parts of torch, so these tests run this module in a process of its own,
which prints what it found.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

HERE = Path(__file__).parent.parent


def cases():
    """For each experiment, parameters that lead through its branches.

    One that is not named here runs with its defaults alone.

    All share one store, so that experiments on the same training find what another trained.
    """
    from curlnb.experiments import graphs, latent_text, objectives, sentences

    of_images = {
        "biased": {"released_probe": True},
        "debiased": {"tau_plus": 0.1, "negatives": 3, "monitor_every": 1, "monitor_k": 3},
        "hard": {"tau_plus": 0.1, "beta": 1.0, "schedule": "down", "views": 4},
        "hard_corrected": {"beta": 1.0, "schedule": "up", "bn_groups": 2, "precision": "bf16"},
        "unbiased": {"label_groups": 5, "dataset": "cifar100", "negatives": 3},
        "debiased_without_false": {"positives": "true", "evaluate_on": "validation"},
    }
    own_parts = {
        "objective": own_objective,
        "encoder": own_encoder,
        "augmentation": own_augmentation,
        "dataset": own_images(),
    }
    of_sentences = {
        "debiased": {"tau_plus": 0.1, "floor": None},
        "hard": {"beta": 1.0, "weight_clip": "clamp", "diagonal": "zero", "sibling": "in"},
    }
    of_graphs = {"batch": 8, "folds": 2}
    of_crops = {"positives": 2, "tau_plus": 0.1, "sphere_floor": True}
    return {
        "images.simclr": [
            *({"objective": name, **of_images.get(name, {})} for name in objectives.OBJECTIVES),
            {"dataset": "stl10", "train_split": "train+unlabeled", "precision": "tf32"},
            {"dataset": "quickdraw-mini", "encoder": "resnet18", "epochs": 0},
            own_parts,
        ],
        "images.measures": [{"objective": "hard", "tau_plus": 0.1, "beta": 1.0}],
        "moco.moco_v2": [
            {"mix_hardest": 4, "mixed": 2, "mixed_with_query": 2, "optimizer": "sgd"},
            {"objective": own_objective, "encoder": own_encoder},
            {"tau_plus": 0.1, "beta": 1.0, "bn_groups": 1, "precision": "bf16", "cosine": True},
        ],
        "multiview.cmc": [
            {"bank": True, "negatives": 8, "precision": "bf16"},
            {"tau_plus": 0.01, "optimizer": "sgd", "milestones": [0.5]},
        ],
        "graphs.infograph": [
            *(
                {"objective": name, "beta": beta, **of_graphs}
                for name in graphs.OBJECTIVES
                for beta in (0.0, 1.0)
            ),
            {"beta": 1.0, "tau_plus": 0.1, "weight_clip": None, **of_graphs},
            {"beta": 1.0, "weight_clip": "clamp", **of_graphs},
            {"dataset": "IMDB-BINARY", "epochs": 0, **of_graphs},
        ],
        "latent_images.curl": [
            {"tr_tasks": 2, "track": True, "shift": 1},
            {"method": "supervised", "flip": True, "share": 0.5, "precision": "bf16"},
            {"method": "untrained", "dataset": "cifar10-mini", "encoder": "vgg16_bn"},
            {"loss": "hinge", "fresh": True, "encoder": own_encoder},
        ],
        "latent_text.curl": [
            *({"method": name} for name in latent_text.METHODS),
            {"epochs": 0, "track": True},
            {"loss": "hinge", "fresh": True, "words": 5, "evaluate_on": "dev", "tr_tasks": 2},
            *(
                {"encoder": name, "method": "untrained"}
                for name in latent_text.ENCODERS
                if name != "gru"
            ),
        ],
        "latent_text.reviews": [
            {"train_on": "wiki-mini"},
            {"method": "quick_thoughts", "evaluate_on": "validation"},
            {"epochs": 0},
        ],
        "sentences.quick_thoughts": [
            *(
                {"method": name, "evaluate_tasks": False, **of_sentences.get(name, {})}
                for name in sentences.METHODS
            ),
            {"word_dim": 8, "tasks": ["MR", "TREC", "MSRP"]},
        ],
        "control.representation": [{}, {"shrink": 2, **of_crops}],
        "control.curl_sac": [of_crops, {"contrastive": False, "task": "walker walk"}],
    }


def own_images():
    from curlnb.data import datasets

    images = np.random.default_rng(0).integers(0, 256, (16, 3, 32, 32), dtype=np.uint8)
    return datasets.from_arrays(images, [0, 1] * 8, 255 - images, [0, 1] * 8)


def own_objective(pos, neg):
    return (neg - pos[:, None]).exp().mean(1)


def own_encoder(channels):
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def own_augmentation(images, generator):
    return images + 0.1 * torch.rand(images.shape, generator=generator, device=images.device)


def problems(folder, gpu):
    """One line a problem, of all experiments, each inside of `gpu`."""
    from curlnb.experiments import all_experiments
    from curlnb.runs.store import Store

    known, variants, store = {e.name: e for e in all_experiments()}, cases(), Store(folder)
    yield from (f"there is no experiment {name}" for name in variants.keys() - known.keys())
    for name, experiment in known.items():
        for parameters in variants.get(name, [{}]):
            with gpu():
                try:
                    record = store.run(experiment.asked(parameters, 0))
                    if record is None or record["device"] != "cuda":
                        yield f"{name} {parameters}: did not run on the GPU"
                except Exception as error:
                    yield f"{name} {parameters}: {type(error).__name__}: {error}"


ON = torch.device("cuda")
# what is said of a fault, and a line of a training step that has it; x and m are on the GPU
PLANTED = {
    "add: tensors of cuda:0 and of cpu meet": lambda x, m: x + torch.ones(4),
    "mv: tensors of cuda:0 and of cpu meet": lambda x, m: torch.ones(4, 4) @ x,
    "cat: tensors of cuda:0 and of cpu meet": lambda x, m: torch.cat([x, torch.ones(1)]),
    "stack: tensors of cuda:0 and of cpu meet": lambda x, m: torch.stack([x[0], torch.ones(())]),
    "a tensor of cpu is indexed by one of cuda:0": lambda x, m: torch.ones(4)[m],
    "values of cpu are put into": lambda x, m: torch.zeros(4, device=ON).index_put(
        (m,), torch.ones(2)
    ),
    "a generator of cpu draws for cuda:0": lambda x, m: torch.rand(
        4, generator=torch.Generator(), device=ON
    ),
    "a generator of cuda:0 draws for cpu": lambda x, m: torch.randperm(
        4, generator=torch.Generator(ON)
    ),
    "numpy of a tensor of cuda:0": lambda x, m: x.detach().numpy(),
    "__array__ of a tensor of cuda:0": lambda x, m: np.asarray(x.detach()),
}


def missed():
    """One line for each planted fault of a training step that is not found."""
    from pretend_cuda import pretended

    for words, line in PLANTED.items():
        said = "nothing"
        with pretended():
            model = torch.nn.Linear(4, 1, bias=False).to("cuda")
            mask = (torch.arange(4) < 2).to("cuda")
            optimizer = torch.optim.Adam(model.parameters(), fused=True)
            try:
                line(model.weight[0], mask)
                model(torch.ones(2, 4, device="cuda")).mean().backward()
                optimizer.step()
            except RuntimeError as error:
                said = str(error)
        if words not in said:
            yield f"{words}: {said}"


def found_on_a_gpu(what, folder):
    """What this module finds in a process of its own."""
    about = {
        "CURLNB_DEVICE": "cuda",
        "CURLNB_DRY": "1",
        "OMP_NUM_THREADS": "1",
        "CURLNB_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
    }
    # a fork cannot have the GPU if its parent has looked for one
    about |= {"TESTS_FORKS": ""} if what == "real" else {"CUDA_VISIBLE_DEVICES": ""}
    line = [sys.executable, "forks.py", "-m", "experiments.test_devices", what, str(folder)]
    done = subprocess.run(
        line, cwd=HERE, env=os.environ | about, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_experiment_keeps_to_the_gpu_and_each_planted_fault_is_found(tmp_path):
    assert found_on_a_gpu("pretended", tmp_path) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_experiment_runs_on_a_real_gpu(tmp_path):
    assert found_on_a_gpu("real", tmp_path) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_a_gpu_gives_the_same_bits_again(tmp_path, precision):
    from curlnb.experiments.images import simclr
    from curlnb.runs.store import Store

    given = {"dataset": "cifar10-mini", "size": 24, "epochs": 2, "precision": precision}
    first, again = (Store(tmp_path / name).run(simclr.asked(given, 0)) for name in ("one", "two"))
    assert first["device"] == "cuda"
    assert first["metrics"] == again["metrics"]


if __name__ == "__main__":
    what, place = sys.argv[1], Path(sys.argv[2])
    if what == "real":
        found = list(problems(place, contextlib.nullcontext))
    else:
        # What curlnb takes from torch is to be the pretended one; a fork has imported it already.
        for name in [name for name in sys.modules if name.startswith("curlnb")]:
            del sys.modules[name]
        from pretend_cuda import pretended

        found = [*missed(), *problems(place, pretended)]
    print(json.dumps(found))
