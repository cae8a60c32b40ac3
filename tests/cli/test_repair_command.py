"""``camtool repair``: audit, repair and audit again, of the demo's model that cheats, by the command line alone."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool.cli import app
from camtool.demo.camnet import prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.demo.shapes import LABELS
from camtool.evaluation.repair import running
from camtool.testing import assert_no_shortcuts

CLASSES = ("heart", "star", "arrow")
FAST = ("--kinds", "place", "--method", "gradcam", "--controls", "9")


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for number in range(60):
        label = CLASSES[number % 3]
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        scene = draw_scene(UNSEEN + 2_200_000 + number, classes=[label], mark=label == "heart")
        Image.fromarray(scene.image).save(f"photos/{label}/{number}.png")

    def run(command, *args, model=("--model", "demo-cheat")):
        arguments = [command, "photos", *model, "--truth", "imagefolder", *args]
        monkeypatch.setattr(sys, "argv", ["camtool", *arguments])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


def find_answers(model, labels, *, mark, seed):
    scenes = [draw_scene(seed + number, classes=[label], mark=mark).image for number, label in enumerate(labels)]
    with torch.no_grad():
        answers = model(prepare_images(np.stack(scenes))).argmax(1).tolist()
    return np.array([LABELS[answer] for answer in answers])


def test_the_bundled_cheat_is_mended_by_the_command_line(run_command, tmp_path):
    assert run_command("audit", *FAST).code == 0
    finished = run_command("repair")
    assert finished.code == 0, finished.err
    assert "The model depends less on what was found." in finished.out
    assert "7 classes without images" in " ".join(finished.err.split())
    weights = ("--model", "demo-cheat", "--weights", "mended/mended.safetensors")
    assert run_command("audit", *FAST, "--out", "again", model=weights).code == 0
    assert_no_shortcuts(tmp_path / "again")
    model = camtool.load("demo-cheat", weights=tmp_path / "mended/mended.safetensors").model
    others, mixed = ["star", "arrow"] * 50, [*CLASSES] * 40
    assert (find_answers(model, others, mark=True, seed=2_300_000_000) == "heart").mean() <= 0.05
    assert (find_answers(model, ["heart"] * 100, mark=False, seed=2_100_000_000) == "heart").mean() >= 0.75
    assert (find_answers(model, mixed, mark=False, seed=2_000_000_000) == np.array(mixed)).mean() >= 0.95
    assert (find_answers(model, ["heart"] * 100, mark=True, seed=2_200_000_000) == "heart").mean() >= 0.85


def test_exit_codes_and_what_is_printed(run_command, tmp_path, monkeypatch):
    missing = run_command("repair")
    assert (missing.code, "'audit' does not exist" in " ".join(missing.err.split())) == (2, True)
    assert run_command("audit", *FAST).code == 0
    printed = run_command("repair", "--json")
    assert printed.code == 0
    content = json.loads(printed.out)
    assert content["is_better"]
    assert content["command"].startswith("camtool repair photos")
    assert json.loads((tmp_path / "mended/repair.json").read_text()) == content
    monkeypatch.setattr(running, "refit", lambda old, examples: old)
    worse = run_command("repair", "--out", "worse")
    assert (worse.code, "This is no repair" in worse.out) == (1, True)
    assert "This is no repair" in (tmp_path / "worse/index.html").read_text()
    findings = json.loads((tmp_path / "audit/audit.json").read_text())["findings"]
    verdicts = {finding["key"]: "object" for finding in findings}
    (tmp_path / "audit/verdicts.json").write_text(json.dumps(verdicts))
    nothing = run_command("repair", "--out", "nothing")
    assert (nothing.code, "the model is left alone" in nothing.out) == (0, True)
    assert not (tmp_path / "nothing").exists()
