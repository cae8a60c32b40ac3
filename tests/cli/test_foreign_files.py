"""Each command refuses to replace a file that camtool did not write, before it computes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from camtool.cli import app
from camtool.demo.camnet import CamNet
from camtool.demo.scenes import UNSEEN, draw_scene
from tests.slides.slide_files import write_slide
from tests.videos.video_files import draw_crossing_star, write_video

MODEL = ("--model", "demo")
AUDIT = ("audit", "photos", "--kinds", "place", "--method", "gradcam")
DIFF = ("diff", "demo", "demo", "photos")
EVALUATE = ("evaluate", "photos", "--method", "gradcam", "--metric", "insertion")


def run(monkeypatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["camtool", *args])
    with pytest.raises(SystemExit) as end:
        app.main()
    return end.value.code


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Image.fromarray(draw_scene(UNSEEN, classes=["star"]).image).save("photos/a.png")
    write_video(tmp_path / "v.mp4", draw_crossing_star(2)[0])
    write_slide(tmp_path / "s.tif", np.full((500, 600, 3), 200, np.uint8), levels=2, mpp=0.25)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("audit.json", (*AUDIT, *MODEL)),
        ("audit.md", (*AUDIT, *MODEL)),
        ("index_files/mine.jpg", (*AUDIT, *MODEL)),
        ("diff.json", DIFF),
        ("diff.md", DIFF),
        *((f"leaderboard.{suffix}", (*EVALUATE, *MODEL)) for suffix in ("csv", "json", "md", "png")),
        ("s/heat.tif", ("slide", "s.tif", "--target", "star", "--level", "0", *MODEL)),
        ("s/slide.json", ("slide", "s.tif", "--target", "star", "--level", "0", *MODEL)),
        ("v.gradcam++.mp4", ("video", "v.mp4", "--method", "Grad-CAM++", *MODEL)),
        ("v.gradcam.jsonl", ("video", "v.mp4", *MODEL)),
        ("overview.png", ("demo", "--scenes", "1")),
        ("scenes/mine.png", ("demo", "--scenes", "1")),
        ("a.gradcam.star.png", ("photos", "--method", "gradcam", "--target", "star", *MODEL)),
        ("kernels.png", ("kernels", *MODEL)),
        ("features.png", ("features", "photos/a.png", "--one-page", "--layer", "stem.0", *MODEL)),
    ],
)
def test_a_file_of_the_user_stays(folder, monkeypatch, capsys, name, command):
    path = folder / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    if command[0] not in (
        "features",
        "photos",
    ):  # they know the names of their files when the class and layers are known
        monkeypatch.setattr(CamNet, "forward", lambda *arguments: pytest.fail("it computed"))
    assert run(monkeypatch, *command, "--out", "out") != 0
    assert Path(name).parts[0] in capsys.readouterr().err.replace("\n", "")
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        # One image is too few for a test of any cue, which exit code 3 says; the files are written.
        ((*AUDIT, *MODEL), 3),
        (DIFF, 0),
        ((*EVALUATE, *MODEL), 0),
        (("video", "v.mp4", *MODEL), 0),
        (("kernels", *MODEL), 0),
    ],
    ids=["audit", "diff", "evaluate", "video", "kernels"],
)
def test_what_camtool_wrote_is_written_again(folder, monkeypatch, command, code):
    for _ in range(2):
        assert run(monkeypatch, *command, "--out", "out", "--quiet") == code


def test_pictures_of_the_user_are_no_looks_of_a_training(folder, demo):
    import camtool

    path = folder / "out" / "step-00000000.png"
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.warns(UserWarning, match="no labels"):
        watch = camtool.watch(demo, ["photos/a.png"], out="out")
    with pytest.warns(UserWarning, match="those of this one are in"):
        watch.start()
    assert path.read_text() == "mine"
    assert (folder / "out" / "run-2" / path.name).is_file()
