"""The recipes of docs/losses.md run as they stand, each where its library is installed."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()
RECIPES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", TEXT, re.M | re.S))


def test_there_is_a_recipe_a_section():
    assert len(RECIPES) == TEXT.count("```python") == 7


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs(title):
    for library in ("lightly", "pytorch_lightning", "pytorch_metric_learning"):
        if f"from {library}" in RECIPES[title] or f"import {library}" in RECIPES[title]:
            pytest.importorskip(library)
    exec(compile(RECIPES[title], f"docs/losses.md, {title}", "exec"), {"__name__": "recipe"})
