"""What makes committed runs stale, and what does not: the package's source is changed in a copy,
and the runs whose code is another are counted.
"""

import ast
import re
import shutil

import pytest

from curlnb.companion import reference
from curlnb.runs.experiment import code_graphs
from curlnb.runs.source import HERE, Source


@pytest.fixture(scope="module")
def runs():
    """A committed run for each way of choosing names, with the digest of its code."""
    found = {}
    for profile in ("quick", "night"):
        for record in reference.records(profile):
            experiment = reference.experiment_named(record["experiment"])
            names = sorted(str(v) for v in record["parameters"].values() if isinstance(v, str))
            found[experiment.name, *names] = (experiment, record["parameters"])
    return [
        (experiment, given, codes(experiment, given, HERE)) for experiment, given in found.values()
    ]


def codes(experiment, given, source):
    graphs = code_graphs(experiment.function, experiment.parameters(given), source)
    return [graph.digest for graph in graphs]


@pytest.fixture
def folder(tmp_path):
    target = tmp_path / "curlnb"
    shutil.copytree(HERE.folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def stale(runs, folder):
    source = Source(folder)
    return [(e.name, given) for e, given, before in runs if codes(e, given, source) != before]


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


class _Reworded(ast.NodeTransformer):
    """Every text within a raise has one word more."""

    count = 0

    def visit_Raise(self, node):
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                each.value += " indeed"
                self.count += 1
        return node


def test_reworded_errors_one_more_loss_and_encoder_and_other_reading_make_no_run_stale(
    runs, folder
):
    words = _Reworded()
    for path in folder.rglob("*.py"):
        path.write_text(ast.unparse(words.visit(ast.parse(path.read_text()))))
    assert words.count > 200
    objectives = folder / "experiments" / "objectives.py"
    edit(
        objectives,
        "'biased': Named(_estimated),",
        "'biased': Named(_estimated), 'new': Named(_new),",
    )
    with open(objectives, "a") as file:
        file.write("\n\ndef _new(loss, seen):\n    return seen.pos, seen.pos.mean()\n")
    edit(folder / "models" / "encoders.py", "'cnn': _cnn,", "'cnn': _cnn, 'new': _cnn,")
    for name in ("download", "verified", "catalogue", "contents"):
        path = folder / "data" / f"{name}.py"
        path.write_text(re.sub(r"\bdef (\w+)\(", r"def \1_(", path.read_text()))
    assert stale(runs, folder) == []


def of(*names):
    return lambda name, given: name.startswith(names)


USES = [  # a change of what computes, and which runs use it
    (
        "experiments/objectives.py",
        "corrected=True",
        "corrected=False",
        lambda name, given: given.get("objective") == "hard_corrected",
    ),
    (
        "models/encoders.py",
        "(in_channels, 32, 64, 128)",
        "(in_channels, 32, 64, 96)",
        lambda name, given: given.get("encoder") == "cnn",
    ),
    (
        "data/photometric.py",
        "= range(",
        "= range(0, ",
        of("images", "moco", "multiview", "representations"),
    ),
    ("data/texts.py", "entry = entry_of", "entry = 1 and entry_of", of("latent_text", "sentences")),
    (
        "losses/estimate.py",
        "HOLE = -1e20",
        "HOLE = -1e19",
        of("images", "moco", "multiview", "sentences", "representations", "graphs", "control"),
    ),
]


@pytest.mark.parametrize(("place", "old", "new", "uses"), USES, ids=[place for place, *_ in USES])
def test_a_changed_constant_makes_exactly_the_runs_stale_that_use_it(
    runs, folder, place, old, new, uses
):
    edit(folder / place, old, new)
    wanted = [(e.name, given) for e, given, _ in runs if uses(e.name, e.parameters(given))]
    assert wanted
    assert stale(runs, folder) == wanted
