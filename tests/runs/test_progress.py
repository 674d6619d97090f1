"""What a sweep shows while it runs: a bar where it can be drawn anew, a line a minute in a file,
and what a run is at.
"""

import os
import sys

import pytest
from toy import regression

from curlnb.runs import sweep
from curlnb.runs.executors import Job
from curlnb.runs.store import Store


@pytest.fixture
def job(tmp_path):
    return Job(regression, regression.parameters({}), 0, Store(tmp_path / "runs"))


def note(job, done, total, **values):
    run = job.store.begin(job)
    run.folder.mkdir(parents=True, exist_ok=True)
    run.progress(done, total, **values)
    return run


def watched(display, seconds):
    """The display's thread, at once: its clock goes on by a second a look."""
    clock = [0.0]

    class Seconds:
        def wait(self, _):
            clock[0] += 1
            return clock[0] > seconds

        def set(self): ...

    display.over, display.start, display.last_line = Seconds(), 0.0, 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep.time, "monotonic", lambda: clock[0])
        display.watch()


@pytest.fixture
def display(job, monkeypatch):
    monkeypatch.delenv("CURLNB_LOG", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    with sweep.Display([job]) as display:
        display.over.set()
        yield display


def test_a_file_gets_a_line_a_minute_and_no_bar(job, display, capsys):
    note(job, 0.5, 2)
    watched(display, 150)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["toy.regression: 0 of 1 runs done; epoch 0.5 of 2"] * 2


def test_a_log_gets_the_line_instead(job, display, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CURLNB_LOG", str(tmp_path / "log"))
    watched(display, 70)
    assert capsys.readouterr().err == ""
    assert (tmp_path / "log").read_text().endswith(" toy.regression: 0 of 1 runs done\n")


@pytest.mark.parametrize("place", ["terminal", "notebook", "file"])
def test_a_bar_is_drawn_where_somebody_looks(job, monkeypatch, place):
    monkeypatch.delenv("CURLNB_LOG", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    if place == "terminal":
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if place == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", sys)
    with sweep.Display([job]) as display:
        assert display.bar.disable == (place == "file")


def test_a_run_that_is_measured_after_its_training_says_so_and_for_how_long(job, display):
    run = note(job, 0.9, 1)
    assert display.move() == "epoch 0.9 of 1"
    run.progress(1, 1)  # within the same second
    assert display.move() == "trained, evaluating for 0 s"
    run.progress(1, 1, loss=0.5)
    path = run.folder / "progress.json"
    os.utime(path, (path.stat().st_mtime - 42,) * 2)
    assert display.move() == "trained, loss 0.500, evaluating for 42 s"
