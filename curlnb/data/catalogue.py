"""All sets of all modalities under one roof: their names, where they are, how they come here."""

from collections.abc import Callable, Iterable
from types import ModuleType

from curlnb.data import graphs, images, texts
from curlnb.data.download import DataError

MODALITIES = (images, texts, graphs)


def names() -> tuple[str, ...]:
    """Every data set there is: images, texts, graphs."""
    return tuple(name for modality in MODALITIES for name in modality.names())


def _modality(name: str) -> ModuleType:
    return next((modality for modality in MODALITIES if name in modality.names()), images)  # which says that it is unknown


def available(name: str) -> str:
    """Where a set is: "embedded" (committed to the repository), "cached" (fetched) or "absent". Looks for files, does not read them."""
    return _modality(name).available(name)


def fetch(name: str, report: Callable[[str], object] = print) -> None:
    """Have a set on this machine: verify what is here, and fetch what is absent. See `fetch` of `images`, `texts`, `graphs`."""
    _modality(name).fetch(name, report)


def prepare(wanted: Iterable[str], report: Callable[[str], object] = print) -> None:
    """Have each set on this machine, verified; goes on after a failure, and then raises DataError with the names that failed."""
    failed = []
    for name in wanted:
        try:
            fetch(name, report)
        except DataError as error:
            report(f"{name}: {error}")
            failed.append(name)
    if failed:
        raise DataError(f"not fetched: {', '.join(failed)}; the lines above say why")
