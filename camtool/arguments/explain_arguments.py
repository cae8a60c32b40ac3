"""Arguments that public functions share: the model, the order of model, image and class, settings, foreign keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from mimetypes import guess_type
from numbers import Integral
from os import PathLike
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from camtool.arguments.checks import check_count
from camtool.arguments.foreign_names import read_foreign_names
from camtool.arguments.message_parts import add_article, format_count
from camtool.errors import CamtoolError, ImageError, MethodError, ModelError, RaiseAs, TargetError

P = ParamSpec("P")
R = TypeVar("R")

# The keywords of other libraries, and former ones of camtool, and how to write the same with camtool.
_FOREIGN = read_foreign_names("keywords")


# ------------------------------------------------------------------------------------------------------------ the model


class HasModel(Protocol):
    """An object with a model, e.g. the result of :func:`camtool.load`."""

    @property
    def model(self) -> nn.Module:
        """The module."""


def get_module(model: object) -> nn.Module:
    """Return a module itself, or the module of an object that has one.

    Raises:
        ModelError: ``model`` is neither. The message says what to pass, and that the model comes first.
    """
    if isinstance(model, nn.Module):
        return model
    inside = getattr(model, "model", None)
    if isinstance(inside, nn.Module):
        return inside
    value = model if inside is None else inside
    raise ModelError(
        f"model is {add_article(type(value).__name__)}, not a torch.nn.Module; pass one, or {_suggest_model(value)}. "
        "The model comes first: explain(model, img), Recorder(model, layers)."
    )


def is_function(model: object) -> bool:
    """Return True for a function, or an object that can be called, but for modules, classes and exported programs."""
    is_other = isinstance(model, (nn.Module, type)) or any(hasattr(model, name) for name in ("model", "graph_module"))
    return callable(model) and not is_other


_ORDER = "the order is explain(model, img, target_class)"


def check_argument_order(img: Any, target_class: Any) -> None:
    """Check that ``img`` is not a model, and ``target_class`` not an image.

    Raises:
        ImageError: One of them is. The message gives the order of the arguments.
    """
    if isinstance(img, nn.Module) or isinstance(getattr(img, "model", None), nn.Module):
        raise ImageError(f"img is a model; {_ORDER}.")
    if target_class is None or isinstance(target_class, int):
        return
    if _is_image(target_class) and not _is_image(img) and not isinstance(img, (list, tuple, dict)):
        name = f"{target_class!r} is" if isinstance(target_class, str) else "is"
        raise ImageError(f"img is {add_article(type(img).__name__)} and target_class {name} an image; {_ORDER}.")


def _suggest_model(value: Any) -> str:
    if hasattr(value, "graph_module"):  # an ExportedProgram of torch.export
        return "its .module()"
    return f"camtool.load({value!r})" if isinstance(value, str) and not _is_image(value) else "what camtool.load gives"


def _is_image(value: Any) -> bool:
    """Return True for a file name with the suffix of an image, a path, bytes, a PIL image, or an array of pixels."""
    if isinstance(value, str):
        return str(guess_type(value, strict=False)[0]).startswith("image/")
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim > 1
    # Pillow is not imported for this: its images are recognized by the name of their module.
    return isinstance(value, (bytes, PathLike)) or type(value).__module__.startswith("PIL.")


# ------------------------------------------------------------------------------------------------- settings and targets


def check_settings(transform: object, labels: object, batch_size: object, image: object, call_index: object) -> None:
    """Check the types of settings whose misuse would be noticed late, and far from here.

    Raises:
        TargetError: ``labels`` is no list of names.
        MethodError: ``image`` is an image, as in libraries that name their first argument so.
        CamtoolError: Another setting has the wrong type.
    """
    if transform is not None:
        _check_transform(transform)
    if labels is not None and (isinstance(labels, (str, Mapping)) or not hasattr(labels, "__getitem__")):
        raise TargetError(f"labels={labels!r} is no list of names; give one name for each class, in their order.")
    check_count("batch_size", batch_size, optional=True)
    if image is not None and not isinstance(image, (Integral, str)):
        raise MethodError(str(describe_foreign_argument("image")))
    is_integer = isinstance(call_index, Integral) and not isinstance(call_index, bool)
    if call_index is not None and not is_integer:
        raise CamtoolError(f"call_index={call_index!r} is no integer; 0 is a layer's first call, -1 its last.")


def _check_transform(transform: object) -> None:
    if not callable(transform):
        raise CamtoolError(f"transform={transform!r} cannot be called; give a function from PIL image to tensor.")
    if type(transform).__module__.partition(".")[0] == "albumentations":
        raise CamtoolError(
            "transform: Albumentations takes arrays by name; pass transform=lambda photo: "
            'compose(image=np.asarray(photo))["image"], with ToTensorV2() as the last part of compose.'
        )


def read_by_position(values: Any) -> Any:
    """Return a series of pandas as a list, as ``[i]`` is not its i-th value; anything else as it is."""
    return list(values) if hasattr(values, "iloc") else values


def match_targets(target_class: Any, count: int | None) -> list[Any]:
    """Return the targets that the user requested for each image.

    Args:
        target_class: The user's argument.
        count: The number of images; ``None`` for a single one, for which a list means several targets.

    Raises:
        TargetError: A list has another length than there are images, or is empty.
    """
    # Loaders give the classes of a batch as a tensor or an array, and tables as a series of pandas.
    is_column = isinstance(target_class, (Tensor, np.ndarray)) or hasattr(target_class, "iloc")
    requests = target_class.tolist() if is_column else target_class
    if not isinstance(requests, (list, tuple)):
        return [requests] * (1 if count is None else count)
    if count is None:
        if not requests:
            raise TargetError("target_class is empty; give a class, or None for the model's own top class.")
        return [requests]
    if len(requests) != count:
        raise TargetError(
            f"target_class has {format_count(len(requests), 'entry')} for {format_count(count, 'image')}; give one "
            "entry per image (a list of classes for several targets on an image), or a single target for all."
        )
    for position, request in enumerate(requests):
        if isinstance(request, (list, tuple)) and not request:
            raise TargetError(f"target_class: entry {position} is empty; give a class, or None for the top class.")
    return list(requests)


def check_class_index(index: int, class_count: int) -> None:
    """Check that a class exists.

    Raises:
        TargetError: It does not.
    """
    if not 0 <= index < class_count:
        raise TargetError(
            f"target_class {index} does not exist: the model has {format_count(class_count, 'class')}, "
            f"0 to {class_count - 1}."
        )


def to_list(value: Any) -> list[Any]:
    """Return a list or tuple as a list, and any other value in a list of its own."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


# ------------------------------------------------------------------------------------------ keywords of other libraries


def describe_foreign_argument(name: str) -> str | None:
    """Return a sentence that translates a keyword of another library; None for any other name."""
    return f"{name}= is {_FOREIGN[name]}." if name in _FOREIGN else None


def explain_foreign_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its error for a keyword of another library names the keyword of camtool.

    Raises:
        MethodError: From the decorated function: such a keyword is used, and the arguments do not fit the signature.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
        foreign = [name for name in kwargs if name in _FOREIGN]
        if foreign:
            with RaiseAs(lambda _: MethodError(str(describe_foreign_argument(foreign[0]))), TypeError):
                signature.bind(*args, **kwargs)
        return function(*args, **kwargs)

    return check_and_call
