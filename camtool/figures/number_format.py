"""Numbers and shapes as text, as papers print them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def format_number(number: float) -> str:
    """Return a number with two significant digits and a true minus sign.

    >>> format_number(0.1234), format_number(-56.0).isascii(), format_number(1234567.0)
    ('0.12', False, '1.2e6')
    """
    return f"{number:.2g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", MINUS)


def format_shape(shape: Iterable[int], *, between: str = " ") -> str:
    """Return the sides of a shape with multiplication signs between them."""
    return f"{between}{_TIMES}{between}".join(map(str, shape))


def describe_non_finite(values: NDArray[Any]) -> str:
    """Return a note on the number of NaN and infinite values, which are drawn white; empty if there are none.

    >>> describe_non_finite(np.array([1, np.nan, np.inf])), describe_non_finite(np.zeros(3))
    (', 2 not finite: white', '')
    """
    count = int(np.count_nonzero(~np.isfinite(values)))
    return f", {count:,} not finite: white" if count else ""
