"""What every page uses: settings in a file, checks of exercises, plots of gains, the ledger."""

import contextlib

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from formulas import refused

from curlnb.companion import formatting, notebook, notebooks, plots
from curlnb.companion.exercises import is_stub

FILE = """
batch = 256

[quick]
dataset = "cifar10-mini"
epochs = 2
bn_groups = "None"

[gpu]
dataset = "cifar10"
epochs = 20
bn_groups = 2
batch = 512

[dry]
epochs = 1
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A notebook with its settings in a file, alone in a checkout."""
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path / "results"))
    (tmp_path / "notebooks").mkdir()
    file = tmp_path / "notebooks" / "x.toml"
    file.write_text(FILE)
    return file


def test_settings_come_from_the_file_and_change_takes_their_place(page, monkeypatch):
    quick = dict(dataset="cifar10-mini", epochs=2, bn_groups=None, batch=256)
    assert notebook.settings("x", "quick").values == quick
    assert notebook.settings("x", "quick", {"epochs": 12}).epochs == 12
    assert notebook.settings("x", "gpu").take("bn_groups batch") == dict(bn_groups=2, batch=512)
    with refused("no setting 'epoch' to change: dataset, epochs, bn_gr"):
        notebook.settings("x", "quick", {"epoch": 12})
    with refused(r"the setting epochs is 2 here: it can't become \[2, 4\]"):
        notebook.settings("x", "quick", {"epochs": [2, 4]})
    with refused("profile 'paper' is unknown here; use one of quick, gpu"):
        notebook.settings("x", "paper")
    with pytest.raises(AttributeError, match="no setting 'epoch'; it has dataset, epochs"):
        _ = notebook.settings("x", "quick").epoch
    monkeypatch.setenv("CURLNB_DRY", "1")
    dry = notebook.settings("x", "quick", {"epochs": 12})
    assert dry.epochs == 1
    dry.require(epochs=[6])  # a dry run judges nothing


def test_all_profiles_of_a_page_have_the_same_settings():
    for path in notebooks.find():
        assert len({frozenset(each) for each in notebooks.settings_of(path).values()}) == 1, path


def test_a_notebook_without_a_file_of_settings_is_left_out(page, capsys):
    path, other = page.with_suffix(".ipynb"), page.with_name("y.ipynb")
    assert notebooks.settings_of(path)["gpu"]["epochs"] == 20
    assert notebooks.with_profile([path, other], "gpu") == [path]
    assert "1 of 2 notebooks have settings for gpu" in capsys.readouterr().out
    with refused("none of y has settings for the profile gpu"):
        notebooks.with_profile([other], "gpu")
    with refused("y.toml"):
        notebook.settings("y", "gpu")


# --- exercises


def documented(x):
    """What x is."""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (documented, "not answered yet"),
        (lambda x: 2 * x, "right"),
        (lambda x: x, "wrong: twice x"),
        (lambda x: x / 0, "wrong: ZeroDivisionError: division by zero"),
    ],
)
def test_a_check_says_what_is_wrong_and_grading_raises_it(answer, says, capsys):
    with notebook.check(answer):
        assert answer(3) == 6, "twice x"
    assert capsys.readouterr().out == f"{says}\n"
    raised = pytest.raises(AssertionError, match=says.removeprefix("wrong: "))
    with contextlib.nullcontext() if says == "right" else raised, notebook.grade(answer):
        assert answer(3) == 6, "twice x"


def test_a_function_that_returns_nothing_on_purpose_is_an_answer():
    assert not is_stub(lambda: 5)
    assert not is_stub(lambda x: print(x))
    assert is_stub(lambda: None)


# --- figures and the ledger


@pytest.fixture
def axis():
    figure, axis = plt.subplots()
    yield axis
    plt.close(figure)


def test_paired_gains_draws_mean_interval_and_the_marks_of_others(axis):
    gains = {"hard": [1.0, 2.0, 3.0], "debiased": plots.Interval(-0.1, -0.5, 0.3)}
    marks = {"debiased": {"elsewhere": 0.6, "again": 0.5}}
    plots.paired_gains(axis, gains, published={"debiased": 4.26}, independent=marks)
    drawn = {round(float(x), 3) for line in axis.lines for x in np.atleast_1d(line.get_xdata())}
    low, high = 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5
    assert {2.0, -0.1, 4.26, 0.6, 0.5, 0.0} <= drawn
    assert {round(low, 3), round(high, 3)} <= drawn
    assert [text.get_text() for text in axis.get_yticklabels()] == ["hard", "debiased"]
    first, last = axis.get_ylim()
    assert first > last, "the first arm stands on top"


def test_panels_of_gains_write_each_mean_and_have_one_legend_with_all_marks():
    panels = {"gains": {"hard": [1.0, 2.0, 3.0]}, "losses": {"hard": [-1.0, -2.0, -3.0]}}
    figure = plots.gain_panels(panels, published={"losses": {"hard": 4.26}}, sharey=True)
    written = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert written == ["+2.0", "-2.0"]
    assert [axis.get_title() for axis in figure.axes] == ["gains", "losses"]
    assert [axis.get_legend() for axis in figure.axes] == [None, None]
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["here, 95% interval", "the paper"]
    plt.close(figure)


def test_a_curve_and_its_gap_are_paired_by_seed():
    rows = [
        {"N": N, "seed": seed, "arm": arm, "accuracy": seed + N * (1 if arm == "hard" else 0.5)}
        for N in (2, 4)
        for seed in range(3)
        for arm in ("biased", "hard")
    ]
    figure, axes = plt.subplots(1, 2)
    plots.curve_and_gap(axes, pd.DataFrame(rows), "N", "accuracy", "arm", "biased")
    (gap,) = [line for line in axes[1].lines if line.get_marker() == "^"]
    assert gap.get_xydata().tolist() == [[2, 1], [4, 2]], "numeric axes; the seeds cancel"
    assert axes[1].get_ylabel() == "minus SimCLR"
    plt.close(figure)


def test_the_names_at_the_ends_of_curves_do_not_overlap():
    figure, axis = plt.subplots()
    axis.plot([0, 1], [0, 10])
    plots.label_ends(axis, {"hard": 9.0, "biased": 9.01, "debiased": 2.0})
    figure.canvas.draw()
    boxes = {text.get_text(): text.get_window_extent() for text in axis.texts}
    assert boxes["SimCLR"].y0 >= boxes["hard"].y1, "in the order of their values"
    assert axis.texts[0].get_text() == "debiased"
    assert axis.texts[0].get_position() == (1.02, 2.0), "what overlaps nothing stays"
    plt.close(figure)


def test_a_ledger_shows_five_lines_and_folds_the_rest(tmp_path):
    from curlnb.companion import ledger as ledgers

    ledger = ledgers.Ledger("n", "quick", tmp_path)
    for i in range(7):
        ledger.judge(f"mine/{i}", exact=i < 6, value=0.5, claim=f"claim <{i}>")
    shown = ledger.show()._repr_html_()
    before, _, folded = shown.partition("<details>")
    assert before.count("<li>") == formatting.LINES == 5
    assert "✓ holds: claim &lt;0&gt; (0.5)" in before
    assert "claim &lt;6&gt;" not in before
    assert all(f"claim &lt;{i}&gt;" in folded for i in range(7))
    assert folded.count("✗ fails") == 1
