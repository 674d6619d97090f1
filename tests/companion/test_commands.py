"""Notebooks that are broken are named in one line by the commands that read them."""

import shlex

import pytest
from formulas import refused

from curlnb.__main__ import _named, main
from curlnb.companion import notebooks
from curlnb.data import datasets


def at(folder, name, book="{}"):
    path = folder / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(book)
    return path


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path / "results"))
    return tmp_path


@pytest.mark.parametrize(
    "book",
    [
        '{"cells": [',
        "[]",
        '{"nbformat": 4, "cells": [3]}',
        '{"nbformat": 4, "cells": [], "metadata": {"curlnb": {"first": true}}}',
    ],
)
def test_a_broken_notebook_is_named(checkout, book):
    with refused("broken"):
        notebooks.needs(at(checkout, "broken", book))


def test_a_damaged_file_of_settings_is_named_before_data_is_fetched(checkout, capfd, monkeypatch):
    at(checkout, "2_good").with_suffix(".toml").write_text('[quick]\ndata = "cifar10-mini"')
    fetched = []
    monkeypatch.setattr(datasets, "names", lambda: ["cifar10-mini"])
    monkeypatch.setattr(datasets, "prepare", fetched.extend)
    assert main(["data"]) == 0
    assert fetched == ["cifar10-mini"]
    at(checkout, "1_bad").with_suffix(".toml").write_text("[quick")
    assert main(["data"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "1_bad.toml: " in line


def test_changes_and_parameters_are_typed_alike():
    words = shlex.split("lr=1e-3 betas=[0,1.5] dataset=cifar10 compile=True")
    change = dict(lr=0.001, betas=[0, 1.5], dataset="cifar10", compile=True)
    assert _named(words) == change
    with refused("'epochs:' is no NAME=VALUE"):
        _named(["epochs:", "12"])
