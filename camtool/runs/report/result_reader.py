"""Reading what a run wrote: ``explanations.jsonl``, ``failures.jsonl`` and ``run.json``, or the Parquet of a cluster.

The shards of a cluster have a row for each explanation and each failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from camtool.arguments.libraries import import_library
from camtool.arguments.message_parts import format_count
from camtool.arguments.regular_files import iterate_lines, open_regular, read_regular
from camtool.errors import CamtoolError, RaiseAs
from camtool.rendering.written_files import resolve
from camtool.runs.file_names import is_inside
from camtool.runs.report.columns import ReportContents, ReportFailure, ReportRow, RowWarning, StoredHeatmap
from camtool.runs.run_folder.description import DESCRIPTION
from camtool.runs.run_folder.photo_records import FAILURES
from camtool.runs.stored_files import MANIFEST, parse_object

# Explanations on one page. A browser opens so many in seconds; of more, the first are shown, and the page says so.
MAX_ROWS = 100_000

# A row of a report shows pictures alone; the other files of a run are arrays.
_PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})

_Built = TypeVar("_Built")


def read_run_folder(folder: Path, *, max_rows: int = MAX_ROWS) -> ReportContents:
    """Read the results of a run. Fields that the run did not store may be absent.

    Args:
        folder: The output folder of the run.
        max_rows: The number of explanations, and of failures, to read at most.

    Raises:
        CamtoolError: A file is no regular one, or a line is too long.
        OSError: A file cannot be read.
    """
    rows, count, damaged = _read_lines(folder / MANIFEST, lambda fields: build_row(fields, folder), max_rows)
    failures, _, damaged_failures = _read_lines(folder / FAILURES, _build_failure, max_rows)
    notices = [describe_limit(count, max_rows)] if count > max_rows else []
    if damaged or damaged_failures:
        notices.append(f"{format_count(damaged + damaged_failures, 'line')} of the run's files cannot be read.")
    return ReportContents(rows, failures, read_run_description(folder), notices)


def read_run_description(folder: Path) -> dict[str, Any]:
    """Return what made the results, from ``run.json``; nothing if there is no such file or it is damaged."""
    path = folder / DESCRIPTION
    return (_parse_object(read_regular(path)) or {}) if path.is_file() else {}


def describe_limit(count: int, shown: int) -> str:
    """Return the sentence about explanations that the page leaves out."""
    return f"The page shows the first {shown:,} of {count:,} explanations."


def build_row(fields: Mapping[str, Any], folder: Path) -> ReportRow | None:
    """Return the row of a line of ``explanations.jsonl``; None if it names no photo or no method.

    Args:
        fields: The fields of the line.
        folder: The folder that its files are relative to. Files outside it are left out.
    """
    if not (fields.get("image") and fields.get("method")):
        return None
    index, correct = fields.get("index"), fields.get("correct")
    numbers: Any = {name: read_number(fields.get(name)) for name in ("score", "probability", "sufficient")}
    texts: Any = {name: _read_text(fields, name) for name in ("predicted_label", "true_label", "sufficient_text")}
    return ReportRow(
        image=str(fields["image"]),
        method=str(fields["method"]),
        layer=_read_text(fields, "layer") or "",
        label=_read_text(fields, "label") or "",
        index=index if isinstance(index, int) else None,
        correct=correct if isinstance(correct, bool) else None,
        warnings=_read_warnings(fields),
        box=_read_numbers(fields, "box", 4),
        pictures=_find_pictures(fields.get("files"), folder),
        heat_in=_read_shares(fields.get("heat_in")),
        **numbers,
        **texts,
    )


def read_number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A whole number may be too large for a float, and NaN is in no range.
    return float(value) if is_number and abs(value) <= sys.float_info.max else None  # type: ignore[arg-type]


def _read_lines(
    path: Path, build: Callable[[dict[str, Any]], _Built | None], most: int
) -> tuple[list[_Built], int, int]:
    """Return what the first lines of a file hold, how many there are, and how many others cannot be read."""
    built, count, damaged = [], 0, 0
    for fields in (_parse_object(line) for line in iterate_lines(path) if line.strip()):
        row = None if fields is None else build(fields)
        if row is None:
            damaged += 1
            continue
        count += 1
        if count <= most:
            built.append(row)
    return built, count, damaged


def _parse_object(text: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None if the text is something else."""
    with suppress(ValueError):
        return parse_object(text, is_finite=False)
    return None


def _build_failure(fields: dict[str, Any]) -> ReportFailure | None:
    image, reason = _read_text(fields, "image"), _read_text(fields, "reason")
    return ReportFailure(image, reason or "") if image else None


def _read_text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else str(value)


def _read_list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    return value if isinstance(value, list) else []


def _read_warnings(fields: Mapping[str, Any]) -> tuple[RowWarning, ...]:
    """Return the warnings, with their codes if there is one for each."""
    texts, codes = _read_list(fields, "warnings"), _read_list(fields, "warning_codes")
    given = codes if len(codes) == len(texts) else [None] * len(texts)
    return tuple(RowWarning(str(text), code if code is None else str(code)) for text, code in zip(texts, given))  # noqa: B905


def _read_numbers(fields: Mapping[str, Any], name: str, count: int) -> tuple[float, ...] | None:
    """Return a list of so many numbers; None for anything else."""
    entries = _read_list(fields, name)
    numbers = tuple(number for number in map(read_number, entries) if number is not None)
    return numbers if len(numbers) == len(entries) == count else None


def _read_shares(value: object) -> dict[str, float]:
    """Return the share of the heat in each region that has one."""
    numbers = {str(name): read_number(entry) for name, entry in (value.items() if isinstance(value, dict) else ())}
    return {name: number for name, number in numbers.items() if number is not None}


def _find_pictures(files: object, folder: Path) -> dict[str, Path]:
    """Return kind → path of the pictures among the files that lie in the folder."""
    named = files if isinstance(files, dict) else {}
    paths = {str(kind): folder / str(file) for kind, file in named.items() if is_inside(str(file))}
    root = resolve(folder)
    return {
        kind: path
        for kind, path in paths.items()
        # In a folder from somebody else, a path may lead anywhere.
        if path.suffix.lower() in _PICTURE_SUFFIXES and resolve(path).is_relative_to(root)
    }


_REQUIRED = ("path", "method", "label")
_ROWS_AT_A_TIME = 1024
_MAX_GROUP_BYTES = 2**29

# Numbers that say where a heatmap lies.
_PLACE = 10

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

    faults = ArrowException, OSError, UnicodeDecodeError
    text = f"{str(path)!r} is not a Parquet file, or is damaged"
    with RaiseAs(lambda error: CamtoolError(f"{text}: {error}"), *faults), open_regular(path) as stream:
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


def _iterate_rows(file: Any, count: int) -> Iterator[Mapping[str, Any]]:
    """Return up to ``count`` rows of a file, of which a part is in memory at a time."""
    batches = file.iter_batches(batch_size=min(_ROWS_AT_A_TIME, max(1, count)))
    return islice((fields for batch in batches for fields in batch.to_pylist()), max(0, count))


def _build_row(fields: Mapping[str, Any], shard: Path) -> ReportRow:
    overlay = fields.get("overlay")
    line = {_NAMES.get(name, name): value for name, value in fields.items()}
    line["files"] = {} if overlay is None else {"overlay": overlay}
    row = build_row(line, shard.parent)
    if row is None:
        raise CamtoolError(f"{str(shard)!r} is not a shard of a cluster run: a row has no path or no method.")
    return row if row.pictures else _add_heatmap(row, fields)


def _add_heatmap(row: ReportRow, fields: Mapping[str, Any]) -> ReportRow:
    data, height, width = (fields.get(name) for name in ("heatmap", "heatmap_height", "heatmap_width"))
    if not isinstance(data, bytes) or not isinstance(height, int) or not isinstance(width, int):
        return row
    place = _read_numbers(fields, "heatmap_place", _PLACE)
    rows, columns = fields.get("image_height"), fields.get("image_width")
    stored = StoredHeatmap(data, height, width)
    if place is not None and isinstance(rows, int) and isinstance(columns, int) and min(rows, columns) > 0:
        stored = replace(stored, place=place, photo_size=(rows, columns))
    return replace(row, heatmap=stored)
