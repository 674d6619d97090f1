"""Parameters and the environment are checked before work starts: one line, nothing computed."""

import contextlib
import json
import os
import re

import numpy as np
import pytest
from formulas import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from curlnb.__main__ import main
from curlnb.experiments import all_experiments
from curlnb.experiments.images import simclr
from curlnb.experiments.multiview import cmc
from curlnb.runs import environment
from curlnb.runs.devices import check_environment
from curlnb.runs.experiment import RANGES, parameters_of
from curlnb.runs.sweep import sweep

HOME = environment.home()

WRONG = {
    "epochs": [-3, "abc", 1.5, True, None],
    "batch": [1, [], 10**30],
    "negatives": [0],
    "lr": [0, "abc", float("nan"), float("inf"), True],
    "temperature": [0],
    "tau_plus": [1, -0.1],
    "beta": [-1],
    "dataset": [3, None],
    "objective": [3],
    "compile": [1, "yes"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_parameter_of_another_kind_or_out_of_range_is_named(name, value):
    with pytest.raises((ValueError, RuntimeError), match=name) as caught:
        simclr.parameters({name: value})
    assert str(caught.value).isprintable()


def test_a_number_is_no_list():
    with refused(r"milestones is 0.5: it must be list\[float\] \| None"):
        cmc.parameters({"milestones": 0.5})


def test_a_run_is_refused_by_the_command_before_it_begins(capfd):
    assert main(["run", "images.simclr", "batch=1"]) == 2
    told = "curlnb run: images.simclr: batch is 1: it must be int from 2 to 10000000\n"
    assert capfd.readouterr() == ("", told)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_number_of_every_experiment_is_checked(data):
    """A random parameter gets a random JSON value: an error is one of ours, and a number out of
    range is named.
    """
    experiment = data.draw(st.sampled_from(all_experiments()))
    name = data.draw(st.sampled_from(sorted(parameters_of(experiment.function))))
    numbers = st.one_of(st.integers(-(10**12), 10**12), st.floats())
    others = st.one_of(st.booleans(), st.none(), st.text(max_size=9), st.lists(st.integers()))
    value = json.loads(json.dumps(data.draw(st.one_of(numbers, others))))
    low, high = RANGES.get(name, (-np.inf, np.inf))
    with contextlib.ExitStack() as stack:
        if isinstance(value, int | float) and not low <= value <= high:
            stack.enter_context(pytest.raises(ValueError, match=name))
        else:
            stack.enter_context(contextlib.suppress(ValueError))  # of another kind
        experiment.parameters({name: value})


VARIABLES = {
    "CURLNB_THREADS": ["abc", "0", "99999"],
    "CURLNB_WORKERS": ["-1"],
    "CURLNB_DRY": ["yes"],
    "CURLNB_DEVICE": ["gpu7", "cuda:99"],
    "CURLNB_HOME": ["/nowhere/at/all"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in VARIABLES.items() for value in values]
)
def test_a_variable_that_is_none_or_out_of_range_is_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with refused(f"^{name}") as caught:
        check_environment()
    assert str(caught.value).isprintable()


def test_a_variable_is_checked_where_it_is_read_too(monkeypatch):
    """A script does not call `check_environment`."""
    monkeypatch.setenv("CURLNB_THREADS", "abc")
    with refused("CURLNB_THREADS is 'abc': it must be a whole number from 1"):
        _ = simclr.asked({}, 0).key


def test_home_is_meant_by_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CURLNB_RESULTS", "CURLNB_DATA", "CURLNB_LOG"):
        monkeypatch.setenv(name, "~/x")
    check_environment()
    assert environment.results_root() == tmp_path / "x"
    assert os.environ["CURLNB_DATA"] == os.environ["CURLNB_LOG"] == str(tmp_path / "x")


def test_the_package_of_another_checkout_is_refused(monkeypatch, tmp_path):
    """A copy's .venv holds the original's package: its runs would be filed as the copy's."""
    folder = tmp_path / "notebooks" / "1_curl"
    folder.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalogue.json").touch()
    monkeypatch.delenv("CURLNB_HOME", raising=False)
    monkeypatch.chdir(folder)
    said = f"this is started in the checkout {tmp_path}, and curlnb is that of {environment.FOUND}"
    with refused(f"^{said}: run `make setup` in {tmp_path} and restart"):
        check_environment()
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    check_environment()
    monkeypatch.delenv("CURLNB_HOME")
    monkeypatch.chdir(environment.FOUND / "notebooks")
    check_environment()


def test_every_variable_that_the_code_reads_is_known_and_no_other():
    folders = (HOME / "curlnb", HOME / "tools")
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    texts = [path.read_text() for path in (*paths, HOME / "Makefile")]
    # but for the lines of the list itself
    read = set(re.findall(r'CURLNB_[A-Z_]*[A-Z]\b(?!",\n)', "".join(texts)))
    assert read == set(environment.VARIABLES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": [0.5]}, "seed is 0.5"),
        ({"epochs": -1}, "epochs is -1"),
    ],
)
def test_a_sweep_checks_its_arguments(given, message):
    with refused(re.escape(message)):
        sweep(simclr, **given)
