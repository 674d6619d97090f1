"""The committed encoders: files, recipe, and a score that can be checked in seconds."""

import json

import pytest
import torch
from formulas import refused
from torch.testing import assert_close

from curlnb import evaluation, models
from curlnb.companion import reference
from curlnb.data import augment, datasets
from curlnb.models import committed

NAMES = ("biased", "debiased", "unbiased", "hard")


def test_there_are_four_and_each_is_a_reference_run_at_night():
    about = committed.catalogue()
    assert tuple(about) == NAMES
    runs = {record["identity"]: record for record in reference.records("night")}
    for name, row in about.items():
        assert row["parameters"]["objective"] == name
        record = runs[row["identity"]]
        assert (record["seed"], record["metrics"]["knn"]) == (row["seed"], row["metrics"]["knn"])


@pytest.mark.parametrize("name", NAMES)
def test_its_features_tell_classes_apart_about_as_well_as_noted(name):
    """On a fifth of the images kNN is worse than on all, and far better than random weights."""
    train, test = (datasets.load("cifar10-mini", split) for split in ("train", "test"))
    model = models.pretrained(name)
    assert not model.training
    some, few = train.images[:2000], test.images[:500]
    with torch.no_grad():
        x, y = (
            torch.cat([model(augment.normalise(part))[0] for part in images.split(500)])
            for images in (some, few)
        )
    assert_close(x.norm(dim=1), torch.ones(len(x)))
    knn = evaluation.knn(x, train.labels[:2000], y, test.labels[:500], k=50)
    noted = committed.catalogue()[name]["metrics"]["knn"]
    assert noted - 0.15 < knn < noted + 0.05


def test_bad_names_and_changed_files_are_refused_in_a_line(tmp_path, monkeypatch):
    with refused("no committed encoder 'best'; there are biased, debiased, unbiased, hard"):
        models.pretrained("best")
    (tmp_path / "hard.safetensors").write_bytes(b"other")
    (tmp_path / "encoders.json").write_text(
        json.dumps({"hard": {"sha256": "0", "parameters": {"encoder": "cnn"}}})
    )
    monkeypatch.setattr(committed, "folder", lambda: tmp_path)
    with refused("is not the committed file: restore it"):
        models.pretrained("hard")
    (tmp_path / "encoders.json").unlink()
    with pytest.raises(FileNotFoundError, match="come with the repository"):
        models.pretrained("hard")
