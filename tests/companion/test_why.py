"""`curlnb why` says which committed run a run is, and what tells it from the nearest one."""

import shutil
import subprocess

from curlnb.companion import reference
from curlnb.companion.why import why
from curlnb.experiments.images import simclr
from curlnb.runs import environment


def test_a_run_of_another_profile_is_found_there():
    record = next(r for r in reference.records("night") if r["experiment"] == simclr.name)
    asked = {k: v for k, v in record["parameters"].items() if isinstance(v, str | int | float)}
    assert why(simclr.asked(asked, record["seed"]), "quick").startswith(
        "this is a committed run of night"
    )


def test_what_tells_a_run_from_the_nearest_is_said():
    said = why(simclr.asked({"epochs": 17}, 0), "quick")
    assert said.startswith("no committed run of images.simclr is this one; the nearest differs in")
    assert "\nepochs: 17 here, " in said
    assert len(said.splitlines()) <= 3


def test_the_definition_that_changed_since_the_commit_is_named(monkeypatch, tmp_path):
    """In a checkout of one commit, whose package differs from the present one in a definition."""
    record = next(r for r in reference.records() if r["experiment"] == simclr.name)
    shutil.copytree(environment.home() / "curlnb", tmp_path / "curlnb")
    (tmp_path / "data").symlink_to(environment.home() / "data")
    former = tmp_path / "curlnb" / "runs" / "training.py"
    former.write_text(former.read_text().replace("seed * 1_000_003", "seed"))
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    reference.write_runs([record | {"code": "old"}], reference.folder("quick") / "runs")
    about = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *about, *words], cwd=tmp_path, check=True)
    assert why(reference.asked_by(record), "quick").splitlines()[1:] == [
        "curlnb.runs.training.train: changed"
    ]
