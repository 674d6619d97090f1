"""All committed runs as one table, a row a run.

    from curlnb.companion.runs_table import runs_table
    runs_table().query("experiment == 'images.simclr' and profile == 'night'")

docs/runs_table.md describes the columns.
"""

import pandas as pd

from curlnb.choices import check_known
from curlnb.companion import reference
from curlnb.companion.ledger import PROFILES


def runs_table(*profiles: str) -> pd.DataFrame:
    """Every run of the committed references of `profiles`, by default of all: its parameters under
    their own names, its metrics with the prefix "metrics_", its machine's facts with "machine_"
    and what decides its last bits with "numerics_". NaN where an experiment has no such parameter
    or metric; lists (curves) stay lists. ValueError for an unknown profile.
    """
    for profile in profiles:
        check_known("profile", profile, PROFILES)
    parts = [
        pd.json_normalize(reference.records(profile), sep="_").assign(profile=profile)
        for profile in profiles or PROFILES
    ]
    table = pd.concat(parts, ignore_index=True)
    return table.rename(columns=lambda name: name.removeprefix("parameters_"))
