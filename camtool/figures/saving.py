"""Figures as PDF, SVG and PNG files, and the module that draws them with matplotlib."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from camtool.arguments.libraries import import_library
from camtool.errors import CamtoolError
from camtool.rendering import image_writing

if TYPE_CHECKING:
    from os import PathLike

    from camtool.figures.canvas import Figure


def load_canvas() -> ModuleType:
    """Return :mod:`camtool.figures.canvas`, the only module that imports matplotlib.

    Raises:
        CamtoolError: matplotlib is not installed.
    """
    import_library("matplotlib", "figures need matplotlib", "'camtool[figures]'")
    from camtool.figures import canvas

    return canvas


_FORMATS = ("pdf", "svg", "png")

# Agg, the renderer of matplotlib, draws no image with a longer side.
_MAX_PIXELS = 2**16


def save(figure: Figure, path: str | PathLike[str], *, dpi: float = 300) -> Path:
    """Write a figure to a file. The same figure gives the same bytes, and the file is never left half written.

    Text stays text: PDF files embed the font (TrueType, which journals accept), SVG files name it.

    Args:
        figure: Figure from any function of :mod:`camtool.figures`, or any other matplotlib figure.
        path: File to write. The suffix ``.pdf``, ``.svg`` or ``.png`` chooses the format. Missing folders are created.
        dpi: Resolution of PNG files, and of images inside PDF and SVG files.

    Returns:
        The path.

    Raises:
        CamtoolError: The suffix is unknown, the image would be too large, or matplotlib is not installed.
        OSError: The file cannot be written.
    """
    path = Path(path)
    file_format = path.suffix.lower().removeprefix(".")
    if file_format not in _FORMATS:
        raise CamtoolError(
            f"figures are not written as {path.suffix or path.name!r}; pass a path that ends in .pdf, .svg or .png."
        )
    longest = max(figure.get_size_inches())
    if file_format == "png" and longest * dpi >= _MAX_PIXELS:
        raise CamtoolError(
            f"dpi={dpi:g} makes an image {longest * dpi:,.0f} pixels long; pass less than "
            f"{_MAX_PIXELS / longest:.0f}, or write a .pdf."
        )
    with image_writing.open_atomically(path) as stream:
        load_canvas().write_file(figure, stream, file_format, dpi=dpi)
    return path
