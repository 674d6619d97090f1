"""A command asked of the forking process (tests/forks.py) ends as a process of its own would;
without that process it is one.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from curlnb.runs.executors import local_processes

FORKS = Path(__file__).parent / "forks.py"
WAITS = """
import os, pathlib, sys, time
try:
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)  # as curlnb does
"""


@pytest.fixture
def start(tmp_path):
    def start(code, *arguments):
        (tmp_path / "made_up.py").write_text(code)
        line = [sys.executable, str(FORKS), "-m", "made_up", *arguments]
        return subprocess.Popen(
            line,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "WORD": "said"},
            start_new_session=True,
        )

    return start


def test_it_has_the_askers_arguments_environment_and_folder_and_ends_with_its_status(
    start, tmp_path
):
    process = start(
        "import os, sys\nprint(*sys.argv[1:], os.environ['WORD'], os.getcwd())\nsys.exit(7)",
        "a",
        "b",
    )
    assert process.communicate(timeout=200)[0].split() == ["a", "b", "said", str(tmp_path)]
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_whoever_stops_the_asker_stops_the_fork(start, tmp_path, number, status):
    process = start(WAITS, str(tmp_path / "pid"))
    until = time.monotonic() + 200
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    os.killpg(process.pid, number)
    process.communicate(timeout=30)
    assert process.returncode == status
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.kill(int((tmp_path / "pid").read_text()), 0)
            time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.skipif(
    "TESTS_FORKS" not in os.environ, reason="nothing to fork from: one test at a time"
)
def test_workers_of_a_pool_are_forks_too():
    """They hold what their pool's own process would not have imported; tests of workers pass either
    way, but for their time.
    """
    assert (
        local_processes(1).submit(eval, "'dask.distributed' in __import__('sys').modules").result()
    )
