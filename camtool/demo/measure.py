"""What the demo's models can do, and where they look, measured on scenes they have never seen.

The model card's figures come from here, and so do those of the tests that re-measure them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.demo.camnet import prepared
from camtool.demo.scenes import LABELS, Box, Scene, scene

__all__ = ["UNSEEN", "Pointing", "accuracy", "both_found", "energy_at_mark", "energy_in", "pointing"]

UNSEEN = 1_000_000_000
"""Seeds from here on are never trained on."""

_BATCH = 64


@dataclass(frozen=True)
class Pointing:
    """How well maps find the object they were asked for.

    Attributes:
        hits: The part of the maps whose highest pixel lies on the object: the pointing game, without a tolerance.
        energy: The mean part of a map's heat that lies on the object.
        share: The mean part of the picture that the object covers: what ``energy`` would be by chance.
    """

    hits: float
    energy: float
    share: float


def accuracy(model: nn.Module, seeds: Iterable[int], *, label: str | None = None, mark: bool = False) -> float:
    """The part of scenes with one object that the model names rightly.

    Args:
        model: In evaluation mode.
        seeds: Which scenes.
        label: The class of all objects; ``None`` leaves each scene its own.
        mark: Whether the scenes bear the watermark.
    """
    classes = None if label is None else [label]
    scenes = (scene(seed, classes=classes, mark=mark) for seed in seeds)
    right = [
        logits.argmax(1).eq(torch.tensor([each.objects[0].index for each in batch]))
        for batch in _batches(scenes)
        for logits in [_logits(model, batch)]
    ]
    return float(torch.cat(right).double().mean())


def both_found(model: nn.Module, seeds: Iterable[int]) -> float:
    """The part of scenes with two objects for which the two highest scores are theirs."""
    found = [
        set(row) == {thing.index for thing in each.objects}
        for batch in _batches(scene(seed, objects=2) for seed in seeds)
        for row, each in zip(_logits(model, batch).topk(2).indices.tolist(), batch, strict=True)
    ]
    return float(np.mean(found))


def pointing(model: nn.Module, seeds: Iterable[int], *, objects: int = 2, method: str = "gradcam") -> Pointing:
    """Ask for each object of each scene in turn, and look where the map points.

    Args:
        model: In evaluation mode.
        seeds: Which scenes.
        objects: How many objects they have.
        method: A name in :data:`camtool.METHODS`.
    """
    from camtool.explanation import Explainer

    explainer = Explainer(model, method)
    rows = [
        (thing.mask.flat[heat.argmax()], energy_in(heat, thing.mask), thing.mask.mean())
        for batch in _batches(scene(seed, objects=objects) for seed in seeds)
        for each, maps in zip(batch, explainer(_inputs(batch), _wanted(batch)), strict=True)
        for thing, heat in zip(each.objects, (one.heatmap for one in maps), strict=True)
    ]
    return Pointing(*np.asarray(rows, float).mean(0).tolist())


def energy_at_mark(model: nn.Module, seeds: Iterable[int], label: str, *, method: str = "gradcam") -> float:
    """The mean part of a map's heat that lies near the watermark, on marked scenes of a class, asked for that class.

    Near is within the mark's box grown by half its side.
    """
    from camtool.explanation import Explainer

    explainer = Explainer(model, method)
    energies = [
        energy_in(result.heatmap, _around(each.mark, result.heatmap.shape))
        for batch in _batches(scene(seed, classes=[label], mark=True) for seed in seeds)
        for each, result in zip(batch, explainer(_inputs(batch), LABELS.index(label)), strict=True)
        if each.mark is not None
    ]
    return float(np.mean(energies))


def energy_in(heat: NDArray[np.float32], region: NDArray[np.bool_]) -> float:
    """The part of a map's heat that lies in a region; 0 for an empty map."""
    total = float(heat.sum(dtype=np.float64))
    return float(heat[region].sum(dtype=np.float64)) / total if total > 0 else 0.0


def _around(box: Box, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    left, top, right, bottom = box
    margin = (right - left) // 2
    region = np.zeros(shape, bool)
    region[max(top - margin, 0) : bottom + margin, max(left - margin, 0) : right + margin] = True
    return region


def _wanted(batch: Sequence[Scene]) -> list[list[int]]:
    return [[thing.index for thing in each.objects] for each in batch]


def _batches(scenes: Iterator[Scene]) -> Iterator[list[Scene]]:
    while batch := list(islice(scenes, _BATCH)):
        yield batch


def _inputs(batch: Sequence[Scene]) -> Tensor:
    return prepared(np.stack([each.image for each in batch]))


def _logits(model: nn.Module, batch: Sequence[Scene]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(_inputs(batch))
    return logits
