"""Numbers and shapes as they are set in print."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MINUS", "lost", "short", "sides"]

MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def short(number: float) -> str:
    """A number in two figures, with a true minus sign.

    >>> short(0.1234), short(-56.0).isascii(), short(1234567.0)
    ('0.12', False, '1.2e6')
    """
    return f"{number:.2g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", MINUS)


def sides(shape: Iterable[int], *, between: str = " ") -> str:
    """A shape's sides, with signs between them that multiply."""
    return f"{between}{_TIMES}{between}".join(map(str, shape))


def lost(values: NDArray[Any]) -> str:
    """What is to be said of numbers that no colour stands for.

    >>> lost(np.array([1, np.nan, np.inf])), lost(np.zeros(3))
    (', 2 not finite: white', '')
    """
    count = int(np.count_nonzero(~np.isfinite(values)))
    return f", {count:,} not finite: white" if count else ""
