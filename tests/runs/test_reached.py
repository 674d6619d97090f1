"""What a run calls is what its key covers: a short run for each branch of each experiment, on
made-up data, and each way of reading data, whose functions are seen as they are called.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

TESTS = Path(__file__).parent.parent


def calls(function, *arguments):
    """(module, name at its top) of the functions of the package that are called, those aside that
    keep, read or only check, and what only they call.
    """
    from curlnb.runs.source import _CHECK, HERE, KEEPERS

    folder = str(HERE.folder)
    pairs = {}  # code -> the code of the package that it calls
    seen = set()

    def look(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(folder):
            return
        above = frame.f_back
        if (above.f_code, code) in seen:
            return
        seen.add((above.f_code, code))
        while above and not above.f_code.co_filename.startswith(folder):
            above = above.f_back
        pairs.setdefault(above and above.f_code, set()).add(code)

    sys.setprofile(look)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    found = set()
    waiting, known = [None], {None}
    while waiting:
        for code in pairs.get(waiting.pop(), set()) - known:
            known.add(code)
            module = Path(code.co_filename).relative_to(HERE.folder.parent).with_suffix("")
            place = ".".join(module.parts), code.co_qualname.split(".")[0]
            if not KEEPERS.fullmatch(place[0]) and not _CHECK.fullmatch(code.co_name):
                waiting.append(code)
                found |= {place} if code.co_name[0] != "<" else set()
    return found


def uncovered(folder):
    """What the runs of all cases call that their keys do not cover, a line each."""
    from experiments.test_devices import cases

    from curlnb.experiments import all_experiments
    from curlnb.runs.experiment import code_graphs, grouped
    from curlnb.runs.source import HERE
    from curlnb.runs.store import Run

    found = []
    for experiment in all_experiments():
        for number, given in enumerate(cases().get(experiment.name, [{}])):
            parameters = experiment.parameters({k: v for k, v in given.items() if k != "seed"})
            run = Run(folder / f"{experiment.name}-{number}")
            arguments = grouped(experiment.function, parameters)
            called = calls(partial(experiment.function, run, seed=0, **arguments))
            graphs = code_graphs(experiment.function, parameters, HERE)
            covered = {(at.module, at.name) for graph in graphs for at in graph.texts}
            found += [f"{experiment.name} {given}: {m}.{n}" for m, n in sorted(called - covered)]
    return found


def reading():
    """The same of how committed data is read."""
    from curlnb.data import datasets, graphs, images, sentences, texts
    from curlnb.runs.source import HERE, Definition

    found = []
    for function, arguments in (
        (images.load, ("quickdraw-mini", "train/long-tail")),
        (texts.load, ("wiki-mini", "dev")),
        (sentences.load, ("TREC", "test")),
        (graphs.load, ("MUTAG", "cpu")),
        (datasets.digest, ("cifar10",)),
    ):
        called = calls(function, *arguments)
        graph = HERE.graph(Definition(function.__module__, function.__name__))
        covered = {(at.module, at.name) for at in graph.texts}
        found += [f"{function.__name__}{arguments}: {m}.{n}" for m, n in sorted(called - covered)]
    return found


def test_what_runs_call_is_in_their_keys_or_behind_the_digests_of_data(tmp_path):
    """In a process of its own, where nothing is kept from other tests' runs."""
    about = {"CURLNB_DRY": "1", "OMP_NUM_THREADS": "1", "CURLNB_DEVICE": "cpu"}
    about["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    line = [sys.executable, str(TESTS / "forks.py"), "-m", "runs.test_reached", str(tmp_path)]
    done = subprocess.run(line, env={**os.environ, **about}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


if __name__ == "__main__":
    found = uncovered(Path(sys.argv[1]))
    os.environ["CURLNB_DRY"] = "0"
    print(json.dumps(found + reading()))
