"""Figures of channels: feature maps of layers, and the filters of convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from camtool import targets
from camtool.arguments.checks import check_choice, check_count
from camtool.arguments.explain_arguments import get_module, to_list
from camtool.arguments.message_parts import add_article
from camtool.errors import CamtoolError, LayerError, TargetError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.figures import panels, paper_style
from camtool.figures.paper_style import LINE_HEIGHT, TEXT_SIZE, Scale, Width, to_inches
from camtool.figures.saving import load_canvas
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.structures import nested_tensors
from camtool.hooks.structures.modules import find_module, find_module_name, get_modules_by_name
from camtool.hooks.tracing import TracedCall, trace
from camtool.inputs.input_preparer import InputPreparer, Source
from camtool.inputs.model_inputs import Inputs
from camtool.inputs.prepared_inputs import InputBatch
from camtool.layers.layouts import Layer, Layout
from camtool.layers.selection import find_layers
from camtool.models import Loaded, Transform, resolve_labels
from camtool.recorder import LayerSelection, select
from camtool.rendering.signal_plots import choose_tick_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.figures.canvas import Figure, PaperFigure, TileNumbers


OneInput: TypeAlias = "Source | Inputs | Mapping[str, Any]"
Order: TypeAlias = Literal["first", "strongest", "class"]

# Values of ``order=``: which channels are drawn.
ORDERS = ("first", "strongest", "class")

# Modules that ``layers="conv"`` selects.
CONVOLUTIONS = (*(nn.Conv1d, nn.Conv2d, nn.Conv3d), *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))


def feature_maps(
    model: nn.Module | Loaded,
    img: OneInput,
    layers: LayerSelection = "conv",
    channels: int = 16,
    order: Order = "first",
    *,
    target_class: Any = None,
    scale: Scale = "shared",
    columns: int | None = None,
    width: Width = "double",
    colormap: str | None = None,
    transform: Transform | None = None,
) -> Figure:
    """Draw the activations of layers' channels for one image, all layers on one page.

    Above the maps of a layer are its name and the shape of its output. Above each map is the number of the channel, and
    beside the maps is the scale that they share. Signals are drawn as plots of lines. :func:`feature_pages` draws one
    figure for each layer.

    The maps of a layer are in one of the figure's ``axes``, followed by the axes of the scale: ``images`` are the maps,
    and ``texts`` their titles. Each signal has its own axes.

    Args:
        model: Any module, or the result of :func:`camtool.load`. It is not changed.
        img: One image, as for :func:`camtool.explain`.
        layers: ``"conv"`` for all convolutions that run; or names, patterns such as ``"layer*.conv1"``, types and
            functions, as for :func:`camtool.recorder.select`.
        channels: Largest number of channels of each layer.
        order: The ``"first"`` channels; the ``"strongest"`` first, by the mean absolute value; or by their effect on a
            ``"class"``, the sum of gradient times activation.
        target_class: One class for ``order="class"``, as for :func:`camtool.explain`.
        scale: ``"shared"`` by the channels of a layer; or ``"each"`` from its lowest to its highest value. If values of
            both signs are colored around zero, each goes to its largest magnitude on both sides.
        columns: Number of maps in a row; the default is the number that is large enough to see.
        width: ``"single"`` or ``"double"`` column, see :data:`camtool.figures.WIDTHS`, or inches.
        colormap: Name known to matplotlib. The default is viridis, or RdBu_r for a layer with values of both signs: red
            is positive, white is zero, blue is negative.
        transform: Function from PIL image to the model's input, if ``model`` has none.

    Raises:
        LayerError: A name is unknown, no layer fits a pattern, or a layer's output has no grid.
        CamtoolError: Another argument is invalid.
    """
    inches = to_inches(width)
    check_count("columns", columns, optional=True)
    choice = _ChannelChoice(channels, order, target_class, scale, colormap)
    return panels.draw_panels(list(_build_panels(model, img, layers, choice, transform)), inches, columns)


def feature_pages(
    model: nn.Module | Loaded,
    img: OneInput,
    layers: LayerSelection = "conv",
    channels: int = 16,
    order: Order = "first",
    *,
    target_class: Any = None,
    scale: Scale = "shared",
    columns: int | None = None,
    width: Width = "double",
    colormap: str | None = None,
    transform: Transform | None = None,
) -> Iterator[tuple[str, Figure]]:
    """Draw :func:`feature_maps` with one figure for each layer, from one forward pass, one figure at a time.

    Yields:
        The name of the layer and its figure.
    """
    inches = to_inches(width)
    check_count("columns", columns, optional=True)
    choice = _ChannelChoice(channels, order, target_class, scale, colormap)
    for panel in _build_panels(model, img, layers, choice, transform):
        yield panel.name, panels.draw_panels([panel], inches, columns)


@dataclass(frozen=True)
class _ChannelChoice:
    """Choice of a layer's channels, and how they are drawn."""

    channels: int
    order: str
    target_class: Any
    scale: str
    colormap: str | None

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)
        check_choice("scale", self.scale, paper_style.SCALES)
        check_count("channels", self.channels, optional=True)
        if self.target_class is not None and self.order != "class":
            raise CamtoolError(f"target_class has no effect with order={self.order!r}; pass order='class'.")

    def build_panel(self, name: str, maps: Tensor, gradient: Tensor | None, note: str) -> panels.Panel:
        """Return the panel of the chosen channels.

        Args:
            name: Name of the layer, or words for the whole model.
            maps: Activations ``(C, *grid)``.
            gradient: Gradient of the class score, of the same shape, for ``order="class"``.
            note: Text at the end of the description.
        """
        numbers = self._choose_channels(maps, gradient)
        values = maps[numbers].float().cpu().numpy()
        shape = paper_style.format_shape(maps.shape)
        if values.ndim == 4:
            middle = values.shape[1] // 2
            shape, values = f"{shape}, slice {middle}", values[:, middle]
        description = f"{shape}{note}{paper_style.describe_non_finite(values)}"
        if self.colormap is None and values.ndim > 2 and _has_both_signs(values):
            values, reach, ends = panels.center_on_zero(values, self.scale)
            return panels.Panel(name, description, values, numbers, panels.DIVERGING, (-reach, reach), ends)
        panel = panels.Panel(name, description, values, numbers, self.colormap or "viridis", panels.find_limits(values))
        if self.scale == "shared":
            return panel
        return replace(panel, values=_scale_each(values), limits=(0.0, 1.0), ends=("low", "high"))

    def _choose_channels(self, maps: Tensor, gradient: Tensor | None) -> list[int]:
        most = min(self.channels, len(maps))
        if self.order == "first":
            return list(range(most))
        effects = maps.abs() if gradient is None else maps * gradient
        # Channels with NaN values come last.
        means = effects.flatten(1).float().mean(1).nan_to_num(nan=-torch.inf)
        return means.argsort(descending=True, stable=True)[:most].tolist()


def _build_panels(
    model: nn.Module | Loaded, img: OneInput, layers: Any, choice: _ChannelChoice, transform: Transform | None
) -> Iterator[panels.Panel]:
    """Yield the panels of the layers, in the order in which they ran."""
    loaded = model if isinstance(model, Loaded) else Loaded(get_module(model))
    batch = _prepare(loaded, img, transform)
    calls = trace(loaded.model, batch.inputs)
    names = _choose_layers(loaded.model, layers, calls)
    used = _find_layouts(loaded.model, batch.inputs, names, calls, to_list(layers))
    if choice.order == "class":
        evidence, label = _collect_evidence(loaded, batch, used, choice.target_class)
        maps: list[tuple[Tensor, Tensor | None]] = [(part.activations[0], part.gradients[0]) for part in evidence]
        note = f", most for {label} first"
    else:
        returned = run_with_hooks(loaded.model, [layer.name for layer in used], batch.inputs, grad=False).calls
        maps = [(layer.layout.to_grid(layer.layout.select_view(returned[layer.name][-1]))[0], None) for layer in used]
        note = ", the strongest first" if choice.order == "strongest" else ""
    for layer, (activations, gradient) in zip(used, maps, strict=True):
        yield choice.build_panel(layer.name or "the model", activations, gradient, note)


def _prepare(loaded: Loaded, img: OneInput, transform: Transform | None) -> InputBatch:
    """Return the model's input for one image.

    Raises:
        CamtoolError: There are several images.
    """
    prepare = InputPreparer(loaded.model, transform or loaded.transform, None)
    if isinstance(img, (Inputs, Mapping)):
        inputs = Inputs.from_user(img)
        batch, _ = prepare.prepare_inputs(inputs, inputs.find_image_candidates()[0])
    else:
        batch = InputBatch.from_prepared(list(prepare.iterate_inputs(img)))
    if len(batch.items) != 1:
        raise CamtoolError(f"img holds {len(batch.items)} images; pass one.")
    return batch


def _choose_layers(model: nn.Module, layers: Any, calls: Sequence[TracedCall]) -> list[str]:
    """Return the names of the selected layers in the order in which they ran.

    Of patterns, types and functions only layers that ran are selected. A layer given by name must have run.

    Raises:
        LayerError: A name is unknown, a named layer did not run, or no selected layer ran.
    """
    asked = to_list(layers)
    names = select_layers(model, layers)
    ran = {id(call.module): call_index for call_index, call in enumerate(calls)}
    calls_by_name = {name: ran.get(id(find_module(model, name))) for name in names}
    for name in asked:
        if isinstance(name, str) and name in calls_by_name and calls_by_name[name] is None:
            raise LayerError(f"layer {name!r} did not run in this forward pass; choose a layer that runs.")
    ordered = sorted((call_index, name) for name, call_index in calls_by_name.items() if call_index is not None)
    if not ordered:
        raise LayerError(f"layers={layers!r}: none of these layers ran in this forward pass.")
    return [name for _, name in ordered]


def select_layers(model: nn.Module, layers: LayerSelection) -> list[str]:
    """Return the names of the selected layers; ``"conv"`` selects all convolutions.

    Raises:
        LayerError: A name is unknown, or no layer is selected.
    """
    asked = to_list(layers)
    if not asked:
        raise LayerError("layers is empty; pass one or more.")
    if "conv" in asked and not any(map(has_filters, model.modules())):
        raise LayerError("layers='conv', but the model has no convolution; pass names, patterns or types of layers.")
    return select(model, [(lambda _, module: has_filters(module)) if choice == "conv" else choice for choice in asked])


def has_filters(module: nn.Module) -> bool:
    """Return True for a convolution."""
    return isinstance(module, CONVOLUTIONS)


def _find_layouts(
    model: nn.Module, inputs: nested_tensors.ModelInputs, names: Sequence[str], calls: Sequence[TracedCall], exact: Any
) -> list[Layer]:
    """Return the layers with the layouts of their outputs.

    The layout of a convolution is known, even if its output is 1 x 1, unless its batch has several rows for one image.
    Layers whose output has no grid are left out, unless they were given by name.

    Args:
        model: The model.
        inputs: Its inputs.
        names: Names of the layers.
        calls: Calls of modules in the forward pass.
        exact: Names that the user gave.

    Raises:
        LayerError: The output of a layer given by name has no grid, or that of all layers.
    """
    shapes, layers = {id(call.module): call.shape for call in calls}, []
    for name in names:
        module = find_module(model, name)
        shape = shapes[id(module)]
        if shape is not None and shape[0] == 1 and has_filters(module):
            layers.append(Layer(name, Layout("channels first", shape[2:])))
            continue
        try:
            layers += find_layers(model, inputs, [name])
        except LayerError:
            if name in exact or (name == names[-1] and not layers):
                raise
    return layers


def _collect_evidence(loaded: Loaded, batch: InputBatch, layers: list[Layer], want: Any) -> tuple[list[Evidence], str]:
    """Return the evidence of each layer for one class, and the name of the class.

    Raises:
        TargetError: There are several targets.
    """
    forward_pass = run_forward_pass(loaded.model, batch.inputs, layers)
    labels = resolve_labels(loaded.model, loaded.labels, forward_pass.class_count)
    geometry = batch.items[0].view.geometry
    predictions, link = forward_pass.predictions[0], forward_pass.find_link().link
    chosen = targets.resolve_targets(want, predictions, labels, geometry, link, forward_pass.find_class_vectors)
    if len(chosen) != 1:
        raise TargetError(f"target_class gives {len(chosen)} targets; pass one to order the channels by.")
    return gather_evidence(forward_pass, chosen), chosen[0].describe(labels)


def _has_both_signs(values: Any) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size) and float(finite.min()) < 0 < float(finite.max())


def _scale_each(values: Any) -> Any:
    """Return channels scaled from their lowest finite value to their highest, 0 to 1; not finite values are NaN."""
    finite, within = np.isfinite(values), tuple(range(1, values.ndim))
    low = values.min(within, keepdims=True, where=finite, initial=np.inf)
    high = values.max(within, keepdims=True, where=finite, initial=-np.inf)
    return (np.where(finite, values, np.nan) - low) / np.where(high > low, high - low, 1)


# Default number of filters: of filters drawn as one image each, and of rows in a table.
_MAX_FILTERS, _MAX_TABLE_ROWS = 64, 16

# Inches: largest height of a kernel in a table, and largest width of a square one.
_MAX_TILE = 0.6

# Height divided by width. Flatter kernels, such as 1 x 9, are stretched so that they can be seen.
_MIN_ASPECT = 0.25

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
    bar_height = min(max(table_height, panels.MIN_BAR_HEIGHT), panels.MAX_BAR_HEIGHT)
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
    numbers = range(0, count, choose_tick_step(spacing))
    tiles: TileNumbers = load_canvas().TileNumbers(name, numbers, [tile * size + (size - 1) / 2 for tile in numbers])
    return tiles
