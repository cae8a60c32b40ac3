"""Centers of the receptive fields of a layer's cells, by arithmetic.

Strided convolutions with symmetric padding place each output at the first of the pixels that it stands for, layer after
layer. So cell ``j`` of the last 7 x 7 grid of a ResNet has its center at pixel 32 j + 0.5, not at 32 j + 16, where a
grid that is stretched over the input has it.

The arithmetic is that of Araujo, Norris and Sim 2019, "Computing receptive fields of convolutional neural networks"
(Distill), with one change: a convolution looks where its trained weights are, not at the middle of its window. In
MobileNetV2 with ImageNet weights this moves the last layer by another 7 pixels.

It is done on autograd's graph from the image to the layer, so it covers what a forward method does outside of modules:
padding, slices, interpolation, branches. Each node of the graph turns the centers of its input into those of its
output. A node without a rule keeps them. In the end the centers are used only if they are those of a grid of the
layer's size: a step that was not understood, e.g. patches merged by a reshape, changes the size of the grid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks

from camtool.errors import ForwardError
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.hooks.observation import get_call, run_with_graph_from_image
from camtool.hooks.private_torch import get_node_shape, get_saved_integers, get_saved_value
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.graph_nodes import list_nodes
from camtool.hooks.structures.modules import WeightStates, list_weights, runs_outside_torch
from camtool.hooks.structures.nested_tensors import ModelInputs, find_main_tensor
from camtool.layers.depths import has_other_paths, iterate_graph
from camtool.layers.layouts import Layer, is_scaled_down
from camtool.layers.places.cell_responses import NoPlacesError, measure_centers
from camtool.layers.places.content_reads import ContentReads, may_read_in_script
from camtool.layers.responses import is_moved
from camtool.progress import follow_step

Sizes: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True)
class _Grid:
    """The grid that one tensor of the graph carries.

    Attributes:
        size: Number of cells along each axis of the image.
        axes: Where the cells lie in the input, in pixels, and how far each cell sees.
    """

    size: Sizes
    axes: tuple[AxisCenters, ...]


# The pixels of an axis, or its frames.
_PIXEL = AxisCenters(0.5, 1.0, 1.0)


class _UnreadableError(Exception):
    """A node places cells in a way that no rule covers. Its argument, if there is one, is the grid of its input."""


class _MixedError(_UnreadableError):
    """Branches that see other parts of the image are joined; the image's content may weigh them."""


def find_centers(model: nn.Module, inputs: ModelInputs, layer: Layer, *, call_index: int = -1) -> CellCenters | None:
    """Return the centers of a layer's cells, see :func:`find_place`."""
    return find_place(model, inputs, layer, call_index=call_index).centers


def find_place(model: nn.Module, inputs: ModelInputs, layer: Layer, *, call_index: int = -1) -> LayerPlace:
    """Return where a layer is; this runs the model.

    Args:
        model: Any module. Its state is preserved.
        inputs: What the model is called with. Their content matters where it decides which pixels the layer sees.
        layer: The layer.
        call_index: Which call of the layer is read if it runs more than once.
    """
    if runs_outside_torch(model):
        return _find_drawn_place(model, inputs, layer, call_index)
    if any(parameter.is_inference() for parameter in model.parameters()):  # autograd has no graph of these
        return LayerPlace(None, None, False, is_moved(model, inputs, layer, call_index), by_content=False)
    # The graph is only read, and never run backwards. Without its tensors it takes hardly any memory.
    own = {id(parameter) for parameter in model.parameters()}
    with follow_step("Examining the model"):
        try:
            with saved_tensors_hooks(partial(_keep_weights, own), _unpack):
                facts = _read_graph(model, inputs, layer, call_index)
        except ForwardError:  # the model itself differentiates, for which it needs the tensors
            facts = _read_graph(model, inputs, layer, call_index)
        weights = list_weights(model, buffers=False)
        states = WeightStates(weights, [index for index, weight in enumerate(weights) if _has_taps(weight)])
        is_doubtful = _is_doubtful(facts, model, inputs, layer, call_index)
        place = LayerPlace(facts.centers, states, facts.is_passed_by, False, facts.by_content)
        drawn = facts.part or CellCenters.stretch(layer.layout.grid, facts.size)
        return _measure_place(place, drawn, model, inputs, layer, call_index) if is_doubtful else place


def _measure_place(
    place: LayerPlace, drawn: CellCenters, model: nn.Module, inputs: ModelInputs, layer: Layer, call_index: int
) -> LayerPlace:
    """Return a place with measured centers, unless these agree with what the graph tells, which is exact then."""
    try:
        measured = measure_centers(model, inputs, layer, drawn, call_index=call_index)
    except NoPlacesError:
        return place._replace(is_moved=True, has_places=False)
    if measured is None:
        return place._replace(is_moved=True)
    return place if measured is drawn and drawn.covers_input(layer.layout.grid) else place._replace(centers=measured)


class _GraphFacts(NamedTuple):
    """Facts about a layer, read from the autograd graph; see :class:`LayerPlace` for ``centers`` and ``by_content``.

    Attributes:
        part: The layer's grid on the part of the image that the graph tells, see :func:`_read_places`.
        size: Size of the image, of a detector behind its own transform.
        is_passed_by: Whether other paths pass the layer by.
        may_be_moved: Whether the graph has an operation that may move the image.
        is_cut: Whether the layer's grid has other proportions than the image.
        is_transformed: Whether a Fourier transform lies before the layer.
    """

    centers: CellCenters | None
    part: CellCenters | None
    size: Sizes
    is_passed_by: bool
    may_be_moved: bool
    by_content: bool
    is_cut: bool
    is_transformed: bool


def _read_graph(model: nn.Module, inputs: ModelInputs, layer: Layer, call_index: int) -> _GraphFacts:
    # The graph is read while the model is preserved, as checkpointed parts of the model run again when they are read.
    with guard(model):
        with ContentReads() as reads:
            image, observed = run_with_graph_from_image(model, [layer.name], inputs)
        output, grid = get_call(layer.name, observed.calls[layer.name], call_index), layer.layout.grid
        size = tuple(image.shape[2:])
        ((part, is_exact, is_mixed),) = _read_places([(output, grid)], image, has_frames=layer.layout.has_frames)
        return _GraphFacts(
            part if is_exact else None,
            part,
            size,
            has_other_paths(observed.output, output, image),
            _may_be_moved(output),
            is_mixed or reads.come_before(output) or may_read_in_script(model),
            is_cut=not is_scaled_down(grid, size),
            is_transformed=any(node.name().startswith("Fft") for node in list_nodes(output)),
        )


def _is_doubtful(facts: _GraphFacts, model: nn.Module, inputs: ModelInputs, layer: Layer, call_index: int) -> bool:
    """Return whether the cells may not lie where the graph, or else a grid over the whole image, has them."""
    is_part = facts.part is not None and not facts.part.covers_input(layer.layout.grid)
    if facts.is_transformed or (facts.centers is None and (facts.by_content or facts.is_cut or is_part)):
        return True
    return facts.may_be_moved and (is_part or is_moved(model, inputs, layer, call_index))


def _find_drawn_place(model: Any, inputs: ModelInputs, layer: Layer, call_index: int) -> LayerPlace:
    """Return where a layer is in a model that runs outside of torch, and may draw its trunk as a graph."""
    main = find_main_tensor(inputs)
    output, centers = None, None
    if main is not None and hasattr(model, "draw_trunk"):
        with torch.enable_grad():
            image = main[:1].detach().to("cpu", torch.float32).clone().requires_grad_()
            output = model.draw_trunk(layer.name, image)
            centers = None if output is None else read_centers([(output, layer.layout.grid)], image)[0]
    mirrored = [axis for axis, line in enumerate(centers.axes) if line.stride < 0] if centers else []
    moved = (output is None or _may_be_moved(output)) and is_moved(model, inputs, layer, call_index, mirrored)
    return LayerPlace(centers, None, False, moved, by_content=False)


# Names of nodes that may bring pixels to other places. Most do not: models with their channels last permute axes.
_MOVING = re.compile(
    "(Flip|Roll|Rot90|Permute|Transpose|Index|IndexSelect|IndexPut|Gather|Take|Stack|AsStrided|GridSampler.D)Backward"
)


def _may_be_moved(output: Tensor) -> bool:
    """Check that a graph has a node that may mirror, turn or move the image, or joins parts along an axis of it."""
    return any(
        _MOVING.match(node.name())
        or (node.name().startswith("CatBackward") and get_saved_integers(node, "dim")[0] not in (0, 1))
        for node in list_nodes(output)
    )


class LayerPlace(NamedTuple):
    """Places of a layer's cells in the input, and whether other paths pass the layer by.

    Attributes:
        centers: The centers of its cells, or None if arithmetic does not determine them, e.g. for Swin transformers,
            which merge patches by a reshape, and for weights made in inference mode.
        weights: The states of the weights that the centers depend on; ``None`` if they depend on none.
        has_other_paths: See :func:`camtool.layers.depths.has_other_paths`.
        is_moved: Whether the image was mirrored, turned or rolled on the way to the layer, so that its cells respond to
            other places than their own.
        by_content: Whether the image's content decides where the cells lie, so that all of this holds for it alone.
        has_places: Whether the cells are known to lie nowhere, e.g. behind a Fourier transform, if it is False.
    """

    centers: CellCenters | None
    weights: WeightStates | None
    has_other_paths: bool
    is_moved: bool
    by_content: bool
    has_places: bool = True

    def stretch(self, layer: Layer) -> LayerPlace:
        """Return the place without centers: the layer's grid is stretched over the input, where it may not lie."""
        is_elsewhere = self.centers is not None and not self.centers.covers_input(layer.layout.grid)
        return self._replace(centers=None, is_moved=self.is_moved or is_elsewhere)


def _has_taps(tensor: Tensor) -> bool:
    """Return True for a shape of the weight of a convolution whose window has several taps."""
    return tensor.ndim >= _FEWEST_AXES and max(tensor.shape[2:]) > 1


def _keep_weights(own: Collection[int], tensor: Tensor) -> Tensor | torch.Size:
    """Return what autograd saves: weights of convolutions with several taps, what names positions, else the shape.

    Args:
        own: The ids of the model's parameters.
        tensor: What autograd saves.
    """
    if _says_positions(tensor):
        return tensor
    source = _find_source(tensor) if _has_taps(tensor) else None
    if source is None:  # activations, and weights that are computed from parameters
        return tensor.shape
    # FSDP and offloading gather a parameter for one forward pass, and free its memory afterwards.
    if isinstance(source, nn.Parameter) and id(source) not in own:
        return tensor.detach().clone()
    # Under autocast, the half-precision copy of a frozen weight is a leaf.
    is_frozen_copy = not source.requires_grad and source.dtype in (torch.float16, torch.bfloat16)
    return tensor if isinstance(source, nn.Parameter) or is_frozen_copy else tensor.shape


def _says_positions(tensor: Tensor) -> bool:
    """Return True for what may be the grid of an interpolation, an index along one axis, or a mask for whole images."""
    if tensor.is_floating_point():
        return tensor.ndim > _FEWEST_AXES and tensor.shape[-1] == tensor.ndim - 2
    return tensor.numel() <= max(tensor.shape, default=1)


def _unpack(kept: Tensor | torch.Size) -> Tensor:
    return kept if isinstance(kept, Tensor) else torch.empty(kept, device="meta")


def _find_source(tensor: Tensor) -> Tensor | None:
    """Return the leaf that a tensor is, or that it is a copy of in half precision, under autocast; None for results."""
    node = tensor.grad_fn
    if node is None:
        return tensor
    source = node.next_functions[0][0] if node.name() == "ToCopyBackward0" else None
    return None if source is None else get_saved_value(source, "variable")


def read_centers(outputs: Sequence[tuple[Tensor, Sequence[int]]], image: Tensor) -> list[CellCenters | None]:
    """Return the centers of the cells of outputs, read from the graph between the image and each output.

    Args:
        outputs: Outputs of layers, on the graph, each with the size of its grid.
        image: The image input ``(N, C, *size)``, a leaf of the graph.

    Returns:
        For each output the centers, or None if the graph does not determine them.
    """
    positions = _read_places(outputs, image, has_frames=False)
    return [part if is_exact else None for part, is_exact, _ in positions]


def _read_places(
    outputs: Sequence[tuple[Tensor, Sequence[int]]], image: Tensor, *, has_frames: bool
) -> list[tuple[CellCenters | None, bool, bool]]:
    """Return the centers of the cells of outputs, see :func:`read_centers`, and whether each step was understood.

    The third value is whether branches were joined that see other parts of the image.

    If one was not, the cells are spread over the part of the image that the step before it saw. This is right for
    patches behind a crop, e.g., but not for a step that moves pixels.

    If ``has_frames``, the rows of the layers' batch are the frames of clips ``(N, C, T, H, W)``: the graph is read for
    height and width alone, and each row of cells belongs to its own frame.
    """
    size = tuple(image.shape[2:])
    before = (_PIXEL,) * has_frames  # the time axis, which the graph moves to the batch
    start = _Grid(size[len(before) :], (_PIXEL,) * (len(size) - len(before)))
    known: dict[Node, _Grid | None] = {}

    def find_grid(root: Node) -> _Grid | None:
        for node in iterate_graph(root, known):
            children = [
                _select_part(child, number, known.get(child))
                for child, number in node.next_functions
                if child is not None
            ]
            known[node] = start if get_saved_value(node, "variable") is image else _pass_node(node, children)
        return known[root]

    def find_place(root: Node | None, grid: Sequence[int]) -> tuple[CellCenters | None, bool, bool]:
        is_understood, is_mixed = True, False
        try:
            cells = None if root is None else find_grid(root)
        except _UnreadableError as error:
            (cells, *_), is_understood, is_mixed = (*error.args, None), False, isinstance(error, _MixedError)
        if cells is None or len(before) + len(cells.size) != len(grid):
            return None, False, is_mixed
        is_exact = is_understood and (*size[: len(before)], *cells.size) == tuple(grid)
        axes = _cover(cells, tuple(grid[len(before) :])).axes
        return CellCenters(size, (*before, *axes)), is_exact, is_mixed

    return [find_place(output.grad_fn, grid) for output, grid in outputs]


def _pass_node(node: Node, children: Sequence[_Grid | None]) -> _Grid | None:
    """Return the grid of a node's output; None if its output does not depend on positions of the image."""
    if not any(children):
        return None
    name = re.sub(r"Backward\d*$", "", node.name())
    rule = _RULES.get(name)
    try:
        shape = get_node_shape(node)
        if rule is None:
            return _join(_choose(node, children) if name == "Where" else children, shape)
        # Weights and indices that follow the first input carry no grid of their own.
        return None if children[0] is None else rule(node, children[0], shape)
    # No rule covers it, this torch saves other values in it, or these cannot be read, e.g. because of checkpointing.
    except (_UnreadableError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        kind = _MixedError if isinstance(error, _MixedError) else _UnreadableError
        raise kind(next(filter(None, children))) from None


def _join(children: Sequence[_Grid | None], shape: Sizes) -> _Grid | None:
    """Return the grid of a sum, a product or a concatenation: at the mean of the centers of its parts.

    Patches that are merged as a concatenation of strided slices have their center at the mean of the slices' centers.
    """
    grids = [child for child in children if child is not None]
    sizes = {grid.size for grid in grids}
    if len(sizes) > 1:  # e.g. attention of all positions to a coarser grid: the result has the grid of the queries
        grids = [grid for grid in grids if _carries(shape, grid.size)]
        grids = [grid for grid in grids if grid.size == grids[0].size]
        if not grids:
            _refuse()
    if len(grids) == 1:
        return grids[0]
    axes = tuple(_join_axis(axis) for axis in zip(*(grid.axes for grid in grids), strict=True))
    return _Grid(grids[0].size, axes)


def _join_axis(axes: Sequence[AxisCenters]) -> AxisCenters:
    offset, stride = fmean(axis.offset for axis in axes), axes[0].stride
    if any(axis.stride * stride < 0 or abs(axis.offset - offset) > _FAR * abs(stride) for axis in axes):
        raise _MixedError
    if any(abs(axis.stride - stride) > 1e-6 * abs(stride) for axis in axes):
        _refuse()
    # The branches together see from the first pixel that one of them sees to the last.
    first = min(axis.offset - axis.field / 2 for axis in axes)
    last = max(axis.offset + axis.field / 2 for axis in axes)
    return AxisCenters(offset, axes[0].stride, last - first)


def _carries(shape: Sizes, size: Sizes) -> bool:
    """Check that a tensor of this shape may hold a grid of this size, as axes in a row or as tokens."""
    windows = [shape[first : first + len(size)] for first in range(len(shape))]
    return size in windows or math.prod(size) in shape


# ------------------------------------------------------------------------------------------------- rules of nodes

_Rule: TypeAlias = Callable[[Node, _Grid, Sizes], _Grid | None]


def _slide(
    grid: _Grid,
    shape: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    taps: Sequence[float] | None = None,
) -> _Grid:
    """Return the grid after a window that slides over the last axes, as in a convolution or a pooling.

    Args:
        grid: The grid before it.
        shape: The shape of what it returns.
        kernel: The size of the window, as are the next three for each axis.
        stride: Its step.
        padding: The cells that are added on both sides.
        dilation: The distance of its taps.
        taps: The tap around which it is centered; by default the middle one.
    """
    taps = [(length - 1) / 2 for length in kernel] if taps is None else taps
    if len(kernel) < len(grid.size):
        # Frames are folded into the batch, or tokens are in a row: only windows of one cell keep the grid.
        return grid if set(kernel + stride) == {1} else _refuse()
    axes, size = list(grid.axes), list(grid.size)
    for back in range(1, len(axes) + 1):
        old, reach = axes[-back], dilation[-back] * (kernel[-back] - 1)
        cells = (size[-back] + 2 * padding[-back] - reach - 1) // stride[-back] + 1
        # One more in ceil mode. Another number: a step before was not understood, e.g. pixels that became channels.
        if not cells <= shape[-back] <= cells + 1:
            _refuse()
        axes[-back] = AxisCenters(
            old.offset + old.stride * (dilation[-back] * taps[-back] - padding[-back]),
            old.stride * stride[-back],
            old.field + abs(old.stride) * reach,
        )
        size[-back] = shape[-back]
    return _Grid(tuple(size), tuple(axes))


def _convolve(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    weight = _get_weight(node)
    kernel = tuple(weight.shape[2:])
    stride, padding, dilation = (
        _repeat(get_saved_integers(node, name), len(kernel)) for name in ("stride", "padding", "dilation")
    )
    if not get_saved_value(node, "transposed"):
        return _slide(grid, shape, kernel, stride, padding, dilation, _find_central_taps(weight))
    if len(kernel) != len(grid.size):
        return _refuse()
    axes = []
    for old, k, s, p, d in zip(grid.axes, kernel, stride, padding, dilation, strict=True):
        # An input cell i reaches the outputs s i - p to s i - p + d (k - 1): the inverse of a convolution.
        fine = old.stride / s
        axes.append(AxisCenters(old.offset + fine * (p - d * (k - 1) / 2), fine, old.field))
    return _Grid(shape[-len(axes) :], tuple(axes))


def _get_weight(node: Node) -> Tensor:
    """Return the weight of a convolution. The graph leads to a trainable one, also where saved tensors are dropped."""
    source = node.next_functions[1][0] if len(node.next_functions) > 1 else None
    parameter: Tensor | None = None if source is None else get_saved_value(source, "variable")
    return get_saved_value(node, "weight") if parameter is None or not _has_values(parameter) else parameter


def _has_values(weight: Tensor) -> bool:
    """Return False on the meta device, and if FSDP has freed the memory: to read that would end the process."""
    return not weight.is_meta and weight.untyped_storage().nbytes() > 0


def _find_central_taps(weight: Tensor) -> list[float]:
    """Return for each axis the tap around which a convolution's filters have their weight.

    It is the mean over the filters of the centroid of their squared weights. Trained convolutions may weigh one side
    more, above all strided ones. Random ones do not: the middle tap is returned unless the mean differs from it by
    more than chance, and the part that chance explains is subtracted (James and Stein's shrinkage).

    Args:
        weight: ``(O, C, *kernel)``.
    """
    taps = [(length - 1) / 2 for length in weight.shape[2:]]
    if not _has_values(weight) or max(weight.shape[2:]) == 1:
        return taps
    energy = weight.detach().float().square().sum(1)
    energy = energy[energy.flatten(1).sum(1) > 0]
    if len(energy) < _FEWEST_FILTERS:
        return taps
    for axis, middle in enumerate(taps):
        line = energy.movedim(axis + 1, -1).flatten(1, -2).sum(1) if energy.ndim > 2 else energy
        centroids = (line * torch.arange(line.shape[1], device="cpu").to(line)).sum(1) / line.sum(1)
        shift, error = float(centroids.mean()) - middle, float(centroids.std()) / len(energy) ** 0.5
        if abs(shift) > max(_STANDARD_ERRORS * error, _SHIFT_ROUNDING):
            taps[axis] += shift * (1 - (error / shift) ** 2)
    return taps


# Axes of the weight of a convolution over signals; those over images and volumes have more.
_FEWEST_AXES = 3

# With fewer filters, the middle tap is used: their mean depends too much on chance.
_FEWEST_FILTERS = 8

# A shift from the middle tap that is smaller than this number of standard errors is chance.
_STANDARD_ERRORS = 2.5

# A smaller shift, in taps, is rounding.
_SHIFT_ROUNDING = 1e-4


def _pool(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    kernel = get_saved_integers(node, "kernel_size")
    stride = _repeat(get_saved_integers(node, "stride") or kernel, len(kernel))
    padding = _repeat(get_saved_integers(node, "padding"), len(kernel))
    dilation = _repeat(get_saved_integers(node, "dilation") or (1,), len(kernel))
    return _slide(grid, shape, kernel, stride, padding, dilation)


def _pad(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Pad or crop the last axes; a pair of numbers for each, the last axis first."""
    pairs = get_saved_integers(node, "pad") or get_saved_integers(node, "padding")
    if not any(pairs):
        return grid
    pads = dict(enumerate(zip(pairs[::2], pairs[1::2], strict=True), 1))
    old = tuple(length - sum(pads.get(len(shape) - dim, (0, 0))) for dim, length in enumerate(shape))
    is_last = old[-len(grid.size) :] != grid.size  # the channels are
    if is_last and old[1:-1] != grid.size:
        _refuse()
    axes = shape[1:-1] if is_last else shape
    return _crop(grid, {back - is_last: (-before, 1) for back, (before, _) in pads.items() if back > is_last}, axes)


def _slice(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Take each n-th cell from a first one on, along one axis."""
    old = get_saved_integers(node, "self_sym_sizes")
    dim, start, step = (get_saved_integers(node, name)[0] for name in ("dim", "start", "step"))
    back = None if old == shape else _find_axis(grid, old, dim)
    if back is None:  # tokens, e.g. without the class token, or channels
        return grid
    start = min(max(start + old[dim] if start < 0 else start, 0), old[dim])
    return _take(grid, back, shape[dim], start, step)


def _find_axis(grid: _Grid, shape: Sizes, dim: int) -> int | None:
    """Return which axis of the grid an axis of a tensor is, counted from 1 for the last one; None if it is none."""
    dim %= len(shape)
    # Frames may be an axis of their own, before they are folded into the batch.
    is_first, is_last = grid.size in (shape[2:], shape[3:]), shape[1:-1] == grid.size
    if not (is_first or is_last):
        return None
    back = len(shape) - dim if is_first else len(shape) - 1 - dim
    other = len(shape) - 1 - dim if is_first else len(shape) - dim
    if is_first and is_last and 1 <= back <= len(grid.size) and 1 <= other <= len(grid.size):
        _refuse()  # as many channels as rows and columns: the axes cannot be told apart
    return back if 1 <= back <= len(grid.size) else None


def _take(grid: _Grid, back: int, count: int, start: float, step: float) -> _Grid:
    """Return a number of cells of a grid along one axis, counted from the last one: each so many cells from a first."""
    axes, size = list(grid.axes), list(grid.size)
    old = axes[-back]
    axes[-back] = replace(old, offset=old.offset + old.stride * start, stride=old.stride * step)
    size[-back] = count
    return _Grid(tuple(size), tuple(axes))


def _take_places(grid: _Grid, back: int, indices: Tensor) -> _Grid:
    """Return the cells at places ``(P,)`` along one axis; refuse places that are not equally far from one another."""
    steps = indices.double().diff()
    if len(steps) and float((steps - steps.mean()).abs().max()) > _UNEVEN:
        _refuse()
    return _take(grid, back, len(indices), float(indices[0]), float(steps.mean()) if len(steps) else 1.0)


def _select_part(node: Node, number: int, grid: _Grid | None) -> _Grid | None:
    """Return the grid of one output of a node that splits a tensor; other nodes have one grid."""
    name = node.name()
    if grid is None or not name.startswith("Split"):
        return grid
    old, (dim,) = get_saved_integers(node, "self_sym_sizes"), get_saved_integers(node, "dim")
    back, dim = _find_axis(grid, old, dim), dim % len(old)
    if back is None:  # channels
        return grid
    length = get_saved_integers(node, "split_size")
    start = length[0] * number if length else sum(get_saved_integers(node, "split_sizes")[:number])
    return _take(grid, back, get_node_shape(node, number)[dim], start, 1)


def _index(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Take cells by their numbers along one axis; other axes, e.g. of tokens, keep the grid."""
    old = get_saved_integers(node, "self_sym_sizes")
    dims, index = get_saved_integers(node, "dim"), get_saved_value(node, "index")
    chosen = dict(enumerate(get_saved_value(node, "indices") or ())) if index is None else {dims[0] % len(old): index}
    backs = {dim: _find_axis(grid, old, dim) for dim, numbers in chosen.items() if numbers is not None}
    if not any(backs.values()):
        return grid
    ((dim, back),) = backs.items()
    numbers = chosen[dim]
    if back is None or numbers.ndim != 1 or numbers.is_meta or numbers.dtype == torch.bool:
        _refuse()
    return _take_places(grid, back, numbers % old[dim])


def _sample(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Interpolate at places that a tensor names, as in a crop or a zoom; refuse what is turned or bent."""
    positions = get_saved_value(node, "grid")[0].double()
    if positions.is_meta or len(shape) != len(grid.size) + 2:
        _refuse()
    is_aligned = get_saved_value(node, "align_corners")
    for back, cells in enumerate(reversed(grid.size), 1):
        # The first number is the position along the last axis.
        along = positions[..., back - 1].movedim(-back, 0).flatten(1)
        if float((along - along[:, :1]).abs().max()) * cells > _UNEVEN:
            _refuse()
        line = along[:, 0]
        at = (line + 1) / 2 * (cells - 1) if is_aligned else ((line + 1) * cells - 1) / 2
        grid = _take_places(grid, back, at)
    return grid


def _choose(node: Node, children: Sequence[_Grid | None]) -> Sequence[_Grid | None]:
    """Return of two branches the one that a mask takes, if it takes one for the whole image; else both."""
    mask = get_saved_value(node, "condition")
    if mask.is_meta or mask.numel() != 1 or len(children) < 2:
        return children
    return [children[0] if bool(mask) else children[1]]


# Distance in cells from their mean up to which joined branches may lie: patches of 16 x 16 slices do, crops do not.
_FAR = 8.0

# Distance in cells from which places do not count as equally far from one another.
_UNEVEN = 0.01


def _crop(grid: _Grid, starts: dict[int, tuple[float, float]], shape: Sizes) -> _Grid:
    """Return the grid with other first cells and steps along axes that are counted from the last one."""
    for back, (start, step) in starts.items():
        if back <= len(grid.size):
            grid = _take(grid, back, shape[-back], start, step)
    return grid


def _flip(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Mirror axes: the centers of the image's run backwards."""
    for dim in get_saved_integers(node, "dims"):
        back = _find_axis(grid, shape, dim)
        if back is not None:
            grid = _take(grid, back, shape[dim], shape[dim] - 1, -1)
    return grid


def _resample(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Interpolate, or average adaptively: the old and the new cells cover the same pixels."""
    count = len(grid.size)
    new = shape[-count:]
    if len(shape) != count + 2 or set(new) == {1}:
        return None if set(new) == {1} else _refuse()
    return _cover(grid, new, is_aligned=bool(get_saved_value(node, "align_corners")))


def _cover(grid: _Grid, new: Sizes, *, is_aligned: bool = False) -> _Grid:
    """Return a grid of another size on the same pixels; if ``is_aligned``, with the same first and last centers."""
    starts = {}
    for back in range(1, len(new) + 1):
        old_cells, cells = grid.size[-back], new[-back]
        if is_aligned and cells > 1:
            starts[back] = (0.0, (old_cells - 1) / (cells - 1))
        else:
            step = old_cells / cells
            starts[back] = (step / 2 - 0.5, step)
    return _crop(grid, starts, new)


def _reduce(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Reduce axes: a mean over positions is the same everywhere, a mean over channels keeps the grid."""
    old = get_saved_integers(node, "self_sym_sizes") or tuple(getattr(get_saved_value(node, "self"), "shape", ()))
    dims = {dim % len(old) for dim in get_saved_integers(node, "dim")} if old else set()
    count = len(grid.size)
    for first in (2, 1):
        if old[first : first + count] == grid.size:
            return None if dims & set(range(first, first + count)) else grid
    return None if any(old[dim] == math.prod(grid.size) for dim in dims) else grid


def _shuffle(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Turn channels into pixels (upscale) or pixels into channels (downscale)."""
    up = get_saved_integers(node, "upscale_factor")
    step = 1 / up[0] if up else float(get_saved_integers(node, "downscale_factor")[0])
    return _crop(grid, dict.fromkeys((1, 2), (step / 2 - 0.5, step)), shape)


def _unfold(node: Node, grid: _Grid, shape: Sizes) -> _Grid | None:
    """Cut one axis into windows, whose cells become a new last axis."""
    old, count = get_saved_integers(node, "self_sym_sizes"), len(grid.size)
    dim, length, step = (get_saved_integers(node, name)[0] for name in ("dimension", "size", "step"))
    starts = [first for first in range(1, len(old)) if old[first : first + count] == grid.size]
    backs = [first + count - dim % len(old) for first in starts]
    if len(backs) != 1:  # e.g. as many channels as rows and columns
        _refuse()
    if not 1 <= backs[0] <= count:  # channels
        return grid
    lines = [(1, 1, 0, 1, cells) for cells in grid.size]
    lines[-backs[0]] = (length, step, 0, 1, shape[dim % len(old)])
    kernel, stride, padding, dilation, size = zip(*lines, strict=True)
    return _slide(grid, size, kernel, stride, padding, dilation)


def _repeat(numbers: Sizes, axes: int) -> Sizes:
    """Return a number for each axis; ``padding="valid"`` saves a single one."""
    return numbers * axes if len(numbers) == 1 else numbers


def _refuse() -> NoReturn:
    raise _UnreadableError


_RESAMPLING = [
    *(f"Upsample{kind}1D" for kind in ("Linear", "Nearest", "NearestExact")),
    *(f"Upsample{kind}2D" for kind in ("Bilinear", "Bicubic", "Nearest", "NearestExact")),
    *(f"Upsample{kind}3D" for kind in ("Trilinear", "Nearest", "NearestExact")),
    *(f"Adaptive{kind}Pool{axes}D" for kind in ("Avg", "Max") for axes in (2, 3)),
    *("UpsampleBilinear2DAa", "UpsampleBicubic2DAa"),
]

_POOLING = ("MaxPool2DWithIndices", "MaxPool3DWithIndices", "AvgPool2D", "AvgPool3D")
_PADDING = [f"{kind}Pad{axes}D" for kind in ("Reflection", "Replication") for axes in (1, 2, 3)]
_REDUCING = ("Mean", "Sum", "Amax", "Amin", "Var", "VarMean", "Std", "StdMean", "Norm", "LinalgVectorNorm")

# Name of an autograd node → its rule. Other nodes keep the grid.
_RULES: dict[str, _Rule] = {
    "Convolution": _convolve,
    "Slice": _slice,
    "Unfold": _unfold,
    "Flip": _flip,
    "Index": _index,
    "IndexSelect": _index,
    "GridSampler2D": _sample,
    "GridSampler3D": _sample,
    "ConstantPadNd": _pad,
    "PixelShuffle": _shuffle,
    "PixelUnshuffle": _shuffle,
    **dict.fromkeys(_POOLING, _pool),
    **dict.fromkeys(_PADDING, _pad),
    **dict.fromkeys(_RESAMPLING, _resample),
    **dict.fromkeys(_REDUCING, _reduce),
}
