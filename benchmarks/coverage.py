"""The share of architectures that work without configuration: ``python -m benchmarks coverage``.

Every model of ``tests/zoo``, with calibrated random weights, is explained by camtool, by torchcam, which also finds a
layer itself, and by grad-cam, which gets the last ``Conv2d``, as its documentation advises. All run in one process, on
the same image. The table counts which library gives any map, and which one gives a correct map. A map is correct if its
layer is read in its true layout (a change in a quadrant of the image changes the layer most there, where the model is
local), the layer is in the last third of the network, the score's gradient reaches it, and the map is finite and not
constant. The rectified map of a random network is empty for about half of the classes, so several classes are tried. An
exception counts as no map.

The models of ``tests/zoo/families.py`` take inputs of their own. There camtool's map is correct if it equals a Grad-CAM
that is computed by hand for the same class at the same layer. A peer's map is held, up to its scale, against those of
the peer's own layer: that of the same score, and that of the first tensor which the model returns. The networks of
keras.applications are held against Keras itself: a model with two outputs, the last grid and what the last layer gets.

All this takes half an hour. ``--group`` and ``--only`` run a part and write no file; with ``--update`` the rows of the
part replace those in the file.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from benchmarks.paired import describe_machine
from camtool.hooks.tracing import trace
from camtool.layers.layouts import Layer, Layout
from tests.zoo import catalogue, dense, hugging_face
from tests.zoo.check import explain_surest, faults_of_layer, faults_of_maps, find_explained_layer
from tests.zoo.dense import Unwrapped
from tests.zoo.families import FAMILIES, Family, compute_gradcam, find_faults

_CLASSES = 8

_PEER_DIFFERENCE = 1e-3
"""Largest difference between a peer's map and the one by hand, in shares of the peak; peers scale in float32."""

_KERAS_DIFFERENCE = 1e-4
"""Largest difference between a map and the one by Keras, in shares of the peak."""

_FILE = Path(__file__).with_suffix(".json")

UNWRAPPED = "the same, unwrapped by hand"
"""The group whose models are in another one, too."""

Maps = Iterator[NDArray[Any]]


class Model(Protocol):
    """An entry of the zoo."""

    size: int

    def build(self) -> nn.Module:
        """Return the model with calibrated random weights."""
        ...


class Unwrapping:
    """A model in a wrapper, as a user would write it, that returns the tensor of scores alone."""

    def __init__(self, model: Model) -> None:
        self._model, self.size = model, model.size

    def build(self) -> nn.Module:
        """Return the model with calibrated random weights, in its wrapper."""
        return Unwrapped(self._model.build())


def list_groups() -> dict[str, dict[str, Model]]:
    """Return all models, by group."""
    towers = {f"{name} (tower)": model for name, model in hugging_face.TOWERS.items()}
    from_hub = hugging_face.CLASSIFIERS | towers
    return {
        "torchvision classifiers": {entry.name: entry for entry in catalogue.TORCHVISION},
        "timm, the smallest of each module": {entry.name: entry for entry in catalogue.SMALLEST},
        "timm, further transformers": {entry.name: entry for entry in catalogue.FURTHER},
        "Hugging Face classifiers and towers": from_hub,
        UNWRAPPED: {name: Unwrapping(model) for name, model in from_hub.items()},
        "segmenters": dense.SEGMENTERS | hugging_face.SEGMENTERS,
        "detectors": dense.DETECTORS | hugging_face.DETECTORS,
    }


def list_keras_networks() -> dict[str, dict[str, str]]:
    """Return the names of the networks that Keras builds on torch, by group."""
    from tests.models.sources.test_keras_networks import NETWORKS

    return {"networks of keras.applications": {name: name for name in NETWORKS}}


@dataclass(frozen=True)
class Explained:
    """The layer that a library uses, and its maps of several classes, the model's top class first."""

    layer: Layer
    maps: Maps


def explain_with_camtool(model: nn.Module, image: Tensor) -> Explained:
    """Explain with camtool, which finds the layer, the layout and the target."""

    def maps() -> Maps:
        result = explain_surest(model, image)
        yield result.raw
        try:
            (results,) = camtool.explain(model, image, [camtool.targets.Top(_CLASSES)])
        except camtool.NothingFoundError:  # random weights are sure of nothing
            (results,) = camtool.explain(model, image, [camtool.targets.AllDetections(confidence=0)])
        yield from (each.raw for each in results)

    return Explained(find_explained_layer(model, image), maps())


def explain_with_torchcam(model: nn.Module, image: Tensor) -> Explained:
    """Explain with torchcam, which finds the layer and assumes channels first."""
    from torchcam.methods import GradCAM

    def maps() -> Maps:
        for index in _find_top_classes(model, image):
            with GradCAM(model, layer.name, input_shape) as extractor:
                yield extractor(index, model(image), normalized=False)[0][0].numpy()

    input_shape = tuple(image.shape[1:])
    with GradCAM(model, input_shape=input_shape) as finder:
        layer = _build_layer(model, finder.target_names[0], image)
    return Explained(layer, maps())


def explain_with_gradcam(model: nn.Module, image: Tensor) -> Explained:
    """Explain with grad-cam, which gets the last convolution and assumes channels first."""
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    def maps() -> Maps:
        for index in _find_top_classes(model, image):
            with GradCAM(model, [model.get_submodule(name)]) as extractor:
                yield extractor(image, [ClassifierOutputTarget(index)])[0]

    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise LookupError("the model has no Conv2d")
    name = convolutions[-1]
    return Explained(_build_layer(model, name, image), maps())


LIBRARIES: dict[str, Callable[[nn.Module, Tensor], Explained]] = {
    "camtool": explain_with_camtool,
    "torchcam": explain_with_torchcam,
    "grad-cam": explain_with_gradcam,
}


def _build_layer(model: nn.Module, name: str, image: Tensor) -> Layer:
    shape = next((call.shape for call in reversed(trace(model, image)) if call.name == name), None)
    if shape is None or len(shape) != 4:
        raise LookupError(f"the layer {name} did not run, or returned no (N, C, h, w): {shape}")
    return Layer(name, Layout("channels first", shape[2:]))


def _find_top_classes(model: nn.Module, image: Tensor) -> list[int]:
    """Return the model's top classes, or class 0 if it does not return scores; the library may fail on it."""
    with torch.no_grad():
        output = model(image)
    if isinstance(output, Tensor) and output.ndim == 2:
        return output[0].argsort(descending=True)[:_CLASSES].tolist()
    return [0]


# ----------------------------------------------------------------------------------------------------- measuring


def measure(name: str, group: str, model: Model) -> dict[str, Any]:
    """Return the result of each library on one model."""
    built = model.build()
    image = catalogue.picture(2, model.size, model.size)
    answers = {library: judge(show, built, image) for library, show in LIBRARIES.items()}
    return {"group": group, "model": name, "size": model.size} | answers


def judge(show: Callable[[nn.Module, Tensor], Explained], model: nn.Module, image: Tensor) -> dict[str, Any]:
    """Return whether a library gives a map and whether it is correct, with the reasons if not."""
    try:
        with _silence():
            shown = show(model, image)
            maps = list(_take_until_one_varies(shown.maps))
    except Exception as error:  # noqa: BLE001  # any exception means that there is no map
        return _describe_error(error)
    finally:
        model.zero_grad()  # grad-cam leaves gradients on the parameters
    try:
        faults = [*faults_of_layer(model, shown.layer, image), *faults_of_maps(maps)]
    except camtool.CamtoolError as error:
        faults = [f"its layer cannot be observed: {error}"[:200]]
    answer = {"map": True, "correct": not faults, "layer": shown.layer.name, "layout": str(shown.layer.layout)}
    return answer | ({"why": "; ".join(faults)} if faults else {})


def measure_family(name: str, group: str, family: Family) -> dict[str, Any]:
    """Return the result of each library on one model whose map is compared with a Grad-CAM by hand."""
    model, inputs = family.build(), family.make_inputs()
    answers = {"camtool": judge_family(family, model, inputs)}
    answers |= {
        library: judge_peer(LIBRARIES[library], family, model, inputs) for library in LIBRARIES if library != "camtool"
    }
    return {"group": group, "model": name} | answers


def judge_family(family: Family, model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Return whether camtool gives the map that is computed by hand, with the reasons if not."""
    try:
        with _silence():
            faults = find_faults(family, model, inputs)
    except Exception as error:  # noqa: BLE001  # any exception means that there is no map
        return _describe_error(error)
    return {"map": True, "correct": not faults} | ({"why": "; ".join(faults)} if faults else {})


def judge_peer(
    show: Callable[[nn.Module, Any], Explained], family: Family, model: nn.Module, inputs: Any
) -> dict[str, Any]:
    """Return whether a library gives a map of the model's top class and whether it is the one computed by hand."""
    try:
        with _silence():
            shown = show(model, inputs)
            found = np.asarray(next(shown.maps))
            index = _find_top_classes(model, inputs)[0]
            expected = [
                compute_gradcam(each, model, inputs, shown.layer.name, index)
                for each in (family, replace(family, get_scores=_get_first_scores))
            ]
            if found.shape == tuple(inputs.shape[2:]):  # grad-cam returns maps at the size of the input
                expected = [_resize(each, found.shape) for each in expected]
    except Exception as error:  # noqa: BLE001  # any exception means that there is no map
        return _describe_error(error)
    finally:
        model.zero_grad()
    if found.shape != expected[0].shape:
        return {"map": True, "correct": False, "why": f"its map has shape {found.shape}, not {expected[0].shape}"}
    difference = min(_compare_by_peak(found, each) for each in expected)
    if difference <= _PEER_DIFFERENCE:
        return {"map": True, "correct": True}
    return {"map": True, "correct": False, "why": f"it differs by {difference:.2g} of the peak"}


def measure_keras(name: str, group: str, _: str) -> dict[str, Any]:
    """Return the result of each library on a network of keras.applications, on Keras' torch backend."""
    from tests.models.sources.test_keras_networks import build, choose_shape

    images = torch.rand(1, *choose_shape(name), generator=torch.Generator().manual_seed(2))
    model = build(name, classes=_CLASSES)
    answers = {"camtool": judge_keras(_iterate_keras_maps, model, images)}
    peers = {library: show for library, show in LIBRARIES.items() if library != "camtool"}
    answers |= {
        library: judge_keras(partial(_iterate_peer_maps, show), model, images) for library, show in peers.items()
    }
    return {"group": group, "model": name} | answers


def _iterate_keras_maps(model: Any, images: Tensor) -> Iterator[tuple[int, NDArray[Any]]]:
    for index in range(_CLASSES):
        yield index, camtool.explain(model, images[0].permute(2, 0, 1), index).raw


def _iterate_peer_maps(show: Callable[[nn.Module, Tensor], Explained], model: Any, images: Tensor) -> Iterator[Any]:
    yield from zip(_find_top_classes(model, images), show(model, images).maps, strict=False)


def judge_keras(
    run: Callable[[Any, Tensor], Iterator[tuple[int, NDArray[Any]]]], model: Any, images: Tensor
) -> dict[str, Any]:
    """Return whether the first map that varies, of some classes, is that which Keras itself computes by hand."""
    from tests.helpers.keras_models import explain_by_hand
    from tests.models.sources.test_keras_networks import find_last_grid

    try:
        with _silence():
            for index, found in run(model, images):
                expected = explain_by_hand(model, find_last_grid(model), images, index).numpy()
                if found.shape != expected.shape:
                    return {"map": True, "correct": False, "why": f"its map has shape {found.shape}"}
                if np.ptp(expected) > 0:
                    difference = np.abs(found - expected).max() / expected.max()
                    is_same = bool(difference <= _KERAS_DIFFERENCE)
                    why = {} if is_same else {"why": f"it differs by {difference:.2g} of the peak"}
                    return {"map": True, "correct": is_same} | why
    except Exception as error:  # noqa: BLE001  # any exception means that there is no map
        return _describe_error(error)
    return {"map": True, "correct": False, "why": "the maps of all classes are constant"}


def _get_first_scores(output: Any) -> Tensor:
    """Return the scores in the first tensor that a model returns, which grad-cam explains, e.g. probabilities."""
    scores: Tensor = output[0][0]
    return scores


def _compare_by_peak(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference between two maps, each divided by its peak."""
    return float(np.abs(found / max(found.max(), 1e-9) - expected / max(expected.max(), 1e-9)).max())


def _resize(raw: NDArray[Any], size: tuple[int, ...]) -> NDArray[Any]:
    """Return a map at another size, scaled and interpolated as grad-cam does it."""
    import cv2

    scaled = (raw - raw.min()) / max(np.ptp(raw), 1e-7)
    return np.asarray(cv2.resize(scaled.astype(np.float32), size[::-1]))


def _describe_error(error: Exception) -> dict[str, Any]:
    return {"map": False, "correct": False, "why": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def _take_until_one_varies(maps: Maps) -> Maps:
    for each in maps:
        yield each
        if np.ptp(each) > 0:
            return


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what libraries print and their warnings."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def summarize(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Count for each group the models, and for each library the maps and the correct maps."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        group = found.setdefault(row["group"], {"models": 0} | {name: Counter() for name in LIBRARIES})
        group["models"] += 1
        for name in LIBRARIES:
            group[name].update(map=row[name]["map"], correct=row[name]["correct"])
    return found


def describe_groups(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts of the groups, those of each library in all of them but one, and the percents of the table."""
    different = [counts for group, counts in groups.items() if group != UNWRAPPED]
    return {
        "groups": groups,
        "all": {"models": sum(counts["models"] for counts in different)}
        | {name: sum(counts[name]["correct"] for counts in different) for name in LIBRARIES},
        "percent": {
            f"{group} ({counts['models']})": {
                name: [round(100 * counts[name][kind] / counts["models"]) for kind in ("map", "correct")]
                for name in LIBRARIES
            }
            for group, counts in groups.items()
        },
    }


def format_table(groups: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table, in percent of the models: any map / correct."""
    yield f"{'any map / correct':<42}" + "".join(f"{name:>18}" for name in LIBRARIES)
    for group, counts in groups.items():
        models = counts["models"]
        shares = [f"{counts[name]['map'] / models:.0%} / {counts[name]['correct'] / models:.0%}" for name in LIBRARIES]
        yield f"{f'{group} ({models})':<42}" + "".join(f"{share:>18}" for share in shares)


def main(
    group: Annotated[str, typer.Option(help="Only groups whose name contains this.")] = "",
    only: Annotated[str, typer.Option(help="Only the model of this name.")] = "",
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    *,
    update: Annotated[bool, typer.Option("--update", help="Replace the measured rows in the JSON file.")] = False,
) -> None:
    """Measure, print a table, and write the numbers of a complete run to a JSON file in this folder."""
    torch.set_num_threads(threads)
    logging.disable(logging.WARNING)
    rows = []
    for row in _measure_all(group.lower(), only):
        rows.append(row)
        print(_format_row(row), flush=True)
    print("", *format_table(summarize(rows)), sep="\n")
    if update and (group or only):
        rows = _replace_rows(json.loads(_FILE.read_text(encoding="utf-8"))["models"], rows)
    if update or not (group or only):
        _write_rows(rows, threads)


def _measure_all(group: str, only: str) -> Iterator[dict[str, Any]]:
    """Measure all models of the groups whose name contains a text, or the one of a name."""
    measured = [(measure, list_groups()), (measure_family, FAMILIES), (measure_keras, list_keras_networks())]
    for run, groups in measured:
        for name_of_group, models in groups.items():
            for name, model in models.items():
                if group in name_of_group.lower() and only in ("", name):
                    yield run(name, name_of_group, model)


def _replace_rows(known: list[dict[str, Any]], measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the known rows with those that were measured again in their places, and new ones at the end."""
    by_key = {(row["group"], row["model"]): row for row in (*known, *measured)}
    return [*by_key.values()]


def _write_rows(rows: list[dict[str, Any]], threads: int) -> None:
    versions = {
        name: version(name) for name in ("timm", "transformers", "ultralytics", "keras", "torchcam", "grad-cam")
    }
    described = {"machine": describe_machine(threads) | versions, **describe_groups(summarize(rows))}
    head = json.dumps(described, indent=1).removesuffix("\n}")
    models = ",\n".join(f"  {json.dumps(row)}" for row in rows)  # one line per model
    _FILE.write_text(f'{head},\n "models": [\n{models}\n ]\n}}\n', encoding="utf-8")


def _format_row(row: Mapping[str, Any]) -> str:
    marks = [f"{name} {'+' if row[name]['correct'] else 'wrong' if row[name]['map'] else '-'}" for name in LIBRARIES]
    return f"{row['group']}, {row['model']}: {', '.join(marks)}"


if __name__ == "__main__":
    typer.run(main)
