"""The catalogue of all data sets, and the one way in which a set is read, written and fetched,
whatever its modality.

`data/catalogue.json` lists every set. A set consists of parts, a file each: the splits of images
and texts, one part for graphs and word vectors. Committed sets lie in `data/`, fetched ones in the
cache. Every part is checked whenever it is read, against a digest of its content, whatever the file
format:

- `sha256` of the catalogue, where the content is known;
- `original`, where the content is not at hand but its original files have published digests, which
  it rebuilds (CIFAR-100, STL-10);
- otherwise, where `sha256` stands in the catalogue and is empty, since the digest is not known yet,
  the digest that the set had when it
  was fetched, which `digests.json` in the cache notes (sets that nobody publishes a digest of, and
  files that the user supplies). The fetch prints the line to commit. This finds damage and an
  exchanged file. It is no protection from somebody who can write into the cache, for they can
  change both, nor from a source that sent something else at the first fetch.

No part is a pickle, and reading one runs no code of it. What is particular to a modality, its files
and its sources, is given by its `Modality`, which its module (`images`, `texts`, `graphs`, `glove`)
registers.
"""

import difflib
import functools
import json
import os
import shutil
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from curlnb.data.download import DataError, cache_folder
from curlnb.runs import environment
from curlnb.runs.files import Damaged, write_atomically, write_json

CALLED = {
    "images": "data set",
    "texts": "text set",
    "graphs": "graph set",
    "vectors": "table of word vectors",
}
"""The modalities, and what a set of each is called in messages."""

Source = Callable[[Path], Iterable[tuple[str, Any]]]
"""From the folder for its working files to the parts of a set: the name and the content of each."""
Sources = Mapping[str, list[tuple[str, Source]]]
"""The sources of each set, by the set's name and in the order in which they are tried, each with
words for the report.
"""
Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Entry:
    """A row of the catalogue.

    splits: name -> number of samples; sha256, original: digests by part (see above); supplied: the
    files, in the cache, that only the user can provide; megabytes: what a fetch transfers;
    archive_md5: identifies a set of unknown content in the keys of runs. Images: shape [c, h, w]
    and classes. Texts: articles (or reviews) by split, vectors (the table of word vectors by
    default), labelled. Graphs: how many graphs, classes and node labels (0 where nodes have none);
    nodes, edges: averages a graph, undirected edges counted once, with two decimals as the paper
    prints them.
    """

    name: str
    modality: str
    origin: str
    committed: bool
    stand_in: bool = False
    splits: dict[str, int] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    original: dict[str, str] = field(default_factory=dict)
    supplied: tuple[str, ...] = ()
    megabytes: int = 0
    archive_md5: str = ""
    shape: tuple[int, int, int] = (0, 0, 0)
    classes: tuple[str, ...] = ()
    articles: dict[str, int] = field(default_factory=dict)
    vectors: str = ""
    labelled: bool = False
    graphs: int = 0
    n_classes: int = 0
    nodes: float = 0.0
    edges: float = 0.0
    node_labels: int = 0

    @property
    def parts(self) -> list[str]:
        """What has a file of its own; `train+unlabeled` of STL-10 is read as its two parts."""
        return [split for split in self.splits if "+" not in split] or ["all"]


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file, a format that holds nothing but numbers."""
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (it is no dictionary)


def write_tensors(tensors: Tensors, path: Path) -> None:
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)


@dataclass(frozen=True)
class Modality:
    """How sets of a modality are kept.

    file: the path of a part below `data` or the cache (a folder for committed graphs); digest: of a
    content, as the catalogue has it; fault: how a content differs from what the catalogue promises,
    in words, "" where it does not; sources: see `Sources`; prepare: the content from what a source
    gives; read, write: a part's content, from and to a path.
    """

    file: Callable[[Entry, str], str]
    digest: Callable[[Entry, Any], str]
    fault: Callable[[Entry, str, Any], str]
    sources: Sources
    prepare: Callable[[Entry, Any], Any] = lambda entry, given: given
    read: Callable[[Entry, Path], Any] = lambda entry, path: read_tensors(path)
    write: Callable[[Any, Path], object] = write_tensors


MODALITIES: dict[str, Modality] = {}
"""Filled by the module of each modality when it is imported."""


# --- the catalogue


def names(modality: str | None = None) -> tuple[str, ...]:
    """Every data set of a modality ("images", "texts", "graphs", "vectors"); by default all sets,
    without word vectors.
    """
    return tuple(
        name
        for name, entry in entries().items()
        if (entry.modality == modality if modality else entry.modality != "vectors")
    )


def find(name: str, split: str | None = None, modality: str | None = None) -> Entry:
    """The row of a set; DataError, which says what there is, where there is no such set, or no such
    split of it.
    """
    entry = entries().get(name)
    if entry is None or modality not in (None, entry.modality):
        there = names(modality)
        close = difflib.get_close_matches(str(name), there, 1, cutoff=0.5)
        meant = f", did you mean {close[0]!r}?" if close else ""
        raise DataError(
            f"unknown {CALLED[modality or 'images']} {name!r}{meant}: there are {', '.join(there) or 'none here'}"
        )
    if split is not None and split not in entry.splits:
        hint = (
            "; for a validation split, divide the training data with holdout()"
            if str(split).startswith("val")
            else ""
        )
        raise DataError(f"{name} has no split {split!r}, but {', '.join(entry.splits)}{hint}")
    return entry


def entries() -> dict[str, Entry]:
    """The rows of `data/catalogue.json` by the names of the sets."""
    return _entries(environment.home() / "data" / "catalogue.json")


@functools.cache
def _entries(path: Path) -> dict[str, Entry]:
    """Checked field by field, so that a damaged catalogue is named instead of failing somewhere
    else.
    """
    try:
        return {name: _entry(name, row) for name, row in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: set CURLNB_HOME to a checkout of this project"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is damaged ({_why(error)}): restore it with `git checkout -- data/{path.name}`"
        ) from None


def _entry(name: str, row: dict[str, Any]) -> Entry:
    for key, kind in typing.get_type_hints(Entry).items():
        plain = typing.get_origin(kind) or kind
        if key in row and type(row[key]) not in {float: (int, float), tuple: (list,)}.get(
            plain, (plain,)
        ):
            raise ValueError(f"{key!r} of {name} is {json.dumps(row[key])[:40]}")
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Entry(name, **fields)


def _why(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# --- files


def file_of(entry: Entry, part: str) -> Path:
    """Where a part lies, or would lie."""
    return (environment.home() / "data" if entry.committed else cache_folder()) / MODALITIES[
        entry.modality
    ].file(entry, part)


def available(name: str) -> str:
    """Where a set is: "embedded" (committed to the repository), "cached" (fetched) or "absent".
    Looks for files, does not read them.
    """
    entry = find(name)
    if not all(file_of(entry, part).exists() for part in entry.parts) or (
        entry.vectors and available(entry.vectors) == "absent"
    ):
        return "absent"
    return "embedded" if entry.committed else "cached"


def read(entry: Entry, part: str) -> Any:
    """A part's content, verified. A damaged file in the cache is fetched again; otherwise no
    network is touched.

    DataError, which says what to do, where the part is absent or damaged.
    """
    path, label = file_of(entry, part), _label(entry, part)
    try:
        return _open(entry, part)
    except FileNotFoundError:
        raise DataError(f"{label} is not on this machine: {_remedy(entry, path)}") from None
    except Damaged as damage:
        if entry.committed:
            path = path.relative_to(environment.home())
            raise DataError(
                f"{path} of {entry.name} is damaged ({damage}): restore it with `git checkout -- {path}`"
            ) from None
        print(f"{label}: the cached file is damaged ({damage}), fetching it again")
    fetch(entry.name)
    return _open(entry, part)


def keep(entry: Entry, part: str, given: Any, source: str = "") -> tuple[Path, str]:
    """Write a part's file from what a source gives, whole or not at all, if it is what the
    catalogue says.

    source: where it comes from, for messages. Returns the path and the content's digest.
    """
    modality = MODALITIES[entry.modality]
    content = modality.prepare(entry, given)
    digest, expected = modality.digest(entry, content), _expected(entry, part)
    came = f"{_label(entry, part)}{f' from {source}' if source else ''}"
    if fault := modality.fault(entry, part, content):
        raise DataError(f"{came} has {fault}; not kept")
    if expected and digest != expected:
        known = _known(entry, part)
        whose = (
            "this project knows; not kept"
            if known
            else f"when it was first fetched; remove its line from {_notes()} to accept it"
        )
        raise DataError(f"{came} has other content than {whose}")

    def write(unfinished: Path) -> None:
        modality.write(content, unfinished)
        unfinished.chmod(0o644)  # safetensors makes it private, but a cache may be shared

    path = file_of(entry, part)
    write_atomically(path, write)
    return path, digest


def _open(entry: Entry, part: str) -> Any:
    """A part's content, verified; FileNotFoundError, or Damaged where it is not what it should be."""
    modality = MODALITIES[entry.modality]
    expected = _expected(entry, part)
    path = file_of(entry, part)
    if (
        not entry.committed and path.exists() and not path.is_file()
    ):  # reading a pipe or a device would never end
        raise Damaged("it is no file")
    try:
        content = modality.read(entry, path)
        fault = modality.fault(entry, part, content)
        digest = "" if fault else modality.digest(entry, content)
    except FileNotFoundError:
        raise
    except (
        Exception
    ) as error:  # whatever the reader of the format makes of a damaged or hostile file
        raise Damaged(_why(error)) from None
    if fault:
        raise Damaged(f"it has {fault}")
    if digest != expected and (expected or not entry.committed):
        raise Damaged("its SHA-256 is not the recorded one")
    return content


def _label(entry: Entry, part: str) -> str:
    return f"{entry.name} ({part})" if entry.splits else entry.name


def _remedy(entry: Entry, path: Path) -> str:
    """How a part that is absent can be had."""
    if entry.committed and not environment.in_checkout():
        return (
            "it comes with a checkout of this project, not with the package: set CURLNB_HOME to one"
        )
    if entry.committed:
        return f"restore it with `git checkout -- {path.relative_to(environment.home())}`"
    with_fetch = f"with curlnb.data.datasets.fetch({entry.name!r})"
    if entry.supplied:
        return f"it cannot be fetched; put its original {', '.join(entry.supplied)} into {cache_folder()}, then read it in {with_fetch}"
    vectors = (
        find(entry.vectors).megabytes
        if entry.vectors and available(entry.vectors) == "absent"
        else 0
    )
    size = f" ({entry.megabytes + vectors:,} MB)" if entry.megabytes else ""
    return f"fetch it{size} {with_fetch}, or all that a profile needs with `make data PROFILE=gpu|paper`"


def _known(entry: Entry, part: str) -> str:
    """A part's digest in the catalogue, or ""."""
    return entry.original.get(part) or entry.sha256.get(part, "")


def _expected(entry: Entry, part: str) -> str:
    """The digest that a part must have; "" where none is known yet."""
    return _known(entry, part) or (
        "" if entry.committed else _noted().get(f"{entry.name}/{part}", "")
    )


def _notes() -> Path:
    return cache_folder() / "digests.json"


def _noted() -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(_notes().read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{_notes()} is damaged ({_why(error)}): remove it, and fetch the sets of the cache again"
        ) from None


def note(entry: Entry, digests: Mapping[str, str]) -> None:
    """Note the digests of a fetched set's parts, where the catalogue has none, so that what is read
    later is what was fetched.
    """
    if unknown := {
        f"{entry.name}/{part}": digest
        for part, digest in digests.items()
        if not _expected(entry, part)
    }:
        with FileLock(_notes().with_suffix(".lock")):
            write_json(_notes(), _noted() | unknown)


def unlisted(entry: Entry) -> dict[str, str]:
    """The digests of a fetched set's parts that are noted in the cache, but not known to the
    catalogue.
    """
    noted = _noted()
    return {
        part: noted[f"{entry.name}/{part}"]
        for part in entry.parts
        if not _known(entry, part) and f"{entry.name}/{part}" in noted
    }


# --- fetching


def fetch(name: str, report: Callable[[str], object] = print) -> None:
    """Have a set, and the word vectors of a text set, on this machine: verify what is here, fetch
    what is absent or damaged.

    The sources are tried in their order, the original one first unless it is much larger. Partial
    downloads stay in the cache to be resumed; data appears only complete and verified. Two
    processes fetch a set once: the second one waits, looks again and finds it. Raises DataError
    where no source delivers it.
    """
    entry = find(name)
    if entry.vectors:
        fetch(entry.vectors, report)
    if entry.committed:
        for part in entry.parts:
            read(entry, part)
        report(f"{name}: part of the repository, verified")
        return
    cache, failures = cache_folder(), []
    sources = MODALITIES[entry.modality].sources[name]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f".{name}.lock"):
            if _intact(entry):
                report(f"{name}: already here, verified")
                return
            for words, source in sources:
                size = f"about {entry.megabytes:,} MB " if entry.megabytes else ""
                reading = f"reading {', '.join(entry.supplied)} of the cache, which you supply"
                report(f"{name}: {reading if entry.supplied else f'fetching {size}from {words}'}")
                if not (failure := _fetch_from(entry, words, source)):
                    report(f"{name}: {'read in' if entry.supplied else 'fetched'}, verified")
                    return
                report(f"{name}: {failure}")
                failures.append(failure)
    except OSError as error:
        raise DataError(
            f"{name} cannot be kept in {cache}: {error}; CURLNB_DATA names another folder"
        ) from None
    if entry.supplied:
        raise DataError(failures[0])
    where = " or ".join(words for words, _ in sources)
    raise DataError(
        f"{name} could not be had from {where}; check the network and try again ({'; '.join(failures)})"
    )


def _fetch_from(entry: Entry, words: str, source: Source) -> str:
    """Put all parts from a source into the cache. Returns what went wrong; the empty string where
    nothing did.
    """
    working = (
        cache_folder() / f".{entry.name}.fetching"
    )  # kept after a failure: what it holds is resumed, or checked and replaced
    digests: dict[str, str] = {}
    try:
        _make_own(working)
        for part, given in source(working):
            try:
                _, digests[part] = keep(entry, part, given, words)
            except (
                DataError
            ):  # the source is whole and holds something else: there is nothing to resume
                shutil.rmtree(working, ignore_errors=True)
                raise
        note(entry, digests)
    except (DataError, OSError) as error:  # also a full disk
        return _why(error)
    except Exception as error:  # whatever a decoder makes of a file that is not what it should be
        return f"{words} sent something that cannot be read ({type(error).__name__}: {_why(error)})"
    shutil.rmtree(working, ignore_errors=True)
    return ""


def _make_own(folder: Path) -> None:
    """Make a folder that nobody else can write into, so that what was verified there is what is
    then read.

    DataError where another user, or a link, stands in its place, as may happen in a shared cache.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise DataError(
            f"{folder} is a link or another user's folder: remove it, since what is fetched is kept there until it is verified"
        )
    folder.chmod(0o700)


def _intact(entry: Entry) -> bool:
    """Whether every file of a set is in the cache and verified; removes those that are damaged."""
    intact = True
    for part in entry.parts:
        try:
            _open(entry, part)
        except FileNotFoundError:
            intact = False
        except Damaged:
            file_of(entry, part).unlink()
            intact = False
    return intact
