"""Options of figures: folder, file format, width, and scale of colors."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["FigureFolder", "FigureFormat", "FigureWidth", "FormatOption", "Scale", "ScaleOption", "parse_width"]


class FigureFormat(str, Enum):
    """File format of figures."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


class Scale(str, Enum):
    """Color scale of panels that stand together: one for each, or one for all."""

    each = "each"
    shared = "shared"


FigureFolder = Annotated[Path, typer.Option("--out", "--output", metavar="FOLDER", help="Folder for the figures.")]
FormatOption = Annotated[FigureFormat, typer.Option(help="File format of the figures.")]
FigureWidth = Annotated[
    str, typer.Option(metavar="WIDTH", help="Width: 'single' or 'double' column, or a number of inches.")
]
ScaleOption = Annotated[Scale, typer.Option(help="Color scale: shared by all panels, or each its own.")]


def parse_width(text: str) -> float | str:
    """Return the inches of a number, or else the name of a width."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text
