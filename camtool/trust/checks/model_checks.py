"""Checks of the model: its mode, whether it gives the same map twice, and whether the score passes by the layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import nn

from camtool.arguments.messages import format_count
from camtool.hooks.structures.modules import iterate_hookable_modules
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

_SAME_SHARE = 0.01
"""Largest difference of two maps of the same image, relative to the range of the map. Rounding of half precision is
below it, and what a colormap of 100 colors shows is above it."""

_OTHER_SHARE = 0.01
"""Share of the change of the score from which on a path beside the layer counts. Without such a path it is 0."""

_ROUNDING = 1e-5
"""Relative rounding error of a score."""


def find_training_modules(model: nn.Module) -> list[str]:
    """Return the names of dropouts and batch norms in training mode, in which they compute something else."""
    return [
        name
        for name, module in iterate_hookable_modules(model)
        if isinstance(module, (*_BATCH_NORMS, *_DROPOUTS))
        and module.training
        and (not isinstance(module, _DROPOUTS) or module.p > 0)
    ]


def check_mode(context: CheckContext) -> Iterator[Finding]:
    """Find modules in training mode."""
    if context.training:
        yield Finding(
            "train-mode",
            f"The model is in training mode: {format_count(len(context.training), 'module')} of dropout or batch "
            f"normalization, e.g. {context.training[0]!r}, would change its own predictions; the map is of the model "
            "in evaluation mode.",
            {"modules": len(context.training)},
        )


def check_repeatability(context: CheckContext) -> Iterator[Finding]:
    """Find a map that is not repeated when the image is explained again."""
    before, now = context.raw, context.new_map
    if before.shape != now.shape:
        yield Finding("not-repeatable", f"Explained again, the map is {now.shape}; it was {before.shape}.")
        return
    span = float(np.ptp(before))
    if not np.isfinite(before).all() or span == 0:
        return
    share = float(np.abs(before - now).max()) / span
    if not share <= _SAME_SHARE:  # NaN counts
        sentence = f"Explained again, the map differs by up to {share:.0%} of its range."
        yield Finding("not-repeatable", sentence, {"difference": share})


def check_other_paths(context: CheckContext) -> Iterator[Finding]:
    """Find a score that depends on the image in other ways than through the layers."""
    if context.is_blank:
        return
    score, held, free = context.score_blank_image()
    if not abs(held - score) > _OTHER_SHARE * abs(free - score) + _ROUNDING * abs(score):
        return
    numbers = {"score": score, "of one color": free, "with the layer's output held": held}
    names = " + ".join(repr(of_layer.layer) for of_layer in context.evidence)
    fact = (
        f"For an image of one color, the mean color of this image, the score is {free:.4g} instead of {score:.4g}; "
        f"it is {held:.4g} if the output of {names} stays that of this image."
    )
    layouts = [of_layer.get_layer().layout for of_layer in context.evidence]
    if any(layout.prefix or layout.suffix for layout in layouts):
        tail = "The class token, or another token that is no cell of the map, has read the image in earlier layers."
        yield Finding("earlier-layers", f"{fact} {tail}", numbers)
    else:
        tail = "So the model sees the image in other ways, too, and the map shows only what passes through the layer."
        yield Finding("other-paths", f"{fact} {tail}", numbers)
