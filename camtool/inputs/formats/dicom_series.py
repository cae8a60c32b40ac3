"""DICOM series: the slices of a folder as one volume, in the order in which they lie in the patient."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.regular_files import name_file_in_errors
from camtool.errors import Forgive, ImageError
from camtool.inputs.formats import dicom
from camtool.inputs.formats.decoding import name_in_errors
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.formats.reading_options import ReadingOptions
from camtool.warning_codes import MapWarning

_HEADER_BYTES = 132
# Largest difference of the direction cosines of two slices: scanners round them.
_PARALLEL = 1e-3
# Largest relative difference of the distances between neighboring slices.
_UNEVEN = 0.01


@dataclass(frozen=True)
class _Slice:
    """One file of a series."""

    path: Path
    series: str
    size: tuple[int, int, int]
    value_bytes: int
    cosines: NDArray[np.float64]
    position: NDArray[np.float64]


def list_dicom_files(folder: Path) -> list[Path]:
    """Return the DICOM files in a folder that are not hidden, by name; subfolders are not searched."""
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and _holds_dicom(path)]


def holds_dicom(path: Path) -> bool:
    """Return True if a file is a DICOM file; False for one that cannot be read."""
    with Forgive(ImageError):
        return _holds_dicom(path)
    return False


def are_of_one_series(first: Path, second: Path) -> bool:
    """Return True if two DICOM files are slices of one series; False if they do not say so, or cannot be read."""
    with Forgive(ImageError, OSError):
        here, there = (_read_place(path, ReadingOptions()) for path in (first, second))
        return here.series == there.series and here.size == there.size
    return False


def read_series(folder: Path, options: ReadingOptions) -> FileImage:
    """Read the slices of a folder as a volume, or one of them.

    The slices are sorted by their position along the normal of their plane, from low to high, not by name.

    Raises:
        ImageError: A slice cannot be read; there are several series, or slices that are not parallel, of another size,
            or at the same position; or the files do not say where they lie.
    """
    name = str(folder)
    dicom.check_options(name, options)
    slices = [_read_place(path, options) for path in list_dicom_files(folder) if path.name != "DICOMDIR"]
    _check_alike(name, slices)
    normal = np.cross(slices[0].cosines[:3], slices[0].cosines[3:])
    positions = np.array([float(dicom_slice.position @ normal) for dicom_slice in slices])
    order = np.argsort(positions, kind="stable")
    gaps = np.diff(positions[order])
    _check_gaps(name, [slices[index] for index in order], gaps)
    chosen = options.choose_slice(name, len(slices))
    wanted = [slices[index] for index in (order if chosen is None else order[chosen : chosen + 1])]
    height, width, samples = slices[0].size
    options.check_size(name, height, width, len(wanted) * samples, max(header.value_bytes for header in wanted))
    return _read_slices(name, wanted, gaps, options)


def _read_slices(name: str, wanted: list[_Slice], gaps: NDArray[np.float64], options: ReadingOptions) -> FileImage:
    parts: list[tuple[Any, Any]] = []
    kinds = set()
    for dicom_slice in wanted:
        with dicom_slice.path.open("rb") as stream:
            dataset = dicom.open_dataset(stream, str(dicom_slice.path))
        with name_in_errors(str(dicom_slice.path), "DICOM"):
            (pixels,), photometric = dicom.decode_frames(dataset, str(dicom_slice.path), [0])
        kinds.add(photometric)
        parts.append((pixels, dataset))
    if len(kinds) > 1:
        raise ImageError(f"{name}: the slices have several photometric interpretations, {', '.join(sorted(kinds))}.")
    distance = float(np.median(gaps)) if len(gaps) else None
    notes = () if len(wanted) == 1 else _describe_gaps(gaps)
    with name_in_errors(name, "a DICOM series"):
        return dicom.build_file_image(parts, kinds.pop(), name, options, slices="slices", notes=notes, spacing=distance)


def _holds_dicom(path: Path) -> bool:
    if not path.is_file():
        return False
    with name_file_in_errors(path, ImageError), path.open("rb") as stream:
        return dicom.is_dicom(stream.read(_HEADER_BYTES))


def _read_place(path: Path, options: ReadingOptions) -> _Slice:
    """Read where a slice lies, without its pixels."""
    name = str(path)
    with path.open("rb") as stream:
        dataset = dicom.open_dataset(stream, name, has_pixels=False)
    with name_in_errors(name, "DICOM"):
        if int(dataset.get("NumberOfFrames", None) or 1) > 1:
            raise ImageError(f"{name} holds several frames; give the file instead of its folder.")
        cosines, position = dataset.get("ImageOrientationPatient", None), dataset.get("ImagePositionPatient", None)
        if not cosines or not position or len(cosines) != 6 or len(position) != 3:
            raise ImageError(
                f"{name} does not say where it lies in the patient (ImagePositionPatient, ImageOrientationPatient), so "
                "the order of the slices is unknown; give its path instead of its folder."
            )
        size = int(dataset.Rows), int(dataset.Columns), int(dataset.SamplesPerPixel)
        where = np.array([float(number) for number in position])
        series, needed = str(dataset.get("SeriesInstanceUID", "")), dicom.count_value_bytes(dataset, options)
        return _Slice(path, series, size, needed, np.array([float(x) for x in cosines]), where)


def _check_alike(name: str, slices: list[_Slice]) -> None:
    """Check that slices are one stack.

    Raises:
        ImageError: They are not.
    """
    series = sorted({dicom_slice.series for dicom_slice in slices})
    if len(series) > 1:
        raise ImageError(
            f"{name} holds {len(series)} DICOM series, and a volume is one; move each to a folder of its own: "
            f"{', '.join(series[:3])}{', ...' if len(series) > 3 else ''}."
        )
    first = slices[0]
    for dicom_slice in slices:
        if dicom_slice.size != first.size:
            raise ImageError(
                f"{dicom_slice.path} has {dicom_slice.size[1]} x {dicom_slice.size[0]} pixels, unlike {first.path}."
            )
        if np.abs(dicom_slice.cosines - first.cosines).max() > _PARALLEL:
            raise ImageError(
                f"{dicom_slice.path} is not parallel to {first.path}, so they are no volume; e.g. a localizer."
            )


def _check_gaps(name: str, ordered: list[_Slice], gaps: NDArray[np.float64]) -> None:
    """Check that no two slices lie at the same position, as those of several times or contrasts do."""
    scale = float(np.median(np.abs(gaps))) if len(gaps) else 0.0
    for gap, first, second in zip(gaps, ordered, ordered[1:], strict=False):
        if gap <= _UNEVEN * scale or gap == 0:
            raise ImageError(
                f"{name}: {first.path.name} and {second.path.name} lie at the same position; a volume has one slice at "
                "each. Several times or contrasts need a folder each."
            )


def _describe_gaps(gaps: NDArray[np.float64]) -> tuple[MapWarning, ...]:
    usual = float(np.median(gaps))
    if np.abs(gaps - usual).max() <= _UNEVEN * usual:
        return ()
    note = (
        f"The slices lie {gaps.min():.3g} to {gaps.max():.3g} mm apart, mostly {usual:.3g} mm; one may be missing, and "
        "the model sees them as if they were equally far apart."
    )
    return (MapWarning(note, "uneven-slices"),)
