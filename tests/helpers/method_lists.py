"""Methods by what they need of a model."""

from __future__ import annotations

from camtool import METHODS

__all__ = ["FOR_CLASSIFIERS"]

_PARTICULAR = ("attention", "text", "detector")

FOR_CLASSIFIERS = [name for name, each in METHODS.items() if not any(word in each.needs for word in _PARTICULAR)]
"""The methods for any classifier; the others need attention, a text or a detector."""
