"""Argument names of other libraries, and the names that camtool has for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps

from camtool.arguments.models import P, R
from camtool.errors import MethodError

_TARGET = "target_class= here: an index, a name, or one of camtool.targets"
_LAYER = 'layer= here: a dotted name such as "layer4", a module, or a list of them; by default the best one is found'
_FOREIGN = {
    **dict.fromkeys(("target", "targets", "target_category", "class_idx"), _TARGET),
    **dict.fromkeys(("target_layer", "target_layers", "layers"), _LAYER),
    **dict.fromkeys(("input_tensor", "image", "images", "img_tensor", "input"), "img= here, the second argument"),
    "methods": "method= here: a name, a function, or a list of them",
    "reshape_transform": "not needed: the layout of a layer's output is detected",
    "aug_smooth": 'a wrapper here: method="tta:gradcam"',
    "eigen_smooth": 'a wrapper here: method="eigen:gradcam"',
    **{
        name: f"an option of reading files: reading={{{name!r}: ...}}"
        for name in ("bands", "window", "percentiles", "slice", "axis", "frame", "max_pixels")
    },
    # Former names of camtool itself.
    "picture": "image= here: of several inputs the one that is explained, by position or name",
    "call": "call_index= here: 0 is a layer's first call, -1 its last",
    "use_cuda": 'not needed: images go to the device of the model; move it with model.to("cuda")',
}
"""The keywords of other libraries, and how to write the same with camtool."""


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
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise MethodError(str(describe_foreign_argument(foreign[0]))) from error
        return function(*args, **kwargs)

    return check_and_call
