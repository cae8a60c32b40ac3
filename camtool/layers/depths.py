"""Depths: layers on the way to a layer, at which the evidence for a score can be read as well.

A layer is a depth of another one if all paths from the image to that one pass through it. Then everything that the
score gets from the image is in the layer, and nothing bypasses it. Blocks of a residual network are depths; the
convolutions inside of a block are not, because the shortcut bypasses them, and neither are the encoder's layers of a
U-Net, which the skip connections bypass.

The paths are counted on autograd's graph from the image to the layer. The same graph shows paths that pass a layer by,
e.g. those of an ensemble's members.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, groupby
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks

from camtool.errors import LayerError, TargetError
from camtool.hooks.observation import get_call, run_with_graph_from_image
from camtool.hooks.private_torch import get_saved_value
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.graph_nodes import find_reachable, get_inputs
from camtool.hooks.structures.modules import find_module, has_matrix
from camtool.hooks.structures.nested_tensors import ModelInputs, describe_shapes
from camtool.hooks.tracing import trace
from camtool.layers.layout_reader import LayoutReader
from camtool.layers.layouts import Layer
from camtool.layers.responses import count_views, keep_views
from camtool.layers.selection import find_layers, find_size_in_model
from camtool.layers.survey import group_grid_outputs
from camtool.layers.survey_batches import select_first_image
from camtool.outputs.class_scores import find_logits
from camtool.outputs.detections import find_query_tokens

# A number of depths, with the explained layer, or the names of the others.
Depths: TypeAlias = "int | Sequence[str]"

# Depths in each stage: its middle and its end.
_PER_STAGE = 2


# Names of nodes with weights, of which a skip connection has none; `UpsampleLinear1DBackward0` resizes one.
_WEIGHTED = re.compile(r"(?i)convolution|(mm|mv|linear)backward|attention|rnn|lstm|gru")

# Names of nodes that join a skip connection.
_ADDED = re.compile(r"(Add|Sub|Cat|Stack)Backward")


class _Place(NamedTuple):
    """A layer on the way: its name, the size of its grid, the index of its call, and the matrices that ran by then."""

    name: str
    grid: tuple[int, ...]
    call: int
    matrices: int


def find_depths(
    model: nn.Module, inputs: ModelInputs, layer: Layer, depths: Depths, *, call_index: int = -1
) -> list[Layer]:
    """Return layers on the way to a layer, from shallow to deep, without the layer itself.

    A stage is a part of the network whose layers have grids of one size. The middle and the end of each of the last
    stages are taken: four depths are those of the last two stages. A network of a single stage, e.g. a ViT, is divided
    into as many equal parts. The answer is remembered for each model and input shape.

    Args:
        model: Any module. Its state is preserved.
        inputs: What the model is called with. Only their shapes matter.
        layer: The explained layer, the deepest of the depths.
        depths: Their number, with the explained layer; or the names of the others.
        call_index: Which call of a layer is read if it runs more than once.

    Returns:
        The layers. Fewer than asked for, or none, if few layers are on all paths and can carry a map.

    Raises:
        LayerError: A named layer is unknown, is no grid, or does not lead to the explained layer.
    """
    key = depths if isinstance(depths, int) else tuple(depths)
    question = "depths", describe_shapes(inputs), layer, key, call_index

    def find() -> tuple[Layer, ...]:
        if not isinstance(depths, int):
            return tuple(_find_named(model, inputs, layer, depths, call_index))
        names = _choose(model, inputs, layer, depths, call_index) if depths > 1 else []
        layers: list[Layer] = []
        for name in names:
            with suppress(LayerError):  # its tokens may be in another order than the image's rows
                layers += find_layers(model, inputs, [name], call_index=call_index)
        return tuple(layers)

    return [*remember_for_model(model, question, find)]


def _choose(model: nn.Module, inputs: ModelInputs, layer: Layer, count: int, call_index: int) -> list[str]:
    """Return the names of the depths that are chosen without configuration."""
    on_the_way = _list_places(model, inputs, layer, call_index)
    paths = _count_paths(model, inputs, [place.name for place in on_the_way], layer, call_index)
    # The explained layer itself ends the last stage.
    complete = [place for place in on_the_way[:-1] if paths[place.name] == paths[layer.name] > 0]
    # Norms and activations belong to the layer before them: without a matrix between them, two places show the same.
    distinct = {(place.grid, place.matrices): place for place in [*complete, on_the_way[-1]]}
    return [place.name for place in _select_depths([*distinct.values()], count)[:-1]]


def _list_places(model: nn.Module, inputs: ModelInputs, layer: Layer, call_index: int) -> list[_Place]:
    """Return the layers with a grid that ran before a layer, in the order of their calls, and the layer itself."""
    calls = trace(model, select_first_image(inputs))
    queries, views = find_query_tokens(calls[-1].output), count_views(model, inputs)
    reader = LayoutReader(calls, find_size_in_model(model, inputs), queries, views=views)
    outputs = group_grid_outputs(calls, reader, call_index)
    layouts = keep_views(model, inputs, {output.name: output.layouts for output in outputs}, call_index)
    module = find_module(model, layer.name)  # a module with several names is traced under the first
    own = get_call(layer.name, [i for i, call in enumerate(calls) if call.module is module], call_index)
    matrices = [*accumulate(has_matrix(call.module) for call in calls)]
    places = [
        _Place(output.name, layouts[output.name][0].grid, output.calls[-1], matrices[output.calls[-1]])
        for output in outputs
        if output.calls[-1] < own and layouts[output.name]
    ]
    return [*places, _Place(layer.name, layer.layout.grid, own, matrices[own])]


def _select_depths(places: Sequence[_Place], count: int) -> list[_Place]:
    """Return up to ``count`` places, spread over the last stages; the last place is always among them."""
    stages = [list(stage) for _, stage in groupby(places, key=lambda place: place.grid)]
    # A stage begins where the one before it ends, the first one before the first call.
    starts = [-1, *(stage[-1].call for stage in stages[:-1])]
    used = list(zip(starts, stages, strict=True))[-ceil(count / _PER_STAGE) :]
    chosen = [place for start, stage in used for place in _spread(start, stage, ceil(count / len(used)))]
    return chosen[-count:]


def _spread(start: int, stage: Sequence[_Place], count: int) -> list[_Place]:
    """Return up to ``count`` places at equal distances in a stage; the last one is its end."""
    end = stage[-1].call
    marks = [start + (end - start) * number / count for number in range(1, count + 1)]
    # Of two that are equally near, the later one.
    nearest = [min(reversed(stage), key=lambda place: abs(place.call - mark)) for mark in marks]
    return list(dict.fromkeys(nearest))


def _find_named(
    model: nn.Module, inputs: ModelInputs, layer: Layer, names: Sequence[str], call_index: int
) -> list[Layer]:
    """Return the depths that the user named.

    Raises:
        LayerError: One of them is unknown, is no grid, does not lead to the layer, or is the layer.
    """
    found = find_layers(model, inputs, names, call_index=call_index)
    paths = _count_paths(model, inputs, names, layer, call_index)
    for name in names:
        if name == layer.name or not paths[name]:
            raise LayerError(f"depths: layer {name!r} does not lead to layer {layer.name!r}; name layers before it.")
    return found


def _count_paths(
    model: nn.Module, inputs: ModelInputs, names: Sequence[str], layer: Layer, call_index: int
) -> Mapping[str, int]:
    """Return the number of paths from the image to a layer through each of the named layers, and the number of all."""
    # The graph is only read, so no tensor is kept.
    with guard(model), saved_tensors_hooks(lambda _: 0, torch.empty):
        image, observed = run_with_graph_from_image(model, list(dict.fromkeys([*names, layer.name])), inputs)
        nodes = {name: get_call(name, calls, call_index).grad_fn for name, calls in observed.calls.items()}
        return _count_paths_through(nodes, image, nodes[layer.name])


def _count_paths_through(nodes: Mapping[str, Node | None], image: Tensor, end: Node | None) -> dict[str, int]:
    """Return the number of paths from an image to a node of its graph that pass through each of some nodes."""
    if end is None:
        return dict.fromkeys(nodes, 0)
    from_image: dict[Node, int] = {}
    for node in iterate_graph(end, from_image):
        if get_saved_value(node, "variable") is image:
            from_image[node] = 1
        else:
            from_image[node] = sum(from_image[child] for child in get_inputs(node))
    to_end = dict.fromkeys(from_image, 0)
    to_end[end] = 1
    for node in reversed(from_image):  # a node comes after those that it uses
        for child in get_inputs(node):
            to_end[child] += to_end[node]
    return {name: 0 if node is None else from_image.get(node, 0) * to_end.get(node, 0) for name, node in nodes.items()}


# ------------------------------------------------------------------------------------------- paths beside the layer


def has_other_paths(output: Any, layer: Tensor, image: Tensor) -> bool:
    """Return True if the class scores depend on the image by a path with weights of its own beside a layer.

    A skip connection is no such path: it adds to the layer's output what the layer itself was computed from. Every
    transformer has one around its last layers.

    Args:
        output: The output of the model, on the graph that starts at the image.
        layer: The output of the layer, on the same graph.
        image: The image input, a leaf.
    """
    try:
        root, start = find_logits(output).grad_fn, layer.grad_fn
    except TargetError:  # a detector reads each detection from some of its layers
        return False
    if root is None or start is None:
        return False
    before = find_reachable([start])  # the nodes that the layer is computed from, and itself
    sees_image, follows = _trace_graph(root, start, image)
    for node in (node for node, is_behind in follows.items() if is_behind and node is not start):
        for other in (child for child in get_inputs(node) if sees_image[child] and not follows[child]):
            if not _ADDED.match(node.name()) or _sees_by_weights(other, before, sees_image):
                return True
    return False


def _trace_graph(root: Node, start: Node, image: Tensor) -> tuple[dict[Node, bool], dict[Node, bool]]:
    """Return for each node behind the image whether it depends on the image, and whether on a start, or is that."""
    sees_image: dict[Node, bool] = {}
    follows: dict[Node, bool] = {}
    for node in iterate_graph(root, sees_image):
        children = get_inputs(node)
        sees_image[node] = get_saved_value(node, "variable") is image or any(sees_image[child] for child in children)
        follows[node] = node is start or any(follows[child] for child in children)
    return sees_image, follows


def _sees_by_weights(node: Node, before: set[Node], sees_image: Mapping[Node, bool]) -> bool:
    """Check that a node depends on the image by an operation with weights that is none of those before the layer."""
    ancestors = find_reachable({node} - before, lambda ancestor: [*{*get_inputs(ancestor)} - before])
    return any(sees_image[ancestor] and _WEIGHTED.search(ancestor.name()) for ancestor in ancestors)


def iterate_graph(root: Node, ends: Container[Node]) -> Iterator[Node]:
    """Yield the nodes of a graph that are not known yet, each after the nodes that it uses."""
    stack, entered = [root], set()
    while stack:
        node = stack[-1]
        if node in ends:
            stack.pop()
        elif node not in entered:
            entered.add(node)
            stack += get_inputs(node)
        else:
            stack.pop()
            yield node
