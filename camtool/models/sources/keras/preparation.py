"""How photos are prepared for a Keras model: what its first layers compute, or which network of Keras' own it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from camtool.models.photo_transforms import IMAGENET, Channels, Preprocessing
from camtool.models.sources.keras.model import KerasModel, get_graph
from camtool.warning_codes import MapWarning

# For networks of keras.applications that do not prepare photos themselves: the name of the model, that of one of its
# layers, and the mode of its preprocess_input.
_NETWORKS = (
    ("vgg(16|19)", "block5_conv3", "caffe"),
    ("resnet(50|101|152)", "conv5_block3_out", "caffe"),
    ("resnet(50|101|152)v2", "post_relu", "tf"),
    ("densenet(121|169|201)", "conv5_block16_concat", "torch"),
    ("inception_v3", "mixed10", "tf"),
    ("inception_resnet_v2", "conv_7b_ac", "tf"),
    ("xception", "block14_sepconv2_act", "tf"),
    (r"mobilenet_[\d.]+_.+", "conv_pw_13_relu", "tf"),
    (r"mobilenetv2_[\d.]+_.+", "out_relu", "tf"),
    ("nasnet_(mobile|large)|nasnet", "stem_conv1", "tf"),
)

# Mode → order of the channels, mean and standard deviation for values in [0, 1].
_MODES: dict[str, tuple[Channels, tuple[float, ...], tuple[float, ...]]] = {
    "caffe": ("bgr", (103.939 / 255, 116.779 / 255, 123.68 / 255), (1 / 255,) * 3),
    "tf": ("rgb", (0.5,) * 3, (0.5,) * 3),
    "torch": ("rgb", *IMAGENET),
}

# Layers and operations that only prepare: arithmetic, and what changes photos in training, or their size.
_ARITHMETIC = (
    *("Add", "Cast", "Divide", "Flip", "GetItem", "Multiply", "Normalization", "Rescaling", "Stack", "Subtract"),
    "TrueDivide",
)
_INACTIVE = ("Random", "Resizing", "CenterCrop", "InputLayer")

_ORDERS: dict[int, Channels] = {1: "gray", 3: "rgb"}

# Largest value of a photo after any usual normalization; bytes that were not normalized reach 255.
_MOST_NORMALIZED = 10.0


def read_image_size(model: KerasModel) -> tuple[int, int] | None:
    """Return the size (H, W) of the images that a model takes; None if it takes any."""
    shape = _get_image_shape(model) or (None,) * 4
    height, width = shape[1:3] if model.has_channels_last else shape[2:]
    return None if height is None or width is None else (height, width)


def build_transform(model: KerasModel) -> Preprocessing | None:
    """Return how photos are prepared for a model; None if its layers do not show which range of values it takes.

    Photos are stretched to the size of its input, as Keras' own functions do.
    """
    shape = _get_image_shape(model)
    channels = (shape[3] if model.has_channels_last else shape[1]) if shape else None
    if channels is None or channels not in _ORDERS:
        return None
    values = torch.tensor([0.0, 1.0, 255.0])[:, None, None, None]
    values = values.expand((3, 1, 1, channels) if model.has_channels_last else (3, channels, 1, 1))
    with torch.no_grad():
        network, prepared = _prepare_values(model.keras_model, values)
    scale, mode = _find_scale(prepared), _find_mode(network)
    notes: list[str] = []
    if scale is not None:
        order, mean, std = _ORDERS[channels], (0.0,) * channels, (scale,) * channels
    elif mode is not None and prepared is values and channels == 3:
        order, mean, std = _MODES[mode]
        text = f"The photo was prepared as preprocess_input of keras.applications does for {network.name} ({mode!r})."
        notes.append(f"{text} If the weights were trained on other values, pass transform=.")
    else:
        return None
    size = read_image_size(model)
    if size is None:
        notes.append("The model takes images of any size, so 224 x 224 was assumed; pass transform= for another.")
    warnings = tuple(MapWarning(note, "assumed-transform") for note in notes)
    return Preprocessing(size or (224, 224), mean, std, order, warnings, "stretch")


def _get_image_shape(model: KerasModel) -> tuple[int | None, int | None, int | None, int | None] | None:
    """Return the shape of the only input of a model if that is one of images."""
    inputs: Sequence[Any] = getattr(model.keras_model, "inputs", None) or ()
    return inputs[0].shape if len(inputs) == 1 and len(inputs[0].shape) == 4 else None


def _find_mode(network: Any) -> str | None:
    """Return the mode of ``preprocess_input`` of a network of keras.applications; None for any other model."""
    names = {step.name for step in getattr(network, "operations", ())}
    found = (mode for name, layer, mode in _NETWORKS if layer in names and re.fullmatch(name, network.name))
    return next(found, None)


def _prepare_values(whole: Any, values: Tensor) -> tuple[Any, Tensor]:
    """Run the first layers of a model, which only prepare photos.

    Returns:
        The first layer or network behind them, and its input; None and the output if there is nothing else.
    """
    graph = get_graph(whole)
    if graph is None or len(graph.inputs) != 1 or _find_mode(whole) is not None:
        return whole, values
    known = {id(graph.inputs[0]): values}
    for node in [node for step in graph.operations for node in step._inbound_nodes]:
        tensors, (step, kind) = node.input_tensors, (node.operation, type(node.operation).__name__)
        if not tensors or not all(id(tensor) in known for tensor in tensors):
            continue
        output = known[id(tensors[0])]
        if kind in _ARITHMETIC:
            args, named = node.arguments.fill_in(known)
            output = step(*args, **named)
        elif not kind.startswith(_INACTIVE):
            rest, output = _prepare_values(step, output)
            if rest is not None:
                return rest, output
        known[id(node.outputs[0])] = output
    return None, known.get(id(graph.outputs[0]), values)


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
    is_unchanged = slope == 1 and not black.any()
    return None if is_unchanged or slope > _MOST_NORMALIZED else 1.0
