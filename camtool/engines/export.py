"""A model with its explanation as one file, which runs without camtool and without torch."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, fx, nn

import camtool
from camtool.arguments.checks import check_choice
from camtool.arguments.explain_arguments import get_module
from camtool.engines.gradient_graphs import trace_gradients
from camtool.engines.graph_capture import Capture, capture_model, get_results
from camtool.engines.graph_files import convert_to_onnx, export_graph, lock_compiler, write_onnx
from camtool.engines.prepared import copy_for_capture
from camtool.engines.runtimes import is_installed, open_session
from camtool.engines.segments import Segment, split_at_layers
from camtool.errors import CamtoolError, NotCompilableError, RaiseAs
from camtool.evidence.evidence import GridEvidence, gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.plain_transforms import find_plain_transform
from camtool.geometry.resampling import DRAWING, draw_heat
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import find_statistics
from camtool.hooks.structures.modules import find_module_name
from camtool.hooks.structures.nested_tensors import find_tensors
from camtool.inputs.accepted_inputs import choose_example_shape
from camtool.layers.layouts import Layer
from camtool.layers.selection import find_layers
from camtool.maps import resize_to_grid, upcast
from camtool.methods import Method, MethodFunction, check_options, find_method
from camtool.models import Loaded, find_input_size, to_loaded, unwrap_layer
from camtool.outputs.class_scores import Link, find_logits, is_known_class, weigh_chosen_class
from camtool.progress import follow_step
from camtool.targets import ClassScore

# Suffix to the extra that brings the packages which write such files.
_RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino", ".pt2": None}

# Largest difference between the file's results and the model's, of the largest logit and of the map's peak. A wrong
# graph differs by far more. Usual ones differ by 1e-5; deep models with random weights by 1e-4, as they do from
# themselves in float64.
_LARGEST_GAP = 1e-3


class ExportWarning(UserWarning):
    """Something that a user of the file must know is not in it."""


def export(
    model: nn.Module | Loaded,
    path: str | PathLike[str],
    method: str | MethodFunction | Sequence[str | MethodFunction] = "gradcam",
    layer: str | nn.Module | None = None,
    *,
    size: tuple[int, int] | None = None,
    dynamic_batch: bool = True,
    resize: bool = False,
    **options: Any,
) -> Path:
    """Write a classifier with its explanation into one file: from images to logits and maps.

        camtool.export(model, "explained.onnx")

    The inputs of the file are ``images``, ``(N, C, H, W)`` as the model gets them, and ``target_class``, ``(N,)``
    integers: the class to explain in each image, -1 for the one with the highest logit. The outputs are ``logits``
    ``(N, K)`` and ``maps`` ``(N, *grid)``, not scaled. The map of a class that does not exist, below -1 or from K on,
    is NaN; images of another size than that of the file are an error of the runtime. Of several methods each has an
    output of its own, ``maps``, ``maps_layercam``, ... An ONNX file has a description as JSON in its metadata, under
    ``camtool``: methods and their outputs, layer, labels, preprocessing, centers of the cells, version.

    Args:
        model: A classifier, or what :func:`camtool.load` returned.
        path: The file. Its suffix is the format: ``.onnx``; ``.xml`` for OpenVINO, with a ``.bin`` file beside it;
            ``.pt2`` for a program of ``torch.export``.
        method: A method that is a formula of activations and gradients, e.g. ``"gradcam"`` or ``"layercam"``, or
            several.
        layer: The layer; by default the best one is found.
        size: Height and width of the images in pixels; by default what the transform of ``model`` makes of a square
            photo, else what the model is made for.
        dynamic_batch: Let the file take any number of images; otherwise one.
        resize: Return maps at the images' size, with each cell at the center of its receptive field.
        **options: Options of the methods.

    Returns:
        The path.

    Raises:
        CamtoolError: The model, the method or the format cannot be exported; the message names the operator or the
            reason. Nothing is written then.

    Warns:
        ExportWarning: The file cannot say how photos are prepared, as the transform does more than resize, crop and
            normalize RGB photos, or makes images of another size than that of the file.
    """
    path = Path(path)
    check_format(path)
    check_beside(path)
    loaded = to_loaded(model)
    several = [method] if isinstance(method, str) or callable(method) else [*method]
    methods = [*{chosen.name: chosen for chosen in map(find_method, several)}.values()]
    if not methods:
        raise CamtoolError("method: no method is given; name one, e.g. 'gradcam'.")
    check_options(methods, options, loaded.model)
    images = _make_images(loaded, size, count=2 if dynamic_batch else 1)
    name = None if layer is None else find_module_name(loaded.model, unwrap_layer(get_module(model), layer))
    layers = find_layers(loaded.model, images, None if name is None else [name])
    if len(layers) != 1:
        raise CamtoolError(f"layer: one layer can be exported, got {len(layers)}.")
    preparation, reason = _find_preparation(loaded, images)
    settings: dict[str, Any] = {"preparation": preparation, "dynamic_batch": dynamic_batch, "resize": resize}
    text = f"the model cannot be exported with method {' and '.join(repr(chosen.name) for chosen in methods)}"
    with RaiseAs(lambda error: CamtoolError(f"{text}: {error}."), NotCompilableError), lock_compiler():
        _export(loaded, images, layers[0], methods, options, path, **settings)
    if reason:
        warnings.warn(
            f"{path} does not say how photos are prepared, as the transform {reason}; 'preparation' is null in its "
            "description. Prepare photos as 'preprocessing' says there, in camtool by load(FILE, transform=...).",
            ExportWarning,
            stacklevel=2,
        )
    return path


def check_format(path: Path) -> None:
    """Check that a file of this name can be written, before a model is loaded for it.

    Raises:
        CamtoolError: The suffix is unknown, or packages are not installed.
    """
    if not path.suffix or path.suffix == ".html":
        raise CamtoolError(f"path: {path} is no file of a model; a page is written by camtool.export_page.")
    check_choice("path's suffix", path.suffix, tuple(_RUNTIMES))
    runtime = _RUNTIMES[path.suffix]
    if runtime is not None and not is_installed(runtime):
        raise CamtoolError(
            f"{path.suffix} files, and pages, which hold one, need more packages; run pip install 'camtool[{runtime}]'."
        )


def find_beside(path: Path) -> Path:
    """Return the file beside a file of a model that may hold its weights; the file itself if there is none."""
    return {".xml": path.with_suffix(".bin"), ".onnx": Path(f"{path}.data")}.get(path.suffix, path)


def check_beside(path: Path) -> None:
    """Check that no weights of something else lie where those of the file belong.

    Raises:
        CamtoolError: They do.
    """
    beside = find_beside(path)
    if beside.exists() and not path.exists():
        raise CamtoolError(f"path: {beside} exists without {path.name}; move it, or give another name.")


@follow_step("Exporting the model")
def _export(
    loaded: Loaded,
    images: Tensor,
    layer: Layer,
    methods: Sequence[Method],
    options: dict[str, Any],
    path: Path,
    *,
    preparation: dict[str, Any] | None,
    dynamic_batch: bool,
    resize: bool,
) -> None:
    functions = [partial(method, **options) for method in methods]
    explained, centers, link = _build(loaded.model, images, layer, functions, resize=resize)
    if dynamic_batch and not explained.has_any_batch_size:
        raise NotCompilableError("its code fixes the number of images; use dynamic_batch=False")
    for count in range(1, len(images) + 1):  # models may treat a single image differently
        grid = _compare(explained, loaded.model, images[:count], layer, functions)
    description = {**_describe(loaded, methods, options, layer, images, resize=resize), "preparation": preparation}
    if centers is None or grid != layer.layout.grid:
        centers = CellCenters.stretch(grid, images.shape[2:])
    description["centers"] = [axis.list_centers(count).tolist() for axis, count in zip(centers.axes, grid, strict=True)]
    description["link"] = link
    description["strides"] = [axis.stride for axis in centers.axes]
    _write(explained, images, path, description)


def _make_images(loaded: Loaded, size: tuple[int, int] | None, count: int) -> Tensor:
    model = loaded.model
    height, width = size or _find_size(loaded)
    channels, *sizes = choose_example_shape(model, height, width)
    # Smooth as photos are: white noise makes the activations of some models explode, and with them the rounding.
    coarse = torch.randn(count * channels, *[8] * len(sizes), generator=torch.Generator().manual_seed(0), device="cpu")
    images: Tensor = resize_to_grid(coarse, sizes).unflatten(0, (count, channels))
    parameter = next(model.parameters(), None)
    if parameter is not None and (parameter.device.type != "cpu" or parameter.dtype != torch.float32):
        raise CamtoolError(
            f"model: it must be on the CPU and in float32, got {parameter.device} and {parameter.dtype}; "
            "use model.cpu().float()."
        )
    return images


def _find_size(loaded: Loaded) -> tuple[int, int]:
    """Return the height and width of the images that the transform makes, else those that the model is made for."""
    if loaded.transform is None:
        return find_input_size(loaded.model)
    height, width = loaded.transform(Image.new("RGB", (512, 512))).shape[-2:]
    return height, width


class _ExplainedModel(nn.Module):
    """From images and classes to logits and maps, by operations on tensors alone."""

    def __init__(
        self,
        capture: Capture,
        gradient_graph: fx.GraphModule,
        segment: Segment,
        functions: Sequence[Callable[[Any], Tensor]],
        layer: Layer,
        place: Callable[[Tensor], Tensor],
        *,
        logits: int,
    ) -> None:
        super().__init__()
        self._forward_graph, self._gradient_graph = capture.graph, gradient_graph
        self._segment, self._logits = segment, logits
        self._functions, self._layer, self._place = functions, layer, place
        count = len(get_results(capture.graph))
        self._others = range(count - len(segment.others), count)
        self.has_any_batch_size = capture.has_any_batch_size

    def forward(self, images: Tensor, target_class: Tensor) -> tuple[Tensor, ...]:
        results = self._forward_graph(images)
        logits = results[self._logits]
        weights = [
            weigh_chosen_class(logits, target_class) if index == self._logits else torch.zeros_like(results[index])
            for index in self._segment.results
        ]
        (start,) = self._segment.layers
        gradients = self._gradient_graph(*weights, results[start], *(results[index] for index in self._others))[0]
        grid, slope = (upcast(self._layer.layout.to_grid(tensor)) for tensor in (results[start], gradients))
        maps = [self._place(make_maps(GridEvidence(grid, slope, logits))) for make_maps in self._functions]
        # A file cannot raise an error. Without NaN, the map of a class that does not exist would look like any other.
        is_known = is_known_class(logits, target_class).reshape(-1, *[1] * (maps[0].ndim - 1))
        return logits, *(torch.where(is_known, heat, torch.nan) for heat in maps)


def _build(
    model: nn.Module, images: Tensor, layer: Layer, functions: Sequence[Callable[[Any], Tensor]], *, resize: bool
) -> tuple[_ExplainedModel, CellCenters | None, Link | None]:
    """Return the model with its explanation, the centers of the layer's cells, and how logits become probabilities.

    The centers are ``None`` if the cells fill the input.
    """
    forward_pass = run_forward_pass(model, images, [layer])
    logits = find_logits(forward_pass.output)
    if logits.ndim != 2:
        raise NotCompilableError(f"it is no classifier: its scores have the shape {tuple(logits.shape)}")
    tensors = find_tensors(forward_pass.output)
    index = next((position for position, tensor in enumerate(tensors) if tensor is logits), None)
    if index is None:
        raise NotCompilableError("its logits are no tensor of its output")
    capture = capture_model(copy_for_capture(model, images, [layer.name]), images, [layer.name])
    segments = split_at_layers(capture)
    if len(segments) != 1 or index not in segments[0].results:
        raise NotCompilableError(f"the logits do not depend on layer {layer.name!r}")
    (segment,) = segments
    capture.return_also(segment.others)
    with torch.no_grad():
        values = list(capture.graph(images))
    inputs = values[capture.output_count :]
    if forward_pass.find_place(layer).by_content:
        raise NotCompilableError("the content of each image decides where its cells lie, and a file holds one place")
    centers, size = forward_pass.find_place(layer).centers, images.shape[2:]

    def place(maps: Tensor) -> Tensor:
        return draw_heat(maps, centers, size) if resize else maps

    gradient_graph = trace_gradients(segment, inputs)
    explained = _ExplainedModel(capture, gradient_graph, segment, functions, layer, place, logits=index)
    return explained, centers, forward_pass.find_link().link


def _compare(
    explained: nn.Module, model: nn.Module, images: Tensor, layer: Layer, functions: Sequence[Callable[[Any], Tensor]]
) -> torch.Size:
    """Check that the graph gives the results of the model, and return the grid of its maps.

    Raises:
        NotCompilableError: It does not.
    """
    forward_pass = run_forward_pass(model, images, [layer])
    top = forward_pass.logits.argmax(1).tolist()
    if forward_pass.logits.shape[1] == 1:
        top = (forward_pass.logits[:, 0] > 0).long().tolist()
    (evidence,) = gather_evidence(forward_pass, [ClassScore(index) for index in top])
    with torch.no_grad():
        expected = [make_maps(evidence) for make_maps in functions]
        logits, *maps = explained(images, torch.full((len(images),), -1, device="cpu"))
    grid: torch.Size = maps[0].shape[1:]
    if grid != expected[0].shape[1:]:
        expected = [draw_heat(heat, forward_pass.find_place(layer).centers, grid) for heat in expected]
    _check_results((logits, *maps), (forward_pass.logits, *expected), "the traced graph")
    return grid


def _find_preparation(loaded: Loaded, images: Tensor) -> tuple[dict[str, Any] | None, str]:
    """Return how photos are prepared, as numbers, or why the file cannot say it; "" if the model does not say it."""
    size = tuple(images.shape[2:])
    if loaded.transform is None:
        return None, ""
    if images.shape[1] != 3:
        return None, "does not make images of three channels"
    plain = find_plain_transform(loaded.transform)
    if plain is None:
        return None, "does more than resize, crop and normalize photos, e.g. it pads them"
    if plain.crop != size:
        return None, f"makes images of {plain.crop}, and the file takes {size}"
    return plain.to_dict(), ""


def _describe(
    loaded: Loaded, methods: Sequence[Method], options: dict[str, Any], layer: Layer, images: Tensor, *, resize: bool
) -> dict[str, Any]:
    return {
        "version": camtool.__version__,
        "model": loaded.name or type(loaded.model).__name__,
        "method": methods[0].name,
        # The name for the first method is the same in all files.
        "outputs": {method.name: f"maps_{method.name}" if index else "maps" for index, method in enumerate(methods)},
        "options": {name: repr(value) for name, value in options.items()},
        "layer": layer.name,
        "input_shape": list(images.shape[1:]),
        "maps": "at the images' size" if resize else "on the layer's grid",
        "drawing": DRAWING,
        "preprocessing": None if loaded.transform is None else repr(loaded.transform),
        "shorter_side": _find_shorter_side(loaded, images),
        **dict(zip(("mean", "std"), find_statistics(loaded.transform) or (None, None), strict=True)),
        "labels": None if loaded.labels is None else list(loaded.labels),
    }


# Height and width of a photo whose preprocessing shows how photos are resized.
_PHOTO = (600, 800)


def _find_shorter_side(loaded: Loaded, images: Tensor) -> float | None:
    """Return to how many pixels the preprocessing resizes the shorter side of a photo before it crops the middle.

    Return ``None`` if it does something else, or makes images of another size than the file takes.
    """
    if loaded.transform is None or images.ndim != 4:
        return None
    try:
        geometry = read_geometry(loaded.transform, _PHOTO)
    except CamtoolError:  # e.g. a transform that crops at random
        return None
    if geometry.size != tuple(images.shape[2:]):
        return None
    top, left, bottom, right = geometry.box
    scale = geometry.size[0] / (bottom - top)
    middle = ((top + bottom) / 2 - _PHOTO[0] / 2, (left + right) / 2 - _PHOTO[1] / 2)
    is_crop = abs(geometry.size[1] / (right - left) / scale - 1) < 0.01 and max(map(abs, middle)) * scale <= 1
    return round(scale * min(_PHOTO), 2) if is_crop else None


def _write(explained: _ExplainedModel, images: Tensor, path: Path, description: dict[str, Any]) -> None:
    """Write the files elsewhere, check them, and move them to their place."""
    with tempfile.TemporaryDirectory() as folder:
        _write_into(explained, images, Path(folder) / path.name, description)
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name):  # the file itself last
            shutil.move(file, path.parent / file.name)


def _write_into(explained: _ExplainedModel, images: Tensor, path: Path, description: dict[str, Any]) -> None:
    """Write the files, run them, and compare their results with the graph's."""
    examples = [images, torch.full((len(images),), -1, device="cpu")]
    with torch.no_grad():
        expected = explained(*examples)
    program = export_graph(explained, examples, has_any_batch_size=explained.has_any_batch_size)
    if path.suffix == ".pt2":
        torch.export.save(program, path, extra_files={"camtool": json.dumps(description)})
        with torch.no_grad():
            _check_results(torch.export.load(path).module()(*examples), expected, "the program that was read again")
        return
    outputs = ["logits", *description["outputs"].values()]
    axes = [{0: "batch"}] * len(examples) if explained.has_any_batch_size else None
    onnx = convert_to_onnx(program, ["images", "target_class"], outputs, axes)
    onnx.model.metadata_props["camtool"] = json.dumps(description)
    if path.suffix == ".onnx":
        write_onnx(onnx, path)
        _check_in_runtime("onnxruntime", path, examples, expected)
        return
    import openvino

    beside = path.with_suffix(".unfinished.onnx")
    try:
        write_onnx(onnx, beside)
        converted = openvino.convert_model(beside)
    finally:
        beside.unlink(missing_ok=True)
    converted.set_rt_info(json.dumps(description), ["camtool"])
    openvino.save_model(converted, path, compress_to_fp16=False)
    _check_in_runtime("openvino", path, examples, expected)


def _check_in_runtime(runtime: str, path: Path, examples: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    results = open_session(runtime, path).run([example.numpy() for example in examples])
    _check_results([torch.from_numpy(array) for array in results], expected, runtime)


def _check_results(results: Sequence[Tensor], expected: Sequence[Tensor], where: str) -> None:
    """Check logits and the maps of each method.

    Raises:
        NotCompilableError: They differ.
    """
    for position, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        gap, peak = float((ours - theirs).abs().max()), float(theirs.abs().max())
        if not gap <= _LARGEST_GAP * peak:
            name = "maps" if position else "logits"
            raise NotCompilableError(f"the {name} differ by {gap:.2g} in {where}, where the largest is {peak:.2g}")
