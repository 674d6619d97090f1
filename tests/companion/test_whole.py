"""The line of the whole: what it counts, what it expects, and how it stands beside other lines."""

import io
import sys

import pytest

from curlnb.companion import whole
from curlnb.companion.whole import Whole


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


TURNS = [(["a", "b", "c"], 2), (["timed"], 1)]
SECONDS = {"a": 600.0, "b": 300.0, "c": 300.0, "timed": 120.0}


def test_it_counts_notebooks_and_the_runs_that_they_asked_for(tmp_path, clock):
    runs = tmp_path / "runs"
    (runs / "used").mkdir(parents=True)
    for key in ("x.y/1", "x.y/2"):
        (runs / key).mkdir(parents=True)
        (runs / key / "run.json").write_text("{}")
    (runs / "used" / "a.txt").write_text("x.y/1\nx.y/2\n")
    (runs / "used" / "b.txt").write_text("x.y/2\nx.y/3\n")
    state = Whole(TURNS, 3, 7, {}, tmp_path, now=clock)
    assert state.text() == "whole: 3 of 7 notebooks, 2 of 3 runs so far"
    state.runs = 90
    assert state.text() == "whole: 3 of 7 notebooks, 2 of 90 runs"
    state.end("a", "done in 5 s", True)
    state.end("b", "FAILED: why", False)
    assert state.text().startswith("whole: 4 of 7 notebooks, ")


def test_minutes_left_follow_the_expected_seconds_and_this_machines_pace(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(whole, "PRIOR", 1e-9)
    state = Whole(TURNS, 0, 4, SECONDS, tmp_path, now=clock)
    assert state.left() == "about 12 min left"  # 1,200 s on two at a time, then 120 s alone
    state.begin("a")
    state.begin("b")
    clock.seconds = 150.0
    assert state.left() == "about 10 min left"
    clock.seconds = 600.0  # twice as long as expected
    state.end("b", "done", True)
    assert state.left() == f"about {(600 + 600) / 2 / 60 + 240 / 60:.0f} min left"
    clock.seconds = 1200.0
    state.end("a", "done", True)
    state.end("c", "done", True)
    state.begin("timed")
    clock.seconds = 1200.0 + 119.0 * (1200 + 600) / 1200
    assert state.left() == "less than a minute left"
    state.end("timed", "done", True)
    assert state.left() == ""


def test_a_long_notebook_is_not_shared_and_an_unknown_one_is_taken_for_a_usual_one(tmp_path, clock):
    assert (
        Whole([(["a", "b"], 2)], 0, 2, {"a": 6000.0, "b": 60.0}, tmp_path, now=clock).left()
        == "about 2 hours left"
    )
    assert (
        Whole([(["a", "new"], 1)], 0, 2, {"a": 600.0}, tmp_path, now=clock).left()
        == "about 20 min left"
    )
    assert Whole([(["new"], 1)], 0, 1, {}, tmp_path, now=clock).left() == ""


def test_a_file_gets_plain_lines(tmp_path, clock, capsys):
    state = Whole(TURNS, 0, 4, SECONDS, tmp_path, now=clock)
    assert state.text() == "whole: 0 of 4 notebooks, about 12 min left"  # and of no run yet
    state.begin("a")
    state.say("    a images: 6 runs to do")
    clock.seconds = 300.0
    state.end("a", "done in 300 s", True)
    out = capsys.readouterr().out
    assert "\r" not in out
    assert "\x1b" not in out
    assert [line.split(":")[0].strip() for line in out.splitlines()] == [
        "a",
        "a images",
        "a",
        "whole",
    ]


def test_on_a_terminal_the_line_stays_the_last_one(tmp_path, clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "30")
    with Whole(TURNS, 0, 4, SECONDS, tmp_path, now=clock) as state:
        state.begin("a")
        shown = sys.stdout.getvalue()
        assert shown.startswith("\r\x1b[K  a: started\n\r\x1b[Kwhole: 0 of 4")
        assert not shown.endswith("\n")
        assert len(shown.rpartition("\x1b[K")[2]) == 29
    assert sys.stdout.getvalue().endswith("\r\x1b[K")


def test_it_is_written_anew_after_a_minute_of_silence(tmp_path, clock, capsys):
    state = Whole(TURNS, 0, 4, SECONDS, tmp_path, now=clock)

    class Seconds:
        def wait(self, seconds: float) -> bool:
            clock.seconds += seconds
            return clock.seconds > 185

    state.over = Seconds()
    state._watch()
    assert len(capsys.readouterr().out.splitlines()) == 3
