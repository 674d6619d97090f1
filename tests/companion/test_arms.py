import pandas as pd
import pytest
from formulas import refused

from curlnb.companion import notebook
from curlnb.companion.arms import gain, of_arm
from curlnb.experiments.multiview import cmc

RUNS = pd.DataFrame(
    [
        ("cifar10", "SimCLR", 1, 50.0),
        ("cifar10", "SimCLR", 0, 40.0),
        ("cifar10", "hard", 0, 42.0),
        ("cifar10", "hard", 1, 53.0),
        ("cifar10", "hard", 2, 99.0),  # without a partner
        ("stl10", "SimCLR", 0, 30.0),
    ],
    columns=["dataset", "arm", "seed", "linear"],
)


def test_an_arm_is_selected_by_all_that_is_named_and_indexed_by_seed():
    found = of_arm(RUNS, "linear", dataset="cifar10", arm="SimCLR")
    assert found.to_dict() == {0: 40.0, 1: 50.0}
    assert of_arm(RUNS, "linear", dataset="stl10", arm="hard").empty


def test_a_gain_is_treatment_minus_control_over_the_seeds_that_have_both():
    shuffled = RUNS.sample(frac=1, random_state=0)
    assert gain(shuffled, "linear", "hard", "SimCLR", dataset="cifar10").to_dict() == {0: 2, 1: 3}
    assert gain(RUNS, "linear", "hard", "SimCLR", dataset="stl10").empty
    sets = dict(dataset="cifar10"), dict(dataset="stl10")
    assert gain(RUNS, "linear", *sets, arm="SimCLR").to_dict() == {0: 10.0}
    table = RUNS.assign(negatives=RUNS["arm"].map({"hard": 62}))
    pair = dict(negatives=62), dict(negatives=None)
    assert gain(table, "linear", *pair, dataset="cifar10").to_dict() == {0: 2, 1: 3}


def test_a_selection_that_leaves_two_rows_of_a_seed_or_misspells_a_column_is_refused():
    with refused(r"several rows of {'arm': 'SimCLR'} have seed 0"):
        gain(RUNS, "linear", "hard", "SimCLR")
    with refused(r"no column 'data': dataset, arm, seed, linear"):
        of_arm(RUNS, "linear", data="cifar10")


def test_a_data_set_has_its_own_settings_before_those_around_it():
    sets = {"cifar10": {}, "stl10": dict(epochs=200, prior=0.1)}
    values = dict(epochs=20, text_batch=64, shown=10, datasets=sets)
    settings = notebook.Settings("x", "quick", values)
    of = settings.of("stl10")
    assert (of.dataset, of.epochs, of.prior, settings.epochs) == ("stl10", 200, 0.1, 20)
    assert settings.of("cifar10").take("dataset epochs") == dict(dataset="cifar10", epochs=20)
    assert settings.take("batch", "text_") == dict(batch=64)
    assert settings.take("shown") == dict(shown=10)  # not an attribute that all settings have
    assert of.store is settings.store
    with pytest.raises(AttributeError, match="no setting 'prior'; it has epochs"):
        settings.take("prior")


def test_the_settings_of_an_experiment_are_those_with_one_value():
    of_cmc = dict(epochs=200, batch=256, negatives=None)
    values = of_cmc | dict(tau_plus=[0.0, 0.1], seeds=5, datasets={"stl10": {}})
    of = notebook.Settings("x", "quick", values).of("stl10")
    assert of.take(cmc) == of_cmc | dict(dataset="stl10")
    assert of.take(cmc, without="negatives epochs") == dict(batch=256, dataset="stl10")
    text = notebook.Settings("x", "quick", dict(text_batch=64, text_seeds=3, batch=1))
    assert text.take(cmc, "text_") == dict(batch=64)
