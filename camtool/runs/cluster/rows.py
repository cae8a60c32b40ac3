"""Rows of the results of a cluster run: from explanations to columns, a pyarrow table and Parquet."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from camtool import maps
from camtool.explaining.explanation import Explanation
from camtool.geometry.cell_centers import CellCenters
from camtool.runs.cluster.cluster_plan import Photo
from camtool.runs.cluster.remote_files import import_library
from camtool.runs.stored_files import build_line

# Rows of a Parquet file that are read at once: the report refuses row groups of 512 MiB.
_ROWS_IN_GROUP = 256

# Name → type of pyarrow. One row per photo, target and method; a photo that failed has one row. The columns of a
# :class:`camtool.runs.stored_files.ManifestLine` have its values; ``path`` is its ``image``, and ``class_index`` its
# ``index``. ``heatmap`` is the map at the layer's size in [0, 1], times 255 as uint8, row-major, compressed by zlib.
# ``heatmap_place`` says where it lies: top, left, bottom and right of the model's input in pixels of the image; height
# and width of the input; and in its pixels the center of the first row of cells, the distance of rows, the center of
# the first column, the distance of columns; null if the image is no photo. ``class_index`` is null for a target that is
# not about a class, ``probability`` if it is unknown. ``overlay`` is the picture's path relative to the folder of the
# shard, or null. ``failure`` is the reason why a photo failed; its other columns but ``path`` are null.
COLUMNS: Mapping[str, str] = {
    "path": "string",
    "method": "string",
    "layer": "string",
    "class_index": "int32",
    "label": "string",
    "score": "double",
    "probability": "double",
    "heatmap": "binary",
    "heatmap_height": "int32",
    "heatmap_width": "int32",
    "heatmap_place": "list<double>",
    "image_width": "int32",
    "image_height": "int32",
    "warnings": "list<string>",
    "warning_codes": "list<string>",
    "box": "list<double>",
    "predicted_label": "string",
    "true_label": "string",
    "correct": "bool",
    "overlay": "string",
    "failure": "string",
}

# Columns with a value of the manifest's line as it is.
_OF_LINE = ("method", "layer", "label", "score", "probability", "predicted_label", "true_label", "correct")

# Column → value. Columns that are left out are null.
Row = dict[str, Any]


def build_rows(photo: Photo, outcome: Sequence[Explanation] | str, overlays: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a photo.

    Args:
        photo: The photo.
        outcome: Its explanations, or the reason why there are none.
        overlays: The path of the picture of each explanation.
    """
    if isinstance(outcome, str):
        return [{"path": _to_text(photo.path), "failure": _to_text(outcome)}]
    names: Sequence[str | None] = overlays if overlays is not None else [None] * len(outcome)
    return [_build_row(photo, explanation, overlay) for explanation, overlay in zip(outcome, names, strict=True)]


def _build_row(photo: Photo, explanation: Explanation, overlay: str | None) -> Row:
    line = build_line(_to_text(photo.path), explanation, photo.true_class)
    levels = np.rint(maps.normalize(explanation.raw) * 255).astype(np.uint8)
    height, width = explanation.view.size
    return {
        **{name: getattr(line, name) for name in _OF_LINE},
        "path": line.image,
        "class_index": line.index,
        "heatmap": zlib.compress(levels.tobytes()),
        "heatmap_height": levels.shape[0],
        "heatmap_width": levels.shape[1],
        "heatmap_place": _describe_place(explanation),
        "image_width": width,
        "image_height": height,
        "warnings": [str(warning) for warning in line.warnings],
        "warning_codes": [*line.warning_codes],
        "box": None if line.box is None else [*line.box],
        "overlay": overlay,
    }


def _describe_place(explanation: Explanation) -> list[float] | None:
    geometry = explanation.geometry
    if geometry is None:
        return None
    centers = explanation.centers or CellCenters.stretch(explanation.raw.shape, geometry.size)
    # The centers may be in pixels of a larger input, of which the layer saw a reduced one.
    scales = [pixels / input_pixels for pixels, input_pixels in zip(geometry.size, centers.size, strict=True)]
    axes = [(scale * axis.offset, scale * axis.stride) for scale, axis in zip(scales, centers.axes, strict=True)]
    return [float(number) for number in (*geometry.box, *geometry.size, *axes[0], *axes[1])]


def _to_text(text: str) -> str:
    """Return a text as valid UTF-8: the name of a file may hold bytes that are not, and Parquet refuses them."""
    return text.encode("utf-8", "backslashreplace").decode()


def decode_heatmap(row: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Return the heatmap of a row at the layer's size, ``(h, w)`` float32 in [0, 1]."""
    shape = row["heatmap_height"], row["heatmap_width"]
    levels = np.frombuffer(zlib.decompress(row["heatmap"]), np.uint8).reshape(shape)
    heatmap: npt.NDArray[np.float32] = levels.astype(np.float32) / np.float32(255)
    return heatmap


def to_columns(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Return rows as column → values, with ``None`` for what a row leaves out."""
    listed = [*rows]
    return {name: [row.get(name) for row in listed] for name in COLUMNS}


def get_schema() -> Any:
    """Return the columns as a pyarrow schema.

    Raises:
        CamtoolError: pyarrow is not installed.
    """
    pa = import_library("pyarrow")
    lists = {"list<string>": pa.list_(pa.string()), "list<double>": pa.list_(pa.float64())}
    return pa.schema([(name, lists.get(kind, kind)) for name, kind in COLUMNS.items()])


def to_table(columns: Mapping[str, Any]) -> Any:
    """Return what :class:`ExplainBatch` returned as a pyarrow table with the right types, also if columns are all null.

    Raises:
        CamtoolError: pyarrow is not installed.
    """
    return import_library("pyarrow").table({name: list(columns[name]) for name in COLUMNS}, schema=get_schema())


def encode_parquet(columns: Mapping[str, Any], facts: Mapping[str, int]) -> bytes:
    """Return a Parquet file. The same columns give the same bytes.

    Args:
        columns: Column → values.
        facts: Numbers for the file's metadata, which a reader gets without reading the rows.

    Raises:
        CamtoolError: pyarrow is not installed.
    """
    pa, parquet = import_library("pyarrow"), import_library("pyarrow.parquet")
    table = to_table(columns).replace_schema_metadata({f"camtool.{name}": str(count) for name, count in facts.items()})
    stream = pa.BufferOutputStream()
    # Heatmaps are compressed already, and zstd costs little on them.
    parquet.write_table(table, stream, compression="zstd", row_group_size=_ROWS_IN_GROUP)
    return bytes(stream.getvalue().to_pybytes())
