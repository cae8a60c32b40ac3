"""Preprocessing, image size and class names of a bare model.

The sources of models are asked in turn. The first answer counts. The image size of a user's own model is read from its
attributes and weights, and a forward pass has to confirm it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from camtool.arguments.message_parts import format_count
from camtool.errors import TargetError, raise_interrupt
from camtool.geometry.transform_output import Transform
from camtool.hooks.model_passes import run_model
from camtool.hooks.private_torch import is_convolution
from camtool.hooks.state.guard import enable_gradients, guard
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.modules import list_weights, read_tree
from camtool.hooks.structures.nested_tensors import find_main_tensor
from camtool.models.function_models import FunctionModel
from camtool.models.sources import SOURCES, Source

# Image size (H, W) of most classifiers trained on ImageNet.
_DEFAULT_SIZE = (224, 224)

_Answer = TypeVar("_Answer")


def find_transform(model: nn.Module) -> Transform | None:
    """Return the preprocessing that a model itself declares; None if it declares none. Nothing is downloaded."""
    whole = _get_whole(model)
    return _ask_sources(lambda source: source.find_transform(whole))


def find_text_processor(model: nn.Module) -> Any | None:
    """Return what prepares an image and a text for a model that reads both; None if unknown. Nothing is downloaded."""
    whole = _get_whole(model)
    return _ask_sources(lambda source: source.find_processor(whole))


def find_input_size(model: nn.Module) -> tuple[int, int]:
    """Return the image size (H, W) that a model was made for; 224 x 224 if unknown."""
    return read_input_size(model) or _DEFAULT_SIZE


def read_input_size(model: nn.Module) -> tuple[int, int] | None:
    """Return the image size (H, W) that a model's source, its attributes or its weights show; None if unknown.

    A size that no source of models knows is confirmed by a forward pass. The answer is kept for the model.
    """
    whole = _get_whole(model)
    if isinstance(whole, FunctionModel):  # it is not run to find out
        return whole.input_size
    declared = _ask_sources(lambda source: source.find_input_size(whole))
    return declared or remember_for_model(whole, "input size", lambda: _infer_input_size(whole))


def count_input_channels(model: nn.Module) -> int:
    """Return the number of channels of an image that a model takes, as its first convolution over images does.

    Of a model without convolutions, the first linear layer decides if it takes the pixels of a square.
    """
    for module in read_tree(model).modules:
        if is_convolution(module) and len(module.kernel_size) == 2:
            return module.in_channels
    return next((channels for channels, _ in _list_square_images(model)), 3)


def resolve_labels(model: nn.Module, given: Sequence[str] | None, classes: int | None) -> Sequence[str] | None:
    """Return the class names: those that were given, or else those that the model's source knows.

    A model with a single score distinguishes two classes. One name is enough for it: ``["crack"]``.

    Args:
        model: The model.
        given: The given names; None if there are none.
        classes: The number of scores; None if the output does not show it, as that of a detector.

    Returns:
        The names; None if there are none, or if the source knows another number of them.

    Raises:
        TargetError: The number of given names is not the number of classes.
    """
    if given is None:
        declared = None if classes is None else _ask_sources(lambda source: source.find_labels(model))
        return declared if declared is not None and len(declared) == classes else None
    return _match_labels(given, classes)


def _match_labels(given: Sequence[str], classes: int | None) -> Sequence[str]:
    if classes == 1 and len(given) in (1, 2):
        return given if len(given) == 2 else (f"not {given[0]}", given[0])
    if classes is not None and len(given) != classes:
        raise TargetError(f"labels has {format_count(len(given), 'name')}, the model {format_count(classes, 'class')}.")
    return given


def resolve_phrases(
    model: nn.Module, given: Sequence[str] | None, phrases: Sequence[Sequence[int]]
) -> Sequence[str] | None:
    """Return the texts of the phrases in a prompt: those that were given, or else those that the tokenizer decodes.

    Args:
        model: The model.
        given: The given texts; None if there are none.
        phrases: The tokens of each phrase, see :mod:`camtool.outputs.phrases`.

    Returns:
        The texts; None if there are none.

    Raises:
        TargetError: The number of given texts is not the number of phrases.
    """
    if given is None:
        whole = _get_whole(model)
        return _ask_sources(lambda source: source.decode_phrases(whole, phrases)) if all(phrases) else None
    if len(given) != len(phrases):
        raise TargetError(
            f"labels has {format_count(len(given), 'name')}, but the prompt has {format_count(len(phrases), 'phrase')} "
            "(each ends with '.' or '?')."
        )
    return given


def _get_whole(model: nn.Module) -> nn.Module:
    """Return the model that an image tower belongs to, which has the configuration; else the model itself."""
    return getattr(model, "whole", model)


def _ask_sources(question: Callable[[Source], _Answer | None]) -> _Answer | None:
    """Return the first answer of a source that is not None."""
    answers = (question(source) for source in SOURCES)
    return next((answer for answer in answers if answer is not None), None)


# ------------------------------------------------------------------------------------- the size of a user's own model

_SIZE_NAMES = ("image_size", "img_size", "input_size")
# Sides of square inputs, besides 224, the most usual ones of data sets and architectures first.
_USUAL_SIDES = (
    *(32, 28, 64, 128, 96, 256, 48, 227, 299, 384, 160, 192, 16, 112, 84, 100, 150, 200, 320, 240, 512, 24),
    *(20, 36, 40, 50, 56, 60, 72, 75, 80, 90, 120, 125, 144, 180, 250, 300, 331, 400, 416, 448, 480, 640),
)


def _infer_input_size(model: nn.Module) -> tuple[int, int] | None:
    """Return a size that the model declares or needs and runs on; None if it runs on the default one, or on none."""
    kinds = {len(module.kernel_size) for module in read_tree(model).modules if is_convolution(module)}
    if (kinds and 2 not in kinds) or any(map(is_lazy, list_weights(model))):
        return None
    declared = [*_list_declared_sizes(model)]
    usual = zip(_USUAL_SIDES, _USUAL_SIDES, strict=True)
    failures: list[str] = []
    for size in dict.fromkeys([*declared, _DEFAULT_SIZE, *_list_sizes_of_weights(model), *usual]):
        failure = _run_on_size(model, *size)
        if failure is None:
            return None if size == _DEFAULT_SIZE and size not in declared else size
        # A model that fails on all sizes for another reason, e.g. because it takes two inputs, fails in the same words.
        failures.append(failure)
        if failures[-2:] == [failure, failure]:
            return None
    return None


def _run_on_size(model: nn.Module, height: int, width: int) -> str | None:
    """Return None if a model runs on an image of a size, else its error without that size."""
    floating = (weight for weight in list_weights(model) if weight.is_floating_point())
    weight = next(floating, torch.zeros(0, device="cpu"))
    image = torch.zeros(1, count_input_channels(model), height, width, device=weight.device, dtype=weight.dtype)
    try:
        with guard(model), enable_gradients():
            scores = find_main_tensor(run_model(model, image))
    except Exception as error:  # noqa: BLE001  a user's model may raise anything
        raise_interrupt(error)
        return re.sub(rf"\b({height}|{width})\b", "", f"{type(error).__name__}: {error}")
    # A fixed number of values in view(-1, ...) makes several rows of one image that is too large.
    if scores is None or scores.ndim < 2 or 1 in scores.shape[:2]:
        return None
    return f"output {tuple(scores.shape)}"


def _list_declared_sizes(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield the sizes in attributes of the model and of its modules, e.g. ``image_size``, and in timm's configuration.

    Below the model itself, ``input_size`` is a number of features as a rule, e.g. that of an LSTM.
    """
    for module in read_tree(model).modules:
        names = _SIZE_NAMES if module is model and not isinstance(module, nn.RNNBase) else _SIZE_NAMES[:2]
        values = [getattr(module, name, None) for name in names]
        configs = [getattr(module, name, None) for name in ("pretrained_cfg", "default_cfg")]
        values += [config.get("input_size") for config in configs if isinstance(config, Mapping)]
        yield from filter(None, map(_to_size, values))


def _to_size(value: object) -> tuple[int, int] | None:
    """Return the size in a side, in (H, W), in (C, H, W) or in (H, W, C); None if the value is no size."""
    numbers = [value, value] if isinstance(value, int) else [*value] if isinstance(value, (tuple, list)) else []
    if len(numbers) == 3:
        numbers = numbers[:2] if numbers[2] in (1, 3) and numbers[0] not in (1, 3) else numbers[1:]
    if len(numbers) != 2 or not all(type(side) is int and 8 <= side <= 4096 for side in numbers):
        return None
    return numbers[0], numbers[1]


def _list_sizes_of_weights(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield the sizes of square images that a first linear layer, or positions beside an embedding of patches, fit."""
    yield from ((side, side) for _, side in _list_square_images(model))
    for module in read_tree(model).modules:
        if is_convolution(module) and len(module.kernel_size) == 2 and module.kernel_size == module.stride:
            height, width = module.kernel_size
            yield from ((side * height, side * width) for side in _list_grid_sides(model, module.out_channels))


def _list_grid_sides(model: nn.Module, channels: int) -> Iterator[int]:
    """Yield the sides of square grids for whose patches a weight has positions, vectors of so many channels."""
    for weight in list_weights(model, buffers=False):
        if weight.ndim not in (2, 3) or weight.shape[-1] != channels or weight.shape[:-2].numel() != 1:
            continue
        for prefix in range(6):  # class tokens and registers
            side = math.isqrt(max(0, weight.shape[-2] - prefix))
            if side > 1 and side * side == weight.shape[-2] - prefix:
                yield side


def _list_square_images(model: nn.Module) -> list[tuple[int, int]]:
    """Return the channels and the sides of square images whose pixels the first layer of a perceptron takes."""
    layers = (module for module in read_tree(model).modules if isinstance(module, nn.Linear) or is_convolution(module))
    first = next(layers, None)
    if not isinstance(first, nn.Linear):
        return []
    sides = [(channels, math.isqrt(first.in_features // channels)) for channels in (3, 1)]
    return [(c, side) for c, side in sides if side >= 8 and c * side * side == first.in_features]
