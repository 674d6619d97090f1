"""`curlnb why` says which committed run a run is, and what tells it from the nearest one."""

from curlnb.companion import reference
from curlnb.companion.why import why
from curlnb.experiments.images import simclr


def test_a_run_of_another_profile_is_found_there():
    record = next(r for r in reference.records("night") if r["experiment"] == simclr.name)
    asked = {k: v for k, v in record["parameters"].items() if isinstance(v, str | int | float)}
    assert why(simclr.asked(asked, record["seed"]), "quick").startswith(
        "this is a committed run of night"
    )


def test_what_tells_a_run_from_the_nearest_is_said():
    said = why(simclr.asked({"epochs": 17}, 0), "quick")
    assert said.startswith("no committed run of images.simclr is this one; the nearest differs in")
    assert "epochs: 17 here" in said
