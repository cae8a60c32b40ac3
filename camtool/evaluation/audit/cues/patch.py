"""Candidates of the kind *patch*: the hottest part of many images of a class looks the same, and hardly elsewhere.

What is under the heat is described by an early layer of the model, with its arrangement. There a mark that is stamped
on photos looks the same in all of them, while an object differs in color, size and direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d, pad

from camtool.errors import CamtoolError
from camtool.evaluation.audit.cues.candidates import Discovery, RegionCandidate, describe_place
from camtool.evaluation.audit.cues.sameness import measure_sameness
from camtool.evaluation.audit.images import AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import run_maximum_test
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.progress import Stage, follow_each

# Largest side of the grid of the layer: finer layers see edges and no form.
_MOST_GRID = 32

# Side of a patch, as a share of the grid's.
_SIDE = 3 / 16

# Patches of an image, and the cells by which they may be displaced against one another.
_PEAKS, _SHIFT = 2, 2

# Share of the images of a class that must match a patch better than all but a share of those of other classes, which
# may have a cue by chance. In trials on 300 scenes, 30 of each class, parts of objects matched in at most 11 of them,
# and planted marks in 22 to 28.
_LEAST_SHARE, _STRAY = 0.4, 0.03

_MOST_PER_CLASS = 2
# Images of a class that patches are taken from.
_MOST_IMAGES = 60


@dataclass(frozen=True, eq=False)
class PatchCandidate(RegionCandidate):
    """The part of each image that is most like a template.

    Attributes:
        layer: The layer.
        template: ``(C, k, k)``, of norm 1.
        grid: The side of the layer's grid.
        place: Where most images of the class have it, in words.
    """

    kind: ClassVar[str] = "patch"

    layer: str
    template: Tensor
    grid: int
    place: str

    @property
    def title(self) -> str:
        """The place: the name tells of an image as well."""
        return self.place

    @property
    def area(self) -> float:
        """Share of the input that it covers."""
        return (self.template.shape[-1] / self.grid) ** 2

    def encode(self) -> bytes:
        """Return the template."""
        return self.template.numpy().tobytes()

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the largest cosine of the template and a part of the image; -1 for one that is smaller."""
        cosines = self._compare(images.read_activations_of(images.prepare(record.index), self.layer))
        return float(cosines.max()) if cosines.numel() else -1.0

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the pixels of the part with the largest cosine."""
        cosines = self._compare(images.read_activations(image.tensor[None], self.layer))
        if not cosines.numel():
            return torch.zeros(image.tensor.shape[-2:], dtype=torch.bool, device=image.tensor.device)
        side = self.template.shape[-1]
        row, column = divmod(int(cosines.argmax()), cosines.shape[1])
        cells = torch.zeros(cosines.shape[0] + side - 1, cosines.shape[1] + side - 1, device=image.tensor.device)
        cells[row : row + side, column : column + side] = 1
        return interpolate(cells[None, None], image.tensor.shape[-2:], mode="nearest-exact")[0, 0] > 0

    def locate_change(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the region with a margin of a cell, or the rim of what it shows may stay, and be recognized."""
        region = self.locate(images, image)
        margin = -(-min(region.shape) // self.grid)
        return max_pool2d(region[None, None].float(), 2 * margin + 1, 1, margin)[0, 0] > 0

    def measure_sameness(self, images: AuditImages, indices: Sequence[int]) -> float | None:
        """Return the share of the pixels of the part that look the same, moved by up to a cell."""
        inputs = [images.prepare(index) for index in indices]
        margin = -(-min(inputs[0].tensor.shape[-2:]) // self.grid)
        side, parts = self.template.shape[-1] * margin, []
        for image in inputs:
            rows, columns = (self.locate(images, image).any(axis).nonzero().flatten() for axis in (1, 0))
            top, left = (int(ends[0]) if len(ends) else 0 for ends in (rows, columns))
            padded = pad(image.tensor[None], (2 * margin,) * 4, mode="replicate")[0]
            top, left = top + margin, left + margin
            parts.append(padded[:, top : top + side + 2 * margin, left : left + side + 2 * margin])
        return measure_sameness(images, indices, parts, margin)

    def _compare(self, raw: Tensor) -> Tensor:
        (activations,) = _center(raw)
        if min(activations.shape[1:]) < self.template.shape[-1]:
            return torch.empty(0, 0)
        lengths = avg_pool2d((activations**2).sum(0)[None, None], self.template.shape[-1], 1)[0, 0]
        norms = (lengths * self.template.shape[-1] ** 2).sqrt().clamp_min(1e-6)
        return conv2d(activations[None], self.template[None])[0, 0] / norms

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> PatchCandidate | None:
        """Return a patch of an image of another class, drawn at random; None if that is too small."""
        others = [record for record in discovery.records if record.target != self.target]
        record = others[int(random.integers(len(others)))]
        parts = _cut_patches(discovery.images, record, self.layer, self.template.shape[-1])
        if parts is None:
            return None
        place, template = _describe_peak(record), _normalize(parts[:1])[0]
        name = f"a patch as in {discovery.images.shorten_name(record.index)}, {place}"
        return PatchCandidate(self.target, name, self.clarity, self.layer, template, self.grid, place)


def find_patches(discovery: Discovery) -> Iterator[PatchCandidate]:
    """Yield the patches that many images of a class have at their hottest parts, and few of other classes."""
    if not discovery.targets:
        return
    try:
        layer, grid = discovery.images.choose_early_layer(discovery.records[0].index, _MOST_GRID)
    except CamtoolError:  # e.g. a model whose layers have no grid
        return
    windows = _cut_all(discovery, layer, max(2, round(_SIDE * grid)))
    for target in discovery.targets:
        yield from _find_patches_of(discovery, target, windows, layer, grid)


def _find_patches_of(
    discovery: Discovery, target: int, windows: Mapping[ImageRecord, Tensor], layer: str, grid: int
) -> Iterator[PatchCandidate]:
    """Yield the patches of a class.

    Args:
        discovery: The discovery half.
        target: The class.
        windows: The hot parts of each image that has some.
        layer: The layer.
        grid: The side of its grid.
    """
    records = [*windows]
    is_class = np.array([record.target == target for record in records])
    if not is_class.any() or is_class.all():
        return
    rows = np.flatnonzero(is_class)[:_MOST_IMAGES].tolist()
    owners = np.repeat(rows, _PEAKS)
    templates = torch.cat([_normalize(windows[records[row]]) for row in rows])
    cosines = np.stack([_match(templates, window) for window in windows.values()])  # (images, templates)
    for template in _choose_templates(cosines, is_class, owners):
        values = cosines[:, [template]]
        z = float(run_maximum_test(values, is_class, permutations=99, seed=discovery.seed).z[0])
        is_matched = is_class & (values[:, 0] > np.quantile(values[~is_class], 1 - _STRAY))
        place = _describe_usual_place([records[row] for row in np.flatnonzero(is_matched).tolist()])
        name = f"a patch as in {discovery.images.shorten_name(records[int(owners[template])].index)}, {place}"
        yield PatchCandidate(target, name, z, layer, templates[template], grid, place)


def _cut_all(discovery: Discovery, layer: str, side: int) -> dict[ImageRecord, Tensor]:
    """Return the hot parts at a layer of each record that has some."""
    records = follow_each(discovery.records, Stage("Looking for patches", "image"))
    cut = {record: _cut_patches(discovery.images, record, layer, side) for record in records}
    return {record: parts for record, parts in cut.items() if parts is not None}


def _describe_usual_place(records: Sequence[ImageRecord]) -> str:
    """Return words for the place of the hottest cell in most of the images; "no fixed place" without one."""
    (place, count), *_ = Counter(map(_describe_peak, records)).most_common(1)
    return place if 2 * count >= len(records) else "no fixed place"


def _describe_peak(record: ImageRecord) -> str:
    return describe_place(np.asarray(record.heat == record.heat.max()))


def _choose_templates(
    cosines: NDArray[np.float64], is_class: NDArray[np.bool_], owners: NDArray[np.int_]
) -> Iterator[int]:
    """Yield the templates that match many images of the class better than nearly all images of other classes."""
    matches = cosines > np.quantile(cosines[~is_class], 1 - _STRAY, axis=0)
    matches[owners, np.arange(len(owners))] = False  # itself
    matches &= is_class[:, None]
    for _ in range(_MOST_PER_CLASS):
        counts = matches.sum(0)
        best = int(counts.argmax())
        if counts[best] < _LEAST_SHARE * is_class.sum():
            break
        yield best
        matches = matches & ~matches[:, [best]]


def _cut_patches(images: AuditImages, record: ImageRecord, layer: str, side: int) -> Tensor | None:
    """Return the hottest parts of an image at a layer, with a margin: ``(_PEAKS, C, k + margin, k + margin)``.

    Args:
        images: All images.
        record: The image.
        layer: The layer.
        side: The side k of a part. None is returned for an image that is smaller with the margin.
    """
    (activations,) = _center(images.read_activations_of(images.prepare(record.index), layer))
    grid = activations.shape[-2:]
    wide = side + 2 * _SHIFT
    if min(grid) < wide:
        return None
    heat = interpolate(torch.from_numpy(record.heat)[None, None].float(), grid, mode="bilinear", align_corners=False)
    sums, parts = avg_pool2d(heat, side, 1)[0, 0], []
    for _ in range(_PEAKS):
        row, column = divmod(int(sums.argmax()), sums.shape[1])
        sums[max(0, row - side + 1) : row + side, max(0, column - side + 1) : column + side] = -1
        # The margin may not leave the image; then the patch is not in the middle of the part.
        top, left = (min(max(start - _SHIFT, 0), side - wide) for start, side in zip((row, column), grid, strict=True))
        parts.append(activations[:, top : top + wide, left : left + wide])
    return torch.stack(parts).cpu()


def _normalize(parts: Tensor) -> Tensor:
    """Return the middle of parts with a margin as templates of norm 1, ``(P, C, k, k)``."""
    inner = parts[..., _SHIFT:-_SHIFT, _SHIFT:-_SHIFT]
    norms = torch.linalg.vector_norm(inner, dim=(-3, -2, -1), keepdim=True)
    return inner.div(norms.clamp_min(1e-6))


def _match(templates: Tensor, parts: Tensor) -> NDArray[np.float64]:
    """Return the largest cosine of each template with the parts of an image, ``(T,)``."""
    side = templates.shape[-1]
    lengths = avg_pool2d((parts**2).sum(1, keepdim=True), side, 1) * side**2
    cosines = conv2d(parts, templates) / lengths.sqrt().clamp_min(1e-6)
    return cosines.amax((0, 2, 3)).double().numpy()


def _center(activations: Tensor) -> Tensor:
    """Return activations ``(N, C, h, w)`` minus the mean of each channel in each image."""
    return (activations - activations.mean((2, 3), keepdim=True)).float()
