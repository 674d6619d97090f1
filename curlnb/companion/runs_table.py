"""All committed runs as one table, a row a run.

    from curlnb.companion.runs_table import runs_table
    runs_table().query("experiment == 'images.simclr' and profile == 'night'")

`python -m curlnb.companion.runs_table runs.csv` writes it for other languages. docs/runs_table.md
describes the columns.
"""

import sys
from typing import Any

import pandas as pd

from curlnb.companion import reference
from curlnb.runs import environment

ABOUT = ("profile", "experiment", "identity", "seed", "seconds", "device", "cpu", "gpu", "torch")


def runs_table(*profiles: str) -> pd.DataFrame:
    """Every run of the committed references of `profiles`, by default of all: the columns ABOUT,
    then a column for each parameter under its own name, then one for each metric with the prefix
    "metric_". NaN where an experiment has no such parameter or metric.

    Metrics that are lists (curves) stay in the records, results/reference/*/runs.
    ValueError for a profile that has no committed runs.
    """
    found = [path.parent.name for path in sorted(environment.reference_folder().glob("*/runs"))]
    if unknown := [profile for profile in profiles if profile not in found]:
        raise ValueError(f"no committed runs of {unknown[0]!r}: one of {', '.join(found)}")
    rows = [
        _row(profile, record)
        for profile in profiles or found
        for record in reference.records(profile)
    ]
    table = pd.DataFrame(rows)
    names = {str(name) for name in table} - {*ABOUT}
    ordered = sorted(names, key=lambda name: (name.startswith("metric_"), name))
    return table[[*ABOUT, *ordered]]


def _row(profile: str, record: dict[str, Any]) -> dict[str, Any]:
    known = {"profile": profile} | record | record["machine"]
    about = {name: known[name] for name in ABOUT}
    parameters = {
        name: "|".join(map(str, value)) if isinstance(value, list) else value
        for name, value in record["parameters"].items()
    }
    metrics = {
        f"metric_{name}": value
        for name, value in record["metrics"].items()
        if not isinstance(value, list)
    }
    return about | parameters | metrics


if __name__ == "__main__":
    runs_table().to_csv(sys.argv[1], index=False)
