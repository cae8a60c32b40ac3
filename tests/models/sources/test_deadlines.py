"""A deadline while a library reads a file is no error of the file."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from camtool.models import load
from camtool.models.sources import hugging_face, timm
from camtool.slides.tiff_reader import TiffReader
from tests.helpers import onnx_files


class DeadlineError(OSError):
    """As TimeoutError."""


@pytest.fixture
def let_time_run_out() -> Iterator[Callable[..., Any]]:
    """Return a function to put in the place of one of a library; a signal handler raises in it."""

    def handle(*_: object) -> None:
        raise DeadlineError

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda *_, **__: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def test_of_a_model_file(tmp_path: Path, let_time_run_out, monkeypatch: pytest.MonkeyPatch) -> None:
    path = onnx_files.write_by_hand(tmp_path / "net.onnx")
    monkeypatch.setattr("onnxruntime.InferenceSession", let_time_run_out)
    with pytest.raises(DeadlineError):
        load(str(path))


def test_of_the_conversion_of_a_model_file(tmp_path: Path, let_time_run_out, monkeypatch: pytest.MonkeyPatch) -> None:
    path = onnx_files.write_by_hand(tmp_path / "net.onnx")
    monkeypatch.setitem(sys.modules, "onnx2pytorch", SimpleNamespace(ConvertModel=let_time_run_out))
    with pytest.raises(DeadlineError):
        load(str(path), output="scores", gradients=True)


def test_of_an_image_processor(tmp_path: Path, let_time_run_out, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'camtool[test]'"
    )
    monkeypatch.setattr(transformers.AutoImageProcessor, "from_pretrained", let_time_run_out)
    with pytest.raises(DeadlineError):
        hugging_face.read_processor(tmp_path / "preprocessor_config.json")


def test_of_a_configuration_of_timm(tmp_path: Path, let_time_run_out, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("timm", reason="timm is not installed: pip install 'camtool[test]'")
    monkeypatch.setattr(library.data, "create_transform", let_time_run_out)
    with pytest.raises(DeadlineError):
        timm.build_configured_transform({"input_size": [3, 64, 64]}, tmp_path / "config.json")


def test_of_a_slide(tmp_path: Path, let_time_run_out, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed: pip install 'camtool[test]'")
    path = tmp_path / "slide.tif"
    tifffile.imwrite(path, np.zeros((256, 256, 3), np.uint8), tile=(128, 128), photometric="rgb")
    with TiffReader(str(path)) as reader, monkeypatch.context() as patch:
        patch.setattr(tifffile.FileHandle, "read", let_time_run_out)
        with pytest.raises(DeadlineError):
            reader.read(0, 0, 0, 64, 64)
    monkeypatch.setattr(tifffile, "TiffFile", let_time_run_out)
    with pytest.raises(DeadlineError):
        TiffReader(str(path))
