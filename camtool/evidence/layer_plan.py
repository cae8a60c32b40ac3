"""The plan of a forward pass: what is known about a model that is called with inputs of one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from torch import nn

from camtool.hooks.observation import EntriesPerImage, Runner
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.modules import find_detector_transform
from camtool.hooks.structures.nested_tensors import ModelInputs, describe_shapes
from camtool.layers.centers import LayerPlace
from camtool.layers.depths import Depths, find_depths
from camtool.layers.image_tokens_in_text import find_image_tokens
from camtool.layers.layouts import Layer
from camtool.layers.selection import find_layers, find_level_layers
from camtool.outputs.class_scores import FoundLink, UserScore


@dataclass(frozen=True, eq=False)
class Facts:
    """Facts that hold for all plans of one input shape. They take a forward pass, so they are added when needed.

    Attributes:
        places: Layer to the place of its cells in the input; it holds while the weights are those that it names.
        links: How the scores become probabilities, where their values do not show it; one item, or none yet.
        final_operations: The function that computed the scores; one item, or none yet.
    """

    places: dict[Layer, LayerPlace] = field(default_factory=dict)
    links: list[FoundLink] = field(default_factory=list)
    final_operations: list[str | None] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """The layers to observe in a forward pass, and facts about the model.

    Attributes:
        layers: The layers to explain: those that were asked for, the best one, or one per feature level of a detector.
        depths: Layer name to the other layers on the way to it that are observed, from shallow to deep.
        observed: The layers and all their depths, each once.
        entries: Layer name to the entries of its batch that belong to one image, where there are several.
        is_detector: True if the model prepares its images itself, see
            :func:`camtool.hooks.structures.modules.find_detector_transform`.
        facts: Facts that other plans share.
        norms: Way to run the model → whether batch norms follow the layers, see :mod:`camtool.hooks.norm_gradients`;
            known after the first forward pass.
    """

    layers: tuple[Layer, ...]
    depths: Mapping[str, tuple[Layer, ...]]
    observed: tuple[Layer, ...]
    entries: Mapping[str, EntriesPerImage]
    is_detector: bool
    facts: Facts
    norms: WeakKeyDictionary[Runner, bool] = field(default_factory=WeakKeyDictionary)


def get_layer_plan(
    model: nn.Module,
    inputs: ModelInputs,
    layers: Sequence[str | Layer] | None,
    call_index: int = -1,
    depths: Depths = 0,
    score: UserScore | None = None,
) -> LayerPlan:
    """Return the layers to observe. The first call runs the model to choose them; a later one reads a cache.

    The plan is made once for each model, input shape and set of arguments. It holds while the structure of the model
    does not change, see :mod:`camtool.hooks.structures.caches`.

    Args:
        model: Any module. Its state is preserved.
        inputs: What the model will be called with.
        layers: The layers to explain, or their names; ``None`` for the best one, and for those of feature levels.
        call_index: Which call of a layer is read if it runs more than once: 0 is the first, -1 the last.
        depths: See :func:`camtool.layers.depths.find_depths`.
        score: See :func:`camtool.layers.survey.find_candidates`.

    Raises:
        LayerError: A layer cannot be explained, or the model has none that can.
    """
    asked = layers if layers is None else tuple(layers)
    # A text has the tokens of its image at places that do not follow from its length.
    tokens = find_image_tokens(model, inputs) if isinstance(inputs, Mapping) and asked != () else None
    shape = describe_shapes(inputs), tokens, call_index
    key = None if score is None or asked is not None else score.key
    make = partial(_choose_layers, model, inputs, asked, shape, call_index=call_index, depths=depths, score=score)
    question = "plan", shape, asked, depths if isinstance(depths, int) else tuple(depths), key
    return remember_for_model(model, question, make)


def _choose_layers(
    model: nn.Module,
    inputs: ModelInputs,
    asked: Sequence[str | Layer] | None,
    shape: object,
    *,
    call_index: int,
    depths: Depths,
    score: UserScore | None,
) -> LayerPlan:
    """Return the plan; to find layers runs the model."""
    facts = remember_for_model(model, ("facts", shape), Facts)
    if asked is None:
        levels = find_level_layers(model, inputs, call_index=call_index, score=score)
        layers = levels or find_layers(model, inputs, call_index=call_index, score=score)
    else:
        layers = _find_asked_layers(model, inputs, asked, call_index)
    on_the_way = {
        layer.name: tuple(find_depths(model, inputs, layer, depths, call_index=call_index)) if depths != 0 else ()
        for layer in layers
    }
    observed = tuple({depth.name: depth for layer in layers for depth in [*on_the_way[layer.name], layer]}.values())
    entries = {layer.name: layer.layout.entries for layer in observed if layer.layout.entries is not None}
    return LayerPlan(tuple(layers), on_the_way, observed, entries, find_detector_transform(model) is not None, facts)


def _find_asked_layers(
    model: nn.Module, inputs: ModelInputs, asked: Sequence[str | Layer], call_index: int
) -> list[Layer]:
    names = [layer for layer in asked if isinstance(layer, str)]
    named = iter(find_layers(model, inputs, names, call_index=call_index) if names else [])
    return [next(named) if isinstance(layer, str) else layer for layer in asked]
