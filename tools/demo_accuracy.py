"""Accuracy of the demo's models and of their maps, on scenes that were not used for training.

The figures of the model cards are computed here, and so are those of the tests that check them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from camtool.demo.camnet import prepare_images
from camtool.demo.scenes import UNSEEN as UNSEEN  # the training scripts read it here
from camtool.demo.scenes import Box, Scene, draw_scene
from camtool.demo.shapes import LABELS
from camtool.errors import CamtoolError
from camtool.explaining.explainer import Explainer
from camtool.explaining.written_answers import AnswerMaps, tokens
from camtool.trust.metrics.localization import compute_energy_in_mask, is_peak_in_mask

_BATCH = 64
"""Number of scenes in one forward pass."""


@dataclass(frozen=True)
class Pointing:
    """Accuracy of maps that were asked for one object of a scene.

    Attributes:
        hits: Share of the maps whose highest pixel is on the object: the pointing game without a tolerance.
        energy: Mean share of a heatmap's sum that is on the object.
        share: Mean share of the image that the object covers: the expected ``energy`` of a constant map.
    """

    hits: float
    energy: float
    share: float


@dataclass(frozen=True)
class WordPointing(Pointing):
    """Accuracy of the maps of words that name an object of the scene.

    Attributes:
        near: Share of the maps whose highest pixel is on the object, or at most one token of the image beside it.
        named: Share of the objects that are named.
        wrong: Number of words that name another class. They have no object to point at, and are in no other figure.
        words: Number of the maps.
    """

    near: float
    named: float
    wrong: int
    words: int


def compute_accuracy(model: nn.Module, seeds: Iterable[int], *, label: str | None = None, mark: bool = False) -> float:
    """Compute the share of scenes with one object that the model classifies correctly.

    Args:
        model: In evaluation mode.
        seeds: Seeds of the scenes.
        label: Class of all objects; ``None`` for the class that each seed gives.
        mark: Draw the watermark.
    """
    classes = None if label is None else [label]
    scenes = (draw_scene(seed, classes=classes, mark=mark) for seed in seeds)
    right = [
        logits.argmax(1).eq(torch.tensor([each.objects[0].index for each in batch]))
        for batch in _iterate_batches(scenes)
        for logits in [_compute_logits(model, batch)]
    ]
    return float(torch.cat(right).double().mean())


def compute_both_found(model: nn.Module, seeds: Iterable[int]) -> float:
    """Compute the share of scenes with two objects whose classes have the two highest scores."""
    found = [
        set(row) == {item.index for item in each.objects}
        for batch in _iterate_batches(draw_scene(seed, objects=2) for seed in seeds)
        for row, each in zip(_compute_logits(model, batch).topk(2).indices.tolist(), batch, strict=True)
    ]
    return float(np.mean(found))


def play_pointing_game(
    model: nn.Module, seeds: Iterable[int], *, objects: int = 2, method: str = "gradcam"
) -> Pointing:
    """Explain each object of each scene, and compare the maps with the objects.

    Args:
        model: In evaluation mode.
        seeds: Seeds of the scenes.
        objects: Number of objects in each scene.
        method: Name of a method.
    """
    explainer = Explainer(model, method)
    rows = [
        (is_peak_in_mask(heat, item.mask), compute_energy_in_mask(heat, item.mask), item.mask.mean())
        for batch in _iterate_batches(draw_scene(seed, objects=objects) for seed in seeds)
        for each, maps in zip(batch, explainer(_stack_inputs(batch), _list_targets(batch)), strict=True)
        for item, heat in zip(each.objects, (one.heatmap for one in maps), strict=True)
    ]
    return Pointing(*np.asarray(rows, float).mean(0).tolist())


def play_word_pointing_game(
    model: nn.Module, processor: Any, seeds: Iterable[int], *, method: str, prompt: str, token: int
) -> WordPointing:
    """Let a model caption each scene of two objects, and compare the maps of the words with the objects.

    Args:
        model: A vision-language model in evaluation mode.
        processor: Its processor.
        seeds: Seeds of the scenes.
        method: Name of a method.
        prompt: The prompt of :func:`camtool.tokens`.
        token: Side of a token of the image in pixels.

    Raises:
        CamtoolError: The model names no object of any scene.
    """
    rows: list[list[float]] = []
    objects = wrong = 0
    for scene in (draw_scene(seed, objects=2) for seed in seeds):
        # Two objects are named by five words.
        maps = tokens(model, processor, scene.image, prompt, max_new_tokens=6, method=method)
        found = _compare_words(maps, scene, token)
        rows += found
        objects += len(scene.objects)
        wrong += sum(word in LABELS for word in maps.words) - len(found)
    if not rows:
        raise CamtoolError("model: it names no object of any scene, so no map can be compared; train it first.")
    hits, energy, share, near = np.asarray(rows, float).mean(0).tolist()
    return WordPointing(hits, energy, share, near, len(rows) / objects, wrong, len(rows))


def _compare_words(maps: AnswerMaps, scene: Scene, token: int) -> list[list[float]]:
    """Return, for each object that is named: the peak is on it, the energy on it, its share, the peak is near it."""
    rows = []
    for item in scene.objects:
        if item.label in maps.words:
            heat = maps[item.label].heatmap
            near = _dilate(item.mask, token)
            energy = compute_energy_in_mask(heat, item.mask)
            rows.append([is_peak_in_mask(heat, item.mask), energy, item.mask.mean(), is_peak_in_mask(heat, near)])
    return rows


def _dilate(mask: NDArray[np.bool_], margin: int) -> NDArray[np.bool_]:
    """Return a mask ``(H, W)`` that extends further by some pixels, along rows, columns and diagonals."""
    plane = torch.from_numpy(mask)[None, None].float()
    dilated: NDArray[np.bool_] = functional.max_pool2d(plane, 2 * margin + 1, 1, margin)[0, 0].bool().numpy()
    return dilated


def compute_energy_at_mark(model: nn.Module, seeds: Iterable[int], label: str, *, method: str = "gradcam") -> float:
    """Compute the mean share of a heatmap's sum that is near the watermark.

    The scenes show one class and carry the watermark. The maps explain that class. Near means within the box of the
    watermark, enlarged by half its side.
    """
    explainer = Explainer(model, method)
    energies = [
        compute_energy_in_mask(result.heatmap, _enlarge_box(each.mark, result.heatmap.shape))
        for batch in _iterate_batches(draw_scene(seed, classes=[label], mark=True) for seed in seeds)
        for each, result in zip(batch, explainer(_stack_inputs(batch), LABELS.index(label)), strict=True)
        if each.mark is not None
    ]
    return float(np.mean(energies))


def _enlarge_box(box: Box, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return a mask of a box, enlarged by half its side."""
    left, top, right, bottom = box
    margin = (right - left) // 2
    region = np.zeros(shape, bool)
    region[max(top - margin, 0) : bottom + margin, max(left - margin, 0) : right + margin] = True
    return region


def _list_targets(batch: Sequence[Scene]) -> list[list[int]]:
    """Return the classes of each scene's objects."""
    return [[item.index for item in each.objects] for each in batch]


def _iterate_batches(scenes: Iterator[Scene]) -> Iterator[list[Scene]]:
    """Yield scenes in batches."""
    while batch := list(islice(scenes, _BATCH)):
        yield batch


def _stack_inputs(batch: Sequence[Scene]) -> Tensor:
    """Return the scenes' images as one batch of inputs."""
    return prepare_images(np.stack([each.image for each in batch]))


def _compute_logits(model: nn.Module, batch: Sequence[Scene]) -> Tensor:
    """Return the logits of a batch of scenes."""
    with torch.inference_mode():
        logits: Tensor = model(_stack_inputs(batch))
    return logits
