"""Settings of a process that does nothing but explain photos, which a library must not make for its user.

:func:`release_memory` changes no setting, so any process may call it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import platform
import sys

# The parameters of glibc's ``mallopt``, from ``malloc.h``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

# Pixels of an image that takes much memory to read.
_LARGE = 10_000_000

# The largest ``int``: no block is larger.
_LARGEST = 2**31 - 1


def tune_process() -> None:
    """Make explanations faster in this process, and its end. Call it before torch is imported.

    Threads of torch that wait for work sleep, instead of taking the cores from engines and workers. What the user has
    set in the environment is not changed.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    atexit.unregister(skip_last_collections)
    atexit.register(skip_last_collections)
    _keep_large_blocks()


def skip_last_collections() -> None:
    """Leave the memory to the system, as Python would look for cycles among all objects of torch for a second."""
    if not is_reporting_leaks():
        gc.freeze()


def is_reporting_leaks() -> bool:
    """Return whether what is left at the end of the process is reported in a hundred lines, as nanobind does.

    Triton is made with it since 3.9.
    """
    triton = sys.modules.get("triton._C.libtriton.ir")
    return type(getattr(triton, "attribute", None)).__module__ == "nanobind"


def release_memory(size: tuple[int, int] | None = None) -> None:
    """Return memory that was freed to the system. Other threads would not use what the reader of a photo has freed.

    Args:
        size: Of an image that was in it: a small one is not worth the time. None stands for any size.
    """
    if (size is None or size[0] * size[1] > _LARGE) and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _keep_large_blocks() -> None:
    """Let the C library keep the large blocks of memory that torch asks for in each forward pass.

    Otherwise the system takes them back and clears them each time, which takes longer than the forward pass of a small
    model.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST)
    library.mallopt(_TRIM_THRESHOLD, _LARGEST)
