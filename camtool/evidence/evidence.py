"""Evidence: the data of one forward pass that methods read.

A method is a function from :class:`Evidence` to raw maps. What is expensive is computed when it is first read: a method
that never reads ``gradients`` costs no backward pass.

Evidence comes in rows. A row is one target on one image; usually there is one row per image. Several classes of one
image are several rows, which share the forward pass and the backward pass.

What needs further forward passes, a linear head or attention is a function of the evidence:

* :mod:`camtool.evidence.rescoring`: the scores of masked inputs or changed activations
* :mod:`camtool.evidence.linear_head`: the linear layer after global average pooling
* :mod:`camtool.evidence.attention`: the attention matrices of a transformer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from camtool.errors import ForwardError, LayerError, MethodError, NotCompilableError, raise_interrupt
from camtool.evidence.forward_pass import ForwardPass, ScoredTargets, run_forward_pass
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.resampling import resample
from camtool.hooks.observation import Runner, run_with_hooks
from camtool.hooks.state.guard import enable_gradients
from camtool.layers.layouts import Layer
from camtool.layers.selection import find_layers
from camtool.maps import upcast
from camtool.targets import Target

# Half of the elements from which on torch divides an operation among threads.
_FIRST_VALUES = 16_384


class Evidence:
    """The evidence that a method reads: the activations of one layer, their gradients, scores and inputs.

    Activations, gradients and maps are ``(R, C, *grid)`` for every layout of the layer, in float32 or wider: half
    precision is widened, so that a sum over positions is exact enough.

    Args:
        forward_pass: The forward pass.
        scored: The targets with their scores.
        layer: The layer; ``None`` for methods that work at the input.

    Attributes:
        forward_pass: The forward pass.
        model: The model. A method must leave it unchanged.
        inputs: The image input, ``(N, C, *size)``.
        targets: Each row's target.
        images: The index of each row's image.
        scores: Each row's score, ``(R,)``.
        layer: The layer's dotted name; empty without a layer.
        call_count: The number of calls of the layer in the forward pass; one of them is observed.
        black: A black pixel as the model gets it, ``(C,)``; ``None`` where the preprocessing is not known.
        uses_gradients: True once the gradients have been read.
        notes: Row to what the method tells the user about its map, see :meth:`add_note`.
        refined: Row to ``uncertainty``, ``passes`` and ``posterior`` of its explanation, if passes corrected its map.
    """

    # Computed when they are first read. Plain attributes, as a method reads them more often than anything else.
    _activations: Tensor | None = None
    _gradients: Tensor | None = None
    _has_zero_gradient: list[bool] | None = None
    uses_gradients: bool = False

    def __init__(self, forward_pass: ForwardPass, scored: ScoredTargets, layer: Layer | None) -> None:
        self._scored, self._layer = scored, layer
        self.forward_pass, self.model, self.black = forward_pass, forward_pass.model, forward_pass.settings.black
        self.inputs = forward_pass.image_input
        self.targets, self.images, self.scores = scored.targets, scored.images, scored.scores.detach()
        self.layer = "" if layer is None else layer.name
        self.call_count = forward_pass.call_counts.get(self.layer, 0)
        self.notes: dict[int, list[str]] = {}
        self.refined: dict[int, dict[str, Any]] = {}

    # ------------------------------------------------------------------------------------------------ the layer

    @property
    def activations(self) -> Tensor:
        """The layer's output, ``(R, C, *grid)``.

        Raises:
            LayerError: The method works at the input and observes no layer.
        """
        if self._activations is None:
            layer = self.get_layer()
            # Rows of one image share its output, or each has a copy that gradients were computed for already.
            by_index = upcast(layer.layout.to_grid(self._scored.layer_outputs[layer.name].detach()))
            indices = self._scored.indices
            self._activations = by_index if indices == list(range(len(by_index))) else by_index[indices]
        return self._activations

    @property
    def gradients(self) -> Tensor:
        """The gradient of each row's score with respect to the activations, ``(R, C, *grid)``.

        The first read runs the backward pass, in :meth:`ScoredTargets.compute_gradients`, for all layers at once.

        Raises:
            LayerError: There is no layer, or the score does not depend on it through a gradient.
        """
        if self._gradients is None:
            layer = self.get_layer()
            self._gradients = upcast(layer.layout.to_grid(self._scored.compute_gradients(layer.name)))
            self.uses_gradients = True
        return self._gradients

    @property
    def has_zero_gradient(self) -> list[bool]:
        """For each row True if the gradient is zero everywhere. Reading it computes the gradients."""
        if self._has_zero_gradient is None:
            flat = self.gradients.flatten(1)
            # Nearly always the first values tell. Torch divides a search through all of them among threads, which then
            # keep the cores from an engine for longer than a small model runs.
            first = flat[:, : max(1, _FIRST_VALUES // len(flat))].any(1).tolist()
            rows = first if all(first) else flat.any(1).tolist()
            self._has_zero_gradient = [not row for row in rows]
        return self._has_zero_gradient

    def has_gradient_beside_cells(self, row: int) -> bool:
        """Check that a row's gradient reaches none of the cells, but another token of the layer, e.g. a class token."""
        return self.has_zero_gradient[row] and bool(self._scored.compute_gradients(self.layer)[row].any())

    def hessian_vector_product(self, direction: Tensor) -> Tensor:
        """Return the Hessian of each row's score with respect to the activations, times a direction.

        This is how the gradients change as the activations move along the direction. It is zero if the model is
        piecewise linear after the layer, as a ReLU network is up to its logits. Prefix tokens do not move.

        Args:
            direction: ``(R, C, *grid)``.

        Returns:
            ``(R, C, *grid)``.

        Raises:
            LayerError: There is no layer, or the score does not depend on it through a gradient.
            MethodError: Torch has no second derivative of an operation after the layer.
        """
        layer = self.get_layer()
        output = self.forward_pass.layer_outputs[layer.name]
        try:
            with enable_gradients():
                own_layout = layer.layout.from_grid(
                    direction.detach().to(output.dtype).clone(), torch.zeros_like(output[:1])
                )
                return upcast(layer.layout.to_grid(self._scored.hessian_vector_product(layer.name, own_layout)))
        except RuntimeError as error:
            raise_interrupt(error, ForwardError)  # e.g. a hook on the backward pass failed
            raise MethodError(
                f"torch has no second derivative of what follows layer {self.layer!r} ({error}). Use method='gradcam'; "
                "or, for attention, run within torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
            ) from error

    def find_centers(self, maps: Tensor | None = None, *, at_depths: bool = False) -> CellCenters | None:
        """Return where the cells of maps lie in the input; ``None`` if their grid is stretched over the input.

        Args:
            maps: ``(M, *grid)``, by default on the layer's grid. Maps on other grids are stretched.
            at_depths: The maps may be on the grid of a depth as well: a method with an option ``depths`` made them.
        """
        if self._layer is None:
            return None
        for layer in [self._layer, *(self.depths if at_depths else [])]:
            if maps is None or tuple(maps.shape[1:]) == tuple(layer.layout.grid):
                return self.forward_pass.find_place(layer).centers
        return None

    def resize_to_input(self, maps: Tensor, *, at_depths: bool = False, holds: bool = False) -> Tensor:
        """Return maps at the input's size, ``(M, *size)``, with the cells at their centers, see :meth:`find_centers`.

        Args:
            maps: ``(M, *grid)``.
            at_depths: As for :meth:`find_centers`.
            holds: As for :func:`camtool.geometry.resampling.weigh_cells`.
        """
        centers = self.find_centers(maps, at_depths=at_depths)
        return resample(maps, centers, self.inputs.shape[2:], None, holds=holds)

    @property
    def depths(self) -> list[Layer]:
        """Other layers on the way to the layer, from shallow to deep, for a method with an option ``depths``."""
        return [] if self._layer is None else [*self.forward_pass.plan.depths[self._layer.name]]

    def add_note(self, row: int, note: str) -> None:
        """Tell the user something about the map of a row: the note is among the warnings of its explanation."""
        notes = self.notes.setdefault(row, [])
        if note not in notes:  # wrappers run a method several times
            notes.append(note)

    def get_layer(self) -> Layer:
        """Return the observed layer with its layout.

        Raises:
            LayerError: The method works at the input and observes no layer.
        """
        if self._layer is None:
            raise LayerError("this method works at the input, so there are no activations or gradients of a layer.")
        return self._layer

    # ------------------------------------------------------------------------------------ the input and the output

    @property
    def logits(self) -> Tensor:
        """The model's scores, ``(N, K, ...)``.

        Raises:
            TargetError: The model returned detections.
        """
        return self.forward_pass.logits

    @property
    def black_inputs(self) -> Tensor:
        """A black image for each input, ``(N, C, *size)``; zeros where the preprocessing is not known."""
        inputs = self.inputs
        if self.black is None:
            return torch.zeros_like(inputs)
        return self.black.to(inputs).reshape(1, -1, *[1] * (inputs.ndim - 2)).expand_as(inputs)

    @property
    def rows_by_image(self) -> list[list[int]]:
        """The rows of each image, image by image; the rows of one image share forward passes."""
        return [
            [row for row, shown in enumerate(self.images) if shown == image] for image in dict.fromkeys(self.images)
        ]

    def select_rows(self, by_image: Tensor) -> Tensor:
        """Return ``(R, ...)``, for each row its image's part of a tensor ``(N, ...)``."""
        return by_image if self.images == list(range(len(by_image))) else by_image[self.images]

    # --------------------------------------------------------------------------------------------- other evidence

    def for_targets(self, targets: Sequence[Target], images: Sequence[int]) -> Evidence:
        """Return evidence about other targets at the same layer, from the same forward pass.

        Args:
            targets: One target per row.
            images: The index of each row's image.
        """
        return Evidence(self.forward_pass, self.forward_pass.score_rows(targets, images), self._layer)

    def for_inputs(self, inputs: Tensor, run: Runner | None = None) -> Evidence:
        """Return evidence about the same targets on other images, at the same layer, from a new forward pass.

        Args:
            inputs: ``(N, C, *size)``, one for each image.
            run: Runs the model; by default what ran it before, if the size of the images is the same.
        """
        old = self.forward_pass
        replaced = old.replace_image_input(inputs)
        with old.restore_autocast():
            layers = [] if self._layer is None else [self._layer]
            if layers and inputs.shape != self.inputs.shape:  # the layer's grid follows the size of the images
                layers = find_layers(
                    self.model, replaced, [self.layer], like=layers[0].layout, call_index=old.call_index
                )
            # An engine is compiled for one size of images.
            run = run or (old.runner if inputs.shape[1:] == self.inputs.shape[1:] else run_with_hooks)
            new = run_forward_pass(self.model, replaced, layers, old.settings, run)
        (about_others,) = gather_evidence(new, self.targets, self.images)
        about_others.notes = self.notes
        return about_others

    def at_layer(self, layer: str) -> Evidence:
        """Return evidence about the same targets and images at another layer, from a new forward pass.

        Raises:
            LayerError: There is no layer of that name, or its output has no grid.
        """
        old = self.forward_pass
        with old.restore_autocast():
            layers = find_layers(self.model, old.inputs, [layer])
            settings = replace(old.settings, call_index=None)
            new = run_forward_pass(self.model, old.inputs, layers, settings)
        return gather_evidence(new, self.targets, self.images)[0]


def gather_evidence(
    forward_pass: ForwardPass, targets: Sequence[Target], images: Sequence[int] | None = None, *, at_input: bool = False
) -> list[Evidence]:
    """Return the evidence about some targets, one for each layer of a forward pass.

    Args:
        forward_pass: The forward pass.
        targets: One target per row.
        images: The index of each row's image; by default one row per image, in order.
        at_input: Observe no layer. There is one evidence then, as there is for a forward pass without layers.
    """
    scored = forward_pass.score_rows(targets, range(len(targets)) if images is None else images)
    layers: Sequence[Layer | None] = [None] if at_input else forward_pass.layers or [None]
    return [Evidence(forward_pass, scored, layer) for layer in layers]


def gather_evidence_by_level(
    forward_pass: ForwardPass, targets: Sequence[Target], images: Sequence[int]
) -> list[tuple[list[int], Evidence]]:
    """Return the evidence about some targets on a detector, each at the layer of the feature level it is read from.

    Args:
        forward_pass: A forward pass at the layers of :func:`camtool.layers.selection.find_level_layers`.
        targets: One target per row.
        images: The index of each row's image.

    Returns:
        For each layer that rows are explained at: these rows, and the evidence about them.
    """
    scored = forward_pass.score_rows(targets, images)
    layers = [_find_level(forward_pass.layers, scored, row) for row in range(len(targets))]
    by_level = []
    for layer in dict.fromkeys(layers):
        rows = [row for row, level in enumerate(layers) if level == layer]
        by_level.append((rows, Evidence(forward_pass, scored.select(rows), layer)))
    return by_level


def _find_level(levels: Sequence[Layer], scored: ScoredTargets, row: int) -> Layer:
    """Return the deepest layer that the gradient of a row's score reaches; the first, which serves all, if unclear.

    Deeper levels are computed from it, but a detection does not depend on them: their gradient is exactly zero.
    """
    if not scored.targets[row].traits.is_one_detection or not scored.scores.requires_grad:
        return levels[0]
    return next((level for level in reversed(levels) if scored.compute_gradients(level.name)[row].any()), levels[0])


class GridEvidence:
    """Activations and gradients of one layer, for one class of each image.

    Attributes:
        activations: ``(N, C, *grid)``.
        gradients: The gradient of each image's score with respect to them.
        logits: The scores of the classes, ``(N, K)``.
    """

    def __init__(self, activations: Tensor, gradients: Tensor, logits: Tensor) -> None:
        self.activations, self.gradients, self.logits = activations, gradients, logits

    def __getattr__(self, name: str) -> Any:
        raise NotCompilableError(f"the method reads {name!r} of the evidence, which has activations and gradients")
