"""What a check knows: the explanation, and the evidence of the same target on the same image, gathered again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool import maps
from camtool.errors import ForwardError, TargetError
from camtool.evidence.evidence import Evidence
from camtool.evidence.forward_pass import ForwardPass
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.transform_output import Transform
from camtool.hooks.model_passes import run_model
from camtool.hooks.observation import run_with_held_layers
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.caches import cached_property
from camtool.hooks.tracing import TracedCall, trace
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.methods import Method
from camtool.outputs import predictions
from camtool.targets import Target


@dataclass(frozen=True, eq=False)
class CheckContext:
    """One explanation, and what is needed to examine it by further forward passes.

    Attributes:
        raw: The map of the explanation, ``(*grid)``.
        item: The image as the model receives it.
        geometry: The part of the photo on which the layers look; ``None`` for an input that is no photo.
        evidence: The evidence about the target on this image alone, one for each layer.
        method: The method.
        recompute: From evidence, one for each layer, to merged maps ``(R, *grid)``.
        training: The names of the modules that were in training mode, and behave differently in it.
        labels: The names of the classes; ``None`` if they are unknown.
        transform: The transform that the user gave instead of the model's own, if any.
        declared: The transform that the model came with, if any.
        is_layer_given: True if the user named the layer.
    """

    raw: NDArray[Any]
    item: PreparedInput
    geometry: Geometry | None
    evidence: Sequence[Evidence]
    method: Method
    recompute: Callable[[Sequence[Evidence]], NDArray[Any]]
    training: Sequence[str]
    labels: Sequence[str] | None = None
    transform: Transform | None = None
    declared: Transform | None = None
    is_layer_given: bool = False

    @property
    def target(self) -> Target:
        """The target."""
        return self.evidence[0].targets[0]

    @property
    def forward_pass(self) -> ForwardPass:
        """The forward pass of the image."""
        return self.evidence[0].forward_pass

    @property
    def inputs(self) -> Tensor:
        """The image, ``(1, C, *size)``."""
        return self.evidence[0].inputs

    @property
    def class_scores(self) -> Tensor | None:
        """The scores of the classes, ``(K,)``; ``None`` for detectors, segmenters and embeddings."""
        scores = self.forward_pass.predictions
        if not isinstance(scores, Tensor) or scores.ndim != 2 or self.forward_pass.find_link().link is None:
            return None
        return scores[0].detach()

    @property
    def has_contrast(self) -> bool:
        """True if the map is finite and not constant."""
        return bool(maps.normalize(self.raw).any())

    @cached_property
    def calls(self) -> list[TracedCall]:
        """The calls of all modules in a forward pass of the image."""
        with self.forward_pass.restore_autocast():
            return trace(self.forward_pass.model, self.forward_pass.inputs)

    @cached_property
    def new_map(self) -> NDArray[Any]:
        """The map computed again, ``(*grid)``."""
        raw: NDArray[Any] = self.recompute(self.evidence)[0]
        return raw

    @property
    def is_blank(self) -> bool:
        """True if the image itself has one color, for which there is a warning of its own."""
        return bool((self.inputs.flatten(2).amax(2) == self.inputs.flatten(2).amin(2)).all())

    @cached_property
    def blank_inputs(self) -> Tensor:
        """An image of one color, the mean color of the image, ``(1, C, *size)``."""
        axes = tuple(range(2, self.inputs.ndim))
        return self.inputs.mean(axes, keepdim=True).expand_as(self.inputs).contiguous()

    @cached_property
    def blank_map(self) -> NDArray[Any]:
        """The map of the same target for an image of one color: ``(*grid)``."""
        raw: NDArray[Any] = self.recompute([of_layer.for_inputs(self.blank_inputs) for of_layer in self.evidence])[0]
        return raw

    def compute_maps_of(self, targets: Sequence[Target]) -> NDArray[Any]:
        """Return the maps of other targets on the image, ``(len(targets), *grid)``."""
        images = [self.evidence[0].images[0]] * len(targets)
        return self.recompute([of_layer.for_targets(targets, images) for of_layer in self.evidence])

    def score_blank_image(self) -> tuple[float, float, float]:
        """Return three scores of the target: of the image, and of one color with the layers' outputs held, and without.

        Held outputs stay those of the image.
        """
        forward_pass, evidence = self.forward_pass, self.evidence
        entries = [of_layer.get_layer().layout.entries for of_layer in evidence]
        outputs = [forward_pass.layer_outputs[of_layer.layer].detach() for of_layer in evidence]
        held = {
            of_layer.layer: output if several is None else several.join(output)
            for of_layer, output, several in zip(evidence, outputs, entries, strict=True)
        }
        calls = [forward_pass.call_index % of_layer.call_count for of_layer in evidence]

        def score(inputs: Tensor, held: Mapping[str, Tensor]) -> float:
            with forward_pass.restore_autocast():
                variants = forward_pass.select_inputs(0, inputs)
                output = run_with_held_layers(forward_pass.model, held, variants, calls[: len(held)])
            return float(self.target(predictions.to_batch(output, 1))[0])

        return score(self.inputs, {}), score(self.blank_inputs, held), score(self.blank_inputs, {})

    def score_variants(self, variants: Tensor) -> Tensor:
        """Return the class scores ``(M, K)`` of variants ``(M, C, *size)`` of the image."""
        forward_pass = self.forward_pass
        try:
            with forward_pass.restore_autocast(), guard(forward_pass.model), torch.no_grad():
                output = run_model(forward_pass.model, forward_pass.select_inputs(0, variants))
                scores = predictions.get_predictions(predictions.to_batch(output, len(variants)), forward_pass.model)
        except (ForwardError, TargetError):
            if len(variants) == 1:
                raise
            return torch.cat([self.score_variants(image[None]) for image in variants])  # it takes one image at a time
        assert isinstance(scores, Tensor)  # as for the image itself
        return maps.upcast(scores)
