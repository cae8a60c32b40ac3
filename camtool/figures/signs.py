"""Numbers and shapes as they are set in print."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MINUS", "short", "sides"]

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
