"""Exported files give the model's logits and maps in other runtimes."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from PIL import Image
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torchvision import transforms

import camtool
from camtool.cli import app
from camtool.engines import export as module
from camtool.errors import CamtoolError
from camtool.geometry.resampling import DRAWING, draw_heat
from tests.engines.nets import Decides, Net, Unknown, build
from tests.hooks.state.test_no_trace import unchanged

SIZE = (16, 20)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(3)
    return build()


@pytest.fixture(scope="module")
def export_once(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return what exports the network into a folder of its own, once for all tests that only read the file."""

    @cache
    def export(name: str, *methods: str, **options: Any) -> Path:
        with unchanged(net):
            return camtool.export(net, tmp_path_factory.mktemp("exported") / name, methods, size=SIZE, **options)

    return export


def run(path: Path, x: Tensor, classes: list[int], *outputs: str) -> list[Any]:
    session = onnxruntime.InferenceSession(path)
    return session.run(outputs or None, {"images": x.numpy(), "target_class": np.array(classes)})


def assert_equal_maps(maps: Any, results: list[camtool.Explanation]) -> None:
    for ours, result in zip(maps, results, strict=True):
        assert result.raw.max() > 0
        np.testing.assert_allclose(ours, result.raw, rtol=0, atol=1e-4 * np.abs(result.raw).max())


METHODS = ["gradcam", "gradcam++", "xgradcam", "hirescam", "layercam", "gradcam-elementwise", "odam", "zoomcam", "fem"]


@pytest.mark.parametrize("method", METHODS)
def test_each_class_and_the_top_class(method: str, net: nn.Module, export_once: Callable[..., Path]) -> None:
    x, path = torch.randn(3, 3, *SIZE), export_once("net.onnx", *METHODS)
    logits, maps = run(path, x, [4, -1, 2], "logits", "maps" if method == METHODS[0] else f"maps_{method}")
    np.testing.assert_allclose(logits, net(x).detach(), atol=1e-4)
    assert_equal_maps(maps, camtool.explain(net, x, [4, None, 2], method=method))


def test_the_exporter_writes_nothing(
    net: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("INFO"):  # of the root, as a program sets it that shows its own lines
        camtool.export(net, tmp_path / "net.onnx", size=SIZE)
    assert [record.name for record in caplog.records if not record.name.startswith("camtool")] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(fx.config, "do_not_emit_stack_traces"), reason="this torch always looks them up")
def test_lines_of_code_are_not_looked_up_while_a_model_is_exported(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    def list_lines() -> list[str | None]:
        graph = make_fx(forward, record_stack_traces=True)(torch.ones(1)).graph
        return [node.stack_trace for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)]

    assert list_lines() != [None]
    lines: list[str | None] = []
    monkeypatch.setattr(module, "_export", lambda *args, **options: lines.extend(list_lines()))
    camtool.export(net, tmp_path / "net.onnx", size=SIZE)
    assert lines == [None]
    assert list_lines() != [None], "code of the user that is traced later has them"


def test_maps_at_the_size_of_the_images_are_placed_by_centers(demo: camtool.Loaded, tmp_path: Path) -> None:
    path = camtool.export(demo, tmp_path / "demo.onnx", "layercam", resize=True)
    x = torch.rand(2, 3, 128, 128)
    _, maps = run(path, x, [3, 3])
    assert maps.shape == (2, 128, 128)
    (result, _) = camtool.explain(demo, x, 3, method="layercam")
    assert result.centers is not None
    expected = draw_heat(torch.from_numpy(result.raw)[None], result.centers, (128, 128))[0]
    np.testing.assert_allclose(maps[0], expected, rtol=0, atol=1e-4 * float(expected.max()))


def test_a_layer_in_the_middle_and_options(net: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(1, 3, *SIZE)
    path = camtool.export(net, tmp_path / "net.onnx", "layercam", net.block.norm, size=SIZE)  # type: ignore[arg-type, union-attr]
    assert_equal_maps(run(path, x, [1])[1], camtool.explain(net, x, 1, method="layercam", layer="block.norm"))
    with pytest.raises(CamtoolError, match="no option 'sample'"):
        camtool.export(net, tmp_path / "other.onnx", sample=3)


def test_the_metadata_tell_what_the_file_is(demo: camtool.Loaded, tmp_path: Path) -> None:
    base, as_in_timm = demo.transform, transforms.Normalize(torch.tensor([0.5, 0.25, 0.5]), torch.tensor(0.5))
    of_tensors = dataclasses.replace(demo, transform=transforms.Compose([base, as_in_timm]))
    with pytest.warns(module.ExportWarning, match="does not say how photos are prepared"):  # they are normalized twice
        path = camtool.export(of_tensors, tmp_path / "new" / "demo.onnx")
    about = json.loads(onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["camtool"])
    assert about["method"] == "gradcam"
    assert about["layer"] == camtool.explain(demo, torch.rand(3, 128, 128)).layer
    assert about["labels"] == list(demo.labels or ())
    assert about["input_shape"] == [3, 128, 128]
    assert (about["version"], about["drawing"]) == (camtool.__version__, DRAWING)
    assert about["preprocessing"]
    assert (about["mean"], about["std"]) == ([0.5, 0.25, 0.5], [0.5])


@pytest.mark.parametrize(
    ("transform", "channels", "reason"),
    [
        (camtool.preprocessing(16, mean=0, std=1), 3, ""),
        (None, 3, ""),
        (camtool.preprocessing(16, mean=0, std=1, fit="pad"), 3, "does more than resize, crop and normalize photos"),
        (lambda photo: torch.rand(3, 16, 16), 3, "does more than resize, crop and normalize photos"),
        (camtool.preprocessing(16, mean=0, std=1, channels="gray"), 1, "does not make images of three channels"),
        (camtool.preprocessing(24, mean=0, std=1), 3, "makes images of (24, 24), and the file takes (16, 16)"),
    ],
)
def test_what_the_file_cannot_say_of_the_preprocessing_has_a_reason(transform: Any, channels: int, reason: str) -> None:
    loaded = camtool.Loaded(nn.Identity(), transform)
    plain, told = module._find_preparation(loaded, torch.zeros(1, channels, 16, 16))
    assert (plain is not None) == (transform is not None and not reason)
    assert told.startswith(reason)
    assert bool(told) == bool(reason)


def test_preprocessing_that_is_left_out_is_warned_of(net: nn.Module, tmp_path: Path) -> None:
    padded = camtool.Loaded(net, camtool.preprocessing(16, mean=0, std=1, fit="pad"))
    with pytest.warns(module.ExportWarning, match=r"net\.pt2 does not say how photos are prepared, as .*pads") as told:
        path = camtool.export(padded, tmp_path / "net.pt2")
    assert (len(told), told[0].filename) == (1, __file__)
    files: dict[str, Any] = {"camtool": ""}
    torch.export.load(path, extra_files=files)
    about = json.loads(files["camtool"])
    assert about["preparation"] is None
    assert "fit='pad'" in about["preprocessing"]


class Folds(nn.Module):
    """A network some of whose tensors have several rows for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.first(x).relu().flatten(0, 1).mul(2).unflatten(0, (-1, 8))
        return self.head(self.second(rows).relu().mean((2, 3)))


def test_the_first_axis_is_called_batch_wherever_it_occurs(tmp_path: Path) -> None:
    torch.manual_seed(3)
    folds = Folds().eval()
    path = camtool.export(folds, tmp_path / "net.onnx", size=SIZE)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    graph = onnx.load(path).graph
    names = [
        {axis.dim_param for value in values for axis in value.type.tensor_type.shape.dim if axis.dim_param}
        for values in ([*graph.input, *graph.output], graph.value_info)
    ]
    assert names == [{"batch"}, {"batch", "8*batch"}]
    session = onnxruntime.InferenceSession(path)
    assert [port.shape[0] for port in (*session.get_inputs(), *session.get_outputs())] == ["batch"] * 4
    x = torch.randn(3, 3, *SIZE)
    assert_equal_maps(run(path, x, [-1] * 3)[1], camtool.explain(folds, x))


def test_one_image_at_a_time(net: nn.Module, tmp_path: Path) -> None:
    path = camtool.export(net, tmp_path / "net.onnx", size=SIZE, dynamic_batch=False)
    assert onnxruntime.InferenceSession(path).get_inputs()[0].shape == [1, 3, *SIZE]
    x = torch.randn(1, 3, *SIZE)
    assert_equal_maps(run(path, x, [-1])[1], camtool.explain(net, x))


def test_other_formats(net: nn.Module, export_once: Callable[..., Path]) -> None:
    x, classes = torch.randn(3, 3, *SIZE), [1, 0, 3]
    expected = camtool.explain(net, x, classes)
    ir, pt2 = export_once("net.xml", "gradcam", resize=False), export_once("net.pt2", "gradcam")
    compiled = openvino.Core().compile_model(ir, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert_equal_maps(compiled([x.numpy(), np.array(classes)])[1], expected)
    assert json.loads(openvino.Core().read_model(ir).get_rt_info("camtool").astype(str))["method"] == "gradcam"
    program = torch.export.load(pt2).module()
    assert_equal_maps(program(x, torch.tensor(classes))[1].detach().numpy(), expected)
    logits, maps = program(x, torch.tensor([1, -2, 5]))
    torch.testing.assert_close(logits, net(x))
    assert maps.isnan().flatten(1).tolist() == [[row != 0] * maps[0].numel() for row in range(3)]
    with pytest.raises(AssertionError, match=r"images\.size\(\)\[2\] == 16"):
        program(torch.randn(3, 3, 24, 20), torch.tensor(classes))
    files = [sorted(each.name for each in path.parent.iterdir()) for path in (ir, pt2)]
    assert files == [["net.bin", "net.xml"], ["net.pt2"]]


class OneLogit(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :1]


def test_a_single_logit_has_two_classes(tmp_path: Path) -> None:
    net, x = build(OneLogit), torch.randn(3, 3, *SIZE)
    path = camtool.export(net, tmp_path / "net.onnx", "gradcam-elementwise", size=SIZE)
    expected = camtool.explain(net, x, [0, 1, None], method="gradcam-elementwise")
    for ours, result in zip(run(path, x, [0, 1, -1])[1], expected, strict=True):
        np.testing.assert_allclose(ours, result.raw, rtol=0, atol=1e-5)


class Planes(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.stem(x)))


def test_what_cannot_be_exported_is_refused_with_the_reason(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for model, method, reason in (
        (build(Unknown), "gradcam", "no operator for prims.bessel_j0"),
        (build(Decides), "gradcam", "torch.export fails"),
        (build(Planes), "gradcam", "it is no classifier"),
        (net, "scorecam", "the method reads 'inputs'"),
        (net, "rivalcam", "the method reads 'targets'"),
        (net, "eigencam", "no operator for aten._linalg_eigh"),
    ):
        with pytest.raises(CamtoolError, match=re.escape(reason)):
            camtool.export(model, path, method, size=SIZE)
    with pytest.raises(CamtoolError, match=r"path's suffix must be one of '.onnx'"):
        camtool.export(net, tmp_path / "net.tflite")
    with pytest.raises(CamtoolError, match=r"model.cpu\(\).float\(\)"):
        camtool.export(build().double(), path, size=SIZE)
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_differs_is_not_written(net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def run(self, arrays: Any) -> Any:
            return [np.zeros((2, 5), np.float32), np.zeros((2, 8, 10), np.float32)]

    monkeypatch.setattr(module, "open_session", lambda *_: Wrong())
    (tmp_path / "net.onnx").write_text("older")
    with pytest.raises(CamtoolError, match=r"the logits differ by \S+ in onnxruntime, where the largest is"):
        camtool.export(net, tmp_path / "net.onnx", size=SIZE)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["older"]


def test_missing_packages_are_named(net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda _: False)
    with pytest.raises(CamtoolError, match=r"pip install 'camtool\[openvino\]'"):
        camtool.export(net, tmp_path / "net.xml")


@pytest.fixture(scope="module")
def resized(demo: camtool.Loaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that the documentation's example reads."""
    return camtool.export(demo, tmp_path_factory.mktemp("resized") / "explained.onnx", resize=True)


@pytest.mark.parametrize("size", [(200, 150), (150, 220)])
def test_the_example_of_the_documentation_puts_the_heat_in_its_place_without_torch(
    size: tuple[int, int], demo: camtool.Loaded, resized: Path, tmp_path: Path
) -> None:
    text = (Path(camtool.__file__).parents[1] / "docs" / "engines.md").read_text(encoding="utf-8")
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "InferenceSession" in code)
    assert len([line for line in example.splitlines() if line]) <= 25
    shutil.copy(resized, tmp_path)
    pixels = np.full((size[1], size[0], 3), (90, 120, 30), np.uint8)
    pixels[60:90, 85:115] = (250, 30, 40)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", quality=100)
    code = example + "\nprint(label)\nimport sys\nassert not {'torch', 'camtool'} & {*sys.modules}\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = camtool.explain(demo, tmp_path / "photo.jpg")
    assert done.stdout.strip() == result.label
    with Image.open(tmp_path / "heat.png") as heat:
        assert heat.size == size
        assert find_center(np.asarray(heat)) == pytest.approx(find_center(result.heatmap), abs=1)


def find_center(heat: Any) -> tuple[float, float]:
    """Return the center of the heat in pixels, (x, y)."""
    heat = heat.astype(float)
    rows, columns = np.indices(heat.shape) + 0.5
    return float((columns * heat).sum() / heat.sum()), float((rows * heat).sum() / heat.sum())


@pytest.mark.parametrize("resize", [False, True])
def test_a_class_that_does_not_exist_has_a_map_of_nan(resize: bool, export_once: Callable[..., Path]) -> None:
    x, classes = torch.randn(5, 3, *SIZE), [1, -2, 5, 99, -1]
    is_known = np.array([True, False, False, False, True])
    method = "fem" if resize else "gradcam"  # one without gradients, too
    path, ir = (export_once(name, method, resize=resize) for name in ("net.onnx", "net.xml"))
    compiled = openvino.Core().compile_model(ir, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for logits, maps in (run(path, x, classes), [*compiled([x.numpy(), np.array(classes)]).values()]):
        assert logits.shape[1] == 5
        assert np.isfinite(logits).all()
        assert (np.isnan(maps) == ~is_known[:, None, None]).all()
    for start in (lambda: run(path, torch.randn(1, 3, 24, 20), [1]), lambda: compiled([np.zeros((1, 3, 24, 20)), [1]])):
        with pytest.raises(Exception, match=r"(?i)invalid dimensions|incompatible|shape"):
            start()


def test_a_single_logit_has_no_third_class(tmp_path: Path) -> None:
    path = camtool.export(build(OneLogit), tmp_path / "net.onnx", size=SIZE)
    maps = run(path, torch.randn(4, 3, *SIZE), [0, 1, 2, -2])[1]
    assert np.isnan(maps).all((1, 2)).tolist() == [False, False, True, True]


def test_the_command_writes_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["camtool", "export", *arguments])
        with pytest.raises(SystemExit) as stopped:
            app.main()
        return int(stopped.value.code or 0)

    path = tmp_path / "demo.xml"
    path.with_suffix(".bin").write_bytes(b"weights of another model")
    assert command("demo", str(path)) == 2
    assert "demo.bin exists" in capsys.readouterr().err
    assert command("demo", str(path), "--overwrite") == 2  # --overwrite is about the file and its own weights
    assert "demo.bin exists without demo.xml" in " ".join(capsys.readouterr().err.split())
    path.with_suffix(".bin").unlink()
    assert command("demo", str(path), "--resize", "--method", "layercam") == 0
    said = capsys.readouterr()
    assert ("Exported" in said.out, "Note" in said.err) == (True, False)
    assert command("demo", str(path)) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert command("demo", str(path), "--overwrite", "--fixed-batch", "--size", "96x128", "--fit", "pad") == 0
    assert "Note: " in (said := capsys.readouterr().err)
    assert "demo.xml does not say how photos are prepared" in said
    assert list(openvino.Core().read_model(path).input("images").shape) == [1, 3, 96, 128]


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".xml"])
def test_a_file_names_no_folder_of_this_machine(net: nn.Module, tmp_path: Path, suffix: str) -> None:
    camtool.export(net, tmp_path / f"net{suffix}", size=(64, 64))
    package, library = Path(camtool.__file__).parents[1], Path(torch.__file__).parents[1]
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        if suffix == ".pt2":
            with ZipFile(file) as archive:
                content = b"".join(map(archive.read, archive.namelist()))
        for folder in (package, library, tmp_path, Path.home()):
            assert str(folder).encode() not in content


@pytest.mark.parametrize(("name", "beside"), [("net.xml", "net.bin"), ("net.onnx", "net.onnx.data")])
def test_weights_of_another_file_stay(net: nn.Module, tmp_path: Path, name: str, beside: str) -> None:
    (tmp_path / beside).write_bytes(b"weights of another model")
    with pytest.raises(CamtoolError, match=rf"{beside} exists without {name}.*move it"):
        camtool.export(net, tmp_path / name, size=(64, 64))
    assert [path.name for path in tmp_path.iterdir()] == [beside]
    assert (tmp_path / beside).read_bytes() == b"weights of another model"


def test_several_methods_have_an_output_each(net: nn.Module, tmp_path: Path) -> None:
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    classes = torch.tensor([1, 2])
    path = camtool.export(net, tmp_path / "net.onnx", ["layercam", "gradcam"], size=(64, 64))
    session = onnxruntime.InferenceSession(path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["camtool"])
    assert about["outputs"] == {"layercam": "maps", "gradcam": "maps_gradcam"}
    for method, output in about["outputs"].items():
        (maps,) = session.run([output], {"images": images.numpy(), "target_class": classes.numpy()})
        for one, image, index in zip(maps, images, classes.tolist(), strict=True):
            expected = camtool.explain(net, image, index, method=method).raw
            np.testing.assert_allclose(one, expected, atol=1e-4 * np.abs(expected).max())
    with pytest.raises(CamtoolError, match="no method"):
        camtool.export(net, tmp_path / "none.onnx", [], size=(64, 64))
