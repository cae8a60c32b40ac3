"""Scores: how a metric runs the model. A score is a function, so that metrics know no model and no target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_choice, check_count
from camtool.errors import MetricError
from camtool.hooks.chunks import compute_chunk_size, iterate_chunks
from camtool.hooks.fast_repeated_passes import FoldedModel
from camtool.maps import upcast
from camtool.outputs.class_scores import Link, compute_class_scores, compute_probabilities

# ``score(images, rows) -> (M,)``: the score of each image ``(M, C, H, W)``.
#
# ``rows`` ``(M,)`` says from which of the metric's images each one was made, so that its target is known. An attribute
# ``chunk_size`` says how many images the score takes at once; without it the number is estimated.
Score: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# ``explain(images, rows) -> (M, H, W)``: the maps of one method. ``rows`` as in :data:`Score`.
Explain: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# ``explain(mosaics, rows, cells) -> (M, H, W)``: as :data:`Explain`, of the output for one cell of each mosaic.
ExplainCells: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

# The first layers of usual networks have 64 channels, e.g. VGG's at the full resolution of the image, which has 3.
_ASSUMED_GROWTH = 64 / 3


class ClassScore:
    """The score of one class per image, by a classifier.

    The model runs without a graph, in evaluation mode, and is left as it was.

    Args:
        model: A classifier, or a copy of one that several scores share.
        images: The images of the metric, ``(N, C, H, W)``. The first one is used to measure the memory that one takes.
        classes: The class of each image, ``(N,)``, or one for all.
        kind: ``"probability"``, or ``"logit"`` for the output itself.
        link: How outputs become probabilities: by ``"softmax"``, by ``"sigmoid"``, or they are (``"identity"``).

    Attributes:
        chunk_size: How many images fit into memory at once.

    Raises:
        MetricError: The number of classes is not that of the images.
    """

    def __init__(
        self,
        model: nn.Module | FoldedModel,
        images: Tensor,
        classes: Tensor | list[int] | int,
        kind: Literal["probability", "logit"] = "probability",
        link: Link = "softmax",
    ) -> None:
        check_images(images)
        check_choice("kind", kind, ("probability", "logit"), error=MetricError)
        check_choice("link", link, get_args(Link), error=MetricError)
        indices = torch.as_tensor(classes, device=images.device)
        if indices.ndim > 1 or (indices.ndim == 1 and len(indices) != len(images)):
            raise MetricError(f"classes has shape {tuple(indices.shape)}; it must be one per image, ({len(images)},).")
        self._model = model if isinstance(model, FoldedModel) else FoldedModel(model, images[:1])
        self._kind, self._link = kind, link
        self._classes = indices.expand(len(images))
        self.chunk_size: int = self._model.chunk_size

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of images ``(M, C, H, W)`` that were made from these rows of the metric's images."""
        compute = compute_probabilities if self._kind == "probability" else compute_class_scores
        values = upcast(compute(self._model(images), self._link))
        if values.ndim != 2:
            raise MetricError(
                f"ClassScore needs a classifier; the model's scores have the shape {tuple(values.shape)}. For another "
                "output pass a function score(images, rows) -> (M,)."
            )
        chosen = self._classes[rows][:, None]
        return values.to(chosen.device).gather(1, chosen)[:, 0]


def score_images(score: Score, images: Tensor, rows: Tensor) -> Tensor:
    """Return ``score(images, rows)`` without a graph, checked.

    Raises:
        MetricError: The score is not one finite number per image.
    """
    with torch.no_grad():
        values = score(images, rows)
    if not isinstance(values, Tensor) or values.shape != rows.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise MetricError(f"score(images, rows) must return one number per image, {tuple(rows.shape)}; got {got}.")
    if not values.isfinite().all():
        raise MetricError("score(images, rows) returned values that are not finite.")
    return upcast(values.detach())


def score_variants(
    score: Score, images: Tensor, per_image: int, make: Callable[[Tensor, Tensor], Tensor], chunk: int | None = None
) -> Tensor:
    """Return the scores of variants of each image, ``(N, per_image)``. They are made chunk by chunk.

    Args:
        score: The score.
        images: ``(N, C, H, W)``.
        per_image: The number of variants of each image.
        make: ``make(rows, numbers) -> (M, C, H, W)``: these variants of these images.
        chunk: The number of variants that run at once; by default as many as fit into the memory budget.
    """
    check_count("chunk", chunk, optional=True, error=MetricError)
    size = chunk or getattr(score, "chunk_size", None)
    size = size or compute_chunk_size(math.ceil(images[0].numel() * _ASSUMED_GROWTH), images)
    parts = []
    for part in iterate_chunks(len(images) * per_image, size):
        variants = torch.arange(part.start, part.stop, device=images.device)
        rows, numbers = variants // per_image, variants % per_image
        parts.append(score_images(score, make(rows, numbers), rows))
    return torch.cat(parts).reshape(len(images), per_image)


def explain_again(explain: Explain, images: Tensor) -> Tensor:
    """Return the maps ``(N, H, W)`` of images in the order of the metric's images, checked."""
    rows = torch.arange(len(images), device=images.device)
    maps = explain(images, rows)
    check_maps(maps, images, name="the maps of explain(images, rows)")
    return upcast(maps.detach()).to(images.device)


def check_images(images: Tensor) -> None:
    """Check that images are ``(N, C, H, W)``, floating-point, finite, and at least one.

    Raises:
        MetricError: They are not.
    """
    _check_tensor("images", "the model's inputs, a floating-point tensor (N, C, H, W)", images, 4)
    if not images.isfinite().all():
        raise MetricError("images has values that are not finite.")


def _check_tensor(name: str, kind: str, tensor: Tensor, axes: int) -> None:
    """Check that a tensor has so many axes, none of them empty, and floating-point values."""
    if not isinstance(tensor, Tensor):
        raise MetricError(f"{name} must be {kind}; got {type(tensor).__name__}.")
    if tensor.ndim != axes or tensor.numel() == 0 or not tensor.is_floating_point():
        raise MetricError(f"{name} must be {kind}; got {tensor.dtype} {tuple(tensor.shape)}.")


def check_maps(
    maps: Tensor, images: Tensor | None = None, *, name: str = "maps", least: float = -math.inf, most: float = math.inf
) -> None:
    """Check that maps are ``(N, H, W)``, floating-point, finite, within bounds, and of the images' number and size.

    Raises:
        MetricError: They are not.
    """
    if images is not None:
        check_images(images)
    _check_tensor(name, "a floating-point tensor (N, H, W)", maps, 3)
    expected = None if images is None else (len(images), *images.shape[2:])
    if expected is not None and maps.shape != expected:
        raise MetricError(f"{name} must have one map per image at the size of the images, {expected}; "
                          f"got {tuple(maps.shape)}.")  # fmt: skip
    if not maps.isfinite().all():
        raise MetricError(f"{name} has values that are not finite.")
    lowest, highest = float(maps.min()), float(maps.max())
    if lowest < least or highest > most:
        raise MetricError(f"{name} must be in [{least:g}, {most:g}] for this metric; they are in "
                          f"[{lowest:g}, {highest:g}]. Scale them, e.g. with camtool.maps.scale_min_max.")  # fmt: skip
