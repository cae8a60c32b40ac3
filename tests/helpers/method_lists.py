"""Methods by what they need of a model."""

from __future__ import annotations

from camtool import METHODS

FOR_CLASSIFIERS = [name for name, each in METHODS.items() if not each.needs & {"attention", "text", "a detector"}]
"""The methods for any classifier; the others need attention, a text or a detector."""
