"""The pages that move compute what the package computes."""

import itertools
import json
import math
import shutil

import pytest
import torch
from browser import CHROMIUM, FAULTS, look

from curlnb.losses import debiased, hard, info_nce
from curlnb.runs import environment

STATIC = environment.home() / "docs" / "site" / "_static"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def computed(folder, script, name, settings):
    """What the page's model gives for each of the settings, by a browser."""
    shutil.copy(STATIC / script, folder)
    shutil.copy(STATIC / "site.css", folder)
    (folder / "page.html").write_text(
        '<!doctype html><html lang="en"><title>x</title><link rel="stylesheet" href="site.css">'
        f'<main><h1>x</h1><div id="{script[:-3]}" class="explorable"></div></main>'
        f'<script src="{script}"></script>'
    )
    what = f"return {json.dumps(settings)}.map(page.{name}.values)"
    found, said = look(folder, ["page.html"], what, [390], patience=100)
    assert said == []
    return found["page.html at 390 px"]


def grid(**values):
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def test_the_estimates_are_those_of_the_losses(tmp_path):
    """Each loss gives its g back: L = log(pos + N g) - log(pos)."""
    settings = grid(
        classes=[2, 5, 20],
        negatives=[2, 30, 256],
        temperature=[0.1, 0.5, 2.0],
        shift=[0, 0.37],
        beta=[0, 1, 6],
        width=[0.1, 1],
    )
    made = computed(tmp_path, "estimates.js", "curlnbEstimates", settings)
    for given, found in zip(settings, made, strict=True):
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


def test_the_pushes_are_the_gradient_of_the_loss(tmp_path):
    settings = grid(
        beta=[0, 1, 6], temperature=[0.1, 0.5, 2], tau=[0, 0.1, 0.3], positive=[0, 0.4], own=[0.5]
    )
    made = computed(tmp_path, "pushes.js", "curlnbPushes", settings)
    for given, found in zip(settings, made, strict=True):
        neg = torch.tensor([found["sims"]], dtype=torch.float64, requires_grad=True)
        pos = torch.tensor([math.cos(given["positive"])], dtype=torch.float64)
        options = dict(temperature=given["temperature"], tau_plus=given["tau"], beta=given["beta"])
        loss = hard(pos, neg, **options)
        assert found["loss"] == pytest.approx(loss.item(), rel=1e-6, abs=1e-9), given
        (pushes,) = torch.autograd.grad(loss.sum(), neg)
        assert found["pushes"] == pytest.approx(pushes[0].tolist(), rel=1e-6, abs=1e-9), given


@pytest.mark.parametrize("script", ["estimates.js", "pushes.js"])
def test_readers_with_aids_and_phones_find_nothing_wrong(tmp_path, script):
    computed(tmp_path, script, f"curlnb{script[:-3].capitalize()}", [])
    found, said = look(tmp_path, ["page.html"], FAULTS, patience=100)
    assert said == []
    assert {page: faults for page, faults in found.items() if faults} == {}
