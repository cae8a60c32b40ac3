"""Preprocessing, image size and class names of a bare model.

The sources of models are asked in turn. The first answer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn

from camtool.arguments.messages import format_count
from camtool.errors import TargetError
from camtool.models.loaded import Transform
from camtool.models.sources import SOURCES, Source

__all__ = [
    "find_input_size",
    "find_labels",
    "find_text_processor",
    "find_transform",
    "resolve_labels",
    "resolve_phrases",
]

_DEFAULT_SIZE = (224, 224)
"""Image size (H, W) of most classifiers trained on ImageNet."""

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
    whole = _get_whole(model)
    return _ask_sources(lambda source: source.find_input_size(whole)) or _DEFAULT_SIZE


def find_labels(model: nn.Module, classes: int) -> Sequence[str] | None:
    """Return the class names that a model's source knows; None if it knows none, or another number than ``classes``."""
    labels = _ask_sources(lambda source: source.find_labels(model))
    return labels if labels is not None and len(labels) == classes else None


def resolve_labels(model: nn.Module, given: Sequence[str] | None, classes: int | None) -> Sequence[str] | None:
    """Return the class names: those that were given, or else those that the model's source knows.

    A model with a single score distinguishes two classes. One name is enough for it: ``["crack"]``.

    Args:
        model: The model.
        given: The given names; None if there are none.
        classes: The number of scores; None if the output does not show it, as that of a detector.

    Returns:
        The names; None if there are none.

    Raises:
        TargetError: The number of given names is not the number of classes.
    """
    if given is None:
        return None if classes is None else find_labels(model, classes)
    if classes == 1 and len(given) in (1, 2):
        return given if len(given) == 2 else (f"not {given[0]}", given[0])
    if classes is not None and len(given) != classes:
        raise TargetError(
            f"labels has {format_count(len(given), 'name')}, but the model has {format_count(classes, 'class')}."
        )
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
    whole: nn.Module = getattr(model, "whole", model)
    return whole


def _ask_sources(question: Callable[[Source], _Answer | None]) -> _Answer | None:
    """Return the first answer of a source that is not None."""
    answers = (question(source) for source in SOURCES)
    return next((answer for answer in answers if answer is not None), None)
