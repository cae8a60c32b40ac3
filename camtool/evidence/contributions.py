"""Contributions of positions at several depths of a network to one sum of a layer's activations."""

from __future__ import annotations

from torch import Tensor

from camtool.evidence.evidence import Evidence
from camtool.hooks.model_passes import compute_row_gradients
from camtool.hooks.state.guard import enable_gradients
from camtool.layers.layouts import Layer
from camtool.maps import upcast


def trace_contributions(evidence: Evidence, weights: Tensor) -> list[Tensor]:
    """Return what each position of each depth contributes to a weighted sum of the layer's activations.

    With the sum ``S = Σ_kp w_k(p) A_k(p)`` over the channels and positions of the layer, the position q at depth l
    contributes ``Σ_k (A_lk(q) - B_lk(q)) ∂S/∂A_lk(q)``, where ``B_l`` is what the depth returns for a blank image. So
    biases and constant channels, which no image changes, contribute nothing. One backward pass serves all depths.

    Args:
        evidence: The evidence of the layer. Its depths are observed if a method has an option ``depths``.
        weights: The weights ``w``, ``(R, C, *grid)``.

    Returns:
        For each depth, from shallow to the layer itself, ``(R, *grid)``.
    """
    layer, outputs = evidence.get_layer(), evidence.forward_pass.layer_outputs
    blank = evidence.forward_pass.find_blank_outputs()
    gradients: list[Tensor] = []
    if evidence.depths:
        with enable_gradients():
            activations = evidence.select_rows(upcast(layer.layout.to_grid(outputs[layer.name])))
            sums = (weights.detach() * activations).flatten(1).sum(1)
            gradients = compute_row_gradients(sums, evidence.images, [outputs[depth.name] for depth in evidence.depths])
    traced = [
        upcast(depth.layout.to_grid(gradient)) for depth, gradient in zip(evidence.depths, gradients, strict=True)
    ]
    return [
        (gradient * _subtract_blank(evidence, depth, blank[depth.name])).sum(1)
        for depth, gradient in zip([*evidence.depths, layer], [*traced, weights], strict=True)
    ]


def _subtract_blank(evidence: Evidence, layer: Layer, blank: Tensor) -> Tensor:
    """Return the activations of a layer less those of a blank image, ``(R, C, *grid)``."""
    output = evidence.forward_pass.layer_outputs[layer.name].detach()
    ours, reference = (upcast(layer.layout.to_grid(tensor)) for tensor in (output, blank.detach()))
    # A model may fail on a blank image, e.g. if it divides by the norm of its features: then zeros are the reference.
    return evidence.select_rows(ours - reference.nan_to_num(0, 0, 0))
