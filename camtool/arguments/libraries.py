"""Import optional libraries, or say what to install."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module, metadata
from types import ModuleType

from camtool.errors import CamtoolError, raise_interrupt


def import_library(module: str, need: str, package: str, error: type[CamtoolError] = CamtoolError) -> ModuleType:
    """Import a module of a library that camtool does not always need.

    Args:
        module: The module.
        need: What needs the library, as the beginning of a sentence.
        package: What pip installs, with quotation marks if it is an extra.
        error: The class of the error.

    Raises:
        CamtoolError: The library is not installed, or its import fails; then the message has the reason.
    """
    try:
        return import_module(module)
    except Exception as failure:
        raise_interrupt(failure)
        # What is broken may raise anything, e.g. an AttributeError if another library has a version that does not fit.
        kind = "" if isinstance(failure, ImportError) else f"its import fails: {type(failure).__name__}: "
        reason = "" if _is_absent(module, failure) else f" ({kind}{failure})"
        raise error(f"{need}: pip install {package}{reason}") from failure


def import_optional(module: str, need: str, package: str, error: type[CamtoolError]) -> ModuleType | None:
    """Import a module as :func:`import_library`; return None if the library is not installed.

    Raises:
        CamtoolError: It is installed, and its import fails; the message has the reason.
    """
    try:
        return import_library(module, need, package, error)
    except error as failure:
        if _is_absent(module, failure.__cause__):
            return None
        raise


def read_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of the distributions that are installed."""
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _is_absent(module: str, failure: BaseException | None) -> bool:
    return isinstance(failure, ModuleNotFoundError) and failure.name == module.partition(".")[0]
