"""How many architectures are explained with no configuration: ``python benchmarks/coverage.py``.

Every model of ``tests/zoo``, with calibrated random weights, before camtool, before torchcam, which finds a layer by
itself too, and before grad-cam, which is given the last ``Conv2d``, as its documentation advises; all in one process,
on the same picture. Counted is who gives a map at all, and whose map is correct: the layer it is made of is read as it
is laid out (a change in a quadrant of the picture moves it most there, wherever the model is local), it lies in the
last third of the network, the score's gradient reaches it, and the map is finite and not constant. As the rectified map
of a random network is empty for about half of the classes, a few are tried. A crash counts as no map. Takes half an
hour; ``--group`` and ``--only`` ask for a part, and keep nothing.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from paired import machine
from torch import Tensor, nn

import camtool
from camtool.hooks import trace
from camtool.layers import Layer, Layout, resolve

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the models are those that the tests are made on

from tests.zoo import catalogue, dense, hugging_face
from tests.zoo.check import faults_of_layer, faults_of_maps
from tests.zoo.dense import Unwrapped

_CLASSES = 8

Maps = Iterator[NDArray[Any]]


class Model(Protocol):
    """What the zoo's entries have in common."""

    size: int

    def build(self) -> nn.Module:
        """The model with calibrated random weights."""
        ...


class ByHand:
    """A model whose scores a person has taken out of its output, so that it returns a tensor."""

    def __init__(self, model: Model) -> None:
        self._model, self.size = model, model.size

    def build(self) -> nn.Module:
        """The model with calibrated random weights, in its wrapper."""
        return Unwrapped(self._model.build())


def groups() -> dict[str, dict[str, Model]]:
    """The whole zoo."""
    towers = {f"{name} (tower)": model for name, model in hugging_face.TOWERS.items()}
    from_hub = hugging_face.CLASSIFIERS | towers
    return {
        "torchvision classifiers": {entry.name: entry for entry in catalogue.TORCHVISION},
        "timm, the smallest of each module": {entry.name: entry for entry in catalogue.SMALLEST},
        "timm, further transformers": {entry.name: entry for entry in catalogue.FURTHER},
        "Hugging Face classifiers and towers": from_hub,
        "the same, unwrapped by hand": {name: ByHand(model) for name, model in from_hub.items()},
        "segmenters": dense.SEGMENTERS | hugging_face.SEGMENTERS,
        "detectors": dense.DETECTORS | hugging_face.DETECTORS,
    }


@dataclass(frozen=True)
class Shown:
    """What a library makes its maps of, and the maps of a few classes, the model's own first."""

    layer: Layer
    maps: Maps


def of_camtool(model: nn.Module, picture: Tensor) -> Shown:
    """It finds the layer, the layout and the target."""

    def maps() -> Maps:
        (result,) = camtool.explain(model, picture)
        yield result.raw
        yield from (each.raw for each in camtool.explain(model, picture, [camtool.targets.Top(_CLASSES)])[0])

    (layer,) = resolve(model, picture)
    return Shown(layer, maps())


def of_torchcam(model: nn.Module, picture: Tensor) -> Shown:
    """It finds the layer, and reads it with the channels first."""
    from torchcam.methods import GradCAM

    def maps() -> Maps:
        for index in _classes(model, picture):
            with GradCAM(model, layer.name, input_shape) as extractor:
                yield extractor(index, model(picture), normalized=False)[0][0].numpy()

    input_shape = tuple(picture.shape[1:])
    with GradCAM(model, input_shape=input_shape) as finder:
        layer = _with_channels_first(model, finder.target_names[0], picture)
    return Shown(layer, maps())


def of_gradcam(model: nn.Module, picture: Tensor) -> Shown:
    """It is given the last convolution, and reads it with the channels first."""
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    def maps() -> Maps:
        for index in _classes(model, picture):
            with GradCAM(model, [model.get_submodule(name)]) as extractor:
                yield extractor(picture, [ClassifierOutputTarget(index)])[0]

    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise LookupError("the model has no Conv2d")
    name = convolutions[-1]
    return Shown(_with_channels_first(model, name, picture), maps())


LIBRARIES: dict[str, Callable[[nn.Module, Tensor], Shown]] = {
    "camtool": of_camtool,
    "torchcam": of_torchcam,
    "grad-cam": of_gradcam,
}


def _with_channels_first(model: nn.Module, name: str, picture: Tensor) -> Layer:
    shape = next((call.shape for call in reversed(trace(model, picture)) if call.name == name), None)
    if shape is None or len(shape) != 4:
        raise LookupError(f"the layer {name} did not run, or returned no (N, C, h, w): {shape}")
    return Layer(name, Layout("channels first", shape[2:]))


def _classes(model: nn.Module, picture: Tensor) -> list[int]:
    """The model's highest classes, where it returns a tensor of them; else any, and the library may fail at it."""
    with torch.no_grad():
        output = model(picture)
    if isinstance(output, Tensor) and output.ndim == 2:
        return output[0].argsort(descending=True)[:_CLASSES].tolist()
    return [0]


# ----------------------------------------------------------------------------------------------------- measuring


def measure(name: str, group: str, model: Model) -> dict[str, Any]:
    """What each library makes of one model."""
    built = model.build()
    picture = catalogue.picture(2, model.size, model.size)
    answers = {library: judged(show, built, picture) for library, show in LIBRARIES.items()}
    return {"group": group, "model": name, "size": model.size} | answers


def judged(show: Callable[[nn.Module, Tensor], Shown], model: nn.Module, picture: Tensor) -> dict[str, Any]:
    """Whether a library gives a map, whether it is correct, and what is the matter where it is not."""
    try:
        with _undisturbed():
            shown = show(model, picture)
            maps = list(_until_one_varies(shown.maps))
    except Exception as error:  # noqa: BLE001  # whatever a library raises, it has given no map
        return {"map": False, "correct": False, "why": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    finally:
        model.zero_grad()  # grad-cam fills the parameters' gradients
    try:
        faults = [*faults_of_layer(model, shown.layer, picture), *faults_of_maps(maps)]
    except camtool.CamtoolError as error:
        faults = [f"its layer cannot be looked at: {error}"[:200]]
    answer = {"map": True, "correct": not faults, "layer": shown.layer.name, "layout": str(shown.layer.layout)}
    return answer | ({"why": "; ".join(faults)} if faults else {})


def _until_one_varies(maps: Maps) -> Maps:
    for each in maps:
        yield each
        if np.ptp(each) > 0:
            return


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without what libraries print and warn of."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By group, how many models there are, and for how many each library has a map and a correct one."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        group = found.setdefault(row["group"], {"models": 0} | {name: Counter() for name in LIBRARIES})
        group["models"] += 1
        for name in LIBRARIES:
            group[name].update(map=row[name]["map"], correct=row[name]["correct"])
    return found


def table(groups: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The summary in lines, in per cent of the models: any map / correct."""
    yield f"{'any map / correct':<42}" + "".join(f"{name:>18}" for name in LIBRARIES)
    for group, counts in groups.items():
        models = counts["models"]
        shares = [f"{counts[name]['map'] / models:.0%} / {counts[name]['correct'] / models:.0%}" for name in LIBRARIES]
        yield f"{f'{group} ({models})':<42}" + "".join(f"{share:>18}" for share in shares)


def main(
    group: Annotated[str, typer.Option(help="Only groups whose name contains this.")] = "",
    only: Annotated[str, typer.Option(help="Only the model of this name.")] = "",
    threads: Annotated[int, typer.Option(help="Threads torch may use.")] = 2,
) -> None:
    """Measure, print a table, and keep the numbers beside this script where nothing was left out."""
    torch.set_num_threads(threads)
    logging.disable(logging.WARNING)
    rows = []
    for name_of_group, models in groups().items():
        for name, model in models.items():
            if group.lower() in name_of_group.lower() and only in ("", name):
                rows.append(measure(name, name_of_group, model))
                print(_line(rows[-1]), flush=True)
    found = summary(rows)
    print("", *table(found), sep="\n")
    if not (group or only):
        versions = {name: version(name) for name in ("timm", "transformers", "torchcam", "grad-cam")}
        head = json.dumps({"machine": machine(threads) | versions, "groups": found}, indent=1).removesuffix("\n}")
        models = ",\n".join(f"  {json.dumps(row)}" for row in rows)  # a line each
        text = f'{head},\n "models": [\n{models}\n ]\n}}\n'
        Path(__file__).with_suffix(".json").write_text(text, encoding="utf-8")


def _line(row: Mapping[str, Any]) -> str:
    marks = [f"{name} {'+' if row[name]['correct'] else 'wrong' if row[name]['map'] else '-'}" for name in LIBRARIES]
    return f"{row['group']}, {row['model']}: {', '.join(marks)}"


if __name__ == "__main__":
    typer.run(main)
