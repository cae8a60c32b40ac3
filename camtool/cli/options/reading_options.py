"""Options that choose what is read of a photo: bands, contrast, slice, frame, and the largest size."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import typer

from camtool.errors import CamtoolError

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "Axis",
    "AxisOption",
    "Bands",
    "Frame",
    "MaxPixels",
    "Percentiles",
    "Slice",
    "Volume",
    "Window",
    "parse_reading_options",
]


class Axis(str, Enum):
    """Direction of the slices of a NIfTI volume."""

    axial = "axial"
    coronal = "coronal"
    sagittal = "sagittal"
    ras = "ras"


_READING_PANEL = "DICOM, NIfTI, GeoTIFF, microscopy"


def _describe_reading(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_READING_PANEL)


Bands = Annotated[str | None, _describe_reading("N,N,N", "Bands, from 1, e.g. 4,3,2 for red, green and blue.")]
Window = Annotated[str | None, _describe_reading("CENTER,WIDTH", "Values from black to white, e.g. 40,400.")]
Percentiles = Annotated[str | None, _describe_reading("LOW,HIGH", "The same as percentiles of each band, e.g. 2,98.")]
Slice = Annotated[str | None, _describe_reading("N", "Slice, page or DICOM frame, from 0, or 'middle'.")]
Frame = Annotated[int | None, _describe_reading("N", "Time step, from 0.")]
AxisOption = Annotated[Axis | None, _describe_reading("AXIS", "Slices of NIfTI: axial, coronal, sagittal, ras.")]

Volume = Annotated[
    bool,
    typer.Option(
        "--volume",
        help="Explain a folder of DICOM slices as one volume, or with --slice one slice of it; by default each file.",
        rich_help_panel=_READING_PANEL,
    ),
]

# Written out, because the reader of images imports numpy, and the help must be shown at once.
DEFAULT_MAX_PIXELS = 200_000_000
MaxPixels = Annotated[
    int,
    typer.Option(
        "--max-pixels", metavar="N", min=1, help="Most pixels of a photo; larger ones are not decoded, and fail."
    ),
]


def parse_reading_options(
    *,
    bands: str | None,
    window: str | None,
    percentiles: str | None,
    slice: str | None,  # noqa: A002
    axis: Axis | None,
    frame: int | None,
    max_pixels: int,
) -> dict[str, Any]:
    """Return the options of :func:`camtool.open_image` that were given, and the limits of runs.

    Raises:
        CamtoolError: A text is no list of numbers, or an option is not allowed.
    """
    from camtool.inputs.formats.reading_options import MAX_DRAWN, RUN_MEMORY, ReadingOptions

    options = {
        "bands": _parse_numbers("--bands", bands, "4,3,2", int),
        "window": _parse_numbers("--window", window, "40,400", float),
        "percentiles": _parse_numbers("--percentiles", percentiles, "2,98", float),
        "slice": slice if slice is None or slice == "middle" else _parse_numbers("--slice", slice, "45", int)[0],
        "axis": None if axis is None else axis.value,
        "frame": frame,
        "max_pixels": max_pixels,
        "max_memory": RUN_MEMORY if max_pixels <= DEFAULT_MAX_PIXELS else None,
        "max_drawn": MAX_DRAWN,
    }
    given = {name: value for name, value in options.items() if value is not None}
    ReadingOptions.from_user(given)
    return given


def _parse_numbers(option: str, text: str | None, example: str, kind: Callable[[str], Any]) -> Any:
    """Return the numbers in a list separated by commas.

    Raises:
        CamtoolError: A part of it is no number.
    """
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise CamtoolError(f"{option} {text!r} is not a list of numbers; give e.g. {option} {example}.") from error
