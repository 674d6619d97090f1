"""The snippets of docs/howto.md run as they stand, each by itself: dry, so that the data are made
up and a training takes two steps.
"""

import re
import warnings

import matplotlib.pyplot as plt
import pytest

from curlnb.runs import environment

TEXT = (environment.home() / "docs" / "howto.md").read_text()
TASKS = dict(re.findall(r"^## (\d+\. [^\n]+)\n.*?```python\n(.*?)```", TEXT, re.M | re.S))

SETTINGS = re.findall(r"`(notebooks/\w+\.toml)`.*?```toml\n(.*?)```", TEXT, re.S)


def test_there_is_a_snippet_a_task():
    assert len(TASKS) == len(re.findall(r"^## ", TEXT, re.M)) == TEXT.count("```python") == 10


@pytest.mark.parametrize("task", TASKS)
def test_a_snippet_runs(task, tmp_path, monkeypatch):
    dry = {
        "CURLNB_DRY": "1",
        "CURLNB_HOME": str(tmp_path),  # with the files of settings that the page shows
        "CURLNB_RESULTS": str(tmp_path / "results"),
        "MPLBACKEND": "agg",
        "CURLNB_DEVICE": "cpu",
        "CURLNB_WORKERS": "0",
    }
    (tmp_path / "data").symlink_to(environment.home() / "data")
    (tmp_path / "notebooks").mkdir()
    for name, text in SETTINGS:
        (tmp_path / name).write_text(text)
    for name, value in dry.items():
        monkeypatch.setenv(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of degenerate made-up data
            exec(
                compile(TASKS[task], f"docs/howto.md, task {task}", "exec"),
                {"__name__": "__main__"},
            )
    finally:
        plt.close("all")
