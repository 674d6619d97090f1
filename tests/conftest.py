"""One queue for unit tests and notebooks: `pytest --nbval-lax tests notebooks -n 2 --dist loadgroup`."""

import os
from pathlib import Path

import pytest

SLOW = ("test_reproduce", "test_devices", "test_cluster", "test_distributed", "killed", "test_every_profile_runs_dry", "learns")
"""What takes longest comes early, so that no worker waits at the end for the other's last test."""

ON_REFERENCE = {"CURLNB_REFERENCE": "1", "CURLNB_RESULTS": str(Path(__file__).parent.parent / "results" / "check")}
"""What a notebook's kernel is told: to look all runs up among the committed ones."""


def is_notebook(item: pytest.Item) -> bool:
    return item.path.suffix == ".ipynb"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_notebook(item):  # a notebook's cells need one kernel, and so one worker
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    items.sort(key=lambda item: (not is_notebook(item), not any(name in item.nodeid for name in SLOW)))  # stable


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, value in ON_REFERENCE.items():
        if is_notebook(item):
            os.environ[name] = value
        elif os.environ.get(name) == value:
            del os.environ[name]
