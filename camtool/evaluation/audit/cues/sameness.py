"""How much of several images looks the same pixel by pixel: all of a stamp, hardly anything of an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, max_pool2d, pad

from camtool.evaluation.audit.images import AuditImages

# Difference of two values that look the same, as a share of the range of values in an image: 8 of 256 levels, which are
# more than compression changes.
_SAME = 0.03

# Half of a gap in what stands still that is closed, as a share of the input's side.
_GAP = 1 / 16

# Share of the images of a class in which a pixel looks the same if it stands still, and by how much it is larger than
# that of other images: a background that all have in common belongs to no class.
_STILL, _MORE = 0.6, 0.5


@dataclass(frozen=True, eq=False)
class UsualImage:
    """Median input of a class, and the pixels that look the same in most of its inputs.

    Attributes:
        pixels: ``(C, H, W)``, the median of some inputs of the class.
        tolerance: The difference of two values that look the same.
        still: ``(H, W)``, True where most of these inputs look the same, and those of other classes do not.
    """

    pixels: Tensor
    tolerance: float
    still: Tensor

    def find_still(self, image: Tensor) -> Tensor:
        """Return where an input ``(C, H, W)`` shows what stands still in the class, ``(H, W)`` boolean."""
        return self.find_same(image) & self.resize(self.still, image)

    def keep_still(self, image: Tensor, changed: Tensor) -> Tensor:
        """Return a changed input ``(C, H, W)`` in which what stands still in the class is as it was.

        Gaps are closed: on a tag that stands still the letters may differ.
        """
        radius = max(1, round(min(image.shape[-2:]) * _GAP))
        grown = max_pool2d(self.find_still(image)[None, None].float(), 2 * radius + 1, 1, radius)
        closed = -max_pool2d(-pad(grown, (radius,) * 4, value=1.0), 2 * radius + 1, 1)[0, 0]
        return torch.where(closed > 0, image, changed)

    def find_same(self, image: Tensor) -> Tensor:
        """Return where an input ``(C, h, w)`` looks the same, ``(h, w)`` boolean."""
        return (image - self.resize(self.pixels, image)).abs().mean(0) <= self.tolerance

    @staticmethod
    def resize(values: Tensor, like: Tensor) -> Tensor:
        """Return values ``(..., H, W)`` in the size of an input."""
        size = like.shape[-2:]
        if values.shape[-2:] == size:
            return values
        planes = values.reshape(1, -1, *values.shape[-2:]).double()
        return interpolate(planes, size, mode="nearest-exact").reshape(*values.shape[:-2], *size).to(values.dtype)


def find_usual_image(inputs: Sequence[Tensor], others: Sequence[Tensor]) -> UsualImage:
    """Return what inputs ``(C, H, W)`` of a class show, and not those of other classes.

    Those of another size than the first one are left out.
    """
    stacked = _stack_alike(inputs)
    usual = UsualImage(stacked.median(0).values, measure_tolerance(inputs), torch.ones(stacked.shape[-2:]) > 0)
    shares = []
    for images in (stacked, _stack_alike([inputs[0], *others])[1:]):
        same = [usual.find_same(image).double() for image in images]
        shares.append(torch.stack(same).mean(0) if same else torch.zeros_like(usual.still, dtype=torch.float64))
    own, other = shares
    return replace(usual, still=(own >= _STILL) & (own - other >= _MORE))


def _stack_alike(inputs: Sequence[Tensor]) -> Tensor:
    """Return the inputs that have the size of the first one, ``(N, C, H, W)``."""
    return torch.stack([image for image in inputs if image.shape == inputs[0].shape])


def measure_tolerance(inputs: Sequence[Tensor]) -> float:
    """Return the difference of two values in inputs that look the same."""
    return _SAME * float(torch.stack([image.max() - image.min() for image in inputs]).mean())


def measure_sameness(images: AuditImages, indices: Sequence[int], parts: Sequence[Tensor], margin: int) -> float:
    """Return the share of the pixels of a part that look the same in most of the images, from 0 to 1.

    Each part is compared with all others, which are moved by up to the margin to where they fit best; the part that
    has most pixels in common with the others counts.

    Args:
        images: All images.
        indices: Those that have the part.
        parts: ``(C, h + 2 margin, w + 2 margin)`` for each image; those of another size than the first are left out.
        margin: The pixels by which a part may be displaced.
    """
    stacked = _stack_alike(parts)
    if len(stacked) < 2:
        return 0.0
    tolerance = measure_tolerance([images.prepare(index).tensor for index in indices])
    height, width = (side - 2 * margin for side in stacked.shape[-2:])
    inner = stacked[..., margin : margin + height, margin : margin + width]
    squares = conv2d((stacked**2).sum(1, keepdim=True), torch.ones_like(inner[:1, :1]))
    distances = squares - 2 * conv2d(stacked, inner)  # (images, templates, 2 margin + 1, 2 margin + 1)
    shifts = distances.flatten(2).argmin(2)
    windows = stacked.unfold(2, height, 1).unfold(3, width, 1).flatten(2, 3)  # (images, C, shifts, h, w)
    shares = []
    for number, template in enumerate(inner):
        others = [row for row in range(len(stacked)) if row != number]
        moved = torch.stack([windows[row, :, shifts[row, number]] for row in others])
        differences = (moved - template).abs().mean(1).median(0).values
        shares.append(float((differences <= tolerance).double().mean()))
    return max(shares)
