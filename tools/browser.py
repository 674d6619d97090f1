"""A headless Chromium, driven through its pipe: what a page says to the console, which of its files
are missing, how it looks.

    with Browser(folder) as browser:
        page = browser.open("file:///...", width=390)
        browser.evaluate("document.title")

No package is needed for it, no port is opened, and the browser's own window does not matter, since
the width is that of an emulated screen.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-sync",
    ),
    *(
        "--disable-component-update",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
    ),
)
# Becomes the browser, which reads commands from file 3 and answers on file 4.
_ON_3_AND_4 = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3]]
os.dup2(pipes[0], 3), os.dup2(pipes[1], 4), os.closerange(5, 256)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One browser with one page; `folder` holds its profile. RuntimeError where it does not answer
    within `patience` seconds.
    """

    def __init__(self, folder: Path, patience: float = 60) -> None:
        self.folder, self.patience = Path(folder), patience
        self.events: list[dict[str, Any]] = []
        self._number, self._buffer = 0, b""

    def __enter__(self) -> "Browser":
        if CHROMIUM is None:
            raise RuntimeError(f"no browser found: install one of {', '.join(NAMES)}")
        read_there, self._write = os.pipe()
        self._read, write_there = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={self.folder}", "--remote-debugging-pipe", "about:blank"]
        pipes = (read_there, write_there)
        command = [sys.executable, "-IS", "-c", _ON_3_AND_4, *map(str, pipes), CHROMIUM, *flags]
        self._log = open(self.folder.with_suffix(".log"), "wb")
        self._process = subprocess.Popen(
            command, pass_fds=pipes, stdout=self._log, stderr=self._log
        )
        for pipe in pipes:
            os.close(pipe)
        target = self.call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True, session=None
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close", session=None)
            self._process.wait(10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        for pipe in (self._read, self._write):
            os.close(pipe)
        self._log.close()

    def call(self, method: str, session: str | None = "", **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self.patience
        while True:
            answer = self._next(until, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self, until: float, waiting: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise RuntimeError(
                    f"the browser did not answer {waiting} within {self.patience:.0f} s"
                )
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError(f"the browser ended during {waiting}: see {self._log.name}")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        """Load a page on a screen of that size, and wait until its scripts and pictures are there.
        `events` starts anew.
        """
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")
        self._until("Page.loadEventFired")
        self.events.clear()
        self.call("Page.navigate", url=address)
        self._until("Page.loadEventFired")

    def _until(self, name: str) -> None:
        until = time.monotonic() + self.patience
        while not any(event.get("method") == name for event in self.events):
            self.events.append(self._next(until, name))
        self.events = [event for event in self.events if event.get("method") != name]

    def evaluate(self, script: str) -> Any:
        """The value of a script's last expression; a promise is waited for. RuntimeError with its
        message where it throws.
        """
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """What went wrong since the page was opened: errors and warnings on the console,
        exceptions, files that could not be loaded.
        """
        said = []
        for event in self.events:
            given = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                said.append(
                    given["exceptionDetails"].get("exception", {}).get("description")
                    or given["exceptionDetails"]["text"]
                )
            elif event["method"] == "Runtime.consoleAPICalled" and given["type"] in (
                "error",
                "warning",
                "assert",
            ):
                said.append(
                    " ".join(
                        str(part.get("value", part.get("description", "")))
                        for part in given["args"]
                    )
                )
            elif event["method"] == "Log.entryAdded" and given["entry"]["level"] in (
                "error",
                "warning",
            ):
                said.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
            elif event["method"] == "Network.loadingFailed" and not given.get("canceled"):
                said.append(f"not loaded ({given['errorText']}): {self._asked(given['requestId'])}")
        return said

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def _asked(self, number: str) -> str:
        sent = (
            event["params"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        )
        return next(
            (given["request"]["url"] for given in sent if given["requestId"] == number), "?"
        )

    def picture(self, path: Path, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
