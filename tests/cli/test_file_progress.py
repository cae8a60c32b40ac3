"""Progress of slides and videos: stages, estimates, plain lines off a terminal, the bar at 80 columns."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from camtool.cli import terminal
from camtool.cli.progress.run_progress import FileProgress
from camtool.hooks.chunks import iterate_chunks
from camtool.progress import Stage, send_progress, show_progress
from tests.cli.test_commands import Command
from tests.cli.test_progress import Clock
from tests.slides.slide_files import plant_objects, write_slide
from tests.videos.video_files import draw_crossing_star, write_video

pytestmark = pytest.mark.usefixtures("told_estimates")

TILES = Stage("Explaining", "tile", 8)


def advance(clock: Clock, seconds: float, *, size: int = 8, count: int = 1200, steps: int = 2) -> None:
    """Go through the first steps of a stage, which take equally long."""
    for _, _ in zip(range(steps + 1), iterate_chunks(count, size, Stage("Explaining", "tile", size)), strict=False):
        clock.now += seconds


def test_a_line_tells_file_stage_pass_and_time():
    clock = Clock()
    with FileProgress("a.svs", is_quiet=True, clock=clock) as progress:
        assert progress.describe(12) == "Opening a.svs ... 12 s"
        for number, _ in enumerate(iterate_chunks(24, 8, TILES)):
            with show_progress(False):
                for part in iterate_chunks(40, 10):
                    if (number, part.start) == (1, 10):
                        assert progress.describe(20) == "Explaining a.svs: 8 of 24 tiles, pass 10 of 40, 20 s"
            clock.now += 4
            if number == 2:
                # Two batches took 4 s each; the third one has just ended, but is not counted yet.
                assert progress.describe(20) == "Explaining a.svs: 16 of 24 tiles, 20 s, about 0 s left"
        assert progress.describe(20) == "Explaining a.svs: 24 of 24 tiles, 20 s, about 0 s left"
        for _ in iterate_chunks(3, 1, Stage("Drawing", "part")):
            assert progress.describe(21).startswith("Drawing a.svs: ")
            break


def test_a_long_stage_tells_its_time_once(capsys):
    clock = Clock()
    with FileProgress("a.svs", is_quiet=False, clock=clock):
        advance(clock, 4, steps=5)
    assert capsys.readouterr().err == "About 10 min for 1,200 tiles.\n"


def test_each_long_stage_tells_its_time(capsys):
    clock = Clock()
    with FileProgress("a.svs", is_quiet=False, clock=clock):
        advance(clock, 4)
        advance(clock, 4, size=1, count=60)
    assert capsys.readouterr().err.splitlines() == ["About 10 min for 1,200 tiles.", "About 4 min for 60 tiles."]


@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_the_first_moments_and_short_stages_tell_nothing(capsys, seconds):
    """0.3 s for 8 of 1,200 tiles: 45 s. After two steps of 1 s it is too early."""
    clock = Clock()
    with FileProgress("a.svs", is_quiet=False, clock=clock):
        advance(clock, seconds, steps=2 if seconds == 1 else 100)
    assert capsys.readouterr().err == ""


def test_quiet_tells_nothing(capsys, fast_lines):
    clock = Clock()
    with FileProgress("a.svs", is_quiet=True, clock=clock):
        advance(clock, 10)
    assert capsys.readouterr().err == ""


def test_a_listener_of_the_caller_gets_the_inner_loops():
    counts = []

    def follow(count: int, *stage: Stage):
        counts.append((count, *stage))
        return FileProgress("", is_quiet=True).passes(count)

    with send_progress(follow):
        for _ in iterate_chunks(1, 1, TILES):
            with show_progress(False):
                [*iterate_chunks(5, 1)]
    assert counts == [(1, TILES), (5,)]


# ------------------------------------------------------------------------------------------------------- commands


@pytest.fixture
def slide(camtool_, tmp_path) -> Command:
    write_slide(Path("a.tif"), plant_objects(width=640, height=700, rows=1, columns=1).pixels)
    return lambda *options: camtool_("slide", "a.tif", "--model", "demo", "--target", "star", "--level", "0", *options)


@pytest.fixture
def video(camtool_, tmp_path) -> Command:
    write_video(Path("a.mp4"), draw_crossing_star(4)[0])
    return lambda *options: camtool_("video", "a.mp4", "--model", "demo", *options)


SLOW = ("--method", "rise", "--option", "samples=150", "--batch-size", "2")


@pytest.mark.parametrize(("name", "unit"), [("slide", "tile"), ("video", "frame")])
def test_off_a_terminal_plain_lines_show_how_far_the_work_is(request, fast_lines, name, unit):
    result = request.getfixturevalue(name)(*SLOW)
    assert result.code == 0
    assert "\r" not in result.err + result.out
    assert "\x1b" not in result.err + result.out
    lines = [line for line in result.err.splitlines() if not line.startswith("Loading")]
    known = r"(Opening|Searching|Explaining|Stitching|Writing|Drawing) a\.(tif|mp4)(: [\d,]+ of [\d,]+ \w+, | \.\.\. )"
    assert [line for line in lines if not re.match(known, line)] == []
    explaining = [line for line in lines if line.startswith("Explaining")]
    assert any(re.search(rf"[1-9]\d* of \d+ {unit}s, pass [\d,]+ of 150, \d+ s", line) for line in explaining)
    assert "Explaining" not in result.out


@pytest.mark.parametrize("name", ["slide", "video"])
def test_quiet_commands_print_nothing(request, fast_lines, name):
    result = request.getfixturevalue(name)("--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize("name", ["slide", "video"])
def test_on_a_terminal_of_80_columns_the_bar_fits(request, monkeypatch, name):
    screen = StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=screen, force_terminal=True, width=80))
    assert request.getfixturevalue(name)(*SLOW).code == 0
    rows = re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue()))
    assert any("Explaining" in row and "pass" in row for row in rows)
    assert [row for row in rows if len(row) > 80] == []


def test_the_stages_of_a_slide_are_all_told(slide, monkeypatch):
    activities = []
    original = FileProgress.__call__

    def follow(self: FileProgress, count: int, *stage: Stage):
        activities.extend(each.activity for each in stage if each and each.unit)
        return original(self, count, *stage)

    monkeypatch.setattr(FileProgress, "__call__", follow)
    assert slide().code == 0
    assert activities == ["Searching", "Explaining", "Stitching", "Writing", "Drawing", "Writing"]
