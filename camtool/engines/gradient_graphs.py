"""The gradient of a segment as a graph of its own, made of operations that other runtimes have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from camtool.engines.graph_files import hide_output, refuse_faults
from camtool.engines.segments import Segment
from camtool.hooks.private_torch import get_core_decompositions

_OPS = torch.ops.aten


def trace_gradients(segment: Segment, values: Sequence[Tensor]) -> fx.GraphModule:
    """Return the graph of a segment's gradient: a vector-Jacobian product.

    Args:
        segment: The segment.
        values: Examples of its inputs: of its layers, then of the others.

    Returns:
        From weights of the results, then the inputs, to the gradient of the weighted sum with respect to each layer.
    """
    count, results = len(segment.layers), len(segment.results)

    def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
        weights, layers, others = tensors[:results], tensors[results : results + count], tensors[results + count :]
        _, multiply, *_ = torch.func.vjp(lambda *outputs: segment.graph(*outputs, *others), *layers)
        gradients: tuple[Tensor, ...] = multiply(tuple(weights))
        return gradients

    with torch.no_grad():
        weights = [torch.ones_like(result) for result in segment.graph(*values)]
    # The fused attention kernels have no gradient outside of torch.
    with sdpa_kernel(SDPBackend.MATH), hide_output(), refuse_faults("the gradient cannot be traced"):
        rules = {**get_core_decompositions(), **_RULES}
        trace = make_fx(compute, tracing_mode="symbolic", decomposition_table=rules, _allow_non_fake_inputs=True)
        graph: fx.GraphModule = trace(*weights, *values)
    _simplify_matrices(graph)
    return graph


def _simplify_matrices(graph: fx.GraphModule) -> None:
    """Write the weights of linear layers in a form that all runtimes compute correctly.

    PyTorch transposes such a weight twice in a gradient, which is the weight itself. And OpenVINO 2026.4 reads a square
    weight wrong if another product in the same file has it transposed: it gets a tensor of its own, the transposed one.
    """
    for node in [*graph.graph.nodes]:
        source = node.args[0] if node.args else None
        if _is_transpose(node) and isinstance(source, fx.Node) and _is_transpose(source):
            node.replace_all_uses_with(source.args[0])
    graph.graph.eliminate_dead_code()
    for node in graph.graph.find_nodes(op="get_attr"):
        matrix = getattr(graph, str(node.target), None)
        if isinstance(matrix, Tensor) and matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]:
            _store_transposed(graph, node, matrix)
    graph.recompile()


def _store_transposed(graph: fx.GraphModule, node: fx.Node, matrix: Tensor) -> None:
    """Let all readers of a matrix, but transposes, read it from a tensor that is stored transposed."""
    readers = [reader for reader in node.users if not _is_transpose(reader)]
    if not readers:
        return
    name = f"{node.target}_transposed"
    graph.register_buffer(name, matrix.detach().t().contiguous())
    with graph.graph.inserting_after(node):
        stored = graph.graph.get_attr(name)
    with graph.graph.inserting_after(stored):
        turned = graph.graph.call_function(_OPS.permute.default, (stored, [1, 0]))
    for reader in readers:
        reader.replace_input_with(node, turned)


def _is_transpose(node: fx.Node) -> bool:
    if node.target is _OPS.permute.default:
        return list(node.args[1]) == [1, 0]  # type: ignore[arg-type]  # the second argument is the axes
    return node.target is _OPS.t.default


def _differentiate_convolution(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    _: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,  # noqa: FBT001  torch's own signature
    output_padding: list[int],
    groups: int,
    mask: list[bool],
) -> Any:
    """Return the gradient of a convolution with respect to its input: a transposed convolution.

    With a stride of 1 it is written as a plain convolution, for which runtimes have their best code.
    """
    if not mask[0]:
        return None, None, None
    reach = [dilation[axis] * (weight.shape[axis + 2] - 1) - padding[axis] for axis in range(len(stride))]
    if transposed:
        back = _OPS.convolution(gradient, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)
    elif set(stride) == {1} and min(reach) >= 0:
        turned = _turn_weight(weight, groups)
        back = _OPS.convolution(gradient, turned, None, stride, reach, dilation, False, [0] * len(stride), groups)
    else:
        sides = zip(images.shape[2:], gradient.shape[2:], stride, padding, reach, strict=True)
        # What the convolution's rounding of its output's size has cut off.
        missing = [length - ((steps - 1) * step - pad + around + 1) for length, steps, step, pad, around in sides]
        back = _OPS.convolution(gradient, weight, None, stride, padding, dilation, True, missing, groups)
    return back, None, None


def _turn_weight(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of the convolution that leads back: inputs and outputs exchanged, kernels turned around."""
    outputs, inputs, *kernel = weight.shape
    parts = weight.reshape(groups, outputs // groups, inputs, *kernel).transpose(1, 2)
    turned = parts.reshape(groups * inputs, outputs // groups, *kernel)
    axes = [axis for axis, length in enumerate(turned.shape) if axis > 1 and length > 1]
    return turned.flip(axes) if axes else turned


def _differentiate_max_pooling(
    gradient: Tensor,
    images: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,  # noqa: FBT001  torch's own signature
    indices: Tensor,
) -> Tensor:
    """Return the gradient of max pooling: each output's gradient at the position of its maximum."""
    flat = torch.zeros_like(images).flatten(-2)
    return flat.scatter_add(-1, indices.flatten(-2), gradient.flatten(-2)).reshape(images.shape)


_RULES: dict[Any, Callable[..., Any]] = {
    _OPS.convolution_backward.default: _differentiate_convolution,
    _OPS.max_pool2d_with_indices_backward.default: _differentiate_max_pooling,
}
