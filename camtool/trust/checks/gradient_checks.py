"""Checks of the gradient: is it zero or vanishing, which module loses it, and does the score follow it?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import run_tail
from camtool.hooks.model_passes import differentiate
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.tracing import trace
from camtool.outputs import predictions
from camtool.targets import score_targets
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding

# Sum of |gradient times activation| over a layer, relative to the score. In a linear model of positive terms it is 1;
# for a logit of a trained network it is above that, as positive and negative terms cancel in the score only.
_VANISHING_SHARE = 1e-3

# Steps along the gradient, relative to the activations. One that is too small is lost in rounding, one that is too
# large leaves the range in which the score is linear, so a single step that agrees is enough.
_STEPS = (1e-3, 1e-2, 1e-1)

# Factor by which the measured change may differ. In ReLU networks the smallest step differs by a few percent.
_AGREEMENT = 1.25

# Rounding errors of the score that its expected change must exceed.
_ROUNDING_ERRORS = 100


def find_skip_reason(context: CheckContext) -> str | None:
    """Return why the gradient cannot be checked; ``None`` if it can."""
    uses_gradients = any(of_layer.uses_gradients for of_layer in context.evidence)
    return None if uses_gradients else "the method reads no gradients"


def check_gradient(context: CheckContext) -> Iterator[Finding]:
    """Find a gradient that is zero or almost zero, and the module at which it is lost."""
    used = [of_layer for of_layer in context.evidence if of_layer.uses_gradients]
    text = f"The score's gradient at layer {used[0].layer!r} is"
    if not all(of_layer.has_zero_gradient[0] for of_layer in used):
        share = max(map(_compute_share, used))
        if share < _VANISHING_SHARE:
            sentence = f"{text} almost zero; {_find_loss(context, used[0].layer)}."
            yield Finding("vanishing-gradient", sentence, {"share of the score": share})
    # A map with contrast comes from more than this gradient, and tokens beside the cells have their own warning.
    elif not context.has_contrast and not any(of_layer.has_gradient_beside_cells(0) for of_layer in used):
        yield Finding("zero-gradient", f"{text} zero everywhere; {_find_loss(context, used[0].layer)}.")


def check_finite_difference(context: CheckContext) -> Iterator[Finding]:
    """Find a gradient that the score does not follow if the activations change a little along it."""
    for of_layer in context.evidence:
        if not of_layer.uses_gradients or of_layer.has_zero_gradient[0]:
            continue
        ratios = _measure_ratios(of_layer)
        if ratios and not any(1 / _AGREEMENT <= ratio <= _AGREEMENT for ratio in ratios):
            nearest = min(ratios, key=lambda ratio: abs(ratio - 1))
            yield Finding(
                "wrong-gradient",
                f"If the output of layer {of_layer.layer!r} changes a little along the gradient, the score changes by "
                f"{nearest:.2g} times what the gradient says{', the other way' if nearest < 0 else ''}.",
                {"measured change / expected change": nearest},
            )


def _measure_ratios(evidence: Evidence) -> list[float]:
    """Return the change of the score for steps along the gradient, divided by the change that the gradient expects."""
    activations, gradient = evidence.activations.detach(), evidence.gradients
    norm = float(gradient.cpu().double().norm())  # not all devices have float64
    output = evidence.forward_pass.layer_outputs[evidence.layer]
    rounding = max(torch.finfo(tensor.dtype).eps for tensor in (output, evidence.scores))
    ratios = list[float]()
    for step in _STEPS:
        length = step * float(activations.cpu().double().norm())
        expected, change = 2 * length * norm, gradient * (length / norm)
        if expected < _ROUNDING_ERRORS * rounding * abs(float(evidence.scores[0])):
            continue
        above, below = (float(run_tail(evidence, activations + sign * change)[0]) for sign in (1, -1))
        ratios.append((above - below) / expected)
    return [ratio for ratio in ratios if math.isfinite(ratio)]


def _compute_share(evidence: Evidence) -> float:
    """Return the sum of |gradient times activation|, relative to the score; infinity for a score of zero."""
    total = float((evidence.gradients * evidence.activations).cpu().double().abs().sum())
    score = abs(float(evidence.scores[0]))
    return total / score if score > 0 else float("inf")


def _find_loss(context: CheckContext, layer: str) -> str:
    """Return the words that say where on the way from the score to a layer the gradient shrinks most."""
    forward_pass = context.forward_pass
    with forward_pass.restore_autocast():
        names = [call.name for call in trace(forward_pass.model, forward_pass.inputs)]
        # Only the modules that run after the layer. A module that ran before may run again, but rarely does.
        last = len(names) - 1 - names[::-1].index(layer) if layer in names else 0
        after = list(dict.fromkeys(name for name in names[last:] if name))
        observed = run_with_hooks(forward_pass.model, after, forward_pass.inputs)
    outputs = {name: observed.calls[name][-1] for name in after if observed.calls.get(name)}
    with enable_gradients():
        score = score_targets([context.target], predictions.to_batch(observed.output, 1), [0])
    return _describe_loss([*outputs], _measure_gradients(score, [*outputs.values()]))


def _measure_gradients(score: Tensor, outputs: Sequence[Tensor]) -> list[float]:
    """Return the sum of the absolute gradient for each output; 0 where there is none."""
    if not score.requires_grad:
        return [0.0] * len(outputs)
    gradients = differentiate(score.sum(), outputs, allow_unused=True)
    return [0.0 if gradient is None else float(gradient.cpu().double().abs().sum()) for gradient in gradients]


def _describe_loss(names: Sequence[str], sizes: Sequence[float]) -> str:
    """Say between which modules, in the order of their calls, the gradient is lost."""
    threshold = _VANISHING_SHARE * max(sizes, default=0)
    index = next((position for position, size in enumerate(sizes) if size >= threshold > 0), 0)
    if index == 0:
        return "it is lost after the last module, in what turns the model's output into the score"
    return f"it is lost in module {names[index]!r}, whose output still has a gradient"
