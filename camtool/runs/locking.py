"""A lock between processes: a file that the operating system unlocks when its holder ends, even if it is killed."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from camtool.errors import CamtoolError, RaiseAs

# Bytes of the text in the lock file that describes its holder.
_MAX_TEXT = 200

# Offset of the byte that Windows locks. A locked byte cannot be read, so it is far behind the text.
_BYTE = 2**30


class LockedError(Exception):
    """Another process, or another thread of this one, holds the lock; the message describes the holder."""


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` during the block, and remove the file at the end.

    A lock that a killed process left behind is free. On a file system without locks the block runs unprotected.

    Raises:
        LockedError: Another process or thread holds it.
        OSError: The file cannot be created.
    """
    descriptor = _acquire(path)
    try:
        os.truncate(descriptor, 0)
        holder = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        os.write(descriptor, holder.encode("utf-8", "replace")[:_MAX_TEXT])
        yield
    finally:
        _release(descriptor, path)


@contextmanager
def lock_folder(path: Path, out: str) -> Iterator[None]:
    """Keep other runs out of an output folder during the block, by a lock file in it.

    Raises:
        CamtoolError: Another run writes to the folder.
        OSError: The file cannot be created.
    """
    text, advice = "another run writes to this folder", "wait for it to end, or give another folder with --out."
    with RaiseAs(lambda error: CamtoolError(f"out {out!r}: {text} ({error}); {advice}"), LockedError), hold_lock(path):
        yield


def _acquire(path: Path) -> int:
    """Return the descriptor of the lock file, locked and still present at ``path``."""
    while True:
        # Links are not followed: in a folder that another user prepared, one could lead to any file.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if not _try_lock(descriptor):
                raise LockedError(os.read(descriptor, _MAX_TEXT).decode("utf-8", "replace") or "it has just begun")
            if _is_file_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # Its holder removed the file between our opening and our locking it: try again with a new file.
        os.close(descriptor)


def _release(descriptor: int, path: Path) -> None:
    """Remove the file, and unlock it.

    Elsewhere than on Windows the file is removed first, so that nobody can lock it in between. Windows removes only
    files that are closed, and that no other process has open.
    """
    if sys.platform == "win32":
        os.close(descriptor)
    with suppress(OSError):
        path.unlink()
    if sys.platform != "win32":
        os.close(descriptor)


def _is_file_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


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

    # Some network file systems have no locks.
    _NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

    def _try_lock(descriptor: int) -> bool:
        """Lock the file; return False if another process or thread holds it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        return True
