"""`make reproduce`: every notebook in a kernel of its own, resumable, then the report."""

import contextlib
import datetime
import functools
import glob
import hashlib
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from filelock import Timeout

from curlnb.companion import ledger, notebooks, report
from curlnb.companion.execute import NotebookError, execute, stop_all
from curlnb.companion.formatting import printable
from curlnb.companion.notebooks import name_of
from curlnb.companion.whole import Whole
from curlnb.runs import environment, files, provenance
from curlnb.runs.devices import default_device
from curlnb.runs.files import write_json

MOST_ABREAST = 4  # notebooks at a time unless asked for otherwise: each takes up to a GB
LIMIT_MINUTES = {"quick": 60, "night": 24 * 60, "gpu": 24 * 60, "paper": 60 * 24 * 60}


def reproduce(
    profile: str = "quick",
    selected: Iterable[str] = (),
    *,
    jobs: int | None = None,
    limit_minutes: float | None = None,
    adopt: bool = False,
) -> int:
    """Run the notebooks at `profile`, write the report, print where it is. Returns how many failed.

    jobs: notebooks at a time, each with its share of the cores for its runs; None: one a core, at
    most MOST_ABREAST, and of those that train one at a time on a GPU. Those that time something are
    then run one by one on all cores, and at the end those that read the ledger. adopt: whether
    committed reference runs are taken, as by a notebook that is run by hand; a reproduction
    computes all, and so runs such a notebook again.
    A notebook that is finished is not run again unless its code, the package, the data or the
    profile changed, or it reads the ledger and another is run; one that was interrupted goes on
    from its finished runs.
    """
    results = environment.results_root() / profile
    paths = notebooks.find(selected)
    files.make_folder(results, environment.results_root())
    try:
        with files.lock(results / "lock", 0):
            files.clear_leftovers(results)
            return _reproduce(profile, paths, results, jobs, limit_minutes, adopt)
    except Timeout:
        raise RuntimeError(
            f"another `make reproduce` is at work in {results}; wait for it, or use another CURLNB_RESULTS"
        ) from None


def _reproduce(
    profile: str,
    paths: list[Path],
    results: Path,
    jobs: int | None,
    limit_minutes: float | None,
    adopt: bool,
) -> int:
    start = time.monotonic()
    status = _Status(results / "status.json")
    judged = ledger.read_all(results)["notebook"].value_counts()
    paths = _with_profile(paths, profile)
    todo: dict[Path, notebooks.Needs] = {}
    finished: dict[Path, notebooks.Needs] = {}
    for path in paths:
        name = name_of(path)
        try:
            needs, inputs = notebooks.needs(path), inputs_of(path, profile)
        except (ValueError, OSError) as error:  # the others can run
            about = {"log": "", "inputs": "", "judged": 0, "left": {}}
            status.set(
                name,
                {"state": "failed", "seconds": 0.0, "cores": 0, "error": printable(error)} | about,
            )
            continue
        before = status.get(name)
        same = (
            before.get("state") == "done"
            and before.get("inputs") == inputs
            and before.get("judged") == judged.get(name, 0)
        )
        same = same and not (adopt or before.get("adopted"))
        lost = changed(results, before["left"]) if same else []
        for piece in lost:
            if (results / piece).is_dir():
                files.make_way(results / piece)
            else:
                print(f"  {name}: {results / piece} was changed or lost since: it is made again")
        (finished if same and not lost else todo)[path] = needs
    if todo:  # what the others come to stands in the ledger that these read
        todo |= {path: finished.pop(path) for path, needs in [*finished.items()] if needs.last}
    for name in map(name_of, finished):
        print(
            f"  {name}: finished before, its inputs unchanged ({status.get(name)['seconds']:.0f} s then)"
        )
    cores, limit = environment.cores(), 60 * (limit_minutes or LIMIT_MINUTES[profile])
    turns = [
        (group, min(at_once, len(group)))
        for group, at_once in _schedule(todo, cores, jobs)
        if group
    ]
    if turns:
        with _whole(profile, turns, len(finished), len(paths), status, results) as whole:
            for group, at_once in turns:
                share = max(1, cores // at_once)
                run = functools.partial(
                    _run,
                    profile=profile,
                    results=results,
                    limit=limit,
                    share=share,
                    whole=whole,
                    adopt=adopt,
                )
                _together(_longest_first(group, status), at_once, run, status, whole)
    if todo or not _has_provenance(results):
        write_json(
            results / "provenance.json", _provenance(profile, status, time.monotonic() - start)
        )
    page = report.write_report(results, environment.reference_folder(), results / "report.html")
    print(f"\n{report.verdict_table(ledger.read_all(results))}\n\nReport: {page}")
    failed = [name for name in map(name_of, paths) if status.get(name).get("state") != "done"]
    for name in failed:
        log = status.get(name)["log"]
        print(
            f"FAILED {name}: {status.get(name)['error']}"
            + (f" (log: {results / log})" if log else "")
        )
    return len(failed)


def _with_profile(paths: list[Path], profile: str) -> list[Path]:
    """Those of the notebooks that have settings for the profile; the others are said to be left
    out. ValueError for none.
    """
    kept = notebooks.with_profile(paths, profile)
    if not kept:
        raise ValueError(
            f"none of {', '.join(map(name_of, paths))} has settings for the profile {profile}"
        )
    if len(kept) < len(paths):
        print(
            f"  {len(kept)} of {len(paths)} notebooks have settings for {profile}; the others are left out"
        )
    return kept


def _schedule(
    todo: Mapping[Path, notebooks.Needs], cores: int, jobs: int | None
) -> list[tuple[list[Path], int]]:
    """The notebooks in groups that come one after the other, each with how many of it run at once.

    A notebook that runs beside others gets its share of the cores, so that all cores are busy while
    one of them imports or draws.
    """
    one_at_a_time = (
        jobs is None and default_device().type != "cpu"
    )  # two that train might not both find room on the GPU
    turns: list[list[Path]] = [[], [], [], []]
    for path, needs in todo.items():
        turns[
            3 if needs.last else 2 if needs.alone else 1 if one_at_a_time and needs.trains else 0
        ].append(path)
    return list(zip(turns, (jobs or min(cores, MOST_ABREAST), 1, 1, 1), strict=True))


def _longest_first(paths: list[Path], status: "_Status") -> list[Path]:
    """Ordered by the seconds that they took here or for the reference, so that no long one is left
    over at the end.
    """
    reference = provenance.of_reference("quick").get("notebook_seconds", {})
    return sorted(
        paths,
        key=lambda path: (
            status.get(name_of(path)).get("longest") or reference.get(name_of(path), math.inf)
        ),
        reverse=True,
    )


def _whole(
    profile: str,
    turns: list[tuple[list[Path], int]],
    done: int,
    total: int,
    status: "_Status",
    results: Path,
) -> Whole:
    """What is said of the whole, with the seconds that notebooks took here or for this profile's
    reference.
    """
    names = [([name_of(path) for path in group], at_once) for group, at_once in turns]
    todo = [name for group, _ in names for name in group]
    seconds = provenance.of_reference(profile).get("notebook_seconds", {})
    seconds = seconds | {
        name: longest for name in todo if (longest := status.get(name).get("longest"))
    }
    lists = (
        (environment.reference_folder() / profile / "runs").glob("*.jsonl")
        if len(todo) == len(notebooks.find())
        else ()
    )
    runs = sum(path.read_bytes().count(b"\n") for path in lists)
    return Whole(names, done, total, seconds, results, runs=runs)


def _together(
    paths: list[Path],
    at_once: int,
    run: Callable[[Path], dict[str, Any]],
    status: "_Status",
    whole: Whole,
) -> None:
    """`run` the notebooks, so many at a time, and note and say what became of each."""
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        futures: dict[Future[dict[str, Any]], str] = {
            pool.submit(run, path): name_of(path) for path in paths
        }
        try:
            for future in as_completed(futures):
                outcome, name = future.result(), futures[future]
                status.set(name, outcome)
                said = (
                    f"FAILED: {outcome['error']}"
                    if outcome["error"]
                    else f"done in {outcome['seconds']:.0f} s"
                )
                whole.end(name, said, not outcome["error"])
        except BaseException:  # Ctrl-C above all
            for future in futures:
                future.cancel()
            while not all(future.done() for future in futures):
                stop_all()
                time.sleep(0.1)
            raise


class _Status:
    """results/<profile>/status.json: what became of each notebook. Written by one process, from one
    thread.

    Each notebook's state has a seal of its own: where one is damaged, the file is set aside, and
    the others count.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states, why = _states(path)
        if why:
            files.set_aside(
                path, f"{why}; what it said of the others holds" if self.states else why
            )

    def get(self, name: str) -> dict[str, Any]:
        return self.states.get(name, {})

    def set(self, name: str, state: dict[str, Any]) -> None:
        """longest: the seconds of the longest execution so far, which is the one that trained the
        notebook's runs.
        """
        self.states[name] = state | {
            "longest": max(state["seconds"], self.get(name).get("longest", 0.0))
        }
        write_json(
            self.path, {name: files.seal(state, name) for name, state in self.states.items()}
        )


_STATE: dict[str, Any] = {
    "state": str, "seconds": int | float, "longest": int | float, "cores": int, "error": str, "log": str, "inputs": str, "judged": int,
    "left": dict,
}  # fmt: skip


def _states(path: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """What became of each notebook, by name, as far as it is whole, and why the file is damaged, or
    the empty string.
    """
    if not os.path.lexists(path):
        return {}, ""
    states, why = {}, ""
    try:
        sealed = files.read_json(path)
    except (ValueError, IsADirectoryError) as error:
        return {}, str(error) if isinstance(error, ValueError) else "it is a folder"
    for name, state in sealed.items():
        try:
            states[name] = files.unseal(state, name)
            if not all(isinstance(states[name].get(key), kind) for key, kind in _STATE.items()):
                del states[name]
                raise files.Damaged("it lacks a field")
        except files.Damaged as error:
            why = why or f"{name}: {error}"
    return states, why


def read_status(path: Path) -> dict[str, dict[str, Any]]:
    """What became of each notebook, by name; empty where there is no file. ValueError, with the
    path, for a damaged one.
    """
    states, why = _states(path)
    if why:
        raise ValueError(f"{path} is damaged ({why}): `make reproduce` makes it again")
    return states


def _has_provenance(results: Path) -> bool:
    path = results / "provenance.json"
    try:
        return path.exists() and bool(files.read_json(path))
    except (ValueError, IsADirectoryError) as error:
        files.set_aside(path, printable(error))
        return False


def changed(results: Path, left: Mapping[str, str]) -> list[str]:
    """Those of the files that a notebook left, relative to `results`, that are no longer what they
    were.
    """
    return [name for name, digest in left.items() if _digest_of(results / name) != digest]


def _left(results: Path, name: str) -> dict[str, str]:
    """Path, relative to `results`, and digest of what a notebook left: its executed copy, its list
    of runs, its tables and figures.
    """
    own = [_output(results, name), results / "runs" / "used" / f"{name.replace('/', '--')}.txt"]
    for folder in (results / "tables", results / "figures"):
        own += sorted((folder / name).parent.glob(f"{glob.escape(Path(name).name)}-*"))
    return {
        path.relative_to(results).as_posix(): _digest_of(path) for path in own if path.is_file()
    }


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def machine_seconds(states: Mapping[str, Mapping[str, Any]]) -> float:
    """The seconds that the finished notebooks took of the whole machine: one on half of its cores
    counts half.
    """
    cores = environment.cores()
    return sum(
        state["seconds"] * state.get("cores", cores) / cores
        for state in states.values()
        if state["state"] == "done"
    )


def inputs_of(path: Path, profile: str) -> str:
    """Digest of what a notebook's outputs follow from: its cells, the package, the lock, the data's
    checksums, the machine, the profile.
    """
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebooks.read(path)["cells"]]
    package = [
        file.read_text(encoding="utf-8")
        for file in sorted(Path(__file__).parent.parent.rglob("*.py"))
    ]
    home = environment.home()
    beside = {
        "gpu",
        *ledger.better_than(profile),
    }  # their references are shown beside this profile's results
    references = [
        path for name in beside for path in (environment.reference_folder() / name).rglob("*.csv")
    ]
    tables = [*Path(__file__).parent.rglob("*.toml"), Path(__file__).with_name("published.csv")]
    others = [home / "requirements.lock", *(home / "data").glob("*.json"), *references, *tables]
    around = [file.read_text(encoding="utf-8") for file in sorted(others) if file.exists()]
    text = json.dumps(
        [
            cells,
            package,
            around,
            provenance.machine(),
            str(default_device()),
            os.environ.get("CURLNB_THREADS", ""),
            profile,
        ]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _output(results: Path, name: str) -> Path:
    return results / "notebooks" / f"{name}.ipynb"


def _run(
    path: Path, profile: str, results: Path, limit: float, share: int, whole: Whole, adopt: bool
) -> dict[str, Any]:
    """Execute one notebook within `limit` seconds on `share` cores and print its progress; what
    became of it, for the status.
    """
    name, start, inputs = name_of(path), time.monotonic(), inputs_of(path, profile)
    file_name = name.replace("/", "--")
    log, progress = (results / "logs" / f"{file_name}.{ending}" for ending in ("log", "progress"))
    for folder in (log.parent, results / "runs" / "used", _output(results, name).parent):
        files.make_folder(folder, results)
    for file in (log, progress):
        files.make_way(file)
        with files.naming(file):
            file.write_text("")
    files.make_way(_output(results, name))
    files.remove(results / "runs" / "used" / f"{file_name}.txt")
    variables = {
        "CURLNB_NOTEBOOK": name,
        "CURLNB_LOG": str(progress),
        "CURLNB_RESULTS": str(environment.results_folder()),
        "CURLNB_ADOPT": "1" if adopt else "0",
        "CURLNB_WORKERS": os.environ.get("CURLNB_WORKERS", str(share)),
        "OMP_NUM_THREADS": str(
            environment.threads()
        ),  # as of a run: a notebook's own tensors are small, and threads would wait
    }
    whole.begin(name)
    over = threading.Event()
    echo = threading.Thread(target=_echo, args=(progress, name, over, whole))
    echo.start()
    state, error = "done", ""
    try:
        execute(
            path, _output(results, name), log, profile=profile, variables=variables, limit=limit
        )
    except NotebookError as failure:
        state, error = failure.state, printable(failure)
    except Exception as failure:  # of papermill or the kernel's machinery; the others can run
        state, error = "failed", f"{type(failure).__name__}: {printable(failure)}"
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as kept:
            traceback.print_exc(file=kept)
    finally:
        over.set()
        echo.join()
    seconds, judged = round(time.monotonic() - start, 1), ledger.read_all(results)["notebook"]
    about = {
        "log": str(log.relative_to(results)),
        "inputs": inputs,
        "judged": int((judged == name).sum()),
        "left": _left(results, name),
    }
    return {
        "state": state,
        "seconds": seconds,
        "cores": share,
        "error": error,
        "adopted": adopt,
        **about,
    }


def _echo(progress: Path, name: str, over: threading.Event, whole: Whole) -> None:
    """Print the lines that a notebook's runs leave of their progress."""
    with (
        contextlib.suppress(BrokenPipeError),
        open(progress, encoding="utf-8", errors="replace") as file,
    ):
        while not over.wait(1):
            for line in file:
                whole.say(f"    {name} {printable(line.rstrip())}")


def _provenance(profile: str, status: _Status, seconds: float) -> dict[str, Any]:
    return {
        "profile": profile,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": provenance.commit(),
        "device": str(default_device()),
        "cores": environment.cores(),
        "machine": {name: value for name, value in provenance.machine().items() if value},
        "python": ".".join(map(str, sys.version_info[:3])),
        "notebooks": sum(state["state"] == "done" for state in status.states.values()),
        "total_seconds": round(machine_seconds(status.states), 1),
        "last_command_seconds": round(seconds, 1),
    }
