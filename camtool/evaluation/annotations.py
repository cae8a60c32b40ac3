"""Annotations of photos: the class, columns of metadata, and the object as a mask, boxes or a region.

Objects are placed in the model's input. On disk they are a folder of masks or a table of boxes, and classes are folders
named by class.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.arguments.message_parts import add_article, format_count, suggest_names
from camtool.arguments.regular_files import read_regular
from camtool.errors import MetricError, RaiseAs
from camtool.geometry.crop_and_resize import Geometry
from camtool.inputs.formats.dicom import TAGS, read_tags
from camtool.inputs.image_files import read_image
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.rendering import regions as drawing
from camtool.runs.job_list import Plan
from camtool.runs.photo_tables import match_masks, match_photos

# A part of a photo: a name or box in text as for :meth:`camtool.Explanation.heat_in`; a box ``(x0, y0, x1, y1)`` in
# pixels, half-open; two slices, of rows and of columns; or a mask ``(H, W)`` of the photo's size, not 0 in the region,
# or a :class:`~pathlib.Path` of an image of that size, not black in it.
Region: TypeAlias = "str | Sequence[float] | Sequence[slice] | NDArray[Any] | Tensor | Path"

_COLUMNS = ("image", "x0", "y0", "x1", "y1")

_WORDNET_ID = re.compile(r"n\d{8}")


@dataclass(frozen=True, eq=False)
class InputTruth:
    """The objects in the inputs of the model.

    Attributes:
        masks: ``(N, H, W)``, boolean.
        boxes: For each input ``(B, 4)``: ``x0, y0, x1, y1`` in pixels of the input.
    """

    masks: Tensor
    boxes: list[Tensor]


def place_truth(
    truth: Sequence[Any] | None, items: Sequence[PreparedInput], places: Sequence[int]
) -> InputTruth | None:
    """Return the objects in the inputs, from annotations of the photos; None without any.

    Args:
        truth: For each photo of the user a boolean mask ``(H, W)`` of its size, or boxes ``(B, 4)`` in its pixels.
        items: The prepared photos, all or some.
        places: Their places among those of the user.

    Raises:
        MetricError: An annotation is none of these, or nothing of an object is in the model's input.
    """
    if truth is None:
        return None
    masks, boxes = [], []
    for index, item in zip(places, items, strict=True):
        mask, own = _place_one(np.asarray(truth[index]), item, index)
        if not mask.any():
            raise MetricError(
                f"truth[{index}] is outside of what the model sees of the photo; leave this photo out, or use a "
                "transform that does not crop it away."
            )
        masks.append(mask)
        boxes.append(own)
    return InputTruth(torch.stack(masks), boxes)


def _place_one(given: NDArray[Any], item: PreparedInput, index: int) -> tuple[Tensor, Tensor]:
    geometry, size = item.geometry, (item.tensor.shape[-2], item.tensor.shape[-1])
    if given.dtype == np.bool_ and given.shape == geometry.photo:
        mask = geometry.to_input_mask(torch.from_numpy(given).float(), size) > 0.5
        return mask, _find_box(mask)
    if given.dtype != np.bool_ and given.ndim == 2 and given.shape[1:] == (4,):
        boxes = torch.tensor(
            [_clip(geometry.to_input_box((x0, y0, x1, y1)), geometry) for x0, y0, x1, y1 in given], device="cpu"
        )
        return _fill_boxes(boxes, size), boxes
    raise MetricError(
        f"truth[{index}] must be a boolean mask {geometry.photo} of the photo's size, or boxes (B, 4) of x0, y0, x1, "
        f"y1 in its pixels; got {given.dtype} {given.shape}."
    )


def _clip(box: tuple[float, float, float, float], geometry: Geometry) -> tuple[float, ...]:
    height, width = geometry.size
    return tuple(min(max(edge, 0.0), limit) for edge, limit in zip(box, (width, height, width, height), strict=True))


def _fill_boxes(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the mask ``(H, W)`` of the pixels whose centers are in any of the boxes."""
    y, x = (torch.arange(length, device="cpu") + 0.5 for length in size)
    left, top, right, bottom = boxes.T[..., None, None]
    inside: Tensor = (x >= left) & (x < right) & (y[:, None] >= top) & (y[:, None] < bottom)
    return inside.any(0)


def _find_box(mask: Tensor) -> Tensor:
    """Return the box around a mask, ``(1, 4)``; no box for an empty one."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    if not len(rows):
        return torch.zeros(0, 4, device="cpu")
    return torch.tensor([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], device="cpu").float()


def read_masks(folder: Path, plan: Plan, photos: Sequence[Path]) -> list[NDArray[np.bool_]]:
    """Return the mask of each photo, ``(H, W)``: an image named as the photo, not black where the object is.

    Args:
        folder: The folder of the masks.
        plan: All photos of the user, among which names are looked for.
        photos: Those of them that are asked for.

    Raises:
        CamtoolError: A photo has no mask, or more than one, or a mask fits several photos.
    """
    files = match_masks(folder, plan, f"truth: {folder}")
    lacking = [photo for photo in photos if photo not in files]
    if lacking:
        raise MetricError(f"truth: {lacking[0]} has no mask in {folder}; give one image named {lacking[0].stem}.png.")
    return [np.asarray(read_image(files[photo])).max(2) > 0 for photo in photos]


def read_boxes(path: Path, plan: Plan, photos: Sequence[Path]) -> list[NDArray[np.float64]]:
    """Return the boxes of each photo, ``(B, 4)``, from a table with the columns image, x0, y0, x1, y1 in pixels.

    Args:
        path: The table; its photos are found as in :func:`camtool.runs.photo_tables.read_truth_table`.
        plan: All photos of the user, among which names are looked for.
        photos: Those of them that are asked for.

    Raises:
        CamtoolError: A column is missing, an entry is no number, a name is that of several photos, or a photo has no
            box.
    """
    try:
        text = read_regular(path).decode("utf-8-sig")
        rows = [*_iterate_boxes(csv.DictReader(StringIO(text, newline="")), path)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise MetricError(f"truth: {path} is no text; give a CSV file with columns {', '.join(_COLUMNS)}.") from error
    boxes: dict[Path | str | None, list[list[float]]] = {}
    for photo, (_, box) in zip(match_photos(plan, [name for name, _ in rows], f"truth: {path}"), rows, strict=True):
        boxes.setdefault(photo, []).append(box)
    lacking = [photo.name for photo in photos if photo not in boxes]
    if lacking:
        raise MetricError(
            f"truth: {path} has no box for {lacking[0]}; add one, or leave the photo out. The column image holds paths "
            "relative to the folder of the photos, or file names."
        )
    return [np.asarray(boxes[photo]) for photo in photos]


def _iterate_boxes(reader: csv.DictReader[str], path: Path) -> Iterator[tuple[str, list[float]]]:
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise MetricError(f"truth: {path} has no column {missing[0]!r}; it needs {', '.join(_COLUMNS)}.")
    for row in reader:
        yield row["image"] or "", _read_box(row, f"line {reader.line_num} of {path}")


def _read_box(row: dict[str, str], place: str) -> list[float]:
    with RaiseAs(lambda error: MetricError(f"truth: {place} holds no box: {error}."), TypeError, ValueError):
        return [float(row[name]) for name in _COLUMNS[1:]]


def find_classes(
    photos: Sequence[Path], labels: Sequence[str] | None, root: Path, class_count: int | None = None
) -> list[int]:
    """Return the class of each photo, by the name of the folder in ``root`` that holds it: a label, or an index.

    Without labels the folders in alphabetical order are the classes 0, 1, 2, as in torchvision's ``ImageFolder``. With
    labels that holds for WordNet's ids alone, as ``n01440764``, which number ImageNet's classes in this order.

    Args:
        photos: The photos of all classes.
        labels: The names of the classes.
        root: The folder with a folder for each class.
        class_count: The number of classes, if it is known without the names.

    Raises:
        MetricError: A photo is in none of the folders, or they are not the model's classes.
    """
    stray = next((photo for photo in photos if photo.parent == root), None)
    if stray is not None:
        raise MetricError(
            f"truth: {stray} is in {root} itself, which is no class; move it into a folder named by its class, or give "
            "the folder above, that of all classes."
        )
    folders = [photo.relative_to(root).parts[0] for photo in photos]
    names, tables = sorted({*folders}), _index_names(labels)
    by_name = {name: index for name in names if (index := _find_folder(name, tables)) is not None}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        _check_order(unknown[0], names, labels, root, class_count)
    return [names.index(name) if unknown else by_name[name] for name in folders]


def _check_order(
    unknown: str, names: Sequence[str], labels: Sequence[str] | None, root: Path, class_count: int | None
) -> None:
    """Check that folders of which one is no class may be numbered in alphabetical order.

    Raises:
        MetricError: They may not.
    """
    have_wordnet_ids = all(map(_WORDNET_ID.fullmatch, names))
    if labels is not None and not (have_wordnet_ids and len(labels) == len(names)):
        raise MetricError(
            f"truth: folder {unknown!r} is no label of the model; name the folders by label or by "
            f"index.{suggest_names(unknown, labels)}"
        )
    if class_count not in (None, len(names)):
        raise MetricError(
            f"truth: {root} has {format_count(len(names), 'folder')} with photos, and the model {class_count} "
            "classes without names; name the folders by index, or give the names with --labels FILE."
        )


def _find_folder(name: str, tables: Sequence[Mapping[str, list[int]]]) -> int | None:
    index = _find_named(name, tables, "truth: folder")
    return int(name) if index is None and name.isdecimal() else index


def find_targets(
    labels: Sequence[Any] | None, names: Sequence[str] | None, count: int
) -> tuple[list[tuple[int, ...]] | None, bool]:
    """Return the indices of the classes of each image, None without labels; and True if sets of labels were given.

    Raises:
        MetricError: There are more or fewer labels than images, or one is no class of the model, or names several.
    """
    if not count:
        raise MetricError("images is empty; give 16 or more of each of two classes.")
    if labels is None:
        return None, False
    check_length("labels", labels, count)
    tables = _index_names(names)
    several = [isinstance(label, (list, tuple, set, frozenset)) for label in labels]
    targets = []
    for label, is_set in zip(labels, several, strict=True):
        own = {_find_index(each, names, tables) for each in (label if is_set else (label,))}
        targets.append(tuple(sorted(own)))
    return targets, any(several)


def _find_index(label: Any, names: Sequence[str] | None, tables: Sequence[Mapping[str, list[int]]]) -> int:
    index = _find_named(label, tables, "labels:") if isinstance(label, str) else None
    with suppress(TypeError, ValueError):  # e.g. None or NaN
        index = int(label) if not isinstance(label, str) and int(label) == label else index
    if index is None and isinstance(label, str) and not names:
        raise MetricError(f"labels: {label!r} is a name; give class_names, or labels by index.")
    if index is None or index < 0:
        raise MetricError(f"labels: {label!r} is no class of the model.{suggest_names(str(label), names or ())}")
    return index


def _index_names(names: Sequence[str] | None) -> list[dict[str, list[int]]]:
    """Return name → classes twice: as the names are written, and without the difference of upper and lower case."""
    tables: list[dict[str, list[int]]] = [{}, {}]
    for index, name in enumerate(names or ()):
        text = str(name).strip()
        for table, key in zip(tables, (text, text.casefold()), strict=True):
            table.setdefault(key, []).append(index)
    return tables


def _find_named(name: str, tables: Sequence[Mapping[str, list[int]]], place: str) -> int | None:
    """Return the class of this name; upper and lower case matter only where they tell classes apart."""
    exact, folded = tables
    indices = exact.get(name.strip()) or folded.get(name.strip().casefold(), [])
    if len(indices) > 1:
        listed = " and ".join(map(str, indices))
        raise MetricError(f"{place} {name!r} is the name of the classes {listed}; give one of these indices instead.")
    return indices[0] if indices else None


def check_targets(targets: Sequence[tuple[int, ...]] | None, count: int) -> None:
    """Check that the model has the classes.

    Raises:
        MetricError: It has fewer.
    """
    highest = max((target for own in targets or () for target in own), default=0)
    if highest >= count:
        raise MetricError(f"labels: {highest} is no class of the model, which has the classes 0 to {count - 1}.")


def read_columns(images: Sequence[Any] | Tensor, metadata: Any) -> dict[str, list[Any]]:
    """Return the tags of DICOM files that some of the images have, and the metadata, as columns.

    A tag is None where an image has none. A column of the metadata stands before a tag of its name.

    Raises:
        MetricError: A column has another length.
    """
    tags = [read_tags(Path(image)) if isinstance(image, (str, os.PathLike)) else {} for image in images]
    columns = {name: [row.get(name) for row in tags] for name in TAGS if any(name in row for row in tags)}
    for name in () if metadata is None else metadata:
        columns[str(name)] = [*metadata[name]]
        check_length(f"metadata[{str(name)!r}]", columns[str(name)], len(images))
    return columns


def check_length(name: str, values: Any, count: int) -> None:
    """Check that there is one value for each image.

    Raises:
        MetricError: There are more or fewer, or the values are no list.
    """
    if not hasattr(values, "__len__"):
        given = add_article(type(values).__name__)
        raise MetricError(f"{name} must be a list with an entry for each image, got {given}.")
    if len(values) != count:
        raise MetricError(f"{name} has {len(values)} entries for {count} images; give one for each.")


def is_missing(value: Any) -> bool:
    """Return True for a cell of a table without a value: ``None``, NaN, or the NA and NaT of pandas."""
    is_itself = value == value
    return value is None or not isinstance(is_itself, (bool, np.bool_)) or not is_itself


def match_regions(name: str, regions: Any, count: int) -> list[tuple[str, Any]]:
    """Return a region for each image, with what a message calls it."""
    is_one = isinstance(regions, str) or _is_box(regions) or _is_slices(regions) or getattr(regions, "ndim", 0) == 2
    if is_one:
        return [(name, regions)] * count
    if not hasattr(regions, "__len__") or len(regions) != count:
        given = f"{len(regions)}" if hasattr(regions, "__len__") else type(regions).__name__
        raise MetricError(f"{name} must be one region, or one for each of the {count} images; got {given}.")
    return [(f"{name}[{index}]", region) for index, region in enumerate(regions)]


def _is_box(region: Any) -> bool:
    is_row = isinstance(region, (tuple, list)) or getattr(region, "ndim", 0) == 1
    return is_row and len(region) == 4 and all(isinstance(edge, Real) for edge in region)


def _is_slices(region: Any) -> bool:
    return isinstance(region, tuple) and len(region) == 2 and all(isinstance(part, slice) for part in region)


def read_region(name: str, region: Any, size: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return a :data:`Region` as a mask of a photo's size.

    Args:
        name: What messages call it.
        region: The region.
        size: Height and width.

    Raises:
        CamtoolError: A mask has another size, a text names no region, or a file cannot be read.
    """
    if isinstance(region, str) or _is_box(region):
        text = region if isinstance(region, str) else ",".join(f"{number}" for number in region)
        return drawing.PhotoRegion.parse(text).to_mask(size[0], size[1])
    if _is_slices(region):
        mask = np.zeros(size, bool)
        mask[region] = True
        return mask
    if isinstance(region, Path):
        region = np.asarray(read_image(region)).max(2)
    values = np.asarray(region.cpu() if isinstance(region, Tensor) else region)
    if values.shape != size or values.dtype.kind not in "buif":
        raise MetricError(f"{name} must be {size}, as large as its photo, got {values.dtype} {values.shape}.")
    return np.asarray(values != 0, np.bool_)
