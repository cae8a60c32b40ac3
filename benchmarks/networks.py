"""Trained networks with questions, for the benchmarks of faithfulness.

Networks of ImageNet answer about photos, those of scenes (the demo's, and those of ``tools/train_scene_models.py``)
about scenes that none of them was trained on and nothing was tuned on. A question is a prepared image and a class that
the network recognizes in it; :class:`MapJudge` judges maps that answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import camtool
from benchmarks.package_photos import read_package_photos
from benchmarks.photos import read_labels
from camtool.demo.camnet import SIZE, load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.hooks.fast_repeated_passes import FoldedModel
from camtool.maps import upcast
from camtool.methods.registry import METHODS
from camtool.targets import ClassScore, Region, Target
from camtool.trust.metrics import faithfulness
from camtool.trust.metrics.localization import compute_energy_in_mask
from camtool.trust.metrics.mosaics import choose_tiles, make_mosaics
from tools.train_scene_models import NETWORKS, build

PhotosOption: TypeAlias = Annotated[
    Path | None, typer.Option("--photos", help="Folder with photos and labels.csv, on which defaults were tuned.")
]
WeightsOption: TypeAlias = Annotated[
    list[str], typer.Option("--weights", help="NAME=FILE of an architecture with weights of ImageNet; may be repeated.")
]
ScenesOption: TypeAlias = Annotated[
    Path | None, typer.Option("--scenes", help="Folder with networks of tools/train_scene_models.py.")
]

TITLES = {
    "mobilenet_v2": "MobileNetV2",
    "squeezenet1_1": "SqueezeNet 1.1",
    "timm:tf_efficientnet_lite0": "EfficientNet-Lite0",
    "demo": "demo",
    "resnet": "ResNet",
    "convnext": "ConvNeXt",
    "vit": "ViT",
    "swin": "Swin",
    "unet": "U-Net",
}
"""Name of each network, as in the tables."""

TUNED, HELD_OUT = "tuned", "unseen"
"""Places of questions: photos on which defaults were tuned, and those, or scenes, on which nothing was."""

_LEAST, _CONFIDENT = 0.1, 0.5
"""The least probability of the class, and that on photos in mosaics."""

_MOSAICS = 16
"""Most photos in mosaics, each in one as the photo that is explained."""

FIRST_SCENE = UNSEEN + 2_000_000
"""The first seed of the scenes, far from those on which faithcam was tuned."""


@dataclass(frozen=True, eq=False)
class Question:
    """A prepared image and a class.

    Attributes:
        inputs: ``(1, C, H, W)``.
        index: The class.
        probability: Its probability.
        mask: ``(H, W)``, where the heat belongs; ``None`` where this is not known.
        region: ``(H, W)``, for a segmenter the pixels that it takes for the class; the score is their mean logit.
    """

    inputs: Tensor
    index: int
    probability: float
    mask: NDArray[np.bool_] | None = None
    region: Tensor | None = None

    @property
    def target(self) -> Target:
        """The score as a target of :func:`camtool.explain`."""
        return ClassScore(self.index) if self.region is None else Region(self.index, self.region)


@dataclass(frozen=True, eq=False)
class QuestionScore:
    """The score of a question as a function of images and rows, as the metrics take it.

    Args:
        model: The network.
        question: The question.
        kind: ``"logit"`` or ``"probability"``.
    """

    model: FoldedModel
    question: Question
    kind: str = "logit"

    @property
    def chunk_size(self) -> int:
        """How many images fit into memory at once."""
        return self.model.chunk_size

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the scores ``(M,)`` of images ``(M, C, H, W)``; all rows have the same question."""
        output = upcast(torch.as_tensor(self.model(images)))
        planes = (output.softmax(1) if self.kind == "probability" else output)[:, self.question.index]
        region = self.question.region
        return planes if region is None else (planes * region).sum((1, 2)) / region.sum()


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network.

    Attributes:
        name: Its name, a key of :data:`TITLES`.
        model: The network, in evaluation mode.
        images: By place, the images with their classes, ``None`` for the class of the highest probability.
        transform: How photos are prepared; ``None`` for a network of scenes.
    """

    name: str
    model: nn.Module
    transform: Any = None
    images: dict[str, list[tuple[Image.Image, int | None]]] = field(default_factory=dict)

    def list_questions(self, place: str = HELD_OUT, most: int = 60) -> list[Question]:
        """Return questions about images of one object each, those that the network recognizes among the first ones."""
        if self.transform is None:
            return [*self._ask_scenes(1, most)] if place == HELD_OUT else []
        asked = (self.ask(image, index) for image, index in self.images.get(place, [])[:most])
        return [question for question in asked if question is not None]

    def list_pointing(self, questions: Sequence[Question], most: int = 30) -> list[Question]:
        """Return questions with a mask: mosaics of four of these photos, or scenes of two objects."""
        if self.transform is None:
            return [*self._ask_scenes(2, most)]
        confident: dict[int, Question] = {}
        for question in questions:
            if question.probability >= _CONFIDENT:
                confident.setdefault(question.index, question)
        chosen = [*confident.values()][:_MOSAICS]
        if len(chosen) < 4:
            return []
        tiles, cells = choose_tiles(torch.tensor([question.index for question in chosen]))
        mosaics = make_mosaics(torch.cat([question.inputs for question in chosen]), tiles)
        return [
            Question(mosaic[None], question.index, question.probability, _mark_quarter(mosaic, int(cell)))
            for question, mosaic, cell in zip(chosen, mosaics, cells, strict=True)
        ]

    def ask(self, image: Image.Image, index: int | None = None, least: float = _LEAST) -> Question | None:
        """Return the question about a photo and its class, by default the top one; None if it is not recognized."""
        inputs = torch.as_tensor(self.transform(image))[None].clone()
        with torch.inference_mode():
            probabilities = self.model(inputs)[0].softmax(0)
        index = int(probabilities.argmax()) if index is None else index
        probability = float(probabilities[index])
        return Question(inputs, index, probability) if probability >= least else None

    def _ask_scenes(self, objects: int, count: int) -> Iterator[Question]:
        """Yield a question for each object of scenes that the network recognizes."""
        for seed in range(FIRST_SCENE, FIRST_SCENE + count):
            scene = draw_scene(seed, objects=objects, size=SIZE)
            inputs = prepare_images(scene.image[None])
            with torch.inference_mode():
                output = self.model(inputs)[0]
            probabilities = output.softmax(0)
            if output.ndim == 3:
                top = output.argmax(0)
                for item in scene.objects:
                    region = (top == item.index).float()
                    if region[torch.from_numpy(item.mask)].mean() > 0.5:
                        probability = float(probabilities[item.index][region > 0].mean())
                        yield Question(inputs, item.index, probability, item.mask, region)
            elif {item.index for item in scene.objects} == {*output.topk(objects).indices.tolist()}:
                for item in scene.objects:
                    yield Question(inputs, item.index, float(probabilities[item.index]), item.mask)

    @cached_property
    def folded(self) -> FoldedModel:
        """The network for many forward passes."""
        side = SIZE if self.transform is None else 224
        return FoldedModel(self.model, torch.zeros(1, 3, side, side))


def _mark_quarter(mosaic: Tensor, cell: int) -> NDArray[np.bool_]:
    mask = np.zeros(tuple(mosaic.shape[1:]), bool)
    (height, width), (row, column) = (side // 2 for side in mask.shape), divmod(cell, 2)
    mask[row * height : (row + 1) * height, column * width : (column + 1) * width] = True
    return mask


def read_networks(
    weights: Sequence[str] = (), photos: Path | None = None, scenes: Path | None = None
) -> Iterator[Network]:
    """Yield the networks of ImageNet with photos, and those of scenes; without a folder of scenes none of these.

    Args:
        weights: ``NAME=FILE`` for each network of ImageNet.
        photos: A folder with photos and a ``labels.csv``, which become the questions of the place :data:`TUNED`.
        scenes: A folder with files of ``tools/train_scene_models.py``.
    """
    images: dict[str, list[tuple[Image.Image, int | None]]] = {
        HELD_OUT: [(one, None) for _, one in read_package_photos()]
    }
    if photos is not None:
        images[TUNED] = [(Image.open(path).convert("RGB"), index) for path, index in read_labels(photos)]
    for name, file in (pair.split("=", 1) for pair in weights):
        loaded = camtool.load(name, file)
        assert loaded.transform is not None
        yield Network(name, loaded.model, loaded.transform, images)
    if scenes is not None:
        yield Network("demo", load_honest_model().model)
        for name in TITLES:
            if name in NETWORKS and (scenes / f"{name}.safetensors").exists():
                yield Network(name, build(name, scenes / f"{name}.safetensors"))


# ----------------------------------------------------------------------------------------------------------- measures

Heat: TypeAlias = "NDArray[np.floating[Any]]"
Explain: TypeAlias = Callable[[nn.Module, Question], Heat]
"""A function of a model and a question: a heatmap at the size of the input."""

Measured: TypeAlias = dict[str, "NDArray[np.float64]"]
"""Values of each measure, one for each question."""

MEASURES = {
    "cells": "single deletion",
    "fine": "49 blurred cells",
    "masks": "masks",
    "insertion": "insertion",
    "pointing": "pointing",
}
"""Measures of :class:`MapJudge`, with their names in tables. All are higher for better maps.

``cells``: Spearman's correlation of the heat in 4 x 4 cells with the drop of the logit when a cell is set to 0, the
mean color. ``fine``: the same with 7 x 7 cells that are blurred. ``masks``: the metric ``faithfulness-correlation``.
``insertion``: the mean probability while the hottest pixels are inserted into the blurred image, less that while they
are deleted. ``pointing``: the share of the heat on the right photo of a mosaic of four, or on the right object of a
scene of two.
"""

_STEPS = 10
"""Steps of insertion and deletion."""


class MapJudge:
    """Questions of a network, with what removing parts of their images does, which all methods are compared with.

    Args:
        network: The network.
        place: :data:`TUNED` or :data:`HELD_OUT`.
        measures: Names of :data:`MEASURES`.
        most: Most images of one object, or photos.
        most_pointing: Most scenes of two objects.
    """

    def __init__(
        self,
        network: Network,
        place: str = HELD_OUT,
        measures: Sequence[str] = tuple(MEASURES),
        *,
        most: int = 60,
        most_pointing: int = 30,
    ) -> None:
        self._model, self._measures = network.model, measures
        self.questions = network.list_questions(place, most)
        self.pointing = network.list_pointing(self.questions, most_pointing) if "pointing" in measures else []
        self._folded = network.folded
        self._drops = [self._remove_parts(question) for question in self.questions]

    def _remove_parts(self, question: Question) -> dict[str, Tensor]:
        score, drops = QuestionScore(self._folded, question), dict[str, Tensor]()
        if "cells" in self._measures:
            drops["cells"] = faithfulness.measure_cell_drops(score, question.inputs)
        if "fine" in self._measures:
            drops["fine"] = faithfulness.measure_cell_drops(score, question.inputs, cells=7, removal="blur")
        if "masks" in self._measures:
            drops["masks"] = faithfulness.measure_mask_drops(score, question.inputs)
        return drops

    def measure(self, explain: Explain, without: Sequence[str] = ()) -> Measured:
        """Return each measure of a method, one value for each question, without those that are named."""
        rows = [
            self._judge(explain(self._model, question), question, drops, without)
            for question, drops in zip(self.questions, self._drops, strict=True)
        ]
        measured = {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}
        if self.pointing and "pointing" not in without:
            shares = [
                compute_energy_in_mask(explain(self._model, question), question.mask)
                for question in self.pointing
                if question.mask is not None
            ]
            measured["pointing"] = np.array(shares, float)
        return measured

    def _judge(
        self, heat: Heat, question: Question, drops: dict[str, Tensor], without: Sequence[str]
    ) -> dict[str, float]:
        maps = torch.from_numpy(np.ascontiguousarray(heat))[None].float()
        values: dict[str, Any] = {}
        for name, cells in (("cells", 4), ("fine", 7)):
            if name in drops:
                values[name] = faithfulness.compare_with_cell_drops(maps, drops[name], cells=cells)
        if "masks" in drops:
            values["masks"] = faithfulness.compare_with_mask_drops(maps, drops["masks"])
        if "insertion" in self._measures and "insertion" not in without:
            score, inputs = QuestionScore(self._folded, question, "probability"), question.inputs
            values["insertion"] = faithfulness.compute_insertion(score, inputs, maps, steps=_STEPS)
            values["insertion"] -= faithfulness.compute_deletion(score, inputs, maps, steps=_STEPS, removal="blur")
        return {name: float(value) for name, value in values.items()}


def explain_by(method: str | Callable[..., Tensor], **options: Any) -> Explain:
    """Return the function that explains a question by a method of camtool or a function of evidence."""

    def explain(model: nn.Module, question: Question) -> Heat:
        (result,) = camtool.explain(model, question.inputs, [question.target], method=method, **options)
        return result.heatmap

    return explain


def summarize(values: NDArray[np.float64], reference: NDArray[np.float64] | None = None) -> list[float]:
    """Return the mean and its standard error; with a reference also the mean of the paired gains and its own.

    Questions without a finite value in both are left out, as those whose heat is constant.
    """
    known = np.isfinite(values) if reference is None else np.isfinite(values) & np.isfinite(reference)
    columns = [values[known]] if reference is None else [values[known], (values - reference)[known]]
    numbers = [
        number
        for column in columns
        for number in (column.mean(), column.std(ddof=1) / len(column) ** 0.5 if len(column) > 1 else np.nan)
    ]
    return [round(float(number), 3) for number in numbers]


# ------------------------------------------------------------------------------------------------------------- tables


def format_table(file: str, rows: dict[str, Any], names: Sequence[str], measure: str, *, is_gain: bool = False) -> str:
    """Return a table in Markdown with methods as rows and networks as columns, with its mark.

    Bold is more than two standard errors above the reference, italic more than two below it.

    Args:
        file: Name of the JSON file of the numbers.
        rows: Name to network to measure to the numbers of :func:`summarize`.
        names: The rows, in order.
        measure: The measure.
        is_gain: Print the gains over the reference, not the means.
    """
    columns = [key for key in TITLES if any(measure in rows.get(name, {}).get(key, {}) for name in names)]
    lines = [f"<!-- numbers: benchmarks/{file} -->", "| | " + " | ".join(TITLES[key] for key in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in names:
        entries = [rows.get(name, {}).get(key, {}).get(measure) for key in columns]
        if any(entries):
            cells = [_format_entry(entry, is_gain=is_gain) for entry in entries]
            lines.append(" | ".join([f"| {_format_label(name)}", *cells]) + " |")
    return "\n".join(lines)


def format_counts(rows: dict[str, Any], names: Sequence[str], titles: Mapping[str, str]) -> str:
    """Return a table in Markdown with methods as rows and measures as columns: a reference beaten, or not.

    A cell has the numbers of networks on which the method is more than two standard errors ahead of its reference (+)
    and behind it (-), and the lowest and the highest gain.
    """
    lines = ["| | " + " | ".join(title.lower() for title in titles.values()) + " |", "|---" * (len(titles) + 1) + "|"]
    for name in names:
        cells = []
        for measure in titles:
            entries = [entry for key, entry in rows[name].items() if key in TITLES]
            cells.append(_count_gains([entry[measure][2:] for entry in entries if measure in entry]))
        lines.append(" | ".join([f"| {_format_label(name)}", *cells]) + " |")
    return "\n".join(lines)


def _count_gains(gains: Sequence[Sequence[float]]) -> str:
    if not gains:
        return "-"
    ahead, behind = (sum(sign * gain > 2 * error for gain, error in gains) for sign in (1, -1))
    low, high = min(gain for gain, _ in gains), max(gain for gain, _ in gains)
    return f"+{ahead} -{behind} of {len(gains)}, {low:+.3f} to {high:+.3f}"


def format_pairs(file: str, rows: dict[str, Any], pairs: Mapping[str, str], titles: Mapping[str, str]) -> str:
    """Return a table in Markdown with networks and methods as rows and measures as columns, with its mark.

    A cell has the mean of a method and that of its counterpart, marked as in :func:`format_table`. It has no rows for
    methods that do not fit a network.

    Args:
        file: Name of the JSON file of the numbers.
        rows: Name to network to measure to the numbers of :func:`summarize`.
        pairs: Name to the name of the counterpart, whose gains are over the first.
        titles: Measure to title.
    """
    head = ["| | " + " | ".join(title.lower() for title in titles.values()) + " |", "|---" * (len(titles) + 1) + "|"]
    lines = [f"<!-- numbers: benchmarks/{file} -->", *head]
    for key, network in TITLES.items():
        for name, counterpart in pairs.items():
            plain, other = rows.get(name, {}).get(key), rows.get(counterpart, {}).get(key)
            if plain and other:
                entries = [(plain.get(measure), other.get(measure)) for measure in titles]
                both = [[_format_entry(entry, is_gain=False) for entry in pair] for pair in entries]
                cells = ["-" if cell == ["-", "-"] else " → ".join(cell) for cell in both]
                lines.append(" | ".join([f"| {network}, {_format_label(name)}", *cells]) + " |")
    return "\n".join(lines)


def _format_label(name: str) -> str:
    return f"`{name}`" if name in METHODS else name


def _format_entry(entry: list[float] | None, *, is_gain: bool) -> str:
    if entry is None:
        return "-"
    mean, _, gain, error = entry
    text = f"{gain:+.3f}" if is_gain else f"{mean:.3f}"
    return text if abs(gain) <= 2 * error else f"**{text}**" if gain > 0 else f"*{text}*"


def write_between(page: Path, mark: str, text: str) -> None:
    """Replace what stands between ``<!-- MARK -->`` and ``<!-- /MARK -->`` in a page."""
    start, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    page.write_text(f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
