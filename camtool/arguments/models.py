"""The model argument of public functions, and the order of model, image and class."""

from __future__ import annotations

from mimetypes import guess_type
from os import PathLike
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from camtool.arguments.messages import add_article
from camtool.errors import ImageError, ModelError

P = ParamSpec("P")
R = TypeVar("R")


class HasModel(Protocol):
    """An object with a model, e.g. the result of :func:`camtool.load`."""

    @property
    def model(self) -> nn.Module:
        """The module."""


def get_module(model: nn.Module | HasModel) -> nn.Module:
    """Return a module itself, or the module of an object that has one.

    Raises:
        ModelError: ``model`` is neither. The message says what to pass, and that the model comes first.
    """
    module = _find_module(model)
    if module is not None:
        return module
    inside = getattr(model, "model", None)
    value = model if inside is None else inside
    raise ModelError(
        f"model is {add_article(type(value).__name__)}, not a torch.nn.Module; pass one, or {_suggest_model(value)}. "
        "The model comes first: explain(model, img), Recorder(model, layers)."
    )


def check_argument_order(img: Any, target_class: Any) -> None:
    """Check that ``img`` is not a model, and ``target_class`` not an image.

    Raises:
        ImageError: One of them is. The message gives the order of the arguments.
    """
    order = "the order is explain(model, img, target_class)"
    if _find_module(img) is not None:
        raise ImageError(f"img is a model; {order}.")
    if not _is_image(img) and not isinstance(img, (list, tuple, dict)) and _is_image(target_class):
        name = f"{target_class!r} is" if isinstance(target_class, str) else "is"
        raise ImageError(f"img is {add_article(type(img).__name__)} and target_class {name} an image; {order}.")


def _find_module(model: Any) -> nn.Module | None:
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    return module if isinstance(module, nn.Module) else None


def _suggest_model(value: Any) -> str:
    if hasattr(value, "graph_module"):  # an ExportedProgram of torch.export
        return "its .module()"
    return (
        f"camtool.load({value!r})" if isinstance(value, str) and not _is_image(value) else "what camtool.load returns"
    )


def _is_image(value: Any) -> bool:
    """Return True for a file name with the suffix of an image, a path, bytes, a PIL image, or an array of pixels."""
    if isinstance(value, str):
        return str(guess_type(value, strict=False)[0]).startswith("image/")
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim > 1
    # Pillow is not imported for this: its images are recognized by the name of their module.
    return isinstance(value, (bytes, PathLike)) or type(value).__module__.startswith("PIL.")
