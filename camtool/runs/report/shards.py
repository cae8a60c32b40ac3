"""Reading what a cluster run wrote: Parquet files with a row for each explanation and each failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from camtool.arguments.libraries import import_library
from camtool.arguments.regular_files import open_regular
from camtool.errors import CamtoolError, raise_interrupt
from camtool.runs.report.rows import ReportContents, ReportFailure, ReportRow, StoredHeatmap
from camtool.runs.report.run_folders import MAX_ROWS, build_row, describe_limit, read_number

_REQUIRED = ("path", "method", "label")
_ROWS_AT_A_TIME = 1024
_MAX_GROUP_BYTES = 2**29

_PLACE = 10
"""Numbers that say where a heatmap lies."""

# Column of a shard → field of explanations.jsonl; other columns have the field's name.
_NAMES = {"path": "image", "class_index": "index"}


def list_shards(path: Path) -> list[Path]:
    """Return the Parquet files at a path, in the order of their names: the file itself, or those in a folder."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    # Hidden files are unfinished ones, also to Spark and Ray.
    files = [file for file in sorted(path.rglob("*.parquet")) if file.is_file()]
    return [file for file in files if not any(part[0] in "._" for part in file.relative_to(path).parts)]


def read_shards(shards: Sequence[Path], *, max_rows: int = MAX_ROWS) -> ReportContents:
    """Read the rows of Parquet files.

    Args:
        shards: The files.
        max_rows: The number of explanations and failures to read at most.

    Raises:
        CamtoolError: pyarrow is not installed, or a file cannot be read, or is not a shard of a cluster run.
    """
    rows: list[ReportRow] = []
    failures: list[ReportFailure] = []
    count = 0
    for shard in shards:
        with _open_shard(shard) as file:
            count += file.metadata.num_rows
            for fields in _iterate_rows(file, max_rows - len(rows) - len(failures)):
                if fields.get("failure") is not None:
                    failures.append(ReportFailure(str(fields.get("path")), str(fields["failure"])))
                else:
                    rows.append(_build_row(fields, shard))
    shown = len(rows) + len(failures)
    return ReportContents(rows, failures, notices=[describe_limit(count, shown)] if count > shown else [])


@contextmanager
def _open_shard(path: Path) -> Iterator[Any]:
    """Open a Parquet file for the block, and check that it has the columns of a cluster run.

    Raises:
        CamtoolError: It has not, cannot be read, or the block meets damaged data.
    """
    for module in ("pyarrow", "pyarrow.parquet"):
        import_library(module, "Reading Parquet files needs pyarrow", "'camtool[parquet]'")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with open_regular(path) as stream:
            file = ParquetFile(stream)
            missing = [name for name in _REQUIRED if name not in file.schema_arrow.names]
            if missing:
                absent = ", ".join(missing)
                raise CamtoolError(f"{str(path)!r} is not a shard of a cluster run: it has no column {absent}.")
            sizes = [file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups)]
            if max(sizes, default=0) > _MAX_GROUP_BYTES:
                raise CamtoolError(
                    f"{str(path)!r} is too large to read: {_MAX_GROUP_BYTES:,} bytes of a row group are allowed; write "
                    "it with smaller row groups."
                )
            yield file
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise_interrupt(error)
        raise CamtoolError(f"{str(path)!r} is not a Parquet file, or is damaged: {error}") from error


def _iterate_rows(file: Any, count: int) -> Iterator[Mapping[str, Any]]:
    """Yield up to ``count`` rows of a file, and hold a part of them in memory."""
    if count <= 0:
        return
    for batch in file.iter_batches(batch_size=min(_ROWS_AT_A_TIME, count)):
        for fields in batch.to_pylist()[:count]:
            count -= 1
            yield fields
        if count <= 0:
            return


def _build_row(fields: Mapping[str, Any], shard: Path) -> ReportRow:
    overlay = fields.get("overlay")
    line = {_NAMES.get(name, name): value for name, value in fields.items()}
    line["files"] = {} if overlay is None else {"overlay": overlay}
    row = build_row(line, shard.parent)
    if row is None:
        raise CamtoolError(f"{str(shard)!r} is not a shard of a cluster run: a row has no path or no method.")
    return row if row.pictures else _add_heatmap(row, fields)


def _add_heatmap(row: ReportRow, fields: Mapping[str, Any]) -> ReportRow:
    from dataclasses import replace

    data, height, width = (fields.get(name) for name in ("heatmap", "heatmap_height", "heatmap_width"))
    if not isinstance(data, bytes) or not isinstance(height, int) or not isinstance(width, int):
        return row
    numbers = fields.get("heatmap_place")
    known = [read_number(entry) for entry in numbers] if isinstance(numbers, list) else []
    place = tuple(number for number in known if number is not None)
    rows, columns = fields.get("image_height"), fields.get("image_width")
    stored = StoredHeatmap(data, height, width)
    if len(place) == _PLACE and isinstance(rows, int) and isinstance(columns, int) and min(rows, columns) > 0:
        stored = replace(stored, place=place, photo_size=(rows, columns))
    return replace(row, heatmap=stored)
