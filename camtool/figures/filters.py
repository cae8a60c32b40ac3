"""What convolutions look for: their kernels."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from camtool.errors import LayerError
from camtool.figures.activity import CONVOLUTIONS
from camtool.figures.panels import BAR_GAP, BAR_WIDE, EDGE, Panel, head, head_high, page, room_for_scale
from camtool.figures.paper import LINE, SCALES, TEXT, Scale, Width, canvas, check_choice, check_count, in_inches
from camtool.figures.signs import MINUS, short, sides
from camtool.models import Loaded
from camtool.modules import module_named, modules_by_name, name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import PaperFigure

__all__ = ["kernels"]

_COLORMAP = "RdBu_r"
_OWN = (f"{MINUS}max", "max")
_MANY, _FEW = 64, 16  # how many filters are shown by default: of one picture each, and of many
_HIGHEST = 0.6  # how high a kernel is drawn in a table at most, in inches
_FLATTEST = 0.5  # how high it is drawn at least, in its widths
_TALLEST_BAR = 1.6


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
    name, weight = _filters(model.model if isinstance(model, Loaded) else model, layer)
    words = f"{len(weight)} filters of {sides(weight.shape[1:])}"
    if weight.ndim == 5:
        middle = weight.shape[2] // 2
        weight, words = weight[:, :, middle], f"{words}, slice {middle}"
    if weight.shape[1] == 1 or (weight.shape[1] == 3 and weight.ndim == 4):
        return page([_panel(name, words, weight[: filters or _MANY], scale)], inches, columns)
    return _table(name, words, weight[: filters or _FEW, :inputs], scale, inches)


def _filters(model: nn.Module, layer: str | nn.Module | None) -> tuple[str, NDArray[np.float32]]:
    """A convolution's name and its filters, ``(F, C, *size)``."""
    convolutions = [name for name, module in modules_by_name(model).items() if isinstance(module, CONVOLUTIONS)]
    if not convolutions:
        raise LayerError("the model has no convolution, so it has no filters to show.")
    name = convolutions[0] if layer is None else name_of(model, layer)
    module: Any = module_named(model, name)
    if not isinstance(module, CONVOLUTIONS):
        some = ", ".join(convolutions[:3])
        raise LayerError(f"layer {name!r} is a {type(module).__name__}, which has no filters; {some} have.")
    weight: NDArray[np.float32] = module.weight.detach().float().cpu().numpy()
    if module.transposed:  # (C, F / groups, ...), of which each group is by itself
        weight = np.concatenate([part.swapaxes(0, 1) for part in np.split(weight, module.groups)])
    return name or "the model", weight


def _in_units(weight: NDArray[np.float32], scale: str) -> tuple[NDArray[np.float32], float, tuple[str, ...]]:
    """Filters, the number that is the scale's end, and what stands there in place of numbers."""
    if scale == "shared":
        return weight, float(np.abs(weight).max()) or 1.0, ()
    reach = np.abs(weight).reshape(len(weight), -1).max(1).reshape(-1, *[1] * (weight.ndim - 1))
    return weight / np.where(reach > 0, reach, np.float32(1)), 1.0, _OWN


def _panel(name: str, words: str, weight: NDArray[np.float32], scale: str) -> Panel:
    """Filters of one channel, ``(n, 1, *size)``, or of colours, ``(n, 3, h, w)``, side by side."""
    weight, reach, ends = _in_units(weight, scale)
    limits, numbers = (-reach, reach), range(len(weight))
    if weight.shape[1] == 1:
        return Panel(name, words, weight[:, 0], numbers, _COLORMAP, limits, ends)
    colors = np.rint(127.5 * (1 + weight.transpose(0, 2, 3, 1) / reach)).astype(np.uint8)
    extremes = "each black to white" if ends else f"black and white ±{short(reach)}"
    return Panel(name, f"{words}, grey is 0, {extremes}", colors, numbers, _COLORMAP, limits, ends)


def _table(name: str, words: str, weight: NDArray[np.float32], scale: str, width: float) -> PaperFigure:
    """Filters ``(n, C, *size)`` in rows, with a column for each input channel."""
    weight, reach, ends = _in_units(weight, scale)
    limits, tiles = (-reach, reach), weight if weight.ndim == 4 else weight[:, :, None]
    down, across, high, wide = tiles.shape
    left, top = 2 * LINE + 0.16, EDGE + head_high(name, words, width) + 2 * LINE
    slope = max(high / wide, _FLATTEST)
    tile = min(_HIGHEST / slope, (width - left - room_for_scale(limits, ends)) / across)
    box = (left, top, tile * across, tile * slope * down)
    below = max(EDGE, (LINE - tile * slope) / 2)  # the last row's number may be higher than the row
    figure: PaperFigure = canvas().blank(width, top + box[3] + below)
    head(figure, name, words, EDGE)
    axes = canvas().frame(figure, box)
    canvas().plane(axes, tiles.transpose(0, 2, 1, 3).reshape(down * high, across * wide), limits, _COLORMAP)
    if high * wide > 1:
        canvas().lattice(axes, across, down, wide, high)
    columns = _numbered("input channel", across, wide, ceil(0.3 / tile))
    canvas().number_tiles(axes, TEXT, columns, _numbered("filter", down, high, ceil(LINE / (tile * slope))))
    bar = (left + box[2] + BAR_GAP, top, BAR_WIDE, min(box[3], _TALLEST_BAR))
    canvas().standing_bar(figure, bar, _COLORMAP, limits, TEXT, ends)
    return figure


def _numbered(name: str, count: int, size: int, step: int) -> Any:
    """The numbers of tiles of so many squares, of which each ``step``-th has room for its number."""
    numbers = range(0, count, step)
    return canvas().Tiles(name, numbers, [number * size + (size - 1) / 2 for number in numbers])
