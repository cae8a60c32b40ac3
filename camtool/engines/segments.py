"""Segments: the parts of a captured model between its observed layers.

A segment leads from layers to a later layer, or to the output, without passing another observed layer. Its derivative
is partial: the other layers are constant. Autograd joins the segments by the chain rule, so the gradient with respect
to a layer counts all paths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from camtool.engines.graph_capture import Capture, get_results
from camtool.errors import NotCompilableError

_SIZE = torch.ops.aten.sym_size.int


@dataclass(frozen=True)
class Segment:
    """A part of a captured model.

    Attributes:
        graph: From the outputs of ``layers``, then ``others``, to the results.
        results: What it computes: indices among the results of the captured graph.
        layers: The layers that it starts from: indices among the results of the captured graph.
        others: What else it reads and depends on the image: nodes of the captured graph, e.g. a skip connection.
    """

    graph: fx.GraphModule
    results: list[int]
    layers: list[int]
    others: list[fx.Node]


def split_at_layers(capture: Capture) -> list[Segment]:
    """Return the segments that lead to each layer and to the output, as far as they start from a layer."""
    results = get_results(capture.graph)
    count = capture.output_count
    floating = [index for index in range(count) if _is_floating(results[index])]
    wanted = [[index] for index in range(count, len(results))] + [floating]
    return [segment for indices in wanted if (segment := _extract(capture.graph, results, indices, count)) is not None]


def _is_floating(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _extract(graph: fx.GraphModule, results: Sequence[fx.Node], wanted: list[int], count: int) -> Segment | None:
    """Return the segment to some results; ``None`` if they depend on no other layer."""
    nodes = list(graph.graph.nodes)
    layers = {results[index]: index for index in range(count, len(results)) if index not in wanted}
    from_image = _follow(nodes, [node for node in nodes if node.op == "placeholder"])
    from_layers = _follow(nodes, layers)
    wanted = [index for index in wanted if results[index] in from_layers]
    own, starts, others = _collect([results[index] for index in wanted], layers, from_layers, from_image)
    if not starts:
        return None
    copied = _copy(sorted(own, key=nodes.index), [*starts, *others], [results[index] for index in wanted])
    return Segment(fx.GraphModule(graph, copied), wanted, [layers[start] for start in starts], others)


def _follow(nodes: Iterable[fx.Node], starts: Collection[fx.Node]) -> set[fx.Node]:
    """Return the nodes that depend on some nodes, and these."""
    reached = set(starts)
    for node in nodes:
        if any(source in reached for source in node.all_input_nodes):
            reached.add(node)
    return reached


def _collect(
    ends: Sequence[fx.Node], layers: Collection[fx.Node], from_layers: set[fx.Node], from_image: set[fx.Node]
) -> tuple[set[fx.Node], list[fx.Node], list[fx.Node]]:
    """Return the nodes of a segment, the layers that it starts from, and other tensors that it reads."""
    own: set[fx.Node] = set()
    starts: dict[fx.Node, None] = {}
    others: dict[fx.Node, None] = {}
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node in own or node in starts or node in others:
            continue
        is_tensor = isinstance(node.meta.get("val"), Tensor)
        if node in layers:
            starts[node] = None
        elif is_tensor and node in from_image and node not in from_layers:
            others[node] = None
        else:
            own.add(node)
            # The size of a tensor outside of the segment is read from one of its inputs.
            is_outer_size = node.target is _SIZE and node not in from_layers
            stack += [] if is_outer_size else node.all_input_nodes
    return own, list(starts), list(others)


def _copy(own: Sequence[fx.Node], inputs: Sequence[fx.Node], ends: Sequence[fx.Node]) -> fx.Graph:
    """Return a graph of some nodes, whose inputs are others."""
    graph, copies = fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in own:
        if node.target is _SIZE and node.args[0] not in copies:
            copies[node] = graph.call_function(_SIZE, _find_size(node, inputs, copies))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in ends))
    graph.lint()
    return graph


def _find_size(size: fx.Node, inputs: Sequence[fx.Node], copies: dict[fx.Node, fx.Node]) -> tuple[fx.Node, int]:
    """Return an input with an axis of the same symbolic size, and the axis."""
    for node in inputs:
        for axis, length in enumerate(node.meta["val"].shape):
            if str(length) == str(size.meta["val"]):
                return copies[node], axis
    raise NotCompilableError(f"no input of the segment has the size {size.meta['val']}")
