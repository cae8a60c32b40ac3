"""Attributes that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


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
