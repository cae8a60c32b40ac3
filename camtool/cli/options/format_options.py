"""Options that choose what is read of a photo: bands, contrast, slice, frame, and the largest size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import typer

from camtool.errors import CamtoolError

# Written out, because the reader of images imports numpy, and the help must be shown at once.
DEFAULT_MAX_PIXELS = 200_000_000


Axis: TypeAlias = Literal["axial", "coronal", "sagittal", "ras"]
"""Direction of the slices of a NIfTI volume."""


@dataclass(frozen=True)
class PixelOptions:
    """Options that choose what is read of a photo.

    Attributes:
        bands: Bands, from 1, e.g. 4,3,2 for red, green and blue.
        window: Range of the values, e.g. 40,400.
        percentiles: The same as percentiles of each band, e.g. 2,98.
        slice: Slice, page or frame, from 0, or 'middle'.
        axis: NIfTI: axial, coronal, sagittal, ras.
        frame: Time step, from 0.
        max_pixels: Most pixels of a photo; larger ones are not decoded, and fail.
    """

    panel: ClassVar[str] = "Scientific formats"

    bands: Annotated[str | None, typer.Option(metavar="N,N,N")] = None
    window: Annotated[str | None, typer.Option(metavar="CENTER,WIDTH")] = None
    percentiles: Annotated[str | None, typer.Option(metavar="LOW,HIGH")] = None
    slice: Annotated[str | None, typer.Option(metavar="N")] = None
    axis: Annotated[Axis | None, typer.Option(metavar="AXIS")] = None
    frame: Annotated[int | None, typer.Option(metavar="N")] = None
    max_pixels: Annotated[int, typer.Option(metavar="N", min=1, rich_help_panel="Photos")] = DEFAULT_MAX_PIXELS

    def parse(self) -> dict[str, Any]:
        """Return the options of :func:`camtool.open_image` that were given, and the limits of runs.

        Raises:
            CamtoolError: A text is no list of numbers, or an option is not allowed.
        """
        from camtool.inputs.formats.reading_options import MAX_DRAWN, RUN_MEMORY, ReadingOptions

        options = {
            "bands": _parse_numbers("--bands", self.bands, "4,3,2", int),
            "window": _parse_numbers("--window", self.window, "40,400", float),
            "percentiles": _parse_numbers("--percentiles", self.percentiles, "2,98", float),
            "slice": self.slice
            if self.slice in (None, "middle")
            else _parse_numbers("--slice", self.slice, "45", int)[0],
            "axis": self.axis,
            "frame": self.frame,
            "max_pixels": self.max_pixels,
            "max_memory": RUN_MEMORY if self.max_pixels <= DEFAULT_MAX_PIXELS else None,
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
