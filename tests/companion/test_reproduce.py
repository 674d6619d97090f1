"""`make reproduce` end to end on small notebooks, in a results folder and a checkout of its own;
the reference and its renewal.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import toy

from curlnb.__main__ import main
from curlnb.companion import ledger, notebooks, reference, reproduce, restamp
from curlnb.runs import environment, files
from curlnb.runs.store import Store

HOME = environment.home()
FORKS = Path(__file__).parent.parent / "forks.py"
GOOD = """
from curlnb.companion import notebook
from curlnb.runs.sweep import sweep
import pandas as pd, toy
settings = notebook.settings("small", profile, quick=dict(seeds=2, pause=PAUSE), gpu=dict(seeds=2, pause=PAUSE))
runs = sweep(toy.regression, seeds=settings.seeds, store=settings.store, pause=settings.pause, workers=0)
notebook.save_table(settings, runs[["seed", "loss"]], "losses")
ledger = notebook.ledger(settings)
ledger.judge("mine/small", exact="holds" if len(runs) == 2 else "fails", value=2.0, claim="two seeds give two rows")
ledger.show()
print(f"{runs['loss'].mean():.6f}")
"""


def write_notebook(path: Path, code: str, **needs: bool) -> None:
    parameters = nbformat.v4.new_code_cell(
        'profile = "quick"\nseed = 0', metadata={"tags": ["parameters"]}
    )
    cells = [
        nbformat.v4.new_markdown_cell("# A small notebook"),
        parameters,
        nbformat.v4.new_code_cell(code),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"curlnb": needs}), path)


@pytest.fixture
def checkout(tmp_path):
    """A checkout with its own notebooks and results; commands run in it as the Makefile runs them."""
    write_notebook(tmp_path / "notebooks" / "small.ipynb", GOOD.replace("PAUSE", "0.0"))

    def command(
        *arguments: str, start: bool = False, **variables: str
    ) -> subprocess.Popen | subprocess.CompletedProcess:
        env = {
            **os.environ, "CURLNB_HOME": str(tmp_path), "CURLNB_RESULTS": str(tmp_path / "results"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]), **variables,
        }  # fmt: skip
        if start:  # to be killed, so that it and its kernels are processes of their own
            env = {
                name: value
                for name, value in env.items()
                if name not in ("TESTS_FORKS", "JUPYTER_PATH")
            }
            return subprocess.Popen(
                [sys.executable, "-m", "curlnb", *arguments],
                env=env,
                cwd=tmp_path,
                start_new_session=True,
            )
        line = [sys.executable, str(FORKS), "-m", "curlnb", *arguments]
        return subprocess.run(
            line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280
        )

    command.root = tmp_path
    return command


def test_one_notebook_through_the_whole_path_and_not_twice(checkout):
    done = checkout("reproduce")
    assert done.returncode == 0, done.stdout + done.stderr
    quick = checkout.root / "results" / "quick"
    assert (quick / "tables" / "small-losses.csv").exists()
    assert "mine/small" in (quick / "own_claims.csv").read_text()
    page = (quick / "report.html").read_text()
    assert "A small notebook" in page
    assert "two seeds give two rows" in page
    assert len(list((quick / "runs" / "toy.regression").iterdir())) == 2
    again = checkout("reproduce")
    assert "finished before" in again.stdout
    assert "started" not in again.stdout


MEET = """
import pathlib, time
mine, other = pathlib.Path("MINE"), pathlib.Path("OTHER")
mine.touch()
until = time.monotonic() + 60
while not other.exists():
    assert time.monotonic() < until, "the other never came"
    time.sleep(0.1)
"""


def write_two_that_meet(root: Path, *then: str) -> list[str]:
    """Two notebooks that each wait for the other's word: one after the other, neither would finish.
    then: code of each after that.
    """
    a, b = root / "a", root / "b"
    for name, mine, other, code in zip(("left", "right"), (a, b), (b, a), then, strict=True):
        write_notebook(
            root / "notebooks" / f"{name}.ipynb",
            MEET.replace("MINE", str(mine)).replace("OTHER", str(other)) + code,
        )
    return ["notebooks/left.ipynb", "notebooks/right.ipynb"]


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
def test_notebooks_run_side_by_side(checkout):
    done = checkout("reproduce", *write_two_that_meet(checkout.root, "", ""))
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_notebooks_that_share_a_training_train_it_once(checkout):
    """Side by side, each would otherwise find that nobody has trained it yet."""
    steps = checkout.root / "steps.txt"
    look = f"""
from curlnb.runs.sweep import sweep
import toy
sweep(toy.LOOK, seeds=[0], where={str(steps)!r}, epochs=500)
"""
    both = write_two_that_meet(
        checkout.root, look.replace("LOOK", "loss_of"), look.replace("LOOK", "weights_of")
    )
    done = checkout("reproduce", *both, CURLNB_DEVICE="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(steps.read_text().splitlines()) == 500 * 4


def test_notebooks_that_time_something_run_alone_and_those_that_read_the_ledger_last(checkout):
    reads = """
from curlnb.companion import ledger
from curlnb.runs import environment
print(len(ledger.read_all(environment.results_root() / "quick")), "claim so far")
"""
    write_notebook(checkout.root / "notebooks" / "0_sum.ipynb", reads, last=True, trains=False)
    timed = "import os; print(os.environ['CURLNB_WORKERS'], 'workers,', os.environ['OMP_NUM_THREADS'], 'thread')"
    write_notebook(checkout.root / "notebooks" / "1_timed.ipynb", timed, alone=True)
    done = checkout("reproduce")
    assert done.returncode == 0, done.stdout + done.stderr
    order = ["small: done", "1_timed: started", "1_timed: done", "0_sum: started"]
    places = [done.stdout.index(words) for words in order]
    assert places == sorted(places)
    executed = checkout.root / "results" / "quick" / "notebooks"
    assert "1 claim so far" in (executed / "0_sum.ipynb").read_text()

    more = (
        'ledger.judge("mine/more", exact="holds", value=2.0, claim="one claim more")\nledger.show()'
    )
    write_notebook(
        checkout.root / "notebooks" / "small.ipynb",
        GOOD.replace("PAUSE", "0.0").replace("ledger.show()", more),
    )
    done = checkout("reproduce")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1_timed: finished before" in done.stdout
    assert "2 claim so far" in (executed / "0_sum.ipynb").read_text()
    told = (
        f"{os.cpu_count()} workers, 1 thread"  # all cores are for its runs; its own tensors get one
    )
    assert told in (executed / "1_timed.ipynb").read_text()


def test_a_failure_names_the_notebook_and_does_not_stop_the_others(checkout):
    write_notebook(
        checkout.root / "notebooks" / "1_broken.ipynb", "raise ValueError('a clear line')"
    )
    done = checkout("reproduce")
    assert done.returncode == 1
    assert "FAILED 1_broken: ValueError: a clear line (log: " in done.stdout
    assert "small: done" in done.stdout
    assert (
        "ValueError: a clear line"
        in (checkout.root / "results" / "quick" / "logs" / "1_broken.log").read_text()
    )
    (checkout.root / "notebooks" / "1_broken.ipynb").unlink()
    write_notebook(checkout.root / "notebooks" / "2_slow.ipynb", "import time; time.sleep(600)")
    done = checkout("reproduce", "--limit-minutes", "0.05", "notebooks/2_slow.ipynb")
    assert done.returncode == 1
    assert "2_slow: FAILED: not finished within 0.05 minutes" in done.stdout


def test_damaged_files_are_named_set_aside_and_made_again(checkout):
    notebooks, quick = checkout.root / "notebooks", checkout.root / "results" / "quick"
    (notebooks / "0_torn.ipynb").write_text('{"cells": [')
    write_notebook(notebooks / "1_exits.ipynb", "import sys; sys.exit(0)")
    write_notebook(notebooks / "1_leaves.ipynb", "print('and nothing behind it')\nexit()")
    write_notebook(notebooks / "2_speaks.ipynb", "raise ValueError('\\x1b[2Jgone')")
    done = checkout("reproduce")
    assert done.returncode == 1, done.stderr
    assert "FAILED 0_torn: " in done.stdout
    assert "0_torn.ipynb is no notebook" in done.stdout
    assert "FAILED 1_exits: SystemExit: 0" in done.stdout
    assert "FAILED 1_leaves: a cell calls exit()" in done.stdout
    assert "FAILED 2_speaks: ValueError: \\x1b[2Jgone" in done.stdout
    assert "small: done" in done.stdout
    for path in notebooks.glob("[012]_*"):
        path.unlink()
    (quick / "status.json").write_text('{"small": {"state": "do')
    (quick / "own_claims.csv").write_bytes(b"\xff\x00")
    again = checkout("reproduce")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Traceback" not in done.stdout + done.stderr + again.stdout + again.stderr
    for name in ("status.json", "own_claims.csv"):
        (line,) = [
            line for line in (again.stdout + again.stderr).splitlines() if f"{name}.damaged" in line
        ]
        assert str(quick / name) in line
        assert list(quick.glob(f"{name}.damaged*"))
    assert "mine/small" in (quick / "own_claims.csv").read_text()
    assert len(list((quick / "runs" / "toy.regression").iterdir())) == 2


def command(capsys, *arguments: str) -> str:
    """The one line with which a command is refused."""
    assert main(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_notebooks_without_the_profile_are_left_out_and_none_at_all_is_refused(capsys):
    paths = notebooks.find()
    assert reproduce._with_profile(paths, "quick") == paths
    kept = reproduce._with_profile(paths, "night")
    assert "5_across_papers" in {notebooks.name_of(path) for path in kept}
    assert (
        f"{len(kept)} of {len(paths)} notebooks have settings for night" in capsys.readouterr().out
    )
    with pytest.raises(ValueError, match="none of 0_start_here has settings for the profile night"):
        reproduce._with_profile([path for path in paths if path.stem == "0_start_here"], "night")


@pytest.mark.parametrize(
    "selected", ["docs", "README.md", "", "notebooks/nothing", "notebooks/2_dcl/nothing.ipynb"]
)
def test_what_holds_no_notebook_is_refused(capsys, selected: str):
    assert command(capsys, "reproduce", selected).startswith(
        f"curlnb reproduce: no notebook at {selected!r}: give files or folders below"
    )


@pytest.mark.parametrize("minutes", ["-5", "nan", "0", "inf", "soon"])
def test_a_limit_that_is_none_is_refused(capsys, minutes: str):
    said = command(capsys, "reproduce", f"--limit-minutes={minutes}")
    assert (
        said
        == f"curlnb reproduce: --limit-minutes is '{minutes}': it must be a number of minutes above 0"
    )


def test_variables_and_parameters_are_named_when_they_are_wrong(capsys, monkeypatch, tmp_path):
    assert (
        command(capsys, "run", "images.simclr", "seed=abc")
        == "curlnb run: seed is 'abc': it must be a whole number from 0 to 4294967295"
    )
    monkeypatch.setenv("CURLNB_THREADS", "abc")
    with pytest.raises(ValueError, match="CURLNB_THREADS='abc' is no number of threads"):
        environment.threads()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CURLNB_RESULTS", "~/x")
    assert environment.results_root() == tmp_path / "x"


def test_an_error_is_one_line_that_cannot_steer_a_terminal_and_debug_shows_where(
    capsys, monkeypatch
):
    def fail(*_: object) -> None:
        raise KeyError("a\x1b[2J\nb")

    monkeypatch.setattr("curlnb.__main__.doctor", fail)
    assert main(["doctor"]) == 2
    assert (
        capsys.readouterr().err
        == "curlnb doctor: KeyError: 'a\\x1b[2J\\nb' (--debug shows where)\n"
    )
    assert main(["doctor", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("CURLNB_DEBUG", "1")
    assert main(["doctor"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_killed_in_between_it_loses_nothing(checkout):
    write_notebook(
        checkout.root / "notebooks" / "small.ipynb",
        GOOD.replace("PAUSE", "0.05").replace("workers=0", "workers=2"),
    )
    runs = checkout.root / "results" / "quick" / "runs" / "toy.regression"
    process = checkout("reproduce", start=True)
    deadline = time.monotonic() + 120
    while not list(runs.glob("*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert checkout("reproduce").returncode == 0
    metrics = [json.loads(path.read_text())["metrics"] for path in runs.glob("*/run.json")]
    uninterrupted = [
        Store(checkout.root / "whole").run(toy.regression, {}, seed) for seed in (0, 1)
    ]
    assert sorted(m["loss"] for m in metrics) == sorted(
        record["metrics"]["loss"] for record in uninterrupted
    )


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

    reference._keep_others(old, fresh, [*others, "a notebook without results"])
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
    kept = {record["identity"]: record for record in reference._records_in(fresh)}
    assert kept == {record["identity"]: record for record in reference.records("night")} | {
        r["identity"]: r for r in again
    }


def test_a_notebook_is_judged_anew_on_the_committed_runs(checkout):
    """One seed more computes one run; the others are adopted, and what is committed of the other
    notebook stays as it is.
    """
    other = (
        GOOD.replace("PAUSE", "0.0")
        .replace('"small"', '"other"')
        .replace("mine/small", "mine/other")
        .replace("seeds=2", "seeds=1")
    )
    write_notebook(checkout.root / "notebooks" / "other.ipynb", other)
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
    write_notebook(
        path,
        GOOD.replace("PAUSE", "0.0").replace("seeds=2", "seeds=3")
        + "\nprint(runs['origin'].tolist())",
    )
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
    assert "changed" not in (checkout.root / "results" / "quick" / "own_claims.csv").read_text()
    assert checkout("reproduce", "notebooks/other.ipynb").returncode == 0
    assert "small has not been reproduced at quick" in checkout("reference").stderr
    assert (
        "small: started" in checkout("reproduce", "notebooks/small.ipynb").stdout
    )  # which adopts nothing


def test_a_run_that_was_added_stays_where_a_notebook_that_comes_last_is_renewed_after_it(checkout):
    """One command promotes twice; the second time must not start from what the first one found."""
    other = (
        GOOD.replace("PAUSE", "0.0")
        .replace('"small"', '"other"')
        .replace("mine/small", "mine/other")
        .replace("seeds=2", "seeds=1")
    )
    write_notebook(checkout.root / "notebooks" / "other.ipynb", other, last=True)
    assert checkout("reproduce").returncode == 0
    assert checkout("reference").returncode == 0
    write_notebook(
        checkout.root / "notebooks" / "small.ipynb",
        GOOD.replace("PAUSE", "0.0").replace("seeds=2", "seeds=3"),
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
        GOOD.replace("PAUSE", "0.0").replace("seeds=2", "seeds=3") + "\n1 / 0",
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
    write_notebook(path, GOOD.replace("PAUSE", "0.0") + "# a later thought")
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
    monkeypatch.setattr(reference, "same_machine", lambda record: True)
    monkeypatch.setattr(
        restamp, "_renew", lambda name, records, profile: renewed.append((name, len(records)))
    )
    monkeypatch.setattr(
        restamp,
        "_run",
        lambda home, results, record, profile: (
            record | {"metrics": {"knn": 0.5 + (record["identity"] == "c.dy") / 1024}}
        ),
    )
    with pytest.raises(
        ValueError, match=r"not a pure refactoring: c.d knn: 0.5009765625 now, 0.5 before"
    ):
        restamp.restamp("quick")
    assert renewed == [("a.b", 2)]
    assert restamp.restamp("quick", ["a.b"]).startswith("1 of 1 stale experiments renewed")
