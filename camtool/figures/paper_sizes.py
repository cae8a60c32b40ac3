"""Sizes of figures in papers: widths of columns, heights of text; and checks of arguments that all figures share."""

from __future__ import annotations

from typing import Literal, TypeAlias

from camtool.arguments.messages import suggest_names
from camtool.errors import CamtoolError

SCALES = ("each", "shared")
"""Values of ``scale=``: each map has its own color scale, or all share one."""

Scale: TypeAlias = Literal["each", "shared"]

# The widths of ICML. Those of CVPR, ACM and IEEE are a little larger.
WIDTHS = {"single": 3.25, "double": 6.75}
"""Widths of one and of two columns of a paper, in inches."""

Width: TypeAlias = 'Literal["single", "double"] | float'
"""``"single"``, ``"double"``, see :data:`WIDTHS`, or a number of inches."""

TEXT_SIZE, HEADING_SIZE = 8, 9
"""Heights of text and of headings, in points."""

LINE_HEIGHT = 1.25 * TEXT_SIZE / 72
"""Distance from one line of text to the next, in inches."""

# Below half an inch no text fits. A width above 100 inches is probably meant in another unit.
_MIN_INCHES, _MAX_INCHES = 0.5, 100.0


def to_inches(width: Width) -> float:
    """Return a width in inches.

    Raises:
        CamtoolError: The width is not a name in :data:`WIDTHS` or a reasonable number of inches.
    """
    if isinstance(width, str):
        if width not in WIDTHS:
            raise CamtoolError(
                f"width {width!r} is unknown; pass 'single', 'double' or inches.{suggest_names(width, WIDTHS)}"
            )
        return WIDTHS[width]
    if not _MIN_INCHES <= width <= _MAX_INCHES:
        raise CamtoolError(
            f"width is {width} inches; pass {_MIN_INCHES} to {_MAX_INCHES:.0f}, or 'single' or 'double'."
        )
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
