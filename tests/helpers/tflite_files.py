"""A TFLite file for tests: the network of :func:`tests.helpers.onnx_files.write_by_hand`, written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np


def write_by_hand(path: Path, labels: str = "", *, scale: float = 0.0, zero: int = 0) -> Path:
    """Write the network for images ``(N, 4, 4, 1)``.

    Args:
        path: The file.
        labels: What ``labels.txt`` in its archive holds; without text there is no archive.
        scale: The step of quantized bytes, which the network takes then; 0 for floats.
        zero: The byte that stands for 0.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], [schema.BufferT()], []
    graph.tensors, graph.operators = [], []

    def add_tensor(name: str, shape: list[int], values: Any = None, kind: int = schema.TensorType.FLOAT32) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.buffer = name, shape, kind, 0
        tensor.shapeSignature = [-1, *shape[1:]] if values is None else shape
        if values is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
            model.buffers.append(buffer)
            tensor.buffer = len(model.buffers) - 1
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    def add_operator(code: int, inputs: list[int], output: int, kind: int, options: Any) -> None:
        name, operator = schema.OperatorCodeT(), schema.OperatorT()
        name.builtinCode, name.deprecatedBuiltinCode, name.version = code, code, 1
        model.operatorCodes.append(name)
        operator.opcodeIndex, operator.inputs, operator.outputs = len(model.operatorCodes) - 1, inputs, [output]
        operator.builtinOptionsType, operator.builtinOptions = kind, options
        graph.operators.append(operator)

    image = pixels = add_tensor("images", [1, 4, 4, 1], kind=schema.TensorType.UINT8 if scale else 0)
    if scale:
        steps = schema.QuantizationParametersT()
        steps.scale, steps.zeroPoint = [scale], [zero]
        graph.tensors[image].quantization = steps
        pixels = add_tensor("pixels", [1, 4, 4, 1])
        code, kind = schema.BuiltinOperator.DEQUANTIZE, schema.BuiltinOptions.DequantizeOptions
        add_operator(code, [image], pixels, kind, schema.DequantizeOptionsT())
    weight = add_tensor("weight", [2, 1, 1, 1], np.array([1, -1], np.float32))
    bias = add_tensor("bias", [2], np.array([0, 1], np.float32))
    axes = add_tensor("axes", [2], np.array([1, 2], np.int32), schema.TensorType.INT32)
    head = add_tensor("head", [2, 2], np.array([[2, 1], [-1, 1]], np.float32))
    half, pooled, scores = add_tensor("half", [1, 4, 4, 2]), add_tensor("pooled", [1, 2]), add_tensor("scores", [1, 2])
    convolution, reducer, dense = schema.Conv2DOptionsT(), schema.ReducerOptionsT(), schema.FullyConnectedOptionsT()
    convolution.padding, convolution.strideW, convolution.strideH = schema.Padding.VALID, 1, 1
    convolution.fusedActivationFunction = schema.ActivationFunctionType.RELU
    codes, kinds = schema.BuiltinOperator, schema.BuiltinOptions
    add_operator(codes.CONV_2D, [pixels, weight, bias], half, kinds.Conv2DOptions, convolution)
    add_operator(codes.MEAN, [half, axes], pooled, kinds.ReducerOptions, reducer)
    add_operator(codes.FULLY_CONNECTED, [pooled, head, -1], scores, kinds.FullyConnectedOptions, dense)
    graph.inputs, graph.outputs = [image], [scores]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    if labels:
        with ZipFile(path, "a") as archive:
            archive.writestr("labels.txt", labels)
    return path
