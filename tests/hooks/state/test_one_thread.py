from __future__ import annotations

import threading

import torch
from threadpoolctl import threadpool_info

from camtool.hooks.state.one_thread import use_one_thread


def read_openmp_threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "openmp"]


def read_in_another_thread() -> list[int]:
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append([torch.get_num_threads(), *read_openmp_threads()]))
    thread.start()
    thread.join()
    return found[0]


def test_one_thread_is_used_here_alone_and_only_in_the_block() -> None:
    before, others = (torch.get_num_threads(), read_openmp_threads()), read_in_another_thread()
    with use_one_thread():
        if before[1]:  # torch was built with OpenMP
            assert torch.get_num_threads() == 1
            assert set(read_openmp_threads()) == {1}
        assert read_in_another_thread() == others
    assert (torch.get_num_threads(), read_openmp_threads()) == before


def test_the_number_comes_back_after_an_error() -> None:
    before = torch.get_num_threads()
    try:
        with use_one_thread(), use_one_thread():
            raise ValueError
    except ValueError:
        pass
    assert torch.get_num_threads() == before
