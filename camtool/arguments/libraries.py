"""Import optional libraries, or say what to install."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from camtool.errors import CamtoolError


def import_library(module: str, need: str, package: str, error: type[CamtoolError] = CamtoolError) -> ModuleType:
    """Import a module of a library that camtool does not always need.

    Args:
        module: The module.
        need: What needs the library, as the beginning of a sentence.
        package: What pip installs, with quotation marks if it is an extra.
        error: The class of the error.

    Raises:
        CamtoolError: The library is not installed, or misses something; then the message has the reason.
    """
    try:
        return import_module(module)
    except ImportError as missing:
        is_absent = isinstance(missing, ModuleNotFoundError) and missing.name == module.partition(".")[0]
        reason = "" if is_absent else f" ({missing})"
        raise error(f"{need}: pip install {package}{reason}") from missing
