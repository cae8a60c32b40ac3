"""Folders that an assistant may read; a path that leads out of them is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from camtool.app.stores import ImageFolder
from camtool.arguments.messages import suggest_names
from camtool.errors import ImageError
from camtool.runs.file_names import is_encodable, resolve


class ReadableFolders:
    """Folders whose images may be read, with the folders below them.

    Args:
        paths: The folders, one or more.

    Raises:
        ImageError: There are none, or one is no folder.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        if not paths:
            raise ImageError("FOLDER: give one or more folders of images that may be read.")
        self._folders = [ImageFolder(path) for path in paths]
        self._roots = [resolve(folder.path) for folder in self._folders]

    @property
    def names(self) -> list[str]:
        """The paths of the folders, absolute and without links."""
        return [str(root) for root in self._roots]

    def list_photos(self, folder: str | None = None) -> list[Path]:
        """Return the images of all folders, or in one folder and below it, 5000 of each at most.

        Raises:
            ImageError: The folder is none, lies outside, or has no images.
        """
        start = None if folder is None else self._find(folder, "folder")
        photos = [
            root / name for root, images in zip(self._roots, self._folders, strict=True) for name in images.list_names()
        ]
        photos = [photo for photo in dict.fromkeys(photos) if start is None or photo.is_relative_to(start)]
        if not photos:
            raise ImageError(f"folder {folder or self.names[0]!r} has no images; name one that has.")
        return photos

    def find_photo(self, name: str) -> Path:
        """Return the path of an image, without links.

        Args:
            name: A path that is absolute, or relative to one of the folders or to the folder around it.

        Raises:
            ImageError: There is no such file, or it lies outside.
        """
        return self._find(name, "photo")

    def get_name(self, photo: Path) -> str:
        """Return the path of an image relative to its folder."""
        return next(photo.relative_to(root).as_posix() for root in self._roots if photo.is_relative_to(root))

    def _find(self, name: str, kind: str) -> Path:
        bases = [place for root in self._roots for place in (root, root.parent)] if is_encodable(name) else []
        paths = [resolve(base / name) for base in bases]
        inside = [path for path in paths if any(path.is_relative_to(root) for root in self._roots)]
        if not inside:
            raise ImageError(
                f"{kind} {name!r} is outside of the folders that may be read: {', '.join(self.names)}. Start camtool "
                "mcp with its folder to allow it."
            )
        for path in inside:
            if path.is_dir() if kind == "folder" else path.is_file():
                return path
        known = [self.get_name(photo) for photo in self.list_photos()]
        raise ImageError(f"{kind} {name!r} does not exist.{suggest_names(name, known)} The tool photos lists all.")
