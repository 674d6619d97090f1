"""What a sweep shows while it runs: a bar where it can be drawn anew, a line a minute in a file,
and what a run is at.
"""

import sys
import time

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


@pytest.fixture
def nowhere(monkeypatch):
    """Neither a terminal nor a notebook nor a log, and minutes that are short."""
    monkeypatch.delenv("CURLNB_LOG", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
    monkeypatch.setattr(sweep, "EVERY", (0.01, 0.01))


def seen(condition):
    """Wait until the display's thread has shown something."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_file_gets_a_line_a_minute_and_no_bar(job, nowhere, capsys):
    note(job, 0.5, 2)
    said = []
    with sweep.displayed({job.key: job}):
        seen(lambda: said.append(capsys.readouterr()) or len("".join(e for _, e in said)) > 99)
    assert {out for out, _ in said} == {""}
    lines = "".join(err for _, err in said).splitlines()
    assert {*lines} == {"toy.regression: 0 of 1 runs done; epoch 0.5 of 2"}


def test_a_log_gets_the_line_instead(job, nowhere, capsys, monkeypatch, tmp_path):
    log = tmp_path / "log"
    monkeypatch.setenv("CURLNB_LOG", str(log))
    with sweep.displayed({job.key: job}):
        seen(log.exists)
    assert capsys.readouterr().err == ""
    assert " toy.regression: 0 of 1 runs done\n" in log.read_text()


@pytest.mark.parametrize("place", ["terminal", "notebook", "file"])
def test_a_bar_is_drawn_where_somebody_looks(job, nowhere, monkeypatch, place):
    drawn = []

    class Bar:
        n = 0.0

        def __init__(self, disable, **_):
            drawn.append(not disable)

        def set_postfix_str(self, text): ...

        def close(self): ...

    monkeypatch.setattr(sweep, "tqdm", Bar)
    if place == "terminal":
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if place == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", sys)
    with sweep.displayed({job.key: job}):
        assert drawn == [place != "file"]


def test_a_run_that_is_measured_after_its_training_says_so(job):
    assert sweep._progress(job) == (0.0, "")
    run = note(job, 0.5, 1)
    assert sweep._progress(job) == (0.45, "epoch 0.5 of 1")
    run.progress(1, 1)  # within the same second
    assert sweep._progress(job) == (0.9, "trained, evaluating")
