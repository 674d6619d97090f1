"""What every notebook starts and ends with: its settings, its saved tables and figures, its claims, its compute."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from curlnb.companion import claims, reproduce
from curlnb.data import datasets
from curlnb.runs import environment
from curlnb.runs.store import Store, default_store

PROFILES = ("quick", "gpu", "paper")


class Settings:
    """One profile's settings as attributes, beside `notebook`, `profile`, the run `store` and the `results` folder."""

    def __init__(self, notebook: str, profile: str, values: dict[str, Any]) -> None:
        self.notebook, self.profile, self.values = notebook, profile, values
        self.results: Path = environment.results_root() / profile
        self.store: Store = default_store(profile)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(f"profile {self.profile!r} has no setting {name!r}; it has {', '.join(self.values)}") from None

    def __repr__(self) -> str:
        return f"{self.profile}: " + ", ".join(f"{name} = {value}" for name, value in self.values.items())


def settings(notebook: str, profile: str, **profiles: dict[str, Any]) -> Settings:
    """The settings of `profile` among those given by name, and the plots' style set.

    notebook: its path below notebooks/ without the ending, "2_dcl/5.1_figure4_images": what it saves is filed under it.
    profiles: quick=dict(...), gpu=dict(...), paper=dict(...), all with the same names. ValueError for an unknown profile or for a
    setting that one profile lacks.
    """
    if profile not in profiles:
        raise ValueError(f"profile {profile!r} is unknown here; use one of {', '.join(profiles)}")
    named = {name: set(values) for name, values in profiles.items()}
    for name, own in named.items():
        if lacking := set().union(*named.values()) - own:
            raise ValueError(f"profile {name!r} lacks the setting {min(lacking)!r} that another profile has")
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", rc={"figure.figsize": (8, 4.5), "savefig.bbox": "tight"})
    return Settings(notebook, profile, profiles[profile])


def save_table(settings: Settings, table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Write `table` to <results>/tables/<notebook>-<name>.csv, numbers to six digits, and return it for display."""
    path = _place(settings, "tables", name, "csv")
    table.to_csv(path, index=any(index is not None for index in table.index.names), float_format="%.6g", lineterminator="\n")
    return table


def save_figure(settings: Settings, figure: Figure, name: str) -> None:
    """Write `figure` to <results>/figures/<notebook>-<name>.svg; the notebook shows it as usual."""
    figure.savefig(_place(settings, "figures", name, "svg"), metadata={"Date": None})


def _place(settings: Settings, kind: str, name: str, ending: str) -> Path:
    path = settings.results / kind / f"{settings.notebook}-{name}.{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def judge(settings: Settings, rows: Iterable[claims.Judged]) -> claims.Shown:
    """Write the notebook's claims into the ledger, in place of those it judged before, and show them."""
    rows = list(rows)
    path = settings.results / "claims.csv"
    claims.record(rows, path, notebook=settings.notebook, profile=settings.profile, replace_notebook=True)
    return claims.display(rows)


def compute(*tables: pd.DataFrame) -> pd.DataFrame:
    """What the runs behind the notebook's tables cost: how many, seconds of each and in all, on which device.

    A run that several tables share, or that another notebook trained first, is counted once, with the seconds that it took then.
    """
    runs = pd.concat([table[["experiment", "identity", "device", "seconds"]] for table in tables]).drop_duplicates("identity")
    grouped = runs.groupby(["experiment", "device"])["seconds"]
    return pd.DataFrame({"runs": grouped.count(), "seconds a run": grouped.mean().round(1), "seconds": grouped.sum().round(1)})


def elsewhere(settings: Settings, name: str, profile: str = "gpu") -> pd.DataFrame | None:
    """The committed reference table `name` of this notebook at another profile, or None where there is none."""
    path = environment.home() / "results" / "reference" / profile / "tables" / f"{settings.notebook}-{name}.csv"
    return pd.read_csv(path) if path.exists() else None


def contents() -> pd.DataFrame:
    """All notebooks in reading order: title, data at quick, and the seconds that the committed reference took."""
    rows = []
    times = _reference_seconds()
    for path in reproduce.notebooks():
        name = reproduce.name_of(path)
        cells = json.loads(path.read_text())["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")
        code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        data = sorted(known for known in datasets.names() if f'"{known}"' in code.partition("quick=dict(")[2].partition("gpu=dict(")[0])
        rows.append({"notebook": name, "title": title, "data at quick": ", ".join(data) or "none", "seconds at quick": times.get(name)})
    return pd.DataFrame(rows).set_index("notebook")


def _reference_seconds() -> dict[str, float]:
    path = environment.home() / "results" / "reference" / "quick" / "provenance.json"
    return json.loads(path.read_text()).get("notebook_seconds", {}) if path.exists() else {}
