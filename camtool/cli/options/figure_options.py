"""Options of figures: scale of colors, width, folder and file format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from camtool.cli.options.output_options import Out


class FigureFormat(str, Enum):
    """File format of figures."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


class Scale(str, Enum):
    """Color scale of panels that stand together: one for each, or one for all."""

    each = "each"
    shared = "shared"


LAYERS = typer.Option(
    "--layer",
    "--layers",
    metavar="NAME",
    help="Layers: names, patterns such as 'layer*.conv1', or 'conv' for all convolutions. Repeat it, or use commas, "
    "for several.",
)


@dataclass(frozen=True)
class FigureOptions:
    """Options of the figures that a command draws."""

    scale: Annotated[Scale, typer.Option(help="Color scale: shared by all panels, or each its own.")] = Scale.shared
    width: Annotated[
        str, typer.Option(metavar="WIDTH", help="Width: 'single' or 'double' column, or a number of inches.")
    ] = "double"
    out: Out = Path("figures")
    format: Annotated[FigureFormat, typer.Option(help="File format of the figures.")] = FigureFormat.png

    def get_style(self) -> dict[str, Any]:
        """Return the scale and the width, as functions of :mod:`camtool.figures` take them."""
        return {"scale": self.scale.value, "width": parse_width(self.width)}


def parse_width(text: str) -> float | str:
    """Return the inches of a number, or else the name of a width."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text
