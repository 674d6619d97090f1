"""Where a number comes from is read of the checkout, whatever the surroundings are."""

import os
import subprocess

import pytest

from curlnb.runs import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit, as the project's own; yields what names the commit."""
    about = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *about, *words], cwd=tmp_path, check=True)
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True
    )
    return said.stdout.strip()


def test_another_repository_in_the_environment_is_not_read(checkout, monkeypatch, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path / "other"], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert provenance.git("rev-parse", "HEAD") == checkout


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
def test_a_checkout_of_another_user_is_read(checkout, tmp_path):
    os.chown(tmp_path, 12345, 12345)
    os.chown(tmp_path / ".git", 12345, 12345)
    assert provenance.git("rev-parse", "HEAD") == checkout


def test_outside_of_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    assert provenance.git("rev-parse", "HEAD") == ""
