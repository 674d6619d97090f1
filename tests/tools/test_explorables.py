"""The pages that move compute what the package computes."""

import itertools
import json
import math
import shutil

import pytest
import torch
from browser import CHROMIUM, look

from curlnb.losses import debiased, hard, info_nce
from curlnb.runs import environment

STATIC = environment.home() / "docs" / "site" / "_static"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def grid(**values):
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


ESTIMATES = grid(
    classes=[2, 20],
    negatives=[2, 256],
    temperature=[0.1, 0.5, 2.0],
    shift=[0, 0.37],
    beta=[0, 1, 6],
    width=[0.1, 1],
)
PUSHES = grid(
    beta=[0, 1, 6], temperature=[0.1, 0.5, 2], tau=[0, 0.1, 0.3], positive=[0, 0.4], own=[0.5]
)


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """What the pages' models give for each of the settings, by a browser."""
    folder = tmp_path_factory.mktemp("pages")
    for script in ("estimates.js", "pushes.js"):
        shutil.copy(STATIC / script, folder)
    (folder / "page.html").write_text(
        '<!doctype html><title>x</title><script src="estimates.js"></script>'
        '<script src="pushes.js"></script>'
    )
    models = {"curlnbEstimates": ESTIMATES, "curlnbPushes": PUSHES}
    calls = [f"{json.dumps(of)}.map(page.{name}.values)" for name, of in models.items()]
    found, said = look(folder, ["page.html"], f"return [{', '.join(calls)}]", [390], patience=100)
    assert said == []
    return found["page.html at 390 px"]


def test_the_estimates_are_those_of_the_losses(computed):
    """Each loss gives its g back: L = log(pos + N g) - log(pos)."""
    for given, found in zip(ESTIMATES, computed[0], strict=True):
        t, n = given["temperature"], given["negatives"]
        pos = torch.tensor([math.cos(found["positive"])], dtype=torch.float64)
        angles = [point["angle"] for point in found["drawn"]]
        neg = torch.tensor([angles], dtype=torch.float64).cos()
        options = dict(temperature=t, tau_plus=1 / given["classes"])
        losses = {
            "biased": info_nce(pos, neg, temperature=t),
            "debiased": debiased(pos, neg, **options),
            "hard": hard(pos, neg, beta=given["beta"], **options),
        }
        for name, loss in losses.items():
            estimate = (pos / t).exp() * loss.expm1() / n
            assert found[name] == pytest.approx(float(estimate), rel=1e-6), (name, given)


def test_the_pushes_are_the_gradient_of_the_loss(computed):
    for given, found in zip(PUSHES, computed[1], strict=True):
        neg = torch.tensor([found["sims"]], dtype=torch.float64, requires_grad=True)
        pos = torch.tensor([math.cos(given["positive"])], dtype=torch.float64)
        options = dict(temperature=given["temperature"], tau_plus=given["tau"], beta=given["beta"])
        loss = hard(pos, neg, **options)
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-6, abs=1e-9), given
        (pushes,) = torch.autograd.grad(loss.sum(), neg)
        assert found["pushes"] == pytest.approx(pushes[0].tolist(), rel=1e-6, abs=1e-9), given
