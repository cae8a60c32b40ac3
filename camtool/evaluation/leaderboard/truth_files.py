"""Annotations on disk: a folder of masks, a table of boxes, or folders named by class."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.regular_files import read_regular
from camtool.errors import MetricError
from camtool.inputs.image_files import read_image

_COLUMNS = ("image", "x0", "y0", "x1", "y1")


def read_masks(folder: Path, photos: Sequence[Path]) -> list[NDArray[np.bool_]]:
    """Return the mask of each photo, ``(H, W)``: an image of the same name and size, not black where the object is.

    Raises:
        MetricError: A photo has no mask, or more than one.
    """
    by_stem: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        by_stem.setdefault(path.stem, []).append(path)
    masks = []
    for photo in photos:
        found = by_stem.get(photo.stem, [])
        if len(found) != 1:
            came = "has no mask" if not found else f"has {len(found)} masks"
            raise MetricError(f"truth: {photo.name} {came} in {folder}; give one image named {photo.stem}.png.")
        masks.append(np.asarray(read_image(found[0])).max(2) > 0)
    return masks


def read_boxes(path: Path, photos: Sequence[Path]) -> list[NDArray[np.float64]]:
    """Return the boxes of each photo, ``(B, 4)``, from a table with the columns image, x0, y0, x1, y1 in pixels.

    Raises:
        MetricError: A column is missing, an entry is no number, or a photo has no box.
    """
    by_name: dict[str, list[list[float]]] = {}
    try:
        text = read_regular(path).decode("utf-8-sig")
        for name, box in _iterate_boxes(csv.DictReader(StringIO(text, newline="")), path):
            by_name.setdefault(name, []).append(box)
    except (UnicodeDecodeError, csv.Error) as error:
        raise MetricError(
            f"truth: {path} is no text; give a CSV file with the columns {', '.join(_COLUMNS)}."
        ) from error
    lacking = [photo.name for photo in photos if photo.name not in by_name]
    if lacking:
        raise MetricError(f"truth: {path} has no box for {lacking[0]}; add one, or leave the photo out.")
    return [np.asarray(by_name[photo.name]) for photo in photos]


def _iterate_boxes(reader: csv.DictReader[str], path: Path) -> Iterator[tuple[str, list[float]]]:
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise MetricError(f"truth: {path} has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}.")
    for row in reader:
        yield Path(row["image"] or "").name, _read_box(row, f"line {reader.line_num} of {path}")


def _read_box(row: dict[str, str], place: str) -> list[float]:
    try:
        return [float(row[name]) for name in _COLUMNS[1:]]
    except (TypeError, ValueError) as error:
        raise MetricError(f"truth: {place} holds no box: {error}.") from error


def find_classes(photos: Sequence[Path], labels: Sequence[str] | None) -> list[Any]:
    """Return the class of each photo, by the name of its folder: a label, or an index.

    Without labels the folders in alphabetical order are the classes 0, 1, 2, as in torchvision's ``ImageFolder``.

    Raises:
        MetricError: The folders are not the model's classes.
    """
    names = sorted({photo.parent.name for photo in photos})
    known = {label.strip().lower(): index for index, label in reversed([*enumerate(labels or ())])}
    if all(name.lower() in known for name in names):
        return [known[photo.parent.name.lower()] for photo in photos]
    if all(name.isdecimal() for name in names):
        return [int(photo.parent.name) for photo in photos]
    if labels is not None and len(labels) != len(names):
        unknown = next(name for name in names if name.lower() not in known)
        raise MetricError(
            f"truth: folder {unknown!r} is no label of the model, and the {len(names)} folders are not its "
            f"{len(labels)} classes; name the folders by label or by index."
        )
    return [names.index(photo.parent.name) for photo in photos]
