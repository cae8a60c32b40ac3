"""Panels: many small maps or filters of a layer on one scale, below the layer's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool.figures import paper_style
from camtool.figures.image_grid import fit_text
from camtool.figures.paper_style import LINE_HEIGHT, TEXT_SIZE, format_number
from camtool.figures.saving import load_canvas

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import Box, Limits, PaperFigure

# Color map of values of both signs: red is positive, white is zero, blue is negative.
DIVERGING = "RdBu_r"

# Space above and below everything, in inches.
EDGE = 0.03

# Distance from the maps to the color bar, and width of the bar, in inches.
BAR_GAP, BAR_WIDTH = 0.08, 0.08

# Inches: height of a heading, its baseline, and the distance to the description behind it.
_HEADING_HEIGHT, _BASELINE, _DESCRIPTION_GAP = 0.19, 0.11, 0.12

# Inches between maps, and between plots of lines: plots have no edges, so they need more space.
_GAP, _PLOT_GAP = 0.05, 0.15

_PANEL_GAP = 0.2
MAX_BAR_HEIGHT, MIN_BAR_HEIGHT = 1.6, 2.1 * LINE_HEIGHT

# Height of a plot of a line, divided by its width.
_PLOT_ASPECT = 0.4

# Height divided by width. Maps outside these limits are stretched, so that no map is a thin line.
_MAX_ASPECT, _MIN_ASPECT = 1.5, 0.25

# Up to so many maps of a single panel, their minimum width in inches on a page of the second width.
_MIN_WIDTHS, _REFERENCE_WIDTH = ((16, 0.72), (64, 0.5)), 6.25
_MIN_WIDTH_OF_MANY = 0.3
_MAX_WIDTH = 2.0
_MIN_PLOT_WIDTH = 1.2

_MAX_DESCRIPTION_LINES = 3


@dataclass(frozen=True, eq=False)
class Panel:
    """Maps of some channels of a layer, or some of its filters.

    Attributes:
        name: Name of the layer.
        description: Text behind the name, such as the shape.
        values: Values ``(n, h, w)`` or ``(n, L)``, or colors ``(n, h, w, 3)`` uint8, which need no scale.
        numbers: Numbers of the channels or filters.
        colormap: Name known to matplotlib.
        limits: Lowest and highest value of the scale.
        ends: Text at the ends of the scale instead of its limits, if each map has its own scale.
    """

    name: str
    description: str
    values: NDArray[Any]
    numbers: Sequence[int]
    colormap: str
    limits: Limits
    ends: tuple[str, ...] = ()

    @property
    def is_signal(self) -> bool:
        """True for signals, which are drawn as plots of lines."""
        return self.values.ndim == 2

    @property
    def is_colors(self) -> bool:
        """True for colors, which need no scale."""
        return self.values.ndim == 4

    @property
    def aspect(self) -> float:
        """Height of each map as drawn, divided by its width."""
        if self.is_signal:
            return _PLOT_ASPECT
        high, wide = self.values.shape[1:3]
        return float(min(max(high / wide, _MIN_ASPECT), _MAX_ASPECT))

    @property
    def gap(self) -> float:
        """Distance between maps in a row, in inches."""
        return _PLOT_GAP if self.is_signal else _GAP


def find_limits(values: NDArray[Any]) -> Limits:
    """Return the lowest and highest finite value; if they are equal, limits around them."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def center_on_zero(values: NDArray[Any], scale: str) -> tuple[NDArray[Any], float, tuple[str, ...]]:
    """Return values on a scale that is symmetric around zero.

    Args:
        values: ``(n, ...)``, of n channels or filters.
        scale: ``"shared"`` for one scale; ``"each"`` to divide each by its largest finite magnitude.

    Returns:
        The scaled values, the upper limit of the scale, and the text at its ends, if it is not the limits.
    """
    size = np.where(np.isfinite(values), np.abs(values), np.float32(0))
    if scale == "shared":
        return values, float(size.max()) or 1.0, ()
    reach = size.max(tuple(range(1, values.ndim)), keepdims=True)
    return values / np.where(reach > 0, reach, np.float32(1)), 1.0, (f"{paper_style.MINUS}max", "max")


def draw_panels(panels: Sequence[Panel], width: float, columns: int | None = None) -> PaperFigure:
    """Draw panels below one another.

    Args:
        panels: One or more panels.
        width: Width of the figure, in inches.
        columns: Number of maps in a row; the default is the number that is large enough to see.

    Raises:
        CamtoolError: There are too many columns for the width.
    """
    inner = width - max(0.0 if panel.is_colors else measure_scale(panel.limits, panel.ends) for panel in panels)
    across = _choose_columns(panels, inner) if columns is None else [columns] * len(panels)
    grids = [_PanelGrid.from_width(panel, inner, n) for panel, n in zip(panels, across, strict=True)]
    heads = [measure_heading(panel.name, panel.description, width) for panel in panels]
    heights = [above + grid.height for grid, above in zip(grids, heads, strict=True)]
    figure: PaperFigure = load_canvas().create_figure(width, sum(heights) + _PANEL_GAP * (len(panels) - 1) + 2 * EDGE)
    top, right = EDGE, max(grid.width for grid in grids)
    for panel, grid, above, high in zip(panels, grids, heads, heights, strict=True):
        draw_heading(figure, panel.name, panel.description, top)
        grid.draw(figure, top + above, right)
        top += high + _PANEL_GAP
    return figure


def measure_heading(name: str, description: str, width: float) -> float:
    """Return the height of a heading with its description, in inches."""
    if _fits_beside_name(name, description, width):
        return _HEADING_HEIGHT
    return _HEADING_HEIGHT + LINE_HEIGHT * len(_break_description(description, width))


def draw_heading(figure: PaperFigure, name: str, description: str, top: float) -> None:
    """Write a name, and a description behind it, or below it if it does not fit."""
    canvas, width, size = load_canvas(), float(figure.get_size_inches()[0]), paper_style.HEADING_SIZE
    canvas.write_line(figure, 0, top + _BASELINE, fit_text(name, width, size=size), size)
    if _fits_beside_name(name, description, width):
        behind = canvas.measure_text(name, size) + _DESCRIPTION_GAP
        canvas.write_line(figure, behind, top + _BASELINE, description, TEXT_SIZE, color=canvas.MUTED)
    else:
        for number, line in enumerate(_break_description(description, width), 1):
            below = top + _BASELINE + LINE_HEIGHT * number
            canvas.write_line(figure, 0, below, line, TEXT_SIZE, color=canvas.MUTED)


def _fits_beside_name(name: str, description: str, width: float) -> bool:
    measure = load_canvas().measure_text
    return bool(measure(name, paper_style.HEADING_SIZE) + _DESCRIPTION_GAP + measure(description, TEXT_SIZE) <= width)


def _break_description(description: str, width: float) -> list[str]:
    return fit_text(description, width, _MAX_DESCRIPTION_LINES).split("\n")


def measure_scale(limits: Limits, ends: Sequence[str] = ()) -> float:
    """Return the width of a vertical color bar with its text, in inches."""
    shown = ends or [format_number(limit) for limit in limits]
    return BAR_GAP + BAR_WIDTH + 0.06 + max(float(load_canvas().measure_text(end, TEXT_SIZE)) for end in shown)


def _choose_columns(panels: Sequence[Panel], width: float) -> list[int]:
    """Return the number of columns of each panel; panels of one kind have the same."""
    own = [(panel.is_signal, _choose_own_columns(panel, width, alone=len(panels) == 1)) for panel in panels]
    return [max(columns for kind, columns in own if kind == panel.is_signal) for panel in panels]


def _choose_own_columns(panel: Panel, width: float, *, alone: bool) -> int:
    count = len(panel.values)
    fine = next((inches for most, inches in _MIN_WIDTHS if alone and count <= most), _MIN_WIDTH_OF_MANY)
    least = _MIN_PLOT_WIDTH if panel.is_signal else max(_MIN_WIDTH_OF_MANY, fine * width / _REFERENCE_WIDTH)
    return paper_style.balance_columns(count, max(1, int((width + panel.gap) / (least + panel.gap))))


@dataclass(frozen=True)
class _PanelGrid:
    """Maps of a panel with their places: columns, and width and height of each map in inches."""

    panel: Panel
    columns: int
    map_width: float
    map_height: float

    @classmethod
    def from_width(cls, panel: Panel, width: float, columns: int) -> _PanelGrid:
        """Divide a width in inches among columns.

        Raises:
            CamtoolError: The numbers above the maps do not fit.
        """
        least = load_canvas().measure_text(str(max(panel.numbers)), TEXT_SIZE)
        paper_style.check_columns(columns, max(1, int((width + panel.gap) / (least + panel.gap))))
        wide = (width - panel.gap * (columns - 1)) / columns
        wide = wide if panel.is_signal else min(wide, _MAX_WIDTH)
        return cls(panel, columns, wide, wide * panel.aspect)

    @property
    def width(self) -> float:
        """Width of all maps together."""
        return self.columns * (self.map_width + self.panel.gap) - self.panel.gap

    @property
    def height(self) -> float:
        """Height of all maps together, or of the scale beside them if that is higher."""
        rows = -(-len(self.panel.values) // self.columns)
        high = rows * (LINE_HEIGHT + self.map_height) + (rows - 1) * _GAP
        return high if self.panel.is_signal or self.panel.is_colors else max(high, LINE_HEIGHT + MIN_BAR_HEIGHT)

    def draw(self, figure: PaperFigure, top: float, right: float) -> None:
        """Draw the maps, and the scale on the right of ``right``."""
        panel = self.panel
        if panel.is_signal:
            self._draw_signals(figure, top)
            return
        self._draw_planes(figure, top)
        if not panel.is_colors:
            bar = (right + BAR_GAP, top + LINE_HEIGHT, BAR_WIDTH, min(self.height - LINE_HEIGHT, MAX_BAR_HEIGHT))
            load_canvas().draw_vertical_bar(figure, bar, panel.colormap, panel.limits, TEXT_SIZE, panel.ends)

    def _draw_signals(self, figure: PaperFigure, top: float) -> None:
        for index, (values, number) in enumerate(zip(self.panel.values, self.panel.numbers, strict=True)):
            left, below, wide, high = self._get_box(index)
            axes = load_canvas().add_axes(figure, (left, top + below, wide, high))
            load_canvas().draw_curve(axes, values, self.panel.limits)
            load_canvas().write_title(axes, str(number), TEXT_SIZE, color=load_canvas().MUTED)
            if index == min(self.columns, len(self.panel.values)) - 1:
                load_canvas().draw_scale(axes, self.panel.limits, TEXT_SIZE, self.panel.ends)

    def _draw_planes(self, figure: PaperFigure, top: float) -> None:
        sheet = load_canvas().add_image_axes(figure, (0, top, self.width, self.height))
        for index, (values, number) in enumerate(zip(self.panel.values, self.panel.numbers, strict=True)):
            box = self._get_box(index)
            load_canvas().draw_plane(sheet, values, self.panel.limits, self.panel.colormap, box)
            load_canvas().write_above_box(sheet, box, str(number), TEXT_SIZE, color=load_canvas().MUTED)

    def _get_box(self, index: int) -> Box:
        """Return the box of a map, from the top left of all maps."""
        row, column = divmod(index, self.columns)
        return (
            column * (self.map_width + self.panel.gap),
            LINE_HEIGHT + row * (LINE_HEIGHT + self.map_height + _GAP),
            self.map_width,
            self.map_height,
        )
