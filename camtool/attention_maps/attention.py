"""Read the attention of one layer of a model for a photo: :func:`attention`."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from camtool.arguments.checks import check_choice
from camtool.arguments.explain_arguments import explain_foreign_arguments, get_module
from camtool.attention_maps.layers import LayerSelector, ReadLayer, choose_layer, list_layers, read_layer
from camtool.attention_maps.maps import AttentionMaps, Head, Queries, Query, QueryKind, check_head, find_class_token
from camtool.errors import ImageError, LayerError
from camtool.geometry.cell_centers import CellCenters, Placement
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.hooks.tracing import trace
from camtool.inputs.input_preparer import InputPreparer
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput
from camtool.layers.centers import find_centers
from camtool.layers.image_tokens import find_image_tokens
from camtool.layers.image_variants import find_image_size
from camtool.layers.layout_reader import LayoutReader
from camtool.layers.layouts import Grid, Layer, Layout
from camtool.layers.survey import read_layouts
from camtool.models import Loaded, Transform, to_loaded, unwrap_layer
from camtool.outputs.class_count import find_class_count
from camtool.outputs.detections import (
    Detections,
    count_queries,
    count_query_logits,
    describe_assumption,
    find_detections,
    find_query_tokens,
)


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
    count = count_queries(calls[-1].output)
    query_tokens = find_query_tokens(calls[-1].output)
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
    return Queries(
        count=total,
        kind=kind,
        layout=read.layout,
        geometry=item.geometry,
        centers=centers,
        class_token=find_class_token(model, read.layout) if kind == "tokens" else None,
        boxes=boxes,
        best=best,
    )


def _find_objects(model: nn.Module, output: Any) -> Detections | None:
    """Return the detections in the first image; ``None`` if the model is not a detector."""
    by_image = find_detections(output, find_class_count(model, count_query_logits(output)))
    return by_image[0] if by_image else None


def _find_warnings(model: nn.Module, queries: Queries, output: Any) -> list[str]:
    """Return a warning if the object with the highest confidence depends on an assumption."""
    detections = _find_objects(model, output) if queries.kind == "objects" else None
    if detections is None or not detections.is_no_object_assumed or detections.class_count is None:
        return []
    return [describe_assumption(detections.class_count)]
