"""What the environment says: where the checkout and the results are, how a notebook is run."""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

Group = TypeVar("Group")
Loader = TypeVar("Loader", bound=Callable[..., Any])

PATHS = (
    # the checkout; default: the package's own, for an installed wheel that of the working directory
    "CURLNB_HOME",
    # where fetched data is kept; default: data/cache/ in the checkout, without one in the working
    # directory
    "CURLNB_DATA",
    # where results go; default: results/ in the checkout, without one in the working directory
    "CURLNB_RESULTS",
    # a file that gets one line a minute on long work, where nobody watches a progress bar
    "CURLNB_LOG",
)
SWITCHES = (
    # 0: adopt no committed reference run (`make reproduce`)
    "CURLNB_ADOPT",
    # 1: look runs up among the committed reference runs, compute none (`make test`)
    "CURLNB_REFERENCE",
    # 1: replay compiled steps as CUDA graphs
    "CURLNB_CUDA_GRAPHS",
    # 1: two steps on synthetic data of the real shapes, to see that the code runs
    "CURLNB_DRY",
    # 1: install a build of torch that has no committed digests (tools/bootstrap.py)
    "CURLNB_UNVERIFIED",
)
VARIABLES = (
    *PATHS,
    *SWITCHES,
    # the path below notebooks/, without the ending, of the notebook at work, set by
    # `make reproduce`
    "CURLNB_NOTEBOOK",
    # how many processes a sweep keeps busy on the CPU, 0 for this one alone; default: one a core
    "CURLNB_WORKERS",
    # tcp://host:8786 or a scheduler file, which ends in .json: the Dask cluster on which sweeps
    # compute; default: none, local processes
    "CURLNB_SCHEDULER",
    # CPU threads of a run, default 1; another number changes a run's last bits
    "CURLNB_THREADS",
    # cuda, cuda:1, mps or cpu, of those that this machine has; default: cuda where there is one,
    # else cpu. Some experiments need float64, which mps lacks
    "CURLNB_DEVICE",
    # which build of torch the set-up installs (tools/bootstrap.py)
    "CURLNB_TORCH_BACKEND",
)

PACKAGED = Path(__file__).resolve().parents[2]


def around() -> Path | None:
    """The checkout around the working directory."""
    with contextlib.suppress(OSError):  # a working directory that is gone
        for folder in (Path.cwd(), *Path.cwd().parents):
            if (folder / "notebooks").is_dir() and (folder / "data" / "catalogue.json").is_file():
                return folder
    return None


# the checkout in which the package lies; for an installed wheel, the one around the working
# directory, or that directory
FOUND = PACKAGED if (PACKAGED / "notebooks").is_dir() else around() or Path()

WITHOUT_TILES = "AVX512_CORE_FP16"
os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_TILES
"""torch's CPU kernels (oneDNN) go without AMX, Intel's matrix tiles: virtual machines exist that
announce tiles and hide their sizes, on which bfloat16 ends in an illegal instruction, and
processors with and without tiles so take the same kernels.
"""


def setting(name: str) -> str:
    """The value of one of VARIABLES, empty where it is not set."""
    return os.environ.get(name, "")


def given() -> dict[str, str]:
    """The settings of this project that are set, unknown ones too."""
    return {name: value for name, value in os.environ.items() if name.startswith("CURLNB_")}


def number(name: str, default: int, least: int) -> int:
    """A variable as a whole number. ValueError, in one line, for another value."""
    value = setting(name) or str(default)
    if not value.isdecimal() or not least <= int(value) < 10_000:
        raise ValueError(f"{name} is {value!r}: it must be a whole number from {least} to 9999")
    return int(value)


def home() -> Path:
    """The checkout; without one, the working directory."""
    given = setting("CURLNB_HOME")
    return Path(given).expanduser() if given else FOUND


def checkout(what: str) -> Path:
    """The checkout. ValueError, in a line that says what to do, where there is none and `what`
    needs one.
    """
    if home() == Path():
        raise ValueError(
            f"{what} needs a checkout of this project, and this is a package alone: "
            "set CURLNB_HOME to one, or start this in it"
        )
    return home()


def results_folder() -> Path:
    """CURLNB_RESULTS, or results/ in the checkout or, without one, in the working directory, as an
    absolute path.
    """
    return Path(setting("CURLNB_RESULTS") or home() / "results").expanduser().absolute()


def results_root() -> Path:
    """Where results go; in a dry run another folder, so that noise is not taken for results."""
    return results_folder() / "dry" if dry() else results_folder()


def reference_folder() -> Path:
    """The committed results, a folder for each profile."""
    return home() / "results" / "reference"


def notebook_name() -> str:
    """The running notebook, as `1_curl/4.1_surrogate_bound`; empty where it is not known."""
    return setting("CURLNB_NOTEBOOK")


def reference_only() -> bool:
    """Whether notebooks take committed runs alone and compute none, as in `make test`."""
    return setting("CURLNB_REFERENCE") == "1"


def adopt() -> bool:
    """Whether a notebook run by hand may take committed reference runs; a dry run makes none and
    takes none.
    """
    return setting("CURLNB_ADOPT") != "0" and not dry()


def threads() -> int:
    """CPU threads of a run."""
    return number("CURLNB_THREADS", 1, least=1)


def workers() -> int:
    """Processes that a sweep keeps busy on the CPU."""
    return number("CURLNB_WORKERS", cores(), least=0)


def cores() -> int:
    """CPU cores that this process may use: on Linux those of its affinity, for example a cluster
    job's share of its node.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cuda_graphs() -> bool:
    """Whether compiled steps are replayed as CUDA graphs."""
    return setting("CURLNB_CUDA_GRAPHS") == "1"


def log(line: str) -> None:
    """Append a line to the log that `make reproduce` shows; nothing where a reader watches bars
    instead.
    """
    if path := setting("CURLNB_LOG"):
        with contextlib.suppress(OSError), open(path, "a", errors="replace") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {line}\n")


# --- dry runs -------------------------------------------------------------------------------------


def dry() -> bool:
    """Whether everything is cut short: a dry run shows that the code runs, and no more."""
    return setting("CURLNB_DRY") == "1"


def limited(settings: Group, **most: int) -> Group:
    """The settings as they are; in a dry run with the named numbers at most as large as given. None
    stays None.
    """
    if not dry():
        return settings
    smaller = {
        name: min(value, most[name])
        for name in most
        if (value := getattr(settings, name)) is not None
    }
    return replace(settings, **smaller)  # type: ignore[type-var]


def kept_in_memory(most: int) -> Callable[[Loader], Loader]:
    """Decorator: keep the last `most` results of a function that loads data, since a process does
    many runs on few sets.

    A dry run's are kept apart, so that noise is never taken for data.
    """

    def decorate(load: Loader) -> Loader:
        kept = functools.lru_cache(most)(lambda _, *arguments: load(*arguments))
        wrapped: Any = functools.wraps(load)(lambda *arguments: kept(dry(), *arguments))
        return wrapped

    return decorate
