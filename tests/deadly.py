"""A task that kills its process, importable without torch: seven processes import it in one test."""

import os
import signal
import time
from pathlib import Path


def size_or_death(path: Path) -> int:
    """Kills its process where the file is empty."""
    time.sleep(0.2)  # so that the others are at work
    return path.stat().st_size or os.kill(os.getpid(), signal.SIGKILL) or 0
