"""Arguments as users pass them: a model or what holds one, the order of arguments, and names from other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from mimetypes import guess_type
from os import PathLike
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from camtool.errors import ImageError, MethodError, ModelError, add_article

__all__ = ["HasModel", "as_module", "check_order", "describe_foreign", "names_ours"]

P = ParamSpec("P")
R = TypeVar("R")


class HasModel(Protocol):
    """An object that stands for the module it holds, as what :func:`camtool.load` returns."""

    @property
    def model(self) -> nn.Module:
        """The module."""


def as_module(model: nn.Module | HasModel) -> nn.Module:
    """Return the module itself, or the one that an object stands for.

    Raises:
        ModelError: ``model`` is neither; the message says what to give, and that the model comes first.
    """
    held = _module_of(model)
    if held is not None:
        return held
    inside = getattr(model, "model", None)
    came = model if inside is None else inside
    raise ModelError(
        f"model is {add_article(type(came).__name__)}, no torch.nn.Module; give one, or {_what_to_give(came)}. The "
        "model comes first: explain(model, img), Recorder(model, layers)."
    )


def check_order(img: Any, target_class: Any) -> None:
    """Check that no model stands in the image's place, and no image in the class's.

    Raises:
        ImageError: One does; the message gives the order.
    """
    order = "the order is explain(model, img, target_class)"
    if _module_of(img) is not None:
        raise ImageError(f"img is a model; {order}.")
    if not _is_image(img) and not isinstance(img, (list, tuple, dict)) and _is_image(target_class):
        asked = f"{target_class!r} is" if isinstance(target_class, str) else "is"
        raise ImageError(f"img is {add_article(type(img).__name__)} and target_class {asked} an image; {order}.")


def _module_of(model: Any) -> nn.Module | None:
    held = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    return held if isinstance(held, nn.Module) else None


def _what_to_give(came: Any) -> str:
    if hasattr(came, "graph_module"):  # what torch.export makes
        return "its .module()"
    return f"camtool.load({came!r})" if isinstance(came, str) and not _is_image(came) else "what camtool.load returns"


def _is_image(came: Any) -> bool:
    """Return True for a file name with an image's suffix, a path, bytes, a PIL image, or an array of pixels."""
    if isinstance(came, str):
        return str(guess_type(came, strict=False)[0]).startswith("image/")
    if isinstance(came, (Tensor, np.ndarray)):
        return came.ndim > 1
    return isinstance(came, (bytes, PathLike)) or type(came).__module__.startswith("PIL.")


# ----------------------------------------------------------------------------------------- names from other libraries

_TARGET = "target_class= here: an index, a name, or one of camtool.targets"
_LAYER = 'layer= here: a dotted name such as "layer4", a module, or a list of them; by default the best one is found'
_FOREIGN = {
    **dict.fromkeys(("target", "targets", "target_category", "class_idx"), _TARGET),
    **dict.fromkeys(("target_layer", "target_layers", "layers"), _LAYER),
    **dict.fromkeys(("input_tensor", "image", "images", "img_tensor", "input"), "img= here, the second argument"),
    "methods": "method= here: a name, a function, or a list of them",
    "reshape_transform": "not needed: how a layer's output is laid out is found",
    "aug_smooth": 'a wrapper here: method="tta:gradcam"',
    "eigen_smooth": 'a wrapper here: method="eigen:gradcam"',
    "use_cuda": 'not needed: images go where the model is; move it with model.to("cuda")',
}
"""Keyword of other libraries → what camtool has for it."""


def describe_foreign(name: str) -> str | None:
    """Return a sentence that names camtool's own word for another library's keyword; None for any other name."""
    return f"{name}= is {_FOREIGN[name]}." if name in _FOREIGN else None


def names_ours(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function answer keywords of other libraries, where it has none of that name, with camtool's own.

    Raises:
        MethodError: From the function made: such a keyword came, and the arguments do not fit.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        foreign = [name for name in kwargs if name in _FOREIGN and name not in signature.parameters]
        if foreign:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise MethodError(str(describe_foreign(foreign[0]))) from error
        return function(*args, **kwargs)

    return checked
