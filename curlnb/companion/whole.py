"""The line that `make reproduce` shows of the whole: notebooks done, runs done, minutes left."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

EVERY = 60.0  # seconds after which the line is written anew where nothing else was said
PRIOR = 60.0  # seconds that the expected pace counts for, beside what was measured


class Whole:
    """The state of a reproduction. What else is printed goes through `say`, so that on a terminal
    the line stays the last one.

    Elsewhere, in a log say, it is written as a line of its own when a notebook ends, and otherwise
    once a minute. turns: the notebooks to run in groups that come one after the other, each with
    how many of it run at once. done, total: how many notebooks were finished before, and how many
    are wanted. seconds: what a notebook is expected to take, where that is known. results:
    results/<profile>, whose runs are counted. runs: how many there are in all, where that is known.
    """

    def __init__(
        self,
        turns: Sequence[tuple[Sequence[str], int]],
        done: int,
        total: int,
        seconds: Mapping[str, float],
        results: Path,
        *,
        runs: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turns, self.results, self.runs, self.now = turns, results, runs, now
        self.names = [name for names, _ in turns for name in names]
        self.done, self.total = done, total
        known = [seconds[name] for name in self.names if name in seconds]
        usual = sum(known) / len(known) if known else 0.0
        self.expected = {name: seconds.get(name, usual) for name in self.names}
        self.begun: dict[str, float] = {}
        self.took: dict[str, float] = {}
        self.on_terminal = sys.stdout.isatty()
        self.lock, self.over = threading.RLock(), threading.Event()
        self.last = now()

    def __enter__(self) -> "Whole":
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        if self.on_terminal:
            with contextlib.suppress(OSError):
                print("\r\x1b[K", end="", flush=True)

    def begin(self, name: str) -> None:
        self.begun[name] = self.now()
        self.say(f"  {name}: started")

    def end(self, name: str, said: str, done: bool) -> None:
        """Note that a notebook ended, and say what became of it."""
        self.took[name] = self.now() - self.begun.get(name, self.now())
        self.done += done
        self.say(f"  {name}: {said}")
        self.show()

    def say(self, line: str) -> None:
        with self.lock:
            print(f"\r\x1b[K{line}" if self.on_terminal else line, flush=True)
            if self.on_terminal:
                self.show()

    def show(self) -> None:
        with self.lock:
            self.last = self.now()
            if self.on_terminal:
                print(
                    f"\r\x1b[K{self.text()[: shutil.get_terminal_size().columns - 1]}",
                    end="",
                    flush=True,
                )
            else:
                print(self.text(), flush=True)

    def _watch(self) -> None:
        while not self.over.wait(1):
            if self.now() - self.last >= EVERY:
                with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
                    self.show()

    def text(self) -> str:
        finished, asked = self.counted()
        most = max(asked, self.runs)
        runs = f"{finished} of {most} runs" + ("" if self.runs else " so far") if most else ""
        return ", ".join(
            part
            for part in (f"whole: {self.done} of {self.total} notebooks", runs, self.left())
            if part
        )

    def counted(self) -> tuple[int, int]:
        """How many of the runs that notebooks asked for so far are finished, and how many they
        asked for.
        """
        runs, keys = self.results / "runs", set()
        for path in (runs / "used").glob("*.txt"):
            with contextlib.suppress(OSError, ValueError):
                keys.update(path.read_text().split())
        return sum((runs / key / "run.json").exists() for key in keys), len(keys)

    def left(self) -> str:
        """How long it takes yet, by the seconds expected and by how this machine kept to them so
        far; empty where that is not known.
        """
        if not any(self.expected.values()):
            return ""
        ended = sum(self.expected[name] for name in self.took)
        pace, now, seconds = (sum(self.took.values()) + PRIOR) / (ended + PRIOR), self.now(), 0.0
        for names, at_once in self.turns:
            each = [
                max(
                    0.0,
                    pace * self.expected[name]
                    - (now - self.begun[name] if name in self.begun else 0.0),
                )
                for name in names
                if name not in self.took
            ]
            seconds += max(sum(each) / max(1, at_once), max(each, default=0.0))
        minutes = seconds / 60
        if minutes < 1:
            return "less than a minute left" if len(self.took) < len(self.names) else ""
        return (
            f"about {minutes:.0f} min left"
            if minutes < 100
            else f"about {minutes / 60:.0f} hours left"
        )
