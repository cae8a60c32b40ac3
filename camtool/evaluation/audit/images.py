"""The images of an audit: each is read again when it is needed, so that memory does not grow with their number.

What is kept of each is a record of few numbers: answer, heat in cells, perceptual hash, properties of the photo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from camtool.errors import ImageError, MetricError
from camtool.evaluation.audit.photo_properties import measure_properties
from camtool.evaluation.audit.split import compute_perceptual_hash, read_capture_time
from camtool.evaluation.candidates import Candidate as Method
from camtool.evaluation.candidates import map_candidates
from camtool.evaluation.subject import Subject
from camtool.hooks.folded_model import FoldedModel
from camtool.hooks.observation import observe
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput, group_into_batches
from camtool.layers.selection import find_layers
from camtool.layers.survey import find_candidates
from camtool.maps import upcast
from camtool.outputs.class_scores import compute_class_scores

GRID = 10
"""Cells along each side of the model's input in which heat is compared."""

_LEAST_GRID = 7
"""Smallest side of the grid of an early layer."""

PASSES_PER_MAP = 3
"""The cost of a map in forward passes: one for the answer, then a forward and a backward pass."""


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """The numbers that are kept of an image.

    Attributes:
        index: Its place among the images of the user.
        answer: The class of the highest score.
        target: The class that it counts for: its label, or the answer.
        heat: ``(GRID, GRID)``, the share of the heat for ``target`` in each cell of the input; zeros for no heat.
        hash: The perceptual hash, bytes.
        properties: Numbers of the photo, see :mod:`camtool.evaluation.audit.photo_properties`.
    """

    index: int
    answer: int
    target: int
    heat: NDArray[np.float64]
    hash: NDArray[np.uint8]
    properties: NDArray[np.float64]

    def to_list(self) -> list[float]:
        """Return all values in a flat list, see :meth:`from_list`."""
        parts = (self.heat.ravel(), self.hash, self.properties)
        return [float(self.answer), float(self.target), *np.concatenate(parts).astype(float).tolist()]

    @classmethod
    def from_list(cls, index: int, values: Sequence[float]) -> ImageRecord:
        """Return the record with these values."""
        answer, target, *others = values
        heat, hashed, properties = np.split(np.asarray(others), [GRID**2, GRID**2 + 32])
        return cls(index, int(answer), int(target), heat.reshape(GRID, GRID), hashed.astype(np.uint8), properties)


class AuditImages:
    """The images and the model.

    Args:
        subject: The model.
        sources: Whatever :func:`camtool.explain` takes as one image each.
        labels: The class of each image, or None.
        method: The method of the maps.
        batch_size: Images in a forward pass.
    """

    def __init__(
        self, subject: Subject, sources: Sequence[Any], labels: Sequence[int] | None, method: str, batch_size: int
    ) -> None:
        self.subject, self._sources, self._labels = subject, sources, labels
        self._method, self._batch_size = method, batch_size
        self._folded: dict[torch.Size, FoldedModel] = {}
        self.heats: dict[int, NDArray[np.float64]] = {}
        self._last: tuple[int, str, Tensor] | None = None

    def __len__(self) -> int:
        return len(self._sources)

    def name(self, index: int) -> str:
        """Return the path of an image, or its number."""
        source = self._sources[index]
        return os.fspath(source) if isinstance(source, (str, os.PathLike)) else f"image {index}"

    def read_capture_time(self, index: int) -> tuple[str, float] | None:
        """Return the camera of an image, and when it was taken; None if that is unknown."""
        return read_capture_time(self._sources[index])

    def prepare(self, index: int) -> PreparedInput:
        """Return an image as the model receives it."""
        return self.subject.preparer.prepare(self._sources[index])

    def make_input(self, image: PreparedInput, photo: NDArray[np.uint8]) -> Tensor | None:
        """Return the model's input ``(C, H, W)`` for a changed photo; None if it is not known how it is made."""
        if image.is_photo:
            return self.subject.preparer.prepare(photo).tensor
        channels, height, width = image.tensor.shape
        if image.black is None or image.white is None or photo.shape != (height, width, 3) or channels not in (1, 3):
            return None
        pixels = torch.from_numpy(photo).to(image.tensor).permute(2, 0, 1)[:channels] / 255
        return image.black[:, None, None] + (image.white - image.black)[:, None, None] * pixels

    def choose_early_layer(self, index: int, most: int) -> tuple[str, int]:
        """Return the deepest of the layers with the finest grid of at most a side, and its side.

        Raises:
            CamtoolError: No layer has such a grid.
        """
        candidates = find_candidates(self.subject.model, self.prepare(index).tensor[None])
        grids = {one.name: one.layout.grid for one in candidates if one.layout is not None}
        sides = {name: min(grid) for name, grid in grids.items() if len(grid) == 2 and max(grid) <= most}
        finest = max(sides.values(), default=0)
        if finest < _LEAST_GRID:
            raise MetricError(f"model: no layer has a grid of {_LEAST_GRID} to {most} cells.")
        return [name for name, side in sides.items() if side == finest][-1], finest

    def read_activations(self, inputs: Tensor, layer: str) -> Tensor:
        """Return the activations ``(N, C, h, w)`` of a layer for inputs ``(N, C, H, W)``."""
        model = self.subject.model
        with Cleanup(), guard(model), torch.no_grad():
            (found,) = find_layers(model, inputs, [layer])
            return found.layout.to_grid(observe(model, [layer], inputs, grad=False).calls[layer][-1].detach())

    def read_activations_of(self, index: int, layer: str) -> Tensor:
        """Return the activations ``(C, h, w)`` of a layer for an image; the last ones are kept."""
        if self._last is None or self._last[:2] != (index, layer):
            self._last = index, layer, self.read_activations(self.prepare(index).tensor[None], layer)[0]
        return self._last[2]

    def iterate_records(self, indices: Sequence[int]) -> Iterator[tuple[int, ImageRecord | str]]:
        """Yield the number of each image with its record, or with why it cannot be read.

        Raises:
            MetricError: The model is no classifier by softmax.
        """
        for start in range(0, len(indices), self._batch_size):
            readable: list[tuple[int, PreparedInput]] = []
            for index in indices[start : start + self._batch_size]:
                try:
                    readable.append((index, self.prepare(index)))
                except ImageError as error:  # noqa: PERF203  any image may be damaged
                    yield index, str(error)
            done = 0
            for items in group_into_batches((item for _, item in readable), self._batch_size):
                numbers = [index for index, _ in readable[done : done + len(items)]]
                done += len(items)
                yield from self._record(items, numbers)

    def _record(self, items: list[PreparedInput], numbers: Sequence[int]) -> Iterator[tuple[int, ImageRecord]]:
        batch = InputBatch.from_prepared(items)
        labeled = next(self.subject.iterate_batches(items, [None] * len(items), len(items)))
        if labeled.link != "softmax":
            raise MetricError(
                f"model: its scores become probabilities by {labeled.link}; an audit needs a classifier of one class "
                "per image (softmax). Models of several labels, segmenters and detectors are not audited."
            )
        answers = labeled.classes.tolist()
        targets = answers if self._labels is None else [self._labels[number] for number in numbers]
        (mapped,) = map_candidates(self.subject.explainer, [Method(self._method)], batch, targets)
        cells = adaptive_avg_pool2d(mapped.maps[:, None].double(), GRID)[:, 0].cpu()
        heat = (cells / cells.sum((1, 2), keepdim=True).clamp_min(1e-12)).numpy()
        for row, (number, item) in enumerate(zip(numbers, items, strict=True)):
            properties, hashed = measure_properties(item.photo), compute_perceptual_hash(item.photo)
            yield number, ImageRecord(number, answers[row], targets[row], heat[row], hashed, properties)

    def score(self, images: Tensor) -> Tensor:
        """Return the logits ``(N, K)`` of inputs ``(N, C, H, W)``, batch by batch, on the CPU in float64.

        Raises:
            MetricError: A score is not finite.
        """
        shape = images.shape[1:]
        with Cleanup(), guard(self.subject.model), torch.no_grad():
            if shape not in self._folded:
                self._folded[shape] = FoldedModel(self.subject.model, images[:1])
            model = self._folded[shape]
            scores = [compute_class_scores(model(part), "softmax") for part in images.split(self._batch_size)]
        logits = upcast(torch.cat(scores)).double().cpu()
        if not logits.isfinite().all():
            raise MetricError("model: it returned scores that are not finite, so answers cannot be compared.")
        return logits


def measure_margins(logits: Tensor, target: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return margin, probability and answer for a class: ``(N,)`` each.

    The margin is the logit of the class minus the highest one of the others. The answer is 1 where it is above 0.
    """
    others = logits.clone()
    others[:, target] = -torch.inf
    margins = logits[:, target] - others.amax(1)
    return margins, logits.softmax(1)[:, target], (margins > 0).double()
