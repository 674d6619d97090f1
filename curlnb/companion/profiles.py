"""A notebook's settings, in a TOML file beside it: a table for each profile, and what is changed.

    batch = 256                  # above the tables: of all profiles that have no own

    [quick]
    dataset = "cifar10-mini"     # the first six are those that a page shows

    [gpu]
    dataset = "cifar10"

    [dry]                        # what takes the place of a profile's in a dry run
    batch = 8

TOML has no null: the text "None" stands for None.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROFILES = ("quick", "night", "gpu", "paper")

Values = dict[str, Any]


def read(file: Path) -> tuple[dict[str, Values], Values]:
    """The settings by profile, and those of a dry run. ValueError, with the file, for one that is
    missing or damaged.
    """
    try:
        text = json.dumps(tomllib.loads(file.read_text(encoding="utf-8")))
        shared = json.loads(text.replace('"None"', "null"))
        dry = shared.pop("dry", {})
        tables = {name: shared.pop(name) for name in PROFILES if name in shared}
        profiles = {name: own | shared | own for name, own in tables.items()}
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None
    return profiles, dry


def changed(values: Values, change: Mapping[str, Any]) -> Values:
    """The settings with those of `change` in their place. ValueError, with the settings' names, for
    one that is not among them, and for a list in the place of one value or the other way round.
    """
    for name, new in change.items():
        if name not in values:
            raise ValueError(f"there is no setting {name!r} to change: {', '.join(values)}")
        old = values[name]
        if None not in (new, old) and isinstance(new, list) != isinstance(old, list):
            raise ValueError(f"the setting {name} is {old!r} here: it can't become {new!r}")
    return values | dict(change)
