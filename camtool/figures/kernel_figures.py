"""Figures of the kernels of convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log10, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from camtool.arguments.checks import check_choice, check_count
from camtool.arguments.explain_arguments import get_module
from camtool.arguments.messages import add_article
from camtool.errors import LayerError
from camtool.figures import panels, paper_style
from camtool.figures.feature_map_figures import has_filters, select_layers
from camtool.figures.paper_style import LINE_HEIGHT, TEXT_SIZE, Scale, Width, to_inches
from camtool.figures.saving import load_canvas
from camtool.hooks.structures.modules import find_module, find_module_name, get_modules_by_name
from camtool.models import Loaded
from camtool.recorder import LayerSelection

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import PaperFigure, TileNumbers

# Default number of filters: of filters drawn as one image each, and of rows in a table.
_MAX_FILTERS, _MAX_TABLE_ROWS = 64, 16

# Inches: largest height of a kernel in a table, and largest width of a square one.
_MAX_TILE = 0.6

# Height divided by width. Flatter kernels, such as 1 x 9, are stretched so that they can be seen.
_MIN_ASPECT = 0.25
_MAX_BAR_HEIGHT, _MIN_BAR_HEIGHT = 1.6, 2.1 * LINE_HEIGHT

# Inches: smallest distance between numbers of columns, and width of the numbers and the name of the rows.
_NUMBER_WIDTH, _NUMBERS_WIDTH = 0.3, 2 * LINE_HEIGHT + 0.16
_ROW_NAME, _COLUMN_NAME = "filter", "input channel"


def kernels(
    model: nn.Module | Loaded,
    layer: str | nn.Module | None = None,
    *,
    filters: int | None = None,
    inputs: int = 16,
    scale: Scale = "shared",
    columns: int | None = None,
    width: Width = "double",
) -> PaperFigure:
    """Draw the filters of a convolution.

    Filters of RGB images are drawn in color, with gray for zero. Filters of one channel are maps, red where they are
    positive and blue where they are negative. Filters of signals are plots of lines. Filters of many channels are rows
    of a table with a column for each input channel. The scale is symmetric around zero. Of filters in three dimensions
    the middle slice is drawn.

    Args:
        model: Any module, or the result of :func:`camtool.load`.
        layer: Dotted name or module; the default is the first convolution.
        filters: Largest number of filters; the default is 64, or 16 rows of a table.
        inputs: Largest number of input channels in a table.
        scale: ``"shared"`` by all filters, or ``"each"`` with its own, so that weak filters are visible too.
        columns: Number of filters in a row, if they are not a table.
        width: ``"single"`` or ``"double"`` column, see :data:`camtool.figures.WIDTHS`, or inches.

    Raises:
        LayerError: The layer is unknown or not a convolution, or the model has none.
        CamtoolError: Another argument is invalid.
    """
    for name, number in (("filters", filters), ("inputs", inputs), ("columns", columns)):
        check_count(name, number, optional=True)
    check_choice("scale", scale, paper_style.SCALES)
    inches = to_inches(width)
    name, weight = _read_filters(get_module(model), layer)
    description = f"{len(weight)} filter{'s' * (len(weight) > 1)} of {paper_style.format_shape(weight.shape[1:])}"
    if weight.ndim == 5:
        middle = weight.shape[2] // 2
        weight, description = weight[:, :, middle], f"{description}, slice {middle}"
    if weight.shape[1] == 1 or (weight.shape[1] == 3 and weight.ndim == 4):
        weight = weight[: filters or _MAX_FILTERS]
        panel = _build_panel(name, f"{description}{paper_style.describe_non_finite(weight)}", weight, scale)
        return panels.draw_panels([panel], inches, columns)
    weight = weight[: filters or _MAX_TABLE_ROWS, :inputs]
    return _draw_table(name, f"{description}{paper_style.describe_non_finite(weight)}", weight, scale, inches)


def kernel_pages(
    model: nn.Module | Loaded,
    layers: LayerSelection = "conv",
    *,
    filters: int | None = None,
    inputs: int = 16,
    scale: Scale = "shared",
    columns: int | None = None,
    width: Width = "double",
) -> Iterator[tuple[str, PaperFigure]]:
    """Draw :func:`kernels` of several layers, one figure at a time.

    Args:
        model: Any module, or the result of :func:`camtool.load`.
        layers: As for :func:`feature_maps`. Patterns, types and functions select convolutions only.
        filters: As for :func:`kernels`; so are the others.
        inputs: Largest number of input channels in a table.
        scale: ``"shared"`` or ``"each"``.
        columns: Number of filters in a row.
        width: ``"single"``, ``"double"`` or inches.

    Yields:
        The name of the layer and its figure.

    Raises:
        LayerError: A name is unknown or not that of a convolution, or no convolution is selected.
        CamtoolError: Another argument is invalid.
    """
    module = get_module(model)
    asked = layers if isinstance(layers, (list, tuple)) else [layers]
    names = [name for name in select_layers(module, layers) if name in asked or has_filters(find_module(module, name))]
    if not names:
        raise LayerError(f"layers={layers!r}: none of these layers is a convolution.")
    # An invalid name raises before the first figure is drawn.
    for name in names:
        _find_convolution(module, name)
    for name in names:
        yield name, kernels(model, name, filters=filters, inputs=inputs, scale=scale, columns=columns, width=width)


def _find_convolution(model: nn.Module, name: str) -> Any:
    """Return the convolution of this name.

    Raises:
        LayerError: The module is not a convolution.
    """
    module = find_module(model, name)
    if not has_filters(module):
        others = [other for other, candidate in get_modules_by_name(model).items() if has_filters(candidate)]
        some = f"; choose from {', '.join(others[:3])}" if others else ""
        raise LayerError(f"layer {name!r} is {add_article(type(module).__name__)}, which has no filters{some}.")
    return module


def _read_filters(model: nn.Module, layer: str | nn.Module | None) -> tuple[str, NDArray[np.float32]]:
    """Return the name of a convolution and its filters, ``(F, C, *size)``."""
    first = next((name for name, module in get_modules_by_name(model).items() if has_filters(module)), None)
    if first is None:
        raise LayerError("the model has no convolution, so there are no filters to draw.")
    name = first if layer is None else find_module_name(model, layer)
    module = _find_convolution(model, name)
    weight: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
    # Transposed convolutions store (C, F / groups, *size), one group after another.
    if module.transposed:
        weight = np.concatenate([part.swapaxes(0, 1) for part in np.split(weight, module.groups)])
    return name or "the model", weight


def _build_panel(name: str, description: str, weight: NDArray[np.float32], scale: str) -> panels.Panel:
    """Return the panel of filters of one channel, ``(n, 1, *size)``, or of RGB, ``(n, 3, h, w)``."""
    weight, reach, ends = panels.center_on_zero(weight, scale)
    limits, numbers = (-reach, reach), range(len(weight))
    if weight.shape[1] == 1:
        return panels.Panel(name, description, weight[:, 0], numbers, panels.DIVERGING, limits, ends)
    shades = np.where(np.isfinite(weight), 127.5 * (1 + weight / reach), 255)
    colors = np.rint(shades).transpose(0, 2, 3, 1).astype(np.uint8)
    extremes = "each black to white" if ends else f"black and white ±{paper_style.format_number(reach)}"
    return panels.Panel(name, f"{description}, gray is 0, {extremes}", colors, numbers, panels.DIVERGING, limits, ends)


def _draw_table(name: str, description: str, weight: NDArray[np.float32], scale: str, width: float) -> PaperFigure:
    """Draw filters ``(n, C, *size)`` in rows, with a column for each input channel."""
    weight, reach, ends = panels.center_on_zero(weight, scale)
    limits, tiles = (-reach, reach), weight if weight.ndim == 4 else weight[:, :, None]
    rows, columns, tile_rows, tile_columns = tiles.shape
    left, top = _NUMBERS_WIDTH, panels.EDGE + panels.measure_heading(name, description, width) + 2 * LINE_HEIGHT
    tile_width, tile_height = _choose_tile_size(tiles.shape, width - left - panels.measure_scale(limits, ends))
    table_width, table_height = tile_width * columns, tile_height * rows
    bar_height = min(max(table_height, _MIN_BAR_HEIGHT), _MAX_BAR_HEIGHT)
    canvas = load_canvas()
    # The numbers and the name of the rows may be higher than a few low rows.
    overhang = max(LINE_HEIGHT - tile_height, canvas.measure_text(_ROW_NAME, TEXT_SIZE) - table_height) / 2
    figure: PaperFigure = canvas.create_figure(width, top + max(table_height + max(panels.EDGE, overhang), bar_height))
    panels.draw_heading(figure, name, description, panels.EDGE)
    axes = canvas.add_axes(figure, (left, top, table_width, table_height))
    values = tiles.transpose(0, 2, 1, 3).reshape(rows * tile_rows, columns * tile_columns)
    canvas.draw_plane(axes, values, limits, panels.DIVERGING)
    if tile_rows * tile_columns > 1:
        canvas.draw_tile_borders(axes, columns, rows, tile_columns, tile_rows)
    across = _number_tiles(_COLUMN_NAME, columns, tile_columns, _NUMBER_WIDTH / tile_width)
    down = _number_tiles(_ROW_NAME, rows, tile_rows, LINE_HEIGHT / tile_height)
    canvas.number_tiles(axes, TEXT_SIZE, across, down)
    bar = (left + table_width + panels.BAR_GAP, top, panels.BAR_WIDTH, bar_height)
    canvas.draw_vertical_bar(figure, bar, panels.DIVERGING, limits, TEXT_SIZE, ends)
    return figure


def _choose_tile_size(shape: tuple[int, ...], width: float) -> tuple[float, float]:
    """Return the width and height of a kernel in a table, in inches.

    Args:
        shape: Filters, input channels, and height and width of the kernels.
        width: Width available for the table, in inches.
    """
    rows, columns, tile_rows, tile_columns = shape
    aspect = max(tile_rows / tile_columns, _MIN_ASPECT)
    # Flat kernels may be wider than square ones, but not as high.
    largest = _MAX_TILE / max(aspect, sqrt(aspect))
    tile_width = min(largest, width / columns)
    # With thousands of columns, kernels in proportion would be too low to see.
    return tile_width, max(tile_width * aspect, LINE_HEIGHT / rows)


def _number_tiles(name: str, count: int, size: int, spacing: float) -> TileNumbers:
    """Return numbers along an axis in round steps.

    Args:
        name: Name of the axis.
        count: Number of tiles.
        size: Number of values in a tile.
        spacing: Smallest distance between two numbers, in tiles.
    """
    decade = 10 ** max(0, ceil(log10(spacing)) - 1)
    step = next(step * decade for step in (1, 2, 5, 10) if step * decade >= spacing)
    numbers = range(0, count, step)
    tiles: TileNumbers = load_canvas().TileNumbers(name, numbers, [tile * size + (size - 1) / 2 for tile in numbers])
    return tiles
