"""Operators of ONNX as those of torch, as far as they decide from which pixels a position is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

_KEEPING = frozenset(
    {
        *("BatchNormalization", "Cast", "Clip", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "Neg", "PRelu", "Pow"),
        *("Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh"),
    }
)
"""Operators whose result is at each position computed from that position, or from all in the same way."""

_JOINING = frozenset({"Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum"})


def follow(node: NodeProto, values: Mapping[str, Tensor], constants: Mapping[str, TensorProto]) -> Tensor:
    """Return what stands for the result of an operator.

    Args:
        node: The operator.
        values: The tensors that depend on the image, by name.
        constants: The weights and other constants, by name.

    Raises:
        KeyError: The operator is not known here.
    """
    given = [values[name] for name in node.input if name in values]
    options, x = _read_options(node), given[0]
    if node.op_type in _KEEPING:
        return x
    if node.op_type in _JOINING:
        return torch.stack([*torch.broadcast_tensors(*given)]).sum(0) if len(given) > 2 else sum(given[1:], x)
    if node.op_type == "Concat" and len(given) == len(node.input):
        return torch.cat(given, options["axis"])
    return _OF_ONE_TENSOR[node.op_type](node, x, options, constants)


def _slide(node: NodeProto, x: Tensor, options: Mapping[str, Any], constants: Mapping[str, TensorProto]) -> Tensor:
    """Return the result of a convolution or a pooling over images."""
    if options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or x.ndim != 4:
        raise KeyError("auto_pad")
    top, left, bottom, right = options.get("pads", [0] * 4)
    stride, dilation = options.get("strides", [1, 1]), options.get("dilations", [1, 1])
    is_even = (top, left) == (bottom, right)
    padding = [top, left] if is_even else [0, 0]
    x = x if is_even else functional.pad(x, (left, right, top, bottom))
    if node.op_type == "Conv":
        # A parameter, as centers are read from its values.
        weight = nn.Parameter(_to_tensor(constants[node.input[1]]).float())
        return functional.conv2d(x, weight, None, stride, padding, dilation, options.get("group", 1))
    kernel, is_ceiled = options["kernel_shape"], bool(options.get("ceil_mode", 0))
    if node.op_type == "MaxPool":
        return functional.max_pool2d(x, kernel, stride, padding, dilation, is_ceiled)
    return functional.avg_pool2d(x, kernel, stride, padding, is_ceiled)


def _multiply(node: NodeProto, x: Tensor, options: Mapping[str, Any], constants: Mapping[str, TensorProto]) -> Tensor:
    return functional.linear(x, _to_tensor(constants[node.input[1]]).T)


def _average(node: NodeProto, x: Tensor, options: Mapping[str, Any], constants: Mapping[str, TensorProto]) -> Tensor:
    axes = options.get("axes") or (_to_tensor(constants[node.input[1]]).tolist() if len(node.input) > 1 else [2, 3])
    return x.mean(axes, keepdim=bool(options.get("keepdims", 1)))


_OF_ONE_TENSOR = {
    **dict.fromkeys(("Conv", "AveragePool", "MaxPool"), _slide),
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean"), _average),
    "MatMul": _multiply,
    "Transpose": lambda _, x, options, __: x.permute(options["perm"]),
}
"""Operator → what it does to the tensor that depends on the image; its other inputs are constants."""


def _read_options(node: NodeProto) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def _to_tensor(constant: TensorProto) -> Tensor:
    from onnx.numpy_helper import to_array

    return torch.from_numpy(to_array(constant).copy())
