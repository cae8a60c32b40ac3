"""A block in which torch does not divide its operations among threads."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from camtool.hooks.state.cleanup import Cleanup


def use_one_thread() -> Cleanup:
    """Let torch use one thread for the operations of the block. Other Python threads are not affected.

    Torch divides large operations among the threads of OpenMP. After each operation these wait some milliseconds for
    the next one, in a loop, and an engine does not get their cores. OpenMP keeps the number of threads for each Python
    thread, so it is set there; ``torch.set_num_threads`` changes it for the whole process. Without OpenMP the block
    changes nothing.
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

    return list(ThreadpoolController().select(user_api="openmp").lib_controllers)
