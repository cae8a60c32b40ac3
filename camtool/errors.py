"""All exceptions that camtool raises on purpose.

::

    CamtoolError
    ├── ImageError      an image cannot be read, or is not an image
    ├── GeometryError   the crop and scale of a transform cannot be determined
    ├── LayerError      no layer, or not the selected layer, can produce a map
    ├── TargetError     the target does not fit the output of the model
    │   └── NothingFoundError   a detector found no such object in this image
    ├── MethodError     an unknown method or option, or one that the model does not support
    ├── MetricError     the inputs of a metric do not fit it, or each other
    ├── ModelError      a model, its weights or its labels cannot be loaded
    ├── ForwardError    the model fails on the inputs
    ├── FunctionError   a function that stands for a model fails, or its limit is reached
    ├── NotCompilableError  an engine cannot run the model; the next engine is tried
    └── OverlayError    an image and a heatmap that do not fit, or cannot be drawn
        └── ColormapError   an unknown color map
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from traceback import walk_tb
from typing import Any, TypeAlias


class CamtoolError(Exception):
    """The base class: ``except camtool.CamtoolError`` catches all exceptions that camtool raises on purpose."""


class ImageError(CamtoolError, ValueError):
    """An image cannot be read, or the argument is not an image."""


class GeometryError(CamtoolError, ValueError):
    """A transform is not a crop and a scale, so a map cannot be placed on the photo."""


class LayerError(CamtoolError, ValueError):
    """No layer, or not the selected layer, can produce a map."""


class TargetError(CamtoolError, ValueError):
    """The target does not fit the output of the model."""


class NothingFoundError(TargetError):
    """A detector found no such object in this image. It may find one in another."""


class MethodError(CamtoolError, ValueError):
    """A method or an option is unknown, or the model does not support the method."""


class MetricError(CamtoolError, ValueError):
    """The inputs of a metric of maps do not fit the metric, or each other."""


class ModelError(CamtoolError, ValueError):
    """A model, its weights or its labels cannot be loaded."""


class ForwardError(CamtoolError, RuntimeError):
    """The model fails on the inputs. The error of the model is the ``__cause__``."""


class FunctionError(CamtoolError, RuntimeError):
    """A function that stands for a model fails, or its limit is reached. Its own error is the ``__cause__``."""


class NotCompilableError(CamtoolError):
    """An engine cannot run a model. The next engine is tried, so users meet it in a line of the log."""


class OverlayError(CamtoolError, ValueError):
    """An image and a heatmap do not fit, or cannot be drawn."""


class ColormapError(OverlayError):
    """The name of a color map is unknown."""


def raise_interrupt(error: BaseException, *others: type[BaseException]) -> None:
    """Raise an error again if a signal handler raised it, e.g. that of a deadline: nothing has failed.

    A library may have wrapped it, so the errors that led to it are looked at, too.

    Args:
        error: The error.
        others: Further classes of errors that are raised again.
    """
    causes = [error]
    while (cause := _find_cause(causes[-1])) is not None and cause not in causes:
        causes.append(cause)
    for cause in causes:
        if _was_raised_by_handler(cause):
            raise cause
    if isinstance(error, others):
        raise error


_Errors: TypeAlias = tuple[type[BaseException], ...]


class RaiseAs(AbstractContextManager[None]):
    """Raise errors of a block as another error, whose cause they are; what a signal handler raises arrives.

    Args:
        build: Function from the error to the other one.
        kinds: Classes of the errors.
        unless: Classes of errors that are raised as they are.
    """

    def __init__(self, build: Callable[[Any], Exception], *kinds: type[BaseException], unless: _Errors = ()) -> None:
        self._build, self._kinds, self._unless = build, kinds, unless

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Leave the block."""
        if isinstance(error, self._kinds):
            raise_interrupt(error, *self._unless)
            raise self._build(error) from error


class Forgive(suppress):
    """As ``contextlib.suppress``, but what a signal handler raises arrives: for blocks that take long."""

    def __exit__(self, *failure: Any) -> bool:
        """Leave the block; return True if it failed with one of the errors."""
        if is_forgiven := super().__exit__(*failure):
            raise_interrupt(failure[1])
        return is_forgiven


def _find_cause(error: BaseException) -> BaseException | None:
    """Return the error that led to another: its cause, or what was being handled, as in urllib, which names no cause.

    What the caller of camtool was already handling led to nothing.
    """
    if error.__cause__ is not None or error.__context__ is None:
        return error.__cause__
    caught_in = next((frame for frame, _ in walk_tb(error.__context__.__traceback__)), None)
    is_inside = any(frame is caught_in for frame, _ in walk_tb(error.__traceback__))
    return error.__context__ if is_inside else None


def _was_raised_by_handler(error: BaseException) -> bool:
    """Return True if a call in the traceback is that of a signal handler: it gets the frame that it interrupts."""
    for (interrupted, _), (frame, _) in pairwise(walk_tb(error.__traceback__)):
        names, rest, _, values = inspect.getargvalues(frame)
        arguments, others = [values.get(name) for name in names], values.get(str(rest))
        if isinstance(others, tuple):  # the function may have given the name another value
            arguments.extend(others)
        if any(argument is interrupted for argument in arguments):
            return True
    return False
