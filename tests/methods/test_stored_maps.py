"""Files that ``camtool.export`` wrote, read back: the map in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from numpy.testing import assert_allclose

import camtool
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import MethodError
from camtool.targets import Contrast

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'camtool[test]'")

PHOTOS = [draw_scene(UNSEEN + seed).image for seed in (22, 31)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "explained.onnx"
    camtool.export(camtool.load("demo"), path, method=["layercam", "gradcam"])
    return path


@pytest.mark.parametrize("method", ["gradcam", "layercam"])
@pytest.mark.parametrize("target", [None, 3])
def test_the_map_of_the_file_is_that_of_the_model(file: Path, method: str, target: int | None) -> None:
    pairs = [
        camtool.explain(model, PHOTOS, target, method=method)
        for model in (camtool.load(str(file)), camtool.load("demo"))
    ]
    for stored, own in zip(*pairs, strict=True):
        assert stored.method == f"{method} of the file"
        assert (stored.index, stored.label) == (own.index, own.label)
        assert_allclose(stored.heatmap, own.heatmap, atol=2e-3)


def test_without_a_method_any_map_of_the_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "explained.onnx"
    camtool.export(camtool.load("demo"), path, method="layercam", resize=True)
    assert camtool.explain(camtool.load(str(path)), PHOTOS[0]).method == "layercam of the file"
    with pytest.raises(MethodError, match="has no gradients, which method 'gradcam\\+\\+' needs"):
        camtool.explain(camtool.load(str(path)), PHOTOS[0], method="gradcam++")


def test_the_file_explains_classes_alone(file: Path) -> None:
    with pytest.raises(MethodError, match="the file holds maps of class scores alone"):
        camtool.explain(camtool.load(str(file)), PHOTOS[0], Contrast(1, 2))


def test_batch_size_limits_the_rows(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = camtool.load(str(file)), []
    run = model.model.program.run
    monkeypatch.setattr(
        model.model.program, "run", lambda fed, outputs: (rows.append(len(fed["images"])), run(fed, outputs))[1]
    )
    camtool.explain(model, PHOTOS, [[1, 2]] * 2, batch_size=1)
    assert max(rows) == 1
