"""A score whose faithful map is known, and inputs of all metrics for a good and a bad method.

The logit is the sum of the image over a mask. The probability compares the means inside and outside of the mask. So the
mask is the faithful map, and its inverse the worst one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from camtool.trust.metrics import MetricInputs

SIZE = 16


def make_masks() -> Tensor:
    """Masks over 2, 4, 6 and 12 pixels of four cells of a 4 x 4 grid, so that the order of cells is known."""
    mask = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    mask[3:7, 2:8] = True
    return torch.stack([mask, mask.flip(0), mask.flip(1), mask.flip(0, 1), mask.T])


def make_images(masks: Tensor) -> Tensor:
    """Images that are brighter in the mask: 1 to 1.5, outside 0.5 to 1."""
    noise = torch.rand((len(masks), 3, SIZE, SIZE), generator=torch.Generator().manual_seed(1))
    return 0.5 + 0.5 * noise + 0.5 * masks[:, None]


class Analytic:
    """The scores and the two methods for some of the images."""

    def __init__(self, chosen: slice = slice(None)) -> None:
        self.masks = make_masks()[chosen]
        self.images = make_images(make_masks())[chosen]
        self.model = nn.Linear(SIZE * SIZE, len(self.masks))
        with torch.no_grad():
            self.model.weight.copy_(self.masks.flatten(1))

    def logit(self, images: Tensor, rows: Tensor) -> Tensor:
        return (images.mean(1) * self.masks[rows]).sum((1, 2))

    def probability(self, images: Tensor, rows: Tensor) -> Tensor:
        gray, masks = images.mean(1), self.masks[rows]
        inside = (gray * masks).sum((1, 2)) / masks.sum((1, 2))
        outside = (gray * ~masks).sum((1, 2)) / (~masks).sum((1, 2))
        return (3 * (inside - outside)).sigmoid()

    def explain(self, images: Tensor, rows: Tensor) -> Tensor:
        """The map is the model's weights; on a mosaic it is on the cell with the image."""
        if images.shape[2] == SIZE:
            return self.model.weight.detach()[rows].reshape(-1, SIZE, SIZE)
        return torch.stack([self._mark(each, self.images[row]) for each, row in zip(images, rows, strict=True)])

    def explain_badly(self, images: Tensor, rows: Tensor) -> Tensor:
        """The opposite of the map that :meth:`bad` has, whatever the model's weights are."""
        return self.masks[rows].float() if images.shape[2] == SIZE else 1 - self.explain(images, rows)

    def good(self) -> MetricInputs:
        maps = self.masks.float()
        return self._gather(maps, self.explain, 1 - maps)

    def bad(self) -> MetricInputs:
        maps = 1 - self.masks.float()
        return self._gather(maps, self.explain_badly, maps)

    def _gather(self, maps, explain, other_maps) -> MetricInputs:
        def explain_cells(mosaics: Tensor, rows: Tensor, cells: Tensor) -> Tensor:
            return explain(mosaics, rows)

        noise = torch.rand((4, *maps.shape), generator=torch.Generator().manual_seed(2))
        places = [mask.nonzero() for mask in self.masks]
        boxes = [torch.cat([each.amin(0).flip(0), each.amax(0).flip(0) + 1])[None] for each in places]
        return MetricInputs(
            self.images,
            maps,
            self.probability,
            self.logit,
            explain,
            explain_cells,
            self.model,
            classes=torch.arange(len(maps)),
            masks=self.masks,
            boxes=boxes,
            other_maps=other_maps,
            random_maps=noise if explain == self.explain else maps.expand(4, -1, -1, -1),
        )

    @staticmethod
    def _mark(mosaic: Tensor, image: Tensor) -> Tensor:
        heat = torch.zeros(mosaic.shape[1:])
        for row in range(0, mosaic.shape[1], SIZE):
            for column in range(0, mosaic.shape[2], SIZE):
                place = (slice(row, row + SIZE), slice(column, column + SIZE))
                heat[place] = float(torch.equal(mosaic[(slice(None), *place)], image))
        assert heat.any()
        return heat
