"""Maps and overlays of a batch that is on a device already: one forward and one backward pass, no copy to the host.

The methods are those that are formulas of activations and gradients. There is no explanation of each image, and so no
warning: :func:`camtool.explain` checks each map, and has to read numbers from the device for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.errors import CamtoolError, ImageError, MethodError, NotCompilableError, TargetError
from camtool.evidence.evidence import GridEvidence
from camtool.evidence.forward_pass import ForwardPass
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import draw_heat
from camtool.geometry.transform_output import find_statistics
from camtool.hooks.model_passes import differentiate
from camtool.hooks.state.guard import enable_gradients
from camtool.layers.layouts import Layer
from camtool.maps import scale_by_peak, scale_min_max, upcast
from camtool.methods import Method
from camtool.methods.merges import Merge, compute_means, find_finest, merge_maps
from camtool.outputs.class_scores import find_logits, is_known_class, weigh_chosen_class


@dataclass(frozen=True, eq=False)
class DeviceMaps:
    """One map of each image.

    Attributes:
        raw: ``(N, *grid)``, the method's own values, of several layers merged.
        place: Where the cells lie on the input; ``None`` if they fill it evenly.
    """

    raw: Tensor
    place: CellCenters | None

    def to_heatmaps(self, size: Sequence[int]) -> Tensor:
        """Return ``(N, *size)`` in [0, 1]; zeros for a constant map."""
        return scale_min_max(draw_heat(scale_by_peak(self.raw.float()), self.place, size))


@dataclass(frozen=True, eq=False)
class ClassMaps(DeviceMaps):
    """Maps of one class of each image.

    Attributes:
        logits: ``(N, K)``, the scores of all classes.
        class_weights: ``(N, K)``, whose sum with the logits is the score of the explained class.
    """

    logits: Tensor
    class_weights: Tensor

    def list_maps(self, method: Method) -> list[DeviceMap]:
        """Return the map of each image with what it explains. This copies them to the host."""
        scores = (self.logits.detach() * self.class_weights).sum(1).tolist()
        rows = zip(self.class_weights.argmax(1).tolist(), scores, self.raw.detach().float().cpu().numpy(), strict=True)
        return [DeviceMap(index, f"class {index}", score, method.name, raw) for index, score, raw in rows]


@dataclass(frozen=True, eq=False)
class DeviceMap:
    """The map of one image, for :func:`camtool.engines.comparison.run_by_engines`."""

    index: int
    label: str
    score: float
    method: str
    raw: NDArray[Any]


def compute_class_maps(
    forward_pass: ForwardPass,
    method: Method,
    options: dict[str, Any],
    classes: Tensor,
    merge: str | Merge,
    *,
    differentiable: bool = False,
    keep_graph: bool = False,
) -> ClassMaps:
    """Return the maps of one class of each image.

    Args:
        forward_pass: The forward pass of the batch.
        method: The method.
        options: Its options.
        classes: ``(N,)`` integers on the device; -1 for the class with the highest score. The map of a class that does
            not exist is NaN.
        merge: How the maps of several layers become one.
        differentiable: Keep the graph of the maps, up to where that of the forward pass begins.
        keep_graph: Keep the graph of the forward pass, for maps of other classes.

    Raises:
        MethodError: The method needs more than activations and gradients.
        CamtoolError: The model is no classifier.
    """
    logits = forward_pass.logits
    if logits.ndim != 2:
        raise CamtoolError(f"maps on the device are for classifiers; the scores have the shape {tuple(logits.shape)}.")
    maps, centers = [], []
    with enable_gradients() if differentiable else torch.no_grad():
        scores = find_logits(forward_pass.output)
        classes = classes.to(scores.device)  # a model may end on another device than it begins
        weights = weigh_chosen_class(scores.detach(), classes)
        graph = {"create_graph": differentiable, "retain_graph": differentiable or keep_graph}
        gradients = _differentiate(forward_pass, scores, weights, **graph)
        for layer, gradient in zip(forward_pass.layers, gradients, strict=True):
            output = forward_pass.layer_outputs[layer.name]
            raw = _apply(method, options, layer, output if differentiable else output.detach(), gradient, logits)
            maps.append(raw)
            centers.append(_find_place(forward_pass, layer, raw, at_input_size=method.at_input_size))
        merged = merge_maps(maps, merge, lambda: compute_means(gradients), centers)
        # An error would wait for the device.
        is_known = is_known_class(scores, classes).reshape(-1, *[1] * (merged.ndim - 1))
        merged = torch.where(is_known.to(merged.device), merged, torch.nan)
        finest = find_finest(maps)
        merged_centers = centers[finest] if merged.shape == maps[finest].shape else None
        return ClassMaps(merged, merged_centers, scores, weights)


def read_classes(target_class: Any, count: int) -> Tensor:
    """Return one class for each of ``count`` images, or one for all; -1 for the class with the highest score.

    A tensor is not read, and stays on its device.

    Raises:
        TargetError: There is another number of classes than of images, or a target that is no index.
    """
    given = -1 if target_class is None else target_class
    try:
        classes = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(
            f"target_class is {given!r}, but maps on the device are of classes; pass indices, or call the explainer."
        ) from error
    if classes.ndim > 1 or (classes.ndim == 1 and len(classes) != count):
        raise TargetError(f"target_class: {tuple(classes.shape)} classes came for {count} images; give one each.")
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise TargetError(f"target_class has the type {classes.dtype}; pass indices of classes, which are integers.")
    return classes


def to_device_pixels(images: Tensor, transform: Any) -> Tensor:
    """Return a batch of prepared images as pixels, ``(N, 3, H, W)`` from 0 to 255, floating.

    Args:
        images: ``(N, 1 or 3, H, W)``.
        transform: Their transform. If it does not normalize, and for None, the values are in [0, 1].

    Raises:
        ImageError: The images have another number of channels.
    """
    channels = images.shape[1]
    if images.ndim != 4 or channels not in (1, 3):
        raise ImageError(f"images: gray or RGB images (N, 1 or 3, H, W) can be drawn, got {tuple(images.shape)}.")
    mean, std = find_statistics(transform) or ([0.0], [1.0])
    shift, scale = ([statistic[index % len(statistic)] for index in range(channels)] for statistic in (mean, std))
    planes = [(plane.float() * s + m).mul(255) for plane, s, m in zip(images.unbind(1), scale, shift, strict=True)]
    return torch.stack(planes * (3 // channels), 1).clamp(0, 255).round()


def _differentiate(forward_pass: ForwardPass, scores: Tensor, weights: Tensor, **graph: bool) -> Sequence[Tensor]:
    outputs = [forward_pass.layer_outputs[layer.name] for layer in forward_pass.layers]
    has_norms = forward_pass.plan.norms[forward_pass.runner]
    with enable_gradients():
        return differentiate(scores, outputs, weights, has_norms=has_norms, materialize_grads=True, **graph)


def _apply(
    method: Method, options: dict[str, Any], layer: Layer, output: Tensor, gradient: Tensor, logits: Tensor
) -> Tensor:
    activations, gradients = (upcast(layer.layout.to_grid(tensor)) for tensor in (output, gradient))
    evidence: Any = GridEvidence(activations, gradients, logits)
    try:
        return method.compute_raw_maps(evidence, **options)
    except NotCompilableError as error:
        raise MethodError(f"method {method.name!r} cannot be computed on the device: {error}.") from error


def _find_place(forward_pass: ForwardPass, layer: Layer, maps: Tensor, *, at_input_size: bool) -> CellCenters | None:
    is_on_grid = tuple(maps.shape[1:]) == tuple(layer.layout.grid) and not at_input_size
    return forward_pass.find_place(layer).centers if is_on_grid else None
