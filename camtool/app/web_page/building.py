"""``export_page()``: a model, its explanation and a page around them, as a folder for any web server or as one file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from camtool.demo.scenes import draw_scene
from camtool.engines.export import check_format, export
from camtool.engines.graph_files import find_folder, get_first_line
from camtool.errors import CamtoolError, raise_interrupt
from camtool.geometry.plain_transforms import find_plain_transform
from camtool.inputs.image_files import ImageSource, read_image
from camtool.models import Loaded, to_loaded
from camtool.rendering.colormaps import get_default_alpha, get_palette
from camtool.rendering.design.style_sheets import encode_logo, read_design
from camtool.runs.report.page import encode_json, hash_source
from camtool.warning_codes import WARNING_KINDS

VERSION = "1.30.0"

# The files that are used: the code, and what it runs.
CODE, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"

# The same with WebGPU, for browsers whose WebAssembly can wait for promises (JSPI); others would load 10 MB more.
GPU_CODE, GPU_BINARY = "ort.jspi.bundle.min.mjs", "ort-wasm-simd-threaded.jspi.wasm"

# File → SHA-256.
_HASHES = {
    CODE: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    GPU_CODE: "07ec090355e11b342c95436db54da2d0c2bd5b1d319745bfd3337e6bdcf170ac",
    GPU_BINARY: "a54c76f86b0f0d9572380cf1c6292a7b3903716ffcbcd6b0e5c7050bf430eb93",
}

_SECONDS = 300

# The methods of a page unless the user chooses others.
METHODS = ("gradcam", "layercam", "hirescam")

_COLORMAPS = ("heat", "turbo", "viridis", "inferno", "gray")

# The warnings that need no further pass.
WARNINGS = ("constant-image", "small-part-seen", "not-finite", "zero-gradient", "constant-map", "low-rank")

_PAGE, _MODEL = "index.html", "model.onnx"

# Prefix of parts → code and binary of a runtime, and the name of its files in a page's folder.
_RUNTIMES = {"": (CODE, BINARY, "runtime"), "gpu-": (GPU_CODE, GPU_BINARY, "webgpu")}

_FILES = frozenset({_PAGE, _MODEL, "runtime.js", "runtime.wasm", "webgpu.js", "webgpu.wasm"})
_SAMPLES = re.compile(r"sample(-\d+)?\.png")


def is_page_file(name: str) -> bool:
    """Check that a file in a page's folder is one of the page, by its name."""
    return name in _FILES or _SAMPLES.fullmatch(name) is not None


# Numbers of a weight from which on it is stored in half precision.
_LEAST_HALVED = 256

_HALF_TOLERANCE = 1e-2

# Longest side of the sample in pixels.
_SAMPLE_SIDE = 640


def export_page(
    model: nn.Module | Loaded,
    path: str | PathLike[str],
    method: str | Sequence[str] = METHODS,
    layer: str | nn.Module | None = None,
    *,
    sample: ImageSource | Sequence[ImageSource] | None = None,
    runtime: str | PathLike[str] | None = None,
    half: bool = False,
    **options: Any,
) -> Path:
    """Write a page that explains a classifier in the visitor's browser: no photo leaves the device.

        camtool.export_page(model, "page")       # a folder for any web server
        camtool.export_page(model, "page.html")  # one file that opens by a double click

    The page loads nothing from elsewhere, and asks no server. Photos are prepared, explained and drawn as in Python.

    Args:
        model: A classifier for photos, or what :func:`camtool.load` returned, with a transform that resizes, crops and
            normalizes and does nothing else.
        path: A folder, or a file with the suffix ``.html``. It must not exist.
        method: The methods to choose from: formulas of activations and gradients.
        layer: The layer; by default the best one is found.
        sample: The image that the page opens with, or several to choose from; by default a generated scene.
        runtime: The folder ``dist`` of the npm package onnxruntime-web; by default it is got by ``npm pack`` once.
        half: Store weights in half precision: half the download, and maps that differ by up to 1e-2 of the peak.
        **options: Options of the methods.

    Returns:
        The path.

    Raises:
        CamtoolError: The model cannot be exported, its transform does more than a page can repeat, the runtime cannot
            be got, or the path exists.
    """
    path, loaded = Path(path), to_loaded(model)
    _check_path(path)
    check_format(Path(_MODEL))
    _check_transform(loaded)
    found = find_runtime(None if runtime is None else Path(runtime))
    samples = _read_samples(sample)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "page")
        made.mkdir()
        export(loaded, made / _MODEL, method, layer, dynamic_batch=False, **options)
        if (made / f"{_MODEL}.data").exists():
            raise CamtoolError("model: it is too large for a browser: more than 2 GB of weights.")
        if _read_description(made / _MODEL)["link"] is None:
            raise CamtoolError("model: its output is an embedding; a page shows classes with their probabilities.")
        if half:
            halve_weights(made / _MODEL)
        for sample_name, image in samples.items():
            image.save(made / sample_name)
        parts = {"model": _MODEL} | {sample_name: sample_name for sample_name in samples}
        parts |= _write_runtimes(found, made, is_single=path.suffix == ".html")
        name = loaded.name or type(loaded.model).__name__
        text = _build_page(made, parts, name, is_single=path.suffix == ".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            path.write_text(text, encoding="utf-8")
        else:
            Path(made, _PAGE).write_text(text, encoding="utf-8")
            shutil.move(made, path)
    return path


def _check_path(path: Path) -> None:
    if path.suffix not in ("", ".html"):
        raise CamtoolError(f"path: a page is a folder or an .html file, got {path}; a model alone: camtool.export.")
    if path.exists():
        raise CamtoolError(f"path: {path} exists; give another name, or delete it first.")


def _read_description(path: Path) -> dict[str, Any]:
    import onnx

    (text,) = (entry.value for entry in onnx.load(path).metadata_props if entry.key == "camtool")
    description: dict[str, Any] = json.loads(text)
    return description


def halve_weights(path: Path) -> None:
    """Store the large weights of an ONNX file in half precision; the runtime makes them float32 again as it opens it.

    Raises:
        CamtoolError: Logits or maps differ by more than 1e-2 of the largest value for an image of noise.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    before, model = _run(path), onnx.load(path)
    weights = [
        each
        for each in model.graph.initializer
        if each.data_type == TensorProto.FLOAT and np.prod(each.dims) >= _LEAST_HALVED
    ]
    nodes = []
    for weight in weights:
        values, name = numpy_helper.to_array(weight), weight.name
        largest = np.finfo(np.float16).max
        half = values.clip(-largest, largest).astype(np.float16)
        weight.CopyFrom(numpy_helper.from_array(half, f"{name}_half"))
        nodes.append(helper.make_node("Cast", [f"{name}_half"], [name], to=TensorProto.FLOAT))
    others = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *others])
    onnx.save(model, path)
    for each, exact in zip(_run(path), before, strict=True):
        difference, peak = float(np.abs(each - exact).max()), float(np.abs(exact).max())
        if not difference <= _HALF_TOLERANCE * peak:
            raise CamtoolError(f"half: results differ by {difference:.2g} where the largest is {peak:.2g}.")


def _run(path: Path) -> list[NDArray[np.float32]]:
    """Return logits and maps of a file for noise."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).normal(size=session.get_inputs()[0].shape).astype(np.float32)
    results: list[NDArray[np.float32]] = session.run(None, {"images": images, "target_class": np.array([-1])})
    return results


def _check_transform(loaded: Loaded) -> None:
    """Check that a page can repeat the transform, before the model is exported, which takes long."""
    if loaded.transform is None:
        raise CamtoolError("model: a page prepares photos itself, so it needs a transform; use camtool.load(...).")
    if find_plain_transform(loaded.transform) is None:
        raise CamtoolError(
            "model: its transform does more than resize, crop and normalize photos, which is all that a page can "
            "repeat: e.g. it pads them (fit='pad'), scales them until they cover a size that is not square, or resizes "
            "them by another rule than Pillow's bilinear, bicubic or Lanczos filter."
        )


def _read_samples(sample: ImageSource | Sequence[ImageSource] | None) -> dict[str, Image.Image]:
    """Return name of the file → image that the page opens with, not larger than a page shows it."""
    sources: Sequence[ImageSource]
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        sources = sample
    else:
        sources = [draw_scene(3, objects=2, size=512).image if sample is None else sample]
    names = ["sample.png", *(f"sample-{number}.png" for number in range(2, len(sources) + 1))]
    if not sources:
        raise CamtoolError("sample: the list is empty; give an image, or None for a generated scene.")
    return {name: read_image(source, max_side=_SAMPLE_SIDE) for name, source in zip(names, sources, strict=True)}


def _write_runtimes(source: Path, folder: Path, *, is_single: bool) -> dict[str, str]:
    """Write the scripts of the worker and what they run; return part → name of the file.

    A page of one file has WebAssembly alone, as it would be loaded with both.
    """
    parts = dict[str, str]()
    for prefix, (code, binary, name) in _RUNTIMES.items():
        if prefix and is_single:
            continue
        scripts = _wrap_runtime((source / code).read_text(encoding="utf-8")), *_read_scripts("camtool.js", "worker.js")
        (folder / f"{name}.js").write_text("\n".join(scripts), encoding="utf-8")
        shutil.copyfile(source / binary, folder / f"{name}.wasm")
        parts |= {f"{prefix}code": f"{name}.js", f"{prefix}runtime": f"{name}.wasm"}
    return parts


def _build_page(folder: Path, parts: dict[str, str], name: str, *, is_single: bool) -> str:
    """Return the page for the files in a folder; as a single page it holds them.

    The script and the style are named by their hashes in the policy, so nothing else can run but the worker, which the
    script makes of the file beside the page, and nothing is loaded but these files.
    """
    settings = {
        "files": parts,
        "samples": [part for part in parts if _SAMPLES.fullmatch(part)],
        "palettes": {name: _encode(get_palette(name).tobytes()) for name in _COLORMAPS},
        "alphas": {name: get_default_alpha(name) for name in _COLORMAPS},
        "warnings": {code: [WARNING_KINDS[code].condition, WARNING_KINDS[code].remedy] for code in WARNINGS},
    }
    blocks = [f'<script type="application/json" id="settings">{encode_json(settings)}</script>']
    if is_single:
        blocks += [
            f'<script type="text/plain" data-part="{part}">{_encode(Path(folder, name).read_bytes())}</script>'
            for part, name in parts.items()
        ]
    (script,), style = _read_scripts("page.js"), read_design("tokens.css", "base.css", "parts.css") + _read("page.css")
    values = {
        "policy": _write_policy(script, style, is_single=is_single),
        "title": html.escape(name),
        "logo": encode_logo(),
        "style": style,
        "blocks": "\n".join(blocks),
        "script": script,
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: values[match[1]], _read("page.html"))


def _read_scripts(*names: str) -> list[str]:
    """Return modules as parts of one script, which cannot import others."""
    return [re.sub(r"^(export |import .*\n)", "", _read(name), flags=re.MULTILINE) for name in names]


def _read(name: str) -> str:
    return (files("camtool.app.web_page") / "assets" / name).read_text(encoding="utf-8")


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _wrap_runtime(code: str) -> str:
    """Return the runtime's module as an object ``ort`` of a larger script, whose names do not meet those of others.

    The script is a classic one, as browsers start no module from a page of one file.
    """
    code = re.sub(r"//# sourceMappingURL=.*", "", code).replace("import.meta.url", "self.location.href")
    found = re.search(r"export\s*\{([^}]*)\};?\s*$", code)
    if found is None or "import.meta" in code:
        raise CamtoolError("runtime: its code has another form than expected.")
    pairs = [part.split(" as ") for part in found[1].split(",")]
    names = ", ".join(f"{json.dumps(pair[-1].strip())}: {pair[0].strip()}" for pair in pairs)
    return f"const ort = (() => {{\n{code[: found.start()]}\nreturn {{{names}}};\n}})();"


def _write_policy(script: str, style: str, *, is_single: bool) -> str:
    """Return a Content-Security-Policy that allows this script and style, and the files beside the page, alone."""
    rules = [
        "default-src 'none'",
        f"script-src {hash_source(script)} 'wasm-unsafe-eval'",
        f"style-src {hash_source(style)}",
        "worker-src blob:",
        "img-src blob: data:",
        "connect-src 'none'" if is_single else "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


# ----------------------------------- the runtime, onnxruntime-web: pinned, checked, and never part of the package


def find_runtime(folder: Path | None = None) -> Path:
    """Return the folder with the runtime's files.

    Args:
        folder: Where they are, e.g. ``node_modules/onnxruntime-web/dist``; by default the cache, which is filled by
            ``npm pack`` first.

    Raises:
        CamtoolError: They are not there, are others, or npm cannot get them; the message says how to get them.
    """
    if folder is not None:
        problem = _find_problem(folder)
        if problem:
            raise CamtoolError(f"runtime: {problem}; give the folder dist of onnxruntime-web {VERSION}.")
        return folder
    kept = find_folder() / f"onnxruntime-web-{VERSION}"
    if _find_problem(kept):
        _download(kept)
    return kept


def _find_problem(folder: Path) -> str:
    """Return why a folder cannot be used; empty if it can."""
    for name, expected in _HASHES.items():
        path = folder / name
        if not path.is_file():
            return f"{folder} has no file {name}"
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            return f"{path} is not that of version {VERSION}"
    return ""


def _download(kept: Path) -> None:
    """Get the package by npm, and keep its files."""
    npm = shutil.which("npm")
    advice = (
        f"The page needs onnxruntime-web {VERSION}: install npm and go online once, or give the folder dist of that "
        "package as runtime= (--runtime)."
    )
    if npm is None:
        raise CamtoolError(f"npm is not installed. {advice}")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"onnxruntime-web@{VERSION}", "--silent", "--pack-destination", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS, cwd=folder)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as files:
                for name in _HASHES:
                    content = files.extractfile(f"package/dist/{name}")
                    assert content is not None, name
                    Path(folder, name).write_bytes(content.read())
        except (OSError, ValueError, KeyError, tarfile.TarError, subprocess.SubprocessError) as error:
            raise_interrupt(error)
            reason = getattr(error, "stderr", "") or get_first_line(error)
            raise CamtoolError(f"npm pack failed: {reason.strip()} {advice}") from error
        problem = _find_problem(Path(folder))
        if problem:
            raise CamtoolError(f"npm pack: {problem}. {advice}")
        kept.mkdir(parents=True, exist_ok=True)
        for name in _HASHES:
            unfinished = kept / f"{name}.unfinished"
            shutil.copyfile(Path(folder, name), unfinished)
            unfinished.replace(kept / name)
