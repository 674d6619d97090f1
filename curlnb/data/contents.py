"""What the part of a set holds, for each modality: its file, its digest and how it can be at fault.

images    {"images": uint8 [n, c, h, w], "labels": int64 [n], -1 where unlabelled}
texts     str: a line "= title" for each article (a tab and its label for a review or a row of a
          task), then its sentences, a line each, words separated by blanks
graphs    Raw
vectors   {"words": uint8, the words separated by line ends, "vectors": float16 [V, d]}; word 0 is
          "?", which stands for all unknown words and has the vector zero

Committed images are tiles of a lossless picture, committed graphs are TU's tables; all else is
safetensors or compressed text. No format runs code.
"""

import gzip
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from curlnb.data.catalogue import Entry

Tensors = dict[str, Tensor]


def write_tensors(tensors: Mapping[str, Tensor | None], path: Path) -> None:
    """A safetensors file, a format that holds nothing but numbers; a tensor that is None is left
    out.
    """
    save_file({key: t.contiguous() for key, t in tensors.items() if t is not None}, path)


# --- images


def records_digest(images: Tensor, labels: Tensor) -> str:
    """SHA-256 of images uint8 [n, c, h, w] and labels int64 [n], as in CIFAR's binary version.

    A record an image: its label byte (255 where unlabelled), then its pixels, channel by channel.
    """
    digest = hashlib.sha256()
    for few, own in zip(images.split(1000), labels.split(1000), strict=True):
        label_bytes = own.remainder(256).to(torch.uint8)[:, None]
        digest.update(torch.cat([label_bytes, few.flatten(1)], dim=1).numpy().tobytes())
    return digest.hexdigest()


def from_mosaic(picture: np.ndarray, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    """Images uint8 [n, *shape] and labels [n] of a picture [H, W, 3] of tiles, row by row.

    The tiles stand one class after the other, equally many of each. The images returned go round
    the classes instead, so that any number of first ones is balanced.
    """
    channels, height, width = shape
    pixels = torch.from_numpy(picture[..., :channels])
    tiles = pixels.unflatten(1, (-1, width)).unflatten(0, (-1, height))  # [rows, h, columns, w, c]
    by_class = tiles.permute(0, 2, 4, 1, 3).reshape(classes, -1, *shape)
    images = by_class.transpose(0, 1).flatten(0, 1).contiguous()
    return images, torch.arange(len(images)) % classes


def _read_images(entry: Entry, path: Path) -> Tensors:
    if not entry.committed:
        return load_file(path)
    with Image.open(path, formats=("WEBP",)) as picture:
        pixels = np.array(picture.convert("RGB"))
    images, labels = from_mosaic(pixels, entry.shape, len(entry.classes))
    return {"images": images, "labels": labels}


def _image_size(entry: Entry, split: str, content: Tensors) -> tuple[object, object]:
    return [*content["images"].shape], [entry.splits[split], *entry.shape]


# --- texts


def _text_size(entry: Entry, part: str, text: str) -> tuple[object, object]:
    articles = sum(line.startswith("= ") for line in text.splitlines())
    return articles, entry.articles[part] or articles


# --- graphs


class Raw(NamedTuple):
    """What TU's tables say, numbered from 0.

    edges: int64 [2, m], each in both directions, sorted, without loops; batch: int64 [nodes], the
    graph of each node, ascending; labels: int64 [graphs]; node_labels: int64 [nodes(, k)] or None.
    """

    edges: Tensor
    batch: Tensor
    labels: Tensor
    node_labels: Tensor | None = None


def read_tables(tables: Mapping[str, str]) -> Raw:
    """TU's tables (A, graph_indicator, graph_labels and perhaps node_labels) by their names.

    Loops and repeated edges are dropped, missing directions added, labels numbered from 0 in
    ascending order; a graph without edges is kept.
    """
    table = {
        part: torch.from_numpy(np.array(text.replace(",", " ").split(), dtype=np.int64))
        for part, text in tables.items()
    }
    batch, node_labels = table["graph_indicator"] - 1, table.get("node_labels")
    if node_labels is not None and len(node_labels) > len(batch):  # several columns
        node_labels = node_labels.reshape(len(batch), -1)
    labels = table["graph_labels"].unique(return_inverse=True)[1]
    edges = undirected(table["A"].reshape(-1, 2).T - 1, len(batch))
    return Raw(edges, batch, labels, node_labels)


def undirected(edges: Tensor, nodes: int) -> Tensor:
    """Edges [2, m] in both directions, each once, without loops, sorted by source and target."""
    kept = edges[:, edges[0] != edges[1]]
    both = torch.cat([kept, kept.flip(0)], 1)
    code = (both[0] * nodes + both[1]).unique()
    return torch.stack([code // nodes, code % nodes])


def graph_digest(raw: Raw) -> str:
    """SHA-256 of shape and little-endian int64 values of edges, batch, labels and node labels."""
    digest = hashlib.sha256()
    for tensor in raw:
        if tensor is not None:
            values = tensor.numpy().astype("<i8").tobytes()
            digest.update(f"{list(tensor.shape)}".encode() + values)
    return digest.hexdigest()


def _read_graphs(entry: Entry, path: Path) -> Raw:
    if entry.committed:
        files = path.glob(f"{entry.name}_*.txt")
        return read_tables({f.stem.removeprefix(f"{entry.name}_"): f.read_text() for f in files})
    return Raw(**load_file(path))


class Kind(NamedTuple):
    """How the sets of a modality are kept.

    file: the path of a part below `data` or the cache; digest: of a content, as the catalogue has
    it; read, write: a part's content, from and to a path; size: the shape of a content's images or
    the number of its articles, and what the catalogue has, for sets whose digest it does not have.
    """

    file: Callable[[Entry, str], str]
    digest: Callable[[Any], str]
    read: Callable[[Entry, Path], Any] = lambda entry, path: load_file(path)
    write: Callable[[Any, Path], object] = write_tensors
    size: Callable[[Entry, str, Any], tuple[object, object]] = lambda *_: (None, None)


KINDS = {
    "images": Kind(
        lambda entry, part: f"{entry.name}/{part}.{'webp' if entry.committed else 'safetensors'}",
        lambda content: records_digest(content["images"], content["labels"]),
        _read_images,
        size=_image_size,
    ),
    "texts": Kind(
        lambda entry, part: f"{entry.name}/{part}.txt.gz",
        lambda text: hashlib.sha256(text.encode()).hexdigest(),
        lambda entry, path: gzip.decompress(path.read_bytes()).decode(),
        lambda text, path: path.write_bytes(gzip.compress(text.encode(), 9, mtime=0)),
        _text_size,
    ),
    "graphs": Kind(
        lambda entry, part: f"graphs/{entry.name}{'' if entry.committed else '.safetensors'}",
        graph_digest,
        _read_graphs,
        lambda raw, path: write_tensors(raw._asdict(), path),
    ),
    "vectors": Kind(
        lambda entry, part: f"glove/{entry.name}.safetensors",
        lambda content: hashlib.sha256(
            content["words"].numpy().tobytes() + content["vectors"].numpy().tobytes()
        ).hexdigest(),
    ),
}
