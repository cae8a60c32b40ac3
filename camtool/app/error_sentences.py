"""Errors as one sentence for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from camtool.errors import CamtoolError

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


def hide_folder(name: str) -> str:
    """Return a path, or the name of a model that ends in one, without the folders of an absolute path."""
    source, colon, path = name.partition(":")
    if Path(name).is_absolute():
        return Path(name).name
    return f"{source}:{Path(path).name}" if colon and Path(path).is_absolute() else name


@contextmanager
def hide_folders_in_errors(*paths: str) -> Iterator[None]:
    """Show the names of files in errors, and not where they lie on the server."""
    try:
        yield
    except Exception as error:
        is_own = isinstance(error, CamtoolError)
        message = hidden = str(error) if is_own else to_sentence(error)
        for path in paths:
            hidden = hidden.replace(path, Path(path).name)
        if hidden == message:
            raise
        raise (type(error) if is_own else CamtoolError)(hidden) from error
