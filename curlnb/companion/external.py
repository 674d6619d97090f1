"""Other people's evidence: independent re-runs and related measurements, each read at its source.

`external.csv` beside this module has one row a comparison; it enters no verdict. Columns: claim
(the entry of the table of claims beside which it stands, empty where there is none), source, link
(to the version that was read), read (how: output of a notebook, table, log, figure), data, setting,
treatment and value, control and control_value (empty without a control), unit, seeds, found_first
("yes" where the source made a finding before this project did) and note.
"""

from functools import cache
from pathlib import Path

import pandas as pd

_FILE = Path(__file__).with_name("external.csv")


@cache
def _table() -> pd.DataFrame:
    numbers = dict.fromkeys(("value", "control_value", "seeds"), "")
    table = pd.read_csv(_FILE, keep_default_na=False, na_values=numbers)
    table["gain"] = (table["value"] - table["control_value"]).round(6)
    return table


def external(claim: str | None = None) -> pd.DataFrame:
    """The rows beside a claim, or all, as a fresh DataFrame with the columns above and `gain`:
    treatment minus control, NaN without a control. Empty where nobody measured it.
    """
    rows = _table()
    return rows[[claim in (None, id) for id in rows["claim"]]].reset_index(drop=True)


def marks(claim: str) -> dict[str, float]:
    """The marks that a figure draws beside our interval for a claim: gains by a label of source and
    data, such as {"Nozawa and Sato 2021, CIFAR-10": 5.64}.

    Where a source has several gains on one data set, the label also has the treatment.
    """
    rows = external(claim).dropna(subset="gain")
    labels = rows["source"] + ", " + rows["data"]
    several = labels.duplicated(keep=False)
    labels = labels.where(~several, labels + ": " + rows["treatment"])
    return dict(zip(labels, rows["gain"], strict=True))
