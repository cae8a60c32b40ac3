"""Selection of the layers to explain: those that the user names, or else the deepest one that can carry a map.

The latter is the default, which :func:`camtool.layers.default_layer.choose_default_layer` marks among the candidates
of :mod:`camtool.layers.survey`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import nn

from camtool.errors import LayerError
from camtool.hooks.model_passes import MAKES_SPECTROGRAM, apply_detector_transform, describe_missing_gradient
from camtool.hooks.observation import get_call
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.modules import find_detector_transform, find_module, runs_outside_torch
from camtool.hooks.structures.nested_tensors import ModelInputs, describe_shapes
from camtool.hooks.tracing import TracedCall, ran_no_layer, trace
from camtool.layers import survey_batches
from camtool.layers.candidate_rules import NOT_LOCATED, NOT_REACHED, OTHER_FRAMES, OTHER_ORDER, OTHER_VIEWS
from camtool.layers.default_layer import Candidate
from camtool.layers.image_tokens_in_text import find_image_tokens
from camtool.layers.layout_reader import LayoutReader, find_first_with_tokens
from camtool.layers.layouts import Layer, Layout, choose_layout
from camtool.layers.responses import keep_views, locate_tokens, observe_variants
from camtool.layers.survey import find_candidates, group_grid_outputs, read_layouts
from camtool.layers.survey_batches import VARIANTS
from camtool.outputs.class_scores import UserScore
from camtool.outputs.detections import find_query_tokens
from camtool.outputs.predictions import to_batch


def find_layers(
    model: nn.Module,
    inputs: ModelInputs,
    names: Sequence[str] | None = None,
    *,
    like: Layout | None = None,
    call_index: int = -1,
    score: UserScore | None = None,
) -> list[Layer]:
    """Return the layers to explain: those that are named, or else the best one.

    The answer is remembered for each model and input shape, see :mod:`camtool.hooks.structures.caches`.

    Args:
        model: Any module.
        inputs: What the model will be called with.
        names: Dotted names. ``None`` for the deepest layer with a grid that the score's gradient reaches.
        like: Layout of the named layers if it is known from an image of another size.
        call_index: Which call of a layer is read if it runs more than once: 0 is the first, -1 the last.
        score: See :func:`camtool.layers.survey.find_candidates`.

    Raises:
        LayerError: A name is unknown, its output is no grid, or it has no such call; or no layer of the model
            qualifies. The message lists the layers that come near.
    """
    if names is None:
        return [_find_default_layers(model, inputs, call_index, score)[0]]
    text = find_image_tokens(model, inputs)
    question = "layers", describe_shapes(inputs), text, tuple(names), like and replace(like, grid=()), call_index
    return [*remember_for_model(model, question, lambda: _find_named(model, inputs, names, like, call_index))]


def find_level_layers(
    model: nn.Module, inputs: ModelInputs, *, call_index: int = -1, score: UserScore | None = None
) -> list[Layer]:
    """Return a detector's layer for each feature level, fine to coarse; nothing if one layer serves all detections.

    Only detectors whose levels form a chain have such layers, see :func:`camtool.layers.default_layer.mark_levels`. The
    first of them serves all detections. Levels without a grid of their own, e.g. of 1 x 1, share the layer before.

    Args:
        model: Any module.
        inputs: What the model will be called with.
        call_index: See :func:`find_layers`.
        score: See :func:`find_layers`.

    Raises:
        LayerError: No layer of the model qualifies.
    """
    if find_detector_transform(model) is None:
        return []
    return [*_find_default_layers(model, inputs, call_index, score)[1:]]


def depends_on_image(
    model: nn.Module,
    inputs: ModelInputs,
    names: Sequence[str] | None = None,
    *,
    call_index: int = -1,
    score: UserScore | None = None,
) -> bool:
    """Check that the output of each layer changes with the image; the arguments are those of :func:`find_layers`."""
    try:
        layers = find_layers(model, inputs, names, call_index=call_index, score=score)
    except LayerError:
        return False
    # The variants differ, so a layer that depends on them returns different outputs.
    calls = observe_variants(model, [layer.name for layer in layers], survey_batches.vary_all(inputs))
    outputs = [layer.layout.select_view(calls[layer.name][call_index]) for layer in layers]
    # The frames of a clip are rows of a layer's batch.
    by_variant = (output.reshape(VARIANTS, -1) if len(output) % VARIANTS == 0 else output for output in outputs)
    return not any(bool((variants == variants[:1]).all()) for variants in by_variant)


def locate_grid(model: nn.Module, inputs: ModelInputs, tokens: int, likely: Layout | None) -> Layout:
    """Return a layout of a number of tokens with its grid at the right ones.

    The first layers with as many tokens are asked; the answer is remembered for each model and input shape.

    Args:
        model: Any module.
        inputs: What the model will be called with.
        tokens: The number.
        likely: The layout that fits the number alone; None to ask all outputs of the model.

    Raises:
        LayerError: No layer shows that these tokens are the image's. Another image may, so this is not remembered.
    """

    def locate() -> Layout:
        size, calls = survey_batches.find_image_size(inputs), trace(model, survey_batches.select_first_image(inputs))
        reader = None if likely else read_layouts(model, inputs, calls, size, find_query_tokens(calls[-1].output))
        layout = reader.find_layout_of_tokens(tokens) if reader else likely
        origins = find_first_with_tokens(calls, (1, tokens))
        for layer in [Layer(name, layout) for name in origins if layout]:
            located, verdict = locate_tokens(model, inputs, layer, ((), ()), origins, 0)
            if not verdict:
                return located
        raise LayerError(f"no layer shows which of {tokens} tokens are parts of the image.")

    return remember_for_model(model, ("grid", describe_shapes(inputs), tokens, likely), locate)


def _find_default_layers(
    model: nn.Module, inputs: ModelInputs, call_index: int, score: UserScore | None
) -> tuple[Layer, ...]:
    """Return the layer that is explained if none is named, and after it those of a detector's feature levels."""
    key = None if score is None else score.key
    question = "layers", describe_shapes(inputs), find_image_tokens(model, inputs), call_index, key
    return remember_for_model(model, question, lambda: _find_best(model, inputs, call_index, score))


def _find_best(model: nn.Module, inputs: ModelInputs, call_index: int, score: UserScore | None) -> tuple[Layer, ...]:
    """Return the candidate that the survey chose and those of feature levels, or raise an error that lists the last."""
    candidates = find_candidates(model, inputs, call_index=call_index, score=score)
    chosen = [candidate for candidate in candidates if candidate.chosen]
    if not chosen:
        raise LayerError(f"no layer of the model can carry a map{_explain_none(model, inputs, candidates, call_index)}")
    start = candidates.index(chosen[0]) + 1
    lost = [candidate.name for candidate in candidates[start:] if candidate.verdict in (NOT_LOCATED, OTHER_ORDER)]
    passed_over = lost[-1] if len(lost) > start else ""
    levels = [candidate for candidate in candidates if candidate.is_level]
    return tuple(Layer(candidate.name, candidate.layout, passed_over) for candidate in [*chosen, *levels])


def _explain_none(model: nn.Module, inputs: ModelInputs, candidates: Sequence[Candidate], call_index: int) -> str:
    calls = trace(model, survey_batches.select_first_image(inputs))
    if candidates:
        return _explain_verdicts(model, inputs, calls, candidates)
    return _explain_no_grid(model, inputs, calls, call_index)


def _explain_no_grid(model: nn.Module, inputs: ModelInputs, calls: Sequence[TracedCall], call_index: int) -> str:
    """Return, for a message, why the model has no candidate."""
    if ran_no_layer(model, calls):
        return (
            ": the model calls .forward(...) of its modules, which runs no hooks. Let it call the modules themselves, "
            "self.layer(x), or use method='occlusion', which needs no layer."
        )
    when = "" if call_index in (0, -1) else f" at call_index={call_index}, which many layers do not reach"
    size = survey_batches.find_image_size(inputs)
    return f": no output is a grid over the {_format_size(size)} input{when}{_describe_last_outputs(calls, size)}"


def _explain_verdicts(
    model: nn.Module, inputs: ModelInputs, calls: Sequence[TracedCall], candidates: Sequence[Candidate]
) -> str:
    """Return, for a message, why none of the candidates is chosen.

    Raises:
        TargetError: The output is not one row per image, so there is no score that they could be asked about.
    """
    is_untrained, hint = all(candidate.verdict == NOT_REACHED for candidate in candidates), ""
    if is_untrained:
        has_graph = not runs_outside_torch(model)
        reason = describe_missing_gradient(model, survey_batches.select_first_image(inputs)) if has_graph else None
        if reason is not None:
            return f": {reason}. method='occlusion' needs no gradient."
        hint = (
            " Is the model's head still all zeros, untrained, or is the score computed from another output "
            "(target_class=) or from another call of these layers (call_index=)?"
        )
    to_batch(calls[-1].output, 1)
    misses = "; ".join(f"{candidate.name} {candidate.shape}: {candidate.verdict}" for candidate in candidates[-5:])
    return f" ({misses}).{hint} Name a layer with layer=."


def _describe_last_outputs(calls: Sequence[TracedCall], size: Sequence[int]) -> str:
    """Return, for a message, the last outputs with more axes than a batch of vectors, and what to do."""
    outputs = [call for call in calls if len(call.shape or ()) > 2][-3:]
    shapes = f" (last outputs: {', '.join(f'{call.name} {call.shape}' for call in outputs)})" if outputs else ""
    reason = _describe_shape(outputs[-1].shape, size) if outputs else ""
    remedy = "add a module that returns it as (N, C, h, w) and name that module with layer=."
    return shapes + (reason or f". If a layer has a layout of its own, {remedy} method='occlusion' needs no layer.")


def _describe_shape(shape: tuple[int, ...] | None, size: Sequence[int]) -> str:
    """Return, for a message, that an output is the image of a signal, or has several rows for one image; else ""."""
    if shape is not None and len(shape) == 4 and len(size) == 1:
        return f". {MAKES_SPECTROGRAM}."
    if shape is None or len(shape) < 3 or shape[0] < 2:
        return ""
    return (
        f". The model joins several images, views or tiles into one batch: these layers return {shape[0]} rows for one "
        "image, and which of them is the image's is not known. Let the model run these layers on one after the other, "
        "layers(u) and layers(v), or use a method at the input, e.g. method='occlusion'."
    )


def _find_named(
    model: nn.Module, inputs: ModelInputs, names: Sequence[str], like: Layout | None, call_index: int
) -> list[Layer]:
    """Return the named layers, or raise an error if an output is no grid."""
    inputs = survey_batches.score_next_token(inputs)
    size, calls = find_size_in_model(model, inputs), trace(model, survey_batches.select_first_image(inputs))
    reader, layers = read_layouts(model, inputs, calls, size, find_query_tokens(calls[-1].output)), []
    for name in names:
        module = find_module(model, name)
        call = get_call(name, [call for call in calls if call.module is module], call_index)
        # The prefix of a ViT does not change with the image's size, its grid does.
        layouts = [layout for layout in reader.find_layouts(call) if like is None or _has_same_beside(layout, like)]
        if not layouts:
            outputs = group_grid_outputs(calls, reader, call_index)
            raise LayerError(_describe_no_grid(name, call, size, [output.name for output in outputs[-5:]]))
        layer = Layer(name, _choose_named_layout(model, inputs, name, layouts, call, call_index))
        if not reader.is_in_text(layer.layout):
            layer = _locate_named(model, inputs, layer, reader, calls, call, call_index)
        layers.append(layer)
    return layers


def _describe_no_grid(name: str, call: TracedCall, size: Sequence[int], near: Sequence[str]) -> str:
    others = f". Layers near the output that return one: {', '.join(near) or 'none'}."
    return (
        f"layer {name!r} returned {call.shape or 'no tensor'}, which is no grid over the {_format_size(size)} "
        f"input{_describe_shape(call.shape, size) or others}"
    )


def _choose_named_layout(
    model: nn.Module, inputs: ModelInputs, name: str, layouts: list[Layout], call: TracedCall, call_index: int
) -> Layout:
    """Return the layout with which a named layer sees the view that is explained.

    Raises:
        LayerError: It sees another one, or its frames are not those of the clip.
    """
    layouts = keep_views(model, inputs, {name: layouts}, call_index)[name]
    if not layouts:
        raise LayerError(f"layer {name!r} returned {call.shape}: {OTHER_VIEWS}.")
    if len(layouts) == 1 and not layouts[0].has_frames:
        return layouts[0]
    output = observe_variants(model, [name], survey_batches.vary_corner(inputs))[name][call_index]
    layout = choose_layout(output, layouts)
    if layout.has_other_frames(output):
        raise LayerError(f"layer {name!r} returned {call.shape}, but {OTHER_FRAMES}.")
    return layout


def _locate_named(
    model: nn.Module,
    inputs: ModelInputs,
    layer: Layer,
    reader: LayoutReader,
    calls: list[TracedCall],
    call: TracedCall,
    call_index: int,
) -> Layer:
    """Return a named layer with its grid at the right tokens.

    Raises:
        LayerError: They are not found.
    """
    index = next(index for index, traced in enumerate(calls) if traced is call)
    grids = [grid for grid in group_grid_outputs(calls, reader, call_index) if layer.layout in grid.layouts]
    before = [grid.name for grid in grids if grid.calls[-1] < index]
    behind = [grid.name for grid in grids if grid.calls[0] > index]
    origins = reader.find_origins(call, [layer.layout])
    layout, verdict = locate_tokens(model, inputs, layer, (before, behind), origins, call_index)
    if verdict:
        raise LayerError(f"layer {layer.name!r} cannot carry a map: {verdict}. Name another layer with layer=.")
    return Layer(layer.name, layout)


def _has_same_beside(layout: Layout, like: Layout) -> bool:
    """Check that two layouts have the same beside their grids; which tokens are cells may not be known yet."""
    own, others = ({each.prefix + each.suffix, len(each.others)} for each in (layout, like))
    is_alike = (layout.kind, layout.views, layout.view) == (like.kind, like.views, like.view)
    return is_alike and bool(own & others)


def find_size_in_model(model: nn.Module, inputs: ModelInputs) -> tuple[int, ...]:
    """Return the size of the images behind the model's own preparation, which detectors have."""
    if find_detector_transform(model) is None:
        return survey_batches.find_image_size(inputs)
    return tuple(apply_detector_transform(model, survey_batches.get_image_input(inputs)[:1]).shape[2:])


def _format_size(size: Iterable[int]) -> str:
    """Return a size as text, e.g. ``224 x 224``."""
    return " x ".join(map(str, size))
