"""The attention layers of a model, and the tokens of the image that one of them attends to.

The number of tokens alone does not say how they lie on the image. So a layer is read on the image and on two variants
of it, one with another upper half and one with another left half. In the first layer of its kind, e.g. of all blocks,
tokens of the image have changed, and prefix tokens, which are parameters of the model, have not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn

from camtool.errors import LayerError
from camtool.hooks.attention.capture import AttentionCall, visit_attention
from camtool.hooks.structures.modules import find_module_name
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.hooks.tracing import TracedCall
from camtool.layers.image_variants import nudge_bands, vary_all, vary_halves
from camtool.layers.layout_reader import LayoutReader
from camtool.layers.layouts import FEWEST_CELLS, Layout, follows_image, is_in_order, place_at_changed

LayerSelector = int | str | nn.Module | None
"""A layer by its number, its dotted name or as a module; None for the last one."""

_UNCHANGED = 1e-4
"""Change of a token, relative to the largest one, up to which it counts as rounding. Rows of a batch may be computed by
other kernels."""

_MOST_LISTED = 6

_GUESSED = (
    "The grid {} x {} of the tokens was inferred from their number alone; check that the map lies on the right places."
)


@dataclass(frozen=True)
class AttentionLayer:
    """A call of attention in the forward pass of one image.

    Attributes:
        name: The dotted name of the module that made the call.
        shape: The shape of its matrix, ``(1, H, T, S)`` unless it is split into windows.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def family(self) -> tuple[str, int, int]:
        """Name without numbers, and numbers of queries and keys: equal for layers of one kind."""
        return re.sub(r"\d+", "#", self.name), self.shape[-2], self.shape[-1]


@dataclass(frozen=True, eq=False)
class ReadLayer:
    """Attention of one layer for the image, and the layout of its tokens.

    Attributes:
        matrix: ``(H, T, S)``.
        layout: The layout of the S keys on the image.
        are_queries_tokens: The T queries are the same tokens as the keys.
        warnings: Reasons not to trust the layout.
    """

    matrix: Tensor
    layout: Layout
    are_queries_tokens: bool
    warnings: tuple[str, ...]


def list_layers(model: nn.Module, inputs: ModelInputs) -> list[AttentionLayer]:
    """Return all calls of attention to an image, in order; the model runs once.

    Raises:
        LayerError: There is none.
    """
    layers: list[AttentionLayer] = []
    visit_attention(model, inputs, lambda call: layers.append(AttentionLayer(call.name, tuple(call.matrix.shape))))
    if not layers:
        raise LayerError(
            "the model runs no attention that can be captured: a convolutional network has none, and compiled or "
            "scripted code hides it."
        )
    return layers


def choose_layer(model: nn.Module, layers: Sequence[AttentionLayer], layer: LayerSelector) -> int:
    """Return the index of a layer.

    Args:
        model: The model.
        layers: Its layers.
        layer: A number, a module, or a name: that of the attention or of a block around it.

    Raises:
        LayerError: There is no such layer, or several are in the named module.
    """
    if layer is None:
        return len(layers) - 1
    if isinstance(layer, (int, Integral)):
        if not -len(layers) <= int(layer) < len(layers):
            raise LayerError(f"layer={layer}: the model has {len(layers)} attention layers, 0 to {len(layers) - 1}.")
        return int(layer) % len(layers)
    name = find_module_name(model, layer)
    inside = [index for index, other in enumerate(layers) if f"{other.name}.".startswith(f"{name}." if name else "")]
    names = list(dict.fromkeys(layers[index].name for index in inside))
    if len(names) != 1:
        known = _shorten(names or list(dict.fromkeys(candidate.name for candidate in layers)))
        came = "holds several attention layers" if names else "runs no attention to the image"
        raise LayerError(f"layer={name!r} {came}; choose one of {known}, or a number from 0 to {len(layers) - 1}.")
    return inside[-1]


def read_layer(
    model: nn.Module,
    inputs: ModelInputs,
    layers: Sequence[AttentionLayer],
    index: int,
    calls: Sequence[TracedCall],
    reader: LayoutReader,
    objects: int,
) -> ReadLayer:
    """Return the matrix of a layer and the layout of its keys.

    The model runs on three images, and once more on nine if these do not show the order of the tokens.

    Args:
        model: The model.
        inputs: What it is called with, for one image.
        layers: All its layers.
        index: The index of the layer.
        calls: The calls of all modules.
        reader: Their layouts.
        objects: Number of queries of a detector, one for each object; 0 for other models.

    Raises:
        LayerError: The layer attends within windows, or to other things than tokens of the image, or it is not certain
            which token is which part of the image.
    """
    layer = layers[index]
    _check_not_windowed(layers, layer, calls)
    layout = reader.find_layout_of_tokens(layer.shape[-1])
    if layout is None:
        raise _build_error(layers, layer, "they form no grid over the image")
    first = next(number for number, candidate in enumerate(layers) if candidate.family == layer.family)
    kept = _keep_calls(model, vary_halves(inputs), {index, first})
    keys = kept[first].keys.transpose(1, 2).flatten(2)
    layout = _place_layout(model, inputs, layout, keys, first)
    contradiction = _find_contradiction(layout, keys, may_be_objects=layer.shape[-1] == objects)
    if contradiction:
        raise _build_error(layers, layer, contradiction)
    is_ordered = is_in_order(layout.to_grid(keys).flatten(1, -3))
    # A few tokens of a mixed layer respond by chance as any others do.
    if is_ordered is None and math.prod(layout.grid) >= FEWEST_CELLS:
        nudged = _keep_calls(model, nudge_bands(inputs), {first})[first].keys.transpose(1, 2).flatten(2)
        if not follows_image(layout.to_grid(nudged)):
            raise _build_error(layers, layer, "they do not respond where it changes, as learned queries")
        is_ordered = True
    is_certain = is_ordered or reader.find_convolution(layout.grid) is not None
    warnings = () if is_certain else (_GUESSED.format(*layout.grid),)
    return ReadLayer(kept[index].matrix[0], layout, _are_tokens(kept[first], layout), warnings)


def _place_layout(model: nn.Module, inputs: ModelInputs, layout: Layout, keys: Tensor, first: int) -> Layout:
    """Return the likely layout or, if other tokens change with the image, that of all tokens that do.

    Args:
        model: The model.
        inputs: What it is called with, for one image.
        layout: The likely layout.
        keys: See :func:`_find_contradiction`.
        first: The number of their call.
    """
    if not _find_changed(keys)[layout.others].any():
        return layout
    whole = _keep_calls(model, vary_all(inputs), {first})[first].keys.transpose(1, 2).flatten(2)
    return place_at_changed(layout, whole) or layout


def _keep_calls(model: nn.Module, inputs: ModelInputs, wanted: set[int]) -> dict[int, AttentionCall]:
    """Run the model and return some of its calls of attention."""
    kept: dict[int, AttentionCall] = {}
    count = 0

    def visit(call: AttentionCall) -> None:
        nonlocal count
        if count in wanted:
            kept[count] = call
        count += 1

    visit_attention(model, inputs, visit)
    return kept


# -------------------------------------------------------------------------------------------------------------- checks


def _check_not_windowed(layers: Sequence[AttentionLayer], layer: AttentionLayer, calls: Sequence[TracedCall]) -> None:
    """Check that the tokens of a layer are not split into windows.

    Raises:
        LayerError: They are. The last stage of a Swin transformer may have one window only; it counts as windowed too.
    """
    shapes = {call.name: call.shape or () for call in calls}

    def is_split(candidate: AttentionLayer) -> bool:
        # Windows are images of the batch, in the matrices or, if those have them as heads, in the module's output.
        output = shapes.get(candidate.name, ())
        is_in_output = len(output) == 3 and output[0] not in (1, candidate.shape[-2])
        return len(candidate.shape) != 4 or candidate.shape[0] != 1 or is_in_output

    sizes = {candidate.shape[-1] for candidate in layers if is_split(candidate)}
    if layer.shape[-1] in sizes:
        raise LayerError(
            f"layer {layer.name!r} attends within windows of {layer.shape[-1]} tokens, so no query sees the whole "
            "image; camtool.attention needs global attention, e.g. that of a ViT."
        )


def _find_contradiction(layout: Layout, keys: Tensor, *, may_be_objects: bool) -> str:
    """Return why keys are no tokens of the image in this layout; empty if they are.

    Args:
        layout: The layout that fits the number of keys.
        keys: ``(3, S, C)``, the keys of the first layer of a kind for the images of
            :func:`camtool.layers.image_variants.vary_halves`.
        may_be_objects: There are as many keys as queries for objects, which attend to each other in a decoder.
    """
    is_changed = _find_changed(keys)
    if not is_changed.any():
        return "they do not depend on it"
    # Both variants change the upper left cell.
    if is_changed[layout.others].any() or not is_changed[layout.cells[0]]:
        return f"the layout {layout} fits their number, but other tokens change with the image"
    is_ordered = is_in_order(layout.to_grid(keys))
    if is_ordered is False:
        return "they are not in the order of its rows"
    return "they may be the queries for objects" if may_be_objects and not is_ordered else ""


def _are_tokens(first: AttentionCall, layout: Layout) -> bool:
    """Check that the queries of the first layer of a kind are tokens of the image, as the keys are."""
    if first.matrix.shape[-2] != first.matrix.shape[-1]:
        return False
    return bool(_find_changed(first.queries.transpose(1, 2).flatten(2))[layout.cells[0]])


def _find_changed(tokens: Tensor) -> Tensor:
    """Return booleans ``(S,)``: which tokens of ``(3, S, C)`` differ between the images."""
    change = (tokens[1:] - tokens[:1]).abs().amax((0, 2))
    return change > _UNCHANGED * torch.maximum(change.amax(), torch.finfo(change.dtype).tiny * torch.ones_like(change))


def _build_error(layers: Sequence[AttentionLayer], layer: AttentionLayer, reason: str) -> LayerError:
    others = list(dict.fromkeys(candidate.name for candidate in layers if candidate.family != layer.family))
    known = f", e.g. {_shorten(others)}" if others else ""
    return LayerError(
        f"layer {layer.name!r} attends to {layer.shape[-1]} tokens, of which it is not certain how they lie on the "
        f"image: {reason}. Choose another layer with layer={known}."
    )


def _shorten(names: Sequence[str]) -> str:
    """Return names for a message, the last of them if there are many."""
    return ("..., " if len(names) > _MOST_LISTED else "") + ", ".join(map(repr, names[-_MOST_LISTED:]))
