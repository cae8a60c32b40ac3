"""Progress: a line after two seconds on a terminal, none in a file unless the user asks, none for a listener."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import camtool
from camtool import progress
from camtool.demo.scenes import draw_scene
from camtool.hooks.chunks import iterate_chunks
from camtool.progress import follow_step, send_progress, show_progress


class Screen(io.StringIO):
    """A stream that is a terminal or a file."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def wait_for(self, pattern: str) -> bool:
        """Return True as soon as a text of this pattern stands on the screen."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if re.search(pattern, self.getvalue()):
                return True
            time.sleep(0.01)
        return False


def list_progress_threads() -> list[threading.Thread]:
    """Return the threads that show progress; others may end at any time."""
    return [thread for thread in threading.enumerate() if thread.name == "camtool-progress"]


@pytest.fixture
def open_screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Screen]:
    """A function that replaces the standard error; progress appears there at once."""
    monkeypatch.setattr(progress, "_SECONDS_BEFORE_PROGRESS", 1e-3)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_FRAMES", 1e-2)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 1e-2)

    def replace_stderr(terminal: bool) -> Screen:
        screen = Screen(terminal=terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return replace_stderr


def test_a_terminal_shows_loops_and_the_innermost_step_and_clears_the_line(
    open_screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = open_screen(True)
    for part in iterate_chunks(40, 10):
        if part.start == 20:
            assert screen.wait_for(r"\rExplaining: pass 20 of 40, about \d+ s left, \d+ s")
            with follow_step("Examining the model"), follow_step("Compiling"):
                assert screen.wait_for(r"left, Compiling, \d+ s")
    assert not list_progress_threads()
    *lines, last = screen.getvalue().split("\r")
    assert last == ""
    assert lines[-1].strip() == ""
    assert {len(line) for line in lines[1:]} == {79}
    assert "Examining" not in screen.getvalue()


def test_a_file_stays_empty_unless_the_user_asks_for_lines(open_screen: Callable[[bool], Screen]) -> None:
    screen = open_screen(False)
    with follow_step("Compiling"):
        time.sleep(0.1)
    assert screen.getvalue() == ""
    with show_progress(), follow_step("Compiling"):
        assert screen.wait_for(r"Compiling, \d+ s\nCompiling, \d+ s\n")
    assert "\r" not in screen.getvalue()


def test_hidden_progress_and_short_work_show_nothing(
    open_screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = open_screen(True)
    with show_progress(False), follow_step("Compiling"):
        time.sleep(0.05)
    monkeypatch.setattr(progress, "_SECONDS_BEFORE_PROGRESS", 60.0)
    with follow_step("Compiling"):
        time.sleep(0.05)
    assert screen.getvalue() == ""


def test_an_error_ends_the_line_and_the_next_loop_has_one_again(open_screen: Callable[[bool], Screen]) -> None:
    screen = open_screen(True)
    with pytest.raises(ZeroDivisionError):
        [1 / part.start for part in iterate_chunks(40, 4)]
    assert not list_progress_threads()
    with follow_step("Compiling"):
        assert screen.wait_for("Compiling")


def test_a_stream_that_the_user_closes_meanwhile_harms_nothing(open_screen: Callable[[bool], Screen]) -> None:
    screen = open_screen(True)
    with follow_step("Compiling"):
        assert screen.wait_for("Compiling")
        screen.close()
        time.sleep(0.05)


def test_the_first_look_at_a_model_is_shown_and_a_known_model_starts_no_thread(
    open_screen: Callable[[bool], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if is_slow:
                time.sleep(0.05)
            return super().forward(x)

    is_slow, screen = True, open_screen(True)
    model = Slow(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    camtool.explain(model, torch.rand(1, 3, 16, 16), 0)
    assert "Examining the model" in screen.getvalue()
    is_slow = False
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail(f"{self.name} was started"))
    camtool.explain(model, torch.rand(1, 3, 16, 16), 1)


def test_evaluate_tells_its_maps(open_screen: Callable[[bool], Screen]) -> None:
    screen = open_screen(False)
    model, photos = camtool.load("demo"), [draw_scene(seed) for seed in (3, 4)]
    with show_progress():
        camtool.evaluate(model, [each.image for each in photos], ["gradcam"], metrics=["deletion"])
    assert "Evaluating: map " in screen.getvalue()


def test_a_call_tells_its_images(open_screen: Callable[[bool], Screen]) -> None:
    screen, photos = open_screen(False), [draw_scene(3).image] * 4
    with show_progress():
        camtool.explain(camtool.load("demo"), photos, batch_size=1, method="ablationcam")
    assert re.search("Explaining: image [1-4] of 4", screen.getvalue())


def test_images_are_left_to_a_caller_that_listens() -> None:
    told: list[tuple[object, ...]] = []

    class Counter:
        def update(self, passes: int, /) -> None: ...
        def close(self) -> None: ...

    def listen(*call: object) -> Counter:
        told.append(call)
        return Counter()

    with send_progress(listen):
        camtool.explain(camtool.load("demo"), [draw_scene(3).image] * 2)
    assert [call for call in told if len(call) == 2 and call[1].unit == "image"] == []


def test_concepts_and_exports_tell_what_they_do(open_screen: Callable[[bool], Screen], tmp_path: Path) -> None:
    screen, model = open_screen(False), camtool.load("demo")
    with show_progress():
        camtool.concepts(model, [draw_scene(seed).image for seed in range(12)], n=3)
        camtool.export(model, tmp_path / "a.pt2")
    assert "Finding concepts" in screen.getvalue()
    assert "Exporting the model" in screen.getvalue()
