"""A small campaign of SIGKILLs; `python tools/kill_campaign.py --kills 100` is the large one."""

from collections import Counter

import kill_campaign
import pytest


def test_a_reproduction_killed_now_and_then_ends_with_the_metrics_of_an_undisturbed_one(monkeypatch):
    for name in ("TESTS_FORKS", "JUPYTER_PATH"):  # what is killed are processes of their own
        monkeypatch.delenv(name, raising=False)
    assert kill_campaign.campaign(2, names=("shared",), pause=0.05, seed=2).startswith("2 kills")


@pytest.mark.parametrize("planted", ["a lock", "half a file"])
def test_the_campaign_sees_what_it_looks_for(tmp_path, planted, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(kill_campaign, "ORPHAN_SECONDS", 0.5)
    it = kill_campaign.Campaign(tmp_path, ("theory",), 0.0, 0, 0)
    monkeypatch.setattr(it, "processes", lambda: Counter())
    it.results.mkdir(parents=True)
    it.check_left()
    if planted == "half a file":
        (it.results / "run.json").write_text('{"a"')
        with pytest.raises(ValueError, match="Expecting"):
            it.check_left()
    else:
        with FileLock(it.results / "lock"), pytest.raises(kill_campaign.Broken, match="held by nobody"):
            it.check_left()
