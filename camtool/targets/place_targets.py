"""Targets about a class in a part of the image: inside a mask, or at a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.arguments.checks import check_real_tensor
from camtool.arguments.explain_arguments import check_class_index
from camtool.errors import TargetError
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import average_cells
from camtool.outputs.class_scores import Link, compute_class_scores, find_predicted
from camtool.outputs.detections import Detections
from camtool.targets.base_target import (
    ImageOutput,
    ResolvedTarget,
    ScoreContext,
    Target,
    Traits,
    flatten_positions,
    select_class,
)
from camtool.targets.field_checks import Integer, OptionalInteger, check_number_tuple


@dataclass(frozen=True, eq=False)
class Region(Target):
    """A class inside a mask, for segmentation: Seg-Grad-CAM, arXiv 2002.11434.

    The score is the sum of the class's logits over all positions, each times its weight in the mask. In
    :func:`camtool.explain` the mask covers the photo, in any resolution, and is cropped and resized like the photo. A
    mask of exactly the size of the score planes (and not of the photo) covers the planes. So it does when the target is
    called with an output.

    Methods with one weight per channel for all positions, such as Grad-CAM, highlight everything that looks like the
    content of the mask. Methods that weigh each position, such as HiResCAM and LayerCAM, stay inside the mask.

    Attributes:
        class_index: The class, along the second axis of the planes ``(N, K, H, W)``.
        mask: ``(h, w)``, the weight of each position, as a tensor or an array; zeros and ones, or booleans.
        of: See :class:`camtool.targets.ClassScore`.
    """

    class_index: Integer
    mask: Annotated[Tensor | NDArray[Any], check_real_tensor]
    of: Link = "softmax"

    traits = Traits(has_place=True, reads="scores")

    @staticmethod
    def at(class_index: int, point: tuple[float, float]) -> Point:
        """Return the class at one point ``(x, y)`` of the photo."""
        return Point(*point, class_index)

    def __call__(self, output: Any) -> Tensor:
        plane = select_class(compute_class_scores(output, self.of), self.class_index)
        # All images of a batch have planes of one size, so one mask fits them all.
        return flatten_positions(plane * self.fit_mask(plane[0])).sum(1)

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the region with its mask at the size of the score planes."""
        planes = image.prediction
        if isinstance(planes, Detections):
            return self
        check_class_index(self.class_index, len(planes))
        return Region(self.class_index, self.fit_mask(planes[self.class_index], image.geometry), image.link or self.of)

    def get_class_index(self) -> int:
        """Return the class."""
        return int(self.class_index)

    def get_probability(self, context: ScoreContext) -> float | None:
        """Return the mean probability of the class inside the mask."""
        if context.probabilities is None:
            return None
        # The mask has the size of the planes once the region is resolved.
        weights = torch.as_tensor(self.mask).cpu().numpy().astype(context.probabilities.dtype)
        return float((context.probabilities[self.class_index] * weights).sum() / weights.sum())

    def find_rivals(self, image: ImageOutput, count: int) -> Sequence[Region]:
        """Return the other classes where the model predicts them, those with the largest areas first."""
        if not isinstance(image.prediction, Tensor) or image.prediction.ndim == 1:
            return ()
        planes = compute_class_scores(image.prediction[None], self.of)[0]
        predicted = find_predicted(planes, self.of)
        areas = predicted.flatten(1).sum(1)
        ranked = areas.argsort(descending=True, stable=True).tolist()
        others = [index for index in ranked if index != self.class_index and areas[index] > 0]
        # A score is a sum over a mask. With masks of equal sums, a large region does not win by its size.
        shares = self.fit_mask(planes[0]).sum() / areas
        return [Region(index, predicted[index] * shares[index], self.of) for index in others[:count]]

    def fit_mask(self, plane: Tensor, geometry: Geometry | None = None) -> Tensor:
        """Return the mask at the size of a score plane.

        Args:
            plane: One class's scores in one image, ``(*size)``.
            geometry: How the photo became the model's input; ``None`` if the mask covers the planes.

        Returns:
            The weights ``(*size)``, like the plane in type and device.

        Raises:
            TargetError: The mask has another number of axes, negative weights, or nothing in what reaches the model.
        """
        mask = torch.as_tensor(self.mask)
        mask = mask if mask.is_floating_point() else mask.float()  # booleans and integers cannot be averaged
        _check_mask(mask, plane)
        mask = _resize_mask(mask, plane.shape, geometry)
        if not mask.any():
            raise TargetError("Region's mask is empty in the part that reaches the model; mark another part.")
        return mask.to(plane)

    def __str__(self) -> str:
        return f"Region of class {self.class_index}"


def _check_mask(mask: Tensor, plane: Tensor) -> None:
    """Check that a mask has the axes of a score plane and no negative weights."""
    if mask.ndim != plane.ndim or not plane.ndim or not mask.numel():
        raise TargetError(
            f"Region's mask has shape {tuple(mask.shape)}, but the model's output for an image and a class has "
            f"shape {tuple(plane.shape)}; pass a mask with the same number of axes, of any size."
        )
    # Written as `not all >= 0` because NaN must fail, too.
    if not (mask >= 0).all():
        raise TargetError("Region's mask holds negative weights; weights must be 0 or more (see Negated).")


def _resize_mask(mask: Tensor, size: Sequence[int], geometry: Geometry | None) -> Tensor:
    """Resize a mask, which covers the photo or the score planes, to the size of the planes."""
    is_image = len(size) == 2
    # A mask of the planes' own size covers the planes, unless the photo has that size, too.
    covers_photo = geometry is not None and is_image and (mask.shape != size or mask.shape == geometry.photo)
    if geometry is not None and covers_photo:
        return geometry.to_input_mask(mask, (size[0], size[1]))
    return mask if mask.shape == size else average_cells(mask, [(0, cells) for cells in mask.shape], size)


@dataclass(frozen=True)
class Point(ResolvedTarget):
    """A class at one point, for segmentation. See :class:`Region` for the methods that stay at the point.

    Attributes:
        x: Distance from the left edge; in :func:`camtool.explain` in pixels of the photo, else of the score planes.
        y: Distance from the top edge.
        class_index: The class; by default the one with the highest score at the point.
    """

    x: float
    y: float
    class_index: OptionalInteger = None

    traits = Traits(has_place=True, reads="scores")

    def __post_init__(self) -> None:
        check_number_tuple("Point's x and y", (self.x, self.y), 2)
        super().__post_init__()

    def resolve_on(self, image: ImageOutput) -> Target:
        """Return the region that consists of the one position.

        Raises:
            TargetError: The point is outside of what reaches the model, the class does not exist, or the output
                has no score planes.
        """
        planes = image.prediction
        if isinstance(planes, Detections):
            return self
        if planes.ndim != 3:
            raise TargetError(
                f"Point needs score planes (K, h, w), but the model's output for an image has shape "
                f"{tuple(planes.shape)}."
            )
        row, column = self.find_position(planes.shape[1:], image.geometry)
        index = int(planes[:, row, column].argmax()) if self.class_index is None else self.class_index
        check_class_index(index, len(planes))
        mask = torch.zeros(planes.shape[1:], device="cpu")
        mask[row, column] = 1
        return Region(index, mask, image.link or "softmax")

    def find_position(self, size: Sequence[int], geometry: Geometry | None) -> tuple[int, int]:
        """Return the row and the column of the point in planes of the size ``(h, w)``."""
        x, y, (height, width) = self.x, self.y, size
        if geometry is not None:
            x, y = geometry.to_input_box((x, y, x, y))[:2]  # a point is a box without extent
            height, width = geometry.size
        relative_x, relative_y = x / width, y / height
        if not (0 <= relative_x < 1 and 0 <= relative_y < 1):
            raise TargetError(f"Point ({self.x:g}, {self.y:g}) is outside of the part of the photo the model sees.")
        return int(relative_y * size[0]), int(relative_x * size[1])
