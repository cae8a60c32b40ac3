"""Checks of the model: its mode, and whether it gives the same map twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import nn

from camtool.arguments.messages import format_count
from camtool.structures.module_names import iterate_hookable_modules
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding

__all__ = ["check_mode", "check_repeatability", "find_training_modules"]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

_SAME_SHARE = 0.01
"""Largest difference of two maps of the same image, relative to the range of the map. Rounding of half precision is
below it, and what a colormap of 100 colors shows is above it."""


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
