"""The page without a server beside Python: ``python -m benchmarks page``.

Networks with random weights are exported with several methods. The library of the page explains a photo that comes with
a Python package, in Node.js and onnxruntime-web, which run the same WebAssembly as a browser, with one thread. Its
logits and maps are compared with those of PyTorch. Its time, from the pixels of the photo to the maps, is paired with
that of the same file in ONNX Runtime in Python, prepared by Pillow, with one thread: both take turns. Times are those
of the processor, so that other work on the machine counts little. Then the sizes of a page's parts are listed.
"""

from __future__ import annotations

import base64
import gzip
import json
import statistics
import subprocess
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import torch
import torchvision
import typer
from numpy.typing import NDArray
from PIL import Image

import camtool
from benchmarks.networks import write_between
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from camtool.app.web_page.building import BINARY, CODE, GPU_BINARY, GPU_CODE, VERSION, find_runtime
from camtool.errors import CamtoolError
from camtool.geometry.plain_transforms import PlainTransform
from camtool.models import Loaded
from camtool.rendering.design.style_sheets import LOGO

NETWORKS = (
    *("mobilenet_v2", "squeezenet1_1", "resnet18", "densenet121", "efficientnet_b0", "shufflenet_v2_x1_0"),
    *("regnet_y_400mf", "mnasnet1_0", "timm:convnext_atto", "timm:vit_tiny_patch16_224", "timm:mobilenetv3_small_100"),
    "timm:ghostnet_100",
)
METHODS = (
    "gradcam",
    "gradcam++",
    "layercam",
    "hirescam",
    "xgradcam",
    "signed-gradcam",
    "activation-map",
    "gradcam-elementwise",
    "fem",
    "zoomcam",
    "odam",
)
_PHOTO = "skimage/chelsea.png"
_WARM_UP = 15
"""Runs that are not measured: the engine compiles WebAssembly a second time, in other threads, while it runs."""
_OUT = Path(__file__).with_suffix(".json")
_PAGE = Path(__file__).parents[1] / "docs" / "web-page.md"
_LIBRARY = files("camtool.app.web_page") / "assets" / "camtool.js"

_SERVICE = """
import * as ort from 'RUNTIME/CODE';
import * as library from 'LIBRARY';
import {readFileSync} from 'node:fs';
import {createInterface} from 'node:readline';
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmBinary = readFileSync('RUNTIME/BINARY');
const encode = (values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');
const readClock = () => (({user, system}) => (user + system) / 1e6)(process.cpuUsage());
const models = {};
let photo;
for await (const line of createInterface({input: process.stdin})) {
  const given = JSON.parse(line), start = readClock();
  if (given.model) {
    await models[given.model]?.session.release();
    models[given.model] = await library.openModel(ort, new Uint8Array(readFileSync(given.model)));
    photo = {...given.photo, pixels: new Uint8ClampedArray(Buffer.from(given.photo.pixels, 'base64'))};
    console.log(JSON.stringify({seconds: readClock() - start}));
    continue;
  }
  const model = models[given.use];
  const result = await library.explain(model, photo, given.index);
  const seconds = readClock() - start, again = readClock();
  library.preparePhoto(photo, model.description.preparation);
  const preparing = readClock() - again;
  const maps = Object.fromEntries(Object.entries(result.maps).map(([name, {values}]) => [name, encode(values)]));
  console.log(JSON.stringify({seconds, preparing, logits: encode(result.logits), maps}));
}
"""


class _Service:
    """The library in a process of its own that answers line by line."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        script = folder / "service.mjs"
        text = _SERVICE.replace("RUNTIME", runtime.as_uri()[7:]).replace("LIBRARY", Path(str(_LIBRARY)).as_posix())
        script.write_text(text.replace("CODE", CODE).replace("BINARY", BINARY), encoding="utf-8")
        self._process = subprocess.Popen(["node", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **given: Any) -> dict[str, Any]:
        """Return the answer to a question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main(
    network: Annotated[list[str] | None, typer.Option(help="Network; may be repeated. By default twelve.")] = None,
    turns: Annotated[int, typer.Option(help="Turns of the times.")] = 15,
    runtime: Annotated[Path | None, typer.Option(help="Folder dist of onnxruntime-web; by default by npm.")] = None,
) -> None:
    """Measure, print, and write the numbers to a JSON file."""
    torch.set_num_threads(1)
    found, photo = find_runtime(runtime), dict(read_package_photos())[_PHOTO].convert("RGB")
    result = json.loads(_OUT.read_text(encoding="utf-8")) if network and _OUT.exists() else {"rows": {}}
    result |= {"machine": describe_machine(1), "runtime": VERSION, "sizes": _measure_sizes(found)}
    with tempfile.TemporaryDirectory() as folder:
        service = _Service(Path(folder), found)
        for name in network or NETWORKS:
            result["rows"][name] = row = _measure(name, photo, service, Path(folder), turns)
            print(name, json.dumps(row), flush=True)
            _OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            write_between(_PAGE, "page", format_tables(result))
        service.close()


def _measure(name: str, photo: Image.Image, service: _Service, folder: Path, turns: int) -> dict[str, Any]:
    loaded, path = load_network(name), folder / "model.onnx"
    methods = [*METHODS]
    if not _can_export(loaded, methods, path):
        methods = [method for method in METHODS if _can_export(loaded, [method], path)]
        camtool.export(loaded, path, methods, dynamic_batch=False)
    pixels = base64.b64encode(photo.convert("RGBA").tobytes()).decode()
    picture = {"width": photo.width, "height": photo.height, "pixels": pixels}
    opening = service.ask(model=str(path), photo=picture)
    index = camtool.explain(loaded, photo).index
    first = service.ask(use=str(path), index=index)
    explained = {method: camtool.explain(loaded, photo, index, method=method).raw for method in methods}
    differences = [_compare(first["maps"][method], raw) for method, raw in explained.items()]
    with torch.no_grad():
        logits = loaded.model(loaded.transform(photo)[None])[0].numpy()
    description = json.loads(onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["camtool"])
    prepare = PlainTransform.from_dict(description["preparation"])
    optimized = _optimize(path)
    service.ask(model=str(optimized), photo=picture)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ours, preparing, before, theirs = list[float](), list[float](), list[float](), list[float]()
    for _ in range(_WARM_UP):
        service.ask(use=str(path), index=index)
    for _ in range(turns):
        answer = service.ask(use=str(path), index=index)
        before.append(service.ask(use=str(optimized), index=index)["seconds"])
        ours.append(answer["seconds"])
        preparing.append(answer["preparing"])
        start = time.process_time()
        session.run(None, {"images": prepare(photo)[None].numpy(), "target_class": np.array([index])})
        theirs.append(time.process_time() - start)
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    gains = [one / other for one, other in zip(before, ours, strict=True)]
    return {
        "methods": len(methods),
        "logits": _compare(first["logits"], logits),
        "maps": max(differences),
        "opening": round(opening["seconds"], 2),
        "first": round(first["seconds"], 3),
        "page": round(statistics.median(ours), 4),
        "preparing": round(statistics.median(preparing), 4),
        "python": round(statistics.median(theirs), 4),
        "ratio": round(statistics.median(ratios), 2),
        "optimized": round(statistics.median(gains), 2),
        "MB": round(path.stat().st_size / 1e6, 1),
    }


def _optimize(path: Path) -> Path:
    """Write the file as ONNX Runtime optimizes it, by all that does not depend on the processor."""
    options, optimized = onnxruntime.SessionOptions(), path.with_stem("optimized")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(optimized)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return optimized


def load_network(name: str) -> Loaded:
    """Return a network with random weights and its usual preprocessing."""
    torch.manual_seed(0)
    if name.startswith("timm:"):
        import timm
        from timm.data import create_transform, resolve_data_config

        model = timm.create_model(name.removeprefix("timm:")).eval()
        return Loaded(model, create_transform(**resolve_data_config(model.pretrained_cfg)), name=name)
    weights = torchvision.models.get_model_weights(name).DEFAULT
    return Loaded(torchvision.models.get_model(name, weights=None).eval(), weights.transforms(), name=name)


def _can_export(loaded: Loaded, methods: list[str], path: Path) -> bool:
    try:
        camtool.export(loaded, path, methods, dynamic_batch=False)
    except CamtoolError as error:
        print(loaded.name, *methods, error, flush=True)
        return False
    return True


def _compare(text: str, expected: NDArray[np.float32]) -> float:
    """Return the largest difference, in millionths of the largest expected value."""
    values = np.frombuffer(base64.b64decode(text), np.float32).reshape(expected.shape)
    return round(float(1e6 * np.abs(values - expected).max() / max(np.abs(expected).max(), 1e-30)), 1)


def format_tables(result: dict[str, Any]) -> str:
    """Return the table of the networks, and a sentence with the sizes of the parts."""
    mark = "<!-- numbers: benchmarks/page.json -->"
    columns = {"methods": "methods", "logits, 1e-6": "logits", "maps, 1e-6": "maps", "first, s": "first"}
    columns |= {"page, s": "page", "preparing": "preparing", "Python, s": "python", "ratio": "ratio"}
    columns |= {"optimized": "optimized", "MB": "MB"}
    lines = [mark, f"| network | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name, row in result["rows"].items():
        cells = [row[key] for key in columns.values()]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    parts = (f"{name} {sizes['MB']} ({sizes['compressed']})" for name, sizes in result["sizes"].items())
    lines += ["", f"Megabytes of the parts, in brackets compressed: {', '.join(parts)}."]
    return "\n".join(lines)


def _measure_sizes(runtime: Path) -> dict[str, dict[str, float]]:
    """Return megabytes of each part, and compressed as web servers send it."""
    assets = Path(str(_LIBRARY)).parent
    parts = {
        "runtime, WebAssembly": [runtime / BINARY],
        "runtime, JavaScript": [runtime / CODE],
        "runtime with WebGPU, WebAssembly": [runtime / GPU_BINARY],
        "runtime with WebGPU, JavaScript": [runtime / GPU_CODE],
        "camtool.js": [assets / "camtool.js"],
        "page": [
            *(assets / name for name in ("page.html", "page.css", "page.js", "worker.js")),
            *(LOGO.with_name(name) for name in ("tokens.css", "base.css", "parts.css")),
        ],
    }
    contents = {name: b"".join(path.read_bytes() for path in paths) for name, paths in parts.items()}
    return {
        name: {"MB": round(len(content) / 1e6, 3), "compressed": round(len(gzip.compress(content)) / 1e6, 3)}
        for name, content in contents.items()
    }


if __name__ == "__main__":
    typer.run(main)
