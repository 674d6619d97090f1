"""`make reproduce` end to end on small notebooks, in a results folder and a checkout of its own;
the reference and its renewal.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest
import toy

from curlnb.__main__ import main
from curlnb.companion import ledger, notebooks, promote, reference, reproduce, restamp
from curlnb.runs import environment, files
from curlnb.runs.store import Store

HOME = environment.home()
FORKS = Path(__file__).parent.parent / "forks.py"
TESTS = Path(__file__).parent.parent
GOOD = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from curlnb.companion import notebook
from curlnb.runs.sweep import sweep
import pandas as pd, toy
about = dict(seeds=2, pause=PAUSE)
settings = notebook.settings("small", profile, quick=about, gpu=about)
runs = sweep(toy.regression, seeds=settings.seeds, store=settings.store, pause=settings.pause,
             workers=0)
notebook.save_table(settings, runs[["seed", "loss"]], "losses")
ledger = notebook.ledger(settings)
exact = "holds" if len(runs) == 2 else "fails"
ledger.judge("mine/small", exact=exact, value=2.0, claim="two seeds give two rows")
ledger.show()
print(f"{{runs['loss'].mean():.6f}}")
"""
SMALL = GOOD.replace("PAUSE", "0.0")


def write_notebook(
    path: Path, code: str, profile: str = "quick", after: str = "", **needs: bool
) -> None:
    cells = [nbformat.v4.new_markdown_cell("# A small notebook")]
    for text in filter(None, (f'profile = "{profile}"\nseed = 0', code, after)):
        cells.append(nbformat.v4.new_code_cell(text))
    cells[1].metadata["tags"] = ["parameters"]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"curlnb": needs}), path)


@pytest.fixture
def checkout(tmp_path):
    """A checkout with its own notebooks and results; commands run as the Makefile runs them."""
    write_notebook(tmp_path / "notebooks" / "small.ipynb", SMALL)

    def command(
        *arguments: str, start: bool = False, **variables: str
    ) -> subprocess.Popen | subprocess.CompletedProcess:
        own = {"CURLNB_HOME": tmp_path, "CURLNB_RESULTS": tmp_path / "results"}
        env = os.environ | {name: str(path) for name, path in own.items()} | variables
        env |= {"OMP_NUM_THREADS": "1", "CURLNB_DEVICE": "cpu"}
        if start:  # the command and its kernels are processes of their own, no forks
            env = {k: v for k, v in env.items() if k != "TESTS_FORKS"}
            line = [sys.executable, "-m", "curlnb", *arguments]
            pipe = subprocess.PIPE
            return subprocess.Popen(line, env=env, cwd=tmp_path, stdout=pipe, text=True)
        line = [sys.executable, str(FORKS), "-m", "curlnb", *arguments]
        return subprocess.run(
            line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280
        )

    command.root = tmp_path
    return command


MEET = """
import pathlib, sys, time
sys.path.insert(0, TESTS)
mine, other = pathlib.Path("MINE"), pathlib.Path("OTHER")
mine.touch()
until = time.monotonic() + 60
while not other.exists():
    assert time.monotonic() < until, "the other never came"
    time.sleep(0.1)
from curlnb.runs.sweep import sweep
import toy
sweep(toy.LOOK, seeds=[0], where=STEPS, epochs=500)
"""


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
def test_two_notebooks_side_by_side_that_share_a_training_train_it_once(checkout):
    """Each waits for the other's word: one after the other, neither would finish."""
    steps, names = checkout.root / "steps.txt", ("loss_of", "weights_of")
    for mine, other in (names, names[::-1]):
        code = MEET.replace("TESTS", repr(str(TESTS))).replace("STEPS", repr(str(steps)))
        code = code.replace("MINE", str(checkout.root / mine)).replace("LOOK", mine)
        code = code.replace("OTHER", str(checkout.root / other))
        write_notebook(checkout.root / "notebooks" / f"{mine}.ipynb", code)
    done = checkout("reproduce", *(f"notebooks/{name}.ipynb" for name in names))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(steps.read_text().splitlines()) == 500 * 4


def test_notebooks_that_time_something_run_alone_and_those_that_read_the_ledger_last(checkout):
    reads = """
from curlnb.companion import ledger
from curlnb.runs import environment
print(len(ledger.read_all(environment.results_root() / "quick")), "claim so far")
"""
    folder = checkout.root / "notebooks"
    write_notebook(folder / "0_sum.ipynb", reads, last=True, trains=False)
    timed = (
        "import os; print(os.environ['CURLNB_WORKERS'], 'workers', os.environ['OMP_NUM_THREADS'])"
    )
    write_notebook(folder / "1_timed.ipynb", timed, alone=True)
    done = checkout("reproduce")
    assert done.returncode == 0, done.stdout + done.stderr
    order = ["small: done", "1_timed: started", "1_timed: done", "0_sum: started"]
    places = [done.stdout.index(words) for words in order]
    assert places == sorted(places)
    executed = checkout.root / "results" / "quick" / "notebooks"
    assert "1 claim so far" in (executed / "0_sum.ipynb").read_text()
    # All cores are for its runs; its own tensors get one.
    assert f"{os.cpu_count()} workers 1" in (executed / "1_timed.ipynb").read_text()

    more = 'ledger.judge("mine/more", exact="holds", value=2.0, claim="one more")\nledger.show()'
    write_notebook(folder / "small.ipynb", SMALL.replace("ledger.show()", more))
    done = checkout("reproduce")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1_timed: finished before" in done.stdout
    assert "2 claim so far" in (executed / "0_sum.ipynb").read_text()


BROKEN = {
    "torn": ('{"cells": [', "torn.ipynb is no notebook"),
    "line": ("raise ValueError('\\x1b[2Ja clear line')", r"ValueError: \x1b[2Ja clear line"),
    "exits": ("import sys; sys.exit(0)", "a cell ends the kernel"),
    "overrules": ("profile = 'gpu'", "a cell sets `profile` and is not the first one with the tag"),
}


def test_a_failure_is_one_line_and_does_not_stop_the_others(checkout):
    for name, (code, _) in BROKEN.items():
        path = checkout.root / "notebooks" / f"{name}.ipynb"
        if code.startswith("{"):
            path.write_text(code)
        else:
            write_notebook(path, code, after="print('behind it')")
    done = checkout("reproduce")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "small: done" in done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    assert len(failed) == len(BROKEN)
    for name, (_, why) in BROKEN.items():
        (line,) = [line for line in failed if line.startswith(f"FAILED {name}: ")]
        assert why in line
        assert line.isprintable()
    log = checkout.root / "results" / "quick" / "logs" / "line.log"
    assert "a clear line" in log.read_text()

    write_notebook(checkout.root / "notebooks" / "slow.ipynb", "import time; time.sleep(600)")
    done = checkout("reproduce", "--limit-minutes", "0.05", "notebooks/slow.ipynb")
    assert "FAILED slow: not finished within 0.05 minutes" in done.stdout


def test_one_notebook_through_the_whole_path_and_again_only_where_it_was_damaged(checkout):
    quick = checkout.root / "results" / "quick"
    done = checkout("reproduce")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "whole: 1 of 1 notebooks, 2 of 2 runs so far" in done.stdout
    page = (quick / "report.html").read_text()
    assert "A small notebook" in page
    assert "two seeds give two rows" in page
    assert len(list((quick / "runs" / "toy.regression").iterdir())) == 2
    table = quick / "tables" / "small-losses.csv"
    whole = table.read_text()
    for name, content in (
        ("status.json", '{"small": {"state": "do'),
        ("own_claims.csv", "\x00"),
        ("tables/small-losses.csv", whole[:10]),
    ):
        (quick / name).write_text(content)
        again = checkout("reproduce")
        assert again.returncode == 0, again.stdout + again.stderr
        named = [line for line in (again.stdout + again.stderr).splitlines() if name in line]
        assert len(named) == 1, named
        assert "small: started" in again.stdout
        assert table.read_text() == whole
        assert "mine/small" in (quick / "own_claims.csv").read_text()
    again = checkout("reproduce")
    assert "finished before" in again.stdout
    assert "started" not in again.stdout


SURROUNDINGS = """
import importlib.util, os, sys, torch
import matplotlib as mpl
print("dtype", torch.get_default_dtype(), "tex", mpl.rcParams["text.usetex"], "size",
      mpl.rcParams["axes.titlesize"], "from", sys.executable, "found", importlib.util.find_spec("of_the_reader"),
      "attended", any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID")), "profile", profile)
print("in two", end=" ", flush=True)
print("messages", flush=True)
"""


def test_the_readers_surroundings_do_not_reach_a_kernel(checkout):
    """Start-up files, search paths, another kernel of the same name, a style: none counts. Nor does
    a profile that was written into the parameters by hand; and a copy files no claim.
    """
    own = checkout.root / "surroundings"
    for name, text in {
        "ipython/profile_default/startup/00.py": "import torch; torch.set_default_dtype(torch.double)",
        "matplotlibrc": "text.usetex: True\naxes.titlesize: 40\n",
        "packages/of_the_reader.py": "",
        "kernels/python3/kernel.json": json.dumps({"argv": ["false"], "display_name": "x"}),
    }.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    folder = checkout.root / "notebooks"
    write_notebook(folder / "small.ipynb", SMALL + SURROUNDINGS, profile="gpu")
    shutil.copy(folder / "small.ipynb", folder / "small-Copy1.ipynb")
    process = checkout(
        "reproduce",
        start=True,
        IPYTHONDIR=str(own / "ipython"),
        MATPLOTLIBRC=str(own / "matplotlibrc"),
        JUPYTER_PATH=str(own),
        JPY_SESSION_NAME="elsewhere.ipynb",
        PYTHONSTARTUP=str(own / "none.py"),
        PYTHONPATH=os.pathsep.join([str(HOME), str(own / "packages")]),
    )
    said = process.communicate(timeout=280)[0]
    assert process.returncode == 0, said
    quick = checkout.root / "results" / "quick"
    book = (quick / "notebooks" / "small.ipynb").read_text()
    expected = f"dtype torch.float32 tex False size {notebook_title_size()} from {sys.executable}"
    assert f"{expected} found None attended False profile quick" in book
    assert '"in two messages\\n"' in book
    assert (quick / "tables" / "small-losses.csv").exists()
    assert not (checkout.root / "results" / "gpu").exists()
    copy = (quick / "notebooks" / "small-Copy1.ipynb").read_text()
    assert copy.count("small-Copy1 is a copy of small: it has the settings of that notebook") == 1
    assert (quick / "copies" / "small-Copy1" / "tables" / "small-losses.csv").exists()
    assert set(ledger.read_all(quick)["notebook"]) == {"small"}


def notebook_title_size() -> object:
    import matplotlib.style

    from curlnb.companion.notebook import STYLE

    with matplotlib.style.context(["default", STYLE]):
        return matplotlib.rcParams["axes.titlesize"]


def command(capsys, *arguments: str) -> str:
    """The one line with which a command is refused."""
    assert main(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_notebooks_without_the_profile_are_left_out_and_none_at_all_is_refused(capsys):
    paths = notebooks.find()
    assert reproduce._with_profile(paths, "quick") == paths
    kept = reproduce._with_profile(paths, "night")
    said = f"{len(kept)} of {len(paths)} notebooks have settings for night"
    assert said in capsys.readouterr().out
    with pytest.raises(ValueError, match="none of 0_start_here has settings for the profile night"):
        reproduce._with_profile([path for path in paths if path.stem == "0_start_here"], "night")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["docs"], "no notebook at 'docs': give files or folders below"),
        (["--limit-minutes=nan"], "--limit-minutes is 'nan': it must be a number of minutes"),
        (["--jobs=0"], "--jobs is '0': it must be a whole number of notebooks, 1 or more"),
    ],
)
def test_words_that_mean_nothing_are_refused(capsys, words, said):
    assert command(capsys, "reproduce", *words).startswith(f"curlnb reproduce: {said}")


def test_an_error_is_one_line_that_cannot_steer_a_terminal_and_debug_shows_where(
    capsys, monkeypatch
):
    def fail(*_: object) -> None:
        raise KeyError("a\x1b[2J\nb")

    monkeypatch.setattr("curlnb.__main__.doctor", fail)
    said = r"curlnb doctor: KeyError: 'a\x1b[2J\nb' (--debug shows where)"
    assert command(capsys, "doctor") == said
    assert main(["doctor", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_killed_at_two_moments_it_leaves_nobody_behind_and_loses_nothing(checkout):
    """SIGKILL strikes the command, then a kernel; the same command goes on, and its runs are those
    of a reproduction that nobody disturbed.
    """
    slow = GOOD.replace("PAUSE", "0.05").replace("workers=0", "workers=2")
    write_notebook(checkout.root / "notebooks" / "small.ipynb", slow)
    runs = checkout.root / "results" / "quick" / "runs" / "toy.regression"

    def at_work() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("CURLNB_HOME") == str(checkout.root):
                    found.append(process)
        return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]

    def wait_for(come: Callable[[], object]) -> None:
        until = time.monotonic() + 120
        while not come():
            assert time.monotonic() < until
            time.sleep(0.05)

    process = checkout("reproduce", start=True)
    wait_for(lambda: list(runs.glob("*/checkpoint.safetensors")))
    process.kill()
    process.communicate()
    wait_for(lambda: not at_work())
    before = {path: path.stat().st_mtime for path in runs.glob("*/checkpoint.safetensors")}

    process = checkout("reproduce", start=True)
    wait_for(lambda: any(p.exists() and p.stat().st_mtime > t for p, t in before.items()))
    (kernel,) = [p for p in at_work() if "ipykernel_launcher" in " ".join(p.cmdline())]
    kernel.kill()
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 1
    assert "FAILED small: its kernel ended" in said
    wait_for(lambda: not at_work())

    assert checkout("reproduce").returncode == 0
    assert not list(checkout.root.rglob("*.damaged*"))
    assert not list(checkout.root.rglob("*.part"))
    metrics = [json.loads(path.read_text())["metrics"] for path in runs.glob("*/run.json")]
    store = Store(checkout.root / "whole")
    whole = [store.run(toy.regression, {}, seed)["metrics"]["loss"] for seed in (0, 1)]
    assert sorted(m["loss"] for m in metrics) == sorted(whole)


def test_a_finished_reproduction_becomes_the_reference(checkout, monkeypatch):
    assert checkout("reference").stderr.startswith(
        "curlnb reference: small has not been reproduced at quick: run `make reproduce"
    )
    assert checkout("reproduce").returncode == 0
    done = checkout("reference")
    assert done.stdout.startswith("2 runs and 1 notebooks are the quick reference now"), done.stderr
    target = checkout.root / "results" / "reference" / "quick"
    assert len((target / "runs" / "toy.regression.jsonl").read_text().splitlines()) == 2
    book = nbformat.read(checkout.root / "notebooks" / "small.ipynb", as_version=4)
    assert book.cells[-1].outputs
    assert "papermill" not in json.dumps(book)
    assert str(checkout.root) not in json.dumps(book)


def test_what_is_promoted_at_night_leaves_the_other_notebooks_results(tmp_path):
    old, fresh, one = reference.folder("night"), tmp_path / "fresh", "2_dcl/5.4_table3_control"
    others = [
        name for name in files.read_json(old / "provenance.json")["notebook_seconds"] if name != one
    ]
    own = ledger.read(old / ledger.FILE).query("notebook == @one")
    (fresh / "tables").mkdir(parents=True)
    ledger.write(own.assign(data="elsewhere"), fresh / ledger.FILE)
    files.write_json(
        fresh / "provenance.json",
        {"date": "today", "notebook_seconds": {one: 1.0}, "settings": {one: "new"}},
    )
    again = [
        record | {"seconds": 0.5}
        for record in reference.records("night")
        if record["experiment"] == "control.curl_sac"
    ]
    reference.write_runs(again, fresh / "runs")

    promote._keep_others(old, fresh, [*others, "a notebook without results"])
    about = files.read_json(fresh / "provenance.json")
    assert about["date"] == "today"
    assert (
        about["notebooks"]
        == len(about["notebook_seconds"])
        == len(about["settings"])
        == len(others) + 1
    )
    assert about["settings"][one] == "new"
    claims, before = ledger.read(fresh / ledger.FILE), ledger.read(old / ledger.FILE)
    pd.testing.assert_frame_equal(
        claims.query("notebook != @one"), before.query("notebook != @one")
    )
    assert set(claims.query("notebook == @one")["data"]) == {"elsewhere"}
    names = {path.name for path in (fresh / "tables").rglob("*.csv")}
    assert names == {
        path.name for path in (old / "tables").rglob("*.csv") if not path.name.startswith("5.4_")
    }
    kept = {record["identity"]: record for record in reference.records_in(fresh)}
    assert kept == {record["identity"]: record for record in reference.records("night")} | {
        r["identity"]: r for r in again
    }


def test_a_notebook_is_judged_anew_on_the_committed_runs(checkout):
    """One seed more computes one run; the others are adopted, and what is committed of the other
    notebook stays as it is.
    """
    here = checkout.root / "notebooks"

    def settings(name: str, seeds: int) -> None:
        (here / f"{name}.toml").write_text(f"[quick]\nseeds = {seeds}\npause = 0.0\n")

    small = SMALL.replace(", quick=about, gpu=about", "")
    settings("small", 2)
    settings("other", 1)
    write_notebook(here / "small.ipynb", small)
    other = small.replace('"small"', '"other"').replace("mine/small", "mine/other")
    write_notebook(here / "other.ipynb", other)
    assert checkout("reproduce").returncode == 0
    assert checkout("reference").returncode == 0
    target, path = (
        checkout.root / "results" / "reference" / "quick",
        checkout.root / "notebooks" / "small.ipynb",
    )
    before = files.read_json(target / "provenance.json")
    del before["notebook_seconds"]["other"]  # as of one that was never timed
    files.write_json(target / "provenance.json", before)
    executed = (path.parent / "other.ipynb").read_text()
    shutil.rmtree(checkout.root / "results" / "quick")
    settings("small", 3)
    write_notebook(path, small + "\nprint(runs['origin'].tolist())")
    done = checkout("reference", "notebooks/small.ipynb")
    assert "small: judged anew on the quick reference, to which 1 runs were added" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "['reference', 'reference', 'computed']" in path.read_text()
    assert len((target / "runs" / "toy.regression.jsonl").read_text().splitlines()) == 3
    assert len(pd.read_csv(target / "tables" / "small-losses.csv")) == 3
    assert len(pd.read_csv(target / "tables" / "other-losses.csv")) == 1
    after = files.read_json(target / "provenance.json")
    assert (path.parent / "other.ipynb").read_text() == executed
    same = ("date", "notebook_seconds", "total_seconds", "notebooks")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert after["settings"]["other"] == before["settings"]["other"]
    assert after["settings"]["small"] != before["settings"]["small"]
    assert after["judged"]["commit"] == ""
    judged = pd.read_csv(checkout.root / "results" / "quick" / "own_claims.csv")
    assert set(judged["profile"]) == {"quick"}, "not as of changed settings"
    assert checkout("reproduce", "notebooks/other.ipynb").returncode == 0
    assert "small has not been reproduced at quick" in checkout("reference").stderr
    assert (
        "small: started" in checkout("reproduce", "notebooks/small.ipynb").stdout
    )  # which adopts nothing


def test_a_run_that_was_added_stays_where_a_notebook_that_comes_last_is_renewed_after_it(checkout):
    """One command promotes twice; the second time must not start from what the first one found."""
    other = (
        SMALL.replace('"small"', '"other"')
        .replace("mine/small", "mine/other")
        .replace("seeds=2", "seeds=1")
    )
    write_notebook(checkout.root / "notebooks" / "other.ipynb", other, last=True)
    assert checkout("reproduce").returncode == 0
    assert checkout("reference").returncode == 0
    write_notebook(
        checkout.root / "notebooks" / "small.ipynb",
        SMALL.replace("seeds=2", "seeds=3"),
    )
    done = checkout("reference", "notebooks/small.ipynb", "notebooks/other.ipynb")
    assert "other: judged anew" in done.stdout, done.stdout + done.stderr
    runs = checkout.root / "results" / "reference" / "quick" / "runs" / "toy.regression.jsonl"
    assert len(runs.read_text().splitlines()) == 3


def test_a_notebook_that_fails_is_not_renewed(checkout):
    assert checkout("reproduce").returncode == 0
    assert checkout("reference").returncode == 0
    write_notebook(
        checkout.root / "notebooks" / "small.ipynb",
        SMALL.replace("seeds=2", "seeds=3") + "\n1 / 0",
    )
    path, about = (
        checkout.root / "notebooks" / "small.ipynb",
        checkout.root / "results" / "reference" / "quick" / "provenance.json",
    )
    before, known = path.read_text(), about.read_text()
    done = checkout("reference", "notebooks/small.ipynb")
    assert "1 of 1 notebooks failed: mend them" in done.stderr
    assert (path.read_text(), about.read_text()) == (before, known)
    assert (
        "takes no notebooks" in checkout("reference", "--restamp", "notebooks/small.ipynb").stderr
    )


def test_an_edit_made_after_the_reproduction_is_not_overwritten(checkout):
    assert checkout("reproduce").returncode == 0
    path = checkout.root / "notebooks" / "small.ipynb"
    write_notebook(path, SMALL + "# a later thought")
    before = path.read_text()
    assert (
        "small or what it stands on has changed since: run `make reproduce"
        in checkout("reference").stderr
    )
    assert path.read_text() == before


def test_a_second_reproduction_at_once_is_told_so(checkout):
    from filelock import FileLock

    (checkout.root / "results" / "quick").mkdir(parents=True)
    with FileLock(checkout.root / "results" / "quick" / "lock"):
        done = checkout("reproduce")
    assert done.returncode == 2
    assert "another `make reproduce` is at work" in done.stderr


@pytest.mark.parametrize("profile", ["quick", "night"])
def test_the_committed_reference_runs_are_those_of_the_present_code(profile):
    assert reference.records(profile), "no reference runs: run `make reproduce reference`"
    assert reference.stale(profile) == {}


def test_a_stale_reference_says_what_to_run(monkeypatch):
    record = {
        "experiment": "images.simclr",
        "parameters": {},
        "seed": 0,
        "code": "old",
        "identity": "x",
    }
    monkeypatch.setattr(reference, "records", lambda profile: [record])
    assert reference.stale("quick")["images.simclr"].startswith(
        "reference runs of images.simclr are stale: its code changed. Run `make reproduce reference`"
    )


def test_the_sample_rotates_and_reaches_every_experiment_within_ten_commits():
    reached = [
        {r["experiment"] for r in reference.sample("quick", count, str(count), seconds=0)}
        for count in range(7, 17)
    ]
    assert set().union(*reached) == {record["experiment"] for record in reference.records("quick")}
    assert all(reached)


SAMPLE = reference.sample("quick", *reference.present_commit())


@pytest.mark.parametrize(
    "record", SAMPLE, ids=[f"{r['experiment']}-{r['identity']}" for r in SAMPLE]
)
def test_a_reference_run_computed_again_agrees(record):
    assert reference.recompute(record) == []


def test_every_metric_of_the_reference_has_a_stated_tolerance():
    for record in reference.records("quick"):
        for metric, value in record["metrics"].items():
            assert reference.agree(value, value, reference.tolerance(record["experiment"], metric))
    with pytest.raises(
        ValueError, match=r"images.simclr's metric 'lines' has no tolerance: add a row"
    ):
        reference.tolerance("images.simclr", "lines")


def test_agreement_is_bit_for_bit_on_one_machine_and_within_the_metrics_tolerance_elsewhere():
    assert reference.agree(0.5, 0.5, None)
    assert not reference.agree(0.5, 0.5 + 1e-12, None)
    assert not reference.agree([0.1], [0.1, 0.1], None)
    knn = reference.tolerance("images.simclr", "knn")
    assert reference.agree(0.40, 0.43, knn)
    assert not reference.agree(0.40, 0.46, knn)
    assert not reference.agree(0.5, None, knn)
    assert not reference.agree([0.1, 0.2], [0.1], knn)
    assert not reference.agree(0.01, 0.05, reference.tolerance("images.simclr", "loss")), (
        "a loss is no share"
    )


def test_a_branch_is_told_by_names_and_by_whether_weights_are_in_force():
    def record(**parameters):
        return {
            "parameters": {"objective": "hard", "tau_plus": 0.1, "beta": 1.0, "epochs": 6}
            | parameters,
            "identity": str(parameters),
        }

    records = [
        record(),
        record(beta=2.0),
        record(epochs=3),
        record(beta=0.0),
        record(objective="biased"),
    ]
    assert len({restamp.branch(r) for r in records}) == 3
    drawn = [restamp.chosen(records, commit) for commit in ("a", "b", "c", "d", "e", "f")]
    assert all(len(each) == 3 for each in drawn)
    assert len({str(each) for each in drawn}) > 1


def test_restamp_renews_what_kept_its_bits_and_names_what_did_not(monkeypatch, tmp_path):
    own = [
        {
            "experiment": name,
            "parameters": {"objective": o},
            "seed": 0,
            "identity": f"{name}{o}",
            "metrics": {"knn": 0.5},
        }
        for name in ("a.b", "c.d")
        for o in "xy"
    ]
    renewed = []
    monkeypatch.setattr(reference, "records", lambda profile: own)
    monkeypatch.setattr(reference, "stale", lambda profile: {"a.b": "", "c.d": ""})
    former = contextlib.nullcontext(("commit", tmp_path))
    monkeypatch.setattr(reference, "former_code", lambda path, *folders: former)
    monkeypatch.setattr(
        restamp, "_renew", lambda name, records, runs: renewed.append((name, len(records)))
    )

    def run(home: Path, results: Path, record: dict) -> dict:
        changed = home == HOME and record["identity"] == "c.dy"
        return {"knn": 0.5 + changed / 1024}

    monkeypatch.setattr(restamp, "_run", run)
    with pytest.raises(
        ValueError, match=r"not a pure refactoring: c.d knn: 0.5009765625 now, 0.5 before"
    ):
        restamp.restamp("quick")
    assert renewed == [("a.b", 2)]
    assert restamp.restamp("quick", ["a.b"]) == "1 stale experiments renewed"
