"""A model as one graph of operations on tensors, with the outputs of the observed layers among its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from camtool.engines.graph_files import refuse_faults
from camtool.errors import NotCompilableError
from camtool.hooks.registration import add_forward_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.structures.modules import find_module
from camtool.hooks.structures.nested_tensors import find_main_tensor, find_tensors, replace_main_tensor

_OPS = torch.ops.aten
_ONNX_ATTENTION_AXES = 4
_IS_CAUSAL = 5  # the position of this argument of torch's attention


@dataclass(frozen=True)
class Capture:
    """A captured model.

    Attributes:
        graph: From images ``(N, C, *size)`` to the tensors of the model's output, then the observed layers' outputs.
            Nothing in it happens in place.
        layers: The names of the observed layers, in the order of their calls.
        output_count: The number of tensors of the model's output.
        has_any_batch_size: False if it runs for the captured number of images alone.
    """

    graph: fx.GraphModule
    layers: list[str]
    output_count: int
    has_any_batch_size: bool

    def return_also(self, nodes: Sequence[fx.Node]) -> None:
        """Let the graph return further nodes, behind its results, and its results as a plain tuple."""
        (output,) = (node for node in self.graph.graph.nodes if node.op == "output")
        output.args = ((*get_results(self.graph), *nodes),)
        # The signature of the exported model packs its output.
        self.graph.graph.set_codegen(fx.graph.CodeGen())
        self.graph.recompile()


def capture_model(model: nn.Module, images: Tensor, layers: Sequence[str]) -> Capture:
    """Capture a model with ``torch.export``.

    Args:
        model: A module in evaluation mode, whose hooks nobody else uses meanwhile.
        images: ``(N, C, *size)``. The graph of one image runs on one: torch.export never leaves a length of 1 open.
        layers: The layers to observe.

    Raises:
        NotCompilableError: The model's Python code depends on the values of tensors, or a layer does not run once.
    """
    if len(images) == 1:
        return _capture(model, images, layers, has_any_batch_size=False)
    try:
        return _capture(model, images, layers, has_any_batch_size=True)
    except NotCompilableError:
        # The number of images is fixed in some models' code, e.g. by ``x.view(2, -1)``.
        return _capture(model, images, layers, has_any_batch_size=False)


def _capture(model: nn.Module, images: Tensor, layers: Sequence[str], *, has_any_batch_size: bool) -> Capture:
    calls: list[str] = []
    shapes = ({0: torch.export.Dim("images")},) if has_any_batch_size else None
    with Cleanup() as cleanup, torch.no_grad():
        observed = _ObservedModel(model, layers, cleanup, calls)
        with refuse_faults("torch.export fails", unless=(NotCompilableError,)):
            program = torch.export.export(observed, (images,), dynamic_shapes=shapes, strict=False)
            # An empty table: operations on tensors in place are replaced, and all others stay.
            graph: Any = program.run_decompositions({}).module(check_guards=False)
    order = calls[-len(layers) :] if layers else []
    _simplify(graph)
    count = len(get_results(graph)) - len(layers)
    return Capture(graph, order, count, has_any_batch_size)


class _ObservedModel(nn.Module):
    """A model that also returns the outputs of layers, in the order of their calls."""

    def __init__(self, model: nn.Module, layers: Sequence[str], cleanup: Cleanup, calls: list[str]) -> None:
        super().__init__()
        self._model, self._layers, self._calls = model, list(layers), calls
        self._kept: dict[str, list[Tensor]] = {}
        for layer in layers:
            add_forward_hook(cleanup, find_module(model, layer), partial(self._keep_output, layer), prepend=True)

    def _keep_output(self, layer: str, _: nn.Module, output: Any) -> Any:
        kept = find_main_tensor(output)
        if kept is None or kept.is_quantized:
            raise NotCompilableError(f"layer {layer!r} returned no floating tensor")
        # A node of its own, so that other results that the layer derived from this tensor are no part of the tail.
        self._kept.setdefault(layer, []).append(kept.clone())
        self._calls.append(layer)
        return replace_main_tensor(output, self._kept[layer][-1].clone())

    def forward(self, images: Tensor) -> list[Tensor]:
        self._calls.clear()
        self._kept = {}
        output = self._model(images)
        kept, self._kept = self._kept, {}
        for layer in self._layers:
            if len(kept.get(layer, [])) != 1:
                raise NotCompilableError(f"layer {layer!r} runs {len(kept.get(layer, []))} times")
        return [*find_tensors(output), *(tensors[0] for tensors in kept.values())]


def get_results(graph: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes that a graph returns."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return list(output.args[0])


def _simplify(graph: fx.GraphModule) -> None:
    """Replace operations whose gradients have no counterpart outside of torch."""
    for node in list(graph.graph.nodes):
        if node.target is _OPS.view.default:
            # The gradient's memory format may be another one.
            node.target = _OPS.reshape.default
        elif node.target is _OPS.adaptive_avg_pool2d.default and list(node.args[1]) == [1, 1]:
            node.target, node.args = _OPS.mean.dim, (node.args[0], [-2, -1], True)
        elif node.target is _OPS.adaptive_avg_pool2d.default:
            _replace_pooling(graph, node)
        elif node.target is _OPS.linear.default and node.meta["val"].ndim > 2:
            _replace_linear(graph, node)
        elif node.target is _OPS.scaled_dot_product_attention.default and node.meta["val"].ndim != _ONNX_ATTENTION_AXES:
            _replace_attention(graph, node)
    graph.graph.lint()
    graph.recompile()


def _replace_pooling(graph: fx.GraphModule, node: fx.Node) -> None:
    """Replace an adaptive average pooling by products with constant matrices, one for each axis."""
    pooled, cells = cast("fx.Node", node.args[0]), cast("list[int]", node.args[1])
    height, width = pooled.meta["val"].shape[-2:]
    rows, columns = _average(height, cells[0]), _average(width, cells[1])
    for name, matrix in (("rows", rows), ("columns", columns.T.contiguous())):
        graph.register_buffer(f"{node.name}_{name}", matrix.to(pooled.meta["val"].device, pooled.meta["val"].dtype))
    with graph.graph.inserting_before(node):
        left, right = (graph.graph.get_attr(f"{node.name}_{name}") for name in ("rows", "columns"))
        along_rows = graph.graph.call_function(_OPS.matmul.default, (left, pooled))
        result = graph.graph.call_function(_OPS.matmul.default, (along_rows, right))
    _replace(node, result)


def _replace_linear(graph: fx.GraphModule, node: fx.Node) -> None:
    """Replace a linear layer on tokens by a product and a sum: torch adds its bias in place."""
    tokens, weight, *bias = node.args
    with graph.graph.inserting_before(node):
        transposed = graph.graph.call_function(_OPS.permute.default, (weight, [1, 0]))
        result = graph.graph.call_function(_OPS.matmul.default, (tokens, transposed))
        if bias and bias[0] is not None:
            result = graph.graph.call_function(_OPS.add.Tensor, (result, bias[0]))
    _replace(node, result)


def _replace_attention(graph: fx.GraphModule, node: fx.Node) -> None:
    """Replace an attention with more axes than ONNX knows, e.g. of windows, by its two products."""
    query, key, value, *options = node.args
    if any(options[_IS_CAUSAL - 3 :]) or node.kwargs.get("is_causal") or node.kwargs.get("enable_gqa"):
        return
    mask = options[0] if options else node.kwargs.get("attn_mask")
    scale = node.kwargs.get("scale") or cast("fx.Node", query).meta["val"].shape[-1] ** -0.5
    call = graph.graph.call_function
    with graph.graph.inserting_before(node):
        turned = call(_OPS.transpose.int, (key, -2, -1))
        scores = call(_OPS.mul.Tensor, (call(_OPS.matmul.default, (query, turned)), scale))
        if isinstance(mask, fx.Node):
            scores = _add_mask(graph, scores, mask)
        weights = call(_OPS.softmax.int, (scores, -1))
        result = call(_OPS.matmul.default, (weights, value))
    _replace(node, result)


def _add_mask(graph: fx.GraphModule, scores: fx.Node, mask: fx.Node) -> fx.Node:
    """Return attention's scores with a mask: of booleans, which are true where attention may look, or of numbers."""
    call = graph.graph.call_function
    if mask.meta["val"].dtype != torch.bool:
        return call(_OPS.add.Tensor, (scores, mask))
    hidden = call(_OPS.logical_not.default, (mask,))
    return call(_OPS.masked_fill.Scalar, (scores, hidden, float("-inf")))


def _replace(node: fx.Node, result: fx.Node) -> None:
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _average(length: int, cells: int) -> Tensor:
    """Return the matrix ``(cells, length)`` of an adaptive average pooling along one axis."""
    matrix = torch.zeros(cells, length, device="cpu")
    for cell in range(cells):
        first, end = cell * length // cells, -(-(cell + 1) * length // cells)
        matrix[cell, first:end] = 1 / (end - first)
    return matrix
