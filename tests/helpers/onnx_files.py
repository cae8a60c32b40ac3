"""ONNX files for tests: networks as camtool's own exporter writes them, and one that is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from camtool.engines.graph_files import convert_to_onnx, export_graph, lock_compiler, write_onnx


def export(model: nn.Module, images: Tensor, path: Path, *, fixed: bool = False) -> Path:
    """Write the forward pass of a model, for any number of images or for that of the example."""
    with lock_compiler():
        program = export_graph(model.eval(), [images], has_any_batch_size=not fixed)
        write_onnx(convert_to_onnx(program, ["images"], ["logits"]), path)
    return path


HEAD = ((2.0, -1.0), (1.0, 1.0))


def write_by_hand(
    path: Path,
    *,
    batch: int | str = "n",
    channels_last: bool = False,
    head: Sequence[Sequence[float]] = HEAD,
    **metadata: str,
) -> Path:
    """Write a network of two channels, relu(x) and relu(1 - x), with the means m0 and m1.

    The scores are 2 m0 + m1 and m1 - m0. The image has one channel and 4 x 4 pixels. Of the hidden tensors one has a
    dot in its name, and one the name of an attribute of modules.
    """
    weight = np.array([1.0, -1.0], np.float32).reshape(2, 1, 1, 1)
    numbers = {"weight": weight, "bias": np.array([0.0, 1.0], np.float32), "head": np.array(head, np.float32)}
    nodes = [
        helper.make_node("Conv", ["pixels" if channels_last else "images", "weight", "bias"], ["net.conv"]),
        helper.make_node("Relu", ["net.conv"], ["half"]),
        helper.make_node("GlobalAveragePool", ["half"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["scores"]),
        helper.make_node("Neg", ["scores"], ["negated"]),
    ]
    if channels_last:
        nodes.insert(0, helper.make_node("Transpose", ["images"], ["pixels"], perm=[0, 3, 1, 2]))
    shape = [batch, 4, 4, 1] if channels_last else [batch, 1, 4, 4]
    graph = helper.make_graph(
        nodes,
        "by hand",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 2]) for name in ("scores", "negated")],
        [numpy_helper.from_array(array, name) for name, array in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path
