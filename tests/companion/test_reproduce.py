"""`make reproduce` end to end on small notebooks, in results and a checkout of its own; the
reference and its renewal.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.style
import nbformat
import pandas as pd
import psutil
import pytest
import toy
from filelock import FileLock

from curlnb.__main__ import _named, main
from curlnb.companion import ledger, promote, reference, reproduce, restamp
from curlnb.companion.notebook import STYLE
from curlnb.runs import environment, files
from curlnb.runs.store import Store

HOME = environment.home()
TESTS = Path(__file__).parent.parent
NOTEBOOK = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from curlnb.companion import notebook
from curlnb.runs.sweep import sweep
import toy
settings = notebook.settings("NAME", profile)
runs = sweep(toy.regression, seeds=settings.seeds, store=settings.store, pause=settings.pause,
             workers=settings.workers)
notebook.save_table(settings, runs[["seed", "loss"]], "losses")
ledger = notebook.ledger(settings)
ledger.judge("mine/NAME", exact="holds", value=2.0, claim=f"the runs of NAME are rows")
ledger.show()
print(runs["origin"].tolist())
"""


def write_notebook(
    path: Path, code: str, profile: str = "quick", after: str = "", **needs: bool
) -> None:
    cells = [nbformat.v4.new_markdown_cell("# A small notebook")]
    for text in filter(None, (f'profile = "{profile}"\nseed = 0', code, after)):
        cells.append(nbformat.v4.new_code_cell(text))
    cells[1].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"curlnb": needs}), path)
    path.with_suffix(".toml").write_text("[quick]\n")


class Checkout:
    """A checkout with notebooks and results of its own, in which commands are given."""

    def __init__(self, root):
        self.root, self.notebooks = root, root / "notebooks"
        self.quick = root / "results" / "quick"
        self.reference = root / "results" / "reference" / "quick"
        self.variables = {
            "CURLNB_HOME": str(root),
            "CURLNB_RESULTS": str(root / "results"),
            "OMP_NUM_THREADS": "1",
            "CURLNB_DEVICE": "cpu",
        }

    def write(self, name: str, seeds: int = 2, pause: float = 0.0, workers: int = 0, **more) -> str:
        """A notebook with some runs, and its settings; returns its code."""
        self.notebooks.mkdir(exist_ok=True)
        settings = f"seeds = {seeds}\npause = {pause}\nworkers = {workers}\n"
        code = NOTEBOOK.replace("NAME", name)
        write_notebook(self.notebooks / f"{name}.ipynb", code + more.pop("code", ""), **more)
        (self.notebooks / f"{name}.toml").write_text(f"[quick]\n{settings}[gpu]\n{settings}")
        return code

    def __call__(self, *arguments: str, fails: bool = False, **variables: str) -> str:
        """What the command says, in this process. Its notebooks run in processes of their own,
        which are forks unless the environment has other variables.
        """
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (self.variables | variables).items():
                patch.setenv(name, value)
            if not variables:
                patch.setattr(reproduce, "PYTHON", [sys.executable, str(TESTS / "forks.py"), "-m"])
            said = (self.root / "said.txt").open("w+")
            with said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                status = main(list(arguments))
                said.seek(0)
                text = said.read()
        assert bool(status) == fails, text
        assert "Traceback" not in text
        return text

    def start(self, *arguments: str) -> subprocess.Popen:
        """The command as a process; it, its notebooks and their kernels are no forks."""
        own = os.environ | self.variables
        own = {name: value for name, value in own.items() if name != "TESTS_FORKS"}
        line = [sys.executable, "-m", "curlnb", *arguments]
        return subprocess.Popen(line, env=own, cwd=self.root, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


@pytest.fixture(scope="module")
def promoted_once(tmp_path_factory):
    made = Checkout(tmp_path_factory.mktemp("promoted"))
    made.write("small")
    made.write("other", seeds=1, last=True)
    said = made("reference", fails=True)
    assert said.startswith("curlnb reference: other has not been reproduced at quick: run `make")
    made("reproduce")
    assert "other, small: in the quick reference now, with 2 runs that" in made("reference")
    return made


@pytest.fixture
def promoted(promoted_once, tmp_path):
    """One whose finished reproduction is its reference."""
    shutil.copytree(promoted_once.root, tmp_path, dirs_exist_ok=True)
    return Checkout(tmp_path)


MEET = """
import pathlib, sys, time
sys.path.insert(0, TESTS)
pathlib.Path("MINE").touch()
until = time.monotonic() + 60
while not pathlib.Path("OTHER").exists():
    assert time.monotonic() < until, "the other never came"
    time.sleep(0.1)
from curlnb.runs.sweep import sweep
import toy
sweep(toy.MINE, seeds=[0], where="steps", epochs=500)
"""
READS = """
from curlnb.companion import ledger
from curlnb.runs import environment
print(len(ledger.read_all(environment.results_root() / "quick")), "claim so far")
"""
TIMED = "import os; print(os.environ['CURLNB_WORKERS'], 'workers', os.environ['OMP_NUM_THREADS'])"


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
def test_notebooks_run_side_by_side_then_what_is_timed_alone_and_what_reads_the_ledger_last(
    checkout,
):
    """Two wait for each other's word: one after the other, neither would finish. A training that
    they share is made once.
    """
    checkout.write("small")
    for mine, other in (("loss_of", "weights_of"), ("weights_of", "loss_of")):
        code = MEET.replace("TESTS", repr(str(TESTS))).replace("MINE", mine).replace("OTHER", other)
        write_notebook(checkout.notebooks / f"{mine}.ipynb", code)
    write_notebook(checkout.notebooks / "0_sum.ipynb", READS, last=True, trains=False)
    write_notebook(checkout.notebooks / "1_timed.ipynb", TIMED, alone=True)
    said = checkout("reproduce", "--jobs=2")
    order = ["small: done", "1_timed: started", "1_timed: done", "0_sum: started"]
    places = [said.index(words) for words in order]
    assert places == sorted(places)
    assert len((checkout.notebooks / "steps").read_text().splitlines()) == 500 * 4
    executed = checkout.quick / "notebooks"
    assert "1 claim so far" in (executed / "0_sum.ipynb").read_text()
    # All cores are for its runs; its own tensors get one.
    assert f"{environment.cores()} workers 1" in (executed / "1_timed.ipynb").read_text()

    more = 'ledger.judge("mine/more", exact="holds", value=2.0, claim="one more")\nledger.show()'
    checkout.write("small", after=more)
    said = checkout("reproduce")
    assert "1_timed: finished before" in said
    assert "2 claim so far" in (executed / "0_sum.ipynb").read_text()


BROKEN = {
    "line": ("raise ValueError('\\x1b[2Ja clear line')", r"ValueError: \x1b[2Ja clear line"),
    "exits": ("import sys; sys.exit(0)", "a cell ends the kernel"),
}


def test_a_failure_is_one_line_and_does_not_stop_the_others(checkout):
    checkout.write("small")
    for name, (code, _) in BROKEN.items():
        write_notebook(checkout.notebooks / f"{name}.ipynb", code, after="print('behind it')")
    said = checkout("reproduce", fails=True)
    assert "small: done" in said
    failed = [line for line in said.splitlines() if line.startswith("FAILED ")]
    assert len(failed) == len(BROKEN)
    for name, (_, why) in BROKEN.items():
        (line,) = [line for line in failed if line.startswith(f"FAILED {name}: ")]
        assert why in line
        assert line.isprintable()
    assert "a clear line" in (checkout.quick / "logs" / "line.log").read_text()


@pytest.mark.parametrize("ending", ["ipynb", "toml"])
def test_a_page_that_cannot_be_read_is_named_before_anything_is_computed(checkout, ending):
    for name in ("small", "torn"):
        checkout.write(name)
    (checkout.notebooks / f"torn.{ending}").write_text("<<<<<<< HEAD")
    (line,) = checkout("reproduce", fails=True).splitlines()
    assert line.startswith("curlnb reproduce: ")
    assert f"torn.{ending}" in line


def test_one_notebook_through_the_whole_path_and_again_only_where_it_was_damaged(checkout):
    checkout.write("small")
    assert "whole: 1 of 1 notebooks" in checkout("reproduce")
    page = (checkout.quick / "report.html").read_text()
    assert "A small notebook" in page
    assert "the runs of small are rows" in page
    assert len(list((checkout.quick / "runs" / "toy.regression").iterdir())) == 2
    table = checkout.quick / "tables" / "small-losses.csv"
    whole = table.read_text()
    for damage in (
        {"status.json": '{"small": {"state": "do'},
        {"own_claims.csv": "\x00"},
        {"tables/small-losses.csv": whole[:10]},
    ):
        for name, content in damage.items():
            (checkout.quick / name).write_text(content)
        said = checkout("reproduce")
        for name in damage:
            assert len([line for line in said.splitlines() if name in line]) == 1, said
        assert "small: started" in said
        assert table.read_text() == whole
        assert "mine/small" in (checkout.quick / "own_claims.csv").read_text()
    (checkout.quick / "provenance.json").write_text("{")
    said = checkout("reproduce")
    assert "finished before" in said
    assert "started" not in said
    assert len([line for line in said.splitlines() if "provenance.json" in line]) == 1, said
    assert json.loads((checkout.quick / "provenance.json").read_text())["machine"]


SURROUNDINGS = """
import importlib.util, os, sys, torch
import matplotlib as mpl
print("dtype", torch.get_default_dtype(), "tex", mpl.rcParams["text.usetex"],
      "size", mpl.rcParams["axes.titlesize"], "from", sys.executable,
      "found", importlib.util.find_spec("of_the_reader"),
      "attended", any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID")),
      "profile", profile)
print("in two", end=" ", flush=True)
print("messages", flush=True)
"""


def test_the_readers_surroundings_do_not_reach_a_kernel(checkout):
    """Start-up files, search paths, another kernel of the same name, a style: none counts. Nor does
    a profile that was written into the parameters by hand.
    """
    own = checkout.root / "surroundings"
    for name, text in {
        "ipython/profile_default/startup/00.py": "import torch as t; t.set_default_dtype(t.double)",
        "matplotlibrc": "text.usetex: True\naxes.titlesize: 40\n",
        "packages/of_the_reader.py": "",
        "kernels/python3/kernel.json": json.dumps({"argv": ["false"], "display_name": "x"}),
    }.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    checkout.write("small", code=SURROUNDINGS, profile="gpu")
    checkout(
        "reproduce",
        IPYTHONDIR=str(own / "ipython"),
        MATPLOTLIBRC=str(own / "matplotlibrc"),
        JUPYTER_PATH=str(own),
        JPY_SESSION_NAME="elsewhere.ipynb",
        PYTHONSTARTUP=str(own / "none.py"),
        PYTHONPATH=os.pathsep.join([str(HOME), str(own / "packages")]),
    )
    book = (checkout.quick / "notebooks" / "small.ipynb").read_text()
    with matplotlib.style.context(["default", STYLE]):
        size = matplotlib.rcParams["axes.titlesize"]
    expected = f"dtype torch.float32 tex False size {size} from {sys.executable}"
    assert f"{expected} found None attended False profile quick" in book
    assert '"in two messages\\n"' in book
    assert (checkout.quick / "tables" / "small-losses.csv").exists()
    assert not (checkout.root / "results" / "gpu").exists()


def test_killed_at_two_moments_it_leaves_nobody_behind_and_loses_nothing(checkout):
    """SIGKILL strikes a kernel, then the command; the same command goes on, and its runs are those
    of a reproduction that nobody disturbed.
    """
    for name in ("one", "two"):
        checkout.write(name, pause=0.1, workers=2)
    runs = checkout.quick / "runs" / "toy.regression"

    def at_work() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("CURLNB_HOME") == str(checkout.root):
                    found.append(process)
        return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]

    def wait_for(come):
        until = time.monotonic() + 600
        while not come():
            assert time.monotonic() < until
            time.sleep(0.05)

    def checkpoints():
        return {path: path.stat().st_mtime for path in runs.glob("*/checkpoint.safetensors")}

    process = checkout.start("reproduce", "--jobs=1")
    wait_for(checkpoints)
    (kernel,) = [p for p in at_work() if "ipykernel_launcher" in " ".join(p.cmdline())]
    kernel.kill()
    said = iter(process.stdout.readline, "")
    assert any("FAILED: its kernel ended" in line for line in said)
    before = checkpoints()
    wait_for(lambda: set(checkpoints().items()) - set(before.items()))
    process.kill()
    process.communicate()
    wait_for(lambda: not at_work())

    checkout("reproduce")
    assert not list(checkout.root.rglob("*.damaged*"))
    assert not list(checkout.root.rglob("*.part"))
    metrics = [json.loads(path.read_text())["metrics"] for path in runs.glob("*/run.json")]
    store = Store(checkout.root / "whole")
    whole = [store.run(toy.regression.asked({}, seed))["metrics"]["loss"] for seed in (0, 1)]
    assert sorted(m["loss"] for m in metrics) == sorted(whole)


def test_a_second_reproduction_at_once_is_told_so(checkout):
    checkout.write("small")
    checkout.quick.mkdir(parents=True)
    with FileLock(checkout.quick / "lock"):
        said = checkout("reproduce", fails=True)
    assert "another `make reproduce` is at work" in said


# --- what is refused


def command(capsys, *arguments):
    """The one line with which a command is refused."""
    try:
        status = main(list(arguments))
    except SystemExit as end:
        status = end.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["docs"], "no notebook at 'docs': give files or folders below"),
        (["--profile=night", "notebooks/0_start_here.ipynb"], "none of 0_start_here has settings"),
        (["--jobs=0"], "argument -j/--jobs: invalid whole_number value: '0'; `curlnb reproduce --"),
    ],
)
def test_words_that_mean_nothing_are_refused(capsys, words, said):
    assert command(capsys, "reproduce", *words).startswith(f"curlnb reproduce: {said}")


def test_an_error_is_one_line_that_cannot_steer_a_terminal(capsys, monkeypatch):
    def fail(*_):
        raise ValueError("a\x1b[2J\nb")

    monkeypatch.setattr("curlnb.__main__.doctor", fail)
    assert command(capsys, "doctor") == r"curlnb doctor: a\x1b[2J b"


# --- the reference


def test_a_stale_reference_says_what_to_run(monkeypatch):
    record = dict(experiment="images.simclr", parameters={}, seed=0, code="old", identity="x")
    monkeypatch.setattr(reference, "records", lambda profile: [record])
    said = "reference runs of images.simclr are stale: its code changed. Run `make reproduce ref"
    assert reference.stale("quick")["images.simclr"].startswith(said)


def test_a_finished_reproduction_becomes_the_reference_and_no_edit_is_overwritten(promoted):
    assert len((promoted.reference / "runs" / "toy.regression.jsonl").read_text().splitlines()) == 2
    path = promoted.notebooks / "small.ipynb"
    book = nbformat.read(path, as_version=4)
    assert book.cells[-1].outputs
    assert "papermill" not in json.dumps(book)
    assert "/promoted" not in json.dumps(book)
    book.metadata["curlnb"] = {"learnt": "to sum"}  # an execution says nothing of it
    nbformat.write(book, path)
    promoted("reference")
    assert nbformat.read(path, as_version=4).metadata["curlnb"] == {"learnt": "to sum"}
    promoted.write("small", code="# a later thought")
    edited = path.read_text()
    said = promoted("reference", fails=True)
    assert "small or what it stands on has changed since: run `make reproduce" in said
    assert path.read_text() == edited


def test_what_is_promoted_at_night_leaves_the_other_notebooks_results(tmp_path, monkeypatch):
    old, one = reference.folder("night"), "2_dcl/5.4_table3_control"
    fresh, target = tmp_path / "fresh", tmp_path / "night"
    shutil.copytree(old, target)
    others = [
        name for name in files.read_json(old / "provenance.json")["notebook_seconds"] if name != one
    ]
    own = ledger.read(old / ledger.FILE).query("notebook == @one")
    fresh.mkdir()
    ledger.write(own.assign(data="elsewhere"), fresh / ledger.FILE)
    about = {"date": "today", "notebook_seconds": {one: 1.0}, "settings": {one: "new"}}
    known = reference.records("night")
    again = [
        record | {"seconds": 0.5} for record in known if record["experiment"] == "control.curl_sac"
    ]
    others += ["a notebook without results"]
    monkeypatch.setattr(environment, "reference_folder", lambda: tmp_path)
    promote._put(fresh, target, about, again, others, partly=True)
    about = files.read_json(target / "provenance.json")
    assert about["date"] == "today"
    many = [about["notebooks"], len(about["notebook_seconds"]), len(about["settings"])]
    assert many == [len(others)] * 3
    assert about["settings"][one] == "new"
    claims, before = ledger.read(target / ledger.FILE), ledger.read(old / ledger.FILE)
    pd.testing.assert_frame_equal(
        claims.query("notebook != @one"), before.query("notebook != @one")
    )
    assert set(claims.query("notebook == @one")["data"]) == {"elsewhere"}
    names = {path.name for path in (target / "tables").rglob("*.csv")}
    kept = {path.name for path in (old / "tables").rglob("*.csv")}
    assert names == {name for name in kept if not name.startswith("5.4_")}
    by_identity = {record["identity"]: record for record in [*known, *again]}
    found = {record["identity"]: record for record in reference.records("night")}
    assert found == by_identity


def test_a_notebook_is_judged_anew_on_the_committed_runs(promoted):
    """One seed more computes one run; the others are adopted, and what is committed of the other
    notebook stays as it is, until it is renewed too.
    """
    before = files.read_json(promoted.reference / "provenance.json")
    del before["notebook_seconds"]["other"]  # as of one that was never timed
    files.write_json(promoted.reference / "provenance.json", before)
    other = (promoted.notebooks / "other.ipynb").read_text()
    shutil.rmtree(promoted.quick / "runs" / "toy.regression")
    promoted.write("small", seeds=3)
    said = promoted("reference", "notebooks/small.ipynb")
    assert "small: in the quick reference now, with 1 runs that were computed here" in said
    small = (promoted.notebooks / "small.ipynb").read_text()
    assert "['reference', 'reference', 'computed']" in small
    runs = promoted.reference / "runs" / "toy.regression.jsonl"
    assert len(runs.read_text().splitlines()) == 3
    tables = promoted.reference / "tables"
    rows = [len(pd.read_csv(tables / f"{name}-losses.csv")) for name in ("small", "other")]
    assert rows == [3, 1]
    assert (promoted.notebooks / "other.ipynb").read_text() == other
    after = files.read_json(promoted.reference / "provenance.json")
    same = ("date", "notebook_seconds", "total_seconds", "notebooks")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert after["settings"]["other"] == before["settings"]["other"]
    assert after["settings"]["small"] != before["settings"]["small"]
    assert "judged" in after
    judged = pd.read_csv(promoted.quick / "own_claims.csv")
    assert set(judged["profile"]) == {"quick"}, "not as of changed settings"
    assert "small has not been reproduced at quick" in promoted("reference", fails=True)

    # One command promotes twice; the second time must not start from what the first one found.
    promoted.write("small", seeds=4)
    said = promoted("reference", "notebooks/small.ipynb", "notebooks/other.ipynb")
    assert "other: in the quick reference now" in said
    assert len(runs.read_text().splitlines()) == 4
    assert "small: started" in promoted("reproduce", "notebooks/small.ipynb")  # it adopts nothing


def test_a_notebook_that_fails_is_not_renewed(promoted):
    promoted.write("small", seeds=3, after="1 / 0")
    kept = (promoted.notebooks / "small.ipynb", promoted.reference / "provenance.json")
    before = [path.read_text() for path in kept]
    said = promoted("reference", "notebooks/small.ipynb", fails=True)
    assert "1 of 1 notebooks failed: mend them" in said
    assert [path.read_text() for path in kept] == before


@pytest.mark.parametrize("profile", ["quick", "night"])
def test_the_committed_reference_runs_are_those_of_the_present_code(profile):
    assert reference.records(profile), "no reference runs: run `make reproduce reference`"
    assert reference.stale(profile) == {}


def test_runs_are_added_that_are_of_the_present_code(promoted, monkeypatch):
    monkeypatch.setattr(reference, "all_experiments", lambda: [toy.regression])
    committed = promoted.reference / "runs" / "toy.regression.jsonl"
    before = committed.read_text()
    committed.write_text(before.splitlines()[0])
    runs = promoted.quick / "runs" / "toy.regression"
    former = files.read_sealed(next(runs.glob("*/run.json"))) | {"code": "old"}
    files.write_sealed(runs / "z" / "run.json", former)
    said = promoted("reference", "--add-runs")
    assert said == "1 runs added, 1 renewed, 1 left out (its code changed)\n"
    assert committed.read_text() == before


def test_a_branch_is_told_by_all_parameters_but_the_sizes_of_numbers():
    common = {"objective": "hard", "beta": 0.5, "epochs": 6, "block": 1, "flip": True, "k": None}
    alike = [{}, {"beta": 2.0}, {"epochs": 3}]
    apart = [{"objective": "biased"}, {"beta": 0.0}, {"epochs": 0}, {"block": 4}, {"flip": False}]
    records = [
        {"parameters": common | each, "identity": str(each)} for each in (*alike, *apart, {"k": 5})
    ]
    drawn = [restamp.chosen(records, commit) for commit in "abcdef"]
    assert all(len(each) == 7 for each in drawn)
    assert len({str(each) for each in drawn}) > 1


def test_restamp_renews_what_kept_its_bits_and_names_what_did_not(monkeypatch, tmp_path):
    monkeypatch.setenv("CURLNB_HOME", str(tmp_path))
    monkeypatch.setattr(reference, "all_experiments", lambda: [toy.counted, toy.given])
    own = [
        {"experiment": each.name, "parameters": {name: value}, "seed": seed}
        | {"code": "old", "identity": f"{value}{seed}"}
        for each, name in ((toy.counted, "where"), (toy.given, "own"))
        for value in "xy"
        for seed in (0, 1)  # one branch: one of the two is computed, both are renewed
    ]
    reference.write_runs(own, reference.folder("quick") / "runs")
    changed = {"own": "y"}

    def run(home, results, record):
        return {"knn": 0.5 + (home == tmp_path and record["parameters"] == changed) / 1024}

    then = contextlib.nullcontext(("commit", tmp_path / "x"))
    monkeypatch.setattr(reference, "former_code", lambda *_: then)
    monkeypatch.setattr(restamp, "_run", run)
    said = r"not a pure refactoring: toy.given knn: 0.5009765625 now, 0.5 before"
    with pytest.raises(ValueError, match=said):
        restamp.restamp("quick")
    assert reference.stale("quick").keys() == {"toy.given"}
    changed.clear()
    assert restamp.restamp("quick") == "1 stale experiments renewed"
    reference.read_reference.cache_clear()  # what was written counts
    assert restamp.restamp("quick") == "no reference run is stale"
    assert len(reference.records("quick")) == 8


def test_a_restamp_asks_for_a_record_with_its_own_parameters(monkeypatch, tmp_path):
    """A text that reads as JSON stays one."""
    asked = []

    def command(line, **_):
        asked.append(line)
        return subprocess.CompletedProcess(line, 0, stdout=f"{tmp_path}: 1 s, {{}}\n", stderr="")

    monkeypatch.setattr(subprocess, "run", command)
    files.write_json(tmp_path / "run.json", {"metrics": {}})
    given = {"positives": "true", "bn_groups": None, "tasks": ["MR", "1"], "epochs": 20}
    restamp._run(HOME, tmp_path, {"experiment": "x", "parameters": given, "seed": 3})
    words = asked[0][asked[0].index("x") + 1 :]
    assert _named(words) == given | {"epochs": 1, "seed": 3}


def test_a_run_by_the_command_is_adopted_or_computed_and_says_so(monkeypatch, tmp_path, capfd):
    """What is said of a computed one is read by `restamp._run`."""
    monkeypatch.setenv("CURLNB_RESULTS", str(tmp_path))
    parameters = {"encoder": "mean", "words": 25, "method": "untrained"}
    words = [f"{name}={value}" for name, value in parameters.items()]
    assert main(["run", "latent_text.curl", *words]) == 0
    assert capfd.readouterr().out.startswith("adopted from the reference")
    assert not list(tmp_path.iterdir())
    record = {"experiment": "latent_text.curl", "parameters": parameters, "seed": 0}
    metrics = restamp._run(HOME, tmp_path, record)
    (path,) = tmp_path.rglob("run.json")
    assert metrics == files.read_json(path)["metrics"]
