"""How far the runs of a sweep are: a bar where it can be drawn, else a line a minute."""

import json
import sys
import threading
import time
from typing import Any

from tqdm.auto import tqdm

from curlnb.runs import environment
from curlnb.runs.executors import Job

TRAINED = 0.9  # of a run, when it has taken its last step


class Display:
    """A bar over `jobs` that moves with the steps of each run, on a terminal and in a notebook.
    Elsewhere a line a minute, in the log of `make reproduce` or on standard error.
    """

    def __init__(self, jobs: list[Job]) -> None:
        self.left = {job.key: job for job in jobs}
        self.name, self.total, self.start = jobs[0].experiment.name, len(jobs), time.monotonic()
        self.last_line, self.over = self.start, threading.Event()

    def __enter__(self) -> "Display":
        drawn = not environment.headless() and (
            sys.stderr.isatty() or "ipykernel.kernelapp" in sys.modules
        )
        self.bar = tqdm(
            total=self.total, desc=self.name, unit="run", disable=not drawn, leave=False
        )
        environment.log(f"{self.name}: {self.total} runs to do")
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.bar.close()
        if not self.left:
            seconds = time.monotonic() - self.start
            environment.log(f"{self.name}: {self.total} runs done in {seconds:.0f} s")

    def finished(self, job: Job) -> None:
        self.left.pop(job.key, None)
        self.move()

    def move(self) -> str:
        """Move the bar to where the runs are now. Returns that in words."""
        notes = [note for job in list(self.left.values()) if (note := _note(job))]
        done = sum(TRAINED * note["done"] / (note["total"] or 1) for note in notes)
        self.bar.n = round(self.total - len(self.left) + done, 1)
        self.bar.refresh()
        return ", ".join(map(_in_words, notes[:4]))  # a cluster has more

    def watch(self) -> None:
        while not self.over.wait(1):
            now = time.monotonic()
            if self.bar.disable and now - self.last_line < 60:
                continue
            text = self.move()
            self.bar.set_postfix_str(text, refresh=False)
            if now - self.last_line >= 60:
                self.last_line = now
                line = f"{self.name}: {self.total - len(self.left)} of {self.total} runs done"
                line += f"; {text}" if text else ""
                environment.log(line)
                if self.bar.disable and not environment.headless():
                    print(line, file=sys.stderr, flush=True)


def _in_words(note: dict[str, float]) -> str:
    """A run's progress. After its last step it measures what it trained, which may take as long."""
    loss = f", loss {note['loss']:.3f}" if "loss" in note else ""
    if note["done"] >= note["total"]:
        return f"trained{loss}, evaluating for {note['since']:.0f} s"
    return f"epoch {note['done']:.1f} of {note['total']:g}{loss}"


def _note(job: Job) -> dict[str, Any]:
    """What the run last wrote of its progress, and the seconds since; empty before it begins."""
    try:
        path = job.store.root / job.experiment.name / job.key / "progress.json"
        return {"since": time.time() - path.stat().st_mtime, **json.loads(path.read_text())}
    except (OSError, ValueError):
        return {}
