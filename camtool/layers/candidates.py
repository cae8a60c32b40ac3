"""Candidates: module outputs that are grids over the image, each with the reason why it was chosen or not."""

from __future__ import annotations

from dataclasses import dataclass

from camtool.geometry.cell_centers import CellCenters
from camtool.layers.layouts import Layout

__all__ = ["NOT_DEEPEST", "Candidate"]

NOT_DEEPEST = "good, but not the deepest"
"""Verdict on a layer that no rule excludes if a deeper one was chosen."""


@dataclass(frozen=True)
class Candidate:
    """A module whose output can be read as a grid.

    Attributes:
        name: Dotted name of the module. If several modules return the same tensor, the outermost.
        kind: Name of the module's class.
        shape: Shape of its output for one image.
        layout: How the output is read.
        stride: Distance between neighboring positions along each axis, in pixels of the image.
        reached: Whether the gradient of the score reaches the layer; ``None`` if no gradient was computed.
        verdict: Why it was chosen or not, in a few words.
        chosen: Whether maps are drawn here if no layer is named.
        centers: For the chosen layer, where its cells lie in the model's input; ``None`` if a stretched grid is drawn.
        in_order: Whether its tokens lie in the order of the image's rows; ``None`` if their response does not show it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    layout: Layout
    stride: tuple[float, ...]
    reached: bool | None = None
    verdict: str = ""
    chosen: bool = False
    centers: CellCenters | None = None
    in_order: bool | None = None
