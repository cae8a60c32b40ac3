"""What convolutions look for: their kernels."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log10, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from camtool.arguments import as_module
from camtool.errors import LayerError, add_article
from camtool.figures.activity import CONVOLUTIONS, meant
from camtool.figures.panels import (
    BAR_GAP,
    BAR_WIDE,
    DIVERGING,
    EDGE,
    Panel,
    around_zero,
    head,
    head_high,
    page,
    room_for_scale,
)
from camtool.figures.paper import LINE, SCALES, TEXT, Scale, Width, canvas, check_choice, check_count, in_inches
from camtool.figures.signs import lost, short, sides
from camtool.models import Loaded
from camtool.modules import module_named, modules_by_name, name_of
from camtool.recorder import Which

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import PaperFigure

__all__ = ["kernel_pages", "kernels"]

_MANY, _FEW = 64, 16  # how many filters are shown by default: of one picture each, and of many
_LARGEST = 0.6  # how high a kernel is drawn in a table at most, in inches, and a square one how wide
_FLATTEST = 0.25  # how high it is drawn at least, in its widths
_TALLEST_BAR, _LOWEST_BAR = 1.6, 2.1 * LINE
_ROWS, _COLUMNS = "filter", "input channel"


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
    """The filters of a convolution.

    Filters of colour pictures are shown in colour, where grey is zero. Those of one channel are planes, red where they
    are positive and blue where they are negative; those of signals are lines. Those of many channels are rows of a
    table with a column for each input channel. The scale is symmetric around zero. Of filters in three dimensions the
    middle slice is shown.

    Args:
        model: Any module, or what :func:`camtool.load` returned.
        layer: A dotted name or a module; by default the first convolution.
        filters: How many, at most; by default 64, or 16 rows of a table.
        inputs: How many input channels a table shows, at most.
        scale: ``"shared"`` by all filters; or ``"each"`` with its own, so that weak ones can be seen as well.
        columns: How many filters stand in a row, where they are no table.
        width: ``"single"`` or ``"double"`` column, see :data:`camtool.figures.WIDTHS`, or inches.

    Raises:
        LayerError: The layer is unknown or no convolution, or the model has none.
        CamtoolError: An argument does not fit.
    """
    for name, number in (("filters", filters), ("inputs", inputs), ("columns", columns)):
        check_count(name, number)
    check_choice("scale", scale, SCALES)
    inches = in_inches(width)
    name, weight = _filters(as_module(model), layer)
    words = f"{len(weight)} filter{'s' * (len(weight) > 1)} of {sides(weight.shape[1:])}"
    if weight.ndim == 5:
        middle = weight.shape[2] // 2
        weight, words = weight[:, :, middle], f"{words}, slice {middle}"
    if weight.shape[1] == 1 or (weight.shape[1] == 3 and weight.ndim == 4):
        weight = weight[: filters or _MANY]
        return page([_panel(name, f"{words}{lost(weight)}", weight, scale)], inches, columns)
    weight = weight[: filters or _FEW, :inputs]
    return _table(name, f"{words}{lost(weight)}", weight, scale, inches)


def kernel_pages(
    model: nn.Module | Loaded,
    layers: Which = "conv",
    *,
    filters: int | None = None,
    inputs: int = 16,
    scale: Scale = "shared",
    columns: int | None = None,
    width: Width = "double",
) -> Iterator[tuple[str, PaperFigure]]:
    """:func:`kernels` of several layers, a figure each; each is made when its turn comes.

    Args:
        model: Any module, or what :func:`camtool.load` returned.
        layers: As for :func:`feature_maps`; of what a pattern, a type or a function means, the convolutions.
        filters: As for :func:`kernels`, as are all that follow.
        inputs: How many input channels a table shows.
        scale: ``"shared"`` or ``"each"``.
        columns: How many filters stand in a row.
        width: ``"single"``, ``"double"`` or inches.

    Yields:
        The layer's name and its figure.

    Raises:
        LayerError: A name is unknown or that of no convolution, or no convolution is meant.
        CamtoolError: An argument does not fit.
    """
    module = as_module(model)
    asked = layers if isinstance(layers, (list, tuple)) else [layers]
    names = [name for name in meant(module, layers) if name in asked or _has_filters(module_named(module, name))]
    if not names:
        raise LayerError(f"layers={layers!r}: none of these is a convolution.")
    for name in names:  # a fault in the last is told before the first is drawn
        _checked(module, name)
    for name in names:
        yield name, kernels(model, name, filters=filters, inputs=inputs, scale=scale, columns=columns, width=width)


def _has_filters(module: nn.Module) -> bool:
    return isinstance(module, CONVOLUTIONS)


def _checked(model: nn.Module, name: str) -> Any:
    """A convolution.

    Raises:
        LayerError: It is none.
    """
    module = module_named(model, name)
    if not _has_filters(module):
        others = [other for other, each in modules_by_name(model).items() if _has_filters(each)]
        some = f"; {', '.join(others[:3])} have" if others else ""
        raise LayerError(f"layer {name!r} is {add_article(type(module).__name__)}, which has no filters{some}.")
    return module


def _filters(model: nn.Module, layer: str | nn.Module | None) -> tuple[str, NDArray[np.float32]]:
    """A convolution's name and its filters, ``(F, C, *size)``."""
    first = next((name for name, module in modules_by_name(model).items() if _has_filters(module)), None)
    if first is None:
        raise LayerError("the model has no convolution, so it has no filters to show.")
    name = first if layer is None else name_of(model, layer)
    module = _checked(model, name)
    weight: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
    if module.transposed:  # (C, F / groups, ...), of which each group is by itself
        weight = np.concatenate([part.swapaxes(0, 1) for part in np.split(weight, module.groups)])
    return name or "the model", weight


def _panel(name: str, words: str, weight: NDArray[np.float32], scale: str) -> Panel:
    """Filters of one channel, ``(n, 1, *size)``, or of colours, ``(n, 3, h, w)``, side by side."""
    weight, reach, ends = around_zero(weight, scale)
    limits, numbers = (-reach, reach), range(len(weight))
    if weight.shape[1] == 1:
        return Panel(name, words, weight[:, 0], numbers, DIVERGING, limits, ends)
    shades = np.where(np.isfinite(weight), 127.5 * (1 + weight / reach), 255)
    colors = np.rint(shades).transpose(0, 2, 3, 1).astype(np.uint8)
    extremes = "each black to white" if ends else f"black and white ±{short(reach)}"
    return Panel(name, f"{words}, grey is 0, {extremes}", colors, numbers, DIVERGING, limits, ends)


def _table(name: str, words: str, weight: NDArray[np.float32], scale: str, width: float) -> PaperFigure:
    """Filters ``(n, C, *size)`` in rows, with a column for each input channel."""
    weight, reach, ends = around_zero(weight, scale)
    limits, tiles = (-reach, reach), weight if weight.ndim == 4 else weight[:, :, None]
    down, across, high, wide = tiles.shape
    left, top = 2 * LINE + 0.16, EDGE + head_high(name, words, width) + 2 * LINE
    slope = max(high / wide, _FLATTEST)
    largest = _LARGEST / max(slope, sqrt(slope))  # flat ones may be wider, but not as high as square ones
    tile = min(largest, (width - left - room_for_scale(limits, ends)) / across)
    each = max(tile * slope, LINE / down)  # the height of a row: thousands of columns would leave nothing of it
    box = (left, top, tile * across, each * down)
    tall = min(max(box[3], _LOWEST_BAR), _TALLEST_BAR)
    sticks_out = max(LINE - each, canvas().text_width(_ROWS, TEXT) - box[3]) / 2  # words beside few, low rows
    figure: PaperFigure = canvas().blank(width, top + max(box[3] + max(EDGE, sticks_out), tall))
    head(figure, name, words, EDGE)
    axes = canvas().frame(figure, box)
    canvas().plane(axes, tiles.transpose(0, 2, 1, 3).reshape(down * high, across * wide), limits, DIVERGING)
    if high * wide > 1:
        canvas().lattice(axes, across, down, wide, high)
    columns, rows = _numbered(_COLUMNS, across, wide, 0.3 / tile), _numbered(_ROWS, down, high, LINE / each)
    canvas().number_tiles(axes, TEXT, columns, rows)
    bar = (left + box[2] + BAR_GAP, top, BAR_WIDE, tall)
    canvas().standing_bar(figure, bar, DIVERGING, limits, TEXT, ends)
    return figure


def _numbered(name: str, count: int, size: int, room: float) -> Any:
    """The numbers of tiles of so many squares, where a number needs the room of so many tiles: in round steps."""
    decade = 10 ** max(0, ceil(log10(room)) - 1)
    step = next(step * decade for step in (1, 2, 5, 10) if step * decade >= room)
    numbers = range(0, count, step)
    return canvas().Tiles(name, numbers, [number * size + (size - 1) / 2 for number in numbers])
