"""What is refused before the work begins, and the command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torchvision import transforms

import camtool
from camtool.app.web_page.building import FILES
from camtool.cli import app
from camtool.demo.camnet import load_bundled_model
from camtool.errors import CamtoolError
from camtool.models import Loaded


def test_what_a_page_cannot_show_is_refused_first(tmp_path: Path) -> None:
    demo = load_bundled_model("demo")
    with pytest.raises(CamtoolError, match=r"an \.html file, got"):
        camtool.export_page(demo, tmp_path / "page.zip")
    with pytest.raises(CamtoolError, match="exists"):
        camtool.export_page(demo, tmp_path)
    with pytest.raises(CamtoolError, match="needs a transform"):
        camtool.export_page(demo.model, tmp_path / "page")
    gray = transforms.Compose([transforms.Grayscale(3), transforms.Resize((64, 64)), transforms.ToTensor()])
    with pytest.raises(CamtoolError, match="more than resize, crop and normalize"):
        camtool.export_page(Loaded(demo.model, gray, demo.labels), tmp_path / "page")
    with pytest.raises(CamtoolError, match=r"camtool\.export_page"):
        camtool.export(demo, tmp_path / "page.html")
    assert not (tmp_path / "page").exists()


@pytest.mark.slow
def test_the_command_writes_a_page_and_replaces_nothing_else(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["camtool", "export", "demo", *arguments])
        with pytest.raises(SystemExit) as stopped:
            app.main()
        shown = capsys.readouterr()
        return int(stopped.value.code or 0), " ".join((shown.out + shown.err).split())

    page = tmp_path / "page"
    arguments = str(page), "--method", "xgradcam", "--runtime", str(runtime)
    code, shown = command(*arguments)
    assert (code, "python -m http.server" in shown) == (0, True)
    assert {file.name for file in page.iterdir()} == FILES
    (page / "notes.txt").write_text("mine", encoding="utf-8")
    sample = "--sample", str(page / "sample.png")
    for words, given in (
        ("--overwrite", arguments),
        ("notes.txt", (*arguments, "--overwrite")),
        ("--resize is for files", (str(tmp_path / "other"), "--resize")),
        ("--sample is for pages", (str(tmp_path / "a.onnx"), *sample)),
    ):
        code, shown = command(*given)
        assert (code, words in shown) == (2, True), shown
    (page / "notes.txt").unlink()
    assert command(*arguments, "--overwrite")[0] == 0
