"""The command ``camtool evaluate``: its table, its files, and the forms of truth."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from camtool.cli import app
from camtool.demo.scenes import UNSEEN, draw_scene

pytest.importorskip("matplotlib")

COMMON = ("--model", "demo", "--methods", "gradcam,layercam", "--metrics", "sparsity")


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    lines = ["image,x0,y0,x1,y1"]
    for number in range(3):
        scene = draw_scene(UNSEEN + number)
        item = scene.objects[0]
        for folder in ("photos", "masks", f"sorted/{item.label}"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene.image).save(f"photos/{number}.png")
        Image.fromarray(scene.image).save(f"sorted/{item.label}/{number}.png")
        Image.fromarray(item.mask.astype(np.uint8) * 255).save(f"masks/{number}.png")
        lines.append(f"{number}.png," + ",".join(map(str, item.box)))
    (tmp_path / "boxes.csv").write_text("\n".join(lines))

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["camtool", "evaluate", *args])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


def read(folder):
    return json.loads((folder / "leaderboard" / "leaderboard.json").read_text())


def test_the_first_photos_are_evaluated_and_the_table_is_printed_as_json(run_command, tmp_path):
    said = run_command("photos", *COMMON, "--limit", "2", "--json")
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out) == read(tmp_path)
    assert json.loads(said.out)["images"] == 2


def test_the_leaderboard_is_printed_and_written(run_command, tmp_path):
    said = run_command("photos", *COMMON)
    assert said.code == 0, said.err
    assert "layercam" in said.out
    assert "sparsity ↑" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    assert {each.name for each in (tmp_path / "leaderboard").glob("[!.]*")} == {
        "checkpoint.jsonl",
        *(f"leaderboard.{kind}" for kind in ("csv", "json", "md", "png")),
    }
    assert len(read(tmp_path)["values"]["gradcam"]["sparsity"]) == 3


@pytest.mark.parametrize("truth", ["masks", "boxes.csv"])
def test_truth_is_read_from_masks_and_from_boxes(run_command, tmp_path, truth):
    metrics = "energy-in-mask,max-box-acc-v2"
    said = run_command("photos", *COMMON[:-1], metrics, "--truth", truth)
    assert said.code == 0, said.err
    values = read(tmp_path)["values"]["gradcam"]["energy-in-mask"]
    assert min(values) > 0.3


@pytest.mark.parametrize("limit", [(), ("--limit", "1")])
@pytest.mark.parametrize("truth", ["flat", "flat.csv"])
def test_what_fits_two_photos_is_refused_and_paths_tell_them_apart(run_command, tmp_path, truth, limit):
    rows = {}
    for folder, box in (("cat", (0, 0, 64, 64)), ("dog", (64, 64, 128, 128))):
        for parent in ("photos", "flat", "masks"):
            (tmp_path / "animals" / parent / folder).mkdir(parents=True)
        Image.fromarray(draw_scene(UNSEEN).image).save(f"animals/photos/{folder}/001.png")
        mask = np.zeros((128, 128), np.uint8)
        mask[box[1] : box[3], box[0] : box[2]] = 255
        Image.fromarray(mask).save(f"animals/masks/{folder}/001.gif")
        Image.fromarray(mask).save("animals/flat/001.png")
        rows[folder] = ",".join(map(str, box))
    (tmp_path / "animals/flat.csv").write_text(f"image,x0,y0,x1,y1\n001.png,{rows['cat']}\n001.png,{rows['dog']}\n")
    (tmp_path / "animals/masks.csv").write_text(
        "image,x0,y0,x1,y1\n" + "".join(f"{folder}/001.png,{row}\n" for folder, row in rows.items())
    )
    args = ("animals/photos/*/*.png", *COMMON[:-1], "energy-in-mask", *limit)
    said = run_command(*args, "--truth", f"animals/{truth}")
    assert said.code == 2
    assert "is the name of 2 photos, e.g. animals/photos/cat/001.png and" in " ".join(said.err.split())
    assert run_command(*args, "--truth", f"animals/{truth.replace('flat', 'masks')}").code == 0
    shares = read(tmp_path)["values"]["gradcam"]["energy-in-mask"]
    # The photos are the same and the quarters opposite, so shares that were equal would be those of one place.
    assert len({*shares}) == len(shares)
    assert sum(shares) <= 1


def test_folders_named_by_class_say_what_is_explained(run_command, tmp_path):
    said = run_command("sorted", *COMMON, "--truth", "imagefolder", "--metrics", "deletion")
    assert said.code == 0, said.err
    assert len(read(tmp_path)["values"]["gradcam"]["deletion"]) == 3


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ("nowhere", "there is no such folder or file"),
        ("photos/0.png", "is no text"),
        ("empty", "0.png has no mask"),
        ("short.csv", "has no column 'y1'"),
        ("wrong.csv", "holds no box"),
        ("few.csv", "has no box for 1.png"),
    ],
)
def test_truth_that_does_not_fit_is_an_error(run_command, tmp_path, truth, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.csv").write_text("image,x0,y0,x1\n0.png,1,2,3\n")
    (tmp_path / "wrong.csv").write_text("image,x0,y0,x1,y1\n0.png,1,2,3,four\n")
    (tmp_path / "few.csv").write_text("image,x0,y0,x1,y1\n0.png,1,2,3,4\n")
    said = run_command("photos", *COMMON, "--truth", truth)
    assert said.code == 2
    assert message in " ".join(said.err.split())
