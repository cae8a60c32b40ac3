"""Links from the page to files: relative, quoted, and to the right photo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from urllib.parse import quote


def link_to(path: Path, folder: Path) -> str:
    """Return the URL of a file relative to a page in ``folder``; an absolute one if it is on another drive."""
    target = Path(os.path.abspath(path))  # noqa: PTH100  the browser does not resolve links, so neither may we
    try:
        return _quote(PurePath(os.path.relpath(target, os.path.abspath(folder))))  # noqa: PTH100
    except ValueError:
        return target.as_uri()


def _quote(path: PurePath) -> str:
    # Bytes, because a name need not be valid UTF-8. A colon in the first part would be read as a scheme.
    return "/".join(quote(os.fsencode(part), safe="") for part in path.parts)


def find_photo(image: str, folder: Path, *, directory: Path | None = None, moved_to: Path | None = None) -> Path | None:
    """Return where the photo of a row is; None if it is not found.

    A relative path is looked up in the run's working directory if it is known, else in the present one, and then
    beside the output folder.

    Args:
        image: The path as the run got it.
        folder: The output folder of the run.
        directory: The working directory of the run.
        moved_to: The folder that the photos have been moved to. The end of the path is looked up in it, as much of it
            as fits.
    """
    return next((path for path in _list_candidates(image, folder, directory, moved_to) if _is_file(path)), None)


def _list_candidates(image: str, folder: Path, directory: Path | None, moved_to: Path | None) -> Iterator[Path]:
    path = Path(image)
    if moved_to is not None:
        parts = [part for part in path.parts if part not in (path.anchor, "..")]
        for first in range(len(parts)):
            yield moved_to.joinpath(*parts[first:])
    yield path if directory is None else directory / path
    if not path.is_absolute():
        yield folder.parent / path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a NUL
        return False
