"""Import of the libraries of ``camtool[ray]``, with an error that says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from camtool.errors import CamtoolError

__all__ = ["import_library"]


def import_library(name: str) -> Any:
    """Return a module of Ray, pyarrow or fsspec.

    Raises:
        CamtoolError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise CamtoolError(
            f"a run on a cluster needs {library}, which is not installed: pip install 'camtool[ray]'."
        ) from error
