"""The gradient of a batch norm along an axis of size one, which some releases of torch compute wrongly.

The stride of such an axis means nothing: of a batch of one, or of series ``(N, C, 1, T)``. Tokens ``(1, T, C)`` that
are seen as ``(1, C, h, w)`` have another one than images. Torch 2.13 and 2.14 then read the gradient of
``BatchNorm2d`` and ``BatchNorm3d`` in another order than the input, on CPUs. A gradient in channels-last format is
read in the right order, for every memory format of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.structures.graph_nodes import list_nodes

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@cache
def has_wrong_norm_gradients() -> bool:
    """Return True if the installed torch computes the gradient of a batch norm wrongly, e.g. for a single image."""
    with enable_gradients():
        image = torch.arange(12.0, device="cpu").reshape(1, 3, 2, 2).requires_grad_()
        ones, zeros = torch.ones(3, device="cpu"), torch.zeros(3, device="cpu")
        normalized = torch.native_batch_norm(image, ones, zeros, zeros, ones, False, 0.0, 0.0)[0]
        gradient = torch.arange(12.0, device="cpu").reshape(1, 4, 3).transpose(1, 2).unflatten(2, (2, 2))
        return not torch.equal(torch.autograd.grad(normalized, image, gradient)[0], gradient)


def find_batch_norms(outputs: Any) -> list[Node]:
    """Return the nodes of batch norms on the graph of some tensors; none if torch computes their gradients rightly."""
    nodes = list_nodes(outputs) if has_wrong_norm_gradients() else set()
    return [node for node in nodes if node.name().startswith("NativeBatchNormBackward")]


@contextmanager
def repair_batch_norms(outputs: Any) -> Iterator[None]:
    """Let the batch norms on the graph of some tensors compute right gradients, within the block."""
    handles = [node.register_prehook(_order_strides) for node in find_batch_norms(outputs)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _order_strides(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...] | None:
    """Return the gradients at the outputs of a batch norm, in channels-last format if it has an axis of size one."""
    gradient, *others = gradients
    if gradient is None or gradient.ndim not in _FORMATS or 1 not in gradient.shape or gradient.device.type != "cpu":
        return None
    return gradient.clone(memory_format=_FORMATS[gradient.ndim]), *others
