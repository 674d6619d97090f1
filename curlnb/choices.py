"""Names that a setting may have."""

from collections.abc import Sequence
from typing import Any

FORMER = {"hard_consistent": "hard_corrected"}
"""Former names, which are taken for the present ones."""


def check_known(name: str, value: Any, known: Sequence[str]) -> None:
    """ValueError, in one line, where a setting has none of its values."""
    if value not in known:
        raise ValueError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")


class Choices(dict[str, Any]):
    """A table from the names that a setting may have to what they stand for.

    ValueError, in one line, for a name that is not there. A run's key holds the entries that the
    run names and no others (`curlnb.runs.source`), so that one more makes no finished run stale.
    """

    def __init__(self, setting: str, table: dict[str, Any]) -> None:
        super().__init__(table)
        self.setting = setting

    def __missing__(self, name: object) -> Any:
        check_known(self.setting, name, [*self])
