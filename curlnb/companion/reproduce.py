"""`make reproduce`: every notebook through papermill, one process each, resumable, then the report."""

import concurrent.futures
import contextlib
import datetime
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from curlnb.companion import claims, report
from curlnb.runs import environment, provenance
from curlnb.runs.devices import default_device
from curlnb.runs.files import write_json

MOST_ABREAST = 4  # notebooks at a time unless asked for otherwise: each takes up to a GB
LIMIT_MINUTES = {"quick": 30, "gpu": 24 * 60, "paper": 60 * 24 * 60}


def notebooks(selected: Iterable[str] = ()) -> list[Path]:
    """The notebooks to run, in reading order; `selected`: files or folders, as typed. ValueError for one that is not there."""
    root = environment.home() / "notebooks"
    chosen = [Path(name) if Path(name).exists() else environment.home() / name for name in selected] or [root]
    for path in chosen:
        if not path.exists():
            raise ValueError(f"no notebook at {path}: give a file or a folder below notebooks/")
    found = {file.resolve() for path in chosen for file in ([path] if path.suffix == ".ipynb" else path.rglob("*.ipynb"))}
    files = [file for file in found if ".ipynb_checkpoints" not in file.parts]
    return sorted(files, key=lambda file: [_natural(part) for part in file.relative_to(root.resolve()).parts])


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """Numbers by value and before letters: 6.3 comes before 6.20, and C.1 last."""
    tokens = [token for token in re.split(r"(\d+)", text) if token]
    return [(not token.isdigit(), int(token) if token.isdigit() else 0, token) for token in tokens]


def name_of(path: Path) -> str:
    """A notebook's path below notebooks/ without the ending, as its settings cell says it."""
    return path.resolve().relative_to((environment.home() / "notebooks").resolve()).with_suffix("").as_posix()


def reproduce(profile: str = "quick", selected: Iterable[str] = (), *, jobs: int | None = None, limit_minutes: float | None = None) -> int:
    """Run the notebooks at `profile`, write the report, print where it is. Returns how many failed.

    jobs: notebooks at a time, each with its share of the cores. None: first those that train nothing, a core each, then the others, on a
    GPU one at a time, on a CPU two that take turns: while one computes its runs on all cores, the other imports, waits or draws.
    Those that read the ledger come last.
    A notebook that is finished is not run again unless its code, the package, the data or the profile changed; one that was interrupted
    goes on from its finished runs.
    """
    results = environment.results_root() / profile
    results.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(results / "lock", timeout=0):
            return _reproduce(profile, notebooks(selected), results, jobs, limit_minutes)
    except Timeout:
        raise RuntimeError(f"another `make reproduce` is at work in {results}; wait for it, or use another CURLNB_RESULTS") from None


def _reproduce(profile: str, paths: list[Path], results: Path, jobs: int | None, limit_minutes: float | None) -> int:
    start = time.monotonic()
    status = _Status(results / "status.json")
    todo = []
    for path in paths:
        before = status.get(name_of(path))
        if before.get("state") == "done" and before.get("inputs") == inputs_of(path, profile) and _output(results, path).exists():
            print(f"  {name_of(path)}: finished before, its inputs unchanged ({before['seconds']:.0f} s then)")
        else:
            todo.append(path)
    limit = 60 * (limit_minutes or LIMIT_MINUTES.get(profile, 60))
    cores = os.cpu_count() or 1
    abreast = min(cores, MOST_ABREAST)
    last = [path for path in todo if _says(path, "claims.read(")]  # what sums the ledger up waits until all is in it
    light = [path for path in todo if jobs is None and not _says(path, "sweep(") and path not in last]
    heavy = [path for path in todo if path not in light + last]
    turns = jobs is None and default_device().type == "cpu"  # two processes might not both find room on a GPU
    at_once = 2 if turns else jobs or 1
    run = functools.partial(_run, profile=profile, results=results, limit=limit)

    def one(path: Path) -> dict[str, Any]:
        if path in light:
            return run(path, share=max(1, cores // abreast))
        return run(path, share=max(1, cores // (jobs or 1)), turns=turns)

    if abreast == at_once:  # on two cores the first that trains need not wait for the last that does not
        _together(light + heavy, at_once, one, status)
    else:
        _together(light, abreast, one, status)
        _together(heavy, at_once, one, status)
    _together(last, 1, functools.partial(run, share=cores), status)
    if todo or not (results / "provenance.json").exists():
        write_json(results / "provenance.json", _provenance(profile, status, time.monotonic() - start))
    page = report.write_report(results, environment.home() / "results" / "reference", results / "report.html")
    print(f"\n{report.verdict_table(claims.read(results / 'claims.csv'))}\n\nReport: {page}")
    failed = [path for path in paths if status.get(name_of(path)).get("state") != "done"]
    for path in failed:
        print(f"FAILED {name_of(path)}: {status.get(name_of(path))['error']} (log: {results / status.get(name_of(path))['log']})")
    return len(failed)


def _says(path: Path, text: str) -> bool:
    """Whether a notebook's code holds `text`: "sweep(" where it asks for runs, which alone have work for more than one core."""
    return any(text in "".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code")


def _together(paths: list[Path], at_a_time: int, run: Callable[[Path], dict[str, Any]], status: "_Status") -> None:
    """`run` the notebooks, so many at a time, and note and say what became of each."""
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        futures = {pool.submit(run, path): path for path in paths}
        try:
            for future in concurrent.futures.as_completed(futures):
                name, outcome = name_of(futures[future]), future.result()
                status.set(name, outcome)
                print(
                    f"  {name}: " + (f"done in {outcome['seconds']:.0f} s" if not outcome["error"] else f"FAILED: {outcome['error']}"),
                    flush=True,
                )
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()
            _kill_all()
            raise


class _Status:
    """results/<profile>/status.json: what became of each notebook. Written by one process, from one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str) -> dict[str, Any]:
        return self.states.get(name, {})

    def set(self, name: str, state: dict[str, Any]) -> None:
        """longest: the seconds of the longest execution so far, which is the one that trained the notebook's runs."""
        self.states[name] = state | {"longest": max(state["seconds"], self.get(name).get("longest", 0.0))}
        write_json(self.path, self.states)


def inputs_of(path: Path, profile: str) -> str:
    """Digest of what a notebook's outputs follow from: its cells, the package, the lock, the data's checksums, the machine, the profile."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    package = [file.read_text() for file in sorted(Path(__file__).parent.parent.rglob("*.py"))]
    home = environment.home()
    others = [home / "requirements.lock", *(home / "data").glob("*.json"), *(home / "results" / "reference" / "gpu").rglob("*.csv")]
    around = [file.read_text() for file in sorted([*others, Path(__file__).with_name("published.csv")]) if file.exists()]
    text = json.dumps([cells, package, around, provenance.machine(), str(default_device()), os.environ.get("CURLNB_THREADS", ""), profile])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _output(results: Path, path: Path) -> Path:
    return results / "notebooks" / f"{name_of(path)}.ipynb"


_RUNNING: set[subprocess.Popen[bytes]] = set()


def _run(path: Path, profile: str, results: Path, limit: float, share: int, turns: bool = False) -> dict[str, Any]:
    """Execute one notebook in a process group of its own, within `limit` seconds, on `share` cores; its log is echoed line by line.

    turns: its sweeps wait for those of the notebook beside it (`environment.turn`), for as long again; "seconds" are without the wait.
    """
    name, output = name_of(path), _output(results, path)
    limit = 2 * limit if turns else limit
    log = results / "logs" / f"{name.replace('/', '--')}.log"
    for folder in (output.parent, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    told = {"CURLNB_NOTEBOOK": name, "CURLNB_LOG": str(log), "CURLNB_RESULTS": str(environment.results_root())}
    threads = {"OMP_NUM_THREADS": str(share), "CURLNB_WORKERS": os.environ.get("CURLNB_WORKERS", str(share))}
    if turns:
        told["CURLNB_TURN"] = str(results / "turn.lock")
    code = f"from curlnb.companion.execute import execute; execute({str(path)!r}, {str(output)!r}, {profile!r}, {os.getpid()})"
    (results / "runs" / "used" / f"{name.replace('/', '--')}.txt").unlink(missing_ok=True)
    print(f"  {name}: started", flush=True)
    start = time.monotonic()
    inputs = inputs_of(path, profile)
    with open(log, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=file, stderr=file, env={**os.environ, **told, **threads}, start_new_session=True
        )
    _RUNNING.add(process)
    over = threading.Event()
    echo = threading.Thread(target=_echo, args=(log, name, over))
    echo.start()
    try:
        process.wait(limit)
        error = "" if process.returncode == 0 else _last_error(output, log)
        state = "failed" if error else "done"
    except subprocess.TimeoutExpired:
        state, error = "timeout", f"not finished within {limit / 60:.0f} minutes"
    finally:
        _kill(process)
        over.set()
        echo.join()
    waited = sum(map(float, re.findall(r"waited (\S+) s for another", log.read_text(errors="replace"))))
    seconds = round(time.monotonic() - start - waited, 1)
    return {"state": state, "seconds": seconds, "error": error, "log": str(log.relative_to(results)), "inputs": inputs}


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a notebook's process. Its kernel, a session of its own, ends itself within a second, and the kernel's workers after it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _RUNNING.discard(process)


def _kill_all() -> None:
    for process in list(_RUNNING):
        _kill(process)


def _echo(log: Path, name: str, over: threading.Event) -> None:
    """Print the lines of progress that a notebook's runs leave in its log."""
    at = 0
    while not over.wait(1):
        text = log.read_text(errors="replace")
        for line in text[at:].splitlines():
            if re.match(r"\d\d:\d\d:\d\d ", line):
                print(f"    {name} {line}", flush=True)
        at = len(text)


def _last_error(output: Path, log: Path) -> str:
    """One line that says what went wrong: the notebook's error output, else the log's last line."""
    if output.exists():
        for cell in json.loads(output.read_text())["cells"]:
            for out in cell.get("outputs", []):
                if out.get("output_type") == "error":
                    return f"{out['ename']}: {out['evalue']}".splitlines()[0]
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its process ended without a word"


def _provenance(profile: str, status: _Status, seconds: float) -> dict[str, Any]:
    finished = {name: state for name, state in status.states.items() if state["state"] == "done"}
    return {
        "profile": profile,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": provenance.commit(),
        "device": str(default_device()),
        "cores": os.cpu_count(),
        "machine": {name: value for name, value in provenance.machine().items() if value},
        "python": ".".join(map(str, sys.version_info[:3])),
        "notebooks": len(finished),
        "total_seconds": round(sum(state["seconds"] for state in finished.values()), 1),
        "last_command_seconds": round(seconds, 1),
    }
