"""Decoding: what the readers of formats raise becomes an error with the file's name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from camtool.arguments.libraries import import_library
from camtool.errors import CamtoolError, ImageError, RaiseAs


def name_in_errors(name: str, file_format: str) -> RaiseAs:
    """Turn what a library raises on a damaged file into an :class:`ImageError` with the file's name."""
    return RaiseAs(partial(_build_error, name, file_format), Exception, unless=(CamtoolError,))


@contextmanager
def hide_log(library: str) -> Iterator[list[str]]:
    """Hide what a library logs in this thread: one damaged file may give thousands of lines. Yield the errors of it."""
    own, errors = threading.get_ident(), list[str]()

    def is_shown(record: logging.LogRecord) -> bool:
        if record.thread == own and record.levelno >= logging.ERROR:
            errors.append(record.getMessage())
        return record.thread != own

    logger = logging.getLogger(library)
    logger.addFilter(is_shown)
    try:
        yield errors
    finally:
        logger.removeFilter(is_shown)


def _build_error(name: str, file_format: str, error: Exception) -> ImageError:
    if isinstance(error, ImportError):
        return ImageError(f"{name} cannot be decoded: {error}.")
    if isinstance(error, MemoryError):
        return ImageError(f"{name} cannot be read: there is not enough memory for it.")
    reason = str(error).strip().rstrip(".") or type(error).__name__
    return ImageError(f"{name} is damaged, cut short or unusual, and cannot be read as {file_format}: {reason}.")


def import_reader(module: str, extra: str, name: str, file_format: str) -> Any:
    """Import the library that reads a format.

    Args:
        module: The library's module.
        extra: The extra of camtool that installs it.
        name: The file, for the message.
        file_format: The format.

    Raises:
        ImageError: It is not installed.
    """
    return import_library(module, f"{name} is {file_format}, which needs", f"'camtool[{extra}]'", ImageError)
