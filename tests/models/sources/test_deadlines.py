"""A deadline while a library reads a file, downloads one or computes is no error of the file."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from torch import nn

from camtool.app.web_page import building as runtime
from camtool.cli import demo_and_doctor_commands
from camtool.errors import Forgive, ForwardError, RaiseAs, raise_interrupt
from camtool.evaluation.audit.split import read_capture_time
from camtool.inputs.formats.dicom_series import are_of_one_series
from camtool.inputs.image_files import read_image
from camtool.models import build_untrained, load
from camtool.models.sources import hugging_face, open_clip, timm
from camtool.models.weights import find_file_kind, read_state
from camtool.rendering.image_writing import encode_image
from camtool.runs.cluster.cluster_run import _check_reachable
from camtool.runs.run_folder.hashes import hash_photo
from camtool.slides.readers import TiffReader
from tests.helpers import onnx_files


class DeadlineError(OSError):
    """As TimeoutError."""


@pytest.fixture
def let_time_run_out() -> Callable[..., Any]:
    """Return a function to put in the place of one of a library; a handler raises in it.

    It is called as Python calls a signal handler, with the frame that it interrupts. For a real signal see
    ``tests/hooks/test_signal_handlers.py``.
    """

    def handle(number: int, interrupted: FrameType) -> None:
        raise DeadlineError

    return lambda *_, **__: handle(signal.SIGALRM, sys._getframe())


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


NET = nn.Module()
NET.name_or_path = "org/name"  # type: ignore[assignment]
OF_TRANSFORMERS = type("Net", (nn.Module,), {"__module__": "transformers.models.vit", "name_or_path": "org/name"})
PICTURE = np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("replaced", "use"),
    [
        ("torchvision.models.get_model", lambda: load("alexnet")),
        ("timm.create_model", lambda: load("timm:test_resnet")),
        ("timm.create_model", lambda: build_untrained("timm:test_resnet")),
        ("open_clip.create_model", lambda: load("open_clip:ViT-B-32/openai")),
        ("open_clip.get_tokenizer", lambda: open_clip._find_named_tokenizer("ViT-B-32")(["a cat"])),
        ("transformers.AutoConfig.from_pretrained", lambda: load("hf:org/name")),
        ("transformers.AutoTokenizer.from_pretrained", lambda: hugging_face._build_tokenizer(NET, "org/name")(["a"])),
        ("transformers.AutoTokenizer.from_pretrained", lambda: hugging_face._read_tokenizer("org/name")),
        (
            "transformers.AutoProcessor.from_pretrained",
            lambda: hugging_face.HuggingFaceSource().find_processor(OF_TRANSFORMERS()),
        ),
        ("ultralytics.YOLO", lambda: load("ultralytics:yolo11n.yaml")),
        ("torch.load", lambda: read_state(__file__)),
        ("zipfile.ZipFile", lambda: find_file_kind(Path(__file__))),
        ("subprocess.run", lambda: runtime._download(Path("kept"))),
    ],
)
def test_of_a_model(let_time_run_out, monkeypatch: pytest.MonkeyPatch, replaced: str, use: Callable[[], Any]) -> None:
    library = replaced.partition(".")[0]
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'camtool[test]'")
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(replaced, let_time_run_out)
    with pytest.raises(DeadlineError):
        use()


@pytest.mark.parametrize(
    ("replaced", "use"),
    [
        ("socket.create_connection", lambda path: read_image("http://127.0.0.1:9/photo.png")),
        ("PIL.ImageFile.ImageFile.load", lambda path: read_image(path)),
        ("PIL.Image.Image.save", lambda path: encode_image(PICTURE)),
        ("camtool.runs.run_folder.hashes.hash_file", lambda path: hash_photo(path)),
        ("socket.create_connection", lambda path: _check_reachable("127.0.0.1:9")),
        ("camtool.explain", lambda path: demo_and_doctor_commands._test_device("cpu")),
        ("PIL.Image.open", lambda path: read_capture_time(path)),
        ("camtool.inputs.formats.dicom_series._read_place", lambda path: are_of_one_series(path, path)),
    ],
)
def test_of_anything_else(
    tmp_path: Path, let_time_run_out, monkeypatch: pytest.MonkeyPatch, replaced: str, use: Callable[[Path], Any]
) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(encode_image(PICTURE))
    monkeypatch.setattr(replaced, let_time_run_out)
    with pytest.raises(DeadlineError):
        use(path)


def test_of_what_is_forgiven(let_time_run_out) -> None:
    with Forgive(OSError, ValueError):
        raise FileNotFoundError
    with pytest.raises(KeyError), Forgive(OSError):
        raise KeyError
    with pytest.raises(DeadlineError), Forgive(OSError):
        let_time_run_out()


def test_of_what_is_raised_as_another_error(let_time_run_out) -> None:
    fault = FileNotFoundError("gone")
    with pytest.raises(ForwardError) as raised, RaiseAs(lambda error: ForwardError(f"it is {error}"), OSError):
        raise fault
    assert str(raised.value) == "it is gone"
    assert raised.value.__cause__ is fault
    with pytest.raises(KeyError), RaiseAs(ForwardError, OSError):
        raise KeyError
    with pytest.raises(FileNotFoundError), RaiseAs(ForwardError, OSError, unless=(FileNotFoundError,)):
        raise fault
    with pytest.raises(DeadlineError), RaiseAs(ForwardError, OSError):
        let_time_run_out()


def test_that_urllib_wraps_without_a_cause(let_time_run_out) -> None:
    def request() -> None:
        try:
            let_time_run_out()
        except OSError as error:
            raise URLError(error)  # noqa: B904  as in urllib

    with pytest.raises(URLError) as raised:
        request()
    with pytest.raises(DeadlineError):
        raise_interrupt(raised.value)


def test_that_the_caller_handles_is_none_of_what_fails_then(let_time_run_out) -> None:
    def fail() -> ValueError:
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            raise ValueError
        return raised.value

    try:
        let_time_run_out()
    except DeadlineError:
        error = fail()
        raise_interrupt(error)
    assert isinstance(error.__context__, DeadlineError)
