"""The command ``camtool audit``: classes from folders and tables, metadata, and what is printed and written."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from PIL import Image

from camtool.cli import app
from camtool.demo.scenes import UNSEEN, draw_scene
from tests.evaluation.audit.results import build_audit, build_finding

COMMON = ("--model", "demo", "--kinds", "place", "--method", "gradcam")


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        scene = draw_scene(UNSEEN + number, classes=[number % 2])
        label = scene.objects[0].label
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene.image).save(f"photos/{label}/{number}.png")
    (tmp_path / "labels.csv").write_text("image,label\n0.png,arrow\n1.png,cross\n2.png,arrow\n3.png,cross\n")
    (tmp_path / "sites.csv").write_text("image,patient\narrow/0.png,a\n2.png,a\n1.png,b\n")

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["camtool", "audit", *args])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


@pytest.mark.parametrize("truth", ["imagefolder", "labels.csv"])
def test_few_photos_get_a_sentence_and_files(run_command, tmp_path, truth):
    finished = run_command("photos", *COMMON, "--truth", truth, "--metadata", "sites.csv", "--group", "patient")
    assert finished.code == 0
    assert finished.out.startswith("No finding at q ≤ 0.02, which does not mean that there is no shortcut.")
    content = json.loads((tmp_path / "audit/audit.json").read_text())
    assert content["not_tested"][0] == (
        "2 classes with fewer than 8 independent images in a half: 'arrow', 'cross'. Give 16 or more of each."
    )
    assert content["notes"] == [
        "4 images are 3 independent groups: near-duplicates, bursts and what the group column joins count as one."
    ]
    assert content["command"].startswith("camtool audit photos --model demo")
    assert "## Not tested" in (tmp_path / "audit/audit.md").read_text()


def test_json_is_printed(run_command):
    finished = run_command("photos/arrow", *COMMON, "--json")
    assert json.loads(finished.out)["findings"] == []
    assert finished.err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--truth", "nothing.csv"), "--truth nothing.csv: there is no such file"),
        (("--metadata", "photos/arrow/0.png"), "--metadata photos/arrow/0.png is no text"),
        (("--group", "patient"), "metadata has no column 'patient'"),
        (("--fail-on", "shortcuts"), "--fail-on must be one of 'finding'"),
        (("--kinds", "patches"), "Did you mean 'patch'"),
    ],
)
def test_wrong_options_are_named(run_command, options, message):
    finished = run_command("photos/arrow", *COMMON[:2], *options)
    assert finished.code == 2
    assert message in " ".join(finished.err.split())


def test_photos_without_a_class_are_named(run_command, tmp_path):
    (tmp_path / "labels.csv").write_text("image,label\n0.png,arrow\n")
    finished = run_command("photos", *COMMON, "--truth", "labels.csv")
    assert finished.code == 2
    assert "has no row for photos" in " ".join(finished.err.split())


@pytest.mark.parametrize(("verdict", "code"), [(None, 1), ("shortcut", 1), ("unsure", 1), ("object", 0)])
def test_the_exit_code_tells_of_findings(run_command, monkeypatch, tmp_path, verdict, code):
    found = build_audit(build_finding(verdict=verdict))
    monkeypatch.setattr("camtool.evaluation.audit.audit", lambda *arguments, **options: found)
    assert run_command("photos/arrow", *COMMON).code == 0
    finished = run_command("photos/arrow", *COMMON, "--fail-on", "finding")
    assert finished.code == code
    assert finished.out.splitlines()[-1] == "Pictures, and what was not tested: audit/index.html"
    assert "camtool audit photos/arrow --model demo" in (tmp_path / "audit/index.html").read_text(encoding="utf-8")
    assert run_command("photos/arrow", *COMMON, "--fail-on", "finding", "--json").code == code


def test_masks_are_found_by_the_paths_of_the_photos(run_command, tmp_path):
    """Few photos have no findings, so the function is asked."""
    from camtool.cli.audit_command import _find_masks

    (tmp_path / "masks/arrow").mkdir(parents=True)
    Image.new("L", (128, 128)).save("masks/arrow/0.gif")
    photos = sorted((tmp_path / "photos").rglob("*.png"))
    masks = _find_masks(tmp_path / "masks", photos, tmp_path / "photos")
    assert masks == [tmp_path / "masks/arrow/0.gif", None, None, None]
    assert run_command("photos", *COMMON, "--truth", "imagefolder", "--masks", "masks").code == 0
    Image.new("L", (128, 128)).save("masks/arrow/0.png")
    assert (
        "has two files for arrow/0, 0.gif and 0.png"
        in run_command("photos", *COMMON, "--truth", "imagefolder", "--masks", "masks").err
    )
    (tmp_path / "empty").mkdir()
    finished = run_command("photos/arrow", *COMMON, "--masks", "empty")
    assert "has no mask of any photo; name them as the photos are, e.g. 0.png" in finished.err


def test_the_demo_ends_with_the_sentence_of_an_audit(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["camtool", "demo", "--scenes", "1", "--out", str(tmp_path), "--json"])
    with pytest.raises(SystemExit):
        app.main()
    sentence = json.loads(capsys.readouterr().out)["audit"]
    assert sentence.startswith("10 of 10 'heart' images: the lower right corner; covering it changes 100 % (72 to 100)")
