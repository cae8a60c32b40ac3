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
        CamtoolError: The library, or another one that it needs, is not installed.
    """
    try:
        return import_module(module)
    except ImportError as missing:
        library = module.partition(".")[0]
        other = "" if missing.name is not None and missing.name.partition(".")[0] == library else f" ({missing})"
        raise error(f"{need}: pip install {package}{other}") from missing
