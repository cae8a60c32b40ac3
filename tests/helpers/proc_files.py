"""Files of Linux' /proc, which are read between and within tests, also while a test replaces ``Path.open``."""

from __future__ import annotations

import os

# The functions themselves, bound when this module is imported: what tests put in their place later is not called.
from io import FileIO
from os import scandir


def read_proc(name: str) -> str:
    """Return the text of ``/proc/NAME``; empty if there is no such file, e.g. since the process has ended."""
    try:
        with FileIO(f"/proc/{name}") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def list_children(process: int) -> list[int]:
    """Return the numbers of the processes that the threads of a process have started and that still run."""
    try:
        threads = [entry.name for entry in scandir(f"/proc/{process}/task")]
    except OSError:
        return []
    return [int(each) for thread in threads for each in read_proc(f"{process}/task/{thread}/children").split()]


def read_resident_mib() -> float:
    """Return the resident memory of this process; 0 where there is no /proc."""
    return _read_mib()[0]


def read_own_mib() -> float:
    """Return the resident memory of this process without mapped files, whose pages other processes share."""
    resident, of_files = _read_mib()
    return resident - of_files


def _read_mib() -> tuple[float, float]:
    sizes = read_proc("self/statm").split() or ["0"] * 3
    resident, of_files = (int(size) * os.sysconf("SC_PAGE_SIZE") / 2**20 for size in sizes[1:3])
    return resident, of_files
