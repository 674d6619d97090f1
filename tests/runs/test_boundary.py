"""Every command checks its words, its parameters and the environment before work starts: one line,
exit status 2, nothing lost.
"""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curlnb.__main__ import main
from curlnb.companion import notebooks, promote, reproduce, restamp
from curlnb.data import datasets
from curlnb.experiments import all_experiments
from curlnb.runs import boundary, environment
from curlnb.runs.store import Store
from curlnb.runs.sweep import sweep

HOME = environment.home()
QUICKLY = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Began(Exception):
    """Work began."""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Results that must not be lost, and every piece of work replaced by a mark that it began."""
    began: list[str] = []
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path / "results"))
    kept = tmp_path / "results" / "quick" / "runs" / "a.b" / "0" / "run.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    for module, name in (
        (Store, "run"), (reproduce, "_reproduce"), (datasets, "prepare"), (promote, "_promote"),
        (restamp, "restamp"),
    ):  # fmt: skip

        def work(*_: object, name: str = name, **__: object) -> None:
            began.append(name)
            raise Began

        monkeypatch.setattr(module, name, work)
    began_before = tree(tmp_path)

    def refused(capfd, *arguments: str) -> str:
        """The one line in which a command refuses, with nothing begun and nothing changed."""
        capfd.readouterr()
        assert main(list(arguments)) == 2
        out, err = capfd.readouterr()
        assert began == []
        assert out == ""
        assert tree(tmp_path) == began_before
        assert "Traceback" not in err
        assert err.endswith("\n")
        line = err[:-1]
        assert line.isprintable(), line
        return line

    refused.began = began
    return refused


def tree(folder: Path) -> dict[str, str]:
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file() and p.name != "lock"
    }


WORDS = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12)
COMMANDS = ("doctor", "data", "run", "reproduce", "report", "reference")
OPTIONS = {name: ["--profile", "--nothing"] for name in COMMANDS} | {
    "doctor": ["--profile", "--nothing"],
    "reproduce": ["--profile", "--jobs", "--limit-minutes", "--nothing"],
    "reference": ["--profile", "--nothing"],
}


def is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


@QUICKLY
@given(command=st.sampled_from(COMMANDS), word=WORDS, data=st.data())
def test_no_command_takes_what_it_does_not_know(bench, capfd, command, word, data):
    option = data.draw(st.sampled_from(OPTIONS[command]))
    if is_number(word) or word in ("quick", "gpu", "paper", "-h") or "--help".startswith(word):
        return
    bench(capfd, command, f"{option}={word}")
    bench(capfd, word, command)
    if not word.startswith("-"):
        if command in ("run", "reproduce", "reference"):
            assert "no " in bench(capfd, command, word)
        else:
            assert "unrecognized arguments" in bench(capfd, command, word)


@pytest.mark.parametrize(
    "words",
    [
        ["reproduce", "/"], ["reproduce", ".."], ["reproduce", "~"], ["reproduce", "~nobody-here/x"], ["reproduce", "\0"],
        ["reproduce", "x" * 5000], ["reproduce", "--jobs=0"], ["reproduce", "--jobs=1.5"], ["reproduce", "--jobs=²"],
        ["reproduce", f"--jobs={'9' * 5000}"], ["reproduce", "--limit-minutes=1e300"], ["reproduce", "--limit-minutes=-0"],
        ["reproduce", "notebooks", ""], ["run"], ["run", "images"], ["run", "images.network"], ["run", "images.losses"], ["run", "..x"],
        ["run", "os.path"], ["run", "images.simclr.x"], ["run", "images.__name__"], ["run", "images.simclr", "=1"],
        ["run", "images.simclr", "seed=0", "seed=1"], ["run", "images.simclr", "epochs=" + "[" * 9999], [], ["--help-me"], ["report"],
    ],
    ids=range(27),
)  # fmt: skip
def test_words_that_mean_nothing_are_refused(bench, capfd, words):
    if words == ["report"]:
        words = ["report", "--profile=gpu"]
    assert len(bench(capfd, *words)) < 6000


WRONG = {
    "epochs": [
        "-3",
        "abc",
        "1.5",
        "nan",
        "1e9",
        "true",
        "null",
        "[1]",
        "{}",
        "9" * 400,
        "Infinity",
        "",
    ],
    "batch": ["0", "1", "-1", "abc", "2.5", "false", "[]", str(10**30)],
    "lr": [
        "0",
        "-0.1",
        "abc",
        "nan",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "true",
        "[0.1]",
        "9" * 400,
    ],
    "seed": ["abc", "-1", "1.0", "true", "null", str(2**32), "[0]", "nan"],
    "temperature": ["0", "-1", "NaN", "hot"],
    "tau_plus": ["1", "-0.1", "NaN", "x"],
    "beta": ["-1", "NaN", "Infinity", "x"],
    "weight_decay": ["-1", "NaN"],
    "dataset": ["3", "null", "true", "[1]"],
    "objective": ["3", "false", "1.5"],
    "compile": ["1", "yes", "null"],
    "views": ["-1", "x", str(2**40)],
    "milestones": ["0.5", "[true]", '["x"]', "[NaN]"],
    "widht": ["3"],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in WRONG.items() for text in texts]
)
def test_a_parameter_out_of_range_is_named_before_work_starts(bench, capfd, name, text):
    experiment = "multiview.cmc" if name == "milestones" else "images.simclr"
    line = bench(capfd, "run", experiment, f"{name}={text}")
    assert line.startswith("curlnb run: ")
    assert name in line


@QUICKLY
@given(data=st.data(), seed=st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), WORDS))
def test_every_number_of_every_experiment_is_checked(bench, capfd, data, seed):
    """A random parameter gets a random JSON value: it is refused in a line that names it, or it is
    within its kind and range.
    """
    experiment = data.draw(st.sampled_from(all_experiments()))
    name = data.draw(st.sampled_from(sorted(experiment.defaults)))
    value = data.draw(
        st.one_of(
            st.integers(-(10**12), 10**12),
            st.floats(),
            st.booleans(),
            st.none(),
            WORDS,
            st.lists(st.integers()),
        )
    )
    bench.began.clear()
    words = [f"{name}={json.dumps(value)}", f"seed={json.dumps(seed)}"]
    capfd.readouterr()
    status = main(["run", experiment.name, *words])
    err = capfd.readouterr().err
    assert status == 2
    assert "Traceback" not in err
    assert err[:-1].isprintable()
    if bench.began:
        assert type(seed) is int
        assert 0 <= seed < boundary.SEEDS
        assert not isinstance(value, float) or value == value
        if name in boundary.RANGES:
            low, high, _ = boundary.RANGES[name]
            assert low <= value <= high
    else:
        assert name in err or "seed" in err


VARIABLES = {
    "CURLNB_THREADS": ["abc", "0", "-1", "1.5", "²", "99999", "1e3"],
    "CURLNB_WORKERS": ["abc", "-1", "²", "1.5", "99999"],
    "CURLNB_DEVICE": ["gpu7", "cuda:999", "meta", "xla", "mps:7", "cpu:3", "cuda:-1"],
    "CURLNB_DRY": ["yes", "2", "true"],
    "CURLNB_REFERENCE": ["yes"],
    "CURLNB_ADOPT": ["maybe"],
    "CURLNB_CUDA_GRAPHS": ["on"],
    "CURLNB_HOME": ["/nowhere/at/all", "~nobody-here/x"],
    "CURLNB_RESULTS": ["/dev/null/x", "/dev/null", "~nobody-here"],
    "CURLNB_DATA": ["/dev/null", "/dev/null/x"],
    "CURLNB_LOG": ["/nowhere/at/all/x", "/"],
    "CURLNB_SCHEDULER": ["host", "tcp://host", "tcp://host:port"],
    "CURLNB_NOTEBOOK": ["/etc/x", "../../x", "a\x1bb"],
    "CURLNB_WORKER": ["2"],
    "CURLNB_": ["x"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in VARIABLES.items() for value in values]
)
@pytest.mark.parametrize("command", ["reproduce", "data"])
def test_a_variable_out_of_range_is_named_before_work_starts(
    bench, capfd, monkeypatch, command, name, value
):
    monkeypatch.setenv(name, value)
    assert bench(capfd, command).startswith(f"curlnb {command}: {name}")


def test_home_is_meant_by_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CURLNB_RESULTS", "CURLNB_DATA", "CURLNB_LOG"):
        monkeypatch.setenv(name, "~/x")
    boundary.check_environment()
    assert environment.results_root() == tmp_path / "x"
    assert os.environ["CURLNB_DATA"] == os.environ["CURLNB_LOG"] == str(tmp_path / "x")


def test_every_variable_that_the_code_reads_is_known_and_said():
    texts = [
        path.read_text()
        for path in [
            *(HOME / "curlnb").rglob("*.py"),
            *(HOME / "tools").rglob("*.py"),
            HOME / "Makefile",
        ]
    ]
    read = set(re.findall(r"CURLNB_[A-Z_]*[A-Z]", "".join(texts)))
    assert read == set(environment.VARIABLES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": -1}, "seeds is -1"),
        ({"seeds": True}, "seeds is True"), ({"seeds": "12"}, "seeds is '12'"),
        ({"seeds": [0.5]}, "seed is 0.5"),
        ({"seeds": [-1]}, "seed is -1"), ({"workers": -1}, "workers is -1"),
        ({"workers": 1.5}, "workers is 1.5"), ({"epochs": -1}, "epochs is -1"),
    ],
)  # fmt: skip
def test_a_sweep_checks_its_arguments(given, message):
    from curlnb.experiments.images import simclr

    with pytest.raises(ValueError, match=re.escape(message)):
        sweep(simclr, **given)


# --- notebooks

CELL = {
    "cell_type": "code",
    "source": "notebook.settings('x', profile, quick={})",
    "metadata": {},
    "outputs": [],
    "execution_count": None,
}
BOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [CELL]}


def at(folder: Path, name: str, book: object) -> Path:
    path = folder / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(book if isinstance(book, str) else json.dumps(book))
    return path


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path / "results"))
    return tmp_path


BROKEN = {
    "torn": '{"cells": [', "list": "[]", "deep": "[" * 99999, "format": BOOK | {"nbformat": 3},
    "a cell": BOOK | {"cells": [3]}, "lines": BOOK | {"cells": [CELL | {"source": [1]}]},
    "needed": BOOK | {"metadata": {"curlnb": {"last": "yes"}}},
    "unknown": BOOK | {"metadata": {"curlnb": {"first": True}}},
}  # fmt: skip


def test_broken_notebooks_are_named(checkout):
    for name, book in BROKEN.items():
        with pytest.raises(ValueError, match=name) as error:
            notebooks.needs(at(checkout, name, book))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "cell", ["import sys; sys.exit(0)", "exit()", "raise SystemExit", "1 / 0", "x = undefined_name"]
)
def test_a_settings_cell_that_ends_the_program_is_named_and_the_others_data_is_fetched(
    checkout, capfd, monkeypatch, cell
):
    at(
        checkout,
        "1_bad",
        BOOK
        | {
            "cells": [
                CELL | {"source": f"{cell}\nsettings = notebook.settings('x', profile, quick={{}})"}
            ]
        },
    )
    good = "settings = notebook.settings('x', profile, quick=dict(data='cifar10-mini'))"
    at(checkout, "2_good", BOOK | {"cells": [CELL | {"source": good}]})
    fetched: list[str] = []
    monkeypatch.setattr(datasets, "names", lambda: ["cifar10-mini"])
    monkeypatch.setattr(datasets, "prepare", fetched.extend)
    assert main(["data"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("curlnb data: the settings cell of 1_bad fails (")
    assert fetched == ["cifar10-mini"]


def test_a_checkout_without_notebooks_is_an_error(checkout, capfd):
    assert main(["reproduce"]) == 2
    assert "no notebook below" in capfd.readouterr().err


def test_a_reader_of_the_output_who_goes_away_is_no_error(capfd, monkeypatch):
    def fail() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    closed: list[int] = []
    monkeypatch.setattr("curlnb.__main__.doctor", fail)
    monkeypatch.setattr(os, "dup2", lambda one, other: closed.append(other))
    assert main(["doctor"]) == 141
    assert len(closed) == 1
    assert capfd.readouterr().err == ""


def test_what_stands_in_an_error_cannot_steer_a_terminal(bench, capfd):
    for character in ["\x1b[2J", "\n", "\r", "\x00", "\x7f", "\x9b2J", "\u202e", "\u2028"]:
        assert character not in bench(capfd, "reproduce", f"a{character}b")
        assert character not in bench(capfd, "run", f"a.{character}")
        assert character not in bench(capfd, f"x{character}")
