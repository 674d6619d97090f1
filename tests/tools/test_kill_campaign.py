"""A small campaign of SIGKILLs; `python tools/kill_campaign.py --kills 100` is the large one."""

import sys
from collections import Counter
from pathlib import Path

import kill_campaign
import pytest

FORKS = Path(__file__).parents[1] / "forks.py"


class Begun(kill_campaign.Campaign):
    """The undisturbed round is a fork, like the commands of other tests. A fork is not known by its
    environment, so that what is left is looked for after the other rounds only, in which processes
    of their own are killed.
    """

    def round(self, kills: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if not kills:
                patch.setattr(self, "line", [sys.executable, str(FORKS), *self.line[1:]])
            else:
                for name in ("TESTS_FORKS", "JUPYTER_PATH"):
                    patch.delenv(name, raising=False)
            super().round(kills)


def test_a_reproduction_killed_now_and_then_ends_with_the_metrics_of_an_undisturbed_one(
    monkeypatch,
):
    monkeypatch.setattr(kill_campaign, "Campaign", Begun)
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
        with (
            FileLock(it.results / "lock"),
            pytest.raises(kill_campaign.Broken, match="held by nobody"),
        ):
            it.check_left()
