"""Errors as one sentence for the user."""

from __future__ import annotations

from camtool.errors import CamtoolError

__all__ = ["to_sentence"]

_MAX_LETTERS = 400


def to_sentence(error: BaseException) -> str:
    """Return the message of an error as one line that ends with a period.

    Messages of camtool's own errors are written for the user. Of others the kind is named as well, and the log has the
    trace.
    """
    message = " ".join(str(error).split())
    if len(message) > _MAX_LETTERS:
        message = f"{message[:_MAX_LETTERS].rstrip()} ..."
    if isinstance(error, MemoryError):
        message = f"there is not enough memory. {message}".strip()
    elif not isinstance(error, CamtoolError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    # The name of a file keeps its letters.
    if message.partition(" ")[0].isalpha():
        message = message[:1].upper() + message[1:]
    return message if message.endswith((".", "!", "?")) else f"{message}."
