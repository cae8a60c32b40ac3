"""Text that may come from anywhere, spelled so that a terminal or a line of a file shows it and does not obey it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

__all__ = ["show_hidden", "to_json"]

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of control characters, of marks such as those that turn the direction, and of line ends."""

_JOINERS = "\u200c\u200d"
"""Of category Cf as well, but letters of Persian and Hindi, and many emoji, are written with them."""


def show_hidden(text: str) -> str:
    """Return the text on one line, with Python's escape for each character that a terminal would obey."""
    return _spell(text, lambda character: character.encode("unicode_escape").decode("ascii"))


def to_json(value: Any) -> str:
    """Return a value as one line of JSON: readable in any script, with JSON's escapes for hidden characters.

    Raises:
        ValueError: There is a number that is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _spell(text, lambda character: json.dumps(character)[1:-1])


def _spell(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(escape(character) if _is_hidden(character) else character for character in text)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN and character not in _JOINERS
