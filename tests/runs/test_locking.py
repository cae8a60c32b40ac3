"""Lock between processes."""

from __future__ import annotations

import os

import pytest

from camtool.runs import locking
from camtool.runs.locking import LockedError, hold_lock
from tests.runs.photos import posix


@posix
def test_a_lock_file_that_its_holder_removes_is_created_again(tmp_path, monkeypatch):
    path, real, removed = tmp_path / "lock", locking._try_lock, []

    def lock(descriptor: int) -> bool:
        if not removed:
            removed.append(path.unlink())
        return real(descriptor)

    monkeypatch.setattr(locking, "_try_lock", lock)
    with hold_lock(path), pytest.raises(LockedError, match=str(os.getpid())), hold_lock(path):
        pass
    assert (path.exists(), removed) == (False, [None])
