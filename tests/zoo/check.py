"""Checks of a model that is explained without configuration."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from camtool.errors import CamtoolError
from camtool.hooks.model_passes import run_model
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.hooks.tracing import trace
from camtool.layers.layouts import Layer, Layout
from camtool.layers.selection import find_layers, find_level_layers
from camtool.layers.survey import find_candidates
from camtool.outputs.detections import count_queries
from camtool.outputs.predictions import get_image_output, get_predictions
from tests.zoo.catalogue import EARLIER, UNTOLD, Entry, picture

_DEEP = 2 / 3
"""The layer lies behind this part of the network."""

_MOST_FORWARDS = 3
"""One for the shapes, one for the responses, and one more if the tokens do not show their order."""

_COSTS, _IS_EARLY = "forwards to find the layer", "of the network before it"

_STAYS = "moves where the picture was changed"

_NUDGE = 0.05
"""By what part a quadrant becomes that of another picture: a random network answers to a larger change everywhere."""

_CLASSES = 8
"""A rectified map of a random network is empty for about half of the classes, so as many are asked."""


@dataclass
class Verdict:
    """Result of a check.

    Attributes:
        layer: The layer that was chosen; ``None`` where none was.
        forwards: What finding it cost.
        oblong: Whether the model itself takes a picture that is not square.
        faults: What does not hold, in words; empty where all does.
    """

    layer: Layer | None = None
    forwards: int = 0
    oblong: bool = False
    faults: list[str] = field(default_factory=list)


def check(model: nn.Module, size: int) -> Verdict:
    """Explain a model with no options, at a square and at an oblong picture, and hold the answer against the rules.

    Args:
        model: Any classifier in evaluation mode, calibrated.
        size: The side of the square picture.
    """
    verdict = Verdict()
    for shape in ((size, size), (size, oblong(size))):
        verdict.oblong = shape[0] != shape[1] and accepts(model, *shape)
        if shape[0] != shape[1] and not verdict.oblong:
            continue
        where = f"at {shape[0]} x {shape[1]}: "
        try:
            verdict.faults += [where + fault for fault in _faults(verdict, model, picture(2, *shape))]
        except CamtoolError as error:
            verdict.faults.append(f"{where}{type(error).__name__}: {error}")
    return verdict


def hold(entry: Entry, unfit: Mapping[str, str]) -> None:
    """See that a model is explained as it should be; or, where it is known to be unfit, refused with a LayerError."""
    faults = check(entry.build(), entry.size).faults
    if entry.name in UNTOLD:
        assert faults
        assert all(fault.endswith(_STAYS) for fault in faults)
    elif entry.name in EARLIER:
        assert faults
        assert all(fault.endswith((_COSTS, _IS_EARLY)) for fault in faults)
    elif entry.name in unfit:
        assert faults
        assert all("LayerError: no layer of the model can carry a map" in fault for fault in faults)
    else:
        assert faults == []


def oblong(size: int) -> int:
    """The other side of the oblong picture: half as long again, in steps that most networks take."""
    return max(size + 32, size * 3 // 2 // 64 * 64)


def accepts(model: nn.Module, height: int, width: int) -> bool:
    """Return True if the model runs on an input of this size."""
    try:
        with torch.no_grad():
            run_model(model, picture(0, height, width))
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError):
        return False
    return True


def _faults(verdict: Verdict, model: nn.Module, img: Tensor) -> Iterator[str]:
    with _counted(model) as forwards:
        (layer,) = find_layers(model, img)
        spent = len(forwards)
        find_layers(model, torch.cat([img, img]))
    layer = find_explained_layer(model, img)
    verdict.layer, verdict.forwards = layer, spent
    if spent > _MOST_FORWARDS:
        yield f"it took {spent} {_COSTS}"
    if len(forwards) > spent:
        yield "the layer was not remembered"
    yield from faults_of_layer(model, layer, img)
    yield from faults_of_maps(_maps(model, img))
    yield from faults_of_place(explain_surest(model, img))


def faults_of_place(result: camtool.Explanation) -> Iterator[str]:
    """See that the hottest cell depends on the pixels where it is drawn; it may see the whole image.

    Attention with random weights may see all of it alike, which is told as ``no-places``.
    """
    findings = result.get_source("the test of places").check(result, only=("place",)).findings
    yield from (finding.sentence for finding in findings if finding.code == "heat-elsewhere")


def find_explained_layer(model: nn.Module, img: Tensor) -> Layer:
    """Return the layer of the map without a target; SSD's depends on the level of its surest detection."""
    if not find_level_layers(model, img):
        return find_layers(model, img)[0]
    return find_layers(model, img, [explain_surest(model, img).layer])[0]


def explain_surest(model: nn.Module, img: Tensor) -> camtool.Explanation:
    """Return the explanation of an input ``(1, C, H, W)`` without a target, of a detector's surest candidate."""
    try:
        (result,) = camtool.explain(model, img)
    except camtool.NothingFoundError:  # random weights are sure of nothing
        (result,) = camtool.explain(model, img, camtool.targets.Detection(0, confidence=0))
    return result


def faults_of_layer(model: nn.Module, layer: Layer, img: Tensor) -> Iterator[str]:
    """Return the faults of a layer as the source of maps of an input ``(1, C, H, W)``."""
    before = depth(model, layer.name, img, _find_other_levels(model, img))
    if before < _DEEP:
        yield f"layer {layer.name} has only {before:.0%} {_IS_EARLY}"
    if min(layer.layout.grid) < 2:
        yield f"layer {layer.name} has a grid of {layer.layout.grid}, which is a line"
    if not _reached(model, layer, img):
        yield f"the score's gradient at {layer.name} is zero"
    if not follows_the_picture(model, [layer], img) and not follows_the_picture(model, _alike(model, layer, img), img):
        yield f"neither layer {layer.name} ({layer.layout}) nor one like it {_STAYS}"


def faults_of_maps(maps: Iterable[NDArray[Any]]) -> Iterator[str]:
    """What speaks against the raw maps of a few classes: one that varies will do, and then no more are asked for."""
    for each in maps:
        if each.ndim != 2:
            yield f"a map has shape {each.shape}"
        if not np.isfinite(each).all():
            yield "a map is not finite"
        if np.ptp(each) > 0:
            return
    yield "the maps of all classes are constant"


def _maps(model: nn.Module, img: Tensor) -> Iterator[NDArray[Any]]:
    yield explain_surest(model, img).raw
    try:
        (results,) = camtool.explain(model, img, [camtool.targets.Top(_CLASSES)])
    except camtool.NothingFoundError:  # random weights are sure of nothing
        (results,) = camtool.explain(model, img, [camtool.targets.AllDetections(confidence=0)])
    yield from (each.raw for each in results)


def _reached(model: nn.Module, layer: Layer, img: Tensor) -> bool:
    observation = run_with_hooks(model, [layer.name], img)
    with torch.enable_grad():
        score = _top_score(observation.output)
        (gradient,) = torch.autograd.grad(score, observation.calls[layer.name][-1], materialize_grads=True)
    return bool(layer.layout.to_grid(gradient).any())


def _top_score(output: Any) -> Tensor:
    """Return what is explained of the first image without a target."""
    image = get_predictions(output)[0]
    try:
        (target,) = camtool.targets.resolve_targets(None, image, None)
    except camtool.NothingFoundError:  # random weights are sure of nothing
        (target,) = camtool.targets.resolve_targets(camtool.targets.Detection(0, confidence=0), image, None)
    return target(get_image_output(output, 0, keep_batch=True)).sum()


def _alike(model: nn.Module, layer: Layer, img: Tensor) -> list[Layer]:
    """Return the earlier layers with the same layout.

    A random network may mix all positions before its last layer, and then nothing can be told there.
    """
    candidates = [Layer(candidate.name, candidate.layout) for candidate in find_candidates(model, img)]
    return [each for each in candidates if each.layout == layer.layout]


@contextmanager
def _counted(model: nn.Module) -> Iterator[list[None]]:
    forwards: list[None] = []
    handle = model.register_forward_pre_hook(lambda *_: forwards.append(None))
    try:
        yield forwards
    finally:
        handle.remove()


def _find_other_levels(model: nn.Module, img: Tensor) -> set[str]:
    """Return the modules of SSD that the explained detection is not computed from: those of other feature levels."""
    if not find_level_layers(model, img):
        return set()
    calls = {each.name: each for each in trace(model, img)}
    names = [name for name, each in calls.items() if _works_on_positions(each.module, each.shape)]
    observation = run_with_hooks(model, names, img)
    with torch.enable_grad():
        score = _top_score(observation.output)
        tensors = [observation.calls[name][-1] for name in names]
        gradients = torch.autograd.grad(score, tensors, materialize_grads=True)
    return {name for name, gradient in zip(names, gradients, strict=True) if not gradient.any()}


def depth(model: nn.Module, layer: str, inputs: ModelInputs, left_out: Collection[str] = ()) -> float:
    """Return the fraction of the network before the end of a layer, 0 to 1.

    Each module with parameters of its own counts as one, where it last runs, as long as it returns more than one
    position: what follows the pooling, and what looks at pooled channels on the way, does not make a layer less deep.
    Nor does what a detector does with its queries, which are no positions. Modules in ``left_out`` do not count.
    """
    calls = trace(model, inputs)
    queries = count_queries(calls[-1].output)
    calls = list(takewhile(lambda call: not queries or not call.shape or call.shape[:2] != (1, queries), calls))
    last = {each.name: place for place, each in enumerate(calls)}
    counted = [place for name, place in last.items() if name not in left_out]
    own = [place for place in counted if _works_on_positions(calls[place].module, calls[place].shape)]
    return sum(place <= last[layer] for place in own) / len(own)


def _works_on_positions(module: nn.Module, shape: tuple[int, ...] | None) -> bool:
    has_own = next(module.parameters(recurse=False), None) is not None
    return has_own and shape is not None and len(shape) > 2 and math.prod(shape[2:]) > 1


def follows_the_picture(model: nn.Module, layers: Sequence[Layer], img: Tensor) -> bool:
    """Whether a change in each quadrant of a picture ``(1, C, H, W)`` is seen most in that quadrant of a layer.

    One of the layers will do. "Most" is said of the change in a quadrant as compared with that of the other quadrants,
    and with what other changes do there: positions at the edge may answer more to anything.
    """
    halves = [[slice(0, side // 2), slice(side // 2, None)] for side in img.shape[2:]]
    pictures = img.repeat(5, 1, 1, 1)
    other = picture(3, *img.shape[2:])
    for i, changed in enumerate(pictures[1:]):
        rows, columns = halves[0][i // 2], halves[1][i % 2]
        changed[:, rows, columns].lerp_(other[0, :, rows, columns], _NUDGE)
    calls = run_with_hooks(model, [layer.name for layer in layers], pictures, grad=False).calls
    return any(_follows(calls[layer.name][-1], layer.layout) for layer in layers)


def _follows(tensor: Tensor, layout: Layout) -> bool:
    """Whether what a layer returned for a picture and for it with each quadrant changed moves there."""
    if len(tensor) != 5:
        return False
    maps = layout.to_grid(tensor)
    moved = (maps[1:] - maps[:1]).abs().mean(1).double()  # (4, h, w)
    h, w = (max(1, cells // 2) for cells in layout.grid)  # an odd grid's middle belongs to no quadrant
    quadrants = [moved[:, :h, :w], moved[:, :h, -w:], moved[:, -h:, :w], moved[:, -h:, -w:]]
    seen = torch.stack([part.mean((1, 2)) for part in quadrants], 1).clamp_min(1e-30).log()
    relative = seen - seen.mean(0, keepdim=True) - seen.mean(1, keepdim=True)
    return relative.argmax(1).tolist() == [0, 1, 2, 3]
