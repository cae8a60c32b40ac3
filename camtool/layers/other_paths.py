"""Paths of autograd's graph from the image to the scores that pass a layer by, e.g. those of an ensemble's members.

A skip connection is no such path: it adds to the layer's output what the layer itself was computed from. Every
transformer has one around its last layers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from camtool.errors import TargetError
from camtool.outputs.class_scores import find_logits
from camtool.private_torch import get_saved_value

__all__ = ["has_other_paths", "iterate_graph"]

_WEIGHTED = re.compile(r"(?i)convolution|(mm|mv|linear)backward|attention|rnn|lstm|gru")
"""Names of nodes with weights, of which a skip connection has none; `UpsampleLinear1DBackward0` resizes one."""

_ADDED = re.compile(r"(Add|Sub|Cat|Stack)Backward")
"""Names of nodes that join a skip connection."""


def has_other_paths(output: Any, layer: Tensor, image: Tensor) -> bool:
    """Return True if the class scores depend on the image by a path with weights of its own beside a layer.

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
    before: dict[Node, bool] = {}  # the nodes that the layer is computed from, and itself
    for node in iterate_graph(start, before):
        before[node] = True
    sees_image: dict[Node, bool] = {}
    follows: dict[Node, bool] = {}
    for node in iterate_graph(root, sees_image):
        children = [child for child, _ in node.next_functions if child is not None]
        sees_image[node] = get_saved_value(node, "variable") is image or any(sees_image[child] for child in children)
        follows[node] = node is start or any(follows[child] for child in children)
    for node in (node for node, is_behind in follows.items() if is_behind and node is not start):
        others = [child for child, _ in node.next_functions if child and sees_image[child] and not follows[child]]
        for other in others:
            known = dict(before)
            for each in iterate_graph(other, known):
                known[each] = True
                if sees_image[each] and _WEIGHTED.search(each.name()):
                    return True
            if not _ADDED.match(node.name()):
                return True
    return False


def iterate_graph(root: Node, known: Container[Node]) -> Iterator[Node]:
    """Yield the nodes of a graph that are not known yet, each after the nodes that it uses."""
    stack, entered = [root], set()
    while stack:
        node = stack[-1]
        if node in known:
            stack.pop()
        elif node not in entered:
            entered.add(node)
            stack += [child for child, _ in node.next_functions if child is not None]
        else:
            stack.pop()
            yield node
