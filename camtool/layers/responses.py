"""What layers do with changed images: which row of a batch is the image's, where its tokens lie, in which order.

Shapes leave these questions open, so the model runs on variants of the image, see :mod:`camtool.layers.survey_batches`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

import torch
from torch import Tensor, nn

from camtool.errors import ForwardError, LayerError
from camtool.hooks.chunks import get_most_rows
from camtool.hooks.model_passes import differentiate
from camtool.hooks.observation import run_with_hooks
from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.structures.modules import lacks_gradients
from camtool.hooks.structures.nested_tensors import ModelInputs, find_tensors, map_batch, shares_several_values
from camtool.layers import candidate_rules as rules
from camtool.layers import layouts, survey_batches
from camtool.layers.default_layer import Candidate
from camtool.layers.image_tokens_in_text import find_image_tokens
from camtool.layers.layouts import Layer, Layout
from camtool.layers.survey_batches import NUDGE, VARIANTS
from camtool.maps import ROUNDING_STEPS, upcast

# The names of the layers before a layer, and of those behind it.
Around: TypeAlias = tuple[Sequence[str], Sequence[str]]

# Name of a layer → its output in each call.
Calls: TypeAlias = Mapping[str, Sequence[Tensor]]

# Number of layers before one whose tokens do not show their order that are asked instead: a block or two.
_NEAREST = 8

# Share of the change that lies in the changed half of the image, at least, so that tokens in a text count as cells.
# Here a place is required, as nothing else shows that these tokens form a grid.
_TEXT_AGREEMENT = 0.7

# Contrast that they must have, too, as a few cells agree by chance. With random weights it is 12 to 290 for
# cells, and 1.1 to 1.8 for queries, which look at the whole image.
_TEXT_CONTRAST = 1.5

# Share of the cells on each side of the border that are not asked. A convolutional tower sees an object across the
# border, and may respond to the noise there more than to noise on plain background: with all cells, the agreement in
# the captioner of the demo was below 0.7 for 8 % of the scenes.
_TEXT_MARGIN = 0.25

# Noise that is tried, see :func:`nudge_bands`. A strong one reaches cells that a ReLU leaves at zero, e.g. those on a
# dark background.
_NUDGES = (NUDGE, 1.0, 8.0)

# Share of a layer's cells that must respond, so that no stronger noise is tried.
_MOST_CELLS = 0.5


# -------------------------------------------------------------------------------------------------- rows of a batch


def count_views(model: nn.Module, inputs: ModelInputs) -> int:
    """Return the number of inputs of the image's shape, itself included, which a model may join to one batch.

    It is 1 for models that run on one image at a time, whose rows show no order: those that share inputs between
    images, and those with a text.
    """
    image = survey_batches.get_image_input(inputs)
    if shares_several_values(inputs) or find_image_tokens(model, inputs) is not None:
        return 1
    return sum(tensor.shape == image.shape and tensor.is_floating_point() for tensor in find_tensors(inputs))


def keep_views(
    model: nn.Module, inputs: ModelInputs, by_layer: Mapping[str, list[Layout]], call_index: int
) -> dict[str, list[Layout]]:
    """Return the layouts of layers without those of views that are not the image's own, see :func:`_is_own_view`.

    Args:
        model: Any module.
        inputs: What the model is called with.
        by_layer: The ways to read the output of each layer.
        call_index: See :func:`camtool.layers.survey.find_candidates`.
    """
    asked = [name for name, possible in by_layer.items() if any(layout.views for layout in possible)]
    if not asked:
        return {**by_layer}
    try:
        calls = run_with_hooks(model, asked, survey_batches.vary_views(inputs), grad=False).calls
    except ForwardError:  # one image at a time shows no order
        calls = {}

    def is_own(name: str, layout: Layout) -> bool:
        return name in calls and _is_own_view(layout, calls[name][call_index].detach())

    return {
        name: [layout for layout in possible if layout.views is None or is_own(name, layout)]
        for name, possible in by_layer.items()
    }


def _is_own_view(layout: Layout, tensor: Tensor) -> bool:
    """Check that one row for each image shows the image, all of it and nothing else, and that it is this view.

    Args:
        layout: The way to read a layer's output.
        tensor: The output for the inputs of :func:`camtool.layers.survey_batches.vary_views`: those of the user,
            then another image in the place of the image, then others in the places of all other images.
    """
    views = layout.views
    if views is None or len(tensor) != VARIANTS * views.count:
        return views is None
    own, another, beside = views.split(upcast(tensor)).flatten(2)
    own_changes, others_change = ((changed - own).abs().amax(1) for changed in (another, beside))
    # Rows of a batch may be rounded differently.
    rounding = max(layouts.UNCHANGED, ROUNDING_STEPS * torch.finfo(tensor.dtype).eps)
    is_own = torch.arange(views.count, device=tensor.device) == layout.view
    # Another image changes its own row alone; other views change all rows but this one.
    is_alone = own_changes[~is_own].max() <= rounding * own_changes[layout.view]
    is_independent = others_change[layout.view] <= rounding * others_change[~is_own].min()
    is_seen = own_changes[layout.view].isfinite() & (own_changes[layout.view] > 0) & (others_change[~is_own].min() > 0)
    return bool(is_alone & is_independent & is_seen)


# ----------------------------------------------------------------------------------------------- tokens of the image


def find_places(
    model: nn.Module, inputs: ModelInputs, layers: Sequence[Candidate | Layer], call_index: int
) -> list[bool]:
    """Return for each layer whether its cells respond most to their own band of the image; the model runs once."""
    return [layouts.follows_image(grid) for grid in _observe_bands(model, inputs, layers, call_index)]


def is_moved(
    model: nn.Module, inputs: ModelInputs, layer: Layer, call_index: int, mirrored: Sequence[int] = ()
) -> bool:
    """Check that a layer's cells respond to other bands of the image than their own; the model runs one to three times.

    Args:
        model: Any module.
        inputs: What the model is called with.
        layer: The layer. The order of tokens is checked before, see :func:`locate_tokens`.
        call_index: See :func:`camtool.layers.survey.find_candidates`.
        mirrored: The axes of the grid whose cells are known to run backwards.
    """
    if layer.layout.has_tokens:
        return False
    for nudge in _NUDGES:
        (grids,) = _observe_bands(model, inputs, [layer], call_index, nudge)
        if layouts.find_responding_cells(grids).double().mean() >= _MOST_CELLS:
            break
    return layouts.lies_elsewhere(grids.flip([2 + axis for axis in mirrored]))


def _observe_bands(
    model: nn.Module, inputs: ModelInputs, layers: Sequence[Candidate | Layer], call_index: int, nudge: float = NUDGE
) -> list[Tensor]:
    """Return the grids of layers for an image, and for variants of it with some noise in one band each."""
    run = observe_in_parts if is_language_model(model, inputs) else observe_variants
    images = survey_batches.nudge_bands(inputs, nudge)
    calls, count = run(model, [layer.name for layer in layers], images), len(survey_batches.get_image_input(images))
    grids = [layer.layout.to_grid(layer.layout.select_view(calls[layer.name][call_index])) for layer in layers]
    return [_repeat_constant(grid, count) for grid in grids]


def locate_tokens(
    model: nn.Module, inputs: ModelInputs, layer: Layer, around: Around, origins: Sequence[str], call_index: int
) -> tuple[Layout, str]:
    """Return the layout of a layer, with its grid at the right tokens, and the verdict if it cannot be used, else "".

    Args:
        model: Any module.
        inputs: What the model is called with.
        layer: The layer.
        around: Layers before it and behind it with the same layout, from shallow to deep. If the layer itself does not
            show the order of its tokens, the nearest before it that does is asked. What attention returns shows no
            places, but if it is added to tokens that have some, as a layer behind it shows, it has theirs.
        origins: The first modules with as many tokens.
        call_index: See :func:`camtool.layers.survey.find_candidates`.
    """
    if not layer.layout.has_tokens:
        return layer.layout, ""
    names = [layer.name, *around[0][: -_NEAREST - 1 : -1]]
    run = observe_in_parts if is_language_model(model, inputs) else observe_variants
    calls, select = run(model, [*names, *origins], survey_batches.vary_halves(inputs)), layer.layout.select_view
    outputs = [*(calls[name][0] for name in origins), calls[layer.name][call_index]]
    located = layouts.place_cells(layer.layout, [*map(select, outputs)])
    located = located or find_cells(model, inputs, layer.layout, origins)
    layer = Layer(layer.name, located or layer.layout)
    own, *shown = (find_order(layer.layout, select(calls[name][call_index])) for name in names)
    is_unknown = own is None and located is not None and False not in shown
    has_places = _has_places(model, inputs, layer, calls, origins, call_index) if is_unknown else None
    verdict = rules.find_verdict(rules.ORDER, rules.TokenOrder(own, shown, located is not None, has_places))
    if verdict and located is not None and _joins_places(model, inputs, layer, around, origins, call_index):
        return layer.layout, ""
    return layer.layout, verdict


def find_cells(model: nn.Module, inputs: ModelInputs, layout: Layout, origins: Sequence[str]) -> Layout | None:
    """Return a layout with its grid at the tokens that another image changes in one of the first layers with as many.

    The model runs on two images. Without a layer where as many tokens change as the grid has cells, None is returned.
    """
    calls = observe_variants(model, origins, survey_batches.vary_all(inputs)) if origins else {}
    placed = (layouts.place_at_changed(layout, layout.select_view(calls[name][0])) for name in origins)
    return next((found for found in placed if found is not None), None)


def _has_places(
    model: nn.Module, inputs: ModelInputs, layer: Layer, calls: Calls, origins: Sequence[str], call_index: int
) -> bool | None:
    """Return whether a layer's cells respond to their own part of the image; ``None`` if no layer can tell.

    Few cells behind attention that mixes them tell little: then the first tokens of as many, but for position
    embeddings, must have places. The test takes a forward pass.
    """
    names, call = [layer.name], call_index
    if math.prod(layer.layout.grid) < layouts.FEWEST_CELLS:
        names, call = [name for name in origins if len(calls[name][0]) > 1], 0
    return any(find_places(model, inputs, [Layer(name, layer.layout) for name in names], call)) if names else None


def _joins_places(
    model: nn.Module, inputs: ModelInputs, layer: Layer, around: Around, origins: Sequence[str], call_index: int
) -> bool:
    """Return whether a layer behind the given one adds its cells to tokens that have places in the same layout."""
    before, behind = around
    streams = _find_streams(model, inputs, layer, behind[:_NEAREST], call_index)
    judged = (locate_tokens(model, inputs, stream, (before, ()), origins, call_index) for stream in streams)
    return (layer.layout, "") in judged


def _find_streams(
    model: nn.Module, inputs: ModelInputs, layer: Layer, behind: Sequence[str], call_index: int
) -> list[Layer]:
    """Return the layers behind one whose cells each depend on the same cell of that one, and on no other.

    Skip connections add what attention returns to a stream of tokens. The gradient of some cells, drawn at random,
    shows it: cells in another order, or mixed ones, would pass it to others.
    """
    if not behind or lacks_gradients(model):
        return []
    calls = run_with_hooks(model, [layer.name, *behind], survey_batches.select_first_image(inputs)).calls
    own, generator = calls[layer.name][call_index], torch.Generator().manual_seed(0)
    streams = []
    with enable_gradients():
        for name in behind:
            cells = layer.layout.to_grid(layer.layout.select_view(calls[name][call_index]))
            drawn = torch.rand(cells.shape[2:], generator=generator, device="cpu") < 0.5
            # Weights, as a norm makes the plain sum constant.
            weights = torch.randn(cells.shape, generator=generator, device="cpu") * drawn
            (gradient,) = differentiate(cells, own, weights.to(cells), retain_graph=True, materialize_grads=True)
            reached = layer.layout.to_grid(layer.layout.select_view(gradient)).ne(0).any(1)[0]
            streams += [Layer(name, layer.layout)] if torch.equal(reached.cpu(), drawn) else []
    return streams


def find_order(layout: Layout, halves: Tensor) -> bool | None:
    """Return whether the cells are in the image's order, from outputs for :func:`vary_halves`; None if unknown."""
    return layouts.is_in_order(_repeat_constant(layout.to_grid(halves), VARIANTS).flatten(1, -3))


def _repeat_constant(grids: Tensor, count: int) -> Tensor:
    """Return an output for several images; positions or other parameters, of batch size 1, are the same for all."""
    return grids.expand(count, *grids.shape[1:]) if len(grids) == 1 else grids


def has_image_order(model: nn.Module, inputs: ModelInputs, layout: Layout, names: Sequence[str]) -> bool:
    """Check that the cells respond where the image was changed: in its upper half, and in its left half."""
    maps = _observe_image_in_text(model, survey_batches.vary_halves(inputs), layout, names)
    return maps is not None and all(
        contrast > _TEXT_CONTRAST and agreement > _TEXT_AGREEMENT
        for contrast, agreement in layouts.measure_order(maps, margin=_TEXT_MARGIN)
    )


def has_tile_order(
    model: nn.Module, inputs: ModelInputs, layout: Layout, names: Sequence[str], seams: Sequence[Sequence[int]]
) -> bool:
    """Check that the cells respond where the image was changed: in some tiles, and in one half of each tile."""
    parts = survey_batches.list_parts_of_tiles(survey_batches.find_image_size(inputs), seams)
    # A few parts at a time, as tiles take much memory.
    for start in range(0, len(parts), VARIANTS - 1):
        some = parts[start : start + VARIANTS - 1]
        maps = _observe_image_in_text(model, survey_batches.vary_parts(inputs, some), layout, names)
        if maps is None or any(
            layouts.measure_agreement((changed - maps[0]).abs().mean(0), part) <= _TEXT_AGREEMENT
            for changed, part in zip(maps[1:], some, strict=True)
        ):
            return False
    return True


def _observe_image_in_text(
    model: nn.Module, variants: ModelInputs, layout: Layout, names: Sequence[str]
) -> Tensor | None:
    """Return the image's cells ``(V, C, h, w)`` in the first module whose output depends on the image; None without."""
    several = [layout.to_grid(calls[0]) for calls in observe_in_parts(model, names, variants).values()]
    # The first modules may return positions, or the text alone.
    return next((grid for grid in several if len(grid) > 1 and not bool((grid == grid[:1]).all())), None)


def is_language_model(model: nn.Module, inputs: ModelInputs) -> bool:
    """Check that the model is a language model with tokens of an image, whose activations take much memory."""
    text = find_image_tokens(model, inputs)
    return text is not None and bool(text.positions)


def observe_variants(model: nn.Module, names: Sequence[str], images: ModelInputs) -> dict[str, list[Tensor]]:
    """Return the outputs of layers for several images, without a graph: in one forward pass, if the model allows it."""
    most = 1 if shares_several_values(images) else get_most_rows()
    if len(survey_batches.get_image_input(images)) > most:
        return observe_in_parts(model, names, images, most)
    try:
        calls = run_with_hooks(model, list(dict.fromkeys(names)), images, grad=False).calls
    except ForwardError:
        if len(survey_batches.get_image_input(images)) == 1:
            raise
        return observe_in_parts(model, names, images, 1)
    if loops_over_batch(model, calls, images):
        return observe_in_parts(model, names, images, 1)
    return {name: [output.detach() for output in outputs] for name, outputs in calls.items()}


def loops_over_batch(model: nn.Module, calls: Calls, images: ModelInputs) -> bool:
    """Check that a model runs layers on one image after the other: they ran more often than for a single image.

    Args:
        model: Any module.
        calls: The outputs of layers for all images.
        images: The images.
    """
    # The pass that compares is saved where each call has all images, and there are not as many as images.
    count = len(survey_batches.get_image_input(images))
    several = {name: each for name, each in calls.items() if len(each) > 1}
    again = [name for name, each in several.items() if len(each) % count == 0 or each[0].shape[:1] < (count,)]
    alone = run_with_hooks(model, again, survey_batches.select_first_image(images), grad=False).calls if again else {}
    return any(len(calls[name]) != len(alone[name]) for name in again)


def observe_in_parts(
    model: nn.Module, names: Sequence[str], images: ModelInputs, size: int = 2
) -> dict[str, list[Tensor]]:
    """Return the outputs of layers for several images as :func:`observe_variants` does, a few images at a time.

    With ``size=1`` nothing shows which outputs have the images along their first axis, so all are joined along it.
    """
    size = min(size, get_most_rows())
    starts = range(0, len(survey_batches.get_image_input(images)), size)
    parts = [observe_variants(model, names, map_batch(images, itemgetter(slice(at, at + size)))) for at in starts]
    # The parts of one output are freed before the next one is joined.
    return {
        name: [_join_parts(part, size) for part in zip(*(calls.pop(name) for calls in parts), strict=True)]
        for name in dict.fromkeys(names)
    }


# Message for layers whose cells have no fixed places.
_OTHER_SIZE = "the size of a layer depends on the image's content, so no cell has a place; crop before the model."


def _join_parts(parts: Sequence[Tensor], size: int) -> Tensor:
    """Return the outputs for all images; positions or other parameters, of batch size 1, are the same for all."""
    if len({part.shape[1:] for part in parts}) > 1:
        raise LayerError(_OTHER_SIZE)
    return parts[0] if len(parts[0]) == 1 < size else torch.cat([*parts])
