"""camtool.js beside Python: preparation, placement and drawing, value by value."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tarfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from scipy.spatial import cKDTree  # type: ignore[import-untyped]
from skimage.filters import threshold_otsu
from torch import nn
from torchvision import transforms

import camtool
from camtool.demo.camnet import load_bundled_model
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.plain_transforms import PlainTransform, find_plain_transform
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.rendering.colormaps import get_palette
from camtool.rendering.overlay import blend
from camtool.rendering.regions import find_contours
from camtool.rendering.views import Photo

NODE = shutil.which("node")
LIBRARY = files("camtool.app.web_page") / "assets" / "camtool.js"
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node.js: apt-get install nodejs")

_MAIN = """
import * as library from 'LIBRARY';
import {readFileSync} from 'node:fs';
const {photo, steps, palette} = JSON.parse(readFileSync(0, 'utf-8'));
const decode = (text) => new Uint8Array(Buffer.from(text, 'base64'));
const pixels = {...photo, pixels: new Uint8ClampedArray(decode(photo.pixels))};
const encode = (values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');
const results = steps.map(({preparation, map, description, geometry, look}) => {
  if (preparation) {
    const {tensor, geometry} = library.preparePhoto(pixels, preparation);
    return {values: encode(tensor), geometry};
  }
  if (!look) {
    const heat = new Float32Array(decode(map.values).buffer), [height, width] = map.grid;
    return {threshold: library.findThreshold(heat), lines: library.findContours(heat, height, width)};
  }
  const placed = library.placeMap(map, description, geometry, photo.height, photo.width);
  return {values: encode(placed.heat), drawn: encode(library.drawHeat(pixels, placed, decode(palette), look))};
});
console.log(JSON.stringify(results));
"""


def run(photo: Image.Image, steps: list[dict[str, Any]], folder: Path, colormap: str = "heat") -> list[dict[str, Any]]:
    """Run steps of the library in Node.js."""
    assert NODE is not None
    script = folder / "main.mjs"
    script.write_text(_MAIN.replace("LIBRARY", Path(str(LIBRARY)).as_uri()), encoding="utf-8")
    pixels = base64.b64encode(photo.convert("RGBA").tobytes()).decode()
    given = {
        "photo": {"width": photo.width, "height": photo.height, "pixels": pixels},
        "steps": steps,
        "palette": base64.b64encode(get_palette(colormap).tobytes()).decode(),
    }
    ended = subprocess.run([NODE, script], input=json.dumps(given), capture_output=True, text=True, check=True)
    results: list[dict[str, Any]] = json.loads(ended.stdout)
    return results


def decode(text: str, dtype: type) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype)


# The page keeps the order of all versions before, with which networks were trained.
PIL_13 = "Pillow 13 resizes the rows of a tall photo before its columns, which rounds otherwise"


def draw_photo(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8))


TALL = pytest.param(97, 480, marks=pytest.mark.skipif(int(PIL.__version__.partition(".")[0]) >= 13, reason=PIL_13))


@pytest.mark.parametrize(("width", "height"), [(333, 211), TALL, (1, 1), (41, 3)])
def test_photos_are_prepared_as_by_pillow(width: int, height: int, tmp_path: Path) -> None:
    half = ((0.5, 0.25, 0.125), (0.25, 0.5, 1.0))
    plains = [PlainTransform(64, None, (56, 56), name, *half) for name in ("bilinear", "bicubic", "lanczos")]
    plains += [PlainTransform(None, (47, 90), (47, 90), "bicubic", *half)]
    plains += [PlainTransform(31, None, (48, 61), "bilinear", *half)]  # with a border
    stated = camtool.preprocessing(23, mean=half[0], std=half[1])
    (as_plain,) = filter(None, [find_plain_transform(stated)])
    photo = draw_photo(width, height)
    results = run(photo, [{"preparation": plain.to_dict()} for plain in (*plains, as_plain)], tmp_path)
    for prepare, result in zip([*plains, stated], results, strict=True):
        expected = prepare(photo).numpy()
        np.testing.assert_allclose(decode(result["values"], np.float32).reshape(expected.shape), expected, atol=1e-6)
        assert result["geometry"]["box"] == pytest.approx(read_geometry(prepare, (height, width)).box, abs=1e-9)


def test_maps_are_placed_and_drawn_as_by_python(tmp_path: Path) -> None:
    photo = draw_photo(150, 101)
    base = Geometry.whole(101, 150)
    random, size, cases = np.random.default_rng(0), (64, 64), []
    for geometry in (base.resize(70).center_crop(64), base.resize(size), base.resize(48).center_crop(64)):
        for grid, offset, stride in (((4, 5), -3.0, 16.0), ((7, 7), 4.5, 9.0), ((1, 3), 32.0, 20.0)):
            axes = AxisCenters(offset, stride), AxisCenters(offset + 1, stride)
            centers = CellCenters(size, axes)
            cases.append((geometry, centers, random.normal(size=grid).astype(np.float32)))
    cases.append((base.resize(size), CellCenters.stretch((3, 3), size), np.full((3, 3), 0.3, np.float32)))
    steps = [
        {
            "map": {"values": raw.ravel().tolist(), "grid": list(raw.shape)},
            "description": {
                "centers": [
                    axis.list_centers(count).tolist() for axis, count in zip(centers.axes, raw.shape, strict=True)
                ],
                "strides": [axis.stride for axis in centers.axes],
            },
            "geometry": {"box": list(geometry.box), "size": list(geometry.size)},
            "look": {"colormap": "heat", "alpha": 0.7, "view": "overlay"},
        }
        for geometry, centers, raw in cases
    ]
    pixels = np.asarray(photo)
    for (geometry, centers, raw), result in zip(cases, run(photo, steps, tmp_path), strict=True):
        view = Photo(pixels, geometry)
        expected = view.to_heatmap(raw, centers)
        heat = decode(result["values"], np.float32).reshape(expected.shape)
        np.testing.assert_allclose(heat, expected, atol=1e-5)
        drawn = decode(result["drawn"], np.uint8).reshape(101, 150, 4)[..., :3]
        overlay = blend(pixels, expected, seen=None if geometry.sees_all else geometry.seen)
        assert np.abs(drawn.astype(int) - overlay).max() <= 1


@pytest.mark.parametrize("view", ["heatmap", "masked"])
def test_other_color_maps_and_views(view: str, tmp_path: Path) -> None:
    photo, raw = draw_photo(40, 30), np.arange(12, dtype=np.float32).reshape(3, 4)
    look = {"colormap": "turbo", "alpha": 0.5, "view": view}
    centers = {"centers": [[5.0, 15.0, 25.0], [5.0, 15.0, 25.0, 35.0]], "strides": [10.0, 10.0]}
    geometry = {"box": [0, 0, 30, 40], "size": [30, 40]}
    step = {"map": {"values": raw.ravel().tolist(), "grid": [3, 4]}, "description": centers, "geometry": geometry}
    (result,) = run(photo, [{**step, "look": look}], tmp_path, "turbo")
    heat = decode(result["values"], np.float32).reshape(30, 40)
    drawn = decode(result["drawn"], np.uint8).reshape(30, 40, 4)[..., :3].astype(int)
    palette = get_palette("turbo")
    expected = palette[np.rint(255 * heat).astype(int)] if view == "heatmap" else np.asarray(photo) * heat[..., None]
    assert np.abs(drawn - expected).max() <= 1


def test_contours_are_those_of_python(tmp_path: Path) -> None:
    random, shapes = np.random.default_rng(1), [(1, 9), (2, 2), (37, 52), (90, 41)]
    heatmaps = [random.random(shape, np.float32) for shape in shapes]
    smooth = np.asarray(Image.fromarray(random.random((7, 7), np.float32)).resize((80, 60)))
    heatmaps = [(heat - heat.min()) / np.ptp(heat) for heat in (*heatmaps, smooth, np.rint(smooth))]
    steps = [
        {"map": {"values": base64.b64encode(np.float32(heat).tobytes()).decode(), "grid": list(heat.shape)}}
        for heat in heatmaps
    ]
    for heat, result in zip(heatmaps, run(draw_photo(2, 2), steps, tmp_path), strict=True):
        otsu = threshold_otsu(heat)  # type: ignore[no-untyped-call]
        assert result["threshold"] == pytest.approx(otsu, abs=1e-9)
        outlines = find_contours(np.float32(heat), threshold=result["threshold"])
        expected = np.concatenate([np.hstack([points[:-1], points[1:]]) for points in outlines])
        lines = np.reshape(result["lines"], (-1, 4))
        for some, others in ((lines, expected), (expected, lines)):
            long = some[np.hypot(*(some[:, :2] - some[:, 2:]).T) > 0.01]
            both_ways = np.concatenate([others, others[:, [2, 3, 0, 1]]])
            assert len(long) > 0
            assert cKDTree(both_ways).query(long)[0].max() < 1e-3


_EXPLAIN = """
import * as ort from 'RUNTIME/ort.wasm.bundle.min.mjs';
import * as library from 'LIBRARY';
import {readFileSync} from 'node:fs';
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmBinary = readFileSync('RUNTIME/ort-wasm-simd-threaded.wasm');
const {photo, files} = JSON.parse(readFileSync(0, 'utf-8'));
const pixels = {...photo, pixels: new Uint8ClampedArray(Buffer.from(photo.pixels, 'base64'))};
const results = [];
for (const file of files) {
  const model = await library.openModel(ort, new Uint8Array(readFileSync(file)));
  const {index, probabilities, maps} = await library.explain(model, pixels);
  const label = library.getLabel(model.description, index);
  results.push({index, label, probability: probabilities[index], map: [...maps.hirescam.values]});
}
console.log(JSON.stringify(results));
"""


class Chooses(nn.Module):
    """A network whose output has a form of its own."""

    def __init__(self, count: int, end: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(count)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
        self.head, self.end = nn.Linear(8, count), end

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.end(self.head(self.features(images).mean((2, 3))))
        return scores


def explain_in_node(
    photo: Image.Image, paths: list[str], runtime: Path, folder: Path, library: str
) -> list[dict[str, Any]]:
    """Explain a photo by each file, with the library as a module of this name."""
    assert NODE is not None
    script = folder / "explain.mjs"
    script.write_text(_EXPLAIN.replace("LIBRARY", library).replace("RUNTIME", runtime.as_posix()), encoding="utf-8")
    pixels = base64.b64encode(photo.convert("RGBA").tobytes()).decode()
    given = {"photo": {"width": photo.width, "height": photo.height, "pixels": pixels}, "files": paths}
    ended = subprocess.run([NODE, script], input=json.dumps(given), capture_output=True, text=True, check=True)
    results: list[dict[str, Any]] = json.loads(ended.stdout)
    return results


def check_result(result: dict[str, Any], explanation: camtool.Explanation) -> None:
    assert (result["index"], result["label"]) == (explanation.index, explanation.label)
    assert result["probability"] == pytest.approx(explanation.probability, abs=1e-5)
    raw = np.asarray(result["map"], np.float32).reshape(explanation.raw.shape)
    np.testing.assert_allclose(raw, explanation.raw, atol=1e-4 * np.abs(explanation.raw).max())


def test_logits_and_probabilities_of_every_form_are_read_as_by_python(runtime: Path, tmp_path: Path) -> None:
    photo, paths, expected = draw_photo(60, 50), list[str](), list[Any]()
    transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    forms: list[tuple[int, nn.Module, list[str] | None]] = [
        (4, nn.Identity(), list("abcd")),
        (1, nn.Identity(), ["cat"]),
    ]
    forms += [(1, nn.Identity(), ["cat"]), (1, nn.Sigmoid(), ["cat"]), (5, nn.Softmax(1), list("abcde"))]
    for number, (count, end, labels) in enumerate(forms):
        loaded = camtool.Loaded(Chooses(count, end).eval(), transform, labels)
        paths.append(str(camtool.export(loaded, tmp_path / f"{number}.onnx", "hirescam", dynamic_batch=False)))
        expected.append(camtool.explain(loaded, photo, method="hirescam"))
    results = explain_in_node(photo, paths, runtime, tmp_path, Path(str(LIBRARY)).as_uri())
    for result, explanation in zip(results, expected, strict=True):
        check_result(result, explanation)


def test_the_package_for_npm_is_complete(runtime: Path, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    assert npm is not None
    source = Path(str(LIBRARY)).parent
    command = [npm, "pack", str(source), "--offline", "--silent", "--ignore-scripts"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (archive,) = tmp_path.glob("camtool-*.tgz")
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        packed.extractall(tmp_path / "node_modules", filter="data")
    assert sorted(names) == [f"package/{name}" for name in ("README.md", "camtool.js", "package.json")]
    (tmp_path / "node_modules" / "package").rename(tmp_path / "node_modules" / "camtool")
    # What the pages say about it.
    page = (Path(__file__).parents[3] / "docs" / "web-page.md").read_text(encoding="utf-8")
    assert f"`camtool.js`, {(source / 'camtool.js').stat().st_size / 1000:.0f} kB," in page
    (imported,) = re.findall(r"import \{(.*)\} from 'camtool';", (source / "README.md").read_text(encoding="utf-8"))
    code = (tmp_path / "node_modules" / "camtool" / "camtool.js").read_text(encoding="utf-8")
    assert all(f"function {name}(" in code for name in imported.split(", "))
    demo, photo = load_bundled_model("demo"), draw_photo(60, 50)
    path = camtool.export(demo, tmp_path / "model.onnx", "hirescam", dynamic_batch=False)
    (result,) = explain_in_node(photo, [str(path)], runtime, tmp_path, "camtool")
    check_result(result, camtool.explain(demo, photo, method="hirescam"))
