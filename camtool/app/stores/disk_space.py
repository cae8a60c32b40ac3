"""The folder of uploads and of files to download: what is in it, within a limit of the disk."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from camtool.errors import CamtoolError

_MIN_AGE = 120.0
"""Seconds for which a file stays in any case: until an upload is read, and a download is fetched."""

_BLOCK = 4096
"""Bytes that a small file takes at least."""


class DiskSpace:
    """Limit of the disk for the files of all users in a folder. The oldest files are removed for new ones.

    Args:
        folder: The folder.
        max_bytes: The most bytes of all files in it.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._used = 0
        self._lock = threading.Lock()

    def has_file(self, path: str) -> bool:
        """Return True if a path is that of an ordinary file in the folder. A URL is none."""
        with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: a link leads to itself
            root, resolved = self.folder.resolve(), Path(path).resolve()
            return Path(path).is_absolute() and resolved.is_relative_to(root) and resolved.is_file()
        return False

    def make_room(self, size: int) -> None:
        """Measure the folder, and remove old files until there is space for so many bytes.

        Raises:
            CamtoolError: There is too little space.
        """
        with self._lock:
            files = sorted(self._iterate_files())
            self._used = sum(file_size for _, file_size, _ in files)
            for changed, file_size, path in files:
                if self._used + size <= self.max_bytes or time.time() - changed < _MIN_AGE:
                    break
                with suppress(OSError):
                    path.unlink()
                    self._used -= file_size
                    path.parent.rmdir()
        self.take(0, size)

    def take(self, size: int, later: int = 0) -> None:
        """Count bytes that are written, and check that there is space for those that come later.

        Raises:
            CamtoolError: There is too little space.
        """
        with self._lock:
            self._used += size
            if self._used + later > self.max_bytes:
                raise CamtoolError(
                    f"the files of all users take the {self.max_bytes / 2**20:,.0f} MB that the page may use; try "
                    f"again in {_MIN_AGE / 60:.0f} minutes. --max-disk allows more."
                )

    def _iterate_files(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the time of change, the size and the path of each file."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.lstat()
                except OSError:
                    continue  # it was removed meanwhile
                if stat.S_ISREG(status.st_mode):
                    yield status.st_mtime, max(_BLOCK, status.st_size), path
