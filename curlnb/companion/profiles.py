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
DRY = "dry"

Values = dict[str, Any]


def read(file: Path) -> tuple[dict[str, Values], Values]:
    """The settings by profile, and those of a dry run. ValueError, with the file, for one that is
    missing or damaged.
    """
    try:
        text = json.dumps(tomllib.loads(file.read_text(encoding="utf-8")))
        shared = json.loads(text.replace('"None"', "null"))
        tables = {name: shared.pop(name) for name in (*PROFILES, DRY) if name in shared}
        dry = tables.pop(DRY, {})
        profiles = {name: own | shared | own for name, own in tables.items()}
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None
    return profiles, dry


def changed(values: Values, change: Mapping[str, Any]) -> Values:
    """The settings with those of `change` in their place. ValueError, with the settings' names, for
    one that is not among them, and for a list in the place of one value or the other way round.
    """
    if unknown := [name for name in change if name not in values]:
        raise ValueError(f"there is no setting {unknown[0]!r} to change: {', '.join(values)}")
    for name, new in change.items():
        both = new, values[name]
        if None not in both and isinstance(new, list) != isinstance(values[name], list):
            raise ValueError(
                f"the setting {name} is {values[name]!r} here: it can't become {new!r}"
            )
    return values | dict(change)
