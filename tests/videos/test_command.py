"""The command ``camtool video``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from camtool.cli import app
from tests.videos.video_files import draw_crossing_star, read_video, write_video


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "a.mp4", draw_crossing_star(4)[0])

    def run(*args: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["camtool", *args])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


def test_the_command_writes_a_video_and_goes_on_after_a_failure(run_command, tmp_path: Path) -> None:
    (tmp_path / "b.mp4").write_text("no video")
    said = run_command("b.mp4", "a.mp4", "--model", "demo", "--target", "star", "--every", "2", "--out", "here")
    assert said.code == 1
    assert "Failed: video 'b.mp4' cannot be read" in said.err
    assert "2 of 4 frames explained in " in said.out
    assert "Saved to here/a.gradcam.mp4" in said.out
    assert sorted(file.name for file in (tmp_path / "here").glob("[!.]*")) == ["a.gradcam.jsonl", "a.gradcam.mp4"]
    assert len(read_video(tmp_path / "here" / "a.gradcam.mp4")) == 4


def test_two_videos_of_one_name_get_two_results(run_command, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_video(tmp_path / "sub" / "a.mp4", [np.zeros((48, 64, 3), np.uint8)] * 2)
    assert run_command("video", "a.mp4", "sub/a.mp4", "--model", "demo", "--quiet").code == 0
    assert sorted(file.stem for file in (tmp_path / "out").glob("*.mp4")) == ["a-2.gradcam", "a.gradcam"]


def test_results_and_failures_are_one_list_as_json_and_an_engine_runs_the_model(run_command, tmp_path: Path) -> None:
    (tmp_path / "b.mp4").write_text("no video")
    said = run_command("b.mp4", "a.mp4", "--model", "demo", "--target", "star", "--engine", "prepared", "--json")
    assert said.code == 1
    failed, explained = json.loads(said.out)
    assert (failed["path"], "cannot be read" in failed["failure"]) == ("b.mp4", True)
    assert (explained["path"], explained["saved"]) == ("a.mp4", str(Path("out", "a.gradcam.mp4")))
    assert explained["text"] == "4 of 4 frames explained"


def test_what_does_not_fit_is_an_error_of_one_line(run_command) -> None:
    for args, words in [
        (["a.mp4", "--target", "sttar"], "Did you mean 'star'"),
        (["a.mp4", "--method", "grad-can"], "Did you mean 'gradcam'"),
        (["a.mp4", "--every", "2", "--fps", "3"], "give one of them"),
        (["a.mp4", "--out", "https://x.org/a"], "is a URL"),
        (["run", "a.mp4"], "is a video, not a photo; explain it with: camtool video a.mp4"),
        (["a.mp4", "--colormap", "tubro"], "Did you mean 'turbo'"),
    ]:
        said = run_command(*args, "--model", "demo")
        assert said.code == 2
        assert words in " ".join(said.err.split())
