"""Files that ``camtool.export`` wrote, read back: the map in the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose

import camtool
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import MethodError, ModelError
from camtool.targets import Contrast

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'camtool[test]'")

PHOTOS = [draw_scene(UNSEEN + seed).image for seed in (22, 31)]


@pytest.fixture(scope="module", params=[False, True], ids=["on the grid", "at the images' size"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "explained.onnx"
    camtool.export(camtool.load("demo"), path, method=["layercam", "gradcam"], resize=request.param)
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
        assert_allclose(stored.heatmap, own.heatmap, atol=1e-5)


def edit_description(file: Path, edit: Callable[[dict[str, Any]], None], path: Path) -> Path:
    """Write a copy of a file with another description."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'camtool[test]'")
    model = onnx.load(file)
    (entry,) = (entry for entry in model.metadata_props if entry.key == "camtool")
    description = json.loads(entry.value)
    edit(description)
    entry.value = json.dumps(description)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("outputs", None),
        ("outputs", ["maps"]),
        ("outputs", {"gradcam": "other"}),
        ("outputs", {"gradcam": "logits"}),
        ("outputs", {"gradcam": ["maps"]}),
        ("centers", None),
        ("centers", [[4.0]]),
        ("centers", [[], []]),
        ("centers", [["a"], ["b"]]),
        ("centers", [[float("nan")], [4.0]]),
        ("strides", [8.0]),
        ("strides", [0, 0]),
        ("strides", [float("inf"), 8.0]),
    ],
    ids=str,
)
def test_a_damaged_description_is_told(file: Path, tmp_path: Path, key: str, value: object) -> None:
    damaged = edit_description(file, lambda description: description.update({key: value}), tmp_path / "damaged.onnx")
    with pytest.raises(ModelError, match=r"damaged.onnx: what it says of its maps is damaged .*; export it again"):
        camtool.explain(camtool.load(str(damaged)), PHOTOS[0])


def test_without_a_method_any_map_of_the_file_is_taken(file: Path, tmp_path: Path) -> None:
    path = edit_description(file, lambda description: description["outputs"].pop("gradcam"), tmp_path / "one.onnx")
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


def test_the_file_takes_no_options(file: Path) -> None:
    with pytest.raises(MethodError, match="'gradcam of the file' has no option 'output'; known options: none"):
        camtool.explain(camtool.load(str(file)), PHOTOS[0], output="logits")
