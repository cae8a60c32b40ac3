"""Candidates of the kind *mark*: the same pixels at the same place in most images of a class, and not in the others.

They are looked for in the images and not in their heat, which fades at corners, where marks often are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate, max_pool2d

from camtool.evaluation.audit.cues.candidates import Discovery, describe_place
from camtool.evaluation.audit.cues.place import PlaceCandidate, add_rim, find_regions
from camtool.evaluation.audit.cues.sameness import UsualImage
from camtool.evaluation.audit.images import GRID, AuditImages, ImageRecord
from camtool.inputs.prepared_inputs import PreparedInput

_MOST_PER_CLASS = 2


@dataclass(frozen=True, eq=False)
class MarkCandidate(PlaceCandidate):
    """The same pixels at the same place of each input.

    Attributes:
        usual: What the class shows.
        pixels: ``(H, W)``, True for the pixels that the class shares.
    """

    kind: ClassVar[str] = "mark"
    likeness: ClassVar[str] = ""
    suspicion: ClassVar[str] = "the same pixels at a fixed place"

    usual: UsualImage
    pixels: Tensor

    def measure(self, images: AuditImages, record: ImageRecord) -> float:
        """Return the share of the pixels that look as usual in the class."""
        image = images.prepare(record.index)
        return float(self.usual.find_same(image.tensor)[self.locate(images, image)].double().mean())

    def measure_sameness(self, images: AuditImages, indices: Sequence[int]) -> None:
        """Return None: it is a candidate only as its pixels look the same."""

    def locate(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the pixels."""
        return self.usual.resize(self.pixels, image.tensor)

    def locate_change(self, images: AuditImages, image: PreparedInput) -> Tensor:
        """Return the pixels with their rim."""
        return add_rim(self.locate(images, image))

    def make_decoy(self, discovery: Discovery, random: np.random.Generator) -> MarkCandidate:
        """Return what another class usually shows at another place, where it has heat."""
        others = [target for target in np.unique(discovery.classes).tolist() if target != self.target]
        place, usual = super().make_decoy(discovery, random), discovery.find_usual_image(int(random.choice(others)))
        pixels = _to_pixels(place.cells, usual.still)
        return MarkCandidate(self.target, place.name, self.clarity, place.cells, usual, pixels)


def find_marks(discovery: Discovery) -> Iterator[MarkCandidate]:
    """Yield the places where images of a class look the same and others do not, by a permuted maximum statistic."""
    for target in discovery.targets:
        usual = discovery.find_usual_image(target)
        if not usual.still.any():
            continue
        inputs = (discovery.images.prepare(record.index).tensor for record in discovery.records)
        tested = discovery.test_class(
            target, np.stack([_share_cells(usual.find_still(image)) for image in inputs])
        ).test
        z, share = tested.z.reshape(GRID, GRID), _share_cells(usual.still).reshape(GRID, GRID)
        for cells in find_regions(share, (z > tested.critical) & (share > 0))[:_MOST_PER_CLASS]:
            around = max_pool2d(torch.from_numpy(cells)[None].float(), 3, 1, 1)[0].numpy() > 0
            pixels = usual.still & _to_pixels(around, usual.still)
            name = f"the same pixels in {describe_place(cells)}"
            yield MarkCandidate(target, name, float(z[cells].max()), cells, usual, pixels)


def _share_cells(pixels: Tensor) -> NDArray[np.float64]:
    """Return the share of each cell ``(GRID * GRID,)`` that is True in an input ``(H, W)``."""
    return np.asarray(adaptive_avg_pool2d(pixels[None].double(), GRID).flatten().cpu())


def _to_pixels(cells: NDArray[np.bool_], image: Tensor) -> Tensor:
    """Return the pixels ``(H, W)`` of an input that are in some cells ``(GRID, GRID)``."""
    return interpolate(torch.from_numpy(cells)[None, None].float(), image.shape[-2:], mode="nearest-exact")[0, 0] > 0
