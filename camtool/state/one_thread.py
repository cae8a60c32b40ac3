"""The number of threads that torch divides an operation among, for the operations of one Python thread."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from camtool.state.cleanup import Cleanup

__all__ = ["use_one_thread"]


def use_one_thread() -> Cleanup:
    """Let torch run the operations of this Python thread in one thread within the block; other threads are unaffected.

    After each operation that torch divides among threads, these wait some milliseconds for the next one in a loop, and
    keep the cores from an engine. ``torch.set_num_threads`` would count for all threads of Python, so the number is set
    where it is kept for each of them, in OpenMP. Without OpenMP nothing changes.
    """
    return Cleanup(_use_one_thread)


def _use_one_thread(cleanup: Cleanup) -> None:
    torch.get_num_threads()  # torch sets the number of a Python thread when it is first asked for it
    for library in _find_libraries():
        cleanup.push(partial(library.set_num_threads, library.get_num_threads()))
        library.set_num_threads(1)


@cache
def _find_libraries() -> list[Any]:
    """Return the OpenMP libraries that this process has loaded."""
    from threadpoolctl import ThreadpoolController

    libraries: list[Any] = ThreadpoolController().select(user_api="openmp").lib_controllers
    return libraries
