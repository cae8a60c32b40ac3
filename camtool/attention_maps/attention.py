"""Read the attention of one layer of a model for a photo: :func:`attention`.

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
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_choice
from camtool.arguments.explain_arguments import explain_foreign_arguments, get_module
from camtool.attention_maps.result import AttentionMaps, Head, Queries, Query, QueryKind, check_head, find_class_token
from camtool.errors import ImageError, LayerError
from camtool.geometry.cell_centers import CellCenters, Placement
from camtool.hooks.attention.capture import AttentionCall, visit_attention
from camtool.hooks.structures.modules import find_module_name
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.hooks.tracing import TracedCall, trace
from camtool.inputs.input_preparer import InputPreparer
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput
from camtool.layers.centers import find_centers
from camtool.layers.image_tokens_in_text import find_image_tokens
from camtool.layers.layout_reader import LayoutReader
from camtool.layers.layouts import FEWEST_CELLS, Grid, Layer, Layout, follows_image, is_in_order, place_at_changed
from camtool.layers.survey import read_layouts
from camtool.layers.survey_batches import find_image_size, nudge_bands, vary_all, vary_halves
from camtool.models import Loaded, Transform, to_loaded, unwrap_layer
from camtool.outputs import detections
from camtool.outputs.class_count import find_class_count

# A layer by its number, its dotted name or as a module; None for the last one.
LayerSelector = int | str | nn.Module | None

# Change of a token, relative to the largest one, up to which it counts as rounding. Rows of a batch may be computed by
# other kernels.
_UNCHANGED = 1e-4

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
        listed = _shorten(names or list(dict.fromkeys(candidate.name for candidate in layers)))
        reason = "holds several attention layers" if names else "runs no attention to the image"
        raise LayerError(f"layer={name!r} {reason}; choose one of {listed}, or a number from 0 to {len(layers) - 1}.")
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
            :func:`camtool.layers.survey_batches.vary_halves`.
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
    examples = f", e.g. {_shorten(others)}" if others else ""
    return LayerError(
        f"layer {layer.name!r} attends to {layer.shape[-1]} tokens, of which it is not certain how they lie on the "
        f"image: {reason}. Choose another layer with layer={examples}."
    )


def _shorten(names: Sequence[str]) -> str:
    """Return names for a message, the last of them if there are many."""
    return ("..., " if len(names) > _MOST_LISTED else "") + ", ".join(map(repr, names[-_MOST_LISTED:]))


@explain_foreign_arguments
def attention(
    model: nn.Module | Loaded,
    img: Any,
    *,
    layer: LayerSelector = None,
    head: Head = None,
    query: Query = None,
    transform: Transform | None = None,
    device: torch.device | str | None = None,
    placement: Placement = "centers",
) -> AttentionMaps:
    """Show where a transformer attends to: the attention of one layer, by head and query, on the photo.

        camtool.attention(model, "dog.jpg").save("heads.png")  # all heads of the last layer, for the class token
        maps = camtool.attention(model, "dog.jpg", layer=5)
        maps.matrices  # (heads, queries, keys)
        maps.map(head=2, query=(120, 80)).save("head.png")  # where the patch at this pixel attends to

    These are the numbers that the model computes. They tell what is mixed in one layer; they do not tell what the
    prediction depends on, and know no class. For that, see ``method="chefer"`` and others of :func:`camtool.explain`.

    The model runs four times without a graph: to list its layers, to find its grids, to read the layer on the image and
    on two variants, which show the layout of its tokens, and to place their centers. It is not changed.

    Args:
        model: Module, or the result of :func:`camtool.load`. With two towers, as CLIP has, it is the image tower.
        img: One image, in any form that :func:`camtool.explain` takes.
        layer: The layer: its number among all that attend to the image (-1 is the last), its dotted name, the name of a
            block that holds it, or a module; by default the last one. ``layers`` of the result lists the names.
        head: The number of the head to show; by default the picture has all heads, and maps are the mean of the heads.
        query: The query to show, see :meth:`AttentionMaps.map`: a number, ``"class"``, or a pixel ``(x, y)`` of the
            photo. In the cross-attention of DETR's decoder it is the number of an object query.
        transform: Function from PIL image to the model's input, if ``model`` has none.
        device: Device of the inputs; the default is the model's.
        placement: Where the maps are drawn, as in :func:`camtool.explain`.

    Returns:
        The matrices of the layer, with the map of any head and query.

    Raises:
        LayerError: The model has no attention that can be seen, or no such layer or head; the layer attends within
            windows; or the layout of its tokens is not certain.
        TargetError: The layer has no such query.
        ImageError: ``img`` is not one image.
        CamtoolError: Another argument is invalid; the classes are in :mod:`camtool.errors`.
    """
    check_choice("placement", placement, get_args(Placement))
    module = to_loaded(model)
    layer = unwrap_layer(get_module(model), layer) if isinstance(layer, (str, nn.Module)) else layer
    prepare = InputPreparer(module.model, transform or module.transform, device, kind="image")
    batch = _prepare_image(prepare, img)
    layers = list_layers(module.model, batch.inputs)
    index = choose_layer(module.model, layers, layer)
    calls = trace(module.model, batch.inputs)
    count = detections.count_queries(calls[-1].output)
    query_tokens = detections.find_query_tokens(calls[-1].output)
    reader = read_layouts(module.model, batch.inputs, calls, find_image_size(batch.inputs), query_tokens)
    _check_no_text(module.model, batch.inputs, layers[index].name, layers[index].shape[-1])
    read = read_layer(module.model, batch.inputs, layers, index, calls, reader, count)
    centers = _find_centers(module.model, batch.inputs, read.layout.grid, reader) if placement == "centers" else None
    queries = _describe_queries(module.model, read, batch.items[0], centers, calls[-1].output, count)
    queries.select(query)  # raises an error now, and not when the picture is drawn
    return AttentionMaps(
        matrices=np.asarray(read.matrix.float().cpu().numpy()),
        layer=layers[index].name,
        layers=tuple(candidate.name for candidate in layers),
        layout=read.layout,
        queries=queries,
        view=batch.items[0].view,
        head=check_head(head, read.matrix.shape[0], layers[index].name),
        query=query,
        warnings=(*batch.items[0].notes, *read.warnings, *_find_warnings(module.model, queries, calls[-1].output)),
    )


def _prepare_image(prepare: InputPreparer, img: Any) -> InputBatch:
    """Return the batch with the one image.

    Raises:
        ImageError: It is not one.
    """
    count, batches = prepare.prepare_batches(img, 2, needs_layers=False)
    batch = next(batches, None)
    if count not in (None, 1) or batch is None or len(batch.items) != 1:
        raise ImageError(f"img: {count or 'no'} images came; camtool.attention takes one image.")
    return batch


def _check_no_text(model: nn.Module, inputs: ModelInputs, name: str, keys: int) -> None:
    """Check that a layer does not attend to the tokens of a text.

    Raises:
        LayerError: It does.
    """
    text = find_image_tokens(model, inputs)
    if text is not None and text.length == keys:
        raise LayerError(
            f"layer {name!r} attends to the {keys} tokens of the text, with those of the image among them; choose a "
            "layer of the image encoder with layer=."
        )


def _find_centers(model: nn.Module, inputs: ModelInputs, grid: Grid, reader: LayoutReader) -> CellCenters | None:
    """Return where the cells of the tokens lie in the model's input: those of the convolution that made their grid."""
    name = reader.find_convolution(grid)
    return None if name is None else find_centers(model, inputs, Layer(name, Layout("channels first", grid)))


def _describe_queries(
    model: nn.Module, read: ReadLayer, item: PreparedInput, centers: CellCenters | None, output: Any, count: int
) -> Queries:
    """Return what the queries of a layer are.

    Args:
        model: The model.
        read: The layer.
        item: The image.
        centers: Where the cells of the keys lie.
        output: What the model returned.
        count: The number of objects that a detector has queries for.
    """
    total = read.matrix.shape[-2]
    are_objects = not read.are_queries_tokens and total == count
    kind: QueryKind = "tokens" if read.are_queries_tokens else "objects" if are_objects else "others"
    detections = _find_objects(model, output) if are_objects else None
    boxes, best = None, None
    if detections:
        scale = item.geometry.size[::-1] * 2 if detections.is_relative else (1, 1, 1, 1)
        by_query = (detections.boxes.float().cpu() * torch.tensor(scale, device="cpu")).tolist()
        boxes = np.array([item.geometry.to_photo_box(tuple(box)) for box in by_query], np.float32)
        best = int(detections.confidences.flatten(1).amax(1).argmax())
    class_token = find_class_token(model, read.layout) if kind == "tokens" else None
    return Queries(total, kind, read.layout, item.geometry, centers, class_token, boxes, best)


def _find_objects(model: nn.Module, output: Any) -> detections.Detections | None:
    """Return the detections in the first image; ``None`` if the model is not a detector."""
    by_image = detections.find_detections(output, find_class_count(model, detections.count_query_logits(output)))
    return by_image[0] if by_image else None


def _find_warnings(model: nn.Module, queries: Queries, output: Any) -> list[str]:
    """Return a warning if the object with the highest confidence depends on an assumption."""
    objects = _find_objects(model, output) if queries.kind == "objects" else None
    if objects is None or not objects.is_no_object_assumed or objects.class_count is None:
        return []
    return [detections.describe_assumption(objects.class_count)]
