"""A command without the library that it needs says what to install, before it computes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from camtool.arguments.libraries import import_library
from camtool.cli import app
from camtool.demo.camnet import CamNet
from camtool.errors import ColormapError, ImageError, MetricError, ModelError
from camtool.evaluation.watch import Watch
from camtool.models import load
from camtool.models.sources.hugging_face import _read_transform
from camtool.rendering.colormaps import get_palette
from camtool.slides.readers import open_slide

MODEL = ("--model", "demo")


def make_watch() -> Watch:
    """Return a watch of another process than the first, which looks at nothing."""
    return Watch(None, 1, None, None, 0.05, None, 0)


@pytest.mark.parametrize(
    ("library", "package", "command"),
    [
        ("gradio", "camtool[app]", ("app",)),
        ("starlette", "camtool[app]", ("app",)),
        ("mcp", "camtool[mcp]", ("mcp", ".")),
        ("matplotlib", "camtool[figures]", ("kernels", *MODEL)),
        ("matplotlib", "camtool[figures]", ("features", "photo.png", *MODEL)),
        ("matplotlib", "camtool[figures]", ("evaluate", ".", *MODEL)),
        ("av", "camtool[video]", ("video", "photo.png", *MODEL)),
        ("tifffile", "camtool[slides]", ("slide", "photo.tif", "--target", "star", *MODEL)),
        ("pyarrow", "camtool[parquet]", ("report", "shards")),
        ("pillow_heif", "camtool[heic]", ("photo.heic", *MODEL)),
        ("timm", "camtool[timm]", ("layers", "timm:resnet18")),
        ("transformers", "camtool[hf]", ("layers", "hf:microsoft/resnet-18")),
        ("ultralytics", "camtool[ultralytics]", ("layers", "ultralytics:yolo11n.pt")),
        ("open_clip", "open_clip_torch", ("layers", "open_clip:RN50")),
    ],
)
def test_the_extra_is_named(monkeypatch, capsys, tmp_path, library, package, command):
    monkeypatch.chdir(tmp_path)
    pixels = Image.fromarray(np.zeros((64, 64, 3), np.uint8))
    pixels.save("photo.png")
    pixels.save("photo.tif")
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/part.parquet").write_bytes(b"PAR1")
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(CamNet, "forward", lambda *arguments: pytest.fail("it computed"))
    monkeypatch.setattr(sys, "argv", ["camtool", *command])
    with pytest.raises(SystemExit) as end:
        app.main()
    said = capsys.readouterr()
    assert end.value.code != 0
    assert f"pip install {package}" in (said.out + said.err).replace("'", "").replace("\n", " ")


def test_a_library_that_lacks_another_one_is_told_from_one_that_is_absent(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "whole_library.py").write_text("import absent_part\n")
    with pytest.raises(ImageError, match=r"^photos need it: pip install it \(No module named 'absent_part'\)$"):
        import_library("whole_library", "photos need it", "it", ImageError)
    with pytest.raises(ImageError, match=r"^photos need it: pip install it$"):
        import_library("absent_part", "photos need it", "it", ImageError)


def test_a_library_of_another_version_is_not_called_absent(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "old_library.py").write_text("from math import absent_function\n")
    (tmp_path / "old_user.py").write_text("from old_user import absent_function\n")
    for library in ("old_library", "old_user"):
        with pytest.raises(ImageError, match=r"pip install it \(cannot import name 'absent_function'"):
            import_library(library, "photos need it", "it", ImageError)


def test_the_cause_of_the_error_is_that_of_the_import() -> None:
    with pytest.raises(ImageError, match=r"pip install it$") as refusal:
        import_library("absent_library", "photos need it", "it", ImageError)
    assert isinstance(refusal.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("library", "use", "error"),
    [
        ("timm", lambda: load("timm:resnet18"), ModelError),
        ("lightning", lambda: make_watch().make_lightning_callback(), MetricError),
        ("pytorch_lightning", lambda: make_watch().make_lightning_callback(), MetricError),
        ("transformers", lambda: make_watch().make_hugging_face_callback(), MetricError),
        ("openslide", lambda: open_slide(__file__), ImageError),
        ("matplotlib", lambda: get_palette("RdBu_r"), ColormapError),
    ],
)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("int.absent", r"its import fails: AttributeError: .* no attribute 'absent'"),
        ("import absent_part", "No module named 'absent_part'"),
    ],
)
def test_a_broken_library_is_not_called_absent(monkeypatch, tmp_path, library, use, error, code, reason):
    for name in [name for name in sys.modules if name.partition(".")[0] in {library, "lightning"}]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").write_text(code, encoding="utf-8")
    with pytest.raises(error, match=rf"pip install .* \({reason}\)$"):
        use()


def test_without_lightning_the_callback_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in {"lightning", "pytorch_lightning"}]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MetricError, match=r"^the callback needs Lightning: pip install lightning$"):
        make_watch().make_lightning_callback()


def test_an_image_processor_that_needs_a_library_is_not_called_absent(monkeypatch):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'camtool[hf]'")

    def from_pretrained(*_, **__):
        raise ImportError("ViTImageProcessor requires the Absent library.\nInstall it.")

    monkeypatch.setattr(transformers.AutoImageProcessor, "from_pretrained", from_pretrained)
    with pytest.raises(ModelError, match=r"'hf:org/name' needs another package: ViTImageProcessor .* Absent library\."):
        _read_transform("org/name")
