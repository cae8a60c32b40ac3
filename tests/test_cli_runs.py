"""Runs on the command line that are stopped, that meet another run or a full disk, or files that are no photos."""

# ruff: noqa: F401, F811  fixtures of the other file are used by name

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from test_cli import (
    SLOW,
    TINY,
    Net,
    assert_refused,
    camtool_,
    explained,
    files,
    lines,
    opened,
    photos,
    posix,
    subprocess_of,
)

from camtool import cli


@posix
@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_only_whole_files(photos, tmp_path, sent, code):
    for number in range(200):
        shutil.copy(photos / "a.png", photos / f"copy{number}.png")
    process = subprocess_of("photos", "--model", SLOW, "--batch-size", 2, "--save", "overlay,raw", cwd=tmp_path)
    out, deadline = tmp_path / "out", time.monotonic() + 60
    while len([*out.glob("copy*.png")]) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(sent)
    told, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    assert re.search(r"Stopped after \d+ of 202 photos", told)
    found = lines(out)
    assert 1 <= len(found) < 202
    assert [path.name for path in out.rglob("*") if path.name.startswith(".") or path.suffix in (".part", ".tmp")] == []
    assert {file for line in found for file in line["files"].values()} <= {*files(out)}
    for name in files(out):
        np.load(out / name) if name.endswith(".npy") else opened(out / name)


@posix
def test_a_second_run_into_the_same_folder_is_refused_and_the_first_goes_on(explained, photos, tmp_path):
    process = subprocess_of("photos", "--model", SLOW, "--batch-size", 1, cwd=tmp_path)
    lock, deadline = tmp_path / "out" / ".explanations.jsonl.lock", time.monotonic() + 120
    while not lock.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    try:
        assert_refused(explained(), "'out'", f"process {process.pid} on", "--out")
    finally:
        process.send_signal(signal.SIGCONT)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
    assert len(lines(tmp_path / "out")) == 2
    assert not lock.exists()


def test_a_stop_signal_is_handled_during_the_run_only_and_in_the_main_thread_only(explained, photos, monkeypatch):
    found = []
    monkeypatch.setattr(Net, "forward", lambda self, x: [found.append(signal.getsignal(signal.SIGTERM)), 1 / 0])
    before = signal.getsignal(signal.SIGTERM)
    explained()
    assert before not in found != []
    assert signal.getsignal(signal.SIGTERM) == before
    found.clear()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(explained).result()
    assert {*found} == {before}


def test_a_stop_signal_that_is_ignored_stays_ignored(explained, photos):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with cli._stopping_at_sigterm():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_full_disk_is_an_error_that_names_the_file(explained, photos, monkeypatch):
    explained("photos/a.png")
    earlier = lines()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert_refused(explained(), "out/a.gradcam.", "No space left on device")
    assert lines() == earlier


@posix
def test_what_is_skipped_is_told_in_a_line_at_the_end(explained, photos):
    (photos / "gone.png").symlink_to("none")
    for number in range(6):
        os.mkfifo(photos / f"pipe{number}.png")
    said = explained()
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == (
        "Skipped: photos/gone.png (a broken link), photos/pipe0.png (a named pipe), photos/pipe1.png (a named pipe), "
        "photos/pipe2.png (a named pipe), photos/pipe3.png (a named pipe) and 2 more"
    )
    told = json.loads(explained("--json").out)
    assert told["skipped"][0] == {"path": "photos/gone.png", "reason": "a broken link"}
    assert len(told["skipped"]) == 7


# ------------------------------------------------------------------------------- names and labels from anywhere

ODD = "a\x1b[31m\nb\u202e\x9b:smile:[red]"
SHOWN = r"a\x1b[31m\nb\u202e\x9b:smile:[red]"


@pytest.fixture
def odd(photos) -> Path:
    """A photo, and labels of the tiny model, with what a terminal would obey in their names."""
    if os.name != "posix":
        pytest.skip("such names of files are POSIX's")
    Path("labels.json").write_text(json.dumps([ODD, ODD + "1", ODD + "2", ODD + "3"]))
    return (photos / "a.png").rename(photos / f"{ODD}.png")


def test_names_and_labels_are_shown_and_not_obeyed(explained, odd):
    said = explained(odd, "--labels", "labels.json", "--verbose")
    assert (said.code, said.err) == (0, "")
    assert said.out.replace("\n", "").isprintable()
    first = said.out.splitlines()[0]
    assert f"/photos/{SHOWN}.png  {SHOWN}" in first
    (line,) = lines()
    assert (line["image"], line["label"][: len(ODD)]) == (str(odd), ODD)
    assert Path("out", "explanations.jsonl").read_text(encoding="utf-8").rstrip("\n").isprintable()


def test_names_in_json_are_the_names(explained, odd):
    said = explained(odd, "--labels", "labels.json", "--json")
    assert said.out.replace("\n", "").isprintable()
    assert json.loads(said.out)["explained"] == lines()


@pytest.mark.parametrize("where", ["failed", "skipped", "missing", "option", "model", "layer"])
def test_names_in_messages_are_shown_and_not_obeyed(explained, camtool_, odd, where):
    if where == "failed":
        odd.write_bytes(b"no picture")
        said = explained()
    elif where == "skipped":
        odd.unlink()
        odd.symlink_to("none")
        said = explained()
    elif where == "missing":
        said = camtool_(f"{ODD}.jpg", "--model", TINY)
    elif where == "option":
        said = explained("--option", ODD)
    elif where == "model":
        said = camtool_("photos", "--model", TINY, "--weights", f"{ODD}.pth")
    else:
        said = explained("--layer", ODD)
    told = said.out + said.err
    assert told.replace("\n", "").isprintable()
    assert r"\x1b[31m\nb\u202e\x9b" in told.replace("\\\\", "\\")
    assert ":smile:" in told
    assert "Traceback" not in told


def test_the_name_of_a_model_is_shown_while_it_is_loaded(camtool_, photos, monkeypatch):
    drawn = StringIO()
    monkeypatch.setattr(cli, "_err", Console(file=drawn, force_terminal=True, emoji=False, width=200))
    camtool_("photos", "--model", f"{ODD}:make")
    assert f"Loading {SHOWN}:make ..." in drawn.getvalue()


def test_a_message_of_several_lines_cannot_begin_a_line_of_its_own(capsys):
    with pytest.raises(SystemExit):
        cli._fail("the weights do not fit\nError: \x1b[2Jall is well")
    assert capsys.readouterr().err == "Error: the weights do not fit\n  Error: \\x1b[2Jall is well\n"
