"""What a module sends back: the gradients at its inputs, told from those that others send to the same tensors.

A tensor's gradient is the sum over all that use the tensor. The part that comes from one call of one module is found
on the graph, without a change to anything that the module is given: it is what the nodes that the module made send
along those edges that lead to its inputs. Modules that write to their inputs are no exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from camtool.hooks import node_hook

__all__ = ["SentBack"]

_Edge: TypeAlias = tuple[Node, int]
"""A node of the graph, and which of its outputs: where a tensor's gradient is collected."""

_Places: TypeAlias = tuple[int, ...]

_Listen: TypeAlias = Callable[[Tensor, Callable[[Tensor], None]], None]


class SentBack:
    """The gradients that one call of a module sends back to its inputs.

    It is made ahead of the call, and told afterwards, by :meth:`returned`, what came out. A tensor that the module was
    given at several places has its whole part at each of them. Where the module returns the very tensor that it was
    given, the part is all that arrives at that tensor: under which name others used it, nobody can tell.

    Args:
        inputs: The tensors that the module is about to be given.
        keep: Is called with an input's place and the gradient, once for every backward pass that gets there.
        listen: Puts a hook on a tensor that is called with its gradient. It must go in the end, from leaves too.
    """

    # What lies on the graph holds this object. So it holds neither the graph, beyond the call, nor whoever listens.

    def __init__(self, inputs: Sequence[Tensor], keep: Callable[[int, Tensor], None], listen: _Listen) -> None:
        self._keep = keep
        self._pass = -1
        self._sums: dict[_Places, Tensor] = {}
        self._handed_through: set[_Places] = set()
        self._inputs: dict[_Edge, _Places] = {}
        for place, tensor in enumerate(inputs):
            if tensor.requires_grad and not torch.is_inference_mode_enabled():
                self._inputs[_edge(tensor)] = (*self._inputs.get(_edge(tensor), ()), place)
        for places in self._inputs.values():
            listen(inputs[places[0]], partial(self._finish, places))
        self._begins = _clock() if self._inputs else 0

    def returned(self, outputs: Sequence[Tensor], listen: _Listen) -> None:
        """Find the nodes that the module has made, behind what it returned."""
        inputs, self._inputs = self._inputs, {}
        ahead = []
        for output in outputs if inputs else ():
            if output.requires_grad and (end := _edge(output)) not in inputs:
                ahead.append(end[0])
            elif output.requires_grad:
                self._handed_through.add(inputs[end])
                listen(output, partial(self._tell, inputs[end]))
        seen: set[Node] = set()
        while ahead:
            node = ahead.pop()
            if node in seen or node._sequence_nr() < self._begins:
                continue
            seen.add(node)
            for slot, edge in enumerate(node.next_functions):
                if edge in inputs:
                    node_hook(node, partial(self._add, inputs[edge], slot))
                elif edge[0] is not None:
                    ahead.append(edge[0])

    def _add(self, places: _Places, slot: int, gradients: tuple[Tensor | None, ...]) -> None:
        part, now = gradients[slot], torch._C._current_graph_task_id()
        if now != self._pass:  # the one before may have ended ahead of the inputs
            self._pass, self._sums = now, {}
        if part is not None:
            self._sums[places] = self._sums[places] + part if places in self._sums else part

    def _finish(self, places: _Places, _: Tensor) -> None:
        """A tensor's gradient is complete, so all parts of it have come."""
        part = self._sums.pop(places, None)
        if part is not None and places not in self._handed_through:
            self._tell(places, part)

    def _tell(self, places: _Places, gradient: Tensor) -> None:
        for place in places:
            self._keep(place, gradient)


def _edge(tensor: Tensor) -> _Edge:
    node, slot = get_gradient_edge(tensor)[:2]
    return node, slot


def _clock() -> int:
    """The number that torch gives the node that it makes now; those that it makes later have larger ones."""
    with torch.enable_grad():
        node = torch.ones((), requires_grad=True).view(()).grad_fn
    return int(node._sequence_nr())  # type: ignore[union-attr]
