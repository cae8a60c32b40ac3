"""The folder of images that the user serves: read only, and nothing outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from camtool.errors import ImageError
from camtool.inputs.image_files import has_image_suffix

_MAX_FILES = 5000
"""Most images that are listed. A longer list is of no use in a browser, and takes long to send."""


class ImageFolder:
    """The images in a folder and in the folders below it.

    Links are not followed if they lead out of the folder. Hidden files and folders are left out.

    Args:
        path: The folder.

    Raises:
        ImageError: It is no folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            reason = "is no folder" if self.path.exists() else "does not exist"
            raise ImageError(f"FOLDER {os.fspath(path)!r} {reason}; give a folder of images.")
        self._root = self.path.resolve()

    def list_names(self) -> list[str]:
        """List the images by their paths in the folder, sorted, 5000 at most."""
        names: list[str] = []
        for name in self._iterate_names():
            names.append(name)
            if len(names) == _MAX_FILES:
                break
        return sorted(names)

    def find(self, name: str) -> Path:
        """Return the path of an image of the folder.

        Raises:
            ImageError: The folder has no such image.
        """
        found = self._root / name
        try:
            is_inside = "\0" not in name and self._is_served(found)
        except OSError:
            # The name is longer than the system allows.
            is_inside = False
        if not is_inside:
            raise ImageError(f"the folder has no image {name!r}; choose one from the list.")
        return found.resolve()

    def write_code(self, name: str) -> tuple[str, str]:
        """Return the Python expression of an image's path, and a comment. It does not tell where the folder lies."""
        if self.path.is_absolute():
            return repr(f"{self.path.name}/{name}"), "the image of the page's FOLDER"
        return repr(str(self.path / name)), ""

    def _iterate_names(self) -> Iterator[str]:
        for folder, subfolders, files in os.walk(self._root):
            subfolders[:] = sorted(each for each in subfolders if not each.startswith("."))
            for file in sorted(files):
                path = Path(folder, file)
                if self._is_served(path):
                    yield path.relative_to(self._root).as_posix()

    def _is_served(self, path: Path) -> bool:
        """Return True if a path is that of an image file inside the folder, after all links and dots are resolved."""
        resolved = path.resolve()
        return (
            resolved.is_relative_to(self._root)
            and resolved.is_file()
            and has_image_suffix(str(path))
            and has_image_suffix(str(resolved))
            and not any(part.startswith(".") for part in resolved.relative_to(self._root).parts)
        )
