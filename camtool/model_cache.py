"""Answers about a model, remembered as long as the model is built as it was.

There is one rule for all answers. An answer holds while the model has the same modules, of the same classes and under
the same names. This is checked whenever an answer is looked up, so a replaced layer, an added one and quantized modules
that were swapped in are noticed.

Another value of a plain attribute or of a parameter, e.g. ``conv.stride = (1, 1)``, is not. Whoever relies on an answer
that depends on such values compares it with what the model returns (:meth:`camtool.layouts.Layout.fits`), and calls
:func:`forget` where it does not fit.

The answers lie outside of the model, so they are neither copied nor pickled with it. Neither the model nor a module
that was replaced is kept alive. Every step is one operation on a dictionary, so threads need no lock, and none can be
left locked in a forked process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from operator import is_
from typing import Any, TypeVar

from torch import nn

__all__ = ["forget", "remembered"]

_T = TypeVar("_T")


def remembered(model: nn.Module, question: Hashable, answer: Callable[[], _T]) -> _T:
    """Return the answer to a question about a model, the earlier one as long as the model is built as it was.

    Args:
        model: Any module.
        question: It tells this answer apart from others about the same model.
        answer: Finds it; called without arguments, where nothing valid is remembered. What it returns must not hold the
            model, which would then stay alive. What it raises is not remembered.
    """
    known = _KNOWN.get(id(model))
    if known is None or known.model() is not model or not known.is_valid_for(model):
        known = _KNOWN[id(model)] = _Known(model)
    if question not in known.answers:
        known.answers.setdefault(question, answer())  # of two threads' answers both take the first
    found: _T = known.answers[question]
    return found


def forget(model: nn.Module) -> None:
    """Drop all that is remembered of a model."""
    _KNOWN.pop(id(model), None)


class _Known:
    """The answers about one model, and how it was built when they were found."""

    __slots__ = ("_classes", "_modules", "_names", "answers", "model")

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model, partial(_drop, id(model)))
        self.answers: dict[Hashable, Any] = {}
        modules, self._names = _structure(model)
        self._classes = [*map(type, modules)]
        # An id alone may be given to another module later.
        self._modules = [_nothing if module is None else weakref.ref(module) for module in modules]

    def is_valid_for(self, model: nn.Module) -> bool:
        """Check that the model is still built as it was."""
        modules, names = _structure(model)
        return (
            names == self._names
            and [*map(type, modules)] == self._classes
            and all(map(is_, modules, [reference() for reference in self._modules]))
        )


_KNOWN: dict[int, _Known] = {}
"""A model's id → what is known of it, for as long as the model lives."""


def _drop(key: int, _: object) -> None:
    _KNOWN.pop(key, None)


def _nothing() -> None:
    """Stand for the reference to a module where there is none, e.g. after ``model.head = None``."""


def _structure(model: nn.Module) -> tuple[list[nn.Module | None], list[str | None]]:
    """Return a model's modules, and the names of the children of each; ``None`` ends a module's names.

    A module that several others hold comes as often; its own children come once.
    """
    modules: list[nn.Module | None] = [model]
    names: list[str | None] = []
    entered: set[int] = set()
    for module in modules:
        children = None if module is None else module._modules
        if children and id(module) not in entered:
            entered.add(id(module))
            names += [*children.keys(), None]  # those of TorchScript are no mapping, and have no more than methods
            modules += children.values()
    return modules, names
