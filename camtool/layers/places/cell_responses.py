"""Measure the receptive field of a cell for one image, by the gradient of its activation.

The squared gradient of random projections of a cell's channels with respect to the image is how much each pixel counts
(Luo et al. 2016, "Understanding the effective receptive field in deep convolutional neural networks", NeurIPS). Its
centroid is the center of the cell, also behind a crop or a mirror inside of the model. It holds for this image alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.errors import CamtoolError, ForwardError
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.hooks.model_passes import differentiate
from camtool.hooks.observation import get_call, run_with_graph_from_image
from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.structures.modules import lacks_gradients
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.layers.layouts import Layer
from camtool.layers.responses import observe_variants
from camtool.layers.survey_batches import find_image_size, vary_covered

# The indices of a cell along the axes of a grid.
Cell: TypeAlias = "tuple[int, ...]"

# Random projections of a cell's channels. With one, channels that happen to cancel each other would hide pixels.
_PROJECTIONS = 2

# Number of parts of each axis in which one cell is measured, and with which exact centers are confirmed first.
_PARTS, _FEW_PARTS = 4, 2

# With fewer cells that respond, no grid is fitted to their places.
_FEWEST_CELLS = 4

# Distance in strides, as the root mean square over the cells, up to which measured places are those of a grid.
_MOST_RESIDUAL = 0.75

# Spread along each axis, as a share of the image, from which a cell sees all of it; a uniform response has 0.29.
_WHOLE = 0.25

# Length of a stride, as a share of that of a grid that covers the image, from which cells have places of their own.
_LEAST_STRIDE = 0.05


# Length of a receptive field, as a share of the image, up to which it tells one place from another.
_SMALL = 0.5

# Share of a response within the receptive field from which it lies there.
_LEAST_WITHIN = 0.95


@dataclass(frozen=True)
class CellResponse:
    """The pixels that a cell depends on.

    Attributes:
        shares: How much of the dependence lies in each pixel, ``(*size)``; the sum is 1.
        center: The centroid, in pixels.
        spread: The distance of the pixels from it, in pixels along each axis: the standard deviation.
    """

    shares: NDArray[np.float64]
    center: NDArray[np.float64]
    spread: NDArray[np.float64]

    @property
    def sees_all(self) -> bool:
        """True if the cell depends on pixels all over the image."""
        return bool((self.spread > _WHOLE * np.array(self.shares.shape)).all())


def measure_responses(
    model: nn.Module,
    inputs: ModelInputs,
    layer: Layer,
    cells: Sequence[Cell] | None = None,
    *,
    parts: int = _PARTS,
    call_index: int = -1,
) -> dict[Cell, CellResponse]:
    """Return the pixels of the first image that cells of a layer depend on: a forward pass, two backward ones per cell.

    Args:
        model: Any module with gradients. Its state is preserved.
        inputs: What the model is called with.
        layer: The layer.
        cells: The indices of each cell along the axes of the layer's grid; by default the strongest cell of each of
            several parts of the grid.
        parts: Number of parts of each axis of the grid.
        call_index: Which call of the layer is read if it runs more than once.

    Returns:
        The response of each cell whose gradient reaches the image; behind a ReLU at zero it does not.

    Raises:
        ForwardError: The model or its backward pass fails.
    """
    image, observed = run_with_graph_from_image(model, [layer.name], inputs)
    output = get_call(layer.name, observed.calls[layer.name], call_index)
    with enable_gradients():
        maps = layer.layout.to_grid(layer.layout.select_view(output))[0].movedim(0, -1)
        asked = _choose_strongest(maps.detach(), parts) if cells is None else cells
        found = {cell: _measure_response(maps[cell], image) for cell in asked if maps.requires_grad}
    return {cell: response for cell, response in found.items() if response is not None}


def cover_parts(
    model: nn.Module, inputs: ModelInputs, layer: Layer, cells: Sequence[Cell], *, call_index: int = -1
) -> dict[Cell, CellResponse]:
    """Return what :func:`measure_responses` does, but for a model without gradients.

    Each part of the image is covered by its mean, one after the other; the response is the squared change of a cell.
    """
    size, most = find_image_size(inputs), _MOST_COVERED[len(find_image_size(inputs))]
    lines = [torch.arange(pixels, device="cpu") * min(most, pixels) // pixels for pixels in size]
    counts = [int(line[-1]) + 1 for line in lines]
    parts = torch.zeros(size, dtype=torch.long, device="cpu")
    for axis, line in enumerate(lines):
        parts = parts * counts[axis] + line.reshape(-1, *[1] * (len(size) - 1 - axis))
    covered = vary_covered(inputs, parts)
    output = observe_variants(model, [layer.name], covered)[layer.name][call_index]
    maps = layer.layout.to_grid(layer.layout.select_view(output)).detach().cpu().double().movedim((0, 1), (-2, -1))
    found = {}
    for cell in cells:
        values = maps[cell]
        change = (values[1:] - values[:1]).square().sum(1)
        if float(change.sum()) > 0:
            shares = (change / torch.bincount(parts.flatten()))[parts]
            found[cell] = _describe((shares / shares.sum()).numpy())
    return found


# Number of axes of an image to the number of parts along each: 32, 64 or 64 in all.
_MOST_COVERED = {1: 32, 2: 8, 3: 4}


def _choose_strongest(maps: Tensor, count: int) -> list[Cell]:
    """Return the cell with the largest norm in each of ``count`` parts along each axis, from ``(*grid, C)``."""
    strength = maps.float().norm(dim=-1).cpu().numpy()
    parts = product(*(np.array_split(np.arange(cells), min(cells, count)) for cells in strength.shape))
    chosen = []
    for part in parts:
        within = strength[np.ix_(*part)]
        best = np.unravel_index(int(np.nan_to_num(within).argmax()), within.shape)
        chosen.append(tuple(int(line[index]) for line, index in zip(part, best, strict=True)))
    return chosen


def _measure_response(channels: Tensor, image: Tensor) -> CellResponse | None:
    energy = torch.zeros(image.shape[2:], dtype=torch.float64, device="cpu")
    for seed in range(_PROJECTIONS):
        direction = torch.randn(len(channels), generator=torch.Generator().manual_seed(seed), device="cpu")
        projected = (channels * direction.to(channels)).sum()
        (gradient,) = differentiate(projected, [image], retain_graph=True, allow_unused=True)
        if gradient is not None:
            energy += gradient[0].detach().cpu().double().nan_to_num().square().sum(0)
    total = float(energy.sum())
    return None if total == 0 else _describe(energy.numpy() / total)


def _describe(shares: NDArray[np.float64]) -> CellResponse:
    positions = [np.arange(pixels) + 0.5 for pixels in shares.shape]
    along = [shares.sum(tuple(other for other in range(shares.ndim) if other != axis)) for axis in range(shares.ndim)]
    center = np.array([line @ position for line, position in zip(along, positions, strict=True)])
    variance = [line @ (at - middle) ** 2 for line, at, middle in zip(along, positions, center, strict=True)]
    return CellResponse(shares, center, np.sqrt(variance))


class NoPlacesError(CamtoolError):
    """Cells depend on the whole image alike, so that they have no places."""


def measure_centers(
    model: nn.Module, inputs: ModelInputs, layer: Layer, expected: CellCenters | None = None, *, call_index: int = -1
) -> CellCenters | None:
    """Return the centers of a layer's cells for the first image, from the responses of some cells.

    A grid is fitted to their centroids. It may be a part of the image, enlarged, or mirrored.

    Args:
        model: Any module with gradients. Its state is preserved.
        inputs: What the model is called with.
        layer: The layer.
        expected: Exact centers, which are returned if they agree with the responses. A grid that is fitted to a few
            cells, near to each other, is uncertain far from them; dead neighbors and borders shift a response.
        call_index: Which call of the layer is read if it runs more than once.

    Returns:
        The centers; ``None`` if the cells lie on no such grid, e.g. that of a turned image.

    Raises:
        NoPlacesError: Most cells see the whole image, and no line fits.
    """
    if lacks_gradients(model):
        return None
    found: dict[Cell, CellResponse] = {}
    for parts in (_FEW_PARTS, _PARTS):
        try:
            found = measure_responses(model, inputs, layer, parts=parts, call_index=call_index)
        except ForwardError:  # an operation has no backward pass
            return None
        if expected is not None and len(found) >= _FEWEST_CELLS and _agree(expected, found, layer.layout.grid):
            return expected
    fitted = _fit_grid(found, layer.layout.grid) if len(found) >= _FEWEST_CELLS else None
    if fitted is None and found and np.median([response.sees_all for response in found.values()]):
        raise NoPlacesError("the cells depend on the whole image alike")
    return fitted


def _agree(expected: CellCenters, found: Mapping[Cell, CellResponse], grid: Sequence[int]) -> bool:
    """Return whether measured cells lie where they are expected, by themselves or by the grid that fits them."""
    if all(_sees_its_field(expected, *item) for item in found.items()):
        return True
    fitted = _fit_grid(found, grid)
    return fitted is not None and expected.agree_with(fitted, grid)


def _fit_grid(found: Mapping[Cell, CellResponse], grid: Sequence[int]) -> CellCenters | None:
    """Return the grid through the centroids of measured cells; ``None`` if they lie on none."""
    responses = [*found.values()]
    size, cells = responses[0].shares.shape, np.array([*found], dtype=np.float64).T
    centers = np.array([response.center for response in responses]).T
    lines = [*map(_fit_axis, cells, centers, [pixels / count for pixels, count in zip(size, grid, strict=True)])]
    axes = tuple(line for line in lines if line is not None)
    return CellCenters(size, axes) if len(axes) == len(lines) else None


def _sees_its_field(expected: CellCenters, cell: Cell, response: CellResponse) -> bool:
    """Return whether a cell depends on its receptive field alone, if this is a small part of the image."""
    for axis, (line, index, pixels) in enumerate(zip(expected.axes, cell, response.shares.shape, strict=True)):
        positions = np.arange(pixels) + 0.5
        reach = line.field / 2 + abs(line.stride)  # interpolation adds up to a cell on both sides
        is_seen = np.abs(positions - line.offset - line.stride * index) <= reach
        within = response.shares.swapaxes(0, axis)[is_seen].sum()
        if not line.field <= _SMALL * pixels or within < _LEAST_WITHIN:
            return False
    return True


def _fit_axis(at: NDArray[np.float64], centers: NDArray[np.float64], even: float) -> AxisCenters | None:
    """Return the line through measured centers of cells, or ``None`` if they lie on none.

    Args:
        at: Indices of the cells along the axis.
        centers: Their places in pixels.
        even: The stride of a grid that covers the image.
    """
    if at.max() == at.min():  # a single cell
        return AxisCenters(float(centers.mean()) - even * float(at[0]), even)
    stride, offset = map(float, np.polyfit(at, centers, 1))
    residual = float(np.sqrt(np.mean((offset + stride * at - centers) ** 2)))
    is_line = abs(stride) >= _LEAST_STRIDE * even and residual <= _MOST_RESIDUAL * abs(stride)
    return AxisCenters(offset, stride) if is_line else None
