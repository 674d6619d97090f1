"""Your own parts train, count in the key with their code, work in sweeps, and are checked."""

import functools
import inspect

import pytest
import torch
from direct import Noise, execute
from formulas import refused
from torch import nn
from torch.nn.functional import logsigmoid

from curlnb.data import datasets
from curlnb.experiments import own_parts
from curlnb.experiments.image_data import ImageData
from curlnb.experiments.images import simclr, surrogate
from curlnb.models import encoders
from curlnb.runs import executors
from curlnb.runs.experiment import StoreError, as_json
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep

TINY = {"dataset": Noise(24), "batch": 8, "epochs": 1, "size": 16}


def info_nce_by_hand(pos, neg):
    """SimCLR's loss at temperature 1/2."""
    return -logsigmoid(2 * pos - (2 * neg).logsumexp(1))


def sigmoid_loss(pos, neg):
    return -logsigmoid(5 * pos) - logsigmoid(-5 * neg).mean(1)


def linear_encoder(channels):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 12))


def noisy(images, generator):
    return (
        images + 0.1 * torch.rand(images.shape, generator=generator, device=images.device)
    ).clamp(0, 1)


PARTS = {
    "objective": (info_nce_by_hand, sigmoid_loss),
    "encoder": (linear_encoder, nn.Identity),
    "augmentation": (noisy, lambda images, generator: images),
    "dataset": (Noise(30), Noise(32)),
}


@pytest.mark.parametrize("name", PARTS)
def test_an_own_part_counts_in_the_key_of_a_run_and_of_its_training(name):
    given = [TINY, *(TINY | {name: part} for part in PARTS[name])]
    asked = [simclr.asked(each, 0) for each in given]
    assert len({each.key for each in asked}) == len({each.training_key for each in asked}) == 3


def test_own_parts_of_every_kind_train_in_a_sweep_here_and_in_worker_processes(tmp_path):
    """A loss of one's own that says what a named one does gives its numbers."""
    parts = TINY | {name: part for name, (part, _) in PARTS.items()}
    own = parts.pop("objective")
    here, elsewhere = (
        sweep(
            simclr, {"objective": [own, "biased"]}, seeds=1, store=store, workers=workers, **parts
        )
        for workers, store in ((0, Store(tmp_path / "here")), (2, Store(tmp_path / "elsewhere")))
    )
    assert here["loss"][0] == pytest.approx(here["loss"][1], rel=1e-5)
    assert here["linear"].between(0, 1).all()
    assert elsewhere.drop(columns="seconds").equals(here.drop(columns="seconds"))


def test_an_experiment_says_what_it_takes_and_that_it_is_not_called():
    assert [*inspect.signature(simclr).parameters] == ["seed", "training", "released_probe"]
    assert inspect.getdoc(simclr).startswith("Train an encoder by `fit`")
    with pytest.raises(TypeError, match=r"sweep\(simclr, seeds=1, objective=\.\.\.\)"):
        simclr(objective=sigmoid_loss)


def test_a_part_of_the_package_is_found_again_by_its_place(tmp_path):
    store, place = Store(tmp_path), "curlnb.models.encoders:resnet9"
    record = store.run(surrogate.asked(TINY | {"encoder": encoders.resnet9}, 0))
    assert record["parameters"]["encoder"] == place
    by_name = store.find(surrogate, TINY | {"encoder": place}, 0)
    assert by_name["metrics"] == record["metrics"]
    # a reference run is checked and computed again by it
    assert surrogate.asked(TINY | {"encoder": place}, 0).identity == record["identity"]
    for wrong in ("curlnb.models.encoders:resnet99", "curlnb.models.nothing:resnet9"):
        said = f"{wrong} is no function of the package: give its module"
        with refused(said, StoreError):
            store.run(surrogate.asked(TINY | {"encoder": wrong}, 0))


def test_a_wrapper_of_a_function_of_the_package_is_a_part_of_its_own():
    @functools.wraps(encoders.resnet9)
    def narrow(channels):
        return linear_encoder(channels)

    parts = (encoders.resnet9, narrow, linear_encoder)
    assert len({simclr.asked({"encoder": part}, 0).identity for part in parts}) == 3
    assert as_json(narrow, digests=False) == "resnet9"
    assert as_json(encoders.resnet9, digests=False) == "curlnb.models.encoders:resnet9"


def test_the_trial_of_an_encoder_leaves_no_trace():
    def make(channels):
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 14 * 14, 6)
        )

    made, dim = own_parts.make_encoder(make, 3, 16)
    assert dim == 6
    assert made.training
    assert made[1].num_batches_tracked == 0


def test_each_of_three_views_gets_the_augmentation_and_the_loss_the_negatives_that_are_drawn(
    tmp_path,
):
    viewed, contrasted = [], []

    def counting(images, generator):
        viewed.append(tuple(images.shape))
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
        return images[:, :, :16, :16]

    def loss(pos, neg):
        contrasted.append(tuple(neg.shape))
        return sigmoid_loss(pos, neg)

    given = {"views": 3, "augmentation": counting, "objective": loss, "negatives": 4}
    execute(simclr, tmp_path, TINY | given)
    assert viewed == [(8, 3, 32, 32)] * 9
    assert contrasted == [(24, 4)] * 3


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"objective": sigmoid_loss, "beta": 1.0},
            "beta is 1.0: an objective of your own does not take it; leave it out",
        ),
        (
            {"objective": sigmoid_loss, "temperature": 0.1},
            "temperature is 0.1: an objective of your",
        ),
        ({"encoder": nn.Flatten()}, "encoder is a Flatten: give a function from the number of"),
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
    ids=range(7),
)
def test_a_part_that_does_not_fit_is_refused_in_one_line(tmp_path, parts, message):
    with refused(message):
        execute(simclr, tmp_path, TINY | parts)


def test_arrays_of_ones_own_keep_their_key_once_their_digest_is_known(tmp_path):
    made = (Noise(24).split(split, torch.device("cpu")) for split in ("train", "test"))
    mine = datasets.from_arrays(*(part for data in made for part in (data.images, data.labels)))
    key = simclr.asked(TINY | {"dataset": mine}, 0).key
    assert mine.digest
    assert simclr.asked(TINY | {"dataset": mine}, 0).key == key
    assert execute(simclr, tmp_path, TINY | {"dataset": mine})["loss"] > 0


def test_images_of_ones_own_are_divided_for_validation():
    fit, held_out = ImageData(Noise(40), evaluate_on="validation").labelled(torch.device("cpu"))
    assert (len(fit), len(held_out)) == (30, 10)


def test_a_part_that_writes_to_what_its_key_holds_is_named(tmp_path):
    seen = []

    def noting(pos, neg):
        seen.append(len(pos))
        return neg.mean(1) - pos

    how = {"store": Store(tmp_path), "seeds": 2, "workers": 0}
    with refused(r"objective='noting'.* changed its own key while it ran", executors.SweepError):
        sweep(simclr, [TINY | {"objective": noting}], **how)
    seen.clear()  # the second run was not of this part
    first, second = (how["store"].find(simclr, TINY | {"objective": noting}, s) for s in (0, 1))
    assert first
    assert not second
