"""Matching of method names: case and punctuation are ignored, so ``"Grad-CAM++"`` is ``"gradcam++"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["find_by_name", "normalize_name"]

Entry = TypeVar("Entry")


def normalize_name(name: str) -> str:
    """Return a name in lower case without punctuation, except for ``+``.

    ``"PlusPlus"`` becomes ``"++"``, and so does ``"pp"`` after "cam": other libraries write ``GradCAMPlusPlus`` and
    ``GradCAMpp``.
    """
    letters = "".join(char for char in name.casefold() if char.isalnum() or char == "+")
    return re.sub("plusplus|(?<=cam)pp$", "++", letters)


def find_by_name(name: str, entries: Mapping[str, Entry]) -> Entry | None:
    """Return the entry with this name, or with a name that differs only in case and punctuation."""
    if name in entries:
        return entries[name]
    wanted = normalize_name(name)
    return next((entry for known, entry in entries.items() if normalize_name(known) == wanted), None)
