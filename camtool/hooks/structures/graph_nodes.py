"""Nodes of autograd's graph: those that lead to a result, and those that can be reached from some."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.autograd.graph import Node

from camtool.hooks.structures.nested_tensors import find_tensors


def list_nodes(outputs: Any) -> set[Node]:
    """Return all nodes on the graph of some tensors, in any structure."""
    return find_reachable(tensor.grad_fn for tensor in find_tensors(outputs) if tensor.grad_fn is not None)


def get_inputs(node: Node) -> list[Node]:
    """Return the nodes whose results a node uses."""
    return [source for source, _ in node.next_functions if source is not None]


def find_reachable(start: Iterable[Node], get_next: Callable[[Node], list[Node]] = get_inputs) -> set[Node]:
    """Return some nodes and all that follow from them, by default against the direction of the computation."""
    new = [*start]
    reached = {*new}
    while new:
        neighbors = {*get_next(new.pop())} - reached
        reached |= neighbors
        new += neighbors
    return reached
