"""One queue for unit tests and notebooks: `pytest --nbval-lax tests notebooks -n 2 --dist
loadscope`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

SLOW = (
    "test_every_profile_runs_dry",
    "test_types",
    "test_site",
    "test_reproduce",
    "test_sample",
    "test_devices",
    "test_executors",
    "test_processes_that_gather",
    "kill",
    "learns",
)
"""What takes longest comes early, so that no worker waits at the end for the other's last test."""

ON_REFERENCE = {
    "CURLNB_REFERENCE": "1",
    "CURLNB_RESULTS": str(Path(__file__).parent / "results" / "check"),
}
"""What a notebook's kernel is told: to look all runs up among the committed ones."""


FORKS = Path(__file__).parent / "tests" / "forks.py"


def pytest_configure(config: pytest.Config) -> None:
    """With several workers, these, commands and kernels are forks of one process (tests/forks.py);
    a test or two are sooner done without it.
    """
    if not getattr(
        config.option, "numprocesses", None
    ):  # one of the workers, too: it inherits the variables
        import forks

        forks.fork_pools()
        return
    folder = Path(tempfile.mkdtemp())
    kernel = {
        "argv": [sys.executable, str(FORKS), "kernel", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
    }
    (folder / "kernels" / "python3").mkdir(parents=True)
    (folder / "kernels" / "python3" / "kernel.json").write_text(json.dumps(kernel))
    os.environ |= {"JUPYTER_PATH": str(folder), "TESTS_FORKS": str(folder / "socket")}
    server = subprocess.Popen(
        [sys.executable, str(FORKS), "serve", str(folder / "socket")], stdin=subprocess.PIPE
    )
    if "tests" in config.args:  # types are checked while the imports keep one core busy
        os.environ["TESTS_TYPES"] = str(folder / "types")
        checked = f"{sys.executable} -m mypy > $TESTS_TYPES.txt 2>&1; echo $? > $TESTS_TYPES"
        subprocess.Popen(["sh", "-c", checked], cwd=config.rootpath)
    config.option.tx = [f"popen//python={sys.executable} {FORKS} worker"] * len(config.option.tx)
    config.add_cleanup(
        lambda: (server.communicate(), shutil.rmtree(folder))
    )  # it ends when its standard input does


def is_notebook(item: pytest.Item) -> bool:
    return item.path.suffix == ".ipynb"


TOGETHER = ("test_executors.py", "test_package.py", "test_site.py")
"""Their tests share what takes long to set up. Dry runs share the networks that another notebook
has trained.
"""


class Scheduler(LoadScopeScheduling):
    """A notebook's cells go to one worker, since they need one kernel, and so does a file of
    TOGETHER; every other test stands alone.
    """

    def _split_scope(self, nodeid: str) -> str:
        if "test_every_profile_runs_dry" in nodeid:
            return "dry"
        place = nodeid.partition("::")[0]
        return place if place.endswith((".ipynb", *TOGETHER)) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduler:
    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: (not is_notebook(item), not any(name in item.nodeid for name in SLOW))
    )  # stable


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CURLNB_DRY", "CURLNB_HOME", "CURLNB_DATA"):
        monkeypatch.delenv(variable, raising=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, value in ON_REFERENCE.items():
        if is_notebook(item):
            os.environ[name] = value
        elif os.environ.get(name) == value:
            del os.environ[name]
