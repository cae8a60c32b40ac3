"""Checks of the model: mode, repeatability, last layer, depth of the layer, and paths that pass by the layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from camtool.arguments.message_parts import format_count
from camtool.evidence.class_vectors import find_linear_layers
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.registration import DROPOUTS
from camtool.hooks.structures.modules import has_matrix, iterate_hookable_modules
from camtool.hooks.structures.nested_tensors import find_main_tensor
from camtool.methods.registry import WeightingMethod
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_report import Finding

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

# Largest difference of two maps of the same image, relative to the range of the map. Rounding of half precision is
# below it, and what a colormap of 100 colors shows is above it.
_SAME_SHARE = 0.01

# Share of the change of the score from which on a path beside the layer counts. Without such a path it is 0.
_OTHER_SHARE = 0.01

# Relative rounding error of a score.
_RELATIVE_ROUNDING = 1e-5

# Classes, and pairs of classes with related names, below which the last layer is not judged.
_FEWEST_CLASSES = 100

# Skewness of the last layer's weights below which it is negated. For ImageNet it is 0.38 (MobileNetV2), 0.23
# (SqueezeNet 1.1) and 0.41 (EfficientNet-Lite0): a class has a few strong features, and many that speak a little
# against it.
_NEGATIVE_SKEW = -0.1

# Standard errors by which classes with related names are more alike than others. They are 70 to 95 in those three
# networks, and between -2 and 2 if the classes are shuffled.
_UNRELATED = 5.0

# Share of the layers with weights and a grid up to the explained one below which it is early.
_EARLY = 0.4

# Share of the classes from which on a word that they share says nothing of their kind, e.g. in "class 1".
_COMMON = 0.1


def find_training_modules(model: nn.Module) -> list[str]:
    """Return the names of dropouts and batch norms in training mode, in which they compute something else."""
    return [
        name
        for name, module in iterate_hookable_modules(model)
        if isinstance(module, (*_BATCH_NORMS, *DROPOUTS)) and module.training and getattr(module, "p", 1) > 0
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


def find_other_paths_skip_reason(context: CheckContext) -> str | None:
    """Return why other paths are not looked for; ``None`` if they are."""
    return None if context.evidence[0].layer else "the method looks at no layer"


def check_other_paths(context: CheckContext) -> Iterator[Finding]:
    """Find a score that depends on the image in other ways than through the layers."""
    if context.is_blank:
        return
    score, held, free = context.score_blank_image()
    if not abs(held - score) > _OTHER_SHARE * abs(free - score) + _RELATIVE_ROUNDING * abs(score):
        return
    numbers = {"score": score, "of one color": free, "with the layer's output held": held}
    names = " + ".join(repr(of_layer.layer) for of_layer in context.evidence)
    fact = (
        f"For an image of one color, the mean color of this image, the score is {free:.4g} instead of {score:.4g}; "
        f"it is {held:.4g} if the output of {names} stays that of this image."
    )
    layouts = [of_layer.get_layer().layout for of_layer in context.evidence]
    if any(layout.others for layout in layouts):
        tail = "The class token, or another token that is no cell of the map, has read the image in earlier layers."
        yield Finding("earlier-layers", f"{fact} {tail}", numbers)
    else:
        tail = "So the model sees the image in other ways, too, and the map shows only what passes through the layer."
        yield Finding("other-paths", f"{fact} {tail}", numbers)


def check_depth(context: CheckContext) -> Iterator[Finding]:
    """Find a layer early in a classifier that the user chose, for a method that weighs channels by one number each."""
    if not context.is_layer_given:
        return
    names = [call.name for call in context.calls]
    layers = [of_layer.layer for of_layer in context.evidence if of_layer.layer in names]
    if not layers:
        return
    last = max(len(names) - names[::-1].index(layer) for layer in layers)
    has_weights = [has_matrix(call.module) and _has_grid(call.shape) for call in context.calls]
    share = sum(has_weights[:last]) / max(1, sum(has_weights))
    if share < _EARLY:
        yield Finding(
            "early-layer",
            f"{' + '.join(map(repr, layers))} ends after {share:.0%} of the model's layers with a grid. Its "
            "channels are edges and textures of all classes, and one weight for each cannot tell where the class is.",
            {"share of the layers": share},
        )


def find_depth_skip_reason(context: CheckContext) -> str | None:
    """Return why the depth of the layer is not judged; ``None`` if it is."""
    if not context.is_layer_given:
        return None  # there is no choice to judge, so nothing is said
    if context.class_scores is None:
        return "it takes a classifier"
    # Methods that weigh each cell are meant for early layers, too, e.g. layercam.
    is_weighting = isinstance(context.method, WeightingMethod) and context.method.cost == "a pass"
    if not is_weighting or any(side > 1 for side in context.method.function(context.evidence[0]).shape[2:]):
        return "the method does not weigh each channel by one number"
    return None


def _has_grid(shape: Sequence[int] | None) -> bool:
    """Return True for the shape of maps ``(N, C, *grid)`` or tokens ``(N, T, C)`` with more than one cell."""
    return shape is not None and len(shape) > 2 and max(shape[2:] if len(shape) > 3 else shape[1:]) > 1


def find_last_layer_skip_reason(context: CheckContext) -> str | None:
    """Return why the last layer is not judged; ``None`` if it is."""
    if context.class_scores is None or len(context.class_scores) < _FEWEST_CLASSES:
        return f"it takes a classifier of {_FEWEST_CLASSES} classes or more"
    return "no linear layer returns the scores" if context.forward_pass.find_class_vectors() is None else None


def check_last_layer(context: CheckContext) -> Iterator[Finding]:
    """Find a last layer whose weights are negated, or whose classes have the names of other classes."""
    vectors = context.forward_pass.find_class_vectors()
    assert vectors is not None  # else the check is skipped
    heads = find_linear_layers(context.forward_pass.model, classes=len(vectors))
    for name, weight in [(name, weight) for name, (weight, _) in heads.items() if torch.equal(weight, vectors)][:1]:
        centered = weight.cpu().double() - weight.cpu().double().mean(0)
        skewness = float((centered**3).mean() / (centered**2).mean() ** 1.5)
        if skewness < _NEGATIVE_SKEW and _reads_positive(context, name):
            yield Finding(
                "negated-layer",
                f"The weights of {name!r} have a skewness of {skewness:.2f}: each class has a few features that speak "
                "strongly against it, and none that speak for it. In trained classifiers it is the reverse.",
                {"skewness": skewness},
            )
        errors = _compare_related(centered, context.labels or ())
        if errors is not None and errors < _UNRELATED:
            yield Finding(
                "labels-mixed-up",
                f"In {name!r}, classes with related names (e.g. two that end in the same word) are no more alike than "
                f"any two ({errors:.1f} standard errors), so the labels do not belong to these weights, or the weights "
                "are not trained.",
                {"standard errors": errors},
            )


def _reads_positive(context: CheckContext, name: str) -> bool:
    """Return True if a layer reads the output of the module before it, and that has no negative values."""
    names = [call.name for call in context.calls]
    position = names.index(name) if name in names else 0
    if not position or not context.calls[position].follows_previous:
        return False
    before = names[position - 1]
    with context.forward_pass.restore_autocast():
        observed = run_with_hooks(context.forward_pass.model, [before], context.forward_pass.inputs)
    tensor = find_main_tensor(observed.calls[before][-1])
    return tensor is not None and bool(tensor.min() >= 0)


def _compare_related(centered: Tensor, labels: Sequence[object]) -> float | None:
    """Return by how many standard errors classes with related names are more alike; ``None`` if there are too few.

    Args:
        centered: ``(K, D)``, the weights of each class, minus their mean.
        labels: The names, or numbers; only the first of several synonyms counts.
    """
    if len(labels) != len(centered):
        return None
    unit = centered / centered.norm(dim=1, keepdim=True).clamp(min=torch.finfo(centered.dtype).tiny)
    alike, differ = unit @ unit.T, ~torch.eye(len(unit), dtype=torch.bool)
    words = [re.split(r"[\s_-]+", str(label).partition(",")[0].strip().lower()) for label in labels]
    errors = list[float]()
    # The last word is the kind, e.g. of dog; in names of species the first one is.
    for end in (-1, 0):
        kinds = np.array([name[end] if name[end].isalpha() else str(k) for k, name in enumerate(words)])
        _, place_of, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        kinds = np.where(counts[place_of] > _COMMON * len(kinds), np.arange(len(kinds)).astype(str), kinds)
        related = torch.from_numpy(kinds[:, None] == kinds) & differ
        pairs = int(related.sum()) // 2
        if pairs >= _FEWEST_CLASSES:
            gain = alike[related].mean() - alike[differ].mean()
            errors.append(float(gain / (alike[differ].std() / pairs**0.5)))
    return max(errors, default=None)
