"""The exception with which an engine refuses a model."""

from __future__ import annotations

__all__ = ["NotCompilableError"]


class NotCompilableError(Exception):
    """An engine cannot run a model. The next engine is tried, so users meet it in a log line, not as an exception."""
