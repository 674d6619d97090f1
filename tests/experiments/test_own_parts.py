"""Your own parts train, count in the key with their code, work in sweeps, and are checked."""

import functools
import inspect

import pytest
import torch
from direct import Noise, execute
from torch import nn
from torch.nn.functional import logsigmoid

from curlnb.data import datasets
from curlnb.experiments import own_parts
from curlnb.experiments.image_data import ImageData
from curlnb.experiments.images import Contrast, objective_loss, simclr, surrogate
from curlnb.experiments.latent_images import curl
from curlnb.experiments.moco import moco_v2
from curlnb.experiments.representations import visualise
from curlnb.models import encoders
from curlnb.runs.experiment import StoreError, as_json
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep

TINY = {"dataset": Noise(24), "batch": 8, "epochs": 1, "size": 16}
OTHERS = {
    "objective": "hard",
    "encoder": "resnet18",
    "augmentation": "simclr",
    "dataset": Noise(24),
}


def info_nce_by_hand(pos, neg):
    """SimCLR's loss at temperature 1/2."""
    return -logsigmoid(2 * pos - (2 * neg).logsumexp(1))


def sigmoid_loss(pos, neg):
    return -logsigmoid(5 * pos) - logsigmoid(-5 * neg).mean(1)


def linear_encoder(channels):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 12))


def other_encoder(channels):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 20))


def noisy(images, generator):
    return (
        images + 0.1 * torch.rand(images.shape, generator=generator, device=images.device)
    ).clamp(0, 1)


def noisier(images, generator):
    return (
        images + 0.3 * torch.rand(images.shape, generator=generator, device=images.device)
    ).clamp(0, 1)


PARTS = [
    ("objective", sigmoid_loss, info_nce_by_hand),
    ("encoder", linear_encoder, other_encoder),
    ("augmentation", noisy, noisier),
    ("dataset", Noise(30), Noise(32)),
]


@pytest.mark.parametrize(("name", "part", "another"), PARTS, ids=[name for name, *_ in PARTS])
def test_an_own_part_trains_in_a_sweep_and_counts_in_the_key(tmp_path, name, part, another):
    keys = {
        simclr.key(TINY | {name: value}, 0)
        for value in (part, another, TINY.get(name, OTHERS[name]))
    }
    assert len(keys) == 3
    trainings = {simclr.training_key(TINY | {name: value}, 0) for value in (part, another)}
    assert len(trainings) == 2
    fixed = {key: value for key, value in TINY.items() if key != name}
    found = sweep(
        simclr, {name: [part, another]}, seeds=1, store=Store(tmp_path), workers=0, **fixed
    )
    assert len(found) == 2
    assert found["loss"].notna().all()
    assert found["linear"].between(0, 1).all()


def test_own_parts_of_every_kind_go_to_worker_processes(tmp_path):
    parts = TINY | {name: part for name, part, _ in PARTS}
    here, elsewhere = (
        sweep(simclr, seeds=2, store=Store(tmp_path / f"{workers}"), workers=workers, **parts).drop(
            columns="seconds"
        )
        for workers in (0, 2)
    )
    assert elsewhere.equals(here)


def test_an_experiment_says_what_it_takes_and_that_it_is_not_called():
    assert [*inspect.signature(simclr).parameters] == ["seed", "training", "released_probe"]
    assert inspect.getdoc(simclr).startswith("Train an encoder by `fit`")
    with pytest.raises(TypeError, match=r"sweep\(simclr, seeds=1, objective=\.\.\.\)"):
        simclr(objective=sigmoid_loss)


def test_a_part_of_the_package_is_found_again_by_its_place(tmp_path):
    store, place = Store(tmp_path), "curlnb.models.encoders:resnet9"
    record = store.run(surrogate, TINY | {"encoder": encoders.resnet9}, 0)
    assert record["parameters"]["encoder"] == place
    by_name = store.find(surrogate, TINY | {"encoder": place}, 0)
    assert by_name["metrics"] == record["metrics"]
    assert surrogate.identity(TINY | {"encoder": place}, 0) == record["identity"], (
        "a reference run is checked and computed again by it"
    )
    assert list(
        sweep(surrogate, [TINY | {"encoder": encoders.resnet9}], seeds=1, store=store)["encoder"]
    ) == [place]
    wrong = "curlnb.models.encoders:resnet99"
    with pytest.raises(StoreError, match=f"{wrong} is no function of the package: give its module"):
        store.run(surrogate, TINY | {"encoder": wrong}, 0)


def test_a_wrapper_of_a_function_of_the_package_is_a_part_of_its_own():
    @functools.wraps(encoders.resnet9)
    def narrow(channels):
        return linear_encoder(channels)

    assert (
        len(
            {
                simclr.identity({"encoder": part}, 0)
                for part in (encoders.resnet9, narrow, linear_encoder)
            }
        )
        == 3
    )
    assert as_json(narrow, digests=False) == "resnet9"
    assert as_json(encoders.resnet9, digests=False) == "curlnb.models.encoders:resnet9"
    nowhere = {}
    exec("def made(channels): return None", nowhere)  # a function without a module
    assert as_json(nowhere["made"], digests=False) == "made"


def test_changed_code_of_a_part_is_another_run():
    def made(scale):
        return lambda pos, neg: scale * info_nce_by_hand(pos, neg)

    keys = [simclr.key(TINY | {"objective": made(scale)}, 0) for scale in (1.0, 2.0, 1.0)]
    assert keys[0] == keys[2] != keys[1]


def test_an_own_loss_that_says_what_a_named_one_does_gives_its_numbers(tmp_path):
    own, named = (
        execute(simclr, tmp_path / name, TINY | {"objective": part})
        for name, part in (("own", info_nce_by_hand), ("named", "biased"))
    )
    assert own["loss"] == pytest.approx(named["loss"], rel=1e-5)


def test_a_name_draws_nothing_more_than_it_did():
    torch.manual_seed(3)
    expected = encoders.encoder("cnn", in_channels=1)[0].state_dict()
    torch.manual_seed(3)
    found, dim = own_parts.make_encoder("cnn", 1)
    assert dim == 128
    assert all(torch.equal(found.state_dict()[name], value) for name, value in expected.items())


def test_the_trial_of_an_encoder_leaves_no_trace():
    def make(channels):
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 14 * 14, 6)
        )

    made, dim = own_parts.make_encoder(make, 3, 16)
    assert dim == 6
    assert made.training
    assert made[1].num_batches_tracked == 0


def test_own_parts_reach_the_experiments_that_share_the_training(tmp_path):
    parts = TINY | {"objective": sigmoid_loss, "encoder": linear_encoder, "augmentation": noisy}
    store = Store(tmp_path)
    for experiment in (simclr, surrogate, visualise):
        assert store.run(experiment, parts, 0)["metrics"]
    assert len(list((tmp_path / "trained").glob("*.safetensors"))) == 1


def test_other_experiments_take_what_is_natural_there(tmp_path):
    queue = TINY | {
        "queue": 16,
        "bn_groups": 1,
        "objective": sigmoid_loss,
        "encoder": linear_encoder,
    }
    assert execute(moco_v2, tmp_path / "moco", queue)["loss"] > 0
    latent = {"dataset": Noise(40), "batch": 12, "epochs": 1, "encoder": linear_encoder}
    assert 0 <= execute(curl, tmp_path / "curl", latent)["mu_avg2"] <= 1


def test_more_than_two_views_each_get_the_augmentation(tmp_path):
    seen = []

    def counting(images, generator):
        seen.append(tuple(images.shape))
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
        return images[:, :, :16, :16]

    execute(simclr, tmp_path, TINY | {"views": 3, "augmentation": counting})
    assert seen == [(8, 3, 32, 32)] * 9


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"objective": sigmoid_loss, "beta": 1.0},
            "an objective of your own takes neither tau_plus nor beta, got 0.0 and 1.0",
        ),
        (
            {"objective": lambda pos, neg: neg},
            r"gives torch.float32 \[16, 14\]: it must give the loss of each anchor, \[16\]",
        ),
        (
            {"encoder": lambda channels: nn.AdaptiveAvgPool2d(2)},
            r"gives torch.float32 \[2, 3, 2, 2\] for 2 images: it must give features",
        ),
        (
            {"augmentation": lambda images, generator: images[:4]},
            r"it must give a float tensor \[8, 3, h, w\] in \[0, 1\]",
        ),
        (
            {"augmentation": "randaugment"},
            "augmentation 'randaugment' is unknown; use 'simclr' or a function",
        ),
    ],
    ids=range(5),
)
def test_a_part_that_does_not_fit_is_refused_in_one_line(tmp_path, parts, message):
    with pytest.raises(ValueError, match=message) as caught:
        execute(simclr, tmp_path, TINY | parts)
    assert "\n" not in str(caught.value)


def test_negatives_are_drawn_for_an_own_loss_too():
    views = tuple(nn.functional.normalize(torch.randn(6, 4), dim=1) for _ in range(2))
    seen = []

    def loss(pos, neg):
        seen.append(neg.shape)
        return pos

    objective_loss(Contrast(loss, negatives=3), views, torch.zeros(6), torch.Generator())
    assert seen == [(12, 3)]


def test_arrays_of_ones_own_keep_their_key_once_their_digest_is_known(tmp_path):
    made = (Noise(24).split(split, torch.device("cpu")) for split in ("train", "test"))
    mine = datasets.from_arrays(*(part for data in made for part in (data.images, data.labels)))
    key = simclr.key(TINY | {"dataset": mine}, 0)
    assert mine.digest
    assert simclr.key(TINY | {"dataset": mine}, 0) == key
    assert execute(simclr, tmp_path, TINY | {"dataset": mine})["loss"] > 0


def test_images_of_ones_own_are_divided_for_validation():
    fit, held_out = ImageData(Noise(40), evaluate_on="validation").labelled(torch.device("cpu"))
    assert (len(fit), len(held_out)) == (30, 10)
