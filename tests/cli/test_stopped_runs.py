"""Runs that are stopped, that meet another run or a full disk, and output of names from unknown sources."""

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

from camtool.cli import exit_codes, terminal
from tests.cli.test_commands import (
    assert_refused,
    drop_progress,
    list_files,
    open_image,
    posix,
    read_lines,
    split_notes,
    start_process,
    write_photo,
)
from tests.helpers.tiny_models import SLOW, TINY, Net
from tests.runs.report.folders import read_payload


@posix
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_only_complete_files(photos, tmp_path, sent, code):
    for number in range(200):
        shutil.copy(photos / "a.png", photos / f"copy{number}.png")
    process = start_process("photos", "--model", SLOW, "--batch-size", 2, "--save", "overlay,raw", cwd=tmp_path)
    out, deadline = tmp_path / "out", time.monotonic() + 300
    while len([*out.glob("copy*.png")]) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(sent)
    out_text, err = process.communicate(timeout=60)
    assert (process.returncode, split_notes(drop_progress(err))[0]) == (code, "")
    assert re.search(r"Stopped after \d+ of 202 photos", out_text)
    found = read_lines(out)
    assert 1 <= len(found) < 202
    assert len(read_payload(out / "index.html")["ids"]) == len(found)
    assert [path.name for path in out.rglob("*") if path.name.startswith(".") or path.suffix in (".part", ".tmp")] == []
    assert {file for line in found for file in line["files"].values()} <= {*list_files(out)}
    for name in list_files(out):
        np.load(out / name) if name.endswith(".npy") else open_image(out / name)


@posix
def test_a_second_run_into_the_same_folder_is_refused_and_the_first_continues(camtool_, photos, tmp_path):
    process = start_process("photos", "--model", SLOW, "--batch-size", 1, cwd=tmp_path)
    lock, deadline = tmp_path / "out" / ".explanations.jsonl.lock", time.monotonic() + 120
    while not lock.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    try:
        second = camtool_("photos", "--model", SLOW, "--batch-size", 1)
        assert_refused(second, "'out'", f"process {process.pid} on", "--out")
    finally:
        process.send_signal(signal.SIGCONT)
    assert (split_notes(drop_progress(process.communicate(timeout=60)[1]))[0], process.returncode) == ("", 0)
    assert len(read_lines(tmp_path / "out")) == 2
    assert not lock.exists()


def test_sigterm_is_handled_only_during_a_run_in_the_main_thread(explained, photos, monkeypatch):
    found = []
    monkeypatch.setattr(Net, "forward", lambda self, x: [found.append(signal.getsignal(signal.SIGTERM)), 1 / 0])
    before = signal.getsignal(signal.SIGTERM)
    explained()
    assert before not in found != []
    assert signal.getsignal(signal.SIGTERM) == before
    found.clear()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(explained, "--overwrite").result()
    assert {*found} == {before}


def test_an_ignored_sigterm_stays_ignored(explained, photos):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with exit_codes.stop_at_sigterm():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_error_for_a_full_disk_names_the_file(explained, photos, monkeypatch):
    explained()
    earlier, real = read_lines(), Path.replace
    write_photo(photos / "c.png")

    def fill(self: Path, target: Path) -> Path:
        if target.suffix == ".png":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fill)
        assert_refused(explained(), "out/c.gradcam.", "No space left on device")
    assert read_lines() == earlier
    assert explained().code == 0
    assert read_lines()[: len(earlier)] == earlier
    assert [Path(line["image"]).name for line in read_lines()] == ["a.png", "b.jpg", "c.png"]


@posix
def test_skipped_paths_are_listed_at_the_end(explained, photos):
    (photos / "gone.png").symlink_to("none")
    for number in range(6):
        os.mkfifo(photos / f"pipe{number}.png")
    result = explained()
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-2] == (
        "Skipped: photos/gone.png (a broken link), photos/pipe0.png (a named pipe), photos/pipe1.png (a named pipe), "
        "photos/pipe2.png (a named pipe), photos/pipe3.png (a named pipe) and 2 more"
    )
    summary = json.loads(explained("--json").out)
    assert summary["skipped"][0] == {"path": "photos/gone.png", "reason": "a broken link"}
    assert len(summary["skipped"]) == 7


# ------------------------------------------------------------------------------- control characters in names

ODD = "a\x1b[31m\nb\u202e\x9b:smile:[red]"
SHOWN = r"a\x1b[31m\nb\u202e\x9b:smile:[red]"


@pytest.fixture
def odd(photos) -> Path:
    """A photo, and labels of the tiny model, with control characters in their names."""
    if os.name != "posix":
        pytest.skip("such file names exist on POSIX only")
    Path("labels.json").write_text(json.dumps([ODD, ODD + "1", ODD + "2", ODD + "3"]))
    return (photos / "a.png").rename(photos / f"{ODD}.png")


def test_control_characters_in_names_and_labels_are_escaped(explained, odd):
    result = explained(odd, "--labels", "labels.json", "--verbose")
    assert (result.code, result.err) == (0, "")
    assert result.out.replace("\n", "").isprintable()
    first = result.out.splitlines()[0]
    assert f"/photos/{SHOWN}.png: 20x28 {SHOWN}" in first
    (line,) = read_lines()
    assert (line["image"], line["label"][: len(ODD)]) == (str(odd), ODD)
    assert Path("out", "explanations.jsonl").read_text(encoding="utf-8").rstrip("\n").isprintable()


def test_json_holds_names_unchanged(explained, odd):
    result = explained(odd, "--labels", "labels.json", "--json")
    assert result.out.replace("\n", "").isprintable()
    assert json.loads(result.out)["explained"] == read_lines()


@pytest.mark.parametrize("where", ["failed", "skipped", "missing", "option", "model", "layer"])
def test_control_characters_in_messages_are_escaped(explained, camtool_, odd, where):
    if where == "failed":
        odd.write_bytes(b"no picture")
        result = explained()
    elif where == "skipped":
        odd.unlink()
        odd.symlink_to("none")
        result = explained()
    elif where == "missing":
        result = camtool_(f"{ODD}.jpg", "--model", TINY)
    elif where == "option":
        result = explained("--option", ODD)
    elif where == "model":
        result = camtool_("photos", "--model", TINY, "--weights", f"{ODD}.pth")
    else:
        result = explained("--layer", ODD)
    shown = result.out + result.err
    assert shown.replace("\n", "").isprintable()
    assert r"\x1b[31m\nb\u202e\x9b" in shown.replace("\\\\", "\\")
    assert ":smile:" in shown
    assert "Traceback" not in shown


def test_control_characters_in_the_loading_message_are_escaped(camtool_, photos, monkeypatch):
    drawn = StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=drawn, force_terminal=True, emoji=False, width=200))
    camtool_("photos", "--model", f"{ODD}:make")
    assert f"Loading {SHOWN}:make ..." in drawn.getvalue()


def test_further_lines_of_a_message_are_indented(capsys):
    with pytest.raises(SystemExit):
        exit_codes.exit_with_error("the weights do not fit\nError: \x1b[2Jall is well")
    assert capsys.readouterr().err == "Error: the weights do not fit\n  Error: \\x1b[2Jall is well\n"
