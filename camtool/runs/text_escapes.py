"""Escapes for text of unknown origin, so that a terminal, a JSON line or a spreadsheet shows it, and nothing else."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

# Unicode categories of control characters, format marks (such as those that reverse the direction), and line ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# Also of category Cf, but Persian and Hindi words, and many emoji, are written with them.
_JOINERS = "\u200c\u200d"


def escape_hidden(text: str) -> str:
    """Return the text on one line, with Python's escape for each character that a terminal would interpret."""
    return _escape(text, lambda character: character.encode("unicode_escape").decode("ascii"))


def escape_formula(value: Any) -> Any:
    """Return a cell for a CSV file: on one line, and with an apostrophe before what a spreadsheet takes for a formula.

    Where a comma separates decimals, spreadsheets also begin a cell behind a semicolon. Numbers are returned unchanged.
    """
    if not isinstance(value, str):
        return value
    return _FORMULA.sub(r"\1'\2", escape_hidden(value))  # a tab or a line end before "=" would be skipped


def escape_bytes(text: str) -> str:
    """Return the name of a file with ``%FF`` for each byte that is no UTF-8, and each of a hidden character.

    No JSON or archive can hold the former, and nobody sees the latter.
    """
    return _escape(text, lambda character: "".join(f"%{byte:02X}" for byte in _encode(character)))


def unescape_bytes(text: str) -> str:
    """Return the name of a file of which :func:`escape_bytes` made this, unless it has such escapes itself."""
    return _ESCAPES.sub(lambda match: unquote(match[0], errors="surrogateescape"), text)


# Escapes of bytes that are no ASCII, or control characters.
_ESCAPES = re.compile("(?:%(?:[0189A-F][0-9A-F]|7F))+")

# Python reads a byte of a file name that is not UTF-8 as this number plus the byte.
_FIRST_BYTE = 0xDC00


def _encode(character: str) -> bytes:
    byte = ord(character) - _FIRST_BYTE
    return bytes([byte]) if 0x80 <= byte <= 0xFF else character.encode("utf-8", "surrogatepass")


# The start of a cell, and of a formula in it. Full-width signs are formulas in spreadsheets in Chinese and Japanese.
_FORMULA = re.compile(r'(^|[;|])(\s*"*\s*[=+\-@＝＋－＠])')  # noqa: RUF001


def to_json(value: Any) -> str:
    """Return a value as one line of JSON: readable in any script, with JSON's escapes for hidden characters.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _escape(text, lambda character: json.dumps(character)[1:-1])


def _escape(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(escape(character) if _is_hidden(character) else character for character in text)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN and character not in _JOINERS
