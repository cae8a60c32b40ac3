"""The gradients that one call of a module sends back to its inputs.

The gradient of a tensor is the sum over all uses of the tensor. The part of one call of one module is found on the
graph: the nodes that the module added send it along the edges that lead to its inputs. So the inputs of the module are
not changed in any way, and modules that write to their inputs work, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from camtool.hooks.private_torch import get_backward_pass_id, get_node_number
from camtool.hooks.registration import add_node_hook

_Edge: TypeAlias = tuple[Node, int]
"""A node of the graph and the index of one of its outputs: the place where the gradient of a tensor is summed up."""

_Indices: TypeAlias = tuple[int, ...]

_AddHook: TypeAlias = Callable[[Tensor, Callable[[Tensor], None]], None]
"""A function that registers a hook on the gradient of a tensor."""


class SentBack:
    """The gradients that one call of a module sends back to its inputs.

    It is created before the call; :meth:`find_nodes` is called after it. If the module gets a tensor several times,
    each of these inputs gets the whole part. If the module returns one of its inputs itself, the part is the whole
    gradient of that tensor, because its uses inside and outside of the module cannot be distinguished.

    Args:
        inputs: The tensors among the inputs of the call.
        keep: A function that gets the index of an input and its gradient, once per backward pass that reaches it.
        add_hook: A function that registers a hook on the gradient of a tensor, and that removes it from leaves in the
            end.
    """

    # Hooks on the graph hold this object. So it must not hold the graph after the call, or the owner of the hooks.

    def __init__(self, inputs: Sequence[Tensor], keep: Callable[[int, Tensor], None], add_hook: _AddHook) -> None:
        self._keep = keep
        self._pass = -1
        self._sums: dict[_Indices, Tensor] = {}
        self._passed_through: set[_Indices] = set()
        self._inputs: dict[_Edge, _Indices] = {}
        for index, tensor in enumerate(inputs):
            if tensor.requires_grad and not torch.is_inference_mode_enabled():
                self._inputs[_get_edge(tensor)] = (*self._inputs.get(_get_edge(tensor), ()), index)
        for indices in self._inputs.values():
            add_hook(inputs[indices[0]], partial(self._finish, indices))
        self._first_number = _read_next_number() if self._inputs else 0

    def find_nodes(self, outputs: Sequence[Tensor], add_hook: _AddHook) -> None:
        """Find the nodes that the call added to the graph, starting at its outputs, and register hooks on them."""
        inputs, self._inputs = self._inputs, {}
        pending = []
        for output in outputs if inputs else ():
            if output.requires_grad and (end := _get_edge(output)) not in inputs:
                pending.append(end[0])
            elif output.requires_grad:
                self._passed_through.add(inputs[end])
                add_hook(output, partial(self._pass_on, inputs[end]))
        seen: set[Node] = set()
        while pending:
            node = pending.pop()
            if node in seen or get_node_number(node) < self._first_number:
                continue
            seen.add(node)
            for slot, edge in enumerate(node.next_functions):
                if edge in inputs:
                    add_node_hook(node, partial(self._add, inputs[edge], slot))
                elif edge[0] is not None:
                    pending.append(edge[0])

    def _add(self, indices: _Indices, slot: int, gradients: tuple[Tensor | None, ...]) -> None:
        part, now = gradients[slot], get_backward_pass_id()
        if now != self._pass:  # an earlier backward pass may have stopped before it reached the inputs
            self._pass, self._sums = now, {}
        if part is not None:
            self._sums[indices] = self._sums[indices] + part if indices in self._sums else part

    def _finish(self, indices: _Indices, _: Tensor) -> None:
        """Pass on the part of an input. Its gradient is complete, so all terms of the part have arrived."""
        part = self._sums.pop(indices, None)
        if part is not None and indices not in self._passed_through:
            self._pass_on(indices, part)

    def _pass_on(self, indices: _Indices, gradient: Tensor) -> None:
        for index in indices:
            self._keep(index, gradient)


def _get_edge(tensor: Tensor) -> _Edge:
    node, slot = get_gradient_edge(tensor)[:2]
    return node, slot


def _read_next_number() -> int:
    """Return the number of a node that is created now. Later nodes have larger numbers."""
    with torch.enable_grad():
        node = torch.ones((), requires_grad=True, device="cpu").view(()).grad_fn
    return get_node_number(cast(Node, node))
