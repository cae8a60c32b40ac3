"""A lock between processes: a file that the operating system unlocks itself when its holder ends, however it ends."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["LockedError", "locked"]

_MOST_TEXT = 200  # bytes
_BYTE = 2**30
"""The byte that Windows locks. Nobody can read a locked byte, so it lies behind the text."""


class LockedError(Exception):
    """Another process, or another thread of this one, holds the lock; the message describes the holder."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` during the block, and remove it at the end.

    A lock that a killed process left behind is free. On a file system without locks the block runs unprotected.

    Raises:
        LockedError: Somebody else holds it.
        OSError: The file cannot be made.
    """
    descriptor = _acquire(path)
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, _describe_holder())
        yield
    finally:
        _release(descriptor, path)


def _acquire(path: Path) -> int:
    """Return the descriptor of the lock file, which is locked and the one that still lies at ``path``."""
    while True:
        # No link is followed: it would lead out of a folder that somebody else prepared.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if not _try_lock(descriptor):
                raise LockedError(os.read(descriptor, _MOST_TEXT).decode("utf-8", "replace") or "it has just begun")
            if _lies_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed it between our opening and locking it


def _release(descriptor: int, path: Path) -> None:
    """Remove the file, and then unlock it; Windows removes closed files only, and none that somebody else has open."""
    if sys.platform == "win32":
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()
    else:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _lies_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _describe_holder() -> bytes:
    text = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    return text.encode("utf-8", "replace")[:_MOST_TEXT]


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    _WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

    def _try_lock(descriptor: int) -> bool:
        """Return False if somebody else holds it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        return True
