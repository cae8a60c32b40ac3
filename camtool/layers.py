"""Which layer to look at, and how its output is laid out.

One forward on the real input lists what every module returned. Outputs that can be read as a grid over the picture are
candidates. A second forward asks the model what shapes alone cannot tell: whether the score's gradient reaches the
grid's positions and, where a shape reads as a grid in two ways, which reading moves in the corner where the picture was
changed. It is changed in two ways, because a rectified layer may be silent about one. The deepest candidate that passes
is chosen, and the answer is remembered per model and input shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import TypeAlias

import torch
from torch import Tensor, nn

from camtool.errors import LayerError
from camtool.guards import with_gradients
from camtool.hooks import Call, nth_call, observe, prepared, trace
from camtool.layouts import Layout, Reader, enclosing, reading_that_moves
from camtool.model_cache import remembered
from camtool.modules import module_named, preparation_of
from camtool.outputs import detections, levels, logits, query_count, top_score
from camtool.sealed import is_quantised, sealed_as
from camtool.structures import Inputs, main_tensor, map_batch, tensors_in

__all__ = ["GOOD", "Candidate", "Layer", "Layout", "depends_on_picture", "resolve", "survey"]

Score: TypeAlias = Callable[[object], Tensor]
"""The model's output for N images → one score per image, ``(N,)``."""

_MOST_ASKED = 32
"""How many of the deepest candidates the second forward asks about: it bounds the graph that it records."""

_ORIGINS = 4
"""How many of the first modules that returned so many tokens are asked whether these come from the picture."""

_VARIANTS = 3
"""How many pictures the second forward runs: the first image, and two with a corner of it changed."""

GOOD = "good, but not the deepest"
"""The verdict on a layer against which nothing speaks but that a deeper one was chosen."""

_SILENT = "no gradient reaches it"

_POOLS = (
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._MaxPoolNd,
)
"""Layers that only coarsen what an earlier layer already showed."""


@dataclass(frozen=True)
class Layer:
    """A layer that carries a map: its dotted name in the model, and how to read what it returns."""

    name: str
    layout: Layout


@dataclass(frozen=True)
class Candidate:
    """A module whose output can be read as a grid.

    Attributes:
        name: Its dotted name; of several modules that hand on the very same values, the outermost.
        kind: The module's class.
        shape: The shape of what it returned for one image.
        layout: How that is read.
        stride: How many pixels of the picture lie between one position and the next, along each of its axes.
        reached: Whether the score's gradient reaches it; ``None`` where that was not asked, or cannot be.
        verdict: Why it was chosen or not, in a few words.
        chosen: Whether maps are drawn there when no layer is asked for.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    layout: Layout
    stride: tuple[float, ...]
    reached: bool | None = None
    verdict: str = ""
    chosen: bool = False


# ---------------------------------------------------------------------------------------------------- resolving


def resolve(
    model: nn.Module,
    inputs: Inputs,
    names: Sequence[str] | None = None,
    *,
    like: Layout | None = None,
    nth: int = -1,
) -> list[Layer]:
    """Return the layers to look at: those asked for, or else the best one.

    The answer is remembered per shape of input, as :mod:`camtool.model_cache` tells.

    Args:
        model: Any module.
        inputs: What the model will be called with.
        names: Dotted names. ``None`` for the deepest layer with a grid that the score's gradient reaches.
        like: How the named layers are laid out, where that is known from a picture of another size.
        nth: Which call of a layer is looked at, where it runs more than once: 0 is the first, -1 the last.

    Raises:
        LayerError: A name is unknown, its output is no grid, or it has no such call; or nothing in the model qualifies.
            The message lists the near misses.
    """
    question = "layers", _shapes(inputs), None if names is None else tuple(names), like and replace(like, grid=()), nth

    def look() -> tuple[Layer, ...]:
        found = [_best(model, inputs, nth)] if names is None else _asked_for(model, inputs, names, like, nth)
        return tuple(found)

    return [*remembered(model, question, look)]


def depends_on_picture(model: nn.Module, inputs: Inputs, names: Sequence[str] | None = None, *, nth: int = -1) -> bool:
    """Whether a layer's nth call, or that of each of several layers, depends on the picture; arguments as above."""
    try:
        layers = [layer.name for layer in resolve(model, inputs, names, nth=nth)]
    except LayerError:
        return False
    calls = observe(model, layers, _with_changed_corners(inputs), grad=False).calls
    return not any(_all_equal(calls[layer][nth].detach()) for layer in layers)


def _best(model: nn.Module, inputs: Inputs, nth: int) -> Layer:
    candidates = survey(model, inputs, nth=nth)
    for candidate in candidates:
        if candidate.chosen:
            return Layer(candidate.name, candidate.layout)
    if not candidates:
        which = "" if nth in (0, -1) else f" at call={nth}, which is not there in many models,"
        near = _last_outputs(model, inputs)
        raise LayerError(
            f"no layer of the model can carry a map: none returned{which} a grid over the "
            f"{_times(_picture_size(inputs))} input{near}. If one does in a way of its own, let a module return it as "
            "(N, C, h, w), and name that with layer=..."
        )
    misses = "; ".join(f"{c.name} {c.shape}: {c.verdict}" for c in candidates[-5:])
    hint = " Is the model's head still all zeros, untrained?" if all(c.verdict == _SILENT for c in candidates) else ""
    raise LayerError(f"no layer of the model can carry a map ({misses}).{hint} Name a layer with layer=...")


def _last_outputs(model: nn.Module, inputs: Inputs) -> str:
    """What came nearest to a grid, for a message: the last outputs with more to them than a row of numbers."""
    outputs = [f"{call.name} {call.shape}" for call in trace(model, _first_image(inputs)) if len(call.shape or ()) > 2]
    return f" (the last that came near: {', '.join(outputs[-3:])})" if outputs else ""


def _asked_for(model: nn.Module, inputs: Inputs, names: Sequence[str], like: Layout | None, nth: int) -> list[Layer]:
    size, calls = _seen_size(model, inputs), trace(model, _first_image(inputs))
    reader, layers = Reader(calls, size, query_count(calls[-1].returned)), []
    for name in names:
        module = module_named(model, name)
        call = nth_call(name, [call for call in calls if call.module is module], nth)
        readings = reader.readings(call)
        if like is not None:
            readings = [each for each in readings if (each.kind, each.prefix) == (like.kind, like.prefix)]
        if not readings:
            carriers = ", ".join(found.name for found in _carriers(calls, reader, nth)[-5:])
            raise LayerError(
                f"layer {name!r} returned {call.shape or 'no tensor'}, which is no grid over the {_times(size)} input. "
                f"Layers near the output that are: {carriers or 'none'}."
            )
        layout = readings[0] if len(readings) == 1 else _ask_which(model, inputs, name, readings, nth)
        layers.append(Layer(name, layout))
    return layers


def _ask_which(model: nn.Module, inputs: Inputs, name: str, readings: list[Layout], nth: int) -> Layout:
    tensor = observe(model, [name], _with_changed_corners(inputs), grad=False).calls[name][nth]
    return reading_that_moves(tensor.detach(), readings)


# ---------------------------------------------------------------------------------------------------- surveying


def survey(model: nn.Module, inputs: Inputs, *, nth: int = -1) -> list[Candidate]:
    """All modules whose output is a grid, shallow to deep, each with a verdict, the best one marked as chosen.

    It takes two forwards: one for the shapes, one, on the picture and on the picture with a corner changed, for the
    gradient and for shapes that can be read in two ways. Where none of the deepest serves, the ones before them take
    another each.

    Raises:
        LayerError: The model runs in one piece, so none of its layers is seen.
    """
    piece = sealed_as(model)
    if piece:
        raise LayerError(
            f"the model is {piece}, which runs in one piece, so none of its layers is seen; ask the model that it was "
            "made of."
        )
    return _surveyed(model, inputs, nth) if preparation_of(model) is None else _survey_of_a_detector(model, inputs, nth)


def _surveyed(model: nn.Module, inputs: Inputs, nth: int, *, is_backbone: bool = False) -> list[Candidate]:
    size, calls = _picture_size(inputs), trace(model, _first_image(inputs))
    queries = query_count(calls[-1].returned)
    calls = _before_the_queries(calls, queries)
    carriers = _carriers(calls, Reader(calls, size, queries), nth)
    at_once = len(carriers) if is_backbone else _MOST_ASKED  # some detectors leave the trunk early, for small things
    asked: list[Candidate] = []
    while len(asked) < len(carriers) and all(candidate.verdict for candidate in asked):
        remaining = carriers[: len(carriers) - len(asked)]
        asked = _verdicts(model, inputs, remaining[-at_once:], size, nth, is_backbone=is_backbone) + asked
    asked = _but_for_projections(calls, carriers[-len(asked) :], asked)
    best = max((i for i, candidate in enumerate(asked) if not candidate.verdict), default=None)
    for i, candidate in enumerate(asked):
        if i == best:
            merit = "depends on the picture" if candidate.reached is None else "the score's gradient reaches"
            asked[i] = replace(candidate, chosen=True, verdict=f"the deepest that {merit}")
        elif not candidate.verdict:
            asked[i] = replace(candidate, verdict=GOOD)
    shallow = [replace(each.candidate(size), verdict="shallow, not looked into") for each in carriers[: -len(asked)]]
    return shallow + asked


def _survey_of_a_detector(model: nn.Module, inputs: Inputs, nth: int) -> list[Candidate]:
    """The same for the backbone of a detector of torchvision's kind.

    Each detection is read from one of the backbone's maps, a small thing from a fine one, and its score says nothing of
    the others. So what is looked for is the deepest layer that all of the maps are made from: it serves any detection.
    """
    backbone = module_named(model, "backbone")
    found = _surveyed(backbone, prepared(model, _picture(inputs)[:1]), nth, is_backbone=True)
    return [replace(candidate, name=f"backbone.{candidate.name}") for candidate in found]


def _before_the_queries(calls: list[Call], queries: int) -> list[Call]:
    """The calls up to where a detector turns from the picture to its queries, some of which may look like a grid."""
    is_about_queries = (call.shape is not None and call.shape[:2] == (1, queries) and call.name for call in calls)
    first = next((place for place, is_it in enumerate(is_about_queries) if is_it), len(calls))
    return calls[:first] if queries else calls


@dataclass(frozen=True)
class _Carrier:
    """Calls that handed on the very same values, by their places in the forward; those values read as a grid."""

    name: str
    kind: str
    shape: tuple[int, ...]
    readings: list[Layout]
    places: list[int]
    origins: list[str]
    is_projected: bool

    def candidate(self, size: tuple[int, ...], layout: Layout | None = None) -> Candidate:
        layout = layout or self.readings[0]
        stride = tuple(pixels / cells for pixels, cells in zip(size, layout.grid, strict=True))
        return Candidate(self.name, self.kind, self.shape, layout, stride)


def _carriers(calls: list[Call], reader: Reader, nth: int) -> list[_Carrier]:
    carriers = []
    for places in _groups(calls, nth):
        readings = {place: found for place in places if (found := reader.readings(calls[place]))}
        outermost = min(readings, key=lambda place: calls[place].name.count("."), default=None)  # of equals, the first
        if outermost is not None and not isinstance(calls[outermost].module, _POOLS):
            call = calls[outermost]
            shape, kind = call.shape or (), type(call.module).__name__
            found = readings[outermost]
            origins = [] if all(map(reader.is_sure, found)) else _first_with_so_many_tokens(calls, shape)
            is_projected = _is_projected(calls, calls[places[0]])
            carriers.append(_Carrier(call.name, kind, shape, found, places, origins, is_projected))
    return carriers


def _is_projected(calls: list[Call], call: Call) -> bool:
    """Whether a matrix made this, or an activation of what a matrix made: as it makes scores of features."""
    return _has_a_matrix(call.module) or (call.given is not None and _has_a_matrix(calls[call.given].module))


def _first_with_so_many_tokens(calls: list[Call], shape: tuple[int, ...]) -> list[str]:
    like = (call.name for call in calls if call.name and call.shape and call.shape[:-1] == shape[:-1])
    return list(islice(like, _ORIGINS))


def _groups(calls: list[Call], nth: int) -> list[list[int]]:
    """The places of calls that handed on the very same values, together; of a module's calls only the nth.

    The model's own call is in none.
    """
    runs: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        runs.setdefault(call.name, []).append(i)
    looked_at = {its[nth] for its in runs.values() if -len(its) <= nth < len(its)}
    groups: list[list[int]] = []
    for i, call in enumerate(calls):
        if not call.handed_on:
            groups.append([])
        if groups and call.name and i in looked_at:
            groups[-1].append(i)
    return [group for group in groups if group]


def _verdicts(
    model: nn.Module,
    inputs: Inputs,
    carriers: list[_Carrier],
    size: tuple[int, ...],
    nth: int,
    *,
    is_backbone: bool,
) -> list[Candidate]:
    """Each candidate with its layout settled, and a verdict where something speaks against it."""
    if not carriers:
        return []
    names = [carrier.name for carrier in carriers]
    origins = [name for carrier in carriers for name in carrier.origins]
    observation = observe(model, list(dict.fromkeys(names + origins)), _with_changed_corners(inputs))
    tensors = [observation.calls[name][nth] for name in names]
    with with_gradients():  # in whichever mode the caller works
        scores = [None] if is_quantised(model) else _scores(observation.output, is_backbone=is_backbone)
    gradients = _in_all([_gradients(score, tensors) for score in scores])
    classes = 0 if is_backbone else _classes(observation.output)
    judged = []
    for carrier, tensor, gradient in zip(carriers, tensors, gradients, strict=True):
        layout = reading_that_moves(tensor.detach(), carrier.readings)
        maps, slopes = layout.to_grid(tensor.detach()), None if gradient is None else layout.to_grid(gradient[:1])
        reached = None if slopes is None else bool(slopes.any())
        fault = _fault(maps, slopes, classes if carrier.is_projected else 0)
        if not fault and _without_the_picture([observation.calls[name][0] for name in carrier.origins]):
            fault = "it holds tokens that are the model's own, not the picture's"
        judged.append(replace(carrier.candidate(size, layout), reached=reached, verdict=fault))
    return judged


def _without_the_picture(origins: list[Tensor]) -> bool:
    """Whether tokens start as queries do, the same for all pictures; what is there once, for all, are positions."""
    first = next((each for each in origins if len(each) == _VARIANTS), None)
    return first is not None and _all_equal(first.detach())


def _gradients(score: Tensor | None, tensors: list[Tensor]) -> Sequence[Tensor | None]:
    """How a score depends on each tensor; ``None`` for all where there is no graph to ask."""
    if score is None or not score.requires_grad:
        return [None] * len(tensors)
    with with_gradients():
        return torch.autograd.grad(score, tensors, materialize_grads=True, retain_graph=True)


def _scores(output: object, *, is_backbone: bool) -> list[Tensor | None]:
    """What a layer must lead to: what the model is surest of; or each of the maps that a detector reads things from."""
    maps = tensors_in(output) if is_backbone else levels(output)
    with with_gradients():
        # Where a map is clipped (ReLU6), its highest value has no slope; where it is normalised, its sum has none.
        return [each[0].amax(0).sum() + each[0].sum() for each in maps] or [top_score(output)]


def _classes(output: object) -> int:
    """How many channels the classes' own score maps have; 0 where what a model with one score returns is no map."""
    if top_score(output) is None or detections(output) is not None:
        return 0
    scores = logits(output)
    return scores.shape[1] if scores.ndim > 2 or scores.shape[1] > 1 else 0


def _in_all(gradients: Sequence[Sequence[Tensor | None]]) -> Sequence[Tensor | None]:
    """For each layer the gradient that all of several scores have in common: zero where one of them has none."""
    if len(gradients) == 1:
        return gradients[0]
    return [
        None if any(each is None for each in of_layer) else torch.stack([each.abs() for each in of_layer]).amin(0)
        for of_layer in zip(*gradients, strict=True)
    ]


def _but_for_projections(calls: list[Call], carriers: list[_Carrier], judged: list[Candidate]) -> list[Candidate]:
    """The candidates, less queries, keys and values: what these are projected from shows all that they share out.

    They are tokens times a matrix, within a module that hands on no grid itself: the score looks at what an attention
    gathers for the class token, say. A projection that a whole grid follows is a layer like any other.
    """
    at = {place: i for i, carrier in enumerate(carriers) for place in carrier.places}
    last = {call.name: place for place, call in enumerate(calls)}
    sources = [_projected_from(calls, carrier.places[0], last, at, judged) for carrier in carriers]
    return [
        candidate if source is None or candidate.verdict else replace(candidate, verdict=f"a projection of {source}")
        for candidate, source in zip(judged, sources, strict=True)
    ]


def _projected_from(
    calls: list[Call], place: int, last: Mapping[str, int], at: Mapping[int, int], judged: Sequence[Candidate]
) -> str | None:
    """The layer that this one is a projection of, within a module that hands on no grid; ``None`` for other layers."""
    call, own = calls[place], judged[at[place]].layout
    outer = (last[name] for name in enclosing(call.name) if last.get(name, -1) > place)
    around = list(takewhile(lambda each: each not in at or judged[at[each]].verdict != "", outer))
    if own.kind != "tokens" or not around or not _has_a_matrix(call.module):
        return None
    given = (calls[each].given for each in (place, *around))
    sources = (judged[at[each]] for each in given if each is not None and each in at)
    return next((each.name for each in sources if each.layout.grid == own.grid and not each.verdict), None)


def _has_a_matrix(module: nn.Module) -> bool:
    return any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))


def _fault(maps: Tensor, gradient: Tensor | None, classes: int) -> str:
    """What speaks against a layer with these maps of all pictures and this gradient; nothing: the empty string."""
    if len(maps) != _VARIANTS or _all_equal(maps):
        return "it does not depend on the picture"
    if gradient is None:
        return ""
    reached = gradient[0].ne(0)
    positions = reached.any(0)
    if not positions.any():
        return _SILENT
    # One row of an attention matrix, or the class token's neighbour, is not a grid that the score looks at.
    one_row = len(positions) > 2 and positions.ndim == 2 and positions.any(1).sum() == 1
    if one_row or positions.sum() <= max(1.0, 0.05 * positions.numel()):
        return "the score's gradient reaches hardly any of its positions"
    if len(reached) == classes and reached.flatten(1).any(1).sum() == 1:
        return "it holds the classes' own score maps, not features"
    return ""


# ------------------------------------------------------------------------------------------------------- inputs


def _picture(inputs: Inputs) -> Tensor:
    picture = main_tensor(inputs)
    if picture is None or picture.ndim < 3:
        came = "no tensor" if picture is None else f"shape {tuple(picture.shape)}"
        raise LayerError(f"inputs must hold a batch of pictures (N, C, H, W), got {came}; pass a 4-D tensor.")
    return picture


def _seen_size(model: nn.Module, inputs: Inputs) -> tuple[int, ...]:
    """The size of what the model's layers see."""
    picture = _picture(inputs)
    return tuple(picture.shape[2:]) if preparation_of(model) is None else tuple(prepared(model, picture[:1]).shape[2:])


def _picture_size(inputs: Inputs) -> tuple[int, ...]:
    return tuple(_picture(inputs).shape[2:])


def _first_image(inputs: Inputs) -> Inputs:
    return map_batch(inputs, lambda tensor: tensor[:1])


def _with_changed_corners(inputs: Inputs) -> Inputs:
    """The first image, and it with the quadrant at the top left changed: turned over and negative; dark to bright.

    The dark and the bright go beyond the picture's own, so there is something for a layer that sees only one of them.
    """
    picture = _picture(inputs)

    def variants(tensor: Tensor) -> Tensor:
        several = torch.cat([tensor[:1].detach()] * _VARIANTS)
        if tensor is picture:
            halves = [slice(max(1, pixels // 2)) for pixels in picture.shape[2:]]
            quadrant = (slice(None), slice(None), *halves)
            corner = several[quadrant]
            corner[1].copy_(-corner[0].flip(-1))
            reach = 2 + 2 * float(several[0].abs().amax())
            corner[2].add_(torch.linspace(-reach, reach, corner.shape[-1]).to(corner))
        return several

    return map_batch(inputs, variants)


def _all_equal(variants: Tensor) -> bool:
    """Whether a layer returned the same for every picture of a batch."""
    return bool((variants == variants[:1]).all())


def _shapes(inputs: Inputs) -> tuple[object, ...]:
    """What tells apart the ways in which a model is called: the arguments in order, and their shapes for one image."""
    names = inputs if isinstance(inputs, Mapping) else ()
    return (*names, *(tuple(tensor.shape[1:]) for tensor in tensors_in(inputs)))


def _times(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
