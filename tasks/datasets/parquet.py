"""Parquet files in the Hugging Face layout: ``train*.parquet`` and perhaps ``test*.parquet`` in one folder.

An image column holds encoded pictures, as bytes or as the struct (bytes, path); a label column integers or truth
values. Only the label column is read whole: a client decodes its own pictures and no others.

The entry ``parquet`` describes itself: the first image column, the first label column of ``LABELS``, the size of the
first training picture, as many classes as the file's metadata names or else the largest label plus one. Sites that
each hold their own files must therefore agree on the size, and should keep the metadata.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from prunella.core.errors import ConfigError, of_data
from prunella.core.extras import require
from prunella.tasks.datasets.dataset import Dataset
from prunella.tasks.datasets.images import open_image, shape_of, to_tensor
from prunella.tasks.examples import Examples, Pictures
from prunella.tasks.models.layers import Shape
from prunella.tasks.partition import Indices, Partition, members

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as pads

LABELS = ("label", "labels", "fine_label", "character", "class")
NATURAL = ("writer_id", "celeb_id", "client_id", "site")


@dataclass(frozen=True)
class Table:
    """Which column is what, and what the pictures are."""

    image: str
    label: str
    natural: str | None
    shape: Shape
    classes: int
    resize: bool = False


def find(path: Path, split: str) -> list[Path]:
    """The files of a split, in the folder itself or in ``data`` below it as on the hub."""
    return sorted(path.glob(f"{split}*.parquet")) or sorted((path / "data").glob(f"{split}*.parquet"))


def open_split(path: Path, split: str) -> "pads.Dataset | None":
    """A split, nothing read yet; None where it has no files."""
    require("vision", "pyarrow")
    import pyarrow as pa
    from pyarrow.dataset import dataset

    files = find(path, split)
    try:
        return dataset([str(file) for file in files], format="parquet") if files else None
    except (OSError, pa.ArrowException):
        raise of_data(f"{split}*.parquet cannot be read as Parquet", path) from None


def open_training(path: Path | None) -> "pads.Dataset":
    if path is None:
        raise ConfigError("say where the Parquet files lie: dataset 'parquet:/folder', or a node's own data root")
    source = open_split(path, "train")
    if source is None:
        raise of_data("no train*.parquet in the data folder", path)
    return source


def _require_column(source: "pads.Dataset", name: str) -> None:
    if name not in source.schema.names:
        raise of_data(f"the files have no column {name!r}", ", ".join(source.schema.names))


def column(source: "pads.Dataset", name: str) -> NDArray[Any]:
    """One whole column. Raises ``DataError`` where it is missing or has gaps."""
    _require_column(source, name)
    values = source.to_table(columns=[name])[name]
    if values.null_count:
        raise of_data(f"column {name!r} has empty cells", values.null_count)
    return np.asarray(values.to_numpy())


def checked_labels(labels: NDArray[Any], classes: int) -> Indices:
    """Labels as int64 in [0, classes). Raises ``DataError`` where some are not."""
    bad = int(np.count_nonzero((whole(labels) < 0) | (labels >= classes)))
    if bad:
        raise of_data("labels are not among the classes", f"{bad} are outside 0 to {classes - 1}")
    return labels.astype(np.int64)


def whole(labels: NDArray[Any]) -> NDArray[Any]:
    """The labels, which are whole numbers or truth values. Raises ``DataError`` where they are not."""
    if labels.dtype.kind not in "iub":
        raise of_data("labels must be integers or truth values", labels.dtype)
    return labels


def encoded(cells: Iterable[Any]) -> Iterable[bytes]:
    """The bytes of image cells, empty (thus unreadable) where a cell only names a file."""
    return ((cell["bytes"] if isinstance(cell, dict) else cell) or b"" for cell in cells)


def decoded(pictures: Sequence[bytes], table: Table, labels: Indices) -> Examples:
    """Examples from their encoded pictures and labels. Pictures that cannot be read raise ``DataError`` when they are
    used, or by ``Examples.check``."""
    decode = partial(to_tensor, shape=table.shape, resize=table.resize)
    return Examples(Pictures(pictures, decode, (*table.shape, table.resize)), torch.from_numpy(labels))


def rows(source: "pads.Dataset", table: Table, chosen: Indices, labels: Indices) -> Examples:
    _require_column(source, table.image)
    if not _is_image(kind := source.schema.field(table.image).type):
        raise of_data(f"column {table.image!r} holds no images", kind)
    cells = source.take(chosen, columns=[table.image])[table.image]
    return decoded(list(encoded(cell.as_py() for cell in cells)), table, labels[chosen])


def train(table: Table, path: Path | None, partition: Partition, client: int) -> Examples:
    source = open_training(path)
    labels = checked_labels(column(source, table.label), table.classes)
    natural = table.natural if partition.kind == "natural" else None
    ids = column(source, natural) if natural else None
    return rows(source, table, members(partition, client, labels, ids), labels)


def test(table: Table, path: Path) -> Examples | None:
    source = open_split(path, "test")
    if source is None:
        return None
    labels = checked_labels(column(source, table.label), table.classes)
    return rows(source, table, np.arange(len(labels)), labels)


def held_out(path: Path | None) -> bool:
    """Whether there is a test split. Raises ``DataError`` for a folder with neither this nor the other one."""
    if path is None or find(path, "test"):
        return path is not None
    open_training(path)
    return False


def _is_image(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        at = kind.get_field_index("bytes")
        return at >= 0 and _is_image(kind.field(at).type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _names(source: "pads.Dataset", label: str) -> tuple[str, ...]:
    """From the Hugging Face metadata."""
    metadata = json.loads((source.schema.metadata or {}).get(b"huggingface", b"{}"))
    return tuple(metadata.get("info", {}).get("features", {}).get(label, {}).get("names") or ())


def guess(path: Path | None) -> Table:
    """The description of files that are in no table of ours."""
    source = open_training(path)
    image = next((field.name for field in source.schema if _is_image(field.type)), None)
    label = next((name for name in LABELS if name in source.schema.names), None)
    if image is None or label is None:
        raise of_data(f"the files have no image column, or none of {', '.join(LABELS)}", ", ".join(source.schema.names))
    cells = source.head(1, columns=[image])[image].to_pylist()
    try:
        shape = shape_of(open_image(next(iter(encoded(cells)))))
    except (OSError, ValueError, StopIteration):
        raise of_data("the first training image cannot be read", path) from None
    natural = next((name for name in NATURAL if name in source.schema.names), None)
    classes = len(_names(source, label)) or int(whole(column(source, label)).max()) + 1
    return Table(image, label, natural, shape, classes)


def _describe(path: Path | None) -> tuple[Shape, int]:
    table = guess(path)
    return table.shape, table.classes


PARQUET = Dataset(
    _describe,
    lambda path, partition, client: train(guess(path), path, partition, client),
    lambda path: test(guess(path), path) if path else None,
    0.02,  # of CIFAR-10: the size of the pictures is not known before they are read
    lambda path: _names(open_training(path), guess(path).label),
    held_out,
    own=True,
)
