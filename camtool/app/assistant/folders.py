"""Folders that an assistant may read; a path that leads out of them is refused."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from camtool.app.stores import ImageFolder
from camtool.arguments.messages import suggest_names
from camtool.errors import ImageError
from camtool.inputs.image_files import has_image_suffix
from camtool.rendering.written_files import resolve
from camtool.runs.file_names import fold_name, is_encodable, make_distinct
from camtool.runs.text_escapes import escape_bytes, unescape_bytes


class ReadableFolders:
    """Folders whose images may be read, with the folders below them.

    An image is named by its path in its folder; with several folders this follows the prefix of the folder.

    Args:
        paths: The folders, one or more.

    Raises:
        ImageError: There are none, or one is no folder.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        if not paths:
            raise ImageError("FOLDER: give one or more folders of images that may be read.")
        self._folders = {resolve(folder.path): folder for folder in map(ImageFolder, paths)}
        self.prefixes = _choose_prefixes([*self._folders]) if len(self._folders) > 1 else {}

    @property
    def names(self) -> list[str]:
        """The paths of the folders, absolute and without links."""
        return [str(root) for root in self._folders]

    def list_photos(self, folder: str | None = None) -> list[Path]:
        """Return the images of all folders, or in one folder and below it, 5000 of each at most.

        Raises:
            ImageError: The folder is none, lies outside, is hidden, or has no images.
        """
        start = None if folder is None else self._find(folder, "folder")
        photos = [root / name for root, images in self._folders.items() for name in images.list_names()]
        photos = [photo for photo in dict.fromkeys(photos) if start is None or photo.is_relative_to(start)]
        if not photos:
            raise ImageError(f"folder {folder or self.names[0]!r} has no images; name one that has.")
        return photos

    def find_photo(self, name: str) -> Path:
        """Return the path of an image, without links.

        Args:
            name: A path that is absolute, as :meth:`get_name` returns it, or relative to one of the folders or to the
                folder around it.

        Raises:
            ImageError: There is no such image, it lies outside or is hidden, or several folders have one.
        """
        return self._find(name, "photo")

    def get_name(self, photo: Path) -> str:
        """Return the path of an image relative to its folder, behind the prefix of the folder if there are several."""
        root = next(root for root in self._folders if photo.is_relative_to(root))
        prefixes = [prefix for prefix, folder in self.prefixes.items() if folder == root]
        return escape_bytes("/".join([*prefixes, photo.relative_to(root).as_posix()]))

    def _find(self, name: str, kind: str) -> Path:
        groups = [[*filter(self._is_inside, map(resolve, group))] for group in self._list_meanings(name)]
        self._check_readable([*chain.from_iterable(groups)], name, kind)
        for group in groups:
            found = [path for path in dict.fromkeys(group) if not self._is_hidden(path) and _is_kind(path, kind)]
            if len(found) > 1:
                names = " or ".join(repr(self.get_name(path)) for path in found)
                raise ImageError(f"{kind} {name!r} is in more than one folder; name {names}.")
            if found:
                return found[0]
        known = [self.get_name(photo) for photo in self.list_photos()]
        reason = "does not exist" if kind == "folder" else "does not exist, or has no suffix of an image"
        raise ImageError(f"{kind} {name!r} {reason}.{suggest_names(name, known)} The tool photos lists all.")

    def _check_readable(self, inside: Sequence[Path], name: str, kind: str) -> None:
        """Check that one of the paths that a name means inside of the folders is there, and not hidden."""
        if not inside:
            raise ImageError(
                f"{kind} {name!r} is outside of the folders that may be read: {', '.join(self.names)}. Start camtool "
                "mcp with its folder to allow it."
            )
        if all(map(self._is_hidden, inside)):
            raise ImageError(f"{kind} {name!r} is hidden by a dot before its name, or that of a folder; name another.")

    def _list_meanings(self, name: str) -> list[list[Path]]:
        """Return the paths that a name may mean; a path counts only if none of an earlier list exists."""
        spellings = [text for text in (name, unescape_bytes(name)) if is_encodable(text)]
        parts = [text.partition("/") for text in spellings]
        listed = [self.prefixes[prefix] / rest for prefix, _, rest in parts if prefix in self.prefixes]
        if listed:
            return [listed]
        groups = [[base / text for text in spellings] for root in self._folders for base in (root, root.parent)]
        return [[*chain.from_iterable(groups)]] if self.prefixes else groups

    def _is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._folders)

    def _is_hidden(self, path: Path) -> bool:
        """Return True if a folder's path to a file inside has a part that begins with a dot, in all folders around."""
        parts = (path.relative_to(root).parts for root in self._folders if path.is_relative_to(root))
        return all(any(part.startswith(".") for part in each) for each in parts)


def _is_kind(path: Path, kind: str) -> bool:
    with suppress(OSError):  # a name may be too long
        return path.is_dir() if kind == "folder" else path.is_file() and has_image_suffix(path)
    return False


def _choose_prefixes(roots: Sequence[Path]) -> dict[str, Path]:
    """Return prefix → folder: its name, with a number if several have it, as none is the first that comes to mind."""
    names = [root.name or "root" for root in roots]
    counts = Counter(map(fold_name, names))
    numbered = (name if counts[fold_name(name)] == 1 else f"{name}-{at}" for at, name in enumerate(names, 1))
    return dict(zip(make_distinct([*numbered]), roots, strict=True))
