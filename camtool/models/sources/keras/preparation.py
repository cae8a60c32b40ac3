"""Preprocessing of photos for a Keras model, read from its first layers or the keras.applications network in it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from camtool.geometry.plain_transforms import IMAGENET, Channels, Preprocessing
from camtool.models.sources.keras.model import get_graph, read_format
from camtool.warning_codes import MapWarning


class _Mode(NamedTuple):
    """Preprocessing: the order of the channels, mean and standard deviation for values in [0, 1].

    Attributes:
        name: The mode of ``preprocess_input`` of keras.applications; empty for another preparation.
        layers: Names of layers, one of which each network there has that is prepared so and does not do it itself.
    """

    order: Channels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = ""
    layers: tuple[str, ...] = ()


_OF_TF = "conv5_block3_preact_relu", "mixed10", "conv_7b_ac", "block14_sepconv2_act", "conv_pw_13_relu"
_BLUE_GREEN_RED = 103.939 / 255, 116.779 / 255, 123.68 / 255
_MODES = (
    # VGG16, VGG19; ResNet50 to 152.
    _Mode("bgr", _BLUE_GREEN_RED, (1 / 255,) * 3, "caffe", ("block5_conv3", "conv5_block3_3_bn")),
    # ResNet50V2 to 152V2, InceptionV3, InceptionResNetV2, Xception, MobileNet; MobileNetV2.
    _Mode("rgb", (0.5,) * 3, (0.5,) * 3, "tf", (*_OF_TF, "block_16_project_BN")),
    # DenseNet121 to 201.
    _Mode("rgb", *IMAGENET, "torch", ("conv5_block16_concat",)),
)

# Layers and operations that only prepare: arithmetic, and what changes photos in training, or their size.
_ARITHMETIC = (
    *("Add", "Cast", "Divide", "Flip", "GetItem", "Multiply", "Normalization", "Rescaling", "Stack", "Subtract"),
    "TrueDivide",
)
_INACTIVE = ("Random", "Resizing", "CenterCrop", "InputLayer")

_ORDERS: dict[int | None, Channels] = {1: "gray", 3: "rgb"}

# Largest value of a photo after any usual normalization; bytes that were not normalized reach 255.
_MOST_NORMALIZED = 10.0


def read_image_size(model: Any) -> tuple[int, int] | None:
    """Return the size (H, W) of the images that a Keras model takes; None if it takes any."""
    height, width, _ = _read_image_shape(model)
    return None if height is None or width is None else (height, width)


def build_transform(model: Any) -> Preprocessing | None:
    """Return how photos are prepared for a Keras model; None if its layers do not show which range of values it takes.

    Photos are stretched to the size of its input, as Keras' own functions do.
    """
    size, channels = read_image_size(model), _read_image_shape(model)[2]
    mode = _find_mode(model, *(size or (32, 32)), channels) if channels in _ORDERS else None
    if mode is None:
        return None
    notes: list[str] = []
    if mode.name:
        text = f"The photo was prepared as preprocess_input of keras.applications does in the mode {mode.name!r}."
        notes.append(f"{text} If the weights were trained on other values, pass transform=.")
    if size is None:
        notes.append("The model takes images of any size, so 224 x 224 was assumed; pass transform= for another.")
    warnings = tuple(MapWarning(note, "assumed-transform") for note in notes)
    return Preprocessing(size or (224, 224), mode.mean, mode.std, mode.order, warnings, "stretch")


def _find_mode(model: Any, height: int, width: int, channels: Any) -> _Mode | None:
    """Return how photos are prepared for a model; None if its layers do not show it."""
    values = torch.tensor([0.0, 1.0, 255.0])[:, None, None, None].expand(3, height, width, channels)
    values = values if read_format(model)[0] else values.permute(0, 3, 1, 2)
    with torch.no_grad(), sys.modules["keras"].device("cpu"):
        network, prepared = _prepare_values(model, values)
    if (prepared.flatten(1) == values.flatten(1)[:, :1]).all():
        return _find_network_mode(network) if channels == 3 else None
    scale = _find_scale(prepared)
    return None if scale is None else _Mode(_ORDERS[channels], (0.0,) * channels, (scale,) * channels)


def _read_image_shape(model: Any) -> tuple[int | None, int | None, int | None]:
    """Return height, width and channels of the only input of a model if that is one of images; None for any."""
    inputs: Any = getattr(model, "inputs", None) or ()
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        return None, None, None
    shape = inputs[0].shape[1:]
    height, width, channels = shape if read_format(model)[0] else (*shape[1:], shape[0])
    return height, width, channels


def _find_network_mode(network: Any) -> _Mode | None:
    """Return how ``preprocess_input`` prepares photos for a network of keras.applications; None for any other model."""
    names = {step.name for step in getattr(network, "operations", ())}
    return next((mode for mode in _MODES if not names.isdisjoint(mode.layers)), None)


def _prepare_values(model: Any, values: Tensor) -> tuple[Any, Tensor]:
    """Run the first layers of a model, which only prepare photos.

    Returns:
        The first layer or network behind them, and its input; None and the output if there is nothing else.
    """
    graph = get_graph(model)
    if graph is None or len(graph.inputs) != 1 or _find_network_mode(model) is not None:
        return model, values
    depths = sorted(graph._nodes_by_depth.items(), reverse=True)
    nodes = (node for _, of_depth in depths for node in of_depth if not _only_prepares(node.operation))
    node = next(nodes, None)
    if node is None:
        return None, model(values, training=False)
    if node.input_tensors[0] is not graph.inputs[0]:
        values = sys.modules["keras"].Model(graph.inputs, node.input_tensors[0])(values, training=False)
    return _prepare_values(node.operation, values)


def _only_prepares(step: Any) -> bool:
    """Return True for a layer or operation, or a model of such, that does arithmetic or changes photos in training."""
    graph, kind = get_graph(step), type(step).__name__
    if graph is not None:
        return all(_only_prepares(part) for part in graph.operations)
    return kind in _ARITHMETIC or kind.startswith(_INACTIVE)


def _find_scale(prepared: Tensor) -> float | None:
    """Return by what a photo in [0, 1] is divided for a model: 1 / 255 if it takes bytes, 1 if it takes these values.

    Args:
        prepared: ``(3, ...)``, what the first layers make of photos whose values are 0, 1 and 255.

    Returns:
        None if that is not clear.
    """
    black, one, white = prepared.flatten(1).cpu()
    slope, range_of_bytes = float((one - black).abs().max()), float((white - black).abs().max())
    if range_of_bytes <= _MOST_NORMALIZED or float(black.min()) < -_MOST_NORMALIZED:
        return 1 / 255
    return None if slope > _MOST_NORMALIZED else 1.0
