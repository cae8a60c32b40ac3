"""Style of figures in papers: widths of columns, heights of text, numbers; and checks of arguments of figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError

# Values of ``scale=``: each map has its own color scale, or all share one.
SCALES = ("each", "shared")

Scale: TypeAlias = Literal["each", "shared"]

# Widths of one and of two columns of a paper, in inches: those of ICML. CVPR, ACM and IEEE have slightly wider ones.
WIDTHS = {"single": 3.25, "double": 6.75}

# ``"single"``, ``"double"``, see :data:`WIDTHS`, or a number of inches.
Width: TypeAlias = 'Literal["single", "double"] | float'

# Heights of text and of headings, in points.
TEXT_SIZE, HEADING_SIZE = 8, 9

# Distance from one line of text to the next, in inches.
LINE_HEIGHT = 1.25 * TEXT_SIZE / 72

# Below half an inch no text fits. A width above 100 inches is probably meant in another unit.
_MIN_INCHES, _MAX_INCHES = 0.5, 100.0

MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def to_inches(width: Width) -> float:
    """Return a width in inches.

    Raises:
        CamtoolError: The width is not a name in :data:`WIDTHS` or a reasonable number of inches.
    """
    if isinstance(width, str):
        if width not in WIDTHS:
            raise CamtoolError(f"width {width!r}: pass 'single', 'double' or inches.{suggest_names(width, WIDTHS)}")
        return WIDTHS[width]
    if not _MIN_INCHES <= width <= _MAX_INCHES:
        raise CamtoolError(f"width is {width} inches; pass {_MIN_INCHES} to {_MAX_INCHES:.0f}, 'single' or 'double'.")
    return float(width)


def check_columns(columns: int, most: int) -> None:
    """Check that a number of columns fits into the width.

    Raises:
        CamtoolError: There are too many columns.
    """
    if columns > most:
        raise CamtoolError(f"columns is {columns}, but only {most} fit; pass {most} or less, or a larger width.")


def balance_columns(count: int, most: int) -> int:
    """Return the number of columns for the fewest rows of at most ``most`` items, all rows about equally full."""
    rows = -(-count // most)
    return -(-count // rows)


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
