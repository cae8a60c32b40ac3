"""Two models on the same images: what is kept of each image, and the scores of both if a region of it is covered.

Everything is placed on the part of the photo that both models see, so the models may have other layers, sizes and
preprocessing. This part is divided into 10 x 10 cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from camtool.errors import ImageError, MetricError
from camtool.evaluation.audit.cues.candidates import draw_shifts
from camtool.evaluation.audit.images import GRID, PASSES_PER_MAP, AuditImages, share_heat
from camtool.evaluation.audit.split import Record, compute_perceptual_hash
from camtool.geometry.crop_and_resize import Geometry
from camtool.inputs.image_files import limit_side
from camtool.inputs.prepared_inputs import PreparedInput, group_into_batches
from camtool.rendering.image_writing import encode_image
from camtool.rendering.views import Photo, View
from camtool.trust.metrics.removal import impute_linear

# Top, left, bottom, right as shares of the photo.
Box: TypeAlias = "tuple[float, float, float, float]"

# The cost of an image in forward passes: for each model the answer, and a forward and a backward pass for the map.
PASSES_PER_PAIR = 2 * PASSES_PER_MAP

# The cost of its two pictures, which need no answers.
PASSES_PER_PICTURE = PASSES_PER_PAIR - 2

# Side of the grid on which maps are sampled, and regions shifted.
_FINE = 4 * GRID

# Longest side of a picture, in pixels.
_PICTURE = 360


@dataclass(frozen=True, eq=False)
class PairRecord(Record):
    """The numbers that are kept of an image in a comparison. Pairs are of the old model and the new one.

    ``target`` is the label, or the class of the highest mean probability of both models.

    Attributes:
        answers: ``(2,)``, the classes of the highest scores.
        probabilities: ``(2,)``, of ``target``.
        deviations: ``(2,)``, the standard deviation of the logits over classes.
        correlation: The correlation of the two maps; 1 if neither has any heat.
        heat: ``(2, GRID, GRID)``, the share of the heat for ``target`` in each cell; zeros for no heat.
    """

    answers: NDArray[np.int_]
    probabilities: NDArray[np.float64]
    deviations: NDArray[np.float64]
    correlation: float
    heat: NDArray[np.float64]

    @property
    def difference(self) -> NDArray[np.float64]:
        """``(GRID, GRID)``, the share of the heat of the new model minus that of the old one."""
        return np.asarray(self.heat[1] - self.heat[0])

    @property
    def moved(self) -> float:
        """The share of the heat that is in other cells, 0 to 1."""
        return float(np.abs(self.difference).sum() / 2)

    def to_list(self) -> list[float]:
        """Return all values in a flat list, see :meth:`from_list`."""
        parts = (self.answers, self.probabilities, self.deviations, [self.correlation], self.heat.ravel(), self.hash)
        return [float(self.target), *np.concatenate(parts).astype(float).tolist()]

    @classmethod
    def from_list(cls, index: int, values: Sequence[float]) -> PairRecord:
        """Return the record with these values."""
        pairs, heat, hashed = np.split(np.asarray(values[1:]), [7, 7 + 2 * GRID**2])
        target, codes, shares = int(values[0]), hashed.astype(np.uint8), heat.reshape(2, GRID, GRID)
        return cls(index, target, codes, pairs[:2].astype(int), pairs[2:4], pairs[4:6], float(pairs[6]), shares)


@dataclass(eq=False)
class PairedImages:
    """The images, and the two models.

    Attributes:
        old: The images with the old model.
        new: The same images with the new one.
        labels: The class of each image; None for the classes of the highest mean probability of both models.
    """

    old: AuditImages
    new: AuditImages
    labels: Sequence[int] | None
    _is_checked: bool = field(default=False, init=False)

    @property
    def sides(self) -> tuple[AuditImages, AuditImages]:
        """The images with each model."""
        return self.old, self.new

    def record_batch(self, numbers: Sequence[int]) -> Iterator[tuple[int, PairRecord | str]]:
        """Yield the number of each image with its record, or with why it cannot be compared.

        Raises:
            MetricError: A model is no classifier by softmax, or the two have other classes.
        """
        pairs: dict[int, tuple[PreparedInput, PreparedInput]] = {}
        for index in numbers:
            try:
                pairs[index] = self.old.prepare(index), self.new.prepare(index)
                find_common_box(*(image.geometry for image in pairs[index]))
            except ImageError as error:  # noqa: PERF203  any image may be damaged
                pairs.pop(index, None)
                yield index, str(error)
        if pairs:
            yield from self._record(pairs)

    def _record(self, pairs: dict[int, tuple[PreparedInput, PreparedInput]]) -> Iterator[tuple[int, PairRecord]]:
        inputs = [[pair[side] for pair in pairs.values()] for side in (0, 1)]
        if not self._is_checked:
            self._check(*inputs)
        logits = torch.stack([self._score(side, items) for side, items in zip(self.sides, inputs, strict=True)])
        answers, deviations, shares = logits.argmax(2).numpy(), logits.std(2).numpy(), logits.softmax(2)
        # The old model's answers would be classes that the old model, and not the new one, was selected to be sure of.
        targets = shares.mean(0).argmax(1).tolist() if self.labels is None else [self.labels[row] for row in pairs]
        maps = [side.map_classes(items, targets) for side, items in zip(self.sides, inputs, strict=True)]
        probabilities = shares[:, torch.arange(len(pairs)), torch.tensor(targets)].numpy()
        for row, (index, images) in enumerate(pairs.items()):
            before, after = images[0].geometry, images[1].geometry
            box = find_common_box(before, after)
            old, new = place_in_box(maps[0][row], before, box), place_in_box(maps[1][row], after, box)
            heat, codes = share_heat(torch.from_numpy(np.stack([old, new]))), compute_perceptual_hash(images[0].photo)
            numbers = answers[:, row], probabilities[:, row], deviations[:, row]
            yield index, PairRecord(index, targets[row], codes, *numbers, _correlate(old, new), heat.numpy())

    def _check(self, *inputs: list[PreparedInput]) -> None:
        """Check that both models answer with one of the same classes.

        Raises:
            MetricError: They do not, or a label is none of them.
        """
        counts = []
        for name, side, items in zip(("old", "new"), self.sides, inputs, strict=True):
            batch = next(group_into_batches(items, side.batch_size))
            link = next(side.subject.iterate_batches(batch, [None] * len(batch), len(batch))).link
            if link != "softmax":
                raise MetricError(
                    f"{name}: its scores become probabilities by {link}; a comparison needs classifiers of one class "
                    "per image (softmax). Models of several labels, segmenters and detectors are not compared."
                )
            counts.append(side.score(batch[0].tensor[None]).shape[1])
        if counts[0] != counts[1]:
            raise MetricError(f"new has {counts[1]} classes and old has {counts[0]}; give models of the same classes.")
        if max(self.labels or (0,)) >= counts[0]:
            raise MetricError(f"labels: {max(self.labels or ())} is no class of the models, which have {counts[0]}.")
        self._is_checked = True

    def _score(self, side: AuditImages, items: list[PreparedInput]) -> Tensor:
        batches = group_into_batches(items, side.batch_size)
        return torch.cat([side.score(torch.stack([item.tensor for item in batch])) for batch in batches])

    def score_covered(
        self,
        record: PairRecord,
        partner: int | None,
        cells: NDArray[np.bool_],
        controls: int,
        random: np.random.Generator,
    ) -> list[float]:
        """Return margins and probabilities of an image, and of it with a region and control regions covered.

        Args:
            record: The image.
            partner: The image, of another class, that covers the region; None for inpainting alone.
            cells: ``(GRID, GRID)``, the region.
            controls: The number of control regions, which are the same for both models.
            random: Draws them.

        Returns:
            ``(2 models, margin or probability, fills, unchanged + region + controls)``, flat; empty if the region is
            empty for a model.
        """
        region = torch.from_numpy(cells.repeat(_FINE // GRID, 0).repeat(_FINE // GRID, 1))
        shifts = draw_shifts(region, controls, random)
        regions = torch.stack([torch.roll(region, shift, (0, 1)) for shift in shifts])
        images = [side.prepare(record.index) for side in self.sides]
        box = find_common_box(*(image.geometry for image in images))
        values, covered = list[float](), list[Tensor]()
        for side, image in zip(self.sides, images, strict=True):
            # Models of the same preprocessing, e.g. of one architecture, have the same covered images.
            if side is self.old or not _is_same(*images):
                covered = _cover(image, None if partner is None else side.prepare(partner), box, regions)
            if not covered:
                return []
            logits = side.score(torch.cat([image.tensor[None], *(part.to(image.tensor) for part in covered)]))
            values += side.list_margins(logits, record.target, len(covered))
        return values

    def draw_pictures(self, record: PairRecord) -> tuple[bytes, bytes]:
        """Return the overlays of both models as JPEG files of at most 360 pixels."""
        pictures = []
        for side in self.sides:
            image = side.prepare(record.index)
            (heat,) = side.map_classes([image], [record.target])
            photo = limit_side(Image.fromarray(image.photo), _PICTURE)
            small = _move_to_box(image.geometry, (0, 0, 1, 1), (photo.height, photo.width))
            view: View = Photo(np.asarray(photo), small)
            view = view.enlarge() if max(image.photo.shape[:2]) <= _PICTURE else view
            pixels = view.draw_overlay(view.to_heatmap(heat.numpy().astype(np.float32)))
            pictures.append(encode_image(pixels, ".jpg", quality=85))
        return pictures[0], pictures[1]


def _is_same(old: PreparedInput, new: PreparedInput) -> bool:
    return old.geometry == new.geometry and torch.equal(old.tensor, new.tensor.to(old.tensor.device))


def _cover(image: PreparedInput, partner: PreparedInput | None, box: Box, regions: Tensor) -> list[Tensor]:
    """Return an input with each region of the fine grid covered, by each fill; empty if a region has no pixels."""
    tensor, geometry = image.tensor, _move_to_box(image.geometry, box)
    size = (tensor.shape[-2], tensor.shape[-1])
    masks = torch.stack([geometry.to_input_mask(region.double(), size) >= 0.5 for region in regions]).to(tensor.device)
    if not masks.flatten(1).any(1).all():
        return []
    copies = tensor.expand(len(masks), *tensor.shape)
    covered = [impute_linear(copies, masks)]
    if partner is not None and partner.tensor.shape == tensor.shape:
        covered.append(torch.where(masks[:, None], partner.tensor, copies))
    return covered


def find_common_box(old: Geometry, new: Geometry) -> Box:
    """Return the part of the photo that both inputs show.

    Raises:
        ImageError: There is none.
    """
    shares = [np.divide(geometry.box, geometry.photo * 2) for geometry in (old, new)]
    corners = np.sort(np.reshape(shares, (2, 2, 2)), 1)  # of each input: top and left, then bottom and right
    top, left = corners[:, 0].max(0).clip(min=0).tolist()
    bottom, right = corners[:, 1].min(0).clip(max=1).tolist()
    if bottom <= top or right <= left:
        raise ImageError("the two models see no common part of this image; give them transforms that overlap.")
    return top, left, bottom, right


def place_in_box(heat: Tensor, geometry: Geometry, box: Box) -> NDArray[np.float64]:
    """Return a map ``(H, W)`` over a model's input on a part of the photo, ``(4 GRID, 4 GRID)``."""
    return _move_to_box(geometry, box).place_on_photo(heat.double()).numpy()


def _move_to_box(geometry: Geometry, box: Box, size: tuple[int, int] = (_FINE, _FINE)) -> Geometry:
    """Return the geometry on a photo that is cropped to a box, in shares of its sides, and resized."""
    (height, width), edges = geometry.photo, geometry.box
    lengths = (box[2] - box[0]) * height, (box[3] - box[1]) * width
    top, bottom = (size[0] * (edge - box[0] * height) / lengths[0] for edge in edges[::2])
    left, right = (size[1] * (edge - box[1] * width) / lengths[1] for edge in edges[1::2])
    return Geometry(size, geometry.size, (top, left, bottom, right))


def _correlate(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """Return the correlation of two maps; of constant ones 1 if both are, else 0."""
    deviations = old.std(), new.std()
    if min(deviations) < 1e-12:
        return float(max(deviations) < 1e-12)
    return float(np.corrcoef(old.ravel(), new.ravel())[0, 1])
