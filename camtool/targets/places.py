"""A class in a part of the picture: inside a mask, or at a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from camtool.errors import TargetError
from camtool.geometry import Geometry, averaged
from camtool.outputs import Link, check_class, class_scores
from camtool.targets.base import Target, of_class, per_image
from camtool.targets.checks import check_link, check_numbers, check_real, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Point", "Region"]


@dataclass(frozen=True, eq=False)
class Region(Target):
    """A class inside a mask, for segmentation: Seg-Grad-CAM, arXiv 2002.11434.

    The score is the class' logits summed over the places, each by its weight. In :func:`camtool.explain` the mask lies
    over the photo, whatever its own size, and goes the way that the photo went; one of just the size of the planes
    (and not of the photo) lies over those. Called with an output, the mask lies over the planes.

    Methods that give each channel one weight for all positions, as Grad-CAM does, heat all that looks like the thing in
    the mask; those that weigh position by position, as HiResCAM and LayerCAM do, keep to it.

    Attributes:
        class_index: The class, along the second axis of the planes ``(N, K, H, W)``.
        mask: ``(h, w)``, the weight of each place, as a tensor or an array; zeros and ones, or booleans.
        of: As :class:`camtool.targets.ClassScore`'s.
    """

    class_index: int
    mask: Tensor | NDArray[Any]
    of: Link = "softmax"

    def __post_init__(self) -> None:
        check_whole("Region's class_index", self.class_index)
        check_link("Region's of", self.of)
        check_real("Region's mask", self.mask)

    @staticmethod
    def at(class_index: int, point: tuple[float, float]) -> Point:
        """The class at one point ``(x, y)`` of the photo."""
        return Point(*point, class_index)

    def __call__(self, output: Any) -> Tensor:
        plane = of_class(class_scores(output, self.of), self.class_index)
        return per_image(plane * self.over(plane[0], None)).sum(1)

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.class_index)

    def has_place(self) -> bool:
        """Return True."""
        return True

    def reads_scores(self) -> bool:
        """Return True."""
        return True

    def over(self, plane: Tensor, geometry: Geometry | None) -> Tensor:
        """The mask as it lies over a plane ``(*size)`` of scores, of the same size.

        Args:
            plane: One class' scores in one image.
            geometry: How the photo became the model's input; ``None`` where the mask lies over the planes.

        Raises:
            TargetError: It has another number of axes or negative weights, or nothing of it is left on the plane.
        """
        mask = torch.as_tensor(self.mask)
        mask = mask if mask.is_floating_point() else mask.float()
        _check_mask(mask, plane)
        mask = _laid(mask, plane.shape, geometry)
        if not mask.any():
            raise TargetError("Region's mask is empty where the model looks; mark a part of the photo that it sees.")
        return mask.to(plane)

    def __str__(self) -> str:
        return f"Region of class {self.class_index}"


def _check_mask(mask: Tensor, plane: Tensor) -> None:
    if mask.ndim != plane.ndim or not plane.ndim or not mask.numel():
        raise TargetError(
            f"Region's mask has shape {tuple(mask.shape)}, but the model's output for an image and a class has "
            f"shape {tuple(plane.shape)}; give a mask with as many axes, of any size."
        )
    if not (mask >= 0).all():
        raise TargetError("Region's mask holds negative weights; a place counts by 0 or more (see Negated).")


def _laid(mask: Tensor, size: Sequence[int], geometry: Geometry | None) -> Tensor:
    """A mask, over the photo or just as large as the planes, brought to the size of the planes."""
    is_planes = len(size) == 2
    if geometry is not None and is_planes and (mask.shape != size or mask.shape == geometry.photo):
        return geometry.shown(mask, (size[0], size[1]))
    return mask if mask.shape == size else averaged(mask, [(0, cells) for cells in mask.shape], size)


@dataclass(frozen=True)
class Point(Target):
    """A class at one point, for segmentation; which method keeps to the place is told at :class:`Region`.

    Attributes:
        x: From the left; in :func:`camtool.explain` in pixels of the photo, else in those of the planes.
        y: From the top.
        class_index: The class; by default the one that the model sees there.
    """

    x: float
    y: float
    class_index: int | None = None

    def __post_init__(self) -> None:
        check_numbers("Point's x and y", (self.x, self.y), 2)
        check_whole("Point's class_index", self.class_index, optional=True)

    def __call__(self, output: Any) -> Tensor:
        return torch.cat([self.settled(one, None)(one[None]) for one in class_scores(output)])

    def has_place(self) -> bool:
        """Return True."""
        return True

    def reads_scores(self) -> bool:
        """Return True."""
        return True

    def settled(self, planes: Tensor, geometry: Geometry | None) -> Region:
        """The region, of one place, that it comes to in one image.

        Args:
            planes: That image's planes, ``(K, h, w)``.
            geometry: How the photo became the model's input; ``None`` where the point lies on the planes.

        Raises:
            TargetError: The point is outside of what the model sees, the class does not exist, or the output has no
                planes.
        """
        if planes.ndim != 3:
            raise TargetError(f"Point is about a place, but the model's output for an image is {tuple(planes.shape)}.")
        row, column = self._place(planes.shape[1:], geometry)
        index = int(planes[:, row, column].argmax()) if self.class_index is None else self.class_index
        check_class(index, len(planes))
        mask = torch.zeros(planes.shape[1:])
        mask[row, column] = 1
        return Region(index, mask)

    def _place(self, size: Sequence[int], geometry: Geometry | None) -> tuple[int, int]:
        """In which row and column of planes ``(h, w)`` it lies."""
        x, y, (height, width) = self.x, self.y, size
        if geometry is not None:
            x, y = geometry.on_input((x, y, x, y))[:2]
            height, width = geometry.size
        across, down = x / width, y / height
        if not (0 <= across < 1 and 0 <= down < 1):
            raise TargetError(f"Point ({self.x:g}, {self.y:g}) is outside of what the model sees of the photo.")
        return int(down * size[0]), int(across * size[1])
