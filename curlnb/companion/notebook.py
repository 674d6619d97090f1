"""What every notebook starts and ends with: its settings, its saved tables and figures, its claims,
its compute.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from curlnb.companion import ledger as ledgers
from curlnb.companion import notebooks, profiles
from curlnb.companion.exercises import check as check
from curlnb.companion.exercises import grade as grade
from curlnb.data import datasets
from curlnb.runs import environment, provenance
from curlnb.runs.devices import check_environment
from curlnb.runs.experiment import Experiment, parameters_of
from curlnb.runs.files import write_atomically
from curlnb.runs.store import default_store

STYLE = Path(__file__).with_name("curlnb.mplstyle")
SHOWN = 6  # settings of a file that a page shows


@dataclass(eq=False, repr=False)
class Settings:
    """One profile's settings as attributes, beside `notebook`, `profile`, the run `store` and the
    `results` folder.
    """

    notebook: str
    profile: str
    values: dict[str, Any]
    changed: bool = False

    def __post_init__(self) -> None:
        self.results = environment.results_root() / self.profile
        self.store = default_store(self.profile)

    @property
    def evidence(self) -> str:
        """The profile under which claims are filed: "quick", or "quick, changed" where the
        committed reference has other settings, and these are not about to become the committed
        ones (`make reference` with notebooks, which adopts runs). On a page that is not committed:
        where a setting was changed.
        """
        committed = provenance.of_reference(self.profile).get("settings", {}).get(self.notebook)
        kept = committed is None and not self.changed
        same = kept or committed == notebooks.digest_of_settings(self.values) or environment.dry()
        renewed = environment.notebook_name() == self.notebook and environment.adopt()
        return self.profile if same or renewed else ledgers.CHANGED.format(self.profile)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(
                f"profile {self.profile!r} has no setting {name!r}; it has {', '.join(self.values)}"
            ) from None

    def of(self, dataset: str) -> "Settings":
        """The settings of a data set: those of its entry in `datasets` before the profile's, and
        its name as `dataset` where the entry says no other.
        """
        own = self.values | {"dataset": dataset} | self.values["datasets"][dataset]
        found = object.__new__(Settings)
        found.__dict__ |= self.__dict__ | {"values": own}
        return found

    def take(
        self, names: str | Experiment, prefix: str = "", *, without: str = ""
    ) -> dict[str, Any]:
        """The settings with these names, by name: settings.take("encoder batch epochs"). Of an
        experiment: those of its parameters, settings.take(simclr), that have one value here, but
        for the names in `without`; a list is for the page to sweep.

        prefix: of their names in the file: settings.take("batch lr", "text_") gives those of
        text_batch and text_lr as batch and lr.
        """
        if isinstance(names, str):
            return {name: self.__getattr__(prefix + name) for name in names.split()}
        known = {name: self.values.get(prefix + name, []) for name in parameters_of(names.function)}
        left = without.split()
        return {n: x for n, x in known.items() if not isinstance(x, list) and n not in left}

    def require(self, **needed: Iterable[Any]) -> None:
        """Check, before anything is trained, that settings which are lists hold the values that the
        notebook's claims are judged on.

        settings.require(beta=[0, 1]). In a dry run nothing is required. ValueError, with the
        setting and what it lacks.
        """
        for name, values in needed.items():
            given = getattr(self, name)
            several = given if isinstance(given, list | dict) else [given]
            lacking = [repr(value) for value in values if value not in several]
            if lacking and not environment.dry():
                raise ValueError(
                    f"the setting {name} = {given!r} of profile {self.profile!r} lacks "
                    f"{', '.join(lacking)}, which a claim of this notebook is judged on: add it, "
                    "or remove the claim and this requirement"
                )

    def __repr__(self) -> str:
        shown = [f"{name} = {value}" for name, value in self.values.items()][:SHOWN]
        if more := len(self.values) - len(shown):
            shown.append(f"and {more} more in {Path(self.notebook).name}.toml")
        return f"{self.profile}: " + ", ".join(shown)


def settings(notebook: str, profile: str, change: Mapping[str, Any] = {}) -> Settings:
    """The settings of `profile`, from the file beside the notebook, and the plots' style set.

    notebook: its path below notebooks/ without the ending, "2_dcl/5.1_figure4_images": what it
    saves is filed under it. change: settings to use in place of the profile's. In a dry run
    (CURLNB_DRY=1), which only shows that the code runs, those of the table [dry] come before both.
    ValueError for a file that is missing or damaged, an unknown profile, and a setting of `change`
    that it does not have, with the names that there are.
    """
    check_environment()
    known, dry = profiles.read(environment.home() / "notebooks" / f"{notebook}.toml")
    if profile not in known:
        raise ValueError(f"profile {profile!r} is unknown here; use one of {', '.join(known)}")
    values = profiles.changed(known[profile], change)
    plt.style.use(["default", STYLE])  # whatever the reader's matplotlibrc says
    if environment.dry():
        values |= dry
    return Settings(notebook, profile, values, bool(change))


def save_table(settings: Settings, table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Write `table` to <results>/tables/<notebook>-<name>.csv, numbers to six digits, and return it
    for display.

    The index is written if it has a name or holds names; one that only counts the rows is not.
    """
    path = _place(settings, "tables", name, "csv")
    index = _has_named_rows(table)
    write_atomically(
        path, lambda file: table.to_csv(file, index=index, float_format="%.6g", lineterminator="\n")
    )
    return table


def _has_named_rows(table: pd.DataFrame) -> bool:
    return [*table.index.names] != [None] or not pd.api.types.is_integer_dtype(table.index)


def beside(settings: Settings, table: pd.DataFrame, name: str) -> dict[str, pd.DataFrame]:
    """Save `table` as `save_table` does, and give it by its profile, behind the night's committed
    one where that is better evidence.

    {"night": ..., "quick": ...} at quick, where a night's table is committed; {"gpu": ...} at gpu.
    The first is what the notebook tells. Rows that have names get them as columns, as in the file.
    ValueError for names without a heading, which the file would lose.
    """
    named = _has_named_rows(table)
    if named and None in table.index.names:
        raise ValueError(
            f"the rows of {name!r} have names without a heading: "
            "give them one with table.rename_axis(...)"
        )
    save_table(settings, table, name)
    tables = {settings.profile: table.reset_index() if named else table}
    if "night" in ledgers.better_than(settings.profile):
        with contextlib.suppress(FileNotFoundError):
            return {"night": committed(f"night/{settings.notebook}-{name}")} | tables
    return tables


def save_figure(settings: Settings, figure: Figure, name: str, alt: str = "") -> None:
    """Write `figure` to <results>/figures/<notebook>-<name>.svg and show it here.

    alt: what it shows, in a sentence or two, for readers who cannot see it; it travels with the
    picture and its name to the web page.
    """
    path = _place(settings, "figures", name, "svg")
    write_atomically(path, lambda file: figure.savefig(file, format="svg", metadata={"Date": None}))
    if alt:
        display(figure, metadata={"image/png": {"alt": alt, "name": name}})
        plt.close(figure)  # else the cell would show it once more


def _place(settings: Settings, kind: str, name: str, ending: str) -> Path:
    return settings.results / kind / f"{settings.notebook}-{name}.{ending}"


def ledger(settings: Settings) -> ledgers.Ledger:
    """The claims that this notebook judges: `judge` each where it is measured, and `show` them at
    the end.

    Where a setting was changed, the rows say so, and no best evidence is taken from them while
    there is other.
    """
    return ledgers.Ledger(settings.notebook, settings.evidence, settings.results)


def compute(*tables: pd.DataFrame) -> pd.DataFrame:
    """What the runs behind the notebook's tables cost: how many, seconds of each and in all, on
    which device.

    A run that several tables share, or that another notebook trained first, is counted once, with
    the seconds that it took then. Where runs were taken from the committed reference, and not
    computed here, a further level "origin" of the index tells them apart, and says which of their
    numerics (device, precision, threads, torch) are not those of this machine. A printed line says
    how to learn why a run was not taken.
    """
    columns = ["experiment", "identity", "device", "seconds", "origin"]
    runs = (
        pd.concat([table.reindex(columns=columns) for table in tables])
        .fillna({"origin": "computed"})
        .drop_duplicates("identity")
    )
    by = ["experiment", "device", "origin"]
    computed = runs["origin"] == "computed"
    if environment.adopt() and computed.any():
        print("`curlnb why EXPERIMENT NAME=VALUE ...` says why a run was computed, not adopted")
    if computed.all():
        by.remove("origin")
    cost = runs.groupby(by)["seconds"].agg(["count", "mean", "sum"]).round(1)
    return cost.set_axis(["runs", "seconds a run", "seconds"], axis=1)


def present(names: Iterable[str]) -> list[str]:
    """Those of the data sets `names` that are on this machine; in a dry run, which makes its data
    up, all of them.
    """
    return [name for name in names if environment.dry() or datasets.available(name) != "absent"]


def committed(name: str) -> pd.DataFrame:
    """A committed reference table by profile, notebook and name, such as
    "night/5_across_papers-ranking".
    """
    profile, _, table = name.partition("/")
    return pd.read_csv(environment.reference_folder() / profile / "tables" / f"{table}.csv")
