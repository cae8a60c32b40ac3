"""Chunks: sizes within the memory budget, and the progress bar."""

from __future__ import annotations

import gc
import io
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from camtool.errors import MethodError
from camtool.inference import chunks
from camtool.inference.chunks import compute_chunk_size, hide_progress, iterate_chunks

# ------------------------------------------------------------------------------------------------------------ chunks


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (3, 3), (7, 3), (7, 1), (7, 99)])
def test_chunks_cover_the_range_once_and_in_order(count: int, size: int) -> None:
    parts = list(iterate_chunks(count, size))
    assert [index for part in parts for index in range(count)[part]] == list(range(count))
    assert [part.stop - part.start for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert all(0 < part.stop - part.start <= size for part in parts)


@pytest.mark.parametrize("size", [0, -2])
def test_a_chunk_size_below_1_raises_an_error(size: int) -> None:
    with pytest.raises(MethodError, match=rf"chunk must be 1 or more, got {size}; leave it out"):
        next(iterate_chunks(3, size))


def test_the_chunk_size_shrinks_with_the_size_of_a_variant_and_is_at_least_1() -> None:
    like, wide = torch.empty(0), torch.empty(0, dtype=torch.float64)
    assert compute_chunk_size(1024, like) == 2 * compute_chunk_size(2048, like) == 2 * compute_chunk_size(1024, wide)
    assert compute_chunk_size(1000, like) * 1000 * 4 * chunks._LIVE_COPIES <= chunks._BUDGETS["cpu"]
    assert compute_chunk_size(10**12, like) == 1
    assert compute_chunk_size(0, like) > 1


# ------------------------------------------------------------------------------------------------------ progress bar


class Screen(io.StringIO):
    """A stream that is a terminal or a file."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def show_progress_at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Screen]:
    """A function that replaces the standard error; the bar appears without a delay."""
    monkeypatch.setattr(chunks, "_SECONDS_BEFORE_PROGRESS", 1e-9)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # tqdm starts no monitoring thread

    def replace_stderr(terminal: bool) -> Screen:
        screen = Screen(terminal=terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return replace_stderr


def run_chunks() -> None:
    for _ in iterate_chunks(40, 4):
        threading.Event().wait(0.02)  # tqdm draws ten times a second


def test_a_terminal_shows_a_bar_and_clears_it(show_progress_at_once: Callable[[bool], Screen]) -> None:
    screen = show_progress_at_once(True)
    run_chunks()
    assert "/40" in screen.getvalue()
    assert "pass" in screen.getvalue()
    assert screen.getvalue().rpartition("\r")[0].rpartition("\r")[2].strip() == ""


def test_a_file_or_hide_progress_shows_no_bar(
    show_progress_at_once: Callable[[bool], Screen],
) -> None:
    screen = show_progress_at_once(False)
    run_chunks()
    assert screen.getvalue() == ""
    screen = show_progress_at_once(True)
    with hide_progress():
        run_chunks()
        with hide_progress():
            run_chunks()
        run_chunks()
    assert screen.getvalue() == ""
    run_chunks()
    assert screen.getvalue() != ""


def test_a_short_run_shows_no_bar(
    show_progress_at_once: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_SECONDS_BEFORE_PROGRESS", 60.0)
    screen = show_progress_at_once(True)
    run_chunks()
    assert screen.getvalue() == ""


def test_an_error_closes_the_bar_and_ends_hide_progress(show_progress_at_once: Callable[[bool], Screen]) -> None:
    screen = show_progress_at_once(True)
    with pytest.raises(ZeroDivisionError), hide_progress():
        1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError):
        [1 / part.start for part in iterate_chunks(40, 4)]
    from tqdm import tqdm

    gc.collect()
    assert not list(tqdm._instances)
    run_chunks()
    assert screen.getvalue() != ""
