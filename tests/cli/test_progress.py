"""Progress: estimates, lines off a terminal, the bar at 80 columns, loops inside explanations."""

from __future__ import annotations

import re
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import camtool
from camtool.cli import terminal
from camtool.cli.progress import run_progress, run_summary
from camtool.cli.progress.run_progress import Estimate, Passes, RunProgress
from camtool.cli.terminal import show_activity
from camtool.hooks import chunks
from camtool.progress import Stage, format_duration, send_progress
from camtool.runs.job_list import Job
from camtool.runs.result_writer import Failure, Success
from camtool.runs.stored_files import ManifestLine
from tests.cli.test_commands import posix, start_process, write_photo
from tests.cli.test_stopped_runs import ODD, SHOWN
from tests.test_progress import list_progress_threads

pytestmark = pytest.mark.usefixtures("told_estimates")


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (420, "7 min"), (5340, "89 min"), (9000, "2.5 h")]
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_the_time_of_a_long_run_is_estimated_from_the_second_batch():
    clock = Clock()
    estimate = Estimate(1200, 8, Passes(clock), clock)
    clock.now += 30  # the engine compiles
    estimate.add_batch(8)
    assert (estimate.describe(), estimate.rest) == ("", None)
    clock.now += 2.8
    estimate.add_batch(8)
    # 30 s, and 1,192 photos in 0.35 s each
    assert estimate.total == pytest.approx(30 + 1192 * 0.35)
    assert estimate.rest == pytest.approx(1184 * 0.35)
    assert estimate.describe() == "About 7 min for 1,200 photos."


def test_photos_of_an_earlier_run_take_no_time():
    clock = Clock()
    estimate = Estimate(1000, 8, Passes(clock), clock)
    estimate.leave_out(900)
    for _ in range(2):
        clock.now += 8
        estimate.add_batch(8)
    assert estimate.total == pytest.approx(100)
    assert estimate.describe() == "About 2 min for 100 photos."


def test_only_new_photos_are_new_to_the_progress():
    jobs = [Job(Path(f"{number}.png"), Path(str(number))) for number in range(3)]
    progress = RunProgress(3, 2, is_quiet=True)
    with progress:
        progress.note_batch(jobs[1:], 0.5)
        assert [progress.advance(job) for job in jobs] == [None, 0.25, 0.25]


def test_a_short_run_has_no_estimate():
    clock = Clock()
    estimate = Estimate(24, 8, Passes(clock), clock)
    for _ in range(2):
        clock.now += 2
        estimate.add_batch(8)
    assert estimate.describe() == ""


def test_the_passes_of_a_slow_first_batch_give_a_lower_limit():
    clock = Clock()
    passes = Passes(clock)
    estimate = Estimate(16, 8, passes, clock)
    loop = passes(8000)
    clock.now += 4
    loop.update(200)
    assert estimate.describe() == ""  # too early
    clock.now += 4
    loop.update(200)
    # A twentieth of a loop took 8 s, and there are at least two.
    assert estimate.least == pytest.approx(320)
    assert estimate.describe() == "At least 5 min for 16 photos."
    assert passes.describe() == "pass 400 of 8,000"
    loop.update(7600)
    clock.now += 152
    loop.close()
    second = passes(8000)
    second.update(4000)
    clock.now += 80
    # One and a half loops took 240 s; there are two in each batch at the least.
    assert estimate.least == pytest.approx(240 / 1.5 * 2 * 2)
    estimate.add_batch(8)
    assert (estimate.least, passes.describe()) == (None, "")


def test_nested_loops_are_counted_by_their_parts():
    clock = Clock()
    passes = Passes(clock)
    outer = passes(4)
    outer.update(1)
    inner = passes(100)
    inner.update(50)
    assert passes.done == pytest.approx(1.5 / 4)
    assert passes.describe() == "part 2 of 4, pass 50 of 100"
    inner.close()
    outer.close()
    assert (passes.done, passes.describe()) == (1, "")


MANY_PASSES = [name for name, method in camtool.METHODS.items() if "many" in method.cost]
# Few passes are enough. At the last layer, the linear head spares these two their passes.
OPTIONS = {
    "rise": {"samples": 40, "chunk": 8},
    "iscam": {"samples": 2},
    "sscam": {"samples": 2},
    "opticam": {"steps": 5},
    "smoothgrad": {"samples": 5},
    "ablationcam": {"layer": "features.1"},
    "reciprocam": {"layer": "features.1"},
}


# drise needs a detector and loops as rise does; vitreciprocam needs a vision transformer.
@pytest.mark.parametrize("name", [name for name in MANY_PASSES if name not in ("drise", "vitreciprocam")])
def test_each_slow_method_tells_its_passes(name):
    """A method that runs the model many times without telling would be silent, however long it takes."""
    counts: list[int] = []
    passes = Passes()

    def follow(count: int, *stage: Stage):
        counts.append(count)
        return passes(count, *stage)

    photo = np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8)
    with send_progress(follow):
        camtool.explain(camtool.load("demo"), photo, method=name, **OPTIONS.get(name, {}))
    assert max(counts) > 1


def test_a_listener_gets_all_passes_and_the_end_of_a_loop_that_breaks():
    passes = Passes()
    with send_progress(passes):
        for _ in chunks.iterate_chunks(10, 4):
            assert passes.describe().startswith("pass ")
        assert passes.done == 1
        with pytest.raises(ZeroDivisionError):
            [1 / part.start for part in chunks.iterate_chunks(10, 4)]
    assert passes.describe() == ""


# --------------------------------------------------------------------------------------------- off a terminal


@pytest.fixture
def told_estimates(monkeypatch) -> None:
    """Tell the time of long runs: other tests compare all of standard error, also on a machine under load."""
    monkeypatch.setattr(run_progress, "_LONG_RUN", 60.0)


@pytest.fixture
def fast_lines(monkeypatch) -> None:
    monkeypatch.setattr(terminal, "SECONDS_BEFORE_FIRST_LINE", 0.02)
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.02)


def test_off_a_terminal_plain_lines_show_that_a_thing_goes_on(fast_lines, capsys):
    shown, deadline = "", time.monotonic() + 60
    with show_activity(f"Loading {ODD}"):
        while shown.count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
            shown += capsys.readouterr().err
    lines = (shown + capsys.readouterr().err).splitlines()
    assert len(lines) >= 2
    assert [line for line in lines if not re.fullmatch(rf"{re.escape(f'Loading {SHOWN}')} \.\.\. \d+ s", line)] == []
    with show_activity("Loading", is_quiet=True):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_off_a_terminal_a_run_prints_plain_lines_to_stderr(fast_lines, explained, photos):
    result = explained("-r", "--method", "rise", "--option", "samples=3000", "--batch-size", 1)
    lines = result.err.splitlines()
    assert result.code == 0
    assert lines
    assert all(
        re.match(r"(Listing photos|Loading .*) \.\.\. \d+ s$|Explaining: \d of 3 photos", line) for line in lines
    )
    assert any("pass " in line for line in lines)
    assert "\x1b" not in result.err + result.out
    assert "Explaining" not in result.out
    assert explained("-r", "--quiet", "--method", "rise", "--option", "samples=3000", "--out", "two").err == ""


def test_lines_end_with_the_block(fast_lines, capsys):
    with pytest.raises(ZeroDivisionError), show_activity("Loading"):
        1 / 0  # noqa: B018
    assert not list_progress_threads()


# --------------------------------------------------------------------------------------------------- a line a photo


def make_line(**fields) -> ManifestLine:
    known = {
        "image": "a",
        "method": "gradcam",
        "layer": "l",
        "label": "boxer",
        "index": 1,
        "score": 1.0,
        "probability": 0.9412,
        "warnings": (),
        "box": None,
        "files": {},
    }
    return ManifestLine(**{**known, **fields})


def show(markup: str) -> str:
    screen = StringIO()
    Console(file=screen, width=1000, emoji=False, highlight=False).print(markup)
    return screen.getvalue().rstrip("\n")


def test_a_line_tells_size_labels_methods_and_time():
    lines = [make_line(method=method, label=label) for label in ("boxer", "pug") for method in ("gradcam", "layercam")]
    job = Job(Path("photos/dog.jpg"), Path("dog"))
    assert show(run_summary.build_success_line(Success(job, lines, size=(375, 500)), "image 3/120", 0.01234)) == (
        "image 3/120 photos/dog.jpg: 375x500 boxer 94.1%, pug 94.1%, gradcam, layercam, 12.3ms"
    )
    text = make_line(probability=None, label="a dog")
    assert show(run_summary.build_success_line(Success(job, [text]), "image 1/1", None)) == (
        "image 1/1 photos/dog.jpg: a dog, gradcam"
    )
    wrong = make_line(correct=False, predicted_label="pug", true_label="[b]tabby")
    assert show(run_summary.build_success_line(Success(job, [wrong], correct=False), "image 1/1", None)) == (
        "image 1/1 photos/dog.jpg: boxer 94.1%, gradcam, wrong, true: [b]tabby, predicted: pug"
    )
    assert show(run_summary.build_success_line(Success(job, [], size=(2, 3), correct=True), "image 1/1", None)) == (
        "image 1/1 photos/dog.jpg: 2x3 right"
    )


def test_a_failure_has_a_line():
    failure = Failure(Job(Path("bad.png"), Path("bad")), "bad.png: the file is \x1b[2Jempty")
    assert show(run_summary.build_failure_line(failure, "image 2/3")) == (
        "image 2/3 bad.png: failed: the file is \\x1b[2Jempty"
    )


@pytest.mark.parametrize("folder", ["deep/" * 30, "ordner-ü/" * 20, "[b]/" * 40])
def test_a_line_fits_the_terminal_by_a_shorter_path(monkeypatch, folder):
    monkeypatch.setattr(terminal, "out", Console(force_terminal=True, width=80))
    success = Success(Job(Path(folder, "dog.jpg"), Path("dog")), [make_line()], size=(375, 500))
    shown = show(run_summary.build_success_line(success, "image 3/120", 0.0123))
    assert len(shown) <= 80
    assert shown.startswith("image 3/120 …")
    assert shown.endswith(f"{folder[-4:]}dog.jpg: 375x500 boxer 94.1%, gradcam, 12.3ms")


@posix
def test_on_a_terminal_of_80_columns_nothing_is_wider_and_nothing_is_interpreted(tmp_path):
    import fcntl
    import os
    import pty
    import struct
    import termios

    odd = write_photo(tmp_path / "photos" / f"{ODD}{'x' * 60}.png")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    args = ("photos", "--model", "tests.helpers.tiny_models:tiny")
    process = start_process(*args, cwd=tmp_path, stdout=theirs, stderr=theirs)
    os.close(theirs)
    drawn = b""
    with os.fdopen(ours, "rb", buffering=0) as screen:
        try:
            while part := screen.read(4096):
                drawn += part
        except OSError:  # Linux raises this when the other end is closed
            pass
    assert process.wait(timeout=120) == 0
    text = drawn.decode()
    assert odd.exists()
    assert "\u202e" not in text
    assert "\x9b" not in text
    assert "\x1b[31m\n" not in text
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    # Notes are one line each, so that they can be searched; the terminal wraps them.
    rows = [row for row in re.split(r"[\r\n]+", plain) if row and not row.startswith("Note: ")]
    assert any(row.startswith("image 1/1 …") for row in rows), "lines are the default on a terminal"
    assert any("Explaining" in row for row in rows)
    assert [row for row in rows if len(row) > 80] == []
