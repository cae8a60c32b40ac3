"""Values that are computed once: answers about a model, and attributes of an object.

There is one rule for all answers about a model: an answer is valid while the model has the same modules, of the same
classes and under the same names. Each lookup checks this, see :mod:`camtool.hooks.structures.modules`. So the cache
notices a layer that was replaced or added, and quantized modules that were swapped in.

The cache does not notice other changes, e.g. ``conv.stride = (1, 1)`` or new values of a parameter. If an answer
depends on such values, the caller compares it with the output of the model, e.g. with
:meth:`camtool.layers.layouts.Layout.fits`, and calls :func:`forget_model` if it does not fit, or it passes a check.

Answers are stored outside of the model, so they are not copied or pickled with it. The cache keeps neither the model
nor a replaced module alive. Of each kind it keeps the answers that were used last, as each new size of the inputs asks
again. Each step is a single dictionary operation. So threads need no lock, and a forked process inherits no locked one.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Generic, TypeVar, overload

from torch import nn

from camtool.hooks.structures.modules import drop_entry, read_tree
from camtool.progress import follow_step

_T = TypeVar("_T")

_UNKNOWN = object()


def remember_for_model(
    model: nn.Module,
    question: Hashable,
    compute: Callable[[], _T],
    is_valid: Callable[[_T], bool] | None = None,
    *,
    most: int = 1000,
) -> _T:
    """Return the cached answer to a question about a model, or compute and cache it.

    Args:
        model: Any module.
        question: The key of the answer among all answers about this model.
        compute: Computes the answer. It is called without arguments if no valid answer is cached. The answer must not
            hold a reference to the model, which would keep it alive. Exceptions are not cached.
        is_valid: Checks a cached answer that depends on more than the structure; if it fails, the answer is computed
            again.
        most: The answers that are kept: this many of all that are asked for with the same number. Those of many sizes
            of inputs would fill the memory.
    """
    cached = _CACHE.get(id(model))
    if cached is None or cached.model() is not model or cached.structure is not read_tree(model).structure:
        cached = _CACHE[id(model)] = _CachedAnswers(model)
    answer: _T = cached.answers[most].get(question, _UNKNOWN)
    if answer is _UNKNOWN or not (is_valid is None or is_valid(answer)):
        return _add(cached.answers[most], question, compute, answer, most)
    cached.answers[most][question] = cached.answers[most].pop(question, answer)  # the last is the one used last
    return answer


def _add(answers: dict[Hashable, Any], question: Hashable, compute: Callable[[], _T], stale: object, most: int) -> _T:
    with follow_step("Examining the model"):
        computed = compute()
    if answers.get(question, _UNKNOWN) is stale:
        answers.pop(question, None)
    # If two threads compute the same answer, both return the one that was stored first.
    answer: _T = answers.setdefault(question, computed)
    for oldest in [*answers][:-most]:
        answers.pop(oldest, None)
    return answer


def forget_model(model: nn.Module) -> None:
    """Drop all cached answers about a model."""
    _CACHE.pop(id(model), None)


class _CachedAnswers:
    """The answers about one model, and the structure of the model when they were computed."""

    __slots__ = ("answers", "model", "structure")

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model, partial(drop_entry, _CACHE, id(model)))
        self.answers = defaultdict[int, dict[Hashable, Any]](dict)
        self.structure = read_tree(model).structure


# The answers by the id of the model, for as long as the model lives.
_CACHE: dict[int, _CachedAnswers] = {}


class cached_property(Generic[_T]):  # noqa: N801  the name of the standard library, which it replaces
    """``functools.cached_property`` without its lock.

    Up to Python 3.11, the standard library holds a lock for all objects of a class while it computes a value. A child
    process that is forked in the meantime, e.g. by a data loader in another thread, waits for that lock forever. Here,
    two threads that read an attribute at the same time may both compute it. Both get the same object.
    """

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[_T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[_T] | _T:
        if instance is None:
            return self
        value = self._compute(instance)
        return instance.__dict__.setdefault(self._name, value)  # type: ignore[no-any-return]
