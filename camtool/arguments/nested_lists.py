"""Arguments that may be one value or a list, and lists of lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["iterate_leaves", "to_list"]


def iterate_leaves(nested: Any) -> Iterator[Any]:
    """Yield what nested lists contain, depth first. Strings are values, other iterables are lists."""
    if isinstance(nested, Iterable) and not isinstance(nested, (str, bytes)):
        for each in nested:
            yield from iterate_leaves(each)
    else:
        yield nested


def to_list(value: Any) -> list[Any]:
    """Return a list or tuple as a list, and any other value in a list of its own."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
