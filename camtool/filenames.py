"""Names for the files of results: short enough for any file system, readable, and no two alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from hashlib import sha256

__all__ = ["distinct", "fold", "name_result", "shorten"]

_MOST_BYTES = 143
"""The longest name that every common file system takes: eCryptfs has this limit, most others have 255."""

_RESERVED_BYTES = 20
"""The bytes kept free for what follows the name: a number such as ``-12``, and an ending such as ``.heatmap.webp``."""

_HASH_DIGITS = 8


def name_result(stem: str, method: str, label: str, index: int | None) -> str:
    """Return the name of a result, without the ending that tells its kind.

    The same arguments give the same name in every run. What does not fit is cut and ends in a hash of the whole.

    Args:
        stem: The name of the photo.
        method: The name of the method.
        label: The label of what was explained.
        index: The index of the class; ``None`` for anything else, such as a text.
    """
    space = _MOST_BYTES - _RESERVED_BYTES - 1
    subject = f"{_slug(method)}.{_subject(label, index)}"
    subject = shorten(subject, max(space // 2, space - _count_bytes(stem)))
    return f"{shorten(stem, space - _count_bytes(subject))}.{subject}"


def shorten(text: str, most: int) -> str:
    """Return the text in at most ``most`` bytes of UTF-8: a longer one is cut and ends in a hash of the whole."""
    if _count_bytes(text) <= most:
        return text
    cut = text[: most - _HASH_DIGITS - 1]
    while _count_bytes(cut) > most - _HASH_DIGITS - 1:
        cut = cut[:-1]
    return f"{cut}-{_hash(text)}"


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names with a number added to those that came before: ``["cat", "Cat"]`` gives ``["cat", "Cat-2"]``.

    The result depends on the names and their order only.
    """
    taken: set[str] = set()
    found = []
    for name in names:
        each, number = name, 1
        while fold(each) in taken:
            number += 1
            each = f"{name}-{number}"
        taken.add(fold(each))
        found.append(each)
    return found


def fold(name: str) -> str:
    """Return a key that two names share if a file system that ignores case or Unicode's spelling confuses them."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _subject(label: str, index: int | None) -> str:
    """Return the label for a file's name, with what tells it from like labels: its index, or a hash of the text."""
    slug = _slug(label).strip("-").lower() or "target"
    if index is not None:
        return f"{index}-{slug}"
    return slug if slug.replace("-", " ") == label else f"{slug}-{_hash(label)}"


def _slug(text: str) -> str:
    """Return the text with a dash for all that some file system refuses."""
    return re.sub(r"[^\w+-]+", "-", text)


def _hash(text: str) -> str:
    return sha256(_encode(text)).hexdigest()[:_HASH_DIGITS]


def _count_bytes(text: str) -> int:
    return len(_encode(text))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # the name of a file may hold bytes that are no text
