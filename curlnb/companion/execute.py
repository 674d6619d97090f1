"""One notebook through papermill, in a process of its own. It imports nothing else of the package, and so no torch: the kernel does."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # jsonschema would build its grammar, for a second, to check no address
import papermill  # noqa: E402


def execute(path: str, output: str, profile: str, parent: int) -> None:
    """In a process of its own: one notebook through papermill. Ends when the process `parent` is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    parameters = {} if profile == "quick" else {"profile": profile}  # quick is what the notebook says itself
    try:
        papermill.execute_notebook(
            path, output, parameters, kernel_name="python3", progress_bar=False, cwd=str(Path(path).parent), start_timeout=300
        )
    except papermill.PapermillExecutionError as error:
        print(error)
        sys.exit(1)
