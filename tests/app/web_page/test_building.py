"""What is refused before the work begins, and the command."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torchvision import transforms

import camtool
from camtool.app.web_page.building import halve_weights, is_page_file
from camtool.cli import app
from camtool.demo.camnet import load_bundled_model
from camtool.demo.scenes import draw_scene
from camtool.errors import CamtoolError
from camtool.models import Loaded
from tests.cli.test_commands import Command, assert_refused, camtool_, posix

__all__ = ["camtool_"]


def test_missing_packages_are_named_before_the_runtime_is_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camtool.engines.export.is_installed", lambda _: False)
    monkeypatch.setattr("camtool.app.web_page.building.find_runtime", lambda _: pytest.fail("too early"))
    with pytest.raises(CamtoolError, match=r"pages, .* need more packages; run pip install 'camtool\[onnxruntime\]'"):
        camtool.export_page(load_bundled_model("demo"), tmp_path / "page.html")


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


@pytest.mark.parametrize("name", ["page", "page.html", pytest.param("link", marks=posix)])
def test_a_page_is_replaced_when_the_new_one_is_there(
    camtool_: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The sample may be that of the old page, which stays if there is no new one."""

    def export_page(model: Loaded, path: Path, *_: object, sample: list[Path] | None, **__: object) -> None:
        if sample is None:
            raise CamtoolError("npm is not installed.")
        content = sample[0].read_bytes()
        if path.suffix:
            path.write_bytes(content)
        else:
            path.mkdir()
            (path / "index.html").write_bytes(content)

    monkeypatch.setattr("camtool.app.web_page.building.export_page", export_page)
    path = Path(name)
    old = file = path if path.suffix else path / "index.html"
    if name == "link":
        Path("kept").mkdir()
        path.symlink_to("kept")
    elif not path.suffix:
        path.mkdir()
    if not path.suffix:
        file = path / "sample.png"
        old.write_text("old")
    file.write_text("sample")
    assert_refused(camtool_("export", "demo", name, "--overwrite"), "npm is not installed")
    assert file.read_text() == "sample"
    assert camtool_("export", "demo", name, "--overwrite", "--sample", file, "--quiet").code == 0
    assert old.read_text() == "sample"
    assert {each.name for each in tmp_path.iterdir()} == {name} | ({"kept"} if name == "link" else set())
    assert path.is_symlink() == (name == "link")


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
    photo = tmp_path / "photo.png"
    Image.new("RGB", (40, 30), "teal").save(photo)
    samples = "--sample", str(photo), "--sample", str(photo)
    arguments = str(page), "--method", "xgradcam", "--runtime", str(runtime), *samples
    code, shown = command(*arguments)
    assert (code, "python -m http.server" in shown) == (0, True)
    names = {"index.html", "model.onnx", "runtime.js", "runtime.wasm", "webgpu.js", "webgpu.wasm"}
    assert {file.name for file in page.iterdir()} == names | {"sample.png", "sample-2.png"}
    assert all(map(is_page_file, names))
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


def test_weights_in_half_precision_take_half_the_download(tmp_path: Path) -> None:
    demo, photo = load_bundled_model("demo"), draw_scene(1, size=128).image
    path = camtool.export(demo, tmp_path / "model.onnx", dynamic_batch=False)
    size, before = path.stat().st_size, run_file(path, demo, photo)
    halve_weights(path)
    assert path.stat().st_size < 0.6 * size
    after = run_file(path, demo, photo)
    for one, other in zip(after, before, strict=True):
        difference = np.abs(one - other).max() / np.abs(other).max()
        assert 0 < difference < 1e-2
    # A weight that has no place in half precision is refused, and not a silent infinity.
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))
    with torch.no_grad():
        model[0].weight.mul_(1e7)
    path = camtool.export(model.eval(), tmp_path / "large.onnx", size=(32, 32), dynamic_batch=False)
    with pytest.raises(CamtoolError, match="half: results differ"):
        halve_weights(path)


def run_file(path: Path, loaded: Loaded, photo: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
    assert loaded.transform is not None
    images = np.asarray(loaded.transform(Image.fromarray(photo)))[None]
    session = onnxruntime.InferenceSession(path)
    results: list[NDArray[np.float32]] = session.run(None, {"images": images, "target_class": np.array([-1])})
    return results
